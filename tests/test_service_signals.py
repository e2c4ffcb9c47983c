"""SIGTERM in every phase: gone within ten seconds, and whatever was held is queued again."""

from __future__ import annotations

import signal
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from dropscribe.jobs.database import open_database
from dropscribe.jobs.queue import Queue
from test_supervisor import House

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

LOADING = "import sys, time; sys.stdin.readline(); time.sleep(600)"
STUCK = "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); sys.stdin.readline(); time.sleep(600)"


def worker(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def nothing(_house: House) -> None:
    return


def drop(*names: str) -> Callable[[House], None]:
    def prepare(house: House) -> None:
        for name in names:
            house.drop(name)

    return prepare


def pause(house: House) -> None:
    house.drop("a.wav")
    db = open_database(house.database, checkpoints=True)
    Queue(db).set_service(paused=1)
    db.close()


# phase → what is prepared, how the supervisor is started, when the phase is reached
PHASES: dict[str, tuple[Callable[[House], None], dict[str, Any], Callable[[House], Any]]] = {
    "idle": (nothing, {}, lambda house: house.service("pid")),
    "settling": (drop("a.wav"), {"quiet": 60.0}, lambda house: house.query("SELECT 1 FROM roots WHERE waiting > 0")),
    "loading the model": (
        drop("a.wav"), {"worker": worker(LOADING)}, lambda house: house.service("worker_pid")
    ),
    "stuck in loading": (drop("a.wav"), {"worker": worker(STUCK)}, lambda house: house.service("worker_pid")),
    "in mid batch": (drop("slow.wav", "b.wav"), {}, lambda house: "running" in house.states().values()),
    "in a file that hangs": (drop("hang.wav"), {}, lambda house: "running" in house.states().values()),
    "waiting after a crash": (
        drop("a.wav"), {"mode": "crash", "crash_delays": [600.0, 600.0]}, lambda house: "worker_died" in said(house)
    ),
    "without a model": (drop("a.wav"), {"mode": "model"}, lambda house: house.service("problem")),
    "paused": (pause, {}, lambda house: house.service("pid") and house.states()),
}  # fmt: skip


def said(house: House) -> str:
    return house.log.read_text()


@pytest.mark.slow
def test_sigterm_ends_every_phase_in_time_with_jobs_handed_back(tmp_path: Path) -> None:
    running: dict[str, tuple[House, subprocess.Popen[bytes]]] = {}
    try:
        for phase, (prepare, options, _) in PHASES.items():
            base = tmp_path / phase.replace(" ", "_")
            base.mkdir()
            house = House(base)
            prepare(house)
            running[phase] = (house, house.start(**options))
        for phase, (house, _) in running.items():
            house.until(lambda house=house, phase=phase: PHASES[phase][2](house), 60)  # type: ignore[misc]
        began = time.monotonic()
        for _, process in running.values():
            process.send_signal(signal.SIGTERM)
        for phase, (house, process) in running.items():
            code = process.wait(max(0.1, began + 10.0 - time.monotonic()))
            assert code == 0, f"{phase}: {said(house)}"
            states = house.states()
            assert "running" not in states.values(), phase
            assert house.service("pid") is None, phase
            assert set(states.values()) <= {"queued", "done"}, phase
            assert house.query("SELECT 1 FROM batches WHERE finished_at IS NULL") == [], phase
    finally:
        for house, _ in running.values():
            house.end()
