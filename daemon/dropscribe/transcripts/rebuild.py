"""A transcript once more, from the job log alone: neither the audio nor its earlier transcripts are looked at."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any

from dropscribe.jobs import log
from dropscribe.jobs.records import SegmentRow
from dropscribe.transcripts.formats import Document

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Mapping

_FIGURES = (
    "read_s", "feature_s", "encode_s", "prefill_s", "decode_s", "prompt_tokens", "generated_tokens", "duration", "time",
    "rtf",
)  # fmt: skip


def document_of(conn: sqlite3.Connection, job: Mapping[str, Any]) -> Document | None:
    """What a job's transcript says, or None when there is none (not done yet, failed, or pruned).

    ``job`` is a row of ``log.get_job``. A job that was queued again still has the one from before.
    """
    text, seconds = job["text"], job["audio_seconds"] or 0.0
    if text is None or job["params_key"] is None:
        return None
    rows = [SegmentRow(**row) for row in log.transcript(conn, job["id"])]
    if text and not rows:  # its segments went with the job it had them from: no time in it is known
        rows = [SegmentRow(0, math.ceil(seconds * 1000), text, job["language"], 0, "eos")]
    timings = log.timings(conn, job["id"])
    last = next((timing for timing in timings if timing["batch_id"] == job["batch_id"]), None)
    return Document(
        source_name=os.path.basename(job["path_raw"]),  # noqa: PTH119 - bytes
        text=text,
        language=job["language"],
        duration=seconds,
        segments=rows,
        model=job["model"] or "",
        revision=job["revision"],
        decoder=last["decoder"] if last is not None and last["generated_tokens"] else None,
        content_hash=job["content_hash"] or "",
        params_key=job["params_key"],
        created_at=job["finished_at"] or job["queued_at"],
        timing={} if last is None else {name: last[name] for name in _FIGURES},
        warnings=job["warnings"],
    )
