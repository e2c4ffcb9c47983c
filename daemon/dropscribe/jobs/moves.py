"""The ``moves`` table: originals on their way to ``move_done_to``. Nothing here touches a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dropscribe.jobs.database import transaction
from dropscribe.jobs.records import iso, printable, utcnow
from dropscribe.jobs.retries import storable

if TYPE_CHECKING:
    from dropscribe.jobs.database import Database


@dataclass(frozen=True)
class Done:
    """A done job whose original is still where it was dropped."""

    job_id: int
    path: bytes
    size_bytes: int
    mtime_ns: int
    content_hash: str


@dataclass(frozen=True)
class Move:
    """One original under way. The signature and hash are those of what was transcribed."""

    job_id: int
    source: bytes
    hidden: bytes
    target: bytes
    size_bytes: int
    mtime_ns: int
    content_hash: str


def ready(db: Database, root_id: int, prefix: bytes, *, since: str = "") -> list[Done]:
    """Done jobs without a warning whose newest content is still below ``prefix`` (which ends in a slash).

    ``since``: only those that ended at that time (UTC) or later.
    """
    rows = db.rows(
        """
        SELECT id, path_raw, size_bytes, mtime_ns, content_hash FROM jobs j INDEXED BY jobs_by_state
        WHERE root_id = ? AND path_raw > ? AND path_raw < ? AND state = 'done' AND finished_at >= ?
          AND content_hash IS NOT NULL
          AND warnings = '[]' AND NOT EXISTS (SELECT 1 FROM moves WHERE job_id = j.id)
          AND NOT EXISTS (SELECT 1 FROM jobs n WHERE n.path_raw = j.path_raw AND n.id > j.id)
        ORDER BY id
        """,
        (root_id, prefix, prefix[:-1] + b"0", since),  # "0" comes after "/"
    )
    return [Done(*row) for row in rows]


def under_way(db: Database) -> list[Move]:
    """Every move that was begun, oldest first."""
    rows = db.rows(
        """
        SELECT m.job_id, source_raw, hidden_raw, target_raw, size_bytes, mtime_ns, content_hash
        FROM moves m JOIN jobs j ON j.id = m.job_id ORDER BY m.job_id
        """
    )
    return [Move(*row) for row in rows]


def begin(db: Database, done: Done, hidden: bytes, target: bytes) -> Move | None:
    """Commit to a move before anything is touched; None if the job is not done any more."""
    with transaction(db):
        begun = db.execute(
            """
            INSERT INTO moves (job_id, source_raw, hidden_raw, target_raw, created_at)
            SELECT id, path_raw, ?, ?, ? FROM jobs WHERE id = ? AND path_raw = ? AND state = 'done'
            """,
            (hidden, target, iso(utcnow()), done.job_id, done.path),
        )
    if not begun.rowcount:
        return None
    return Move(done.job_id, done.path, hidden, target, done.size_bytes, done.mtime_ns, done.content_hash)


def arrived(db: Database, move: Move) -> None:
    """The original is at its target: the job says so."""
    with transaction(db):
        db.execute(
            "UPDATE jobs SET path_raw = ?, path = ? WHERE id = ?", (move.target, printable(move.target), move.job_id)
        )
        db.execute("DELETE FROM moves WHERE job_id = ?", (move.job_id,))


def give_up(db: Database, move: Move) -> None:
    """The original stays, or is back, where it was."""
    with transaction(db):
        db.execute("DELETE FROM moves WHERE job_id = ?", (move.job_id,))


def note_error(db: Database, move: Move, error: str) -> None:
    """Why it is still under way."""
    with transaction(db):
        db.execute("UPDATE moves SET error = ? WHERE job_id = ?", (storable(error), move.job_id))
