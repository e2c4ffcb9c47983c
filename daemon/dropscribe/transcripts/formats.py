"""What a transcript says, format by format: pure functions from a ``Document`` to bytes.

A format is one ``render_…`` function and one line in ``_RENDERERS``. Everything is UTF-8 and ends in a newline; no
rendering is empty, so that a file of zero bytes is never a transcript.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

VERSION = 1  # of the json format; docs/transcript.schema.json describes it


class Segment(Protocol):
    """What a rendering needs of a segment; ``dropscribe.jobs.queue.SegmentRow`` has it."""

    @property
    def start_ms(self) -> int: ...
    @property
    def end_ms(self) -> int: ...
    @property
    def text(self) -> str: ...
    @property
    def language(self) -> str | None: ...
    @property
    def tokens(self) -> int: ...
    @property
    def finish_reason(self) -> str: ...


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


def render_txt(document: Document) -> bytes:
    """The text and a newline."""
    return (_utf8(document.text).strip() + "\n").encode()


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
            }
            for segment in document.segments
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
    return (json.dumps(_strict(content), ensure_ascii=False, allow_nan=False, indent=2) + "\n").encode()


_RENDERERS: Mapping[str, Callable[[Document], bytes]] = {
    "txt": render_txt,
    "json": render_json,
}  # fmt: skip


def _source(name: bytes) -> dict[str, Any]:
    r"""A name that is not UTF-8 is given twice: readable, with ``\xff`` for each stray byte, and exact, in hex."""
    shown = name.decode("utf-8", "backslashreplace")
    return {"name": shown, "name_hex": None if shown.encode() == name else name.hex()}


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
