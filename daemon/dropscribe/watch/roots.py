"""One watched folder at run time: its health, its observer, when it is scanned next, what was seen in it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import structlog

from dropscribe.jobs import lookups
from dropscribe.jobs.database import transaction
from dropscribe.jobs.records import printable
from dropscribe.watch.health import examine
from dropscribe.watch.memory import Memory
from dropscribe.watch.observer import Mailbox, RootObserver

if TYPE_CHECKING:
    from collections.abc import Callable

    from dropscribe.jobs.queue import Queue
    from dropscribe.settings import Watch
    from dropscribe.watch.eligibility import Rules
    from dropscribe.watch.scan import Pass

log = structlog.get_logger("watch")

NATIVE_SECONDS = 300.0  # between scans where events work
POLLED_SECONDS = 30.0  # and where they do not
LONGEST_SECONDS = 1800.0
IDLE_SHARE, POLLED_SHARE = 0.0008, 0.02  # of one core that scans may take where events work, and where they do not
AWAY_SECONDS = 10.0  # how often a root that is gone is looked for
AGAIN_SECONDS = 10.0  # after a pass that could not see everything, or saw nothing at all
REARM_SECONDS = 60.0  # how often events that do not work are tried again
WAITING_SECONDS = 2.0  # how often roots.waiting is brought up to date


class Root:
    """State of one root; lives on the reconciler's thread."""

    def __init__(
        self,
        queue: Queue,
        watch: Watch,
        rules: Rules,
        *,
        quiet: float,
        interval: float | None,
        mailbox: Mailbox,
        observe: bool,
        observer_factory: Callable[[], Any] | None,
    ) -> None:
        self._queue = queue
        self.watch = watch
        self.rules = rules
        self.path = rules.root
        self.quiet = quiet
        self._interval = interval
        self._observe = observe
        self.observer = RootObserver(rules.root, recursive=rules.recursive, mailbox=mailbox, factory=observer_factory)
        self.id = queue.ensure_root(watch.path)
        row = queue.db.rows("SELECT mounted, last_scan_at FROM roots WHERE id = ?", (self.id,))[0]
        self._mounted = bool(row["mounted"])
        self.first = row["last_scan_at"] is None  # this folder has never been scanned
        self.looked = False  # a look has come to an end, if only to say that the root is away
        self.next_scan = float("-inf")
        self.why = "start"
        self.pass_seconds = 0.0
        self.pass_cpu = 0.0
        self._state: str | None = None
        self._error: str | None = None
        self._identity: tuple[int, int] | None = None
        self._seen_mounted = False
        self._pass_ended = float("-inf")
        self._empty_passes = 0
        self._rearm_at = float("-inf")
        self._said: str | None = None
        self._errors_said = 0
        self.unread: list[bytes] = []  # what the last pass could not read
        self._placeholders = 0
        self._waiting = 0
        self._waiting_at = float("-inf")
        self.memory = Memory()

    @property
    def ok(self) -> bool:
        """The last look found it well."""
        return self._state == "ok"

    @property
    def error(self) -> str | None:
        """What the last look found wrong, and what to do."""
        return self._error

    # -- when to scan ----------------------------------------------------------------------------------------------

    @property
    def interval(self) -> float:
        """Seconds between scans that nothing asked for."""
        if self._interval is not None:
            return self._interval
        usual = NATIVE_SECONDS if self.observer.armed and self.observer.problem is None else POLLED_SECONDS
        # a huge tree on a slow machine is scanned less often: looking must cost nothing one can notice
        share = IDLE_SHARE if usual == NATIVE_SECONDS else POLLED_SHARE
        return max(usual, min(LONGEST_SECONDS, self.pass_cpu / share))

    def scan_by(self, at: float, why: str) -> None:
        """Scan at ``at`` or before."""
        if at < self.next_scan:
            self.next_scan, self.why = at, why

    def lost_events(self, now: float, why: str) -> None:
        """The observer says that events may be missing."""
        log.warning("events_lost", root=printable(self.path), why=why)
        self._say_problem()
        # under a flood of events that overflows again and again, scanning must not be all we do
        self.scan_by(max(now, self._pass_ended + 10 * self.pass_seconds), why)

    # -- events ----------------------------------------------------------------------------------------------------

    def check_observer(self, now: float) -> None:
        """Listen, and again when the observer died or the folder is another one; a scan makes up for the gap."""
        if not self._observe or now < self._rearm_at or (self.observer.armed and self.observer.alive()):
            return
        died = self.observer.armed
        if died:
            log.warning("observer_died", root=printable(self.path))
        if self._state in ("away", "unreadable") or not os.path.isdir(self.path):  # noqa: PTH112 - bytes
            self.observer.disarm()  # its coming back is noticed by looking
            if died:
                self.scan_by(now, "observer_died")
            return
        self.observer.arm()
        self._say_problem()
        if not self.observer.armed:
            self._rearm_at = now + REARM_SECONDS
        self.scan_by(now, "observer_died" if died else "armed")

    def _say_problem(self) -> None:
        problem = self.observer.problem
        if problem is not None and problem != self._said:
            log.warning("events_unreliable", root=printable(self.path), why=problem, scan_every_s=self.interval)
        self._said = problem

    @property
    def device(self) -> int | None:
        """The device the root was on at the last look: inode numbers of two devices have nothing in common."""
        return None if self._identity is None else self._identity[0]

    def is_there(self) -> bool:
        """A look right now, and nothing else."""
        return examine(self.path, was_mounted=self._mounted).state == "ok"

    # -- health ----------------------------------------------------------------------------------------------------

    def examine(self, now: float) -> bool:
        """Whether the root can be scanned; if not, it is waited for and what was known of it stays as it is."""
        health = examine(self.path, was_mounted=self._mounted)
        if health.state != "ok":
            self._not_ok(now, health.state, health.error)
            return False
        if self._identity is not None and health.identity != self._identity:
            self.memory.forget_all()  # remounted or another folder: the numbers are all new
        self._identity = health.identity
        self._empty_passes = self._empty_passes + 1 if health.empty else 0
        self._seen_mounted = health.mounted
        return True

    def believe_empty(self, now: float) -> bool:
        """Whether an empty root is really empty. One that is suddenly so has more likely lost its disk."""
        if not self._empty_passes or not (self.memory or lookups.any_queued(self._queue.db, self.id)):
            return True
        if self._empty_passes >= 2 and not self._mounted:
            return True
        self._not_ok(now, "away", "is suddenly empty")
        return False

    def _not_ok(self, now: float, state: str, error: str | None) -> None:
        changed = (state, error) != (self._state, self._error)
        self.looked = True
        self.next_scan, self.why = now + AWAY_SECONDS, "away"
        if changed:
            log.warning("root_not_ok", root=printable(self.path), state=state, error=error)
        if changed or self._waiting:
            self._write(state=state, error=error, waiting=0)
        self._state, self._error, self._waiting = state, error, 0
        self.memory.forget_all()
        self.observer.disarm()

    def finished_pass(self, started: float, now: float, record: Pass, waiting: int) -> None:
        """A pass came to its end: note it and when the next one is due."""
        if self._state in ("away", "unreadable"):
            log.info("root_back", root=printable(self.path))
        self.pass_seconds, self._pass_ended = now - started, now
        self.looked, self.first, self._state = True, False, "ok"
        self.next_scan, self.why = now + self.interval, "interval"
        if not record.complete:
            self.scan_by(now + max(AGAIN_SECONDS, 10 * self.pass_seconds), "incomplete")
        if record.errors and len(record.errors) != self._errors_said:
            path, first = record.errors[0]
            log.warning("scan_incomplete", errors=len(record.errors), path=printable(path), error=first.strerror)
        self._errors_said = len(record.errors)
        self.unread = [path for path, _ in record.errors]
        self._placeholders = record.placeholders
        self._waiting, self._waiting_at = waiting + record.placeholders, now
        self._mounted = self._seen_mounted
        error = f"{len(record.errors)} folders or files could not be read" if record.errors else None
        self._queue.root_scanned(self.id, error=error, waiting=self._waiting, mounted=self._mounted)

    def waiting_due(self, now: float) -> bool:
        """Whether ``roots.waiting`` may be out of date."""
        return self._state == "ok" and self._waiting > self._placeholders and now >= self._waiting_at + WAITING_SECONDS

    def note_waiting(self, now: float, waiting: int) -> None:
        """Bring ``roots.waiting`` up to date."""
        waiting += self._placeholders
        self._waiting_at = now
        if waiting != self._waiting:
            self._waiting = waiting
            self._write(waiting=waiting)

    def _write(self, **columns: Any) -> None:
        """Columns of our row other than those of a finished pass."""
        names = ", ".join(f"{name} = :{name}" for name in columns)
        with transaction(self._queue.db):
            self._queue.db.execute(f"UPDATE roots SET {names} WHERE id = :id", {**columns, "id": self.id})  # noqa: S608
