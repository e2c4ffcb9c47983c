"""Intake: how files become jobs. The supervisor's side of the queue."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from dropscribe.jobs.database import transaction
from dropscribe.jobs.records import FINISHED, KnownFile, printable
from dropscribe.jobs.retries import storable
from dropscribe.jobs.writer import Writer

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable


class Intake(Writer):
    """Roots, new files, changed, moved and missing ones."""

    def ensure_root(self, path: str | os.PathLike[str]) -> int:
        """The id of a watched folder, noted at its first mention."""
        name = printable(os.fsencode(path))
        with transaction(self.db):
            self.db.execute("INSERT INTO roots (path) VALUES (?) ON CONFLICT (path) DO NOTHING", (name,))
            return int(self.db.rows("SELECT id FROM roots WHERE path = ?", (name,))[0]["id"])

    def root_scanned(
        self,
        root_id: int,
        *,
        state: str = "ok",
        error: str | None = None,
        waiting: int | None = None,
        mounted: bool | None = None,
        at: str | None = None,
    ) -> None:
        """What a pass over a root found. None leaves ``waiting`` and ``mounted`` as they are."""
        with transaction(self.db):
            self.db.execute(
                """
                UPDATE roots SET state = ?, error = ?, waiting = coalesce(?, waiting), mounted = coalesce(?, mounted),
                  last_scan_at = ? WHERE id = ?
                """,
                (
                    state,
                    None if error is None else storable(error),
                    waiting,
                    None if mounted is None else int(mounted),
                    at or self._time(),
                    root_id,
                ),
            )

    def enqueue(
        self,
        root_id: int,
        path_raw: bytes,
        size_bytes: int,
        mtime_ns: int,
        *,
        content_hash: str | None = None,
        priority: int = 0,
        state: str = "queued",
        error_kind: str | None = None,
        error: str | None = None,
    ) -> int | None:
        """Take a whole file in. Returns the new job's id, or None when a row for this very content is there.

        A row counts as the same when its signature is, or its content hash where both are known (then its signature is
        brought up to date). Live rows of other content end ``skipped`` / ``superseded``; a file that was ``missing``
        and is back is a new job. ``state`` may be one of the finished ones, with its ``error_kind``.
        """
        with transaction(self.db):
            for row in self.db.rows(f"{_SEEN} AND state IN ('queued', 'running') ORDER BY id DESC", (path_raw,)):
                if self._same(row, size_bytes, mtime_ns, content_hash):
                    return None
                self._supersede(row["id"])
            newest = self.db.rows(
                f"{_SEEN} AND state NOT IN ('queued', 'running') AND error_kind IS NOT 'superseded' {_NEWEST}",
                (path_raw,),
            )
            if newest and newest[0]["state"] != "missing" and self._same(newest[0], size_bytes, mtime_ns, content_hash):
                return None
            at = self._time()
            return self.db.execute(
                """
                INSERT INTO jobs (root_id, path, path_raw, size_bytes, mtime_ns, content_hash, priority, state,
                  error_kind, error, queued_at, created_at, finished_at)
                VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
                """,
                (root_id, printable(path_raw), path_raw, size_bytes, mtime_ns, content_hash, priority, state,
                 error_kind, None if error is None else storable(error), at, at, at if state in FINISHED else None),
            ).lastrowid  # fmt: skip

    def known(self, root_id: int) -> dict[bytes, KnownFile]:
        """The newest row of every path under a root."""
        # With max() SQLite takes the other columns from the row that has it; the index covers them all.
        rows = self.db.rows(
            """
            SELECT path_raw, max(id), state, size_bytes, mtime_ns, content_hash, claim_id, error_kind
            FROM jobs WHERE root_id = ? GROUP BY path_raw
            """,
            (root_id,),
        )
        return {path_raw: KnownFile(*columns) for path_raw, *columns in rows}

    def newest(self, path_raw: bytes) -> KnownFile | None:
        """The newest row of one path."""
        rows = self.db.rows(
            """
            SELECT id, state, size_bytes, mtime_ns, content_hash, claim_id, error_kind FROM jobs WHERE path_raw = ?
            ORDER BY id DESC LIMIT 1
            """,
            (path_raw,),
        )
        return KnownFile(*rows[0]) if rows else None

    def mark_missing(self, ids: Iterable[int]) -> list[int]:
        """Queued jobs whose file is gone end ``missing``; any other is left alone. Returns those that ended."""
        ended = []
        with transaction(self.db):
            for job_id in ids:
                if self.db.rows("SELECT 1 FROM jobs WHERE id = ? AND state = 'queued'", (job_id,)):
                    self._finish(
                        job_id, "missing", "source_missing", "the file was gone before its turn; drop it again"
                    )
                    ended.append(job_id)
        return ended

    def update_signature(self, job_id: int, size_bytes: int, mtime_ns: int) -> None:
        """The same content with a new time (or inode): nothing to do but to know it."""
        with transaction(self.db):
            self.db.execute("UPDATE jobs SET size_bytes = ?, mtime_ns = ? WHERE id = ?", (size_bytes, mtime_ns, job_id))

    def move(self, job_id: int, path_raw: bytes, *, root_id: int | None = None) -> bool:
        """The file of a job has a new name. False when a live job has that name already.

        Whoever runs it finds the old name gone; ``fail`` then queues it again instead of calling it missing.
        """
        with transaction(self.db):
            moved = self.db.execute(
                """
                UPDATE jobs SET path_raw = :raw, path = :path, root_id = coalesce(:root, root_id)
                WHERE id = :id AND NOT EXISTS (
                  SELECT 1 FROM jobs o WHERE o.path_raw = :raw AND o.id <> :id AND o.state IN ('queued', 'running'))
                """,
                {"id": job_id, "raw": path_raw, "path": printable(path_raw), "root": root_id},
            )
            return moved.rowcount == 1

    def _same(self, row: sqlite3.Row, size_bytes: int, mtime_ns: int, content_hash: str | None) -> bool:
        """Whether ``row`` is of this content; a signature that merely looks new is stored."""
        known = content_hash is not None and row["content_hash"] is not None
        same_signature = (row["size_bytes"], row["mtime_ns"]) == (size_bytes, mtime_ns)
        if known and row["content_hash"] != content_hash:
            return False
        if known and not same_signature:
            self.update_signature(row["id"], size_bytes, mtime_ns)
        return known or same_signature


_SEEN = "SELECT id, state, size_bytes, mtime_ns, content_hash FROM jobs WHERE path_raw = ?"
_NEWEST = "ORDER BY id DESC LIMIT 1"
