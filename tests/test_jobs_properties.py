"""Whatever happens in whatever order: every job is in one state, by the rules, and no constraint is ever hit."""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dropscribe.errors import (
    ClaimLost,
    DiskFull,
    ModelUnavailable,
    NoAudioTrack,
    NotMedia,
    SourceMissing,
)
from dropscribe.jobs.database import open_database, transaction
from dropscribe.jobs.queue import Job, Queue, SegmentRow
from dropscribe.jobs.records import FINISHED, STATES

PATHS = st.sampled_from([b"/in/a", b"/in/b", b"/in/\xff"])
HASHES = st.sampled_from([None, "a" * 64, "b" * 64])
ERRORS = st.sampled_from(
    [DiskFull("x"), NotMedia("x"), NoAudioTrack("x"), SourceMissing("x"), ModelUnavailable("x"), KeyError("x")]
)
SMALL = st.integers(1, 3)


class QueueMachine(RuleBasedStateMachine):
    """Supervisor, workers living and dead, and a person, all at once."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.db = open_database(Path(self.folder.name) / "jobs.db")
        self.db.execute("PRAGMA synchronous = OFF")  # nothing is killed here, and fsync is what takes the time
        self.at = datetime(2026, 1, 1, tzinfo=UTC)
        self.queue = Queue(self.db, lambda: self.at)
        self.queue.ensure_root("/in")
        self.claims = 0
        self.held: list[Job] = []  # what workers believe they hold, rightly or not
        self.ended: dict[int, int] = {}  # job id → times it became done since it was last queued by hand

    def teardown(self) -> None:
        assert self.db.rows("PRAGMA integrity_check")[0][0] == "ok"
        self.db.execute("INSERT INTO segments_fts(segments_fts, rank) VALUES ('integrity-check', 1)")
        self.db.close()
        self.folder.cleanup()

    @rule(path=PATHS, size=SMALL, content=HASHES, priority=st.integers(-1, 1))
    def enqueue(self, path: bytes, size: int, content: str | None, priority: int) -> None:
        self.queue.enqueue(1, path, size, 1, content_hash=content, priority=priority)
        known = self.queue.known(1)[path]
        assert known.state != "missing"

    @rule(limit=SMALL)
    def claim(self, limit: int) -> None:
        self.claims += 1
        jobs = self.queue.claim(f"claim-{self.claims}", limit)
        assert len(jobs) <= limit
        assert len(jobs) == 1 or not any(job.suspect for job in jobs)
        self.held.extend(jobs)

    def pick(self, index: int) -> Job | None:
        return self.held[index % len(self.held)] if self.held else None

    def owns(self, job: Job) -> bool:
        return bool(self.db.rows("SELECT 1 FROM jobs WHERE id = ? AND claim_id = ?", (job.id, job.claim_id)))

    @rule(index=st.integers(0, 9), error=ERRORS)
    def fail(self, index: int, error: BaseException) -> None:
        if (job := self.pick(index)) is None:
            return
        if self.owns(job):
            state = self.queue.fail(job, error)
            assert self.db.rows("SELECT state FROM jobs WHERE id = ?", (job.id,))[0][0] == state
        else:
            with pytest.raises(ClaimLost):
                self.queue.fail(job, error)

    @rule(index=st.integers(0, 9), start=st.integers(0, 3), length=st.integers(0, 3))
    def segment(self, index: int, start: int, length: int) -> None:
        if (job := self.pick(index)) is not None and self.owns(job):
            self.queue.save_segments(job, "k", [SegmentRow(start, start + length, "word", None, 1, "eos")])

    @rule(index=st.integers(0, 9), reuse=st.booleans())
    def finish(self, index: int, reuse: bool) -> None:
        if (job := self.pick(index)) is None:
            return

        def write() -> None:
            twin = self.queue.done_twin("a" * 64, "k") if reuse else None
            with transaction(self.db):
                self.queue.finish_fields(
                    job, text="word", language=None, model="m", params_key="k", audio_seconds=1.0, reused_from=twin
                )

        if self.owns(job):
            write()
            self.ended[job.id] = self.ended.get(job.id, 0) + 1
        else:
            with pytest.raises(ClaimLost):
                write()

    @rule(index=st.integers(0, 9), whole=st.booleans(), behind=st.booleans())
    def hand_back(self, index: int, whole: bool, behind: bool) -> None:
        if (job := self.pick(index)) is not None:
            self.queue.hand_back(job.claim_id, None if whole else [job.id], behind=behind)

    @rule(
        cause=st.sampled_from(["crash", "shutdown", "supervisor_died"]),
        index=st.integers(0, 9),
        everything=st.booleans(),
    )
    def die(self, cause: str, index: int, everything: bool) -> None:
        job = self.pick(index)
        self.queue.recover(None if everything or job is None else [job.claim_id], cause=cause)

    @rule(ids=st.lists(st.integers(1, 12), max_size=4))
    def retry(self, ids: list[int]) -> None:
        for job_id in self.queue.retry(ids):
            self.ended.pop(job_id, None)

    @rule(ids=st.lists(st.integers(1, 12), max_size=2))
    def cancel(self, ids: list[int]) -> None:
        self.queue.cancel(ids)

    @rule(ids=st.lists(st.integers(1, 12), max_size=2))
    def vanish(self, ids: list[int]) -> None:
        self.queue.mark_missing(ids)

    @rule(job_id=st.integers(1, 12), path=PATHS)
    def move(self, job_id: int, path: bytes) -> None:
        self.queue.move(job_id, path)

    @rule(seconds=st.sampled_from([0, 5, 400]))
    def wait(self, seconds: int) -> None:
        self.at += timedelta(seconds=seconds)

    @rule(ago=st.sampled_from([0, 100]), there=st.booleans())
    def prune(self, ago: int, there: bool) -> None:
        removed = self.queue.prune(self.at - timedelta(seconds=ago), exists=lambda _: there).removed
        assert not (there and removed)

    @invariant()
    def the_rules_hold(self) -> None:
        live: set[tuple[bytes, str]] = set()
        for row in self.db.rows("SELECT * FROM jobs"):
            assert row["state"] in STATES
            assert (row["finished_at"] is not None) == (row["state"] in FINISHED)
            assert (row["claim_id"] is not None) == (row["state"] == "running")
            if row["state"] in FINISHED:
                assert (row["error_kind"] is None) == (row["state"] == "done")
            else:
                assert (row["path_raw"], row["state"]) not in live
                live.add((row["path_raw"], row["state"]))
            assert row["crashes"] <= 3
            assert row["state"] != "quarantined" or row["crashes"] == 3
        assert all(times == 1 for times in self.ended.values())  # nothing is done twice
        assert self.db.rows("PRAGMA foreign_key_check") == []


TestQueue = QueueMachine.TestCase
TestQueue.settings = settings(
    max_examples=25, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
