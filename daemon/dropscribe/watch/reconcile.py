"""Compares the tree with the job log and decides. Everything that queues a file goes through here, on one thread.

Level-triggered: what an event said is forgotten at once; each decision is made from what the file looks like now and
what the newest row of its path says. A pass over an unchanged tree writes nothing but ``roots.last_scan_at``.
"""

from __future__ import annotations

import os
import stat
import time
from typing import TYPE_CHECKING, Any

import structlog

from dropscribe.errors import DropscribeError, MediaError, SourceChanged, SourceMissing, TransientError
from dropscribe.jobs import lookups
from dropscribe.jobs.database import transaction
from dropscribe.jobs.records import printable
from dropscribe.watch import scan
from dropscribe.watch.decision import decide
from dropscribe.watch.eligibility import is_inside, plan
from dropscribe.watch.hashing import Hasher
from dropscribe.watch.moves import Moves
from dropscribe.watch.observer import Mailbox
from dropscribe.watch.passes import Passes
from dropscribe.watch.roots import Root
from dropscribe.watch.settle import Settle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from dropscribe.jobs.database import Database
    from dropscribe.jobs.queue import Queue
    from dropscribe.jobs.records import KnownFile, Restorable
    from dropscribe.settings import Settings, Watch
    from dropscribe.watch.hashing import Check
    from dropscribe.watch.scan import Found

log = structlog.get_logger("watch")

LOOKS_A_STEP = 500  # settled files taken in one transaction; more would make the loop deaf to hints
LIVENESS_SECONDS = 5.0  # how often observers are asked whether they live
CLOCK_JUMP_SECONDS = 20.0  # the wall clock against the monotonic one, which stands still while the machine sleeps
SOON_SECONDS = 1.0  # a scan that an event asked for waits this long for the next event
RETRY_SECONDS = 5.0  # after the job log could not be written


class Reconciler:
    """Watches all folders of the settings. Drive it by ``step`` (one thread only); ``mailbox`` takes hints from any.

    ``queued`` is called after files were queued. ``observe=False``: no events, for ``--once``. ``restorer`` tells
    whether an unknown file may have a transcript of ours already, and gives the check that finds out.
    """

    def __init__(
        self,
        db: Database,
        queue: Queue,
        settings: Settings,
        *,
        queued: Callable[[], None] = lambda: None,
        observe: bool = True,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        look: Callable[[bytes], Found | None] = scan.look,
        reader: Callable[[], Any] | None = None,
        observer_factory: Callable[[], Any] | None = None,
        restorer: Callable[[Watch, bytes], Check | None] = lambda _watch, _path: None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._db = db
        self._queue = queue
        self._queued = queued
        self._clock = clock
        self._wall = wall
        self._look = look
        self._stopping = stopping
        self._restorer = restorer
        self.mailbox = Mailbox()
        self.settle = Settle(clock, look)
        self.hasher = Hasher(settings.reader, self.mailbox.wake, reader)
        self._moves = Moves(queue, self._owner)
        self._passes = Passes(
            queue, self.settle, self._moves, clock=clock, stopping=stopping, left=self._may_restore_all
        )
        planned, twins = plan(settings.watch)
        for twin, kept in twins:
            log.warning("duplicate_watch", path=str(twin.path), same_as=str(kept.path))
        self.roots = [
            Root(
                queue, watch, rules, quiet=settings.quiet_seconds(watch), interval=settings.scan.interval_seconds,
                mailbox=self.mailbox, observe=observe, observer_factory=observer_factory,
            )
            for watch, rules in planned
        ]  # fmt: skip
        self._innermost_first = sorted(self.roots, key=lambda root: len(root.path), reverse=True)
        self._settled = False
        self._retry_at: float | None = None
        self._liveness_at = 0.0
        self._drift = wall() - clock()

    def step(self) -> float:
        """Do what is due now; returns the seconds until something is due by itself.

        Raises ``DatabaseReplaced``. While the job log is busy or the disk full, nothing is forgotten, all is retried.
        """
        if self._retry_at is not None and self._clock() < self._retry_at:
            return self._retry_at - self._clock()
        self._retry_at = None
        try:
            self._check_clock()
            self._check_observers()
            self._read_mail()
            for root in self.roots:
                if root.next_scan <= self._clock() and not self._stopping():
                    self._passes.check_table(self.roots)
                    self._passes.run(root, self._waiting)
            self._take_answers()
            self._take_whole()
            self._note_waiting()
        except TransientError as error:
            self._settled = False
            log.warning("job_log_unavailable", error_kind=error.error_kind, error=str(error), retry_s=RETRY_SECONDS)
            self._retry_at = self._clock() + RETRY_SECONDS
            for root in self.roots:  # whatever got lost on the way, the next scan finds
                root.scan_by(self._retry_at, "job_log_unavailable")
            return RETRY_SECONDS
        self._settled = self.scanned and not len(self.settle) and not len(self.hasher)
        return self._pause()

    def close(self) -> None:
        """Stop all observers and the hasher."""
        for root in self.roots:
            root.observer.disarm()
        self.hasher.close()

    @property
    def scanned(self) -> bool:
        """Every root has been looked at since the start."""
        return all(root.looked for root in self.roots)

    @property
    def leftovers(self) -> frozenset[bytes]:
        """Folders in which temp files of ours were seen; the supervisor sweeps them."""
        return self._passes.leftovers

    @property
    def settled(self) -> bool:
        """Every root had been looked at and nothing was waited for, the log included, when the last step ended."""
        return self._settled

    def unsettled(self) -> list[bytes]:
        """What is still waited for."""
        return sorted({*self.settle.paths, *self.hasher.pending})

    def rescan(self, why: str) -> None:
        """Scan every root in the next step."""
        for root in self.roots:
            root.scan_by(self._clock(), why)

    def _pause(self) -> float:
        times = [self._liveness_at, *(root.next_scan for root in self.roots)]
        if (deadline := self.settle.next_deadline()) is not None:
            times.append(deadline)
        return max(0.0, min(times) - self._clock())

    def _check_clock(self) -> None:
        drift = self._wall() - self._clock()
        if abs(drift - self._drift) > CLOCK_JUMP_SECONDS:
            log.info("clock_jump", seconds=round(drift - self._drift, 1))
            for root in self.roots:
                root.memory.audit = True
            self.rescan("clock_jump")
        self._drift = drift

    def _check_observers(self) -> None:
        if self._clock() < self._liveness_at:
            return
        self._liveness_at = self._clock() + LIVENESS_SECONDS
        for root in self.roots:
            root.check_observer(self._clock())

    def _read_mail(self) -> None:
        mail = self.mailbox.take()
        for root in self.roots:
            if root.path in mail.rescans:
                root.lost_events(self._clock(), mail.rescans[root.path])
        for path in mail.paths:
            self._hint(path)

    # -- hints -----------------------------------------------------------------------------------------------------

    def _hint(self, path: bytes) -> None:
        root = self._owner(path)
        if root is None or not root.looked:  # the first pass is still to come and sees everything
            return
        try:
            status = os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            if lookups.queued_at(self._db, path):
                root.scan_by(self._clock() + max(SOON_SECONDS, 10 * root.pass_seconds), "removed")
            return
        except OSError:
            status = None
        if status is None or not stat.S_ISDIR(status.st_mode):
            if status is not None and stat.S_ISLNK(status.st_mode) and os.path.isdir(path):  # noqa: PTH112 - bytes
                root.scan_by(self._clock() + SOON_SECONDS, "link_to_folder")
            elif root.rules.why_not(path) is None:
                self._consider_hinted(root, path)
        elif root.rules.why_not(path, folder=True) is None and path != root.path:
            record = scan.Pass()
            for found in scan.walk(root.rules, record, below=path, stop=self._stopping):
                self._consider_hinted(root, found.path, found)
            if record.errors:
                root.scan_by(self._clock() + SOON_SECONDS, "folder_unread")

    def _consider_hinted(self, root: Root, path: bytes, found: Found | None = None) -> None:
        if found is None:
            try:
                found = self._look(path)
            except OSError:
                found = None  # settle looks again until it can tell
        if found is not None and (found.placeholder or self._follow_move(root, found)):
            return
        self.settle.watch(path, root.quiet, found)

    def _owner(self, path: bytes) -> Root | None:
        """The most deeply nested root that ``path`` is below."""
        for root in self._innermost_first:
            if is_inside(path, root.path):
                return root
        return None

    def _follow_move(self, root: Root, found: Found) -> bool:
        """A file that was elsewhere a moment ago keeps its job."""
        row = self._queue.newest(found.path)
        if row is not None and row.state != "missing":
            return False
        old = self._moves.by_inode(root, found)
        if old is None:
            return False
        self.settle.forget(old)
        self.settle.forget(found.path)
        return True

    # -- whole files -----------------------------------------------------------------------------------------------

    def _take_whole(self) -> None:
        whole = self.settle.due(LOOKS_A_STEP)
        if not whole:
            return
        queued = 0
        try:
            rows = lookups.newest(self._db, [found.path for found in whole])
            unfinished = lookups.any_unfinished_content(self._db)
            new = [found for found in whole if found.path in rows or not self._may_be_known(found, unfinished)]
            with transaction(self._db):
                for found in new:
                    queued += self._take(found, rows.get(found.path))
        except DropscribeError:
            for found in whole:  # wait for it again rather than trust that a scan comes by
                if (root := self._owner(found.path)) is not None:
                    self.settle.watch(found.path, root.quiet, found)
            raise
        if queued:
            self._queued()

    def _may_be_known(self, found: Found, unfinished: bool) -> bool:
        """Whether a file without a row looks transcribed, or moved; the hasher then finds out.

        ``unfinished``: there are jobs that could have moved here.
        """
        root = self._owner(found.path)
        if root is None:
            return False
        check = self._restorer(root.watch, found.path)
        if check is None and not (unfinished and self._moves.may_follow(found)):
            return False
        self.hasher.ask(found.path, check)
        return True

    def _may_restore_all(self, root: Root, files: Iterable[Found]) -> None:
        """Files left by setting that have a transcript of ours were there before a log that was lost: they are done."""
        for file in files:
            if (check := self._restorer(root.watch, file.path)) is not None:
                self.hasher.ask(file.path, check)

    def _take(self, found: Found, row: KnownFile | None) -> bool:
        """One whole file, inside a transaction; True when it was queued."""
        root = self._owner(found.path)
        if root is None:
            return False
        decision = decide(found, row, replaced=row is not None and root.memory.replaced(found))
        if decision == "queue":
            return self._enqueue(root, found, None)
        if decision == "compare":
            self.hasher.ask(found.path)
        else:
            root.memory.remember(found)
        return False

    def _enqueue(
        self, root: Root, found: Found, content_hash: str | None, restorable: Restorable | None = None
    ) -> bool:
        if restorable and (job := self._queue.restore(root.id, found.path, found.size, found.mtime_ns, restorable)):
            root.memory.remember(found)
            self._passes.inserted(1)
            log.info("restored", job=job, path=printable(found.path))
            return False
        if (
            content_hash
            and self._queue.newest(found.path) is None
            and self._moves.by_content(root, found, content_hash)
        ):
            return True
        job = self._queue.enqueue(root.id, found.path, found.size, found.mtime_ns, content_hash=content_hash)
        root.memory.remember(found)
        if job is None:
            return False
        self._passes.inserted(1)
        log.info("queued", job=job, path=printable(found.path), bytes=found.size)
        return True

    def _take_answers(self) -> None:
        """Hashed files: ``enqueue`` knows that equal content under a new signature is no news."""
        queued = 0
        for answer in self.hasher.answers():
            root = self._owner(answer.path)
            if root is None or isinstance(answer.error, SourceMissing):
                continue
            media, error = answer.media, answer.error
            if media is not None:
                found = scan.Found(answer.path, media.size_bytes, media.mtime_ns, media.inode)
                queued += self._enqueue(root, found, media.content_hash, answer.restorable)
            elif not isinstance(error, SourceChanged) and (
                error is None or isinstance(error, MediaError) or self._queue.newest(answer.path) is None
            ):  # the job will say what is wrong with it
                found_now = self._look(answer.path)
                queued += found_now is not None and self._enqueue(root, found_now, None)
            else:
                log.info("not_hashed", path=printable(answer.path), error=str(error))
                self.settle.watch(answer.path, max(root.quiet, RETRY_SECONDS))  # changed or busy: all over again
        if queued:
            self._queued()

    def _waiting(self, root: Root) -> int:
        if len(self.roots) == 1:
            return len(self.settle)
        return sum(self._owner(path) is root for path in self.settle.paths)

    def _note_waiting(self) -> None:
        """Keep ``roots.waiting`` honest between passes, without a write for every file."""
        now = self._clock()
        for root in self.roots:
            if root.waiting_due(now):
                root.note_waiting(now, self._waiting(root))
