"""The worker as a process of its own, spoken to as the supervisor does: settings in, events out, a lifeline."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dropscribe.gpu_lock import GpuLock
from dropscribe.jobs.database import open_database
from dropscribe.jobs.queue import Queue
from real_daemon import Place, alive, check_sums, clips, tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class WorkerAt:
    """One worker on a place's job log."""

    def __init__(self, place: Place, **env: str) -> None:
        self.log = place.log.open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dropscribe.worker"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, env={**place.env, **env},
        )  # fmt: skip
        assert self.process.stdin is not None
        self.lifeline = self.process.stdin
        self.lifeline.write(place.settings.model_dump_json().encode() + b"\n")
        self.lifeline.flush()
        self._events: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._events.put(json.loads(line))

    def hear(self, name: str, seconds: float = 60) -> dict[str, Any]:
        """The next event of that name; others are passed over."""
        deadline = time.monotonic() + seconds
        while True:
            event = self._events.get(timeout=max(0.01, deadline - time.monotonic()))
            if event["event"] == name:
                return event

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._thread.join()
        self.lifeline.close()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.log.close()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Place]]:
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(Place(tmp_path, **settings))


@pytest.fixture
def worker() -> Iterator[Callable[..., WorkerAt]]:
    with ExitStack() as stack:

        def start(place: Place, **env: str) -> WorkerAt:
            at = WorkerAt(place, **env)
            stack.callback(at.end)
            return at

        yield start


def fill(place: Place, *numbers: int) -> None:
    """Queue held-out clips as the supervisor would."""
    db = open_database(place.settings.database)
    jobs = Queue(db)
    root = jobs.ensure_root(place.folder)
    for source in clips(*numbers):
        path = place.drop(source)
        status = path.stat()
        jobs.enqueue(root, os.fsencode(path), status.st_size, status.st_mtime_ns)
    db.close()


def gpu_folder(place: Place) -> Path:
    """Where processes with the place's environment keep their lock."""
    return Path(place.env["TMPDIR"]) / f"dropscribe-{os.getuid()}"


@pytest.mark.slow
@pytest.mark.parametrize("how", ["SIGTERM", "lifeline"])
def test_told_to_leave_in_mid_batch_it_hands_back_and_is_gone_with_its_reader(
    make: Callable[..., Place], worker: Callable[..., WorkerAt], how: str
) -> None:
    place = make(decode={"batch_size": 2, "max_segment_seconds": 5})
    fill(place, 11, 0, 19)
    at = worker(place)
    at.hear("progress")
    family = tree(at.process.pid)
    assert len(family) == 2, "the worker and its reader"
    began = time.monotonic()
    if how == "SIGTERM":
        at.process.send_signal(signal.SIGTERM)
    else:
        at.lifeline.close()
    assert at.process.wait(10) == 0
    assert time.monotonic() - began < (10 if how == "SIGTERM" else 5)
    place.until(lambda: not alive(family), 2)
    assert at.hear("leaving") == {"event": "leaving", "reason": "told"}
    waiting = place.rows("SELECT state, attempts, crashes, suspect, claim_id FROM jobs WHERE state <> 'done'")
    assert waiting
    assert all(tuple(row.values()) == ("queued", 0, 0, 0, None) for row in waiting)
    assert place.value("SELECT outcome FROM batches") == "told"
    assert place.value("SELECT count(*) FROM segments") >= 1
    check_sums(place)


@pytest.mark.slow
def test_it_waits_for_the_gpu_says_for_whom_and_leaves_when_another_waits(
    make: Callable[..., Place], worker: Callable[..., WorkerAt]
) -> None:
    place = make()
    folder = gpu_folder(place)
    folder.mkdir(mode=0o700)
    with GpuLock("a test", folder=folder):
        at = worker(place)
        assert at.hear("waiting")["holder"] == f"process {os.getpid()} (a test)"
        assert not place.settings.database.exists(), "nothing is opened before the lock is held"
    at.hear("ready")
    heard: list[str] = []
    with GpuLock("a test", waiting_for=heard.append, folder=folder):
        assert heard == [f"process {at.process.pid} (dropscribe worker)"]
    assert at.hear("leaving")["reason"] == "wanted"
    assert at.process.wait(10) == 0


@pytest.mark.slow
def test_idle_it_leaves_after_the_time_it_may_keep_the_model(
    make: Callable[..., Place], worker: Callable[..., WorkerAt]
) -> None:
    place = make(decode={"keep_loaded_seconds": 0.5})
    fill(place, 3)
    at = worker(place)
    assert at.hear("claimed")["jobs"] == [1]
    assert at.hear("done")["job"] == 1
    at.hear("batch")
    assert at.hear("leaving")["reason"] == "idle"
    assert at.process.wait(10) == 0
    assert place.states() == {"clip003.flac": "done"}
    place.check()


@pytest.mark.parametrize(
    ("settings", "kind", "words"),
    [
        ({"model": "/nonexistent/model"}, "model_missing", "/nonexistent/model"),
        ({"watch": {"language": "Klingon"}}, "config", "Klingon"),
    ],
)
def test_what_keeps_it_from_working_is_an_event_and_exit_code_3(
    make: Callable[..., Place], worker: Callable[..., WorkerAt], settings: Any, kind: str, words: str
) -> None:
    place = make(**settings)
    at = worker(place)
    problem = at.hear("problem")
    assert problem["error_kind"] == kind
    assert words in problem["message"]
    assert at.process.wait(10) == 3
    assert "Traceback" not in place.log.read_text()


def test_started_by_hand_it_says_who_starts_it() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dropscribe.worker"], input="", capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "started by `dropscribe run`" in done.stderr
    assert done.stdout == ""
