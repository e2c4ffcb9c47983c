"""What the job log's rows look like in Python, its words, and how times and names are spelled. Light."""

from __future__ import annotations

import json
import unicodedata
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

FINISHED = ("done", "failed", "quarantined", "missing", "skipped")
STATES = ("queued", "running", *FINISHED)
FINISH_REASONS = ("eos", "length", "loop", "silence")

# The migrations of schema.py by name, so that the read side can judge a file without importing sqlite-utils.
MIGRATIONS = ("m001_job_log", "m002_pauses_and_revision", "m003_moves", "m004_known_content")

_BIDI_CONTROLS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


@dataclass(frozen=True)
class Job:
    """A claimed row: what the worker needs to know, and the claim that fences its writes."""

    id: int
    root_id: int
    path: str
    path_raw: bytes
    size_bytes: int
    mtime_ns: int
    content_hash: str | None
    attempts: int
    suspect: bool
    crashes: int
    priority: int
    queued_at: str
    claim_id: str
    error_kind: str | None = None


class KnownFile(NamedTuple):
    """The newest row of one path: what a scan compares a file on disk with. A tuple, for there may be 100,000."""

    id: int
    state: str
    size_bytes: int
    mtime_ns: int
    content_hash: str | None
    claim_id: str | None
    error_kind: str | None = None


@dataclass(frozen=True)
class SegmentRow:
    """One finished segment; times in milliseconds from the start of the file.

    ``pauses`` are those the reader measured inside it, as (start, end); None where that was not kept.
    """

    start_ms: int
    end_ms: int
    text: str
    language: str | None
    tokens: int
    finish_reason: str
    pauses: tuple[tuple[int, int], ...] | None = None


@dataclass(frozen=True)
class Restorable:
    """A finished job as its own transcripts on disk tell it; what the job log lost."""

    content_hash: str
    text: str
    language: str | None
    model: str
    revision: str | None
    params_key: str
    audio_seconds: float
    segments: tuple[SegmentRow, ...]
    warnings: tuple[str, ...]
    finished_at: str | None
    outputs: tuple[tuple[str, bytes, str], ...]  # format, path, sha256
    transcript_path: str


@dataclass(frozen=True)
class Recovered:
    """What ``recover`` did, as job ids."""

    requeued: tuple[int, ...] = ()
    quarantined: tuple[int, ...] = ()
    superseded: tuple[int, ...] = ()


@dataclass(frozen=True)
class Pruned:
    """What ``prune`` dropped, or would: job ids that lost text, segments and timings, and those gone altogether."""

    stripped: tuple[int, ...] = ()
    removed: tuple[int, ...] = ()


def utcnow() -> datetime:
    """The clock every writer uses unless a test hands in another."""
    return datetime.now(UTC)


def iso(moment: datetime) -> str:
    """UTC ISO 8601 with milliseconds and ``Z``: fixed width, so text order is time order."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def parse_iso(text: str) -> datetime:
    """The reverse of ``iso``."""
    return datetime.fromisoformat(text)


def pauses_from(stored: str | None) -> tuple[tuple[int, int], ...] | None:
    """The pauses of a segment as the job log stores them (a JSON array of pairs)."""
    return None if stored is None else tuple((int(start), int(end)) for start, end in json.loads(stored))


def printable(path_raw: bytes) -> str:
    """A file name for people: UTF-8, with undecodable bytes and control characters as backslash escapes.

    Not reversible; ``path_raw`` stays the identity.
    """
    text = path_raw.decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    return "".join(_escaped(char) if _unprintable(char) else char for char in text)


def _unprintable(char: str) -> bool:
    # Cf as a whole would tear emoji apart (zero-width joiner); only what reorders a line is escaped.
    return unicodedata.category(char) in {"Cc", "Zl", "Zp"} or char in _BIDI_CONTROLS


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
