"""The foreground process: watches the folders, keeps a worker going, and never touches media or a model.

Three threads of ours: this one (worker, service row, signals), the intake (its own connection), and one that reads the
worker's events. They talk through one inbox; nothing is polled but what others may change in the job log, every other
second.
"""

from __future__ import annotations

import contextlib
import os
import queue as queues
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import structlog

from dropscribe import logs
from dropscribe.after import AfterCommands
from dropscribe.awake import Awake
from dropscribe.errors import (
    DatabaseReplaced,
    DropscribeError,
    ModelError,
    ModelInvalid,
    ModelUnavailable,
    TransientError,
)
from dropscribe.housekeeping import Housekeeping
from dropscribe.instance import InstanceLock
from dropscribe.intake import IntakeThread
from dropscribe.jobs.database import open_database
from dropscribe.jobs.queue import Queue
from dropscribe.jobs.records import iso, printable, utcnow
from dropscribe.originals import Originals
from dropscribe.worker_process import COMMAND, MODEL_PROBLEM, Delays, WorkerProcess, how_it_died, silence_limit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dropscribe.settings import Settings
    from dropscribe.watch.reconcile import Reconciler

log = structlog.get_logger("supervisor")

# a job is being done, or a batch is not closed yet: its timings are still to come
_BUSY = "SELECT 1 FROM jobs WHERE state = 'running' UNION ALL SELECT 1 FROM batches WHERE finished_at IS NULL LIMIT 1"

MODEL_ERRORS = {error.error_kind: error for error in (ModelUnavailable, ModelInvalid)}
IDLE_TICK = 2.0  # seconds between looks at what others may have changed
ONCE_TICK = 0.1
OPEN_SECONDS = 5.0  # between attempts to open a job log that is locked or whose disk is full
SETTLE_LIMIT = 60.0  # --once waits this long for files to become whole
LEAVE_SECONDS = 8.0  # from a signal until the worker is killed; all must be over in 10
CRASH_DELAYS = (1.0, 60.0)  # seconds before a new worker: first, longest; doubling
MODEL_DELAYS = (5.0, 300.0)


def run(settings: Settings, *, once: bool = False, service: bool = False) -> int:
    """``dropscribe run``: until a signal, or with ``once`` until all is done. Returns the exit code.

    ``service``: started by the system's service manager. Raises what ``Supervisor.run`` does.
    """
    logs.configure(settings.log.level)
    return Supervisor(settings, once=once, service=service).run()


class Supervisor:
    """``run`` does everything; ``stop`` may be called from any thread. The other arguments are for tests."""

    def __init__(
        self,
        settings: Settings,
        *,
        once: bool = False,
        service: bool = False,
        worker_command: Sequence[str] = COMMAND,
        limit: Callable[[int, float | None], float] = silence_limit,
        crash_delays: tuple[float, float] = CRASH_DELAYS,
        model_delays: tuple[float, float] = MODEL_DELAYS,
        awake: Awake | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._once = once
        self._service = service
        self._command = worker_command
        self._limit = limit
        self._clock = clock
        self._inbox: queues.SimpleQueue[tuple[WorkerProcess | None, dict[str, Any]]] = queues.SimpleQueue()
        self._crashes = Delays(*crash_delays)
        self._models = Delays(*model_delays)
        self._worker: WorkerProcess | None = None
        self._start_at = 0.0  # no worker before this
        self._stopping: float | None = None  # when we were told to
        self._model_problem: ModelError | None = None
        self._problem: str | None = None
        self._fallback: str | None = None  # the decoder is not the one that was asked for
        self._dead: tuple[WorkerProcess, int] | None = None  # ended, and its jobs not taken back yet
        self._written: tuple[int | None, str | None] = (None, None)
        self._data_version = -1
        self._look_at = 0.0
        self._due = False
        self._next_due: float | None = None
        self._paused = False
        self._awake = awake or Awake()

    def stop(self) -> None:
        """Leave within ten seconds; told twice, at once."""
        worker = self._worker
        if self._stopping is None:
            self._stopping = self._clock()
            if worker is not None:
                worker.tell_to_leave()
        elif worker is not None:
            worker.kill("impatience")
        self._inbox.put((None, {"event": "stop"}))

    def run(self) -> int:
        """Until ``stop``, or all is done.

        Raises ``AlreadyRunning``, ``SchemaTooNew``, ``ConfigError`` and the like; with ``once`` also ``ModelError``.
        """
        self._settings.for_watching()
        with InstanceLock(self._settings.database), self._signals():
            while True:
                try:
                    return self._session()
                except DatabaseReplaced as error:
                    log.warning("job_log_replaced", error=str(error))
                except TransientError as error:  # it cannot even be opened
                    if self._once:
                        raise
                    log.warning("job_log_unavailable", error_kind=error.error_kind, error=str(error))
                    with contextlib.suppress(queues.Empty):
                        self._inbox.get(timeout=OPEN_SECONDS)
                    if self._stopping is not None:
                        return 0

    @contextlib.contextmanager
    def _signals(self) -> Any:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        names = (signal.SIGTERM, signal.SIGINT)
        before = {name: signal.signal(name, lambda *_: self.stop()) for name in names}
        try:
            yield
        finally:
            for name, handler in before.items():
                signal.signal(name, handler)

    # -- one session: from opening the job log until we leave or it is replaced ---------------------------------------

    def _session(self) -> int:
        started_at = iso(utcnow())
        self._db = db = open_database(self._settings.database, checkpoints=True)
        self._queue = Queue(db)
        try:
            recovered = self._queue.recover(None, cause="supervisor_died")
            self._queue.set_service(pid=os.getpid(), worker_pid=None, started_at=started_at, problem=None)
        except BaseException:
            db.close()
            raise
        if recovered.requeued:
            log.info("recovered", jobs=len(recovered.requeued))
        self._problem, self._written, self._data_version = None, (None, None), -1
        self._housekeeping = Housekeeping(db, self._settings, self._clock)
        self._housekeeping.claims_died(recovered)
        log.info("started", pid=os.getpid(), database=str(self._settings.database), folders=len(self._settings.watch))
        self._intake = IntakeThread(
            self._settings, observe=not self._once, queued=lambda: self._inbox.put((None, {"event": "queued"}))
        )
        self._after = AfterCommands(self._settings)
        self._began = self._clock()
        replaced = False
        try:
            return self._loop(started_at)
        except DatabaseReplaced:
            replaced = True
            raise
        finally:
            self._leave(replaced=replaced)

    def _loop(self, started_at: str) -> int:
        while True:
            with contextlib.suppress(queues.Empty):
                self._handle(self._inbox.get(timeout=self._pause()))
                while True:
                    self._handle(self._inbox.get_nowait())
            if self._stopping is not None:
                log.info("stopping")
                return 1 if self._once else 0
            try:
                self._db.check_not_replaced()
                if not self._intake.alive():
                    raise DatabaseReplaced("the intake lost the job log; it is opened anew")
                self._look()
                self._mind_worker()
                self._mind_sleep()
                self._keep_service_row()
                self._housekeeping.tidy(self._intake.reconciler)
                if self._once and (code := self._finished(started_at)) is not None:
                    return code
            except TransientError as error:
                log.warning("job_log_unavailable", error_kind=error.error_kind, error=str(error))

    def _pause(self) -> float:
        if self._once:
            return ONCE_TICK
        pause = IDLE_TICK
        if self._worker is None and self._due and not self._paused:
            pause = min(pause, self._start_at - self._clock())
        if self._next_due is not None:
            pause = min(pause, self._next_due - self._clock())
        return max(0.02, pause)

    def _leave(self, *, replaced: bool) -> None:
        """The end of a session, whatever ended it."""
        began = self._stopping if self._stopping is not None else self._clock()
        self._intake.stop()
        self._after.close()
        self._end_worker(began + LEAVE_SECONDS)
        self._awake.release()
        self._intake.join(2.0)
        try:
            if not replaced:
                self._queue.recover(None, cause="shutdown")
                self._queue.set_service(pid=None, worker_pid=None, problem=None)
        except DropscribeError as error:
            log.warning("not_handed_back", error=str(error))  # the next start recovers it
        finally:
            self._db.close()

    def _end_worker(self, deadline: float) -> None:
        worker = self._worker
        if worker is None:
            return
        worker.tell_to_leave()
        worker.close()
        while worker.wait(0.1) is None:  # in short turns, so that a second signal is heard
            if self._clock() >= deadline:
                worker.kill("shutdown")
                worker.wait(1.0)
                break
        self._worker = None

    # -- what is due -------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """What the job log holds now, asked only when somebody changed it or a waiting time is over."""
        now = self._clock()
        version = self._db.rows("PRAGMA data_version")[0][0]
        over = self._next_due is not None and now >= self._next_due
        if version == self._data_version and not over and now < self._look_at:
            return
        self._data_version, self._look_at = version, now + 60.0  # our own writes do not show in data_version
        self._due = self._queue.due()
        at = None if self._due else self._queue.next_due_at()
        self._next_due = None if at is None else now + max(0.0, (at - utcnow()).total_seconds())
        self._paused = bool(self._queue.service()["paused"]) and not self._once

    def _look_again(self) -> None:
        self._data_version = -1

    # -- the worker --------------------------------------------------------------------------------------------------

    def _mind_worker(self) -> None:
        worker = self._worker
        if self._dead is not None:
            self._ended(*self._dead)
            self._dead = None
        elif worker is not None:
            if self._paused and not worker.told:
                log.info("paused")
                worker.tell_to_leave()
            if worker.killed_for is None and (why := worker.hangs(due=self._due)) is not None:
                log.error("worker_hangs", pid=worker.pid, why=why)
                worker.kill(why)
        elif self._due and not self._paused and self._clock() >= self._start_at:
            self._start_worker()

    def _mind_sleep(self) -> None:
        """The machine stays awake from a claim until nothing is done or due, or nobody is there to do it."""
        worker = self._worker
        if worker is not None and worker.busy:
            self._awake.hold()
        elif worker is None or not self._due:
            self._awake.release()

    def _start_worker(self) -> None:
        try:
            self._worker = WorkerProcess(
                self._settings, self._inbox.put, clock=self._clock, command=self._command, limit=self._limit
            )
        except OSError as error:
            self._start_at = self._clock() + self._crashes.next()
            self._problem = f"the worker cannot be started: {error}"
            return
        log.info("worker_started", pid=self._worker.pid)
        self._fallback = None
        if self._stopping is not None:  # the signal came between
            self._worker.tell_to_leave()

    def _handle(self, message: tuple[WorkerProcess | None, dict[str, Any]]) -> None:
        worker, event = message
        name = event.get("event")
        if worker is None or worker is not self._worker:
            if name == "queued":
                self._look_again()
            return
        if name == "exit":
            self._worker, self._dead = None, (worker, int(event["code"]))
            return
        worker.note(event)
        if name == "problem" and worker.problem is not None:
            self._problem = worker.problem[1]
        elif name == "ready":
            self._models.failures = 0
            self._model_problem = None
            if self._crashes.failures == 0:
                self._problem = None
        elif name in ("done", "batch"):
            self._crashes.failures = 0
            self._problem = None
            if event.get("state") == "done":
                self._after.submit(int(event["job"]))
        elif name == "waiting":
            self._problem = f"waiting for the GPU: {event.get('holder')} has it"
        elif name == "fallback":
            self._fallback = str(event.get("message", ""))
        elif name == "noise":
            log.warning("worker_noise", line=event.get("line"))
        self._look_again()

    def _ended(self, worker: WorkerProcess, code: int) -> None:
        """What a worker's end means for its jobs and for the next worker."""
        worker.close()
        crashed = code not in (0, MODEL_PROBLEM) and not (worker.told and code == -signal.SIGTERM)
        if crashed:
            kind = "worker_hung" if worker.killed_for else "worker_crashed"
            how = f"was killed: {worker.killed_for}" if worker.killed_for else how_it_died(code)
            recovered = self._queue.recover(
                None, cause="crash", error_kind=kind, error=f"the worker {how} while it held only this file"
            )
            delay = self._crashes.next()
            held = (*recovered.requeued, *recovered.quarantined)
            log.error("worker_died", pid=worker.pid, how=how, held=list(held), next_in_s=delay)
            for job in recovered.quarantined:
                log.error("quarantined", job=job)
            if self._crashes.failures > 1:
                self._problem = f"the worker {how}, {self._crashes.failures} times in a row; it is started again"
        else:
            recovered = self._queue.recover(None, cause="shutdown")
            delay = 0.0
            if code == MODEL_PROBLEM:
                kind, message = worker.problem or ("model", "the model cannot be used; the worker's log says why")
                delay = self._models.next()
                self._model_problem = MODEL_ERRORS.get(kind, ModelError)(message)
                log.error("model_problem", error_kind=kind, error=message, next_in_s=delay)
                self._problem = message
            elif not worker.claims and not worker.told:
                delay = self._crashes.next()  # came, took nothing, left: never in a tight loop
            log.info("worker_left", pid=worker.pid)
        self._housekeeping.claims_died(recovered)
        self._start_at = self._clock() + delay
        self._look_again()

    def _keep_service_row(self) -> None:
        now = (self._worker.pid if self._worker else None, self._problem or self._fallback)
        if now != self._written:
            self._queue.set_service(worker_pid=now[0], problem=now[1])
            self._written = now

    # -- --once ------------------------------------------------------------------------------------------------------

    def _finished(self, started_at: str) -> int | None:
        """The exit code of ``--once`` when there is nothing left to do, else None."""
        if self._model_problem is not None:
            raise self._model_problem  # the jobs stay queued
        reconciler = self._intake.reconciler
        late = self._clock() - self._began > SETTLE_LIMIT
        if not late and (reconciler is None or not reconciler.settled):
            return None
        self._look_again()
        self._look()
        if self._due or self._db.rows(_BUSY) or not self._after.idle:
            return None
        if (
            self._worker is not None and self._worker.busy
        ):  # its last words, which may call for a command, are on the way
            return None
        Originals(self._db, self._settings).step(lambda: self._stopping is not None)
        return self._verdict(started_at, reconciler)

    def _verdict(self, started_at: str, reconciler: Reconciler | None) -> int:
        bad = self._db.rows(
            "SELECT id, path, state, error_kind, error FROM jobs WHERE state = 'queued' "
            "OR (state IN ('failed', 'quarantined') AND finished_at >= ?) ORDER BY id",
            (started_at,),
        )
        for row in bad:
            what = "backing_off" if row["state"] == "queued" else row["state"]
            log.error(what, job=row["id"], path=row["path"], error_kind=row["error_kind"], error=row["error"])
        unsettled = [] if reconciler is None else reconciler.unsettled()
        for path in unsettled:
            log.error("not_settled", path=printable(path))
        away = [] if reconciler is None else [root for root in reconciler.roots if not root.ok]
        for root in away:
            log.error("root_not_ok", root=printable(root.path), error=root.error)
        unread = [] if reconciler is None else [path for root in reconciler.roots for path in root.unread]
        for path in unread:
            log.error("not_read", path=printable(path))
        done = self._db.rows("SELECT count(*) FROM jobs WHERE state = 'done' AND finished_at >= ?", (started_at,))[0][0]
        log.info("finished", done=done, failed=len(bad), not_settled=len(unsettled))
        return 1 if bad or unsettled or away or unread or reconciler is None else 0
