"""One pass: the tree against the job log, folder by folder. What is as it was costs one listing and nothing else."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import structlog

from dropscribe.jobs import lookups
from dropscribe.jobs.database import transaction
from dropscribe.jobs.records import printable
from dropscribe.watch import scan
from dropscribe.watch.decision import decide

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from dropscribe.jobs.queue import Queue
    from dropscribe.jobs.records import KnownFile
    from dropscribe.watch.moves import Moves
    from dropscribe.watch.roots import Root
    from dropscribe.watch.scan import Folder, Found
    from dropscribe.watch.settle import Settle

log = structlog.get_logger("watch")

LEFT_AT_ONCE = 2000  # files noted as there before, in one transaction


class Passes:
    """Runs passes. ``left`` is told of files that were there before and are left by setting."""

    def __init__(
        self,
        queue: Queue,
        settle: Settle,
        moves: Moves,
        *,
        clock: Callable[[], float],
        stopping: Callable[[], bool],
        left: Callable[[Root, Sequence[Found]], None],
    ) -> None:
        self._queue = queue
        self._db = queue.db
        self._settle = settle
        self._moves = moves
        self._clock = clock
        self._stopping = stopping
        self._left = left
        self.leftovers: frozenset[bytes] = frozenset()  # folders with temp files of ours
        self._version: int | None = None
        self._rows = self._missing = 0

    def inserted(self, rows: int) -> None:
        """We added rows; whatever else the job log gains or loses is somebody else's doing."""
        self._rows += rows

    def run(self, root: Root, waiting: Callable[[Root], int]) -> None:
        """Scan a root to the end, unless it is not there or we are told to stop. ``waiting``: files not whole yet."""
        started, cpu, why = self._clock(), time.thread_time(), root.why
        if not root.examine(started) or not root.believe_empty(started):
            return
        blank = lookups.is_empty(self._db)
        leaving: list[Found] | None = [] if root.first and root.watch.existing == "leave" else None
        record = scan.Pass()
        unchanged: set[bytes] = set()
        changed: set[bytes] = set()
        files = new = 0
        for folder in scan.folders(root.rules, record, remembered=root.memory.total, stop=self._stopping):
            files += folder.files_met
            if folder.files is None:
                unchanged.add(folder.path)
                continue
            changed.add(folder.path)
            news = self._compare(root, folder, folder.files, blank=blank)
            new += len(news)
            if leaving is None:
                self._begin(root, news, blank=blank)
            else:
                leaving += [found for found, _ in news]
                if len(leaving) >= LEFT_AT_ONCE:
                    self._leave(root, leaving)
                    leaving = []
        if record.stopped:
            return
        if leaving:
            self._leave(root, leaving)
        missing = self._look_for_missing(root, record, unchanged, changed) if record.complete else []
        self.leftovers |= set(record.leftovers)
        # what a pass costs from now on: one that judges everything, as the first does, costs about three times as much
        root.pass_cpu = (time.thread_time() - cpu) / (1 if len(changed) <= len(unchanged) else 3)
        root.finished_pass(started, self._clock(), record, waiting(root))
        log.debug(
            "scanned", root=printable(root.path), why=why, files=files, folders=record.folders, judged=len(changed),
            new=new, missing=len(missing), errors=len(record.errors), seconds=round(root.pass_seconds, 3),
        )  # fmt: skip

    def check_table(self, roots: Iterable[Root]) -> None:
        """Rows vanished or went missing by another hand: for one pass the memory of what agreed is not believed."""
        version = self._db.rows("PRAGMA data_version")[0][0]
        if version == self._version:
            return
        rows, missing = lookups.census(self._db)
        if self._version is not None and (rows < self._rows or missing > self._missing):
            for root in roots:
                root.memory.audit = True
        self._version, self._rows, self._missing = version, rows, missing

    def _compare(
        self, root: Root, folder: Folder, files: Sequence[Found], *, blank: bool
    ) -> list[tuple[Found, KnownFile | None]]:
        """The files of one folder that the job log does not agree with, each with its row."""
        marks = root.memory.marks(folder.path)
        known: dict[int, int] = {}
        unsure = []
        for found in files:
            if found.placeholder:
                continue
            name = os.path.basename(found.path)  # noqa: PTH119 - bytes
            key, now = hash(name), scan.mark(name, *found.signature)
            before = marks.get(key)
            known[key] = now if before is None else before
            if before != now or root.memory.audit:
                unsure.append((found, key, now, before))
        rows = {} if blank else lookups.newest(self._db, [found.path for found, *_ in unsure])
        news = []
        for found, key, now, before in unsure:
            row = rows.get(found.path)
            if decide(found, row, replaced=before not in (None, now)) == "nothing":
                known[key] = now
            else:
                news.append((found, row))
                if before is None:  # else the old mark stays: it is what tells a replaced file
                    del known[key]
        root.memory.learn(folder.path, folder.total, known, agrees=not news)
        return news

    def _begin(self, root: Root, news: Iterable[tuple[Found, KnownFile | None]], *, blank: bool) -> None:
        """Wait for new and changed files to be whole; moved ones are known."""
        for found, row in news:
            if blank or not (row is None or row.state == "missing") or self._moves.by_inode(root, found) is None:
                self._settle.watch(found.path, root.quiet, found)

    def _leave(self, root: Root, files: Sequence[Found]) -> None:
        """Files that were there before the very first start: noted as they are, so that a later change still counts."""
        count = 0
        with transaction(self._db):
            for file in files:
                count += self._queue.enqueue(
                    root.id, file.path, file.size, file.mtime_ns, state="skipped", error_kind="preexisting",
                    error="it was there before the first start; `dropscribe jobs retry` takes it",
                ) is not None  # fmt: skip
        for file in files:
            root.memory.remember(file)
        self.inserted(count)
        log.info("left_existing", root=printable(root.path), files=count)
        self._left(root, files)

    def _look_for_missing(self, root: Root, record: scan.Pass, unchanged: set[bytes], changed: set[bytes]) -> list[int]:
        """Queued files that a complete pass shows to be gone.

        Once every queued file has been met, only folders that have lost one are worth asking about.
        """
        everywhere = root.memory.audit or not root.memory.covers
        left = root.memory.finished_pass(unchanged | changed)
        if not everywhere and not left:
            return []
        safe = unchanged - left
        gone = {}
        for job, path in lookups.queued(self._db, root.id):
            folder = os.path.dirname(path)  # noqa: PTH120 - bytes
            suspect = folder not in safe if everywhere else folder in left
            if suspect and not record.is_unread(path) and scan.is_gone(path):
                gone[job] = path
        missing = self._queue.mark_missing(gone) if gone else []
        self._missing += len(missing)
        for job in missing:
            log.info("missing", job=job, path=printable(gone[job]))
        return missing
