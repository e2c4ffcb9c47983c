"""What went wrong for others, with native events and without. FIELD lists the reports and the tests that hold them.

Here are those that are about the watcher as a whole; the other tests of the list are next to what they test.
"""

from __future__ import annotations

import ast
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import watching
from dropscribe.watch import scan
from dropscribe.watch.roots import NATIVE_SECONDS, POLLED_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dropscribe.watch.scan import Found

FIELD = {
    # not whole yet
    "watchdog#586, #309; paperless-ngx#1279: created fires when a copy starts": [
        "test_a_copy_that_takes_long_is_queued_once_when_it_is_whole",
    ],
    "paperless-ng#1286: a slow upload pauses longer than the settle time": [
        "test_a_folder_for_slow_uploads_waits_longer",
        "test_a_file_that_was_taken_too_early_and_failed_is_tried_again_when_it_is_whole",
        "test_content_replaced_while_running_supersedes_it_too",
    ],
    "chokidar#1100: still being written at start-up": ["test_a_file_still_being_written_at_start_up_has_to_settle"],
    "filebot-docker#15: deferred until the next change, and none came": [
        "test_a_file_nobody_touches_again_is_taken_by_a_timer",
    ],
    "paperless-ngx#9698: busy once, never retried": ["test_a_file_that_is_busy_for_a_while_is_taken_later"],
    "library-loader#53, Calibre-Web-Automated#317: .part ingested, or its rename missed": [
        "test_a_download_is_taken_under_its_final_name_alone",
    ],
    "TranscriptionSuite: the ledger was written before the job ran": [
        "test_nothing_is_known_as_done_before_its_job_has_ended",
    ],
    # watcher loss
    "watchdog#427, #793: an exception kills the observer's thread": [
        "test_a_dead_observer_is_armed_again_and_a_scan_finds_what_it_missed",
        "test_an_observer_whose_threads_end_is_known_to_be_dead",
    ],
    "watchdog#124: drop flags are never read": ["test_a_file_whose_event_was_lost_is_found_by_the_next_scan"],
    "paperless-ngx#13011: one of three files in a burst was never seen": [
        "test_all_of_a_burst_is_taken_though_an_event_was_lost",
    ],
    "watchdog#420: unmounted and mounted again, no more events": [
        "test_a_folder_that_went_away_and_came_back_is_watched_again",
        "test_a_mount_point_without_its_mount_is_away_even_after_a_restart",
        "test_a_remount_with_other_inode_numbers_queues_nothing",
    ],
    "jellyfin#16874: ENOSPC, off and silent": [
        "test_events_that_do_not_work_are_said_and_the_folder_is_polled",
        "test_the_limit_of_watched_folders_is_said_though_watchdog_hides_it",
    ],
    "macrowhisper#27: dead after sleep while status says yes": ["test_after_sleep_everything_is_looked_at"],
    "watchdog#878, ownfoil#323: polling that eats memory and system calls": [
        "test_a_quiet_folder_is_listed_and_nothing_is_asked_of_the_job_log",
        "test_memory_is_bounded_and_what_does_not_fit_is_judged_anew_each_time",
        "test_the_pause_between_steps_never_spins",
    ],
    # names
    "hyperframes#2493, mlx-examples#1447: transcripts that overwrite each other": [
        "test_two_sources_with_one_stem_get_two_transcripts_and_keep_them",
        "test_one_name_in_two_folders_of_an_output_tree",
    ],
    "SlowMovie#111, buzz#1329: ._movie.mp4, .txt and .xls taken": ["test_companions_of_recordings_are_left_alone"],
    "newlines, quotes, emoji, bytes that are not UTF-8, 255 bytes, trailing dots and spaces": [
        "test_any_name_works_from_drop_to_transcript_to_query",
        "test_two_names_that_differ_in_bytes_only_are_two_files",
    ],
}


class Field(watching.World):
    """``native``: changes are noticed by events, and scans are far; else by scans alone."""

    def __init__(self, base: Path, *tables: dict[str, Any], native: bool, **kw: Any) -> None:
        super().__init__(base, *tables, observe=native, **kw)
        self.native = native

    def notice(self, condition: Callable[[], object]) -> None:
        """Until what happened has been noticed: by its event, or by the next scan."""
        if not self.native:
            self.advance(POLLED_SECONDS)
            assert condition()
            return
        deadline = time.monotonic() + 10
        self.step()
        while not condition():
            assert time.monotonic() < deadline
            self.reconciler.mailbox.wait(0.05)
            self.step()

    def whole(self) -> None:
        """Until nothing changes any more: a late event of an earlier look may make its timer wait once more."""
        self.advance(2 * 3.1)

    def waits_for(self, name: str) -> Callable[[], bool]:
        path = os.fsencode(self.folder / name)
        return lambda: path in self.reconciler.settle or name in self.states()


@pytest.fixture(params=["native", "polled"])
def native(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "native")


@pytest.fixture
def world(tmp_path: Path, native: bool) -> Iterator[Field]:
    made = Field(tmp_path, native=native)
    made.step()
    yield made
    made.close()


# -- not whole yet -----------------------------------------------------------------------------------------------------


def test_a_copy_that_takes_long_is_queued_once_when_it_is_whole(world: Field) -> None:
    with (world.folder / "a.wav").open("wb") as copy:
        for _ in range(6):
            copy.write(b"piece")
            copy.flush()
            world.advance(POLLED_SECONDS if not world.native and not len(world.reconciler.settle) else 2.5)
            assert world.jobs() == []
    world.notice(world.waits_for("a.wav"))
    world.whole()
    assert world.jobs() == [("a.wav", "queued", None)]
    assert world.db.rows("SELECT size_bytes FROM jobs")[0][0] == 30


def test_a_folder_for_slow_uploads_waits_longer(tmp_path: Path, native: bool) -> None:
    world = Field(tmp_path, {"path": tmp_path / "in", "quiet_seconds": 120}, native=native)
    world.step()
    world.drop("a.wav", b"half")
    world.notice(world.waits_for("a.wav"))
    world.advance(80)
    world.drop("a.wav", b"half and half")
    world.advance(100)
    assert world.jobs() == []
    world.advance(100)
    assert world.jobs() == [("a.wav", "queued", None)]
    world.close()


def test_a_file_that_was_taken_too_early_and_failed_is_tried_again_when_it_is_whole(world: Field) -> None:
    world.drop("a.wav", b"half")
    world.notice(world.waits_for("a.wav"))
    world.whole()
    world.finish("a.wav", "failed")
    world.drop("a.wav", b"half and half")
    world.notice(lambda: os.fsencode(world.folder / "a.wav") in world.reconciler.settle or len(world.jobs()) > 1)
    world.whole()
    assert world.jobs() == [("a.wav", "failed", "decode_failed"), ("a.wav", "queued", None)]


def test_a_file_still_being_written_at_start_up_has_to_settle(tmp_path: Path, native: bool) -> None:
    (tmp_path / "in").mkdir()
    with (tmp_path / "in" / "a.wav").open("wb") as growing:
        world = Field(tmp_path, native=native)
        for _ in range(4):
            growing.write(b"piece")
            growing.flush()
            world.advance(2)
        assert world.jobs() == []
    world.advance(6.1)  # its timer looks, sees a change, and waits once more
    assert world.states() == {"a.wav": "queued"}
    world.close()


def test_a_file_nobody_touches_again_is_taken_by_a_timer(world: Field) -> None:
    world.drop("a.wav")
    world.notice(world.waits_for("a.wav"))
    world.reconciler.mailbox.take()
    pause = world.step()
    if not world.jobs():
        assert pause <= 3.1
        world.clock.now += 3.1
        world.step()
    assert world.jobs() == [("a.wav", "queued", None)]


def test_a_file_that_is_busy_for_a_while_is_taken_later(tmp_path: Path, native: bool) -> None:
    busy = True

    def look(path: bytes) -> Found | None:
        if busy:
            raise OSError(16, "Device or resource busy")
        return scan.look(path)

    world = Field(tmp_path, native=native, look=look)
    world.step()
    world.drop("a.wav")
    world.notice(world.waits_for("a.wav"))
    world.advance(100)
    assert world.jobs() == []
    busy = False
    world.advance(64)
    assert world.states() == {"a.wav": "queued"}
    world.close()


@pytest.mark.parametrize("temporary", ["a.wav.part", "a.wav.crdownload", "Unconfirmed 1.tmp", ".a.wav.Xy12"])
def test_a_download_is_taken_under_its_final_name_alone(world: Field, temporary: str) -> None:
    world.drop(temporary, b"half")
    world.advance(40)
    assert world.jobs() == []
    (world.folder / temporary).rename(world.folder / "a.wav")
    world.notice(world.waits_for("a.wav"))
    world.whole()
    assert world.jobs() == [("a.wav", "queued", None)]


def test_nothing_is_known_as_done_before_its_job_has_ended(world: Field) -> None:
    world.drop("a.wav")
    world.notice(world.waits_for("a.wav"))
    world.whole()
    (job,) = world.queue.claim("c", 1)
    world.queue.fail(job, OSError("the worker has a bad day"))
    world.reconciler.close()
    world.start()
    world.settle()
    assert world.states() == {"a.wav": "queued"}


@pytest.mark.parametrize("how", ["rb", "r+b"])
def test_an_indexer_that_opens_and_closes_a_file_again_and_again_delays_nothing(world: Field, how: str) -> None:
    world.drop("a.wav")
    world.notice(world.waits_for("a.wav"))
    world.drop("b.wav")  # one that has its whole quiet time in front of it
    world.hint("b.wav")
    world.step()
    for _ in range(29):
        with (world.folder / "b.wav").open(how):
            pass
        world.clock.now += 0.1
        world.reconciler.mailbox.wait(0.01)
        world.step()
        assert "b.wav" not in world.states()
    world.advance(0.2)
    assert world.states()["b.wav"] == "queued"


# -- watcher loss ------------------------------------------------------------------------------------------------------


def test_a_file_whose_event_was_lost_is_found_by_the_next_scan(world: Field) -> None:
    world.drop("a.wav")
    lose_events(world)
    world.advance(NATIVE_SECONDS + 4)
    assert world.states() == {"a.wav": "queued"}


def test_all_of_a_burst_is_taken_though_an_event_was_lost(world: Field) -> None:
    world.drop("1.wav")
    lose_events(world)
    world.drop("2.wav")
    world.drop("3.wav")
    world.notice(world.waits_for("3.wav"))
    world.advance(NATIVE_SECONDS + 4)
    assert world.states() == {"1.wav": "queued", "2.wav": "queued", "3.wav": "queued"}


def lose_events(world: Field) -> None:
    """Whatever the observer has to say in the next moment is not heard."""
    if world.native:
        world.reconciler.mailbox.wait(5)
        time.sleep(0.1)  # what is lost late would only make the test weaker
        world.reconciler.mailbox.take()


def test_a_folder_that_went_away_and_came_back_is_watched_again(world: Field) -> None:
    world.drop("a.wav")
    world.notice(world.waits_for("a.wav"))
    world.whole()
    world.folder.rename(world.base / "unplugged")
    world.advance(6 if world.native else POLLED_SECONDS)
    assert world.root()["state"] == "away"
    assert world.states() == {"a.wav": "queued"}
    assert not world.queue.due()
    (world.base / "unplugged").rename(world.folder)
    world.advance(20)
    assert world.root()["state"] == "ok"
    assert world.queue.due()
    world.drop("b.wav")
    world.notice(world.waits_for("b.wav"))
    world.whole()
    assert world.jobs() == [("a.wav", "queued", None), ("b.wav", "queued", None)]


def test_after_sleep_everything_is_looked_at(world: Field) -> None:
    world.drop("a.wav")
    lose_events(world)
    world.clock.asleep += 8 * 3600
    world.advance(3.2)
    assert world.states() == {"a.wav": "queued"}


# -- names -------------------------------------------------------------------------------------------------------------


def test_companions_of_recordings_are_left_alone(world: Field) -> None:
    for name in ("._movie.mp4", "notes.txt", "table.xls", "a.json", ".hidden/a.wav", "x.wav.download/x.wav"):
        world.drop(name)
    world.drop("movie.mp4")
    world.notice(world.waits_for("movie.mp4"))
    world.advance(40)
    assert world.states() == {"movie.mp4": "queued"}


def test_every_report_is_held_by_tests_that_exist() -> None:
    here = Path(__file__).parent
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in here.glob("test_*.py")]
    existing = {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    named = {test for tests in FIELD.values() for test in tests}
    assert named <= existing, named - existing
