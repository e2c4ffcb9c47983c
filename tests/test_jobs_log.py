"""The read side: lists, search with times, statistics; and what it all costs at 100,000 jobs."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dropscribe.errors import DiskFull, NotMedia
from dropscribe.jobs import log, statistics
from dropscribe.jobs.database import Database, open_database, transaction
from dropscribe.jobs.queue import Queue, SegmentRow

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterator

SPOKEN = {
    b"/in/one.wav": [(0, 900, "Hello crooked world"), (900, 2000, "and Grüße an alle")],
    b"/in/two.wav": [(0, 500, "the world again")],
    b"/in/three.wav": [(0, 700, "今天天气很好我们去公园散步")],
}


@pytest.fixture
def conn(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    db = open_database(tmp_path / "jobs.db")
    at = datetime(2026, 1, 1, tzinfo=UTC)
    queue = Queue(db, lambda: at)
    queue.ensure_root("/in")
    for path in [*SPOKEN, b"/in/bad.wav", b"/in/later.wav", b"/in/next.wav"]:
        queue.enqueue(1, path, 1, 1, priority=1 if path != b"/in/next.wav" else 0)
    batch = queue.open_batch("c", decoder="bulk-sync", slots=6, model="m")
    jobs = {job.path_raw: job for job in queue.claim("c", 5)}
    for path, spoken in SPOKEN.items():
        job = jobs[path]
        queue.save_segments(job, "old", [SegmentRow(0, 1, "stale world", None, 1, "eos")])
        for start, end, text in spoken:
            queue.save_segments(job, "k", [SegmentRow(start, end, text, "English", 3, "eos")])
        queue.finish_fields(
            job,
            text=" ".join(text for *_, text in spoken),
            language="English",
            model="m",
            params_key="k",
            audio_seconds=2.0,
            batch_id=batch,
            warnings=["w"],
            transcript_path=job.path + ".txt",
        )
        queue.add_timing(job.id, batch, {"time": 0.5, "duration": 2.0, "rtf": 0.25})
    queue.close_batch(batch, "done", {"wall_s": 1.5, "audio_seconds": 6.0})
    queue.fail(jobs[b"/in/bad.wav"], NotMedia("not audio"))
    queue.fail(jobs[b"/in/later.wav"], DiskFull("no space"))
    conn = log.connect_readonly(db.path)
    yield conn
    conn.close()
    db.close()


def paths(rows: list[log.Row]) -> list[str]:
    return [os.path.basename(row["path"]) for row in rows]  # noqa: PTH119


def test_jobs_are_listed_newest_first_and_filtered(conn: sqlite3.Connection) -> None:
    assert paths(log.list_jobs(conn, limit=2)) == ["next.wav", "later.wav"]
    assert paths(log.list_jobs(conn, states=["failed"])) == ["bad.wav"]
    assert paths(log.list_jobs(conn, states=["done", "failed"])) == ["bad.wav", "three.wav", "two.wav", "one.wav"]
    assert paths(log.list_jobs(conn, error_kind="disk_full")) == ["later.wav"]
    assert paths(log.list_jobs(conn, contains="o.w")) == ["two.wav"]
    assert len(log.list_jobs(conn, root="/in", limit=None)) == 6
    assert log.list_jobs(conn, root="/out") == []
    assert len(log.list_jobs(conn, since="2026-01-01T00:00:00.000Z")) == 6
    assert log.list_jobs(conn, since="2026-01-02T00:00:00.000Z") == []
    assert log.list_jobs(conn, limit=1, states=["done"])[0]["warnings"] == ["w"]
    with pytest.raises(ValueError, match="no such state: lost; known are queued"):
        log.list_jobs(conn, states=["lost"])


def test_a_job_is_found_by_id_and_by_path(conn: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    assert log.get_job(conn, 1)["text"] == "Hello crooked world and Grüße an alle"
    for ident in ("1", "/in/one.wav", b"/in/one.wav", "/in/../in/one.wav"):
        assert log.get_job(conn, ident)["id"] == 1
    assert log.get_job(conn, "/in/none.wav") is None
    assert log.get_job(conn, 99) is None
    assert log.get_job(conn, str(10**30)) is None


def test_only_segments_that_count_are_shown(conn: sqlite3.Connection) -> None:
    assert [row["text"] for row in log.segments(conn, 1)] == ["Hello crooked world", "and Grüße an alle"]
    assert log.segments(conn, 4) == []


def test_a_reused_job_shows_the_segments_it_stands_on(conn: sqlite3.Connection, tmp_path: Path) -> None:
    db = open_database(tmp_path / "jobs.db")
    queue = Queue(db)
    [job] = queue.claim("c2", 1)
    queue.finish_fields(job, text="x", language=None, model="m", params_key="k", audio_seconds=2.0, reused_from=2)
    db.close()
    assert [row["text"] for row in log.segments(conn, job.id)] == ["the world again"]
    assert log.search(conn, "again")[0]["same_content"] == [job.path]


def test_a_search_hit_has_its_file_its_time_and_a_marked_snippet(conn: sqlite3.Connection) -> None:
    hits = log.search(conn, "WORLD")
    assert [(hit["job_id"], hit["start_ms"], hit["end_ms"]) for hit in hits] == [(2, 0, 500), (1, 0, 900)]
    assert hits[0]["snippet"] == f"the {log.MARK_START}world{log.MARK_END} again"
    assert hits[0]["path"] == "/in/two.wav"
    assert hits[0]["same_content"] == []
    assert log.search(conn, "world crooked")[0]["job_id"] == 1
    assert log.search(conn, "gruße")[0]["start_ms"] == 900  # accents do not matter
    assert log.search(conn, "stale") == []


@pytest.mark.parametrize("words", ['"', "a AND", "NEAR(", "text:world", "*", "-", "x'y", " "])
def test_any_words_may_be_searched_for(conn: sqlite3.Connection, words: str) -> None:
    assert isinstance(log.search(conn, words), list)


def test_an_exact_query_is_fts5_and_says_what_is_wrong_with_it(conn: sqlite3.Connection) -> None:
    assert [hit["job_id"] for hit in log.search(conn, "croo* OR again", exact=True)] == [2, 1]
    with pytest.raises(ValueError, match="cannot search for"):
        log.search(conn, "NEAR(", exact=True)


def test_words_of_scripts_without_spaces_are_found_inside_a_clause(conn: sqlite3.Connection) -> None:
    [hit] = log.search(conn, "公园 散步")
    assert (hit["job_id"], hit["snippet"]) == (3, "今天天气很好我们去\x02公园\x03\x02散步\x03")
    assert log.search(conn, "公园 world") == []


def test_counts_name_every_state(conn: sqlite3.Connection) -> None:
    assert log.counts(conn) == {
        "queued": 2, "running": 0, "done": 3, "failed": 1, "quarantined": 0, "missing": 0, "skipped": 0,
    }  # fmt: skip


def test_statistics_give_days_models_failures_and_throughput(conn: sqlite3.Connection) -> None:
    stats = statistics.statistics(conn, now=lambda: datetime(2026, 1, 3, tzinfo=UTC))
    [none, day] = sorted(stats["days"], key=lambda row: row["model"] or "")
    assert (none["failed"], none["done"]) == (1, 0)
    assert day == {
        "day": "2026-01-01", "model": "m", "done": 3, "failed": 0, "skipped": 0,
        "audio_seconds": 6.0, "decoded_seconds": 6.0, "time": 1.5, "rtf": 0.25,
    }  # fmt: skip
    assert stats["failures"] == [{"error_kind": "not_media", "files": 1}]
    assert stats["models"][0]["rtf"] == 0.25
    today, week, _ = stats["throughput"]
    nothing = {"audio_seconds": 0.0, "decoded_seconds": 0.0, "busy_s": 0.0, "rtf": None}
    assert today == {"period": "24 hours", "files": 0, **nothing}
    something = {"audio_seconds": 6.0, "decoded_seconds": 6.0, "busy_s": 1.5, "rtf": 0.25}
    assert week == {"period": "7 days", "files": 3, **something}


def test_content_that_was_known_counts_as_done_and_not_as_decoded(conn: sqlite3.Connection, tmp_path: Path) -> None:
    db = open_database(tmp_path / "jobs.db")
    queue = Queue(db, lambda: datetime(2026, 1, 1, 1, tzinfo=UTC))
    batch = queue.open_batch("again", decoder="bulk-sync", slots=6, model="m")
    [job] = queue.claim("again", 1)
    queue.finish_fields(
        job, text="x", language=None, model="m", params_key="k", audio_seconds=2.0, batch_id=batch, reused_from=2
    )
    queue.add_timing(job.id, batch, {"read_s": 0.1, "duration": 0.0, "time": 0.0})
    queue.close_batch(batch, "done", {"wall_s": 0.0, "audio_seconds": 0.0})
    db.close()
    stats = statistics.statistics(conn, now=lambda: datetime(2026, 1, 3, tzinfo=UTC))
    [day] = [row for row in stats["days"] if row["model"]]
    assert (day["done"], day["audio_seconds"], day["decoded_seconds"], day["time"]) == (4, 8.0, 6.0, 1.5)
    assert day["rtf"] == day["time"] / day["decoded_seconds"]
    week = stats["throughput"][1]
    assert (week["files"], week["audio_seconds"], week["decoded_seconds"]) == (4, 8.0, 6.0)
    assert week["rtf"] == week["busy_s"] / week["decoded_seconds"]
    [timing] = log.timings(conn, job.id)
    assert (timing["duration"], timing["time"], timing["rtf"]) == (0.0, 0.0, None)
    assert (timing["audio_seconds"], timing["reused_from"]) == (2.0, 2)


def test_the_work_of_a_day_outlives_a_prune_and_that_of_a_batch_that_broke_off_is_its_files(tmp_path: Path) -> None:
    db = open_database(tmp_path / "jobs.db")
    at = datetime(2026, 1, 1, tzinfo=UTC)
    queue = Queue(db, lambda: at)
    queue.ensure_root("/in")
    for name in (b"/in/a.wav", b"/in/b.wav"):
        queue.enqueue(1, name, 1, 1)
    for claim in ("whole", "broken"):
        batch = queue.open_batch(claim, model="m")
        [job] = queue.claim(claim, 1)
        queue.finish_fields(job, text="x", language=None, model="m", params_key="k", audio_seconds=2.0, batch_id=batch)
        queue.add_timing(job.id, batch, {"duration": 2.0, "time": 0.5})
        if claim == "whole":
            figures = {"feature_s": 0.1, "encode_s": 0.1, "prefill_s": 0.1, "decode_s": 0.2}
            queue.close_batch(batch, "done", {"audio_seconds": 2.0, **figures})
        else:
            queue.recover([claim], cause="crash")

    def day() -> tuple[float, ...]:
        [row] = db.rows("SELECT * FROM daily")
        return row["done"], row["decoded_seconds"], row["time"], row["rtf"]

    assert day() == (2, 4.0, pytest.approx(1.0), pytest.approx(0.25))
    queue.prune(datetime(2026, 2, 1, tzinfo=UTC), exists=lambda _path: True)
    assert day() == (2, 2.0, pytest.approx(0.5), pytest.approx(0.25))
    db.close()


def test_the_estimate_is_of_what_is_left_at_the_pace_so_far(conn: sqlite3.Connection) -> None:
    # two unread files of one byte each; a byte of .wav has held two seconds so far
    assert statistics.backlog(conn) == {
        "files": 2, "running": 0, "due_later": 1, "unread": 2,
        "audio_seconds": 4.0, "guessed_seconds": 4.0, "eta_seconds": 1.0, "eta_range": None,
    }  # fmt: skip


def test_the_estimate_knows_sizes_kinds_and_what_is_done_of_a_long_file(tmp_path: Path) -> None:
    db = open_database(tmp_path / "jobs.db")
    queue = Queue(db)
    queue.ensure_root("/in")
    for number in range(8):  # mp3 holds ten times the audio a byte
        queue.enqueue(1, f"/in/{number}.{'mp3' if number % 2 else 'wav'}".encode(), 1000, 1)
    for number in range(8):
        [job] = queue.claim(f"c{number}", 1)
        batch = queue.open_batch(f"c{number}")
        seconds = 100.0 if job.path.endswith("mp3") else 10.0
        queue.finish_fields(job, text="", language=None, model="m", params_key="k", audio_seconds=seconds)
        queue.close_batch(batch, "done", {"wall_s": seconds / (5 if number < 4 else 20), "audio_seconds": seconds})
    queue.enqueue(1, b"/in/talk.MP3", 5000, 1)
    queue.enqueue(1, b"/in/odd.opus", 1000, 1)
    [job] = queue.claim("now", 1)
    queue.save_segments(job, "k", [SegmentRow(0, 200_000, "half", None, 1, "eos")])
    conn = log.connect_readonly(db.path)
    estimate = statistics.backlog(conn)
    left = 500.0 - 200.0 + 55.0
    assert (estimate["files"], estimate["running"], estimate["unread"]) == (2, 1, 2)
    assert estimate["audio_seconds"] == pytest.approx(left)
    assert estimate["eta_seconds"] == pytest.approx(left * 0.125)
    assert estimate["eta_range"] == pytest.approx([left / 20, left / 5])
    conn.close()
    db.close()


@pytest.mark.parametrize(
    ("fields", "alive", "why"),
    [
        ({}, True, "the daemon is not running"),
        ({"pid": 1}, False, "the daemon is not running"),
        ({"pid": 1, "paused": 1}, True, "paused"),
        ({"pid": 1, "problem": "no model"}, True, "no model"),
        ({"pid": 1}, True, None),
    ],
)
def test_the_estimate_says_what_stands_in_its_way(
    conn: sqlite3.Connection, tmp_path: Path, fields: dict[str, object], alive: bool, why: str | None
) -> None:
    db = open_database(tmp_path / "jobs.db")
    Queue(db).set_service(**fields)
    db.close()
    assert statistics.statistics(conn, alive=lambda pid: alive)["backlog"]["blocked"] == why


def test_an_empty_log_estimates_nothing(tmp_path: Path) -> None:
    db = open_database(tmp_path / "jobs.db")
    conn = log.connect_readonly(tmp_path / "jobs.db")
    assert statistics.statistics(conn)["backlog"]["eta_seconds"] is None
    assert statistics.backlog(conn)["audio_seconds"] == 0.0
    queue = Queue(db)
    queue.enqueue(queue.ensure_root("/in"), b"/in/a.wav", 1, 1)
    assert statistics.backlog(conn)["audio_seconds"] is None  # who knows
    conn.close()
    db.close()


def test_the_queue_view_is_in_the_order_of_claims(conn: sqlite3.Connection) -> None:
    assert [(row["place"], os.path.basename(row["path"])) for row in log.queue(conn)] == [  # noqa: PTH119
        (1, "later.wav"),
        (2, "next.wav"),
    ]


def test_timings_of_a_job_name_its_batch(conn: sqlite3.Connection) -> None:
    [timing] = log.timings(conn, 1)
    assert (timing["time"], timing["batch_time"], timing["batch_rtf"], timing["batch_size"]) == (0.5, 1.5, 0.25, 6)


@pytest.mark.parametrize(("table", "columns"), [("jobs", "path"), ("segments_fts", "text")])
def test_the_log_reads_well_in_plain_sql(conn: sqlite3.Connection, table: str, columns: str) -> None:
    assert conn.execute(f"SELECT {columns} FROM {table}").fetchall()  # noqa: S608
    for view in ("transcript_timings", "queue", "failures", "daily"):
        assert conn.execute(f"SELECT * FROM {view}").fetchall()  # noqa: S608


# --- at 100,000 jobs


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    db = open_database(tmp_path_factory.mktemp("crowded") / "jobs.db", checkpoints=True)
    db.execute("PRAGMA synchronous = OFF")  # what is measured is the work, not this machine's disk
    Queue(db).ensure_root("/in")
    with transaction(db):
        db.execute(
            """
            CREATE TEMP TABLE n AS WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 100000)
            SELECT i FROM n
            """
        )
        db.execute(
            """
            INSERT INTO batches (id, claim_id, started_at, finished_at, outcome, slots, decode_s, wall_s, audio_seconds)
            SELECT i, 'c', '2026-01-01T00:00:00.000Z', '2026-01-01T00:00:00.000Z', 'done', 6, 4, 5, 60
            FROM n WHERE i <= 10000
            """
        )
        db.execute(
            """
            INSERT INTO jobs (id, root_id, path, path_raw, size_bytes, mtime_ns, state, queued_at, created_at,
              started_at, finished_at, audio_seconds, text, model, params_key, content_hash)
            SELECT i, 1, '/in/' || i, CAST('/in/' || i AS BLOB), 1, 1, 'done', at, at, at, at, 30, text, 'm', 'k',
              printf('%064d', i)
            FROM (SELECT i, printf('2026-%02d-%02dT00:00:00.000Z', 1 + i % 12, 1 + i % 28) AS at,
              'the quick brown fox jumps over the lazy dog ' || i AS text FROM n)
            """
        )
        db.execute(
            """
            INSERT INTO segments (job_id, params_key, start_ms, end_ms, text, tokens, finish_reason)
            SELECT id, 'k', 0, 30000, text, 9, 'eos' FROM jobs
            """
        )
        db.execute(
            "INSERT INTO timings (job_id, batch_id, duration, time, rtf) SELECT i, 1 + i % 10000, 30, 2, 0.06 FROM n"
        )
    yield db
    db.close()


def steps(conn: sqlite3.Connection, work: Callable[[], object]) -> int:
    """Thousands of SQLite's own steps, the same on every machine: some 20 µs each (tools/measure_job_log.py times)."""
    count = 0

    def thousand() -> int:
        nonlocal count
        count += 1
        return 0

    conn.set_progress_handler(thousand, 1000)
    try:
        work()
    finally:
        conn.set_progress_handler(None, 0)
    return count


@pytest.mark.slow
def test_at_100_000_done_jobs_the_queue_works_as_fast_as_with_none(crowded: Database) -> None:
    queue = Queue(crowded)
    for n in range(80):
        queue.enqueue(1, f"/in/new-{n}".encode(), 1, 1)
    claims = iter(range(100))
    assert steps(crowded.conn, lambda: queue.claim(f"c{next(claims)}", 24)) <= 20
    assert steps(crowded.conn, queue.due) <= 1
    assert steps(crowded.conn, queue.next_due_at) <= 1
    assert steps(crowded.conn, lambda: queue.enqueue(1, b"/in/77", 1, 1)) <= 1
    assert steps(crowded.conn, lambda: queue.enqueue(1, b"/in/unheard-of", 1, 1)) <= 1
    assert steps(crowded.conn, lambda: queue.done_twin("0" * 64, "k")) <= 1
    assert steps(crowded.conn, lambda: queue.hand_back("c0")) <= 20


@pytest.mark.slow
def test_at_100_000_done_jobs_only_what_is_asked_for_is_read(crowded: Database) -> None:
    conn = log.connect_readonly(crowded.path)
    assert steps(conn, lambda: log.list_jobs(conn)) <= 10
    assert steps(conn, lambda: log.list_jobs(conn, states=["failed"])) <= 10
    assert steps(conn, lambda: log.get_job(conn, "/in/500")) <= 1
    assert steps(conn, lambda: log.get_job(conn, "/in/unheard-of")) <= 1
    newest = "SELECT path, rtf FROM transcript_timings ORDER BY batch_id DESC LIMIT 10"
    assert steps(conn, lambda: conn.execute(newest).fetchall()) <= 1
    assert steps(conn, lambda: log.search(conn, "fox")) <= 10
    assert steps(conn, lambda: log.search(conn, "狐")) <= 2_000  # every text is looked at
    assert steps(conn, lambda: statistics.statistics(conn)) <= 7_000  # once over an index for each table
    assert steps(conn, lambda: conn.execute("SELECT * FROM daily").fetchall()) <= 5_000
    plan = conn.execute(f"EXPLAIN QUERY PLAN {statistics._DONE_SINCE}", ("2026",)).fetchall()
    assert "COVERING INDEX" in plan[0]["detail"]  # not the rows, with their texts
    conn.close()


def test_the_page_about_the_job_log_names_every_table_view_and_column(conn: sqlite3.Connection) -> None:
    page = (Path(__file__).parent.parent / "docs" / "JOB_LOG.md").read_text("utf-8")
    found = conn.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')").fetchall()
    names = [name for (name,) in found if not name.startswith(("_", "sqlite_", "segments_fts"))]
    missing = [name for name in names if name not in page]
    for name in names:
        section = page if name in {"roots", "service", "benchmarks"} else page[page.index(f"{name}") :]
        columns = [row["name"] for row in conn.execute(f"PRAGMA table_info({name})")]
        missing += [f"{name}.{column}" for column in columns if not re.search(rf"\b{column}\b", section)]
    assert missing == []
