"""The ``outputs`` table: which files on disk are ours. Nothing here touches a file.

A row is a *reservation* while ``sha256`` is NULL: the name is picked, the file not committed yet. ``next_sha256`` is
what is being written; it is NULL again once the row and the disk agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from dropscribe.errors import ClaimLost

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dropscribe.jobs.database import Database

_COLUMNS = "o.job_id, o.format, o.path_raw, o.sha256, o.next_sha256, j.state IN ('queued', 'running')"


class Claimed(Protocol):
    """What the fence needs to know of a claimed job."""

    @property
    def id(self) -> int:
        """The row in ``jobs``."""

    @property
    def claim_id(self) -> str:
        """The claim it runs under."""


@dataclass(frozen=True)
class Output:
    """One row: a path that is ours as long as the file's hash is one of the two."""

    job_id: int
    format: str
    path_raw: bytes
    sha256: str | None
    next_sha256: str | None
    pending: bool  # its job is queued or running

    def owns(self, sha256: str) -> bool:
        """Whether a file of this hash at this path was written by us."""
        return sha256 in (self.sha256, self.next_sha256)

    @property
    def reserved(self) -> bool:
        """Only a name so far: an empty file there is ours, another only if it is the one being written."""
        return self.sha256 is None

    @property
    def abandoned(self) -> bool:
        """A name reserved by a job that ended without taking it."""
        return self.reserved and not self.pending


def of_source(db: Database, source: bytes) -> list[Output]:
    """All outputs of every job a source path ever had, those of the newest job first."""
    return _rows(db, "WHERE j.path_raw = ? ORDER BY o.job_id DESC, o.rowid DESC", source)


def of_job(db: Database, job_id: int) -> list[Output]:
    """The outputs of one job, in the order they were reserved."""
    return _rows(db, "WHERE o.job_id = ? ORDER BY o.rowid", job_id)


def at_path(db: Database, path: bytes) -> Output | None:
    """The row of a path, whichever source it belongs to."""
    rows = _rows(db, "WHERE o.path_raw = ?", path)
    return rows[0] if rows else None


def live_claims(db: Database) -> set[str]:
    """The claims under which a job is running now."""
    return {row[0] for row in db.rows("SELECT DISTINCT claim_id FROM jobs WHERE claim_id IS NOT NULL")}


def hold(db: Database, job: Claimed) -> None:
    """The fence, inside a transaction: ``ClaimLost`` unless the job still runs under this claim."""
    if not db.rows("SELECT 1 FROM jobs WHERE id = ? AND claim_id = ? AND state = 'running'", [job.id, job.claim_id]):
        raise ClaimLost(
            f"job {job.id} is no longer held by claim {job.claim_id}; whoever holds it now writes its result"
        )


def reserve(
    db: Database, job: Claimed, output_format: str, path: bytes, *, on_disk: str | None, next_sha256: str
) -> None:
    """Note what is about to be written to ``path``, inside a fenced transaction.

    ``on_disk`` is the hash of the file of ours that is there now, None for no file or an empty one. It becomes
    ``sha256``: a file left by an attempt that died is known by *its* hash, which the next attempt's would displace. A
    row that stands for a finished job's file stays with that job until the new one is committed.
    """
    db.execute(
        """
        INSERT INTO outputs (job_id, format, path_raw, sha256, next_sha256) VALUES (:job, :format, :path, :disk, :next)
        ON CONFLICT (path_raw) DO UPDATE SET
          job_id = iif(:disk IS NULL, :job, job_id), format = :format, sha256 = :disk, next_sha256 = :next
        """,
        {"job": job.id, "format": output_format, "path": path, "disk": on_disk, "next": next_sha256},
    )


def commit(db: Database, job: Claimed, output_format: str, path: bytes, *, sha256: str, at: str) -> None:
    """The file at ``path`` is whole and belongs to ``job``, inside a fenced transaction."""
    db.execute(
        """
        INSERT INTO outputs (job_id, format, path_raw, sha256, written_at) VALUES (:job, :format, :path, :sha256, :at)
        ON CONFLICT (path_raw) DO UPDATE SET
          job_id = :job, format = :format, sha256 = :sha256, next_sha256 = NULL, written_at = :at
        """,
        {"job": job.id, "format": output_format, "path": path, "sha256": sha256, "at": at},
    )


def drop(db: Database, paths: Iterable[bytes]) -> None:
    """Forget rows, inside a fenced transaction: what is at these paths, if anything, is not ours any more."""
    for path in paths:
        db.execute("DELETE FROM outputs WHERE path_raw = ?", [path])


def release(db: Database, job: Claimed, path: bytes, *, next_sha256: str) -> None:
    """Give a reservation of this attempt back, unless somebody else runs the job now and may have taken it over."""
    db.execute(
        """
        DELETE FROM outputs WHERE path_raw = :path AND job_id = :job AND sha256 IS NULL AND next_sha256 = :next
          AND NOT EXISTS (SELECT 1 FROM jobs WHERE id = :job AND state = 'running' AND claim_id IS NOT :claim)
        """,
        {"path": path, "job": job.id, "next": next_sha256, "claim": job.claim_id},
    )


def _rows(db: Database, where: str, value: bytes | int) -> list[Output]:
    query = f"SELECT {_COLUMNS} FROM outputs o JOIN jobs j ON j.id = o.job_id {where}"  # noqa: S608 - constants of this file
    return [
        Output(job_id, output_format, path, sha256, next_sha256, bool(pending))
        for job_id, output_format, path, sha256, next_sha256, pending in db.rows(query, [value])
    ]
