"""A command of the user's after each transcript: ``[after] command`` in the settings.

It runs in the supervisor's process tree, one at a time, in a thread that nothing waits for: decoding goes on beside it,
and the job is done whatever it does. Arguments are handed over as they are, without a shell, so that a file name can do
nothing but be a file name. It runs at most once for a transcript: what had not run when the daemon left is named in the
log and not made up for.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import threading
import time
from collections import deque
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from dropscribe.jobs import log as job_log
from dropscribe.jobs.records import printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dropscribe.settings import After, Settings

log = structlog.get_logger("after")

TAIL = 2000  # bytes of what it printed that go to the log: the last ones
DOCTOR = ".dropscribe-doctor-"  # folders beside the job log, of clips that `doctor` has transcribed; not the user's
LINGER = 1.0  # seconds for its output to end once it has: something it started may hold on to the pipe


class AfterCommands:
    """The supervisor's end: ``submit`` a job that is done, ``close`` when leaving."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._waiting: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._open = 0  # submitted and not ended
        self._lock = threading.Lock()
        self._running = Running()
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def idle(self) -> bool:
        """Nothing waits and nothing runs."""
        return self._open == 0

    def submit(self, job_id: int) -> None:
        """Run the command for a job, after those submitted before; nothing without a command."""
        if self._settings.after.command is None or self._closed:
            return
        with self._lock:
            self._open += 1
        self._waiting.put(job_id)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="after", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End the one that runs, drop those that wait, and say which; takes two seconds at most."""
        self._closed = True
        self._running.kill("the daemon leaves")
        dropped = []
        with contextlib.suppress(queue.Empty):
            while True:
                if (job_id := self._waiting.get_nowait()) is not None:
                    dropped.append(job_id)
        if dropped:
            log.warning("after_not_run", jobs=dropped)
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join(2.0)

    def _run(self) -> None:
        while (job_id := self._waiting.get()) is not None:
            try:
                if not self._closed:
                    self._for_job(job_id)
            except Exception as error:  # whatever it is, the next job's command is not to be lost over it
                log.warning("after_failed", job=job_id, error=repr(error))
            finally:
                with self._lock:
                    self._open -= 1

    def _for_job(self, job_id: int) -> None:
        with closing(job_log.connect_readonly(self._settings.database)) as conn:
            job, outputs = job_log.get_job(conn, job_id), job_log.outputs(conn, job_id)
        if job is not None and not _of_the_doctor(job):
            run_after(self._settings.after, job, outputs, self._running)


def _of_the_doctor(job: Mapping[str, Any]) -> bool:
    path: bytes = job["path_raw"]
    return os.path.basename(os.path.dirname(path)).startswith(DOCTOR.encode())  # noqa: PTH119, PTH120 - bytes


class Running:
    """The command that runs now, to be killed from another thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._killed_for: str | None = None
        self._over = False

    def start(self, process: subprocess.Popen[bytes]) -> None:
        """From now on ``kill`` means this one."""
        with self._lock:
            self._process, self._killed_for = process, None
            if self._over:
                self._kill("the daemon leaves")

    def kill(self, why: str) -> None:
        """End it, and whatever is started later, with everything it started."""
        with self._lock:
            self._over = True
            self._kill(why)

    def expire(self, process: subprocess.Popen[bytes], why: str) -> None:
        """End it if it is still this one."""
        with self._lock:
            if self._process is process:
                self._kill(why)

    def ended(self) -> str | None:
        """It is over; says what it was killed for, if it was."""
        with self._lock:
            self._process = None
            return self._killed_for

    def _kill(self, why: str) -> None:
        if self._process is not None and self._killed_for is None:
            self._killed_for = why
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)


def run_after(
    after: After, job: Mapping[str, Any], outputs: Sequence[Mapping[str, Any]], running: Running | None = None
) -> bool:
    """Run the command for one job and log how it ended; whether well. ``job``, ``outputs``: rows of the log."""
    running = running or Running()
    arguments = arguments_of(after, job, outputs)
    started = time.monotonic()
    try:
        process = subprocess.Popen(
            arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd="/",
            start_new_session=True,
        )  # fmt: skip
    except (OSError, ValueError) as error:
        log.warning("after_failed", job=job["id"], program=arguments[0], error=str(error))
        return False
    running.start(process)
    tail: deque[bytes] = deque(maxlen=TAIL)
    reading = threading.Thread(target=_read, args=(process, tail), name="after-output", daemon=True)
    reading.start()
    try:
        process.wait(after.timeout_seconds)
    except subprocess.TimeoutExpired:
        running.expire(process, f"it took longer than {after.timeout_seconds:g} s (after.timeout_seconds)")
        process.wait()
    killed_for = running.ended()
    reading.join(LINGER)
    said: dict[str, Any] = {"output": printable(b"".join(tail)).strip()} if tail else {}
    seconds = round(time.monotonic() - started, 2)
    if killed_for is None and process.returncode == 0:
        log.info("after_ended", job=job["id"], seconds=seconds, **said)
        return True
    why = killed_for or f"exit code {process.returncode}"
    log.warning("after_failed", job=job["id"], seconds=seconds, error=why, **said)
    return False


def arguments_of(after: After, job: Mapping[str, Any], outputs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The command with its placeholders filled in; a format that was not written is an empty argument."""
    paths = {output["format"]: os.fsdecode(output["path_raw"]) for output in outputs}
    names: dict[str, str] = dict.fromkeys(("txt", "json", "srt", "vtt", "md"), "") | paths
    names |= {
        "transcript": next(iter(paths.values()), ""),
        "source": os.fsdecode(job["path_raw"]),
        "job": str(job["id"]),
        "language": job["language"] or "",
    }
    program, *rest = after.command or ()
    found = program.format()  # doubled braces; other names are not allowed in it
    return [str(Path(found).expanduser()) if found.startswith("~") else found, *(one.format(**names) for one in rest)]


def _read(process: subprocess.Popen[bytes], tail: deque[bytes]) -> None:
    """The last bytes of what it prints; reads on, so that it never waits for us."""
    assert process.stdout is not None  # noqa: S101 - a pipe was asked for
    with process.stdout as output, contextlib.suppress(OSError, ValueError):
        while chunk := os.read(output.fileno(), 65536):
            tail.extend(chunk[at : at + 1] for at in range(max(0, len(chunk) - TAIL), len(chunk)))
