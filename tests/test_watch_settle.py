from __future__ import annotations

import pytest

from dropscribe.watch.scan import Found
from dropscribe.watch.settle import PLACEHOLDER_SECONDS, Settle


class Disk:
    """A clock and a file that is whatever the test says."""

    def __init__(self) -> None:
        self.now = 0.0
        self.state: Found | OSError | None = self.file(1)
        self.looks = 0
        self.settle = Settle(lambda: self.now, self.look)

    @staticmethod
    def file(size: int, *, mtime: int = 0, inode: int = 1, placeholder: bool = False) -> Found:
        return Found(b"/a.wav", size, mtime, inode, placeholder)

    def look(self, path: bytes) -> Found | None:
        self.looks += 1
        if isinstance(self.state, OSError):
            raise self.state
        return self.state

    def at(self, now: float) -> list[Found]:
        self.now = now
        return self.settle.due()


@pytest.fixture
def disk() -> Disk:
    return Disk()


def test_a_file_is_whole_after_the_quiet_time_without_any_further_event(disk: Disk) -> None:
    disk.settle.watch(b"/a.wav", 3)
    assert disk.settle.next_deadline() == 3
    assert disk.at(2.9) == []
    assert disk.at(3.0) == [disk.state]
    assert len(disk.settle) == 0
    assert disk.settle.next_deadline() is None


@pytest.mark.parametrize("change", [{"size": 2}, {"size": 1, "mtime": 5}, {"size": 1, "inode": 9}])
def test_any_change_of_signature_restarts_the_clock_by_itself(disk: Disk, change: dict[str, int]) -> None:
    disk.settle.watch(b"/a.wav", 3)
    disk.state = Disk.file(**change)
    assert disk.at(3.0) == []
    assert disk.at(5.9) == []
    assert disk.at(6.0) == [disk.state]


def test_an_event_with_a_new_signature_restarts_the_clock_at_once(disk: Disk) -> None:
    disk.settle.watch(b"/a.wav", 3)
    disk.now, disk.state = 2.0, Disk.file(2)
    disk.settle.watch(b"/a.wav", 3)
    assert disk.at(4.9) == []
    assert disk.at(5.0) == [disk.state]


def test_a_reader_that_opens_and_closes_it_again_and_again_delays_nothing(disk: Disk) -> None:
    for tick in range(30):
        disk.now = tick / 10
        disk.settle.watch(b"/a.wav", 3)
    assert disk.at(3.0) == [disk.state]


def test_a_file_that_vanishes_is_forgotten(disk: Disk) -> None:
    disk.settle.watch(b"/a.wav", 3)
    disk.state = None
    assert disk.at(3.0) == []
    assert len(disk.settle) == 0


def test_one_that_is_gone_already_is_not_waited_for(disk: Disk) -> None:
    disk.state = None
    disk.settle.watch(b"/a.wav", 3)
    assert b"/a.wav" not in disk.settle


def test_busy_files_are_tried_again_with_growing_waits_then_settle_like_others(disk: Disk) -> None:
    disk.settle.watch(b"/a.wav", 3)
    disk.state = PermissionError(13, "denied")
    times = []
    disk.now = 3.0
    for _ in range(10):
        assert disk.settle.due() == []
        deadline = disk.settle.next_deadline()
        assert deadline is not None
        times.append(deadline - disk.now)
        disk.now = deadline
    assert times == [1, 2, 4, 8, 16, 32, 60, 60, 60, 60]
    disk.state = Disk.file(7)
    assert disk.settle.due() == []
    assert disk.at(disk.now + 3) == [disk.state]


def test_an_unreadable_file_is_waited_for_from_its_first_mention(disk: Disk) -> None:
    disk.state = OSError(16, "busy")
    disk.settle.watch(b"/a.wav", 3)
    disk.state = Disk.file(1)
    assert disk.at(1.0) == []
    assert disk.at(4.0) == [disk.state]


def test_a_cloud_placeholder_waits_until_it_has_been_fetched(disk: Disk) -> None:
    disk.state = Disk.file(9, placeholder=True)
    disk.settle.watch(b"/a.wav", 3)
    assert disk.at(3.0) == []
    assert disk.at(3.0 + PLACEHOLDER_SECONDS) == []
    disk.state = Disk.file(9)
    assert disk.at(3.0 + 2 * PLACEHOLDER_SECONDS) == []
    assert disk.at(6.0 + 2 * PLACEHOLDER_SECONDS) == [disk.state]


def test_a_quiet_time_of_nothing_settles_at_once(disk: Disk) -> None:
    disk.settle.watch(b"/a.wav", 0)
    assert disk.settle.due() == [disk.state]


def test_looks_are_bounded_and_what_is_left_comes_next(disk: Disk) -> None:
    for number in range(5):
        disk.settle.watch(b"/%d.wav" % number, 0, Disk.file(1))
    assert len(disk.settle.due(limit=2)) == 2
    assert len(disk.settle.due(limit=9)) == 3


def test_a_look_that_the_caller_had_is_not_repeated(disk: Disk) -> None:
    disk.settle.watch(b"/a.wav", 3, Disk.file(1))
    assert disk.looks == 0
