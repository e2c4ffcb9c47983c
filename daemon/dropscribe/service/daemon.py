"""``dropscribe run --service``: the daemon under a service manager.

Exit code 0 means "do not start me again": in order, or given up for a reason that ``service status`` gives. 1 means a
crash, after which the manager starts it again.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import sys
import threading
from typing import TYPE_CHECKING

import structlog

from dropscribe import logfile, logs, supervisor
from dropscribe.errors import DropscribeError, TransientError
from dropscribe.service.places import log_file, starts_file
from dropscribe.service.starts import Starts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dropscribe.settings import Settings

log = structlog.get_logger("service")

AGAIN_SECONDS = 60.0  # after a passing trouble that kept it from starting, such as a full disk
STDERR_BYTES = 256 * 1024


def run_as_service(
    load: Callable[[], Settings],
    *,
    log_path: Path | None = None,
    starts: Starts | None = None,
    run: Callable[..., int] = supervisor.run,
    again_seconds: float = AGAIN_SECONDS,
) -> int:
    """The exit code. ``load`` reads the settings and may raise; the other arguments are for tests."""
    starts = starts or Starts(starts_file())
    cut_stderr()
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(logfile.stderr_into(log_path or log_file()))
        except OSError as error:  # go on with what the manager keeps of stderr
            sys.stderr.write(f"dropscribe: cannot write the log {error.filename}: {error.strerror}\n")
        return _guarded(load, starts, run, again_seconds)


def cut_stderr(descriptor: int = 2) -> None:
    """Empty the manager's file of our stderr when it has grown: nobody else does, and the log is elsewhere."""
    with contextlib.suppress(OSError):
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode) and status.st_size > STDERR_BYTES:
            os.ftruncate(descriptor, 0)


def _guarded(load: Callable[[], Settings], starts: Starts, run: Callable[..., int], again_seconds: float) -> int:
    logs.configure()
    if not starts.begin():
        log.error("gave_up", error=starts.read().error)
        return 0
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):  # until the supervisor takes over, and between its tries
        if threading.current_thread() is threading.main_thread():
            signal.signal(number, lambda *_: stopped.set())
    try:
        code = _keep_trying(load, run, stopped, again_seconds)
    except DropscribeError as error:
        log.critical("gave_up", error_kind=error.error_kind, error=str(error))
        starts.fault(error.error_kind, str(error), gave_up=True)
        return 0
    except Exception as error:
        log.exception("crashed")
        starts.fault("internal", f"{type(error).__name__}: {error}", gave_up=False)
        return 1
    starts.ended_in_order()
    return code


def _keep_trying(
    load: Callable[[], Settings], run: Callable[..., int], stopped: threading.Event, again_seconds: float
) -> int:
    while not stopped.is_set():
        try:
            settings = load()
            settings.for_watching()
            if stopped.is_set():
                break
            return run(settings, service=True)
        except TransientError as error:  # it passes: starting anew would only use up the starts
            log.warning("cannot_start_yet", error_kind=error.error_kind, error=str(error), next_in_s=again_seconds)
            stopped.wait(again_seconds)
    return 0
