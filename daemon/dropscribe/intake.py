"""The supervisor's intake thread: drives the reconciler on a connection of its own, and never dies of an error."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import structlog

from dropscribe.errors import DatabaseReplaced, TransientError
from dropscribe.jobs.database import open_database
from dropscribe.jobs.queue import Queue
from dropscribe.originals import OriginalsThread
from dropscribe.transcripts.restore import restorer
from dropscribe.watch.reconcile import Reconciler

if TYPE_CHECKING:
    from collections.abc import Callable

    from dropscribe.jobs.database import Database
    from dropscribe.settings import Settings

log = structlog.get_logger("intake")

AGAIN_SECONDS = 5.0  # after an error nobody foresaw


class IntakeThread:
    """Started at once. ``queued`` is called, on the thread, whenever files were queued."""

    def __init__(self, settings: Settings, *, observe: bool, queued: Callable[[], None]) -> None:
        self._settings = settings
        self._observe = observe
        self._queued = queued
        self._stop = threading.Event()
        moves = observe and any(watch.move_done_to for watch in settings.watch)
        self._originals = OriginalsThread(settings) if moves else None
        self.reconciler: Reconciler | None = None  # once there is one; read its state, call nothing but its mailbox
        self._thread = threading.Thread(target=self._run, name="intake", daemon=True)
        self._thread.start()

    def alive(self) -> bool:
        """It ends by itself only when the job log was replaced."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Ask it to leave."""
        self._stop.set()
        if self._originals is not None:
            self._originals.stop()
        if self.reconciler is not None:
            self.reconciler.mailbox.wake()

    def join(self, seconds: float) -> None:
        """Wait for it to leave. It is a daemon: one that hangs in a dead share holds nobody up."""
        self._thread.join(seconds)
        if self._originals is not None:
            self._originals.join(seconds)

    def _run(self) -> None:
        db: Database | None = None
        while not self._stop.is_set():
            pause = AGAIN_SECONDS
            try:
                if db is None:
                    db = open_database(self._settings.database)
                if self.reconciler is None:
                    self.reconciler = Reconciler(
                        db, Queue(db), self._settings,
                        queued=self._queued, observe=self._observe, stopping=self._stop.is_set, restorer=restorer,
                    )  # fmt: skip
                pause = self.reconciler.step()
            except DatabaseReplaced:
                break
            except TransientError as error:  # the job log cannot be opened now
                log.warning("job_log_unavailable", error_kind=error.error_kind, error=str(error), retry_s=AGAIN_SECONDS)
            except Exception:  # a bug in here must not leave the folders unwatched
                log.exception("intake_failed", retry_s=AGAIN_SECONDS)
                if self.reconciler is not None:
                    self.reconciler.rescan("intake_failed")
            if self.reconciler is None:
                self._stop.wait(pause)
            elif not self._stop.is_set():
                self.reconciler.mailbox.wait(pause)
        if self.reconciler is not None:
            self.reconciler.close()
        if db is not None:
            db.close()
