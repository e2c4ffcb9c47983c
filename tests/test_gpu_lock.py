"""The one GPU lock: who holds it, who waits, and that nobody keeps it who is gone."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from dropscribe import gpu_lock
from dropscribe.errors import ConfigError
from dropscribe.gpu_lock import GpuLock, default_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

HOLD = """
import sys
from pathlib import Path
from dropscribe.gpu_lock import GpuLock
with GpuLock("another program", folder=Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_lock, "_LOOK_EVERY", 0.01)


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield process
        process.kill()


class Enough(Exception):  # noqa: N818 - a way out
    pass


def give_up_after(times: int) -> Callable[[], None]:
    left = [times]

    def pulse() -> None:
        left[0] -= 1
        if not left[0]:
            raise Enough

    return pulse


def test_a_free_lock_is_taken_without_a_word(tmp_path: Path) -> None:
    heard: list[str] = []
    with GpuLock("test", waiting_for=heard.append, folder=tmp_path) as lock:
        assert not lock.wanted()
        assert (tmp_path / "gpu.lock").read_text() == f"process {os.getpid()} (test)\n"
    assert heard == []
    assert (tmp_path / "gpu.lock").read_text() == ""


def test_whoever_waits_is_told_for_whom(tmp_path: Path, holder: subprocess.Popen[bytes]) -> None:
    heard: list[str] = []
    lock = GpuLock("test", waiting_for=heard.append, pulse=give_up_after(3), folder=tmp_path)
    with pytest.raises(Enough), lock:
        pass
    assert heard == [f"process {holder.pid} (another program)"]


def test_a_holder_that_is_killed_holds_nothing(tmp_path: Path, holder: subprocess.Popen[bytes]) -> None:
    def kill(_who: str) -> None:
        holder.kill()

    with GpuLock("test", waiting_for=kill, pulse=give_up_after(1000), folder=tmp_path) as lock:
        assert not lock.wanted()
        assert str(os.getpid()) in (tmp_path / "gpu.lock").read_text()


def test_the_holder_sees_that_somebody_waits_and_that_nobody_does_any_more(tmp_path: Path) -> None:
    waits, gives_up = threading.Event(), threading.Event()

    def pulse() -> None:
        waits.set()
        if gives_up.is_set():
            raise Enough

    def wait() -> None:
        with pytest.raises(Enough), GpuLock("second", pulse=pulse, folder=tmp_path):
            pass

    with GpuLock("first", folder=tmp_path) as lock:
        assert not lock.wanted()
        thread = threading.Thread(target=wait)
        thread.start()
        assert waits.wait(10)
        while not lock.wanted():  # asking takes the queue for an instant, in which the other may have come
            pass
        gives_up.set()
        thread.join(10)
        assert not lock.wanted()


def test_the_one_who_waited_gets_it_and_is_not_its_own_rival(tmp_path: Path) -> None:
    first = GpuLock("first", folder=tmp_path)
    first.__enter__()
    with GpuLock("second", waiting_for=lambda _who: first.__exit__(), folder=tmp_path) as second:
        assert not second.wanted()


def test_it_lives_in_a_private_folder_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = default_folder()
    assert folder.parent == tmp_path
    assert folder.stat().st_mode & 0o777 == 0o700
    assert default_folder() == folder


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_folder_that_somebody_else_put_there_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    os.chown(default_folder(), 12345, 12345)
    with pytest.raises(ConfigError, match="belongs to somebody else"):
        default_folder()


def test_a_link_where_the_lock_should_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "gpu.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"), GpuLock("test", folder=tmp_path):
        pass
    assert not (tmp_path / "elsewhere").exists()
