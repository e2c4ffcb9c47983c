"""Run a command as if we were not there: its own streams, its own exit code, its own signals."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

LOOK_SECONDS = 0.2
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
NOT_FOUND, NOT_EXECUTABLE = 127, 126  # as shells, env and time have it


class Ran(NamedTuple):
    """A command that ended. Times are of ``time.monotonic``."""

    code: int  # 128 + n if signal n killed it
    began: float
    ended: float
    signals: tuple[int, ...]  # that reached us meanwhile
    error: str | None = None  # why it could not be started


def follow(command: Sequence[str], then: Callable[[], object] = lambda: None) -> Ran:
    """Run ``command`` to its end and call ``then``; signals that reach us meanwhile are passed on and do not end us."""
    with _Signals() as signals:
        began, error = time.monotonic(), None
        try:
            process = subprocess.Popen(list(command))
        except OSError as refused:
            code = NOT_EXECUTABLE if isinstance(refused, PermissionError) else NOT_FOUND
            error = refused.strerror or str(refused)
        else:
            with signals.for_process(process):
                code = _wait(process)
        ended = time.monotonic()
        then()
        return Ran(128 - code if code < 0 else code, began, ended, tuple(signals.got), error)


def _wait(process: subprocess.Popen[bytes]) -> int:
    """The exit code. The system may give a signal to any thread, a meter's too, and Python runs the handler in ours.

    Ours would not hear of it while it waits in the kernel; so another one does that, and ours looks now and then.
    """
    ended = threading.Event()

    def wait() -> None:
        process.wait()
        ended.set()

    threading.Thread(target=wait, name="command", daemon=True).start()
    while not ended.wait(LOOK_SECONDS):
        pass
    return process.wait()


class _Signals:
    """Our handlers while a command runs."""

    def __init__(self) -> None:
        self.got: list[int] = []
        self._early: list[int] = []  # before there was a process
        self._process: subprocess.Popen[bytes] | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in PASSED_ON:
            # what we were told to ignore (nohup, a shell's &) the command ignores too: it inherits that
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def for_process(self, process: subprocess.Popen[bytes]) -> Iterator[None]:
        """Pass on what comes from now on, and what came while the process was being made."""
        self._process = process
        for number in self._early:
            self._send(number)
        try:
            yield
        finally:
            self._process = None

    def _receive(self, number: int, _frame: object) -> None:
        again = number in self.got
        self.got.append(number)
        if again or not _from_terminal(number):
            self._send(number)

    def _send(self, number: int) -> None:
        if self._process is None:
            self._early.append(number)
        else:
            self._process.send_signal(number)  # nothing, if it has ended


def _from_terminal(number: int) -> bool:
    """Whether the terminal has sent this to the command as well: Ctrl-C goes to all in the foreground.

    That cannot be known on every system; with a terminal in whose foreground we are, it is taken to be so, once.
    """
    if number not in (signal.SIGINT, signal.SIGQUIT):
        return False
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
