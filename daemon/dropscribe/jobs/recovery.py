"""Recovery: what becomes of jobs whose holder died, and what their owner asks for by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from dropscribe.jobs.database import transaction
from dropscribe.jobs.records import Recovered
from dropscribe.jobs.retries import storable
from dropscribe.jobs.writer import Writer, assignments

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable

Cause = Literal["crash", "shutdown", "supervisor_died"]

_SERVICE = ("pid", "worker_pid", "started_at", "paused", "problem")


class Recovery(Writer):
    """After a death; by hand; and the service row."""

    def recover(
        self,
        dead_claims: Iterable[str] | None = None,
        *,
        cause: Cause,
        error_kind: str = "worker_crashed",
        error: str = "the worker died while it held only this file",
    ) -> Recovered:
        """Take back what dead claims hold (None: every claim there is) and close their batches with ``cause``.

        Only ``crash`` costs anything: every held job becomes a suspect, and one that was held alone has one more crash,
        for which ``error_kind`` and ``error`` stand; at the cap it is quarantined.
        """
        requeued: list[int] = []
        quarantined: list[int] = []
        superseded: list[int] = []
        with transaction(self.db):
            claims = self._dead(dead_claims)
            for claim_id in claims:
                held = self.db.rows("SELECT id, crashes FROM jobs WHERE claim_id = ? ORDER BY id", (claim_id,))
                for row in held:
                    if cause == "crash" and self._crashed(row, lone=len(held) == 1, kind=error_kind, error=error):
                        quarantined.append(row["id"])
                    else:
                        ended = requeued if self._requeue(row["id"]) == "queued" else superseded
                        ended.append(row["id"])
                self.db.execute(
                    "UPDATE batches SET finished_at = ?, outcome = ? WHERE claim_id = ? AND finished_at IS NULL",
                    (self._time(), cause, claim_id),
                )
        return Recovered(tuple(requeued), tuple(quarantined), tuple(superseded))

    def _dead(self, claims: Iterable[str] | None) -> list[str]:
        if claims is not None:
            return sorted(set(claims))
        rows = self.db.rows(
            """
            SELECT claim_id FROM jobs WHERE claim_id IS NOT NULL
            UNION SELECT claim_id FROM batches WHERE finished_at IS NULL
            """
        )
        return [row["claim_id"] for row in rows]

    def _crashed(self, row: sqlite3.Row, *, lone: bool, kind: str, error: str) -> bool:
        """Note a crash on a held job; True when that put it into quarantine."""
        self.db.execute("UPDATE jobs SET suspect = 1 WHERE id = ?", (row["id"],))
        if not lone:
            return False
        self.db.execute(
            "UPDATE jobs SET crashes = crashes + 1, attempts = attempts + 1, error_kind = ?, error = ? WHERE id = ?",
            (kind, error, row["id"]),
        )
        if self.crash_cap is None or row["crashes"] + 1 < self.crash_cap:
            return False
        advice = f"{error}, {row['crashes'] + 1} times; `dropscribe jobs retry {row['id']}` tries again"
        self._finish(row["id"], "quarantined", kind, advice)
        return True

    def retry(self, ids: Iterable[int]) -> list[int]:
        """Queue finished jobs again as if new, and waiting ones at once. Returns those that are queued now.

        What a done one said, its text, segments and transcripts, stays until there is something new in its place.
        Left alone: running jobs, and any for whose path there is a newer job.
        """
        retried = []
        with transaction(self.db):
            for job_id in dict.fromkeys(ids):
                cursor = self.db.execute(
                    """
                    UPDATE jobs SET state = 'queued', attempts = 0, crashes = 0, suspect = 0, not_before = NULL,
                      queued_at = iif(state = 'queued', queued_at, :now), started_at = NULL, finished_at = NULL,
                      error_kind = NULL, error = NULL
                    WHERE id = :id AND state <> 'running'
                      AND NOT EXISTS (SELECT 1 FROM jobs o WHERE o.path_raw = jobs.path_raw AND (o.id > jobs.id
                        OR o.id <> jobs.id AND o.state IN ('queued', 'running')))
                    """,
                    {"id": job_id, "now": self._time()},
                )
                if cursor.rowcount:
                    retried.append(job_id)
        return retried

    def cancel(self, ids: Iterable[int]) -> list[int]:
        """End live jobs as ``skipped`` / ``cancelled``; whoever runs one loses its claim. Returns those that ended.

        One that has a transcript from before it was queued again is ``done`` with that, as it was.
        """
        cancelled = []
        with transaction(self.db):
            for job_id in dict.fromkeys(ids):
                live = self.db.rows(
                    "SELECT text IS NOT NULL FROM jobs WHERE id = ? AND state IN ('queued', 'running')", (job_id,)
                )
                if not live:
                    continue
                if live[0][0]:
                    self._done_as_before(job_id)
                else:
                    self._finish(job_id, "skipped", "cancelled", "cancelled by hand; `dropscribe jobs retry` undoes it")
                cancelled.append(job_id)
        return cancelled

    def _done_as_before(self, job_id: int) -> None:
        """A job that was queued again is what it was: text and outputs are there; what was begun anew goes."""
        self.db.execute(
            """
            UPDATE jobs SET state = 'done', claim_id = NULL, not_before = NULL, started_at = NULL, suspect = 0,
              finished_at = coalesce((SELECT max(written_at) FROM outputs WHERE job_id = :id), :at),
              error_kind = NULL, error = NULL
            WHERE id = :id
            """,
            {"id": job_id, "at": self._time()},
        )
        self.db.execute(
            """
            DELETE FROM segments WHERE job_id = :id AND EXISTS (
              SELECT 1 FROM jobs WHERE id = :id AND (reused_from IS NOT NULL OR params_key IS NOT segments.params_key))
              AND NOT EXISTS (SELECT 1 FROM jobs o WHERE o.reused_from = :id AND o.params_key = segments.params_key)
            """,
            {"id": job_id},
        )

    def set_service(self, **fields: Any) -> None:
        """Update the service row: pid, worker_pid, started_at, paused, problem."""
        unknown = set(fields) - set(_SERVICE)
        if unknown:
            raise ValueError(f"no such columns: {', '.join(sorted(unknown))}; known are {', '.join(_SERVICE)}")
        if not fields:
            return
        values = {name: storable(value) if isinstance(value, str) else value for name, value in fields.items()}
        with transaction(self.db):
            self.db.execute(f"UPDATE service SET {assignments(values)} WHERE id = 1", values)  # noqa: S608 - names are checked

    def service(self) -> dict[str, Any]:
        """The service row."""
        row = self.db.rows("SELECT pid, worker_pid, started_at, paused, problem FROM service")[0]
        return {**dict(row), "paused": bool(row["paused"])}
