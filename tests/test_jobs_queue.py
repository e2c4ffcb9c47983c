"""The queue's rules: what counts as new, who is claimed, what an error costs, what a death costs."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from dropscribe.errors import (
    ClaimLost,
    DatabaseBusy,
    DatabaseReplaced,
    DiskFull,
    DropscribeError,
    ModelUnavailable,
    NoAudioTrack,
    NotMedia,
    OutputUnwritable,
    ReaderHung,
    SourceBusy,
    SourceChanged,
    SourceMissing,
)
from dropscribe.jobs import outputs
from dropscribe.jobs.database import Database, open_database, transaction
from dropscribe.jobs.queue import Job, Queue, SegmentRow
from dropscribe.jobs.records import iso, parse_iso, printable
from dropscribe.jobs.retries import backoff_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

A, B = "a" * 64, "b" * 64


class Clock:
    """A clock that goes on by a millisecond a look, and by hand."""

    def __init__(self) -> None:
        self.at = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        self.at += timedelta(milliseconds=1)
        return self.at

    def forward(self, seconds: float) -> None:
        self.at += timedelta(seconds=seconds)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    db = open_database(tmp_path / "jobs.db")
    yield db
    assert db.rows("PRAGMA integrity_check")[0][0] == "ok"
    assert db.rows("PRAGMA foreign_key_check") == []
    db.close()


@pytest.fixture
def queue(db: Database, clock: Clock) -> Queue:
    queue = Queue(db, clock)
    assert queue.ensure_root("/in") == queue.ensure_root("/in") == 1
    return queue


def put(queue: Queue, name: str, size: int = 1, mtime: int = 1, **more: Any) -> int:
    job_id = queue.enqueue(1, f"/in/{name}".encode(), size, mtime, **more)
    assert job_id is not None
    return job_id


def row(queue: Queue, job_id: int) -> dict[str, Any]:
    return dict(queue.db.rows("SELECT * FROM jobs WHERE id = ?", (job_id,))[0])


def state(queue: Queue, job_id: int) -> str:
    return row(queue, job_id)["state"]


def finish(queue: Queue, job: Job, **more: Any) -> None:
    fields = {"text": "hello", "language": "English", "model": "m", "params_key": "k", "audio_seconds": 1.0}
    queue.finish_fields(job, **{**fields, **more})


# --- intake


def test_the_same_file_is_taken_once(queue: Queue) -> None:
    first = put(queue, "a.wav")
    assert queue.enqueue(1, b"/in/a.wav", 1, 1) is None
    [job] = queue.claim("c", 1)
    assert queue.enqueue(1, b"/in/a.wav", 1, 1) is None
    finish(queue, job)
    assert queue.enqueue(1, b"/in/a.wav", 1, 1) is None
    assert state(queue, first) == "done"


def test_changed_content_supersedes_what_was_queued(queue: Queue) -> None:
    old = put(queue, "a.wav", size=1)
    new = put(queue, "a.wav", size=2)
    assert (state(queue, old), row(queue, old)["error_kind"]) == ("skipped", "superseded")
    assert state(queue, new) == "queued"


def test_changed_content_takes_a_running_job_from_its_holder(queue: Queue) -> None:
    old = put(queue, "a.wav", size=1)
    [job] = queue.claim("c", 1)
    queue.save_segments(job, "k", [SegmentRow(0, 10, "x", None, 1, "eos")])
    put(queue, "a.wav", size=2)
    assert row(queue, old)["error_kind"] == "superseded"
    assert queue.saved_segments(old, "k") == []
    with pytest.raises(ClaimLost):
        finish(queue, job)


def test_changed_content_of_a_done_file_is_a_new_job_and_the_old_one_stays(queue: Queue) -> None:
    old = put(queue, "a.wav", content_hash=A)
    [job] = queue.claim("c", 1)
    finish(queue, job)
    new = put(queue, "a.wav", size=2, content_hash=B)
    assert (state(queue, old), state(queue, new)) == ("done", "queued")
    assert queue.known(1)[b"/in/a.wav"].id == new


def test_a_touched_file_of_equal_content_only_gets_its_new_signature(queue: Queue) -> None:
    job_id = put(queue, "a.wav", content_hash=A)
    [job] = queue.claim("c", 1)
    assert queue.enqueue(1, b"/in/a.wav", 1, 2, content_hash=A) is None  # running
    finish(queue, job)
    assert queue.enqueue(1, b"/in/a.wav", 1, 3, content_hash=A) is None  # done
    assert row(queue, job_id)["mtime_ns"] == 3
    assert len(queue.db.rows("SELECT 1 FROM jobs")) == 1


def test_other_content_with_the_old_signature_is_new_where_both_hashes_are_known(queue: Queue) -> None:
    put(queue, "a.wav", content_hash=A)
    assert queue.enqueue(1, b"/in/a.wav", 1, 1, content_hash=B) is not None


def test_content_that_comes_back_after_a_short_change_is_still_done(queue: Queue) -> None:
    done = put(queue, "a.wav", content_hash=A)
    finish(queue, queue.claim("c", 1)[0])
    other = put(queue, "a.wav", size=2)
    assert queue.enqueue(1, b"/in/a.wav", 1, 3, content_hash=A) is None
    assert (state(queue, done), row(queue, other)["error_kind"]) == ("done", "superseded")


def test_a_missing_file_that_is_back_is_a_new_job(queue: Queue) -> None:
    old = put(queue, "a.wav")
    assert queue.mark_missing([old]) == [old]
    assert (state(queue, old), row(queue, old)["error_kind"]) == ("missing", "source_missing")
    assert put(queue, "a.wav") != old


def test_only_queued_jobs_can_go_missing(queue: Queue) -> None:
    job_id = put(queue, "a.wav")
    queue.claim("c", 1)
    assert queue.mark_missing([job_id, 99]) == []


def test_files_left_by_setting_are_noted_with_their_reason(queue: Queue) -> None:
    job_id = put(queue, "a.wav", state="skipped", error_kind="preexisting", error="was there before the first start")
    assert row(queue, job_id)["finished_at"] is not None
    assert queue.enqueue(1, b"/in/a.wav", 1, 1) is None
    assert not queue.due()


def test_a_moved_file_keeps_its_row_unless_a_live_job_has_the_name(queue: Queue) -> None:
    job_id = put(queue, "a.wav")
    assert queue.move(job_id, b"/in/b.wav")
    assert row(queue, job_id)["path"] == "/in/b.wav"
    put(queue, "c.wav")
    assert not queue.move(job_id, b"/in/c.wav")


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"/a/\xff.wav", r"/a/\xff.wav"),
        (b"/a/new\nline.wav", r"/a/new\nline.wav"),
        ("/a/日本 é 👩‍🚀.wav".encode(), "/a/日本 é 👩‍🚀.wav"),
        ("/a/\u202egpj.wav".encode(), r"/a/\u202egpj.wav"),
        ("/a/3.41\u202fPM\u00a0.wav".encode(), "/a/3.41\u202fPM\u00a0.wav"),
    ],
)
def test_any_name_is_kept_as_it_is_and_shown_in_one_line(queue: Queue, raw: bytes, shown: str) -> None:
    job_id = queue.enqueue(1, raw, 1, 1)
    assert printable(raw) == shown
    assert (row(queue, job_id)["path"], row(queue, job_id)["path_raw"]) == (shown, raw)
    assert list(queue.known(1)) == [raw]


def test_a_scan_notes_the_health_of_a_root(queue: Queue) -> None:
    queue.root_scanned(1, state="away", error="\udcff is gone", waiting=2, mounted=True)
    queue.root_scanned(1, state="ok")
    root = queue.db.rows("SELECT * FROM roots")[0]
    assert (root["state"], root["error"], root["waiting"], root["mounted"]) == ("ok", None, 2, 1)
    assert root["last_scan_at"] is not None


# --- claims


def test_claims_go_by_priority_then_by_age(queue: Queue) -> None:
    first, second = put(queue, "a"), put(queue, "b")
    urgent = put(queue, "c", priority=5)
    assert [job.id for job in queue.claim("c1", 2)] == [urgent, first]
    assert [job.id for job in queue.claim("c2", 2)] == [second]
    assert queue.claim("c3", 2) == []


def test_a_job_that_waits_is_not_claimed_before_its_time(queue: Queue, clock: Clock) -> None:
    job_id = put(queue, "a")
    [job] = queue.claim("c", 1)
    assert queue.next_due_at() is None
    assert queue.fail(job, DiskFull("full")) == "queued"
    assert (queue.due(), queue.claim("c2", 1)) == (False, [])
    assert queue.next_due_at() == parse_iso(row(queue, job_id)["not_before"])
    clock.forward(30)
    assert queue.due()
    assert queue.next_due_at() <= clock.at
    assert [job.id for job in queue.claim("c2", 1)] == [job_id]
    assert row(queue, job_id)["not_before"] is None


def test_jobs_of_a_folder_that_is_away_wait_for_it(queue: Queue) -> None:
    waiting = put(queue, "a.wav")
    queue.root_scanned(1, state="away", error="is not there")
    assert not queue.due()
    assert queue.claim("c", 9) == []
    queue.root_scanned(1)
    assert queue.due()
    assert [job.id for job in queue.claim("c", 9)] == [waiting]


def test_a_file_renamed_while_it_runs_is_queued_again_under_its_new_name(queue: Queue) -> None:
    put(queue, "a.wav")
    (job,) = queue.claim("c", 1)
    queue.save_segments(job, "k", [SegmentRow(0, 1000, "one", None, 1, "eos")])
    assert queue.move(job.id, b"/in/b.wav")
    assert queue.fail(job, SourceMissing("gone")) == "queued"
    assert row(queue, job.id)["path_raw"] == b"/in/b.wav"
    assert [saved.text for saved in queue.saved_segments(job.id, "k")] == ["one"]


def test_a_suspect_runs_alone_and_behind_the_others(queue: Queue) -> None:
    ids = [put(queue, "a"), put(queue, "b")]
    queue.claim("c", 2)
    queue.recover(["c"], cause="crash")
    late = put(queue, "late")
    assert not [job for job in queue.claim("c1", 8) if job.suspect]
    assert [job.id for job in queue.claim("c2", 8)] == ids[:1]
    assert [job.id for job in queue.claim("c3", 8)] == ids[1:]
    assert state(queue, late) == "running"


def test_a_long_file_gives_way_to_the_end_and_keeps_its_segments(queue: Queue) -> None:
    long = put(queue, "long")
    [job] = queue.claim("c", 1)
    assert not queue.others_due("c")
    short = put(queue, "short")
    assert queue.others_due("c")
    queue.save_segments(job, "k", [SegmentRow(0, 10, "x", None, 1, "eos")])
    assert queue.hand_back("c", [long], behind=True) == [long]
    assert [job.id for job in queue.claim("c2", 8)] == [short, long]
    assert len(queue.saved_segments(long, "k")) == 1


def test_handing_back_costs_nothing_and_keeps_the_place(queue: Queue) -> None:
    ids = [put(queue, "a"), put(queue, "b"), put(queue, "c")]
    before = [row(queue, job_id) for job_id in ids]
    queue.claim("c", 3)
    assert queue.hand_back("c", ids[1:]) == ids[1:]
    assert queue.hand_back("c") == ids[:1]
    assert queue.hand_back("c") == []
    assert [row(queue, job_id) for job_id in ids] == before


CLAIM = """
import sys
from dropscribe.jobs.database import open_database
from dropscribe.jobs.queue import Queue
queue = Queue(open_database(sys.argv[1]))
sys.stdin.readline()
n = 0
while jobs := queue.claim(f"{sys.argv[2]}-{n}", 3):
    print(*(job.id for job in jobs), sep="\\n", flush=True)
    n += 1
"""


@pytest.mark.slow
def test_no_job_is_claimed_twice_by_processes_that_race(queue: Queue, tmp_path: Path) -> None:
    ids = [put(queue, f"{n}") for n in range(60)]
    children = [
        subprocess.Popen(
            [sys.executable, "-c", CLAIM, str(tmp_path / "jobs.db"), str(n)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for n in range(4)
    ]
    for child in children:
        child.stdin.write("\n")
        child.stdin.flush()
    claimed = [int(line) for child in children for line in child.communicate(timeout=60)[0].split()]
    assert sorted(claimed) == ids


# --- the fence


def test_nothing_lands_after_the_claim_is_lost(queue: Queue) -> None:
    job_id = put(queue, "a")
    [job] = queue.claim("old", 1)
    queue.recover(["old"], cause="supervisor_died")
    [again] = queue.claim("new", 1)
    before = row(queue, job_id)
    for write in (
        lambda: queue.note_media(job, content_hash=A),
        lambda: queue.save_segments(job, "k", [SegmentRow(0, 1, "x", None, 1, "eos")]),
        lambda: queue.fail(job, NotMedia("no")),
        lambda: finish(queue, job),
    ):
        with pytest.raises(ClaimLost, match="no longer belongs"):
            write()
    assert queue.hand_back("old") == []
    assert row(queue, job_id) == before
    finish(queue, again)


def test_facts_are_written_without_a_claim(queue: Queue) -> None:
    job_id = put(queue, "a")
    queue.claim("c", 1)
    batch = queue.open_batch("c", decoder="serial", slots=1)
    queue.cancel([job_id])
    queue.add_timing(job_id, batch, {"time": 2.0, "duration": 4.0, "rtf": 0.5})
    queue.add_timing(job_id, batch, {"time": 3.0, "duration": 4.0, "rtf": 0.75})
    queue.close_batch(batch, "done", {"wall_s": 3.0, "audio_seconds": 4.0})
    [seen] = queue.db.rows("SELECT time, batch_time, batch_rtf, batch_size FROM transcript_timings")
    assert tuple(seen) == (3.0, 3.0, 0.75, 1)
    with pytest.raises(ValueError, match="no such columns: wall"):
        queue.close_batch(batch, "done", {"wall": 1})


# --- segments


def test_parts_of_a_recut_take_the_place_of_the_planned_segment(queue: Queue) -> None:
    job_id = put(queue, "a")
    [job] = queue.claim("c", 1)
    planned = [
        SegmentRow(0, 10, "a", None, 1, "eos"),
        SegmentRow(10, 20, "b", None, 1, "loop"),
        SegmentRow(20, 30, "c", None, 1, "eos"),
    ]
    for segment in planned:
        queue.save_segments(job, "k", [segment])
    parts = [SegmentRow(10, 14, "b1", "English", 1, "eos"), SegmentRow(14, 20, "b2", None, 1, "length")]
    queue.save_segments(job, "k", parts)
    assert queue.saved_segments(job_id, "k") == [planned[0], *parts, planned[2]]
    queue.save_segments(job, "k", [planned[1]])
    assert queue.saved_segments(job_id, "k") == planned


def test_segments_of_another_key_go_when_the_new_ones_are_complete(queue: Queue) -> None:
    job_id = put(queue, "a", content_hash=A)
    [job] = queue.claim("c", 1)
    for key in ("old", "k"):
        queue.save_segments(job, key, [SegmentRow(0, 10, key, None, 1, "eos")])
    assert len(queue.saved_segments(job_id, "old")) == 1
    finish(queue, job, warnings=["shorter_than_claimed"])
    assert queue.saved_segments(job_id, "old") == []
    assert len(queue.saved_segments(job_id, "k")) == 1
    assert row(queue, job_id)["warnings"] == '["shorter_than_claimed"]'


def test_equal_content_finds_the_done_job_of_the_same_key_only(queue: Queue) -> None:
    first = put(queue, "a", content_hash=A)
    [job] = queue.claim("c", 1)
    assert queue.done_twin(A, "k") is None
    queue.save_segments(job, "k", [SegmentRow(0, 10, "x", None, 1, "eos")])
    finish(queue, job)
    put(queue, "b")
    [twin] = queue.claim("c2", 1)
    queue.note_media(twin, content_hash=A, audio_seconds=2.0)
    assert queue.done_twin(A, "other") is None
    assert queue.done_twin(A, "k") == first
    finish(queue, twin, reused_from=first)
    assert queue.done_twin(A, "k") == first
    # a new key for the first keeps what the second stands on
    queue.retry([first])
    [job] = queue.claim("c3", 1)
    finish(queue, job, params_key="k2")
    assert len(queue.saved_segments(first, "k")) == 1


def test_content_whose_job_was_pruned_meanwhile_is_not_done_with_an_empty_text(queue: Queue, clock: Clock) -> None:
    first = put(queue, "a", content_hash=A)
    finish(queue, queue.claim("c", 1)[0])
    clock.forward(100)
    put(queue, "b")
    [twin] = queue.claim("c2", 1)
    assert queue.done_twin(A, "k") == first
    queue.prune(clock.at, exists=lambda _path: True)
    with pytest.raises(DatabaseBusy, match="tried again"):
        finish(queue, twin, reused_from=first)
    assert row(queue, twin.id)["state"] == "running"


# --- errors


@pytest.mark.parametrize(
    ("error", "ends", "kind"),
    [
        (NotMedia("no"), "failed", "not_media"),
        (ReaderHung("hung"), "failed", "reader_hung"),
        (NoAudioTrack("silent film"), "skipped", "no_audio"),
        (SourceMissing("gone"), "missing", "source_missing"),
    ],
)
def test_an_error_of_the_file_ends_the_job_at_once(queue: Queue, error: DropscribeError, ends: str, kind: str) -> None:
    job_id = put(queue, "a")
    [job] = queue.claim("c", 1)
    assert queue.fail(job, error) == ends
    ended = row(queue, job_id)
    assert (ended["state"], ended["error_kind"], ended["error"], ended["attempts"]) == (ends, kind, str(error), 1)
    assert ended["finished_at"] is not None
    assert ended["claim_id"] is None


@pytest.mark.parametrize("error", [SourceChanged("x"), SourceBusy("x"), DiskFull("x"), OutputUnwritable("x")])
def test_an_error_of_the_world_is_waited_out_for_ever_with_growing_pauses(
    queue: Queue, clock: Clock, error: DropscribeError
) -> None:
    job_id = put(queue, "a")
    waits = []
    for n in range(12):
        [job] = queue.claim(f"c{n}", 1)
        failed_at = clock.at
        assert queue.fail(job, error) == "queued"
        wait = (parse_iso(row(queue, job_id)["not_before"]) - failed_at).total_seconds()
        waits.append(round(wait))
        clock.forward(wait + 1)
    assert waits == sorted(waits)
    assert (waits[0], waits[-1]) == (backoff_seconds(error.error_kind, 0), 300)
    assert row(queue, job_id)["attempts"] == 12
    assert row(queue, job_id)["error_kind"] == error.error_kind


def test_a_missing_model_costs_no_job_anything(queue: Queue) -> None:
    job_id = put(queue, "a")
    before = row(queue, job_id)
    [job] = queue.claim("c", 1)
    assert queue.fail(job, ModelUnavailable("not cached")) == "queued"
    assert row(queue, job_id) == before


def test_an_unforeseen_error_is_tried_three_times(queue: Queue, clock: Clock) -> None:
    job_id = put(queue, "a")
    ends = []
    for n in range(3):
        [job] = queue.claim(f"c{n}", 1)
        ends.append(queue.fail(job, KeyError("\udcffoops\nsecond line")))
        clock.forward(1000)
    assert ends == ["queued", "queued", "failed"]
    assert row(queue, job_id)["error_kind"] == "internal"
    assert row(queue, job_id)["error"] == r"KeyError: '\udcffoops\nsecond line'"


def test_an_error_that_forbids_writing_is_passed_on(queue: Queue) -> None:
    put(queue, "a")
    [job] = queue.claim("c", 1)
    with pytest.raises(DatabaseReplaced):
        queue.fail(job, DatabaseReplaced("gone"))
    assert state(queue, job.id) == "running"


# --- deaths


def test_the_death_of_a_supervisor_costs_nothing(queue: Queue) -> None:
    ids = [put(queue, "a"), put(queue, "b")]
    before = [row(queue, job_id) for job_id in ids]
    queue.claim("c", 2)
    batch = queue.open_batch("c")
    assert queue.recover(cause="supervisor_died").requeued == tuple(ids)
    assert [row(queue, job_id) for job_id in ids] == before
    closed = queue.db.rows("SELECT outcome, finished_at FROM batches WHERE id = ?", (batch,))[0]
    assert closed["outcome"] == "supervisor_died"
    assert closed["finished_at"] is not None


def test_a_crash_with_neighbours_makes_suspects_but_counts_for_nobody(queue: Queue) -> None:
    ids = [put(queue, "a"), put(queue, "b")]
    queue.claim("c", 2)
    other = put(queue, "other")
    queue.claim("alive", 1)
    queue.recover(["c"], cause="crash")
    assert [(row(queue, i)["suspect"], row(queue, i)["crashes"], row(queue, i)["attempts"]) for i in ids] == [
        (1, 0, 0)
    ] * 2
    assert state(queue, other) == "running"


def test_three_lone_crashes_quarantine_and_retry_forgives(queue: Queue) -> None:
    job_id = put(queue, "a")
    for n in range(3):
        assert state(queue, job_id) == "queued"
        queue.claim(f"c{n}", 1)
        recovered = queue.recover([f"c{n}"], cause="crash", error_kind="worker_hung", error="no progress")
    assert recovered.quarantined == (job_id,)
    ended = row(queue, job_id)
    assert (ended["state"], ended["crashes"], ended["error_kind"]) == ("quarantined", 3, "worker_hung")
    assert f"jobs retry {job_id}" in ended["error"]
    assert queue.retry([job_id]) == [job_id]
    again = row(queue, job_id)
    assert (again["state"], again["crashes"], again["suspect"], again["attempts"]) == ("queued", 0, 0, 0)


def test_without_a_cap_nothing_is_quarantined(db: Database, clock: Clock) -> None:
    queue = Queue(db, clock, crash_cap=None)
    queue.ensure_root("/in")
    job_id = put(queue, "a")
    for n in range(10):
        queue.claim(f"c{n}", 1)
        queue.recover(cause="crash")
    assert (state(queue, job_id), row(queue, job_id)["crashes"]) == ("queued", 10)


def test_a_suspect_that_gets_through_is_cleared(queue: Queue) -> None:
    job_id = put(queue, "a")
    queue.claim("c", 1)
    queue.recover(cause="crash")
    [job] = queue.claim("c2", 1)
    assert job.suspect
    finish(queue, job)
    assert (row(queue, job_id)["suspect"], row(queue, job_id)["error_kind"]) == (0, None)


# --- by hand


def test_any_finished_job_can_be_queued_again(queue: Queue) -> None:
    ids = [put(queue, name) for name in "abcd"]
    jobs = queue.claim("c", 4)
    finish(queue, jobs[0])
    queue.fail(jobs[1], NotMedia("x"))
    queue.fail(jobs[2], SourceMissing("x"))
    queue.fail(jobs[3], NoAudioTrack("x"))
    assert queue.retry([*ids, 99, ids[0]]) == ids
    assert {state(queue, job_id) for job_id in ids} == {"queued"}


def test_a_retry_does_not_wait_out_the_pause(queue: Queue) -> None:
    job_id = put(queue, "a")
    queue.fail(queue.claim("c", 1)[0], DiskFull("x"))
    assert queue.retry([job_id]) == [job_id]
    assert queue.due()


def test_history_is_not_retried_over_a_newer_job(queue: Queue) -> None:
    old = put(queue, "a", size=1)
    finish(queue, queue.claim("c", 1)[0])
    new = put(queue, "a", size=2)
    finish(queue, queue.claim("c", 1)[0])
    assert queue.retry([old, new]) == [new]
    queue.claim("c", 1)
    assert queue.retry([new]) == []


def test_cancelling_ends_a_job_and_takes_it_from_its_holder(queue: Queue) -> None:
    ids = [put(queue, "a"), put(queue, "b")]
    [job] = queue.claim("c", 1)
    assert queue.cancel([*ids, 99]) == ids
    assert {row(queue, job_id)["error_kind"] for job_id in ids} == {"cancelled"}
    with pytest.raises(ClaimLost):
        finish(queue, job)
    assert queue.cancel(ids) == []
    assert queue.enqueue(1, b"/in/a", 1, 1) is None  # a scan does not undo it
    assert queue.retry(ids) == ids


@pytest.mark.parametrize("running", [False, True])
def test_cancelling_a_rerun_of_a_done_job_brings_it_back_as_it_was(queue: Queue, clock: Clock, running: bool) -> None:
    job_id = put(queue, "a")
    [job] = queue.claim("c", 1)
    queue.save_segments(job, "p", [SegmentRow(0, 10, "before", None, 1, "eos")])
    finish = {"text": "before", "language": None, "model": "m", "params_key": "p", "audio_seconds": 1.0}
    with transaction(queue.db):
        queue.finish_fields(job, **finish, transcript_path="/in/a.txt")
        at = row(queue, job_id)["finished_at"]
        outputs.commit(queue.db, job, "txt", b"/in/a.txt", sha256="f" * 64, at=at)
    before = row(queue, job_id)
    clock.forward(100)
    queue.retry([job_id])
    if running:
        [again] = queue.claim("d", 1)
        queue.save_segments(again, "other", [SegmentRow(0, 5, "half", None, 1, "eos")])
    assert queue.cancel([job_id]) == [job_id]
    after = row(queue, job_id)
    assert {name: after[name] for name in ("state", "text", "params_key", "transcript_path", "finished_at")} == {
        name: before[name] for name in ("state", "text", "params_key", "transcript_path", "finished_at")
    }
    assert [tuple(segment) for segment in queue.db.rows("SELECT text FROM segments")] == [("before",)]
    assert queue.cancel([job_id]) == []
    assert queue.enqueue(1, b"/in/a", 1, 1) is None  # a scan takes it for done
    if running:
        with pytest.raises(ClaimLost):
            queue.save_segments(again, "other", [SegmentRow(5, 9, "rest", None, 1, "eos")])


def test_cancelling_a_rerun_of_a_job_that_reuses_another_leaves_that_ones_segments(queue: Queue) -> None:
    first = put(queue, "a")
    twin = put(queue, "b")
    for job in queue.claim("c", 2):
        queue.note_media(job, content_hash=A)
        if job.id == first:
            queue.save_segments(job, "p", [SegmentRow(0, 10, "said once", None, 1, "eos")])
        queue.finish_fields(job, text="said once", language=None, model="m", params_key="p", audio_seconds=1.0,
                            reused_from=first if job.id == twin else None)  # fmt: skip
    queue.retry([twin])
    [again] = queue.claim("d", 1)
    queue.save_segments(again, "p", [SegmentRow(0, 5, "half", None, 1, "eos")])
    queue.cancel([twin])
    assert (state(queue, twin), row(queue, twin)["reused_from"]) == ("done", first)
    assert [tuple(one) for one in queue.db.rows("SELECT job_id, text FROM segments")] == [(first, "said once")]


def test_the_service_row_says_who_runs_and_what_is_wrong(queue: Queue) -> None:
    queue.set_service(pid=1, paused=True, problem="no model", started_at=iso(datetime(2026, 1, 1, tzinfo=UTC)))
    queue.set_service()
    assert queue.service() == {
        "pid": 1, "worker_pid": None, "started_at": "2026-01-01T00:00:00.000Z", "paused": True, "problem": "no model",
    }  # fmt: skip
    with pytest.raises(ValueError, match="no such columns"):
        queue.set_service(mood="good")


def test_pruning_keeps_the_identity_of_files_that_are_there(queue: Queue, clock: Clock) -> None:
    here, gone, away = put(queue, "here"), put(queue, "gone"), None
    queue.ensure_root("/away")
    away = queue.enqueue(2, b"/away/a", 1, 1)
    for job in queue.claim("c", 3):
        queue.save_segments(job, "k", [SegmentRow(0, 10, "x", None, 1, "eos")])
        finish(queue, job)
    queue.root_scanned(2, state="away")
    clock.forward(100)
    young = put(queue, "young")
    finish(queue, queue.claim("c", 1)[0])
    exists = {b"/in/here", b"/in/young"}.__contains__
    cut = clock.at - timedelta(seconds=50)
    planned = queue.prune(cut, dry_run=True, exists=exists)
    assert (planned.stripped, planned.removed) == ((here, away), (gone,))
    assert row(queue, here)["text"] == "hello"
    assert queue.prune(cut, exists=exists) == planned
    assert {r["id"] for r in queue.db.rows("SELECT id FROM jobs")} == {here, away, young}
    assert row(queue, here)["text"] is None
    assert queue.saved_segments(here, "k") == []
    assert row(queue, young)["text"] == "hello"
    assert queue.enqueue(1, b"/in/here", 1, 1) is None
    assert queue.prune(cut, exists=exists).stripped == ()


def test_nothing_in_a_folder_that_cannot_be_reached_is_taken_for_gone(queue: Queue, clock: Clock) -> None:
    old = put(queue, "old")
    finish(queue, queue.claim("c", 1)[0])
    clock.forward(100)
    answers = iter([True, False, True, True])  # unplugged while the files were looked for; then well
    pruned = queue.prune(clock.at, exists=lambda _path: False, reachable=lambda *_: next(answers))
    assert (pruned.stripped, pruned.removed) == ((old,), ())
    assert queue.prune(clock.at, exists=lambda _path: False, reachable=lambda *_: next(answers)).removed == (old,)


# --- the schema refuses what the rules forbid


@pytest.mark.parametrize(
    "change",
    [
        "state = 'nonsense'",
        "state = 'done'",
        "finished_at = '2026-01-01T00:00:00.000Z'",
        "claim_id = 'c'",
        "state = 'running', claim_id = 'c'",
        "queued_at = 'yesterday'",
        "warnings = '{}'",
        "content_hash = 'short'",
        "size_bytes = 'many'",
        "root_id = 99",
    ],
)
def test_a_row_against_the_rules_is_refused(queue: Queue, change: str) -> None:
    put(queue, "a")
    with pytest.raises(sqlite3.IntegrityError), transaction(queue.db):
        queue.db.execute(f"UPDATE jobs SET {change}")  # noqa: S608
    assert state(queue, 1) == "queued"


def test_two_live_jobs_of_one_path_are_refused(queue: Queue) -> None:
    put(queue, "a")
    other = put(queue, "b")
    with pytest.raises(sqlite3.IntegrityError), transaction(queue.db):
        queue.db.execute("UPDATE jobs SET path_raw = ? WHERE id = ?", (b"/in/a", other))
