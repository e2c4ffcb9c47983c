"""What all writing parts of the queue share: the clock, the fence, and the way back into the queue."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from dropscribe.errors import ClaimLost
from dropscribe.jobs.records import iso, utcnow
from dropscribe.jobs.retries import CRASH_CAP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import datetime

    from dropscribe.jobs.database import Database
    from dropscribe.jobs.records import Job, SegmentRow


class Writer:
    """Base of the parts of ``Queue``. ``now`` is the clock; ``crash_cap`` None never quarantines."""

    def __init__(
        self, db: Database, now: Callable[[], datetime] = utcnow, *, crash_cap: int | None = CRASH_CAP
    ) -> None:
        self.db = db
        self.now = now
        self.crash_cap = crash_cap

    def _time(self) -> str:
        return iso(self.now())

    def _hold(self, job: Job) -> None:
        """The fence, inside a transaction: ``ClaimLost`` unless ``job`` still runs under its claim."""
        held = self.db.rows(
            "SELECT 1 FROM jobs WHERE id = ? AND claim_id = ? AND state = 'running'", (job.id, job.claim_id)
        )
        if not held:
            raise ClaimLost(
                f"job {job.id} ({job.path}) no longer belongs to claim {job.claim_id}; its result is dropped"
            )

    def _requeue(
        self,
        job_id: int,
        *,
        not_before: str | None = None,
        queued_at: str | None = None,
        error: tuple[str, str] | None = None,
        attempts: int = 0,
    ) -> str:
        """A running job back to ``queued``, inside a transaction; ``attempts`` are added. Returns its state now.

        When a newer job waits for the same path, that one has superseded this.
        """
        waiting = self.db.rows(
            """
            SELECT 1 FROM jobs q JOIN jobs j ON q.path_raw = j.path_raw
            WHERE j.id = ? AND q.id <> j.id AND q.state = 'queued'
            """,
            (job_id,),
        )
        if waiting:
            self._supersede(job_id)
            return "skipped"
        kind, message = error or (None, None)
        self.db.execute(
            """
            UPDATE jobs SET state = 'queued', claim_id = NULL, started_at = NULL, not_before = :not_before,
              queued_at = coalesce(:queued_at, queued_at), attempts = attempts + :attempts,
              error_kind = coalesce(:kind, error_kind), error = coalesce(:message, error)
            WHERE id = :id
            """,
            {
                "id": job_id,
                "not_before": not_before,
                "queued_at": queued_at,
                "attempts": attempts,
                "kind": kind,
                "message": message,
            },
        )
        return "queued"

    def _supersede(self, job_id: int) -> None:
        """A live job whose content is no longer at its path; its partial segments are of no use to anybody.

        Those of a transcript it had before stay with it.
        """
        self._finish(job_id, "skipped", "superseded", "the file changed before this content was transcribed")
        self.db.execute(
            """
            DELETE FROM segments WHERE job_id = :id AND params_key IS NOT (
              SELECT params_key FROM jobs WHERE id = :id AND text IS NOT NULL)
            """,
            {"id": job_id},
        )

    def _insert_segments(self, job_id: int, params_key: str, rows: Iterable[SegmentRow]) -> None:
        """Inside a transaction."""
        for row in rows:
            pauses = None if row.pauses is None else json.dumps(row.pauses, separators=(",", ":"))
            self.db.execute(
                """
                INSERT INTO segments (job_id, params_key, start_ms, end_ms, text, language, tokens, finish_reason,
                  pauses)
                VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
                """,
                (job_id, params_key, row.start_ms, row.end_ms, row.text, row.language, row.tokens, row.finish_reason,
                 pauses),
            )  # fmt: skip

    def _finish(self, job_id: int, state: str, kind: str, message: str, *, attempts: int = 0) -> None:
        """End a live job without a transcript, inside a transaction."""
        self.db.execute(
            """
            UPDATE jobs SET state = :state, claim_id = NULL, not_before = NULL, finished_at = :at,
              attempts = attempts + :attempts, error_kind = :kind, error = :message
            WHERE id = :id
            """,
            {"id": job_id, "state": state, "at": self._time(), "attempts": attempts, "kind": kind, "message": message},
        )


def assignments(columns: Iterable[str]) -> str:
    """``SET`` list with a named parameter for each column; the names must be checked by the caller."""
    return ", ".join(f"{name} = :{name}" for name in columns)
