"""A job log with a few of everything, so that every question has an answer."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from dropscribe.errors import DiskFull, NotMedia
from dropscribe.jobs import outputs
from dropscribe.jobs.database import open_database, transaction
from dropscribe.jobs.queue import Queue, SegmentRow

if TYPE_CHECKING:
    from pathlib import Path

A, B = "a" * 64, "b" * 64
MEASURED = {
    "wall_s": 60.0, "audio_seconds": 120.0, "rows": 2, "encode_s": 5.0, "prefill_s": 5.0, "decode_s": 40.0,
    "generated_tokens": 400, "peak_memory_bytes": 10**9,
}  # fmt: skip


def make_log(path: Path) -> None:
    """Done, reused, failed, quarantined, waiting and queued jobs, two batches, one of them cut short."""
    at = datetime(2026, 1, 1, tzinfo=UTC)

    def clock() -> datetime:
        nonlocal at
        at += timedelta(seconds=1)
        return at

    db = open_database(path, checkpoints=True)
    queue = Queue(db, clock)
    root = queue.ensure_root("/in")
    for name in ("talk.m4a", "twin.m4a", "bad.wav", "full.wav", "killer.wav"):
        queue.enqueue(root, f"/in/{name}".encode(), 1_000_000, 1)
    batch = queue.open_batch("c", decoder="bulk-sync", slots=6, model="tiny", device="cpu")
    talk, twin, bad, full, _killer = queue.claim("c", 5)
    for job in (talk, twin):
        queue.note_media(job, content_hash=A)
    queue.save_segments(
        talk,
        "k",
        [
            SegmentRow(0, 60_000, "The quick brown fox", "English", 9, "eos"),
            SegmentRow(60_000, 120_000, "jumps over jumps over", "English", 99, "loop"),
        ],
    )
    text = "The quick brown fox jumps over jumps over"
    done = {"text": text, "language": "English", "model": "tiny", "params_key": "k", "audio_seconds": 120.0}
    with transaction(db):
        outputs.commit(db, talk, "txt", b"/in/talk.txt", sha256=B, at="2026-01-01T00:00:10.000Z")
        queue.finish_fields(talk, **done, batch_id=batch, warnings=["segment_loop"], transcript_path="/in/talk.txt")
    timing = {"read_s": 70.0, "encode_s": 5.0, "prefill_s": 5.0, "decode_s": 40.0, "duration": 120.0, "time": 50.0}
    queue.add_timing(talk.id, batch, {**timing, "rtf": 50 / 120})
    queue.finish_fields(twin, **done, reused_from=talk.id)
    queue.fail(bad, NotMedia("no audio container by content"))
    queue.fail(full, DiskFull("no space left"))
    queue.hand_back("c")
    queue.close_batch(batch, "done", MEASURED)
    for number in range(3):
        claim = f"crash{number}"
        queue.claim(claim, 1)
        queue.open_batch(claim)
        queue.recover([claim], cause="crash")
    queue.enqueue(root, b"/in/next.wav", 1_000_000, 1)
    db.close()
