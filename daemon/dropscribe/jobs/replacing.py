"""A new transcript in place of an old one, without the queue: the job is held only while the files change places."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dropscribe.jobs.database import transaction
from dropscribe.jobs.records import FINISHED, Job
from dropscribe.jobs.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Mapping

_KEPT = ("state", "started_at", "finished_at", "suspect")  # what ``take`` changes


class Replacing(Writer):
    """For a foreground run; the daemon may be at work on other jobs meanwhile."""

    def take(self, job_id: int, claim_id: str) -> tuple[Job, Mapping[str, object]] | None:
        """Hold a finished job; with it what to give ``put_back``. None if it is live, or not the newest of its path."""
        with transaction(self.db):
            rows = self.db.rows(
                """
                SELECT * FROM jobs WHERE id = ? AND finished_at IS NOT NULL
                  AND NOT EXISTS (SELECT 1 FROM jobs o WHERE o.path_raw = jobs.path_raw AND (o.id > jobs.id
                    OR o.id <> jobs.id AND o.state IN ('queued', 'running')))
                """,
                (job_id,),
            )
            if not rows:
                return None
            row = dict(rows[0])
            self.db.execute(
                "UPDATE jobs SET state = 'running', claim_id = ?, started_at = ?, finished_at = NULL WHERE id = ?",
                (claim_id, self._time(), job_id),
            )
        names = [name for name in Job.__dataclass_fields__ if name != "claim_id"]
        job = Job(**{**{name: row[name] for name in names}, "suspect": bool(row["suspect"])}, claim_id=claim_id)
        return job, {name: row[name] for name in _KEPT}

    def put_back(self, job: Job, before: Mapping[str, object], params_key: str) -> None:
        """Let go of it as it was; segments under ``params_key``, unless those count, go. Nothing if it is not held."""
        assert before["state"] in FINISHED  # noqa: S101 - ``take`` takes no other
        with transaction(self.db):
            changed = self.db.execute(
                """
                UPDATE jobs SET state = :state, claim_id = NULL, started_at = :started_at, finished_at = :finished_at,
                  suspect = :suspect WHERE id = :id AND claim_id = :claim
                """,
                {**before, "id": job.id, "claim": job.claim_id},
            )
            if changed.rowcount:
                self.db.execute(
                    """
                    DELETE FROM segments WHERE job_id = :id AND params_key = :key
                      AND params_key IS NOT (SELECT params_key FROM jobs WHERE id = :id)
                    """,
                    {"id": job.id, "key": params_key},
                )
