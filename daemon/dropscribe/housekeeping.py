"""What the supervisor does beside the work: sweep what dead claims left, and keep the write-ahead log short."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from dropscribe.jobs.database import checkpoint
from dropscribe.transcripts.publish import sweep_temp_files

if TYPE_CHECKING:
    from collections.abc import Callable

    from dropscribe.jobs.database import Database
    from dropscribe.jobs.records import Recovered
    from dropscribe.settings import Settings
    from dropscribe.watch.reconcile import Reconciler

log = structlog.get_logger("supervisor")

WAL_SOFT_BYTES = 4 * 2**20  # checkpointed every few seconds beyond this, every minute below
WAL_SOON_SECONDS, WAL_LATER_SECONDS = 5.0, 60.0


class Housekeeping:
    """For one session with the job log. Call ``tidy`` whenever there is time."""

    def __init__(self, db: Database, settings: Settings, clock: Callable[[], float]) -> None:
        self._db, self._settings, self._clock = db, settings, clock
        self._checkpoint_at = 0.0
        self._folders: set[bytes] = set()  # where temp files of ours were seen, or may be
        self._due = True

    def claims_died(self, recovered: Recovered) -> None:
        """They may have left temp files: where scans saw some, and where no scan has been since, beside their files."""
        jobs = json.dumps([*recovered.requeued, *recovered.quarantined, *recovered.superseded])
        rows = self._db.rows("SELECT path_raw FROM jobs WHERE id IN (SELECT value FROM json_each(?))", (jobs,))
        self._folders.update(os.path.dirname(row["path_raw"]) for row in rows)  # noqa: PTH120 - bytes
        self._due = True

    def tidy(self, reconciler: Reconciler | None) -> None:
        """Temp files of dead claims, once the folders are known; the write-ahead log, when it is time."""
        if reconciler is not None and reconciler.scanned and (self._due or not reconciler.leftovers <= self._folders):
            self._due = False
            self._folders |= reconciler.leftovers
            trees = [os.fsencode(watch.output_dir) for watch in self._settings.watch if watch.output_dir]
            swept = sweep_temp_files(self._db, sorted(self._folders), trees)
            if swept:
                log.info("swept", files=swept)
        now = self._clock()
        if now < self._checkpoint_at:
            return
        try:
            size = Path(f"{self._settings.database}-wal").stat().st_size
        except OSError:
            size = 0
        if size > 0:
            checkpoint(self._db)
        self._checkpoint_at = now + (WAL_SOON_SECONDS if size > WAL_SOFT_BYTES else WAL_LATER_SECONDS)
