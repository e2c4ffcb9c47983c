"""Old age: dropping the bulk of old jobs without forgetting that their files were done."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from dropscribe.jobs.database import transaction
from dropscribe.jobs.records import Pruned, iso
from dropscribe.jobs.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import datetime

_CHUNK = 200  # rows a transaction: a writer next to us never waits long


class Pruning(Writer):
    """The one operation that deletes."""

    def prune(
        self,
        before: datetime,
        *,
        dry_run: bool = False,
        exists: Callable[[bytes], bool] = os.path.lexists,
        reachable: Callable[[str, bool], bool] = lambda _folder, _was_mounted: True,
    ) -> Pruned:
        """Drop text, segments and timings of jobs that ended before ``before``; ``dry_run`` only says of which.

        The row itself stays while its source exists (so the scan does not queue it again) or its root is away (so that
        nobody can tell), and goes otherwise. Segments that a younger job reuses stay. ``reachable`` says whether a
        watched folder is there now: the last scan may have been long ago, its disk unplugged since.
        """
        limit = iso(before)
        rows = self.db.rows(_OLD, (limit,))
        there = self._reachable(reachable)
        gone_now = [row for row in rows if row["root_id"] in there and not exists(row["path_raw"])]
        there &= self._reachable(reachable)  # it may have gone while we looked
        removed = [row["id"] for row in gone_now if row["root_id"] in there]
        gone = set(removed)
        stripped = [row["id"] for row in rows if row["bulky"] and row["id"] not in gone]
        if not dry_run:
            for chunk in _chunks(stripped):
                self._each(_STRIP, chunk, limit)
            for chunk in _chunks(removed):
                self._each(_REMOVE, chunk, limit)
        return Pruned(tuple(stripped), tuple(removed))

    def _reachable(self, reachable: Callable[[str, bool], bool]) -> set[int]:
        roots = self.db.rows("SELECT id, path, mounted FROM roots WHERE state = 'ok'")
        return {row["id"] for row in roots if reachable(row["path"], bool(row["mounted"]))}

    def _each(self, statements: Sequence[str], ids: Sequence[int], limit: str) -> None:
        with transaction(self.db):
            for job_id in ids:
                for statement in statements:
                    self.db.execute(statement, {"id": job_id, "limit": limit})


def _chunks(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    for start in range(0, len(ids), _CHUNK):
        yield ids[start : start + _CHUNK]


# Whoever retried the job since it was listed keeps it: every statement asks again whether it is still finished and old.
_STILL = (
    "finished_at < :limit AND NOT EXISTS (SELECT 1 FROM jobs o WHERE o.reused_from = j.id AND o.finished_at >= :limit)"
)
_OLD = """
SELECT j.id, j.path_raw, j.root_id,
  j.text IS NOT NULL OR EXISTS (SELECT 1 FROM segments s WHERE s.job_id = j.id)
    OR EXISTS (SELECT 1 FROM timings t WHERE t.job_id = j.id) AS bulky
FROM jobs j WHERE j.finished_at < ?1
  AND NOT EXISTS (SELECT 1 FROM jobs o WHERE o.reused_from = j.id AND o.finished_at >= ?1)
ORDER BY j.id"""
_STRIP = (
    f"DELETE FROM segments WHERE job_id IN (SELECT id FROM jobs j WHERE id = :id AND {_STILL})",  # noqa: S608
    f"DELETE FROM timings WHERE job_id IN (SELECT id FROM jobs j WHERE id = :id AND {_STILL})",  # noqa: S608
    f"UPDATE jobs AS j SET text = NULL WHERE id = :id AND {_STILL}",  # noqa: S608
)
_REMOVE = (f"DELETE FROM jobs AS j WHERE id = :id AND {_STILL}",)  # noqa: S608
