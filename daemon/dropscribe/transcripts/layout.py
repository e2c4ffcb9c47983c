"""Text as it stands on a screen: how wide it is, where a line may end, what the writer put where.

Width is counted in columns: a wide East Asian character or an emoji takes two, a combining mark none.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from dropscribe.transcripts.join import unspaced

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LINE = 42  # columns: what broadcasters allow for Latin, and 21 wide characters
# How good a place to break is: after a sentence, after a clause, between two words.
SENTENCE, CLAUSE, WORD = 3, 2, 1

_JOINER = "\u200d"
_CLOSERS = "\"'”’»›)]}」』）】》〉〕］｝"
_SENTENCE_ENDS = ".!?…。！？｡．؟۔।॥"
_CLAUSE_ENDS = ",;:、，；：،؛–—"
# fmt: off
_ABBREVIATIONS = frozenset({
    "mr", "mrs", "ms", "dr", "st", "prof", "vs", "jr", "sr", "fig", "approx", "etc", "e.g", "i.e", "z.b", "bzw", "ca",
    "nr", "usw",
})
# fmt: on
# Small kana and marks that go with the character before them never begin a line; nor does closing punctuation.
_NOT_FIRST = frozenset("ーぁぃぅぇぉっゃゅょゎァィゥェォッャュョヮヵヶ々〻ゝゞヽヾ゛゜％‰℃")


@dataclass(frozen=True)
class Atom:
    """What never is broken: a word with its punctuation, or one character of a script without spaces."""

    text: str
    glue: str  # what stands between this atom and the next on one line: a space or nothing
    weight: float  # how long it takes to say, in letters
    strength: int  # of the break after it


def clean(text: str) -> str:
    r"""``text`` in one line: white space and control characters become single spaces, lone surrogates ``\udcff``."""
    valid = text.encode("utf-8", "backslashreplace").decode()
    if not valid.isprintable():
        valid = "".join(" " if unicodedata.category(char) in ("Cc", "Zl", "Zp") else char for char in valid)
    return " ".join(valid.split())


def width(text: str) -> int:
    """Columns."""
    return len(text) if text.isascii() else sum(map(_columns, _clusters(text)))


def atoms(text: str, longest: int = LINE) -> list[Atom]:
    """Clean ``text`` in atoms of at most ``longest`` columns."""
    words = text.split()
    parts = [(part, " " if last else "") for word in words for part, last in _flagged(_split(word, longest))]
    return [
        Atom(part, glue, _weight(part), _strength(part, parts[at + 1][0] if at + 1 < len(parts) else ""))
        for at, (part, glue) in enumerate(parts)
    ]


def joined(parts: Sequence[Atom]) -> str:
    """Atoms as text."""
    return "".join(part.text + part.glue for part in parts).rstrip()


def lines(text: str, most: int = 2) -> list[str]:
    """``text`` in lines of at most ``LINE`` columns; where two are needed they are about equally long.

    More than ``most`` lines come out when it does not fit into them.
    """
    if width(text) <= LINE:
        return [text]
    parts = atoms(text)
    filled = _fill(parts)
    if len(filled) != 2 or most != 2:
        return filled
    whole, left = width(text), 0
    best: tuple[float, int] | None = None
    for at, part in enumerate(parts[:-1]):
        left += width(part.text)
        right = whole - left - len(part.glue)
        if max(left, right) <= LINE:
            # an even break, rather after punctuation, rather with the longer line below
            badness = abs(left - right) - 4 * (part.strength - WORD) + (2 if left > right else 0)
            best = min(best or (badness, at), (badness, at))
        left += len(part.glue)
    return filled if best is None else [joined(parts[: best[1] + 1]), joined(parts[best[1] + 1 :])]


def fits(text: str, most: int = 2) -> bool:
    """Whether ``text`` goes into ``most`` lines."""
    return width(text) <= LINE or (width(text) <= most * LINE and len(_fill(atoms(text))) <= most)


def _fill(parts: Sequence[Atom]) -> list[str]:
    found: list[list[Atom]] = [[]]
    taken = 0
    for part in parts:
        wide = width(part.text)
        if found[-1] and taken + wide > LINE:
            found.append([])
            taken = 0
        found[-1].append(part)
        taken += wide + len(part.glue)
    return [joined(line) for line in found]


def _flagged(parts: list[str]) -> Iterator[tuple[str, bool]]:
    for at, part in enumerate(parts):
        yield part, at == len(parts) - 1


def _split(word: str, longest: int) -> list[str]:
    """A word in pieces that may stand on different lines."""
    if word.isascii():
        return [word[at : at + longest] for at in range(0, len(word), longest)]
    parts: list[str] = []
    taken = 0
    before = ""
    for cluster in _clusters(word):
        wide = _columns(cluster)
        if not parts or taken + wide > longest or _may_break(before, cluster):
            parts.append("")
            taken = 0
        parts[-1] += cluster
        taken += wide
        before = cluster
    return parts


def _may_break(before: str, after: str) -> bool:
    """Between two characters of which at least one belongs to a script without spaces."""
    left, right = before[0], after[0]
    if not (unspaced(left) or unspaced(right)) or right in _NOT_FIRST:
        return False
    if unicodedata.category(right) in ("Pe", "Pf", "Po", "Sk") or right in "—–…":
        return False
    return unicodedata.category(left) not in ("Ps", "Pi")


def _clusters(text: str) -> Iterator[str]:
    """Characters with the marks that belong to them; emoji joined to one stay one."""
    cluster = ""
    for char in text:
        joins = unicodedata.category(char) in ("Mn", "Me", "Cf", "Sk") and char != "\u3000" and not char.isascii()
        if cluster and (joins or cluster[-1] == _JOINER) and len(cluster) < 64:
            cluster += char
            continue
        if cluster:
            yield cluster
        cluster = char
    if cluster:
        yield cluster


def _columns(cluster: str) -> int:
    if _JOINER in cluster:
        return 2
    return min(2, sum(_char_columns(char) for char in cluster))


@lru_cache(maxsize=4096)
def _char_columns(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in ("W", "F") else 1


def _weight(text: str) -> float:
    return max(0.5, sum(map(_char_weight, text)))


@lru_cache(maxsize=4096)
def _char_weight(char: str) -> float:
    """How long a character takes to say, in Latin letters: a Han character is a syllable, a digit a word."""
    kind = unicodedata.category(char)
    if kind in ("Nd", "No"):
        return 3.5
    if kind[0] != "L":
        return 0.0
    if unspaced(char):
        return 2.0 if "\u3040" <= char <= "\u30ff" else 3.0
    return 2.5 if "\uac00" <= char <= "\ud7a3" else 1.0


def _strength(text: str, following: str) -> int:
    """Of the break after ``text``."""
    bare = text.rstrip(_CLOSERS)
    if not bare:
        return WORD
    if bare[-1] in _SENTENCE_ENDS:
        return WORD if bare[-1] == "." and not _ends_sentence(bare, following) else SENTENCE
    return CLAUSE if bare[-1] in _CLAUSE_ENDS else WORD


def _ends_sentence(bare: str, following: str) -> bool:
    """Whether a full stop is one: not after an ordinal, an abbreviation or an initial, nor before a small letter."""
    word = bare.rstrip(".").lstrip("\"'“‘(").lower()
    if word in _ABBREVIATIONS or re.fullmatch(r"[a-z]|(?:[a-z]\.)+[a-z]|\d{1,2}", word):
        return False
    first = following.lstrip("\"'“‘(")[:1]
    return not first.islower()
