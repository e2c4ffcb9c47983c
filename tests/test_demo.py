"""``dropscribe demo``: the whole path, for real, as a newcomer sees it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

COMMAND = [sys.executable, "-m", "dropscribe", "demo"]


@pytest.fixture(autouse=True)
def temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def daemon_pid(folder: Path) -> int:
    said = (folder / "daemon.log").read_text()
    found = re.search(r"\bpid=(\d+)", said)
    assert found, said
    return int(found[1])


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
def test_every_sample_comes_back_right_and_the_log_can_be_asked(temp: Path) -> None:
    # a stranger's environment must not reach the daemon of the demo
    env = {**os.environ, "DROPSCRIBE_MODEL": "no/such-model", "DROPSCRIBE_WATCH": "[]"}
    done = subprocess.run([*COMMAND, "--keep"], capture_output=True, text=True, check=False, timeout=240, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    rates = [float(rate) for rate in re.findall(r"WER ([\d.]+)%", done.stdout)]
    assert len(rates) == 5
    assert max(rates) <= 10
    [folder] = temp.glob("dropscribe-demo-*")
    query = re.search(r"^ +(\S+sqlite-utils \S+ '.*' -t)$", done.stdout, re.MULTILINE)
    assert query
    asked = subprocess.run(["sh", "-c", query[1]], capture_output=True, text=True, check=True)
    assert len([line for line in asked.stdout.splitlines() if str(folder) in line]) == 5
    assert not is_alive(daemon_pid(folder))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_leaves_neither_daemon_nor_folder(temp: Path, number: signal.Signals) -> None:
    heard = signal.getsignal(signal.SIGINT)
    # a suite started in the background ignores it, and so would the child
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        started = subprocess.Popen(COMMAND, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGINT, heard)
    with started as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "is being copied" in line:
                break
        [folder] = temp.glob("dropscribe-demo-*")
        pid = daemon_pid(folder)
        assert is_alive(pid)
        process.send_signal(number)
        rest = process.stderr.read()
    assert process.returncode == 130
    assert "Traceback" not in rest
    assert not is_alive(pid)
    assert not list(temp.iterdir())
