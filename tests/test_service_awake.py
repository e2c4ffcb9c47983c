"""The machine is kept awake while files are being done, and never otherwise; without the tool nothing changes."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

from dropscribe.awake import TOOLS, Awake
from dropscribe.jobs.database import open_database
from dropscribe.jobs.queue import Queue
from test_supervisor import House

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

# writes down when it begins and ends; like the real ones it lasts as long as what it runs
TOOL = """
import subprocess, sys
out = open(sys.argv[1], "a", buffering=1)
out.write("held\\n")
code = subprocess.call(["cat"])
out.write("released\\n")
"""


def tool(record: Path) -> tuple[str, ...]:
    return (sys.executable, "-c", TOOL, str(record))


def until(condition: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_it_is_held_once_and_let_go_of(tmp_path: Path) -> None:
    record = tmp_path / "record"
    awake = Awake(tool(record))
    assert not awake.held
    awake.release()
    awake.hold()
    awake.hold()
    assert awake.held
    until(lambda: record.exists() and record.read_text() == "held\n")
    awake.release()
    assert record.read_text() == "held\nreleased\n"
    assert not awake.held
    awake.hold()
    until(lambda: record.read_text().count("held") == 2)
    awake.release()


def test_it_ends_with_the_process_that_holds_it(tmp_path: Path) -> None:
    record = tmp_path / "record"
    if (pid := os.fork()) == 0:
        Awake(tool(record)).hold()
        while not record.exists():
            time.sleep(0.02)
        os.kill(os.getpid(), 9)
    os.waitpid(pid, 0)
    until(lambda: record.read_text() == "held\nreleased\n")


def test_a_missing_or_refusing_tool_is_asked_once(tmp_path: Path) -> None:
    missing = Awake(("no-such-tool-anywhere", "-i"))
    missing.hold()
    assert not missing.held
    missing.release()
    refusing = Awake((sys.executable, "-c", "import sys; sys.exit('Failed to inhibit: Access denied')"))
    refusing.hold()
    refusing.release()
    refusing.hold()
    assert not refusing.held
    unknown = Awake(platform="sunos5")
    unknown.hold()
    assert not unknown.held


def test_only_falling_asleep_by_itself_is_prevented() -> None:
    assert TOOLS["darwin"] == ("caffeinate", "-i", "cat")  # -i: not the display, not a closed lid, not "Sleep" by hand
    assert "--what=idle" in TOOLS["linux"]


def pause(house: House, *, paused: int) -> None:
    db = open_database(house.database)
    Queue(db).set_service(paused=paused)
    db.close()


def test_the_daemon_holds_it_from_a_claim_until_it_is_idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record, tools = tmp_path / "record", tmp_path / "bin"
    tools.mkdir()
    for name in ("caffeinate", "systemd-inhibit"):
        script = tools / name
        script.write_text(f'#!/bin/sh\necho held >> "{record}"\ncat\necho released >> "{record}"\n')
        script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    house = House(tmp_path)
    try:
        supervisor = house.start()
        house.until(lambda: house.service("pid"))
        assert not record.exists()  # idle: never
        house.drop("slow.wav")
        until(lambda: record.exists() and "running" in house.states().values())
        assert record.read_text() == "held\n"
        pause(house, paused=1)
        until(lambda: record.read_text() == "held\nreleased\n")
        assert house.states() == {"slow.wav": "queued"}
        pause(house, paused=0)
        until(lambda: record.read_text().count("held") == 2)
        supervisor.terminate()
        assert supervisor.wait(10) == 0
        assert record.read_text() == "held\nreleased\n" * 2
    finally:
        house.end()
