"""What a lost job log still has on disk: transcripts of ours beside the audio, whose ``.json`` says everything.

A file counts as done when the content hash in such a ``.json`` is the audio's and every file it names beside itself has
the hash it gives. Nothing else is believed: neither names nor times.
"""

# Paths are bytes here, which pathlib does not take.
# ruff: noqa: PTH118, PTH119, PTH120

from __future__ import annotations

import hashlib
import json
import os
import re
from itertools import islice
from typing import TYPE_CHECKING, Any

from dropscribe.jobs.records import FINISH_REASONS, Restorable, SegmentRow, printable
from dropscribe.transcripts import files
from dropscribe.transcripts.formats import VERSION
from dropscribe.transcripts.names import Target, bases, target_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from dropscribe.settings import Watch

NAMES_TRIED = 8  # {stem}, {name}, {name} (2) …; further ones are given up and the file is transcribed again
LARGEST_JSON = 64 * 2**20
WARNING = "restored"
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


def restorer(watch: Watch, source: bytes) -> Callable[[Callable[[], str]], Restorable | None] | None:
    """None when no ``.json`` lies where a transcript of ``source`` would; else a check to be made off this thread.

    The check takes a function that hashes the source, calls it only when a ``.json`` looks like ours, and returns what
    can be restored, or None. It raises what that function raises.
    """
    target = target_for(source, watch.path, watch.output_dir)
    found = _candidates(target)
    if not found:
        return None
    return lambda content_hash: _check(target, found, content_hash)


def _candidates(target: Target) -> list[bytes]:
    """Bases (paths without suffix) whose ``.json`` exists."""
    names = bases(target.source_name, name_max=files.name_max(target.folder))
    paths = [os.path.join(target.folder, base) for base in islice(names, NAMES_TRIED)]
    return [path for path in paths if os.path.lexists(path + b".json")]


def _check(target: Target, found: list[bytes], content_hash: Callable[[], str]) -> Restorable | None:
    read = [(base, document, sha256) for base in found for document, sha256 in _ours(base + b".json")]
    read = [entry for entry in read if _may_be_of(entry[1], target.source)]
    read.sort(key=lambda entry: _source_name(entry[1]) != target.source_name)  # stable: then the best name first
    actual = content_hash() if read else None
    for base, document, sha256 in read:
        if document["content_hash"] == actual and (restorable := _restorable(base, document, sha256)) is not None:
            return restorable
    return None


def _ours(path: bytes) -> list[tuple[dict[str, Any], str]]:
    """The document at ``path`` and its sha256, or nothing when it cannot be one of ours."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            content = file.read(LARGEST_JSON + 1)
        document = json.loads(content) if len(content) <= LARGEST_JSON else None
    except (OSError, ValueError, RecursionError):
        return []
    if not isinstance(document, dict) or document.get("version") != VERSION or "content_hash" not in document:
        return []
    return [(document, hashlib.sha256(content).hexdigest())]


def _may_be_of(document: dict[str, Any], source: bytes) -> bool:
    """Not when the document names another file and that one is there: it is that one's."""
    name = _source_name(document)
    if name is None:
        return False
    if name == os.path.basename(source):
        return True
    return b"/" not in name and not os.path.lexists(os.path.join(os.path.dirname(source), name))


def _source_name(document: dict[str, Any]) -> bytes | None:
    try:
        source = document["source"]
        name = bytes.fromhex(source["name_hex"]) if source["name_hex"] is not None else source["name"].encode()
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return name if name and b"\0" not in name else None


def _restorable(base: bytes, document: dict[str, Any], sha256: str) -> Restorable | None:
    """What the document says, if all of it is sound and the files beside it are the ones it names."""
    try:
        outputs = {name: str(entry["sha256"]) for name, entry in document["outputs"].items()}
        parsed = Restorable(
            content_hash=_text(document["content_hash"]),
            text=_text(document["text"]),
            language=None if document["language"] is None else _text(document["language"]),
            model=_text(document["model"]["name"]),
            revision=None if document["model"]["revision"] is None else _text(document["model"]["revision"]),
            params_key=_text(document["params_key"]),
            audio_seconds=_seconds(document["duration"]),
            segments=_segments(document["segments"]),
            warnings=tuple(sorted({WARNING, *map(_text, document["warnings"])})),
            finished_at=document["created_at"] if _TIME.fullmatch(document["created_at"]) else None,
            outputs=(
                *((name, base + b"." + name.encode(), expected) for name, expected in outputs.items()),
                ("json", base + b".json", sha256),
            ),
            transcript_path=printable(base + b"." + next(iter(outputs), "json").encode()),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    if len(parsed.content_hash) != 64 or any(b"/" in name.encode() for name in outputs):
        return None
    if any(_look(path) != expected for _, path, expected in parsed.outputs):
        return None
    return parsed


def _look(path: bytes) -> str:
    try:
        return files.look(path)
    except OSError:
        return files.FOREIGN


def _segments(listed: list[dict[str, Any]]) -> tuple[SegmentRow, ...]:
    """Raises ``ValueError`` and the like for what the job log would refuse."""
    rows = tuple(
        SegmentRow(
            start_ms=_milliseconds(one["start"]),
            end_ms=_milliseconds(one["end"]),
            text=_text(one["text"]),
            language=None if one["language"] is None else _text(one["language"]),
            tokens=int(_seconds(one["tokens"])),
            finish_reason=one["finish_reason"],
            pauses=_pauses(one.get("pauses")),
        )
        for one in listed
    )
    starts = {row.start_ms for row in rows}
    if len(starts) < len(rows) or any(row.end_ms < row.start_ms for row in rows):
        raise ValueError("segments out of order")
    if any(row.finish_reason not in FINISH_REASONS for row in rows):
        raise ValueError("unknown finish reason")
    return rows


def _text(value: Any) -> str:
    value.encode()  # UTF-8, as the job log needs it: AttributeError or UnicodeEncodeError where it is not
    return str(value)


def _pauses(listed: list[list[float]] | None) -> tuple[tuple[int, int], ...] | None:
    """None where they were not kept, as before there were any."""
    return None if listed is None else tuple((_milliseconds(start), _milliseconds(end)) for start, end in listed)


def _milliseconds(value: Any) -> int:
    return round(_seconds(value) * 1000)


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not 0 <= value < 1e9:
        raise ValueError("not a length of time")
    return float(value)
