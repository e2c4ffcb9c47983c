"""Holding a finished job while its transcript changes places, and letting go of it as it was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dropscribe.errors import SourceMissing
from dropscribe.jobs.database import Database, open_database
from dropscribe.jobs.queue import Queue
from dropscribe.jobs.records import SegmentRow

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATH = b"/in/a.wav"
NEW = [SegmentRow(0, 900, "new", "English", 1, "eos", ((0, 100),))]


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    made = open_database(tmp_path / "jobs.db")
    yield made
    made.close()


def done(queue: Queue, key: str = "old") -> int:
    job_id = queue.enqueue(queue.ensure_root("/in"), PATH, 1, 1)
    assert job_id is not None
    (job,) = queue.claim("first", 1)
    queue.save_segments(job, key, [SegmentRow(0, 900, "old", "English", 1, "eos", ())])
    queue.finish_fields(job, text="old", language="English", model="m", params_key=key, audio_seconds=0.9)
    return job_id


def everything(db: Database) -> list[dict[str, Any]]:
    tables = ("SELECT * FROM jobs ORDER BY id", "SELECT * FROM segments ORDER BY id")
    return [dict(row) for query in tables for row in db.rows(query)]


def test_let_go_it_is_as_it_was_and_the_new_segments_are_gone(db: Database) -> None:
    queue = Queue(db)
    job_id, before = done(queue), everything(db)
    taken = queue.take(job_id, "claim")
    assert taken is not None
    queue.save_segments(taken[0], "new", NEW)
    assert len(queue.saved_segments(job_id, "new")) == 1
    queue.put_back(*taken, "new")
    assert everything(db) == before


def test_a_failed_job_goes_back_to_its_failure(db: Database) -> None:
    queue = Queue(db)
    job_id = queue.enqueue(queue.ensure_root("/in"), PATH, 1, 1)
    assert job_id is not None
    queue.fail(queue.claim("first", 1)[0], SourceMissing("gone"))
    before = everything(db)
    taken = queue.take(job_id, "claim")
    assert taken is not None
    queue.put_back(*taken, "new")
    assert everything(db) == before


def test_a_job_that_ended_well_is_not_put_back(db: Database) -> None:
    queue = Queue(db)
    taken = queue.take(done(queue), "claim")
    assert taken is not None
    queue.save_segments(taken[0], "new", NEW)
    queue.finish_fields(taken[0], text="new", language=None, model="m2", params_key="new", audio_seconds=0.9)
    after = everything(db)
    queue.put_back(*taken, "new")
    assert everything(db) == after
    assert queue.saved_segments(taken[0].id, "new") == NEW


def test_live_jobs_and_those_with_a_newer_one_are_not_taken(db: Database) -> None:
    queue = Queue(db)
    job_id = done(queue)
    newer = queue.enqueue(1, PATH, 2, 2)
    assert newer is not None
    assert queue.take(job_id, "claim") is None
    assert queue.take(newer, "claim") is None
    assert queue.take(999, "claim") is None


def test_after_a_kill_in_between_the_daemon_does_it_and_what_was_said_stays_until_then(db: Database) -> None:
    queue = Queue(db)
    job_id = done(queue)
    taken = queue.take(job_id, "claim")
    assert taken is not None
    queue.save_segments(taken[0], "new", NEW)
    assert queue.recover(None, cause="supervisor_died").requeued == (job_id,)
    row = db.rows("SELECT state, text, params_key FROM jobs")[0]
    assert tuple(row) == ("queued", "old", "old")
    assert [one.text for one in queue.saved_segments(job_id, "old")] == ["old"]
    queue.put_back(*taken, "new")
    assert db.rows("SELECT state FROM jobs")[0]["state"] == "queued"
