"""The worker: claim → read → decode → write → commit. The daemon's only process that imports mlx.

Started by the supervisor as ``python -m dropscribe.worker``. The first line of stdin is the settings; the pipe then
stays open and is the lifeline: when it closes, the supervisor is gone and the worker leaves. stdout carries one JSON
event a line; stderr is the log. Exit code 0: left by itself or told to; 3: the model cannot be used.

One batch is one claim. Its files are read and cut in a second thread while this one decodes; everything that touches
MLX or writes to the job log happens in this one.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import uuid
from typing import TYPE_CHECKING, Any, NoReturn

import structlog

from dropscribe import logs, pipeline
from dropscribe.batch_job import Batch, Engine
from dropscribe.errors import ConfigError, DatabaseReplaced, DropscribeError, ModelError, TransientError
from dropscribe.gpu_lock import GpuLock
from dropscribe.jobs.database import open_database
from dropscribe.jobs.queue import Queue
from dropscribe.jobs.records import printable
from dropscribe.settings import Settings, Watch

if TYPE_CHECKING:
    from dropscribe.asr.model import Model
    from dropscribe.asr.plan import Plan
    from dropscribe.jobs.database import Database

log = structlog.get_logger("worker")

MODEL_PROBLEM = 3
LOOK_EVERY = 1.0  # seconds between looks at the queue while idle
UNAVAILABLE_EVERY = 5.0  # and while the job log is locked or its disk full
BEAT_EVERY = 5.0  # seconds between signs of life while busy
LAST_RESORT = 7.0  # seconds from being told to leave until the claim is handed back over the decoder's head


class Told(BaseException):
    """We were told to leave; carried up from wherever the recognizer was."""


class Worker:
    """One process's life: load, batches, leave."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.told = threading.Event()
        self.claim_id: str | None = None  # for the last resort, which runs in another thread
        self._beat_at = 0.0
        self._events = threading.Lock()

    def run(self) -> int:
        """Until idle, told or wanted elsewhere. Returns the exit code."""
        try:
            with GpuLock("dropscribe worker", waiting_for=self._waiting, pulse=self.pulse) as lock:
                return self._with_lock(lock)
        except Told:
            self.emit("leaving", reason="told")
        except DatabaseReplaced as error:
            log.warning("job_log_replaced", error=str(error))
            self.emit("leaving", reason="database_replaced")
        except (ModelError, ConfigError) as error:
            self.emit("problem", error_kind=error.error_kind, message=str(error))
            return MODEL_PROBLEM
        return 0

    def _with_lock(self, lock: GpuLock) -> int:
        db = open_database(self.settings.database)
        from dropscribe.asr.recognizer import Recognizer
        from dropscribe.audio.client import Reader

        model = self._load()
        with Reader(self.settings.reader) as reader:
            plan = self._plan(model)
            engine = Engine(
                settings=self.settings,
                plan=plan,
                queue=Queue(db),
                recognizer=Recognizer(model),
                model=model,
                reader=reader,
                folders=_Folders(db, self.settings),
                emit=self.emit,
                pulse=self.pulse,
            )
            self.emit("ready")
            reason = self._work(engine, lock)
        self.emit("leaving", reason=reason)
        return 0

    def _load(self) -> Model:
        from dropscribe.asr import model as models

        started = time.perf_counter()
        model = models.load(self.settings.model)
        for watch in self.settings.watch:
            pipeline.request_for(
                watch.language, watch.context, model
            )  # an unknown language is found out now, not file by file
        log.info(
            "model_loaded", model=model.name, revision=model.revision, device=model.device, dtype=str(model.dtype),
            seconds=round(time.perf_counter() - started, 2),
        )  # fmt: skip
        return model

    def _plan(self, model: Model) -> Plan:
        plan = pipeline.plan_for(self.settings, model, pulse=self.pulse, checking=lambda: log.info("self_check"))
        log.info("decoder", decoder=plan.decoder, slots=plan.slots, as_serial=plan.as_serial)
        if plan.fallback is not None:
            log.warning("decoder_fallback", reason=plan.fallback)
            self.emit("fallback", message=plan.fallback)
        return plan

    def _work(self, engine: Engine, lock: GpuLock) -> str:
        """Batches until there is a reason to leave; returns it."""
        idle_since = time.monotonic()
        while True:
            self.pulse()
            worked, pause = False, LOOK_EVERY
            try:
                worked = self._one_batch(engine)
            except TransientError as error:  # the job log is busy or its disk full
                log.warning("job_log_unavailable", error_kind=error.error_kind, error=str(error))
                pause = UNAVAILABLE_EVERY
                if self.claim_id is not None:  # we may hold jobs that we could not hand back: whoever buries us does
                    return "job_log_unavailable"
            if worked:
                idle_since = time.monotonic()
            if lock.wanted():
                return "wanted"
            if not worked:
                if time.monotonic() - idle_since >= self.settings.decode.keep_loaded_seconds:
                    return "idle"
                self.told.wait(pause)

    def _one_batch(self, engine: Engine) -> bool:
        claim_id = uuid.uuid4().hex
        self.claim_id = claim_id
        try:
            jobs = engine.queue.claim(claim_id, 4 * engine.plan.slots)
        except TransientError:
            self.claim_id = None
            raise
        if jobs:
            self.emit("claimed", claim_id=claim_id, jobs=[job.id for job in jobs])
            batch = Batch(engine, claim_id, jobs)
            batch.run()
            self.emit("batch", batch=batch.batch_id)
        self.claim_id = None
        return bool(jobs)

    def pulse(self) -> None:
        """Called wherever work advances: a sign of life for the supervisor, and the place where we can be stopped."""
        if self.told.is_set():
            raise Told
        now = time.monotonic()
        if now - self._beat_at >= BEAT_EVERY:
            self._beat_at = now
            self.emit("alive")

    def emit(self, event: str, **fields: Any) -> None:
        """One line to the supervisor. If nobody reads any more, the lifeline says so."""
        line = json.dumps({"event": event, **fields}) + "\n"
        with self._events:
            try:
                os.write(_EVENTS, line.encode())
            except OSError:
                self.told.set()

    def leave(self, *_signal: object) -> None:
        """Told to leave: by a signal, or because the supervisor is gone."""
        if not self.told.is_set():
            self.told.set()
            timer = threading.Timer(LAST_RESORT, self._last_resort)
            timer.daemon = True
            timer.start()

    def _last_resort(self) -> None:
        """A single encoder pass can take longer than we have. Hand back from here, and be gone."""
        claim_id = self.claim_id
        if claim_id is not None:
            try:
                Queue(open_database(self.settings.database)).hand_back(claim_id)
            except DropscribeError as error:
                log.warning("not_handed_back", error=str(error))  # the next start recovers it
        os._exit(0)

    def _waiting(self, holder: str) -> None:
        log.info("waiting_for_gpu", holder=holder)
        self.emit("waiting", holder=holder)


class _Folders(dict[int, Watch]):
    """The settings of each root by its id; looked up when first asked for."""

    def __init__(self, db: Database, settings: Settings) -> None:
        super().__init__()
        self._db = db
        self._watches = {printable(os.fsencode(watch.path)): watch for watch in settings.watch}

    def __missing__(self, root_id: int) -> Watch:
        path = self._db.rows("SELECT path FROM roots WHERE id = ?", (root_id,))[0]["path"]
        # a folder that is not in the settings any more: what is left of its queue is done as by default
        self[root_id] = self._watches.get(path) or Watch(path=path)
        return self[root_id]


_EVENTS = 1


def main() -> NoReturn:
    """Entry point of the process."""
    global _EVENTS  # noqa: PLW0603 - the descriptor is moved once, before anything can write to it
    # Libraries print; what they print must not look like an event.
    _EVENTS = os.dup(1)
    os.dup2(2, 1)
    line = sys.stdin.buffer.readline()
    if not line.strip():
        sys.exit("dropscribe.worker is started by `dropscribe run`; it takes its settings from there")
    worker = Worker(Settings.model_validate_json(line))
    logs.configure(worker.settings.log.level)
    signal.signal(signal.SIGTERM, worker.leave)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the supervisor's to hear
    threading.Thread(target=_watch_lifeline, args=(worker,), name="lifeline", daemon=True).start()
    code = worker.run()
    sys.stderr.flush()
    os._exit(code)  # threads that still wait on a pipe must not keep a process with a model in memory


def _watch_lifeline(worker: Worker) -> None:
    while os.read(0, 4096):
        pass
    worker.leave()
    # The supervisor is gone and its successor takes our claim back: there is nothing to wait for but a clean end.
    threading.Event().wait(3.0)
    os._exit(0)


if __name__ == "__main__":
    main()
