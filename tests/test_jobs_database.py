"""Opening the job log: many processes at once, other people's files, newer schemas, replaced files, full disks."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import sqlite_utils

from dropscribe.errors import (
    ConfigError,
    DatabaseBusy,
    DatabaseReplaced,
    DiskFull,
    OutputUnwritable,
    SchemaTooNew,
)
from dropscribe.jobs import database
from dropscribe.jobs.database import checkpoint, connect_readonly, open_database, transaction, translate
from dropscribe.jobs.records import MIGRATIONS
from dropscribe.jobs.schema import migrations


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "jobs.db"


def pragma(db: database.Database, name: str) -> object:
    return db.rows(f"PRAGMA {name}")[0][0]


def test_a_new_log_is_durable_and_keeps_its_promises(path: Path) -> None:
    db = open_database(path)
    assert pragma(db, "journal_mode") == "wal"
    assert pragma(db, "synchronous") == 2
    assert pragma(db, "foreign_keys") == 1
    assert pragma(db, "busy_timeout") >= 10_000
    assert pragma(db, "wal_autocheckpoint") == 0
    if sys.platform == "darwin":
        assert pragma(db, "fullfsync") == 1
    db.close()
    supervisor = open_database(path, checkpoints=True)
    assert pragma(supervisor, "wal_autocheckpoint") > 0
    supervisor.close()


def test_every_table_is_strict(path: Path) -> None:
    db = open_database(path)
    tables = db.rows("SELECT name, sql FROM sqlite_master WHERE type = 'table' AND sql LIKE 'CREATE TABLE %'")
    ours = {row["name"]: row["sql"] for row in tables if not row["name"].startswith(("_", "sqlite_", "segments_fts"))}
    assert set(ours) == {
        "roots", "jobs", "segments", "outputs", "batches", "timings", "service", "benchmarks", "moves",
    }  # fmt: skip
    assert [name for name, sql in ours.items() if "STRICT" not in sql] == []
    db.close()


def test_the_light_list_of_migrations_is_the_real_one() -> None:
    assert tuple(migration.name for migration in migrations._migrations) == MIGRATIONS


@pytest.mark.parametrize("steps", range(len(MIGRATIONS)))
def test_a_log_of_every_earlier_version_is_brought_up_to_date(path: Path, steps: int) -> None:
    path.parent.mkdir()
    old = sqlite_utils.Database(path)
    migrations.apply(old, stop_before=MIGRATIONS[steps])
    before = {} if steps == 0 else fill_as_of_old(old)
    old.close()
    db = open_database(path)
    assert [row["name"] for row in db.rows("SELECT name FROM _sqlite_migrations ORDER BY id")] == list(MIGRATIONS)
    assert db.rows("PRAGMA integrity_check")[0][0] == "ok"
    assert db.rows("PRAGMA foreign_key_check") == []
    for table, rows in before.items():
        now = list(db.tables[table].rows)
        assert [{column: row[column] for column in rows[0]} for row in now] == rows, table
    assert schema_of(db.conn) == schema_of_new(path.with_name("new.db"))
    if before:
        [hit] = db.rows("SELECT rowid FROM segments_fts WHERE segments_fts MATCH 'GRUßE'")
        assert hit[0] == 7
        [timing] = db.rows("SELECT * FROM transcript_timings")
        assert (timing["path"], timing["duration"], timing["audio_seconds"]) == ("/in/a.wav", 2.0, 2.0)
        assert [row["place"] for row in db.rows("SELECT * FROM queue")] == [1]
        assert [row["done"] for row in db.rows("SELECT * FROM daily")] == [1]
    db.close()


def fill_as_of_old(db: sqlite_utils.Database) -> dict[str, list[dict[str, object]]]:
    """A row in each table there is, with the columns of the first version; returns what was written, in full."""
    at = "2026-01-01T00:00:00.000Z"
    job = {"root_id": 1, "size_bytes": 1, "mtime_ns": 1, "queued_at": at, "created_at": at}
    rows = {
        "roots": {"id": 1, "path": "/in", "waiting": 3},
        "batches": {"id": 4, "claim_id": "c", "started_at": at, "finished_at": at, "outcome": "done", "wall_s": 1.0},
        "jobs": {
            **job, "id": 2, "path": "/in/a.wav", "path_raw": b"/in/a.wav", "state": "done", "started_at": at,
            "finished_at": at, "audio_seconds": 2.0, "params_key": "k", "batch_id": 4, "text": "Grüße",
        },
        "segments": {
            "id": 7, "job_id": 2, "params_key": "k", "start_ms": 0, "end_ms": 2000, "text": "Grüße", "tokens": 3,
            "finish_reason": "eos",
        },
        "outputs": {"job_id": 2, "format": "txt", "path_raw": b"/in/a.txt", "sha256": "a" * 64},
        "timings": {"job_id": 2, "batch_id": 4, "duration": 2.0, "time": 1.0, "rtf": 0.5},
        "benchmarks": {"id": 1, "measured_at": at, "kind": "sweep", "result": "{}"},
    }  # fmt: skip
    tables = db.table_names()
    if "moves" in tables:
        rows["moves"] = {
            "job_id": 2, "source_raw": b"/in/a.wav", "hidden_raw": b"/in/.x", "target_raw": b"/out/a.wav",
            "created_at": at,
        }  # fmt: skip
    for table, row in rows.items():
        db[table].insert(row)
    db["jobs"].insert({**job, "id": 3, "path": "/in/\\xff", "path_raw": b"/in/\xff", "state": "queued"})
    db.execute("UPDATE service SET pid = 99, paused = 1")
    db.conn.commit()
    return {table: list(db[table].rows) for table in (*rows, "service")}


def schema_of(conn: sqlite3.Connection) -> set[tuple[str, str, str]]:
    query = "SELECT type, name, sql FROM sqlite_master WHERE name NOT LIKE '%fts_%'"
    return {tuple(row) for row in conn.execute(query)}


def schema_of_new(path: Path) -> set[tuple[str, str, str]]:
    db = open_database(path)
    try:
        return schema_of(db.conn)
    finally:
        db.close()


def test_a_log_of_a_newer_version_is_refused_by_writers_and_readers(path: Path) -> None:
    db = open_database(path)
    with transaction(db):
        db.execute(
            "INSERT INTO _sqlite_migrations (migration_set, name, applied_at) VALUES ('dropscribe', 'm999_later', '')"
        )
    db.close()
    for opener in (open_database, connect_readonly):
        with pytest.raises(SchemaTooNew, match=r"m999_later.*upgrade"):
            opener(path)


def test_another_programs_database_is_left_alone(path: Path) -> None:
    path.parent.mkdir()
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE photos (id)")
    other.close()
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="another program"):
        open_database(path)
    assert path.read_bytes() == before


def test_a_file_that_is_no_database_is_named(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"RIFF" * 1000)
    with pytest.raises(ConfigError, match="not a job log or is damaged"):
        open_database(path)
    with pytest.raises(ConfigError):
        connect_readonly(path)


def test_reading_before_there_is_a_log_says_what_creates_it(path: Path) -> None:
    with pytest.raises(ConfigError, match="dropscribe run"):
        connect_readonly(path)
    assert not path.parent.exists()


def test_a_read_connection_cannot_write(path: Path) -> None:
    open_database(path).close()
    conn = connect_readonly(path)
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        conn.execute("UPDATE service SET paused = 1")
    conn.close()


def test_names_that_are_hard_to_quote_open_for_writing_and_reading(tmp_path: Path) -> None:
    for name in ("a%41?b#c.db", "two words 'quoted'.db", "日本.db", os.fsdecode(b"caf\xe9.db")):
        try:
            open_database(tmp_path / name).close()
        except OutputUnwritable:
            assert sys.platform == "darwin"  # file systems there take UTF-8 only
            continue
        conn = connect_readonly(tmp_path / name)
        assert conn.execute("SELECT count(*) FROM service").fetchone()[0] == 1
        conn.close()


def test_sqlite_without_strict_tables_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 36, 0))
    with pytest.raises(ConfigError, match=r"too old.*3\.37"):
        open_database(path)


OPEN = """
import sys
from dropscribe.jobs.database import open_database, transaction
print("ready", flush=True)
kept = []
for line in sys.stdin:
    db = open_database(line.strip())
    with transaction(db):
        db.execute("INSERT INTO roots (path) VALUES (?)", (sys.argv[1],))
    print(db.rows("PRAGMA journal_mode")[0][0], flush=True)
    kept.append(db)
"""


@pytest.mark.slow
def test_four_processes_may_start_on_a_new_log_at_the_same_instant(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        command = [sys.executable, "-c", OPEN]
        children = [
            stack.enter_context(
                subprocess.Popen([*command, f"/{n}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            for n in range(4)
        ]
        assert [child.stdout.readline() for child in children] == ["ready\n"] * 4
        for round_ in range(20):
            path = tmp_path / f"{round_}" / "jobs.db"
            for child in children:
                child.stdin.write(f"{path}\n")
                child.stdin.flush()
            assert [child.stdout.readline() for child in children] == ["wal\n"] * 4, round_
            conn = connect_readonly(path)
            assert conn.execute("SELECT count(*) FROM roots").fetchone()[0] == 4
            conn.close()
        for child in children:
            child.stdin.close()
            assert child.wait(60) == 0


def test_a_transaction_lands_whole_or_not_at_all(path: Path) -> None:
    db = open_database(path)

    def work() -> None:
        with transaction(db):
            db.execute("UPDATE service SET problem = 'x'")
            with transaction(db):  # joins: its end commits nothing
                db.execute("UPDATE service SET pid = 1")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert tuple(db.rows("SELECT pid, problem FROM service")[0]) == (None, None)
    assert not db.conn.in_transaction
    db.close()


def test_threads_that_share_a_connection_do_not_mix_their_transactions(path: Path) -> None:
    db = open_database(path)
    errors: list[Exception] = []

    def work(name: str) -> None:
        try:
            for n in range(20):
                with transaction(db):
                    db.execute("INSERT INTO roots (path) VALUES (?)", (f"/{name}/{n}",))
                    assert len(db.rows("SELECT 1 FROM roots WHERE path LIKE ?", (f"/{name}/%",))) == n + 1
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert db.rows("SELECT count(*) FROM roots")[0][0] == 60
    db.close()


@pytest.mark.parametrize("how", ["deleted", "replaced"])
def test_a_deleted_or_replaced_file_is_noticed_and_not_written_to(path: Path, how: str) -> None:
    db = open_database(path)
    path.rename(path.with_name("old.db"))
    if how == "replaced":
        open_database(path).close()
    with pytest.raises(DatabaseReplaced, match="nothing more is written"), transaction(db):
        pytest.fail("the body must not run")
    assert not db.conn.in_transaction
    with pytest.raises(DatabaseReplaced):
        checkpoint(db)
    db.close()


HOLD = """
import sys
from dropscribe.jobs.database import open_database, transaction
db = open_database(sys.argv[1])
with transaction(db):
    db.execute("INSERT INTO roots (path) VALUES ('/old')")
print("held", flush=True)
sys.stdin.readline()
db.close()
"""


def roots_of(db: database.Database) -> list[str]:
    return [row["path"] for row in db.rows("SELECT path FROM roots ORDER BY path")]


def write_roots(path: Path, *names: str) -> database.Database:
    db = open_database(path)
    for name in names:
        with transaction(db):
            db.execute("INSERT INTO roots (path) VALUES (?)", (name,))
    return db


def test_a_log_put_in_the_place_of_an_open_one_does_not_get_the_changes_of_that(path: Path) -> None:
    write_roots(path.with_name("backup.db"), *(f"/backup-{n}" for n in range(300))).close()
    old = write_roots(path, "/old")  # in the write-ahead log, which stays when the file is replaced
    path.with_name("backup.db").replace(path)
    with pytest.raises(DatabaseReplaced), transaction(old):
        pass
    new = open_database(path)
    assert roots_of(new) == sorted(f"/backup-{n}" for n in range(300))
    with transaction(new):
        new.execute("INSERT INTO roots (path) VALUES ('/new')")
    old.close()
    assert "/new" in roots_of(new)
    assert new.rows("PRAGMA integrity_check")[0][0] == "ok"
    new.close()
    again = open_database(path)
    assert len(roots_of(again)) == 301
    again.close()


def test_a_log_that_is_put_back_with_its_write_ahead_log_keeps_both(path: Path) -> None:
    old = write_roots(path, "/old")
    saved = [path.with_name(f"saved{suffix}") for suffix in ("", "-wal")]
    for suffix, copy in zip(("", "-wal"), saved, strict=True):
        copy.write_bytes(Path(f"{path}{suffix}").read_bytes())
    old.close()
    for suffix, copy in zip(("", "-wal"), saved, strict=True):
        copy.replace(f"{path}{suffix}")
    new = open_database(path)
    assert roots_of(new) == ["/old"]
    new.close()


def test_what_a_killed_process_left_in_the_write_ahead_log_is_kept(path: Path) -> None:
    child = """
import os, sys
from dropscribe.jobs.database import open_database
db = open_database(sys.argv[1])
db.execute("INSERT INTO roots (path) VALUES ('/killed')")
os.kill(os.getpid(), 9)
"""
    subprocess.run([sys.executable, "-c", child, str(path)], check=False, timeout=60)
    assert Path(f"{path}-wal").stat().st_size > 0
    db = open_database(path)
    assert roots_of(db) == ["/killed"]
    db.close()


def test_a_new_log_is_sound_while_another_process_still_holds_the_deleted_one(path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout.readline() == "held\n"
    path.unlink()
    db = open_database(path)
    with transaction(db):
        db.execute("INSERT INTO roots (path) VALUES ('/new')")
    holder.communicate("\n", timeout=30)
    with transaction(db):
        db.execute("INSERT INTO roots (path) VALUES ('/newer')")
    db.close()
    conn = connect_readonly(path)
    assert [row["path"] for row in conn.execute("SELECT path FROM roots ORDER BY id")] == ["/new", "/newer"]
    assert conn.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    conn.close()


def test_a_log_locked_by_another_program_is_busy_and_free_again_afterwards(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.05)
    db = open_database(path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(DatabaseBusy, match="another program"), transaction(db):
        pytest.fail("the body must not run")
    other.execute("COMMIT")
    with transaction(db):
        db.execute("UPDATE service SET pid = 7")
    other.close()
    db.close()


def test_a_full_disk_is_said_and_leaves_the_log_usable(path: Path) -> None:
    db = open_database(path)
    pages = db.rows("PRAGMA page_count")[0][0]
    db.rows(f"PRAGMA max_page_count = {pages + 2}")

    def fill() -> None:
        with transaction(db):
            for n in range(1000):
                db.execute("INSERT INTO roots (path) VALUES (?)", (f"/{n}" * 100,))

    with pytest.raises(DiskFull, match="free some"):
        fill()
    db.rows(f"PRAGMA max_page_count = {pages + 1000}")
    with transaction(db):
        db.execute("INSERT INTO roots (path) VALUES ('/a')")
    assert db.rows("SELECT count(*) FROM roots")[0][0] == 1
    db.close()


def test_a_read_only_log_is_said(path: Path) -> None:
    open_database(path).close()
    error = sqlite3.OperationalError("attempt to write a readonly database")
    error.sqlite_errorcode = sqlite3.SQLITE_READONLY
    assert isinstance(translate(error, path), OutputUnwritable)
    error.sqlite_errorcode = sqlite3.SQLITE_READONLY_DBMOVED
    assert isinstance(translate(error, path), DatabaseReplaced)
    error.sqlite_errorcode = sqlite3.SQLITE_ERROR
    assert translate(error, path) is None


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputUnwritable, match="folder"):
        open_database(tmp_path / "file" / "sub" / "jobs.db")


def test_a_checkpoint_empties_the_write_ahead_log_and_waits_for_no_reader(path: Path) -> None:
    db = open_database(path, checkpoints=True)
    with transaction(db):
        db.execute("UPDATE service SET pid = 1")
    reader = connect_readonly(path)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM service").fetchall()
    with transaction(db):
        db.execute("UPDATE service SET pid = 2")
    assert not checkpoint(db)
    reader.close()
    assert checkpoint(db)
    assert path.with_name("jobs.db-wal").stat().st_size == 0
    assert pragma(db, "busy_timeout") >= 10_000
    db.close()


def test_reading_loads_neither_sqlite_utils_nor_anything_heavy(path: Path) -> None:
    open_database(path).close()
    code = """
import json, sys
from dropscribe.jobs import statistics
from dropscribe.jobs.database import connect_readonly, open_database
statistics.statistics(connect_readonly(sys.argv[1]))
open_database(sys.argv[1]).close()  # nothing to migrate
print(json.dumps(sorted(sys.modules)))
"""
    said = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True).stdout
    heavy = {"sqlite_utils", "numpy", "mlx", "mlx_audio", "transformers", "scipy", "av", "soundfile", "pydantic"}
    assert heavy & set(json.loads(said)) == set()
