"""Claims: what the worker takes, keeps and gives back. Every write to a job, its segments and outputs is fenced."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from dropscribe.errors import ClaimLost, DatabaseBusy, DatabaseReplaced, SchemaTooNew
from dropscribe.jobs.database import transaction
from dropscribe.jobs.records import Job, SegmentRow, iso, parse_iso, pauses_from
from dropscribe.jobs.retries import verdict
from dropscribe.jobs.writer import Writer, assignments

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

# Whom the clock and the other rows allow to start now. What lies on a disk that is away is waited for, not "missing".
_DUE = """state = 'queued' AND (not_before IS NULL OR not_before <= :now)
  AND root_id NOT IN (SELECT id FROM roots WHERE state <> 'ok')
  AND NOT EXISTS (SELECT 1 FROM jobs r WHERE r.state = 'running' AND r.path_raw = jobs.path_raw)"""

_ANY_DUE = f"SELECT 1 FROM jobs WHERE {_DUE} LIMIT 1"  # noqa: S608 - constants of this file
_OTHERS_DUE = f"SELECT 1 FROM jobs WHERE {_DUE} AND suspect = 0 LIMIT 1"  # noqa: S608

# `place` is 1 for a suspect only if nobody else is due: suspects stand behind all others, and only the first may go.
_CLAIM = f"""
UPDATE jobs SET state = 'running', claim_id = :claim, started_at = :now, not_before = NULL
WHERE id IN (
  SELECT id FROM (
    SELECT id, suspect, row_number() OVER (ORDER BY suspect, priority DESC, queued_at, id) AS place FROM (
      SELECT id, suspect, priority, queued_at FROM jobs WHERE {_DUE}
      ORDER BY suspect, priority DESC, queued_at, id LIMIT :limit))
  WHERE suspect = 0 OR place = 1)
RETURNING id, root_id, path, path_raw, size_bytes, mtime_ns, content_hash, attempts, suspect, crashes, priority,
  queued_at, claim_id, error_kind"""  # noqa: S608 - constants of this file

_STILL_DONE = "SELECT 1 FROM jobs WHERE id = ? AND params_key = ? AND state = 'done' AND text IS NOT NULL"

_TIMINGS = (
    "read_s", "feature_s", "encode_s", "prefill_s", "decode_s", "prompt_tokens", "generated_tokens",
    "duration", "time", "rtf",
)  # fmt: skip
_BATCHES = (
    "decoder", "slots", "model", "device", "rows", "audio_seconds", "feature_s", "encode_s", "prefill_s", "decode_s",
    "wall_s", "steps", "syncs", "prompt_tokens", "generated_tokens", "peak_memory_bytes", "output_digest",
)  # fmt: skip


class Claims(Writer):
    """Claim → media → segments → verdict; batches and timings beside them."""

    def claim(self, claim_id: str, limit: int) -> list[Job]:
        """Take up to ``limit`` due jobs, by priority, then age. A suspect comes alone, when nobody else is due."""
        with transaction(self.db):
            rows = self.db.rows(_CLAIM, {"claim": claim_id, "limit": limit, "now": self._time()})
        jobs = [Job(**{**dict(row), "suspect": bool(row["suspect"])}) for row in rows]
        return sorted(jobs, key=lambda job: (-job.priority, job.queued_at, job.id))

    def due(self) -> bool:
        """Whether a claim would get something now."""
        return bool(self.db.rows(_ANY_DUE, {"now": self._time()}))

    def others_due(self, claim_id: str) -> bool:  # noqa: ARG002 - what a claim holds is running, so never among the queued
        """Whether a long file should give way. Suspects do not count: they come behind all others anyway."""
        return bool(self.db.rows(_OTHERS_DUE, {"now": self._time()}))

    def next_due_at(self) -> datetime | None:
        """When the next queued job may start: now or earlier if one is due, None if none is queued."""
        now = self.now()
        if self.due():
            return now
        row = self.db.rows(
            "SELECT min(not_before) AS at FROM jobs WHERE state = 'queued' AND not_before > ?", (iso(now),)
        )[0]
        return None if row["at"] is None else parse_iso(row["at"])

    def note_media(self, job: Job, *, content_hash: str | None = None, audio_seconds: float | None = None) -> None:
        """What was learnt when the file was opened; None leaves a value as it is. Fenced."""
        with transaction(self.db):
            self._hold(job)
            self.db.execute(
                """
                UPDATE jobs SET content_hash = coalesce(?, content_hash), audio_seconds = coalesce(?, audio_seconds)
                WHERE id = ?
                """,
                (content_hash, audio_seconds, job.id),
            )

    def done_twin(self, content_hash: str, params_key: str) -> int | None:
        """The done job whose segments this content already has under ``params_key``, or None."""
        rows = self.db.rows(
            """
            SELECT id FROM jobs WHERE content_hash = ? AND params_key = ? AND state = 'done' AND reused_from IS NULL
              AND text IS NOT NULL ORDER BY id LIMIT 1
            """,
            (content_hash, params_key),
        )
        return rows[0]["id"] if rows else None

    def hand_back(self, claim_id: str, job_ids: Iterable[int] | None = None, *, behind: bool = False) -> list[int]:
        """Jobs of a claim (all, or those named) back to the queue, at no cost; returns those that are queued again.

        ``behind``: a long file that gives way queues up at the end. Jobs the claim no longer holds are left alone.
        """
        with transaction(self.db):
            held = [
                row["id"] for row in self.db.rows("SELECT id FROM jobs WHERE claim_id = ? ORDER BY id", (claim_id,))
            ]
            wanted = held if job_ids is None else sorted(set(held) & set(job_ids))
            queued_at = self._time() if behind else None
            return [job_id for job_id in wanted if self._requeue(job_id, queued_at=queued_at) == "queued"]

    def fail(self, job: Job, error: BaseException) -> str:
        """End an attempt by the error's own rule (see ``retries``); returns the state the job is in now. Fenced.

        ``ClaimLost``, ``DatabaseReplaced`` and ``SchemaTooNew`` say that this process must not write: raised on.
        """
        if isinstance(error, ClaimLost | DatabaseReplaced | SchemaTooNew):
            raise error
        outcome = verdict(error, job.attempts, job.error_kind)
        with transaction(self.db):
            self._hold(job)
            if outcome.state == "missing" and self._moved(job):
                return self._requeue(job.id)
            if outcome.state != "queued":
                self._finish(job.id, outcome.state, outcome.error_kind, outcome.error, attempts=1)
                return outcome.state
            if not outcome.counts:
                return self._requeue(job.id)
            not_before = iso(self.now() + timedelta(seconds=outcome.wait_seconds))
            return self._requeue(job.id, not_before=not_before, error=(outcome.error_kind, outcome.error), attempts=1)

    def _moved(self, job: Job) -> bool:
        """Whether the file got another name since the claim: it is gone from where it was, and not missing."""
        return bool(self.db.rows("SELECT 1 FROM jobs WHERE id = ? AND path_raw <> ?", (job.id, job.path_raw)))

    def save_segments(self, job: Job, params_key: str, rows: Sequence[SegmentRow]) -> None:
        """Keep finished segments, in place of those of the same key that start inside them. Fenced.

        ``rows`` in order and contiguous: one planned segment, or all parts of its re-cut.
        """
        if not rows:
            return
        start, end = rows[0].start_ms, rows[-1].end_ms
        with transaction(self.db):
            self._hold(job)
            self.db.execute(
                "DELETE FROM segments WHERE job_id = ? AND params_key = ? AND start_ms >= ? AND start_ms < max(?, ?)",
                (job.id, params_key, start, end, start + 1),
            )
            self._insert_segments(job.id, params_key, rows)

    def saved_segments(self, job_id: int, params_key: str) -> list[SegmentRow]:
        """What is finished of a job under ``params_key``, in order."""
        rows = self.db.rows(
            """
            SELECT start_ms, end_ms, text, language, tokens, finish_reason, pauses FROM segments
            WHERE job_id = ? AND params_key = ? ORDER BY start_ms
            """,
            (job_id, params_key),
        )
        return [SegmentRow(**{**dict(row), "pauses": pauses_from(row["pauses"])}) for row in rows]

    def finish_fields(
        self,
        job: Job,
        *,
        text: str,
        language: str | None,
        model: str | None,
        params_key: str,
        audio_seconds: float | None,
        revision: str | None = None,
        batch_id: int | None = None,
        warnings: Sequence[str] = (),
        transcript_path: str | None = None,
        reused_from: int | None = None,
    ) -> None:
        """The job is ``done``; for the last transaction of publishing, which it joins. Fenced.

        Segments of other keys go, unless another job reuses them. With ``reused_from`` its own go: that job's count.
        Raises ``DatabaseBusy`` when that job was pruned or queued again since its segments were read.
        """
        with transaction(self.db):
            self._hold(job)
            if reused_from is not None and not self.db.rows(_STILL_DONE, (reused_from, params_key)):
                raise DatabaseBusy(
                    f"job {reused_from}, which had this content, was changed meanwhile; it is tried again"
                )
            self.db.execute(
                """
                UPDATE jobs SET state = 'done', claim_id = NULL, finished_at = :at,
                  attempts = attempts + 1, suspect = 0,
                  text = :text, language = :language, model = :model, revision = :revision, params_key = :params_key,
                  batch_id = :batch_id,
                  audio_seconds = coalesce(:audio_seconds, audio_seconds), warnings = :warnings,
                  transcript_path = :transcript_path, reused_from = :reused_from, error_kind = NULL, error = NULL
                WHERE id = :id
                """,
                {
                    "id": job.id, "at": self._time(), "text": text, "language": language, "model": model,
                    "revision": revision, "params_key": params_key, "batch_id": batch_id,
                    "audio_seconds": audio_seconds,
                    "warnings": json.dumps(list(warnings)), "transcript_path": transcript_path,
                    "reused_from": reused_from,
                },
            )  # fmt: skip
            self.db.execute(
                """
                DELETE FROM segments WHERE job_id = :id AND (params_key <> :key OR :reused IS NOT NULL)
                  AND NOT EXISTS (SELECT 1 FROM jobs o WHERE o.reused_from = :id AND o.params_key = segments.params_key)
                """,
                {"id": job.id, "key": params_key, "reused": reused_from},
            )

    def open_batch(self, claim_id: str, **fields: Any) -> int:
        """The batch of a claim begins; ``fields`` are columns of ``batches`` known by now. Returns its id."""
        columns = {"claim_id": claim_id, "started_at": self._time(), **_only(fields, _BATCHES)}
        with transaction(self.db):
            cursor = self.db.execute(f"INSERT INTO batches {_values(columns)}", columns)
        return int(cursor.lastrowid or 0)

    def close_batch(self, batch_id: int, outcome: str, record: Mapping[str, Any]) -> None:
        """The batch is over; ``record`` holds the measured columns. Never fenced: facts are facts."""
        columns = {"finished_at": self._time(), "outcome": outcome, **_only(record, _BATCHES)}
        with transaction(self.db):
            self.db.execute(
                f"UPDATE batches SET {assignments(columns)} WHERE id = :batch_id",  # noqa: S608 - names are checked
                {**columns, "batch_id": batch_id},
            )

    def add_timing(self, job_id: int, batch_id: int, record: Mapping[str, Any]) -> None:
        """What one file cost in one batch; a second call replaces the first. Never fenced."""
        columns = {"job_id": job_id, "batch_id": batch_id, **_only(record, _TIMINGS)}
        with transaction(self.db):
            self.db.execute(f"INSERT OR REPLACE INTO timings {_values(columns)}", columns)


def _only(record: Mapping[str, Any], columns: tuple[str, ...]) -> dict[str, Any]:
    """``record``, checked against a table's columns: names end up in the SQL text."""
    unknown = set(record) - set(columns)
    if unknown:
        raise ValueError(f"no such columns: {', '.join(sorted(unknown))}; known are {', '.join(columns)}")
    return dict(record)


def _values(columns: Mapping[str, Any]) -> str:
    return f"({', '.join(columns)}) VALUES ({', '.join(':' + name for name in columns)})"
