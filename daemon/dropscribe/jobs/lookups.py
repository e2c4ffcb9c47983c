"""What the watcher asks the job log. Each question is answered from an index, never from the whole table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dropscribe.jobs.records import KnownFile

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

    from dropscribe.jobs.database import Database

CHUNK = 500  # names in one question

_COLUMNS = "state, size_bytes, mtime_ns, content_hash, claim_id, error_kind"
# A row of history says nothing about where the file is: only the newest of its path does, and not one whose content
# was replaced.
_NEWEST = """NOT EXISTS (SELECT 1 FROM jobs n WHERE n.path_raw = j.path_raw AND n.id > j.id)
  AND j.error_kind IS NOT 'superseded'"""


def newest(db: Database, paths: Sequence[bytes]) -> dict[bytes, KnownFile]:
    """The newest row of each path that has one."""
    found = {}
    for start in range(0, len(paths), CHUNK):
        some = paths[start : start + CHUNK]
        # with max() SQLite takes the other columns from the row that has it
        rows = db.rows(
            f"SELECT path_raw, max(id), {_COLUMNS} FROM jobs WHERE path_raw IN ({', '.join('?' * len(some))}) "  # noqa: S608
            "GROUP BY path_raw",
            some,
        )
        found.update({path: KnownFile(*columns) for path, *columns in rows})
    return found


def is_empty(db: Database) -> bool:
    """No job yet at all."""
    return not db.rows("SELECT 1 FROM jobs LIMIT 1")


def queued(db: Database, root_id: int) -> sqlite3.Cursor:
    """Id and path_raw of every queued job of a root."""
    # the plus keeps SQLite from walking all jobs of the root instead of all that are queued
    return db.execute("SELECT id, path_raw FROM jobs WHERE state = 'queued' AND +root_id = ?", (root_id,))


def any_queued(db: Database, root_id: int) -> bool:
    """Whether a root has queued jobs."""
    return bool(db.rows("SELECT 1 FROM jobs WHERE state = 'queued' AND +root_id = ? LIMIT 1", (root_id,)))


def queued_at(db: Database, path: bytes) -> bool:
    """Whether there is a queued job at a path or below it."""
    return bool(
        db.rows(
            "SELECT 1 FROM jobs WHERE state = 'queued' AND path_raw = ? UNION ALL "
            "SELECT 1 FROM jobs INDEXED BY jobs_one_queued WHERE state = 'queued' AND path_raw > ? AND path_raw < ? "
            "LIMIT 1",
            (path, path + b"/", path + b"0"),  # "0" comes after "/"
        )
    )


def same_signature(db: Database, size_bytes: int, mtime_ns: int, *, limit: int = 50) -> list[sqlite3.Row]:
    """Jobs (id, path_raw, state) whose file had this size and time when it was last seen."""
    return db.rows(
        f"SELECT id, path_raw, state FROM jobs j WHERE size_bytes = ? AND mtime_ns = ? AND {_NEWEST} LIMIT ?",  # noqa: S608
        (size_bytes, mtime_ns, limit),
    )


def any_unfinished_content(db: Database) -> bool:
    """Whether ``unfinished_of_size`` could find anything."""
    return bool(
        db.rows(
            "SELECT 1 FROM jobs INDEXED BY jobs_unfinished_by_size WHERE content_hash IS NOT NULL "
            "AND state IN ('queued', 'running', 'missing') LIMIT 1"
        )
    )


def unfinished_of_size(db: Database, size_bytes: int, *, limit: int = 50) -> list[sqlite3.Row]:
    """Jobs (id, path_raw, state, content_hash) of known content and this size that wait, run, or went missing."""
    return db.rows(
        f"SELECT id, path_raw, state, content_hash FROM jobs j WHERE size_bytes = ? AND content_hash IS NOT NULL "  # noqa: S608
        f"AND state IN ('queued', 'running', 'missing') AND {_NEWEST} LIMIT ?",
        (size_bytes, limit),
    )


def census(db: Database) -> tuple[int, int]:
    """How many rows there are, and how many of them are ``missing``."""
    row = db.rows("SELECT (SELECT count(*) FROM jobs), (SELECT count(*) FROM jobs WHERE state = 'missing')")[0]
    return row[0], row[1]
