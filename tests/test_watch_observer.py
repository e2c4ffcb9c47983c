"""Native events on real files. Each wait ends with a condition; nothing is true because time has passed."""

from __future__ import annotations

import errno
import os
import sys
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import watching
from dropscribe.watch.observer import Mailbox, RootObserver, remote_filesystem
from dropscribe.watch.roots import NATIVE_SECONDS, POLLED_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="inotify is Linux's")


class Listening:
    """A root observer and everything its mailbox has brought so far."""

    def __init__(self, root: Path, **kw: Any) -> None:
        self.root = os.fsencode(root)
        self.mailbox = Mailbox()
        self.observer = RootObserver(self.root, recursive=True, mailbox=self.mailbox, **kw)
        self.paths: list[str] = []
        self.rescans: dict[bytes, str] = {}

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 10
        while True:
            mail = self.mailbox.take()
            self.paths += [os.fsdecode(path)[len(self.root) + 1 :] for path in mail.paths]
            self.rescans.update(mail.rescans)
            if condition():
                return
            assert time.monotonic() < deadline, (self.paths, self.rescans)
            self.mailbox.wait(0.05)


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[Listening]:
    (tmp_path / "in").mkdir()
    made = Listening(tmp_path / "in")
    assert made.observer.arm()
    yield made
    made.observer.disarm()


def test_files_written_moved_and_removed_are_hinted_at(listening: Listening, tmp_path: Path) -> None:
    root = tmp_path / "in"
    (root / "a.wav").write_bytes(b"x")
    listening.until(lambda: "a.wav" in listening.paths)
    (root / "a.wav").rename(root / "b.wav")
    listening.until(lambda: "b.wav" in listening.paths)
    (root / "new").mkdir()
    listening.until(lambda: "new" in listening.paths)
    (root / "new" / "c.wav").write_bytes(b"x")
    listening.until(lambda: "new/c.wav" in listening.paths)
    (root / "b.wav").unlink()
    listening.until(lambda: listening.paths.count("b.wav") > 1)


def test_mere_readers_are_not_heard(listening: Listening, tmp_path: Path) -> None:
    path = tmp_path / "in" / "a.wav"
    path.write_bytes(b"x")
    listening.until(lambda: "a.wav" in listening.paths)
    listening.paths.clear()
    for _ in range(20):
        path.read_bytes()
    (tmp_path / "in" / "end.wav").write_bytes(b"x")
    listening.until(lambda: "end.wav" in listening.paths)
    assert "a.wav" not in listening.paths[listening.paths.index("end.wav") :]


def test_a_linked_root_is_heard_under_its_own_name(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    made = Listening(tmp_path / "link")
    assert made.observer.arm()
    (tmp_path / "real" / "a.wav").write_bytes(b"x")
    made.until(lambda: "a.wav" in made.paths)
    made.observer.disarm()


def test_names_that_are_not_utf8_arrive_as_they_are(listening: Listening) -> None:
    path = listening.root + b"/\xff\xfe.wav"
    with open(path, "wb"):  # noqa: PTH123 - bytes
        pass
    listening.until(lambda: os.fsdecode(b"\xff\xfe.wav") in listening.paths)


def test_an_observer_whose_threads_end_is_known_to_be_dead(listening: Listening) -> None:
    assert listening.observer.alive()
    (emitter,) = listening.observer._observer.emitters
    emitter.stop()
    emitter.join()
    assert not listening.observer.alive()
    assert listening.observer.arm()
    assert listening.observer.alive()


def test_a_root_that_was_made_anew_needs_a_new_observer(listening: Listening, tmp_path: Path) -> None:
    (tmp_path / "in").rename(tmp_path / "old")
    assert not listening.observer.alive()
    (tmp_path / "in").mkdir()
    assert not listening.observer.alive()
    assert listening.observer.arm()
    (tmp_path / "in" / "a.wav").write_bytes(b"x")
    listening.until(lambda: "a.wav" in listening.paths)


@linux
def test_an_overflow_of_the_kernels_queue_asks_for_a_scan(listening: Listening) -> None:
    descriptor = listening.observer._observer._inotify_fd
    descriptor.handle_event(SimpleNamespace(is_queue_overflow=True))
    listening.until(lambda: listening.rescans == {listening.root: "overflow"})


@linux
def test_the_limit_of_watched_folders_is_said_though_watchdog_hides_it(
    listening: Listening, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from watchdog.observers import inotify_c

    monkeypatch.setattr(inotify_c, "inotify_add_watch", lambda *_: -1)
    monkeypatch.setattr(inotify_c.ctypes, "get_errno", lambda: errno.ENOSPC)
    (tmp_path / "in" / "new").mkdir()
    listening.until(lambda: listening.rescans == {listening.root: "watch_limit"})
    assert "max_user_watches" in (listening.observer.problem or "")


@pytest.mark.parametrize(
    ("error", "says"),
    [(OSError(errno.ENOSPC, "x"), "max_user_watches"), (OSError(errno.EMFILE, "x"), "max_user_instances"),
     (RuntimeError("odd"), "odd")],
)  # fmt: skip
def test_events_that_do_not_work_are_said_and_the_folder_is_polled(tmp_path: Path, error: Exception, says: str) -> None:
    def factory() -> Any:
        raise error

    world = watching.World(tmp_path, observe=True, observer_factory=factory)
    world.step()
    (root,) = world.reconciler.roots
    assert says in (root.observer.problem or "")
    assert root.interval == POLLED_SECONDS
    world.drop("a.wav")
    world.advance(POLLED_SECONDS + 4)
    assert world.states() == {"a.wav": "queued"}
    world.close()


def test_where_events_work_scans_are_rare_and_hints_do(tmp_path: Path) -> None:
    world = watching.World(tmp_path, observe=True)
    world.step()
    (root,) = world.reconciler.roots
    assert root.interval == NATIVE_SECONDS
    world.drop("sub/a.wav")
    deadline = time.monotonic() + 10
    while not len(world.reconciler.settle):
        assert time.monotonic() < deadline
        world.reconciler.mailbox.wait(0.05)
        world.step()
    world.advance(6.2)  # an event that comes late makes it wait once more
    assert world.states() == {"sub/a.wav": "queued"}
    world.close()


def test_a_dead_observer_is_armed_again_and_a_scan_finds_what_it_missed(tmp_path: Path) -> None:
    world = watching.World(tmp_path, observe=True)
    world.step()
    (root,) = world.reconciler.roots
    for emitter in root.observer._observer.emitters:
        emitter.stop()
        emitter.join()
    world.drop("missed.wav")
    world.reconciler.mailbox.take()
    world.advance(9)
    assert root.observer.alive()
    assert world.states() == {"missed.wav": "queued"}
    world.close()


@linux
@pytest.mark.parametrize(
    ("kind", "works"), [("ext4", True), ("nfs4", False), ("fuse.sshfs", False), ("fuseblk", True), ("smb3", False)]
)
def test_file_systems_of_other_machines_are_known(kind: str, works: bool) -> None:
    mounts = [(b"/", "ext4"), (b"/mnt/share", kind), (b"/mnt/share-not", "nfs")]
    assert (remote_filesystem(b"/mnt/share/deep", mounts) is None) is works
    assert remote_filesystem(b"/mnt", mounts) is None


def test_the_mailbox_gives_up_single_paths_for_a_scan_when_there_are_too_many() -> None:
    mailbox = Mailbox(most=3)
    for number in range(5):
        mailbox.hint(b"/w", b"/w/%d.wav" % number)
        mailbox.hint(b"/w", b"/w/0.wav")
    mail = mailbox.take()
    assert len(mail.paths) == 3
    assert mail.rescans == {b"/w": "too_many_events"}
    assert mailbox.take().paths == []


def test_a_wake_that_comes_before_the_wait_is_not_lost() -> None:
    mailbox = Mailbox()
    mailbox.wake()
    began = time.monotonic()
    mailbox.wait(30)
    assert time.monotonic() - began < 10
