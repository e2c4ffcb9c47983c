"""Markdown with front matter: text that no Markdown reader takes for anything but text."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from dropscribe.transcripts.cues import text_of
from dropscribe.transcripts.layout import SENTENCE, atoms, clean

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dropscribe.transcripts.cues import Cue

PARAGRAPH_MS = 2000  # a pause after a sentence that begins a new paragraph

_SPECIAL = re.compile(r"([\\`*_\[\]<>~|&$])")
_AT_START = re.compile(r"^([#+=:-]|\d{1,9}(?=[.)]))")


def page(front: Mapping[str, Any], parts: Sequence[str]) -> str:
    """Front matter and paragraphs."""
    matter = "".join(f"{key}: {_yaml(value)}\n" for key, value in front.items())
    body = "".join(f"\n{escaped}\n" for part in parts if (escaped := _escaped(part)))
    return f"---\n{matter}---\n{body}"


def by_pauses(cues: Sequence[Cue]) -> list[str]:
    """The text of ``cues`` in paragraphs: a long pause after the end of a sentence begins a new one."""
    found: list[list[Cue]] = []
    for cue in cues:
        last = found[-1][-1] if found else None
        if last is None or (cue.start_ms - last.end_ms >= PARAGRAPH_MS and atoms(last.text)[-1].strength == SENTENCE):
            found.append([])
        found[-1].append(cue)
    return [text_of(paragraph) for paragraph in found]


def _escaped(text: str) -> str:
    escaped = _SPECIAL.sub(r"\\\1", clean(text))
    return _AT_START.sub(lambda found: "\\" + found[1] if not found[1].isdecimal() else found[1] + "\\", escaped)


def _yaml(value: Any) -> str:
    """A value as JSON, which is YAML too once what YAML calls unprintable is escaped."""
    text = json.dumps(value, ensure_ascii=False)
    return "".join(char if char.isprintable() else _escape(char) for char in text)


def _escape(char: str) -> str:
    return f"\\u{ord(char):04x}" if ord(char) < 0x10000 else f"\\U{ord(char):08x}"
