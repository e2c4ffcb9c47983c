"""Trouble around the job log, with the real daemon: a foreign lock, a full disk, a reader that stays too long."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dropscribe.housekeeping import Housekeeping
from dropscribe.jobs import database
from dropscribe.jobs.database import checkpoint, connect_readonly, open_database
from dropscribe.jobs.queue import Queue
from dropscribe.settings import Settings
from real_daemon import Place, clips

if TYPE_CHECKING:
    from collections.abc import Iterator

HOLD = """
import sqlite3, sys
conn = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=30)
conn.execute("BEGIN EXCLUSIVE")
print("held", flush=True)
sys.stdin.read()
conn.execute("ROLLBACK")
"""


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another program holds the job log."""
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        yield
        other.communicate("", timeout=30)


def settled(place: Place, files: int) -> bool:
    return list(place.states().values()) == ["done"] * files and not place.rows(
        "SELECT 1 FROM batches WHERE finished_at IS NULL"
    )


def times_said(place: Place, what: str) -> int:
    return place.log.read_text().count(what)


@pytest.mark.slow
def test_a_lock_of_another_program_loses_nothing_at_the_start_and_in_mid_batch(tmp_path: Path) -> None:
    with Place(tmp_path) as place:
        open_database(place.settings.database, checkpoints=True).close()
        place.drop(clips(1)[0])
        with locked(place.settings.database):
            place.start(DROPSCRIBE_TEST_BUSY_SECONDS="0.3")
            place.until(lambda: times_said(place, "error_kind=database_busy"))
            assert place.states() == {}
        place.until(lambda: "running" in place.states().values())
        said = times_said(place, "error_kind=database_busy")
        with locked(place.settings.database):
            place.drop(clips(3)[0])
            place.until(lambda: times_said(place, "error_kind=database_busy") > said)
            assert set(place.states().values()) <= {"running", "done"}  # readers go on, and what they see is the truth
        place.until(lambda: settled(place, 2))
        place.check()
        assert (
            place.rows("SELECT crashes, attempts, suspect FROM jobs")
            == [{"crashes": 0, "attempts": 1, "suspect": 0}] * 2
        )


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("a small file system is mounted by root on Linux only")
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"mounting is not allowed here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextlib.contextmanager
def full(folder: Path) -> Iterator[None]:
    """Not a byte is left."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (65536, 4096, 1):
            with contextlib.suppress(OSError):
                while file.write(b"x" * size):
                    pass
    yield
    filler.unlink()


def check_at_any_instant(place: Place) -> None:
    """Each file of ours is in ``outputs`` with one of its hashes, and no done job lacks its files."""
    with closing(connect_readonly(place.settings.database)) as conn:
        known = {
            Path(os.fsdecode(row["path_raw"])): (row["state"], row["sha256"], row["next_sha256"])
            for row in conn.execute("SELECT o.*, j.state FROM outputs o JOIN jobs j ON j.id = o.job_id").fetchall()
        }
        done = conn.execute("SELECT count(*) FROM jobs WHERE state = 'done'").fetchone()[0]
    for path, (state, *hashes) in known.items():
        if path.exists() and path.stat().st_size:
            assert hashlib.sha256(path.read_bytes()).hexdigest() in hashes, path
        else:
            assert state != "done", path
    assert sum(state == "done" for state, *_ in known.values()) == done * len(place.settings.watch[0].formats)
    for path in place.folder.iterdir():
        if path.suffix in {".txt", ".json"} and path.stat().st_size:
            with closing(connect_readonly(place.settings.database)) as conn:
                rows = conn.execute("SELECT 1 FROM outputs WHERE path_raw = ?", (os.fsencode(path),)).fetchall()
            assert rows, path


@pytest.mark.slow
def test_a_full_disk_pauses_everything_and_it_goes_on_when_there_is_space(small_disk: Path, tmp_path: Path) -> None:
    with Place(small_disk) as place:
        place.log = tmp_path / "log"
        place.log.touch()
        for clip in clips(1, 2, 3):
            place.drop(clip)
        with full(small_disk):
            place.start(DROPSCRIBE_SETTLE__QUIET_SECONDS="0.1")
            place.until(lambda: times_said(place, "error_kind=disk_full"))
            assert place.states() == {}
        place.until(lambda: "running" in place.states().values())
        with full(small_disk):
            said = place.log.read_text().count("no space left")
            place.until(lambda: place.log.read_text().count("no space left") > said or settled(place, 3))
            check_at_any_instant(place)
            assert "failed" not in place.states().values()
        place.until(lambda: settled(place, 3))
        place.check()


def test_none_of_our_readers_holds_a_transaction_past_one_query(tmp_path: Path) -> None:
    from dropscribe.jobs import log, statistics

    db = open_database(tmp_path / "jobs.db", checkpoints=True)
    queue = Queue(db)
    root = queue.ensure_root("/in")
    with closing(connect_readonly(db.path)) as conn:
        questions = [
            lambda: log.list_jobs(conn), lambda: log.get_job(conn, 1), lambda: log.segments(conn, 1),
            lambda: log.timings(conn, 1), lambda: log.outputs(conn, 1), lambda: log.counts(conn),
            lambda: log.roots(conn), lambda: log.service(conn), lambda: log.queue(conn),
            lambda: log.search(conn, "word"), lambda: log.search(conn, "词"), lambda: statistics.statistics(conn),
        ]  # fmt: skip
        for number, question in enumerate(questions):
            question()
            queue.enqueue(root, b"/in/%d" % number, 1, 1)
            assert checkpoint(db), number  # a transaction left open would be in its way
    db.close()


def test_the_write_ahead_log_is_small_again_soon_after_a_foreign_reader_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "WAL_LIMIT_BYTES", 64 * 1024)
    path = tmp_path / "jobs.db"
    wal = Path(f"{path}-wal")
    db = open_database(path, checkpoints=True)
    queue = Queue(db)
    root = queue.ensure_root("/in")
    with closing(sqlite3.connect(path, isolation_level=None)) as foreign:
        foreign.execute("BEGIN")
        foreign.execute("SELECT count(*) FROM jobs").fetchone()
        for number in range(400):
            queue.enqueue(root, b"/in/%d" % number, 1, 1)
        assert not checkpoint(db)  # it waits for nobody
        assert wal.stat().st_size > 64 * 1024
        # a writer of ours that is not the supervisor closes meanwhile and must not try either
        writer = threading.Thread(target=lambda: open_database(path).close())
        writer.start()
        writer.join(60)  # or ours would find the log in use by it
        assert not writer.is_alive()
        foreign.execute("COMMIT")
    assert checkpoint(db)
    assert wal.stat().st_size == 0
    db.close()


def test_within_a_minute_of_a_foreign_reader_leaving_the_write_ahead_log_is_under_16_mb(tmp_path: Path) -> None:
    assert database.WAL_LIMIT_BYTES <= 16 * 2**20
    settings = Settings.model_validate({"database": tmp_path / "jobs.db", "watch": [{"path": tmp_path}]})
    wal = tmp_path / "jobs.db-wal"
    db = open_database(settings.database, checkpoints=True)
    db.execute("PRAGMA synchronous = OFF")
    root = Queue(db).ensure_root("/in")
    now = 1000.0
    housekeeping = Housekeeping(db, settings, lambda: now)
    with closing(sqlite3.connect(settings.database, isolation_level=None)) as foreign:
        foreign.execute("BEGIN")
        foreign.execute("SELECT count(*) FROM jobs").fetchone()
        housekeeping.tidy(None)
        writer = open_database(settings.database)  # a worker: it never checkpoints
        writer.execute("PRAGMA synchronous = OFF")
        job = Queue(writer).enqueue(root, b"/in/a.wav", 1, 1)
        for _ in range(20):
            writer.execute("UPDATE jobs SET text = hex(randomblob(500000)) WHERE id = ?", (job,))
        for _ in range(30):  # for minutes the reader stays, and is left alone
            now += 2
            housekeeping.tidy(None)
        assert wal.stat().st_size > 16 * 2**20
        foreign.execute("COMMIT")
    left = now
    while wal.stat().st_size > 16 * 2**20:
        now += 2  # the supervisor's tick
        assert now - left <= 60
        housekeeping.tidy(None)
    assert db.rows("PRAGMA integrity_check")[0][0] == "ok"
    writer.close()
    db.close()
