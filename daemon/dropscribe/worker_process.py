"""The supervisor's end of one worker process: settings and lifeline in, events out, and how to be rid of it.

The worker leads a process group of its own: Ctrl-C on a terminal reaches the supervisor alone, and a worker that hangs
can be killed together with its reader.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dropscribe.settings import Settings

COMMAND = (sys.executable, "-m", "dropscribe.worker")
MODEL_PROBLEM = 3  # the exit code that says that no file is at fault

START_SECONDS = 3600.0  # a first start may have to fetch the model, or to wait for another process to free the GPU
SILENT_SECONDS = (
    120.0  # a worker with jobs and nothing to say for this long, and for SLOWEST × the audio it claimed: hangs
)
SLOWEST = 4.0  # four times slower than the audio plays; every finished segment is a sign of life
UNKNOWN_AUDIO_SECONDS = 300.0  # the length assumed before a file was opened
IDLE_SECONDS = 300.0  # there are jobs due, it holds none and claims none


def silence_limit(jobs: int, seconds: float | None) -> float:
    """Seconds without an event after which a claim of ``jobs`` files and ``seconds`` of audio counts as hanging."""
    audio = max(seconds or 0.0, UNKNOWN_AUDIO_SECONDS * min(jobs, 6))
    return SILENT_SECONDS + SLOWEST * audio


def how_it_died(code: int) -> str:
    """A worker's exit code in words."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"died of {signal.Signals(-code).name}"
    except ValueError:
        return f"died of signal {-code}"


@dataclass
class Delays:
    """How long to wait before the next worker, growing with each that was of no use."""

    first: float
    longest: float
    failures: int = 0

    def next(self) -> float:
        """The wait after one more failure."""
        self.failures += 1
        return float(min(self.longest, self.first * 2 ** min(self.failures - 1, 30)))


class WorkerProcess:
    """One child. ``inbox`` gets ``(self, event)`` for every event, at last ``(self, {"event": "exit", "code": n})``."""

    def __init__(
        self,
        settings: Settings,
        inbox: Callable[[tuple[WorkerProcess, dict[str, Any]]], None],
        *,
        clock: Callable[[], float],
        command: Sequence[str] = COMMAND,
        limit: Callable[[int, float | None], float] = silence_limit,
    ) -> None:
        self._inbox = inbox
        self._clock = clock
        self._limit = limit
        self.started_at = clock()
        self.heard_at = self.started_at
        self.ready = False
        self.claims = 0  # how many it took; one that leaves without any has not been of use
        self.told = False
        self.killed_for: str | None = None
        self.problem: tuple[str, str] | None = None  # error_kind, message: what it says keeps it from working
        self._jobs: set[int] = set()
        self._seconds: float | None = None
        self._process = subprocess.Popen(
            list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0, close_fds=True
        )
        self.pid = self._process.pid
        threading.Thread(target=self._read, name="worker-events", daemon=True).start()
        with contextlib.suppress(OSError):  # it is dead already; its exit says so
            assert self._process.stdin is not None  # noqa: S101 - a pipe was asked for
            self._process.stdin.write(settings.model_dump_json().encode() + b"\n")
            self._process.stdin.flush()

    def note(self, event: dict[str, Any]) -> None:
        """Keep in mind what an event says about the state of the worker; called by whoever reads the inbox."""
        self.heard_at = self._clock()
        match event.get("event"):
            case "ready":
                self.ready = True
            case "claimed":
                self.claims += 1
                self._jobs = set(event.get("jobs", ()))
                self._seconds = event.get("seconds")
            case "progress":
                self._seconds = event.get("seconds", self._seconds)
            case "done":
                self._jobs.discard(event.get("job", -1))
            case "batch" | "idle":
                self._jobs.clear()
            case "problem":
                self.problem = (str(event.get("error_kind", "internal")), str(event.get("message", "")))

    @property
    def busy(self) -> bool:
        """It holds jobs."""
        return bool(self._jobs)

    def hangs(self, *, due: bool) -> str | None:
        """Why this worker must be taken for hanging, if so. ``due``: there are jobs it could claim."""
        silent = self._clock() - self.heard_at
        if not self.ready:
            return "did not become ready" if silent > START_SECONDS else None
        if self._jobs:
            return "no progress" if silent > self._limit(len(self._jobs), self._seconds) else None
        return "claims nothing" if due and silent > IDLE_SECONDS else None

    def tell_to_leave(self) -> None:
        """It finishes or hands back, then leaves; for a signal handler too."""
        self.told = True
        with contextlib.suppress(OSError):
            self._process.terminate()

    def kill(self, why: str) -> None:
        """The worker and its reader, now."""
        self.killed_for = self.killed_for or why
        with contextlib.suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            self._process.kill()

    def wait(self, seconds: float) -> int | None:
        """Its exit code, or None if it is still there."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        return None

    def close(self) -> None:
        """Let go of the lifeline: a worker that still lives leaves now."""
        assert self._process.stdin is not None  # noqa: S101 - a pipe was asked for
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def _read(self) -> None:
        stdout = self._process.stdout
        assert stdout is not None  # noqa: S101 - a pipe was asked for
        with stdout:
            for line in stdout:
                try:
                    event = json.loads(line)
                except ValueError:
                    event = {"event": "noise", "line": line[:200].decode("utf-8", "backslashreplace").rstrip()}
                self._inbox((self, event if isinstance(event, dict) else {"event": "noise", "line": repr(event)}))
        self._inbox((self, {"event": "exit", "code": self._process.wait()}))
