"""What a transcript says, format by format: pure functions from a ``Document`` to bytes.

A format is one ``render_…`` function and one line in ``_RENDERERS``. Everything is UTF-8 and ends in a newline; no
rendering is empty, so that a file of zero bytes is never a transcript.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from dropscribe.settings import FORMATS
from dropscribe.transcripts import cues as cutting
from dropscribe.transcripts import markdown, subtitles
from dropscribe.transcripts.join import join

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["FORMATS", "VERSION", "Document", "Rendered", "Segment", "paragraphs", "render"]

VERSION = 1  # of the json format; docs/transcript.schema.json describes it

# What a transcript says of the job's warnings, for readers; short enough for a line of a subtitle.
NOTICES = {
    "shorter_than_claimed": "[audio shorter than its file says]",
    "recovered_decode_errors": "[parts of the file were unreadable]",
}
_PAIR = re.compile(r"\[\n\s+([0-9.e+-]+),\n\s+([0-9.e+-]+)\n\s+\]")
_NOT_WHOLE = {"length": "cut off", "loop": "repeated itself"}


class Segment(cutting.Segment, Protocol):
    """What a rendering needs of a segment; ``dropscribe.jobs.queue.SegmentRow`` has it."""

    @property
    def language(self) -> str | None: ...
    @property
    def tokens(self) -> int: ...


@dataclass(frozen=True)
class Document:
    """One transcript and everything known about how it came to be."""

    source_name: bytes  # the file name as the system has it
    text: str
    language: str | None
    duration: float  # seconds of decoded audio
    segments: Sequence[Segment]
    model: str
    revision: str | None
    decoder: str | None  # None where nothing was decoded (silence, or content known from another job)
    content_hash: str  # sha256 of the source's bytes
    params_key: str
    created_at: str  # UTC, ISO 8601
    timing: Mapping[str, float | int | None] = field(default_factory=dict)
    warnings: Sequence[str] = ()

    @cached_property
    def cues(self) -> list[cutting.Cue]:
        """The transcript in cues."""
        return cutting.cues(self.segments, self.duration)

    @property
    def notices(self) -> list[str]:
        """What readers must know of the whole file, a line each."""
        return [line for word, line in NOTICES.items() if word in self.warnings]


@dataclass(frozen=True)
class Rendered:
    """One file to be: its format (also its suffix) and its bytes."""

    format: str
    content: bytes

    @property
    def sha256(self) -> str:
        """The hash by which the file is known as ours."""
        return hashlib.sha256(self.content).hexdigest()


def render(document: Document, formats: Sequence[str]) -> list[Rendered]:
    """Every format of ``formats``, in that order; json comes to know the hashes of all the others."""
    plain = {name: Rendered(name, _RENDERERS[name](document)) for name in formats if name != "json"}
    if "json" in formats:
        hashes = {name: rendered.sha256 for name, rendered in plain.items()}
        plain["json"] = Rendered("json", render_json(document, hashes))
    return [plain[name] for name in dict.fromkeys(formats)]


def paragraphs(document: Document) -> list[str]:
    """The text; after every segment that is not whole, and at the end, a line in brackets that says so."""
    if not document.notices and all(map(cutting.whole, document.segments)):
        return [document.text.strip()]
    found: list[str] = []
    texts: list[str] = []
    for segment in sorted(document.segments, key=lambda segment: segment.start_ms):
        texts.append(segment.text)
        if not cutting.whole(segment):
            between = f"{_clock(segment.start_ms)}–{_clock(segment.end_ms)}"
            found += [join(texts), f"[… {_NOT_WHOLE[segment.finish_reason]}: {between} is not whole …]"]
            texts = []
    found += [join(texts), *document.notices]
    return [part for part in found if part]


def render_txt(document: Document) -> bytes:
    """The text and a newline; lines in brackets where it is not whole."""
    return (_utf8("\n".join(paragraphs(document))).strip() + "\n").encode()


def render_srt(document: Document) -> bytes:
    """SubRip."""
    total = cutting.audio_ms(document.segments, document.duration)
    return subtitles.srt(document.cues, total, document.notices).encode()


def render_vtt(document: Document) -> bytes:
    """WebVTT; comments at the top say what is not whole."""
    total = cutting.audio_ms(document.segments, document.duration)
    marks = [part for part in paragraphs(document)[1:] if part.startswith("[…")]
    return subtitles.vtt(document.cues, total, document.notices, [*marks, *document.notices]).encode()


def render_md(document: Document) -> bytes:
    """Markdown with front matter in YAML."""
    languages = list(dict.fromkeys(segment.language for segment in document.segments if segment.language))
    front: dict[str, Any] = {
        "source": _source(document.source_name)["name"],
        "date": document.created_at,
        "duration": round(document.duration, 3) if math.isfinite(document.duration) else None,
        "language": document.language,
        "languages": languages if len(languages) > 1 else [],
        "model": document.model,
        "warnings": list(document.warnings),
    }
    shown = {key: value for key, value in front.items() if value != []}
    not_whole = not all(map(cutting.whole, document.segments))
    parts = paragraphs(document) if not_whole else [*markdown.by_pauses(document.cues), *document.notices]
    return markdown.page(_strict(shown), [_utf8(part) for part in parts]).encode()


def render_json(document: Document, outputs: Mapping[str, str] | None = None) -> bytes:
    """Everything, as docs/transcript.schema.json says. ``outputs``: sha256 by format of the files published with it."""
    content = {
        "version": VERSION,
        "source": _source(document.source_name),
        "text": document.text.strip(),
        "language": document.language,
        "duration": document.duration,
        "segments": [
            {
                "start": segment.start_ms / 1000,
                "end": segment.end_ms / 1000,
                "text": segment.text,
                "language": segment.language,
                "tokens": segment.tokens,
                "finish_reason": segment.finish_reason,
                "pauses": _pauses(segment.pauses),
            }
            for segment in document.segments
        ],
        "cues": [
            {
                "start": cue.start_ms / 1000,
                "end": cue.end_ms / 1000,
                "text": cue.text,
                "estimated": {"start": not cue.start_measured, "end": not cue.end_measured},
            }
            for cue in document.cues
        ],
        "model": {"name": document.model, "revision": document.revision},
        "decoder": document.decoder,
        "timing": dict(document.timing),
        "content_hash": document.content_hash,
        "params_key": document.params_key,
        "warnings": list(document.warnings),
        "created_at": document.created_at,
        "outputs": {name: {"sha256": sha256} for name, sha256 in (outputs or {}).items()},
    }
    return (_dumps(_strict(content)) + "\n").encode()


_RENDERERS: Mapping[str, Callable[[Document], bytes]] = {
    "txt": render_txt,
    "json": render_json,
    "srt": render_srt,
    "vtt": render_vtt,
    "md": render_md,
}  # fmt: skip


def _pauses(pauses: Sequence[tuple[int, int]] | None) -> list[list[float]] | None:
    return None if pauses is None else [[start / 1000, end / 1000] for start, end in pauses]


def _source(name: bytes) -> dict[str, Any]:
    r"""A name that is not UTF-8 is given twice: readable, with ``\xff`` for each stray byte, and exact, in hex."""
    shown = name.decode("utf-8", "backslashreplace")
    return {"name": shown, "name_hex": None if shown.encode() == name else name.hex()}


def _dumps(content: dict[str, Any]) -> str:
    """JSON, indented, but a pair of numbers in one line: pauses would take four each."""
    spaced = json.dumps(content, ensure_ascii=False, allow_nan=False, indent=2)
    return _PAIR.sub(r"[\1, \2]", spaced)  # inside a JSON string there is no line break


def _strict(value: Any) -> Any:
    """``value`` with nothing in it that strict JSON parsers refuse: no lone surrogate, no NaN, no infinity."""
    if isinstance(value, str):
        return _utf8(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {_utf8(str(key)): _strict(item) for key, item in value.items()}
    return [_strict(item) for item in value] if isinstance(value, list) else value


def _utf8(text: str) -> str:
    r"""``text`` with lone surrogates, which UTF-8 cannot hold, written as ``\udcff``."""
    return text.encode("utf-8", "backslashreplace").decode()


def _clock(ms: int) -> str:
    hours, rest = divmod(ms // 1000, 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"
