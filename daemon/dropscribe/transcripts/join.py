"""Joining the texts of segments: a space where the scripts put one, none where they do not."""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

# Scripts written without spaces between sentences: Han, kana, bopomofo, and their punctuation and full-width forms.
# Hangul is absent on purpose: Korean separates words by spaces.
_UNSPACED = (
    (0x2E80, 0x312F),  # radicals, CJK punctuation, hiragana, katakana, bopomofo
    (0x31A0, 0x31FF),
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0xFE30, 0xFE4F),
    (0xFF01, 0xFF9F),
    (0xFFE0, 0xFFE6),
    (0x1AFF0, 0x1B16F),
    (0x20000, 0x3FFFF),
)
_STARTS = [start for start, _ in _UNSPACED]
# Marks that both kinds of script use: what stands beside them decides.
_NEUTRAL = frozenset("‘’“”…—–‥")


def join(texts: Iterable[str]) -> str:
    """The texts as one: stripped, empty ones left out, one space between them except where the script has none.

    No space is put between two letters of Chinese or Japanese, nor on either side of their full-width punctuation.
    Nothing inside a text is changed.
    """
    parts: list[str] = []
    for text in texts:
        stripped = text.strip()
        if not stripped:
            continue
        if parts and _spaced(parts[-1], stripped):
            parts.append(" ")
        parts.append(stripped)
    return "".join(parts)


def _spaced(left: str, right: str) -> bool:
    last = next((char for char in reversed(left) if _decides(char)), left[-1])
    first = next((char for char in right if _decides(char)), right[0])
    if unspaced(last) and unspaced(first):
        return False
    return not any(unspaced(char) and unicodedata.category(char)[0] in "PS" for char in (last, first))


def _decides(char: str) -> bool:
    """Not a combining mark, a variation selector, a joiner or a mark of both kinds of script."""
    return char not in _NEUTRAL and unicodedata.category(char) not in ("Mn", "Me", "Cf")


def unspaced(char: str) -> bool:
    """Whether a character belongs to a script written without spaces."""
    at = bisect_right(_STARTS, ord(char)) - 1
    return at >= 0 and ord(char) <= _UNSPACED[at][1]
