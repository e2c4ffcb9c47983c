from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest

import watching
from dropscribe.errors import DatabaseBusy, SourceChanged
from dropscribe.watch import reconcile, scan
from dropscribe.watch.health import Health

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dropscribe.watch.scan import Found

NS = 1_700_000_000_000_000_000


@pytest.fixture
def world(tmp_path: Path) -> Iterator[watching.World]:
    made = watching.World(tmp_path)
    yield made
    made.close()


# -- whole, then queued ------------------------------------------------------------------------------------------------


def test_a_dropped_file_is_queued_once_when_it_is_whole(world: watching.World) -> None:
    world.drop("a.wav")
    world.scan()
    world.advance(2.9)
    assert world.jobs() == []
    world.advance(0.2)
    assert world.jobs() == [("a.wav", "queued", None)]
    assert world.wakes == 1
    world.settle()
    assert len(world.jobs()) == 1


def test_files_there_at_start_up_have_to_settle_too(world: watching.World) -> None:
    path = world.drop("a.wav", b"1")
    world.step()
    world.clock.now += 2
    world.drop("a.wav", b"12")
    world.advance(2)
    assert world.jobs() == []
    world.advance(3.1)
    assert world.jobs() == [("a.wav", "queued", None)]
    assert world.db.rows("SELECT size_bytes FROM jobs")[0][0] == os.stat(path).st_size  # noqa: PTH116


def test_a_copy_in_pieces_with_long_pauses_is_queued_when_its_last_piece_is_old_enough(world: watching.World) -> None:
    for piece in range(1, 5):
        world.drop("a.wav", b"x" * piece)
        world.hint("a.wav")
        world.advance(2.5)
    assert world.jobs() == []
    world.advance(1)
    assert world.states() == {"a.wav": "queued"}


def test_the_rename_of_a_download_to_its_final_name_is_seen(world: watching.World) -> None:
    world.drop("a.wav.part")
    world.settle()
    assert world.jobs() == []
    (world.folder / "a.wav.part").rename(world.folder / "a.wav")
    world.hint("a.wav")
    world.advance(3.1)
    assert world.states() == {"a.wav": "queued"}


def test_a_folder_that_is_moved_in_is_seen_with_all_its_files(world: watching.World) -> None:
    world.step()
    outside = world.base / "album"
    (outside / "cd1").mkdir(parents=True)
    (outside / "cd1" / "1.flac").write_bytes(b"1")
    (outside / "2.flac").write_bytes(b"2")
    outside.rename(world.folder / "album")
    world.hint("album")
    world.advance(3.1)
    assert world.states() == {"album/cd1/1.flac": "queued", "album/2.flac": "queued"}


def test_two_names_that_differ_in_bytes_only_are_two_files(world: watching.World) -> None:
    for name in (b"caf\xc3\xa9.wav", b"cafe\xcc\x81.wav", b"\xff.wav", b"a\nb.wav"):
        world.drop(name)
    world.settle()
    rows = world.db.rows("SELECT path, path_raw FROM jobs")
    assert len(rows) == 4
    assert all("\n" not in row["path"] for row in rows)
    assert {row["path_raw"].rpartition(b"/")[2] for row in rows} >= {b"\xff.wav", b"a\nb.wav"}


def test_a_burst_is_queued_whole_in_few_transactions(world: watching.World) -> None:
    for number in range(1200):
        world.drop(f"{number}.wav")
    world.settle()
    assert len(world.jobs()) == 1200
    assert world.wakes <= 3


def test_a_busy_file_is_tried_again_until_it_can_be_seen(tmp_path: Path) -> None:
    locked = True

    def look(path: bytes) -> Found | None:
        if locked:
            raise PermissionError(13, "denied")
        return scan.look(path)

    world = watching.World(tmp_path, look=look)
    world.step()
    world.drop("a.wav")
    world.hint("a.wav")
    world.advance(10)
    assert world.jobs() == []
    locked = False
    world.advance(20)
    assert world.states() == {"a.wav": "queued"}
    world.close()


# -- what a known file means -------------------------------------------------------------------------------------------


def test_a_second_scan_of_an_unchanged_tree_writes_nothing_but_its_time(world: watching.World) -> None:
    for name in ("a.wav", "b/c.mp3"):
        world.drop(name)
    world.settle()
    world.finish("a.wav")
    before = [tuple(row) for row in world.db.rows("SELECT * FROM jobs")]
    changes = world.db.conn.total_changes
    world.scan()
    world.advance(10)
    assert world.db.conn.total_changes - changes == 1
    assert [tuple(row) for row in world.db.rows("SELECT * FROM jobs")] == before


def test_a_touched_but_unchanged_file_only_gets_its_new_time(world: watching.World) -> None:
    world.drop("a.wav", at=NS)
    world.settle()
    world.finish("a.wav")
    os.utime(world.folder / "a.wav", ns=(NS + 1, NS + 1))
    world.settle()
    assert world.jobs() == [("a.wav", "done", None)]
    assert world.db.rows("SELECT mtime_ns FROM jobs")[0][0] == NS + 1


def test_new_content_of_the_same_size_is_a_new_job_and_the_done_one_stays(world: watching.World) -> None:
    world.drop("a.wav", b"one", at=NS)
    world.settle()
    world.finish("a.wav")
    world.drop("a.wav", b"two", at=NS + 1)
    world.settle()
    assert world.jobs() == [("a.wav", "done", None), ("a.wav", "queued", None)]


def test_a_replacement_with_the_same_size_and_time_is_noticed_by_its_inode(world: watching.World) -> None:
    world.drop("a.wav", b"one", at=NS)
    world.settle()
    world.finish("a.wav")
    world.scan()
    world.drop("b.tmp", b"two", at=NS)
    (world.folder / "b.tmp").replace(world.folder / "a.wav")
    world.settle()
    assert world.jobs() == [("a.wav", "done", None), ("a.wav", "queued", None)]


def test_content_replaced_while_queued_supersedes_the_old_job(world: watching.World) -> None:
    world.drop("a.wav", b"one")
    world.settle()
    world.drop("a.wav", b"other")
    world.settle()
    assert world.jobs() == [("a.wav", "skipped", "superseded"), ("a.wav", "queued", None)]


def test_content_replaced_while_running_supersedes_it_too(world: watching.World) -> None:
    world.drop("a.wav", b"one")
    world.settle()
    (job,) = world.queue.claim("c", 1)
    world.drop("a.wav", b"other")
    world.settle()
    assert world.jobs() == [("a.wav", "skipped", "superseded"), ("a.wav", "queued", None)]
    assert world.queue.hand_back("c") == []
    assert job.size_bytes == 3


def test_a_failed_file_is_tried_again_only_with_other_content(world: watching.World) -> None:
    world.drop("a.wav", b"bad", at=NS)
    world.settle()
    world.finish("a.wav", "failed")
    os.utime(world.folder / "a.wav", ns=(NS + 5, NS + 5))
    world.settle()
    assert world.states() == {"a.wav": "failed"}
    world.drop("a.wav", b"good now")
    world.settle()
    assert world.states() == {"a.wav": "queued"}


def test_a_file_that_changes_while_it_is_hashed_settles_again(tmp_path: Path) -> None:
    class Reader(watching.FakeReader):
        tries = 0

        def hash(self, path: bytes) -> watching.Fingerprint:
            Reader.tries += 1
            if Reader.tries == 1:
                raise SourceChanged("changed")
            return super().hash(path)

    world = watching.World(tmp_path, reader=Reader)
    world.drop("a.wav", b"one", at=NS)
    world.settle()
    world.finish("a.wav")
    os.utime(world.folder / "a.wav", ns=(NS + 1, NS + 1))
    world.settle()
    world.advance(6)
    world.hashed()
    assert Reader.tries == 2
    assert world.jobs() == [("a.wav", "done", None)]
    world.close()


def test_after_a_restart_finished_files_are_known_without_reading_them(world: watching.World) -> None:
    world.drop("a.wav")
    world.settle()
    world.finish("a.wav")
    world.reconciler.close()
    world.start()
    world.settle()
    assert world.jobs() == [("a.wav", "done", None)]


# -- gone, moved -------------------------------------------------------------------------------------------------------


def test_a_file_removed_while_queued_ends_missing_and_may_come_back(world: watching.World) -> None:
    path = world.drop("a.wav", at=NS)
    world.settle()
    os.unlink(path)  # noqa: PTH108
    world.drop("keep.wav")
    world.hint("a.wav")
    world.advance(1.5)
    assert world.states() == {"a.wav": "missing"}
    world.drop("a.wav", at=NS)
    world.settle()
    assert world.jobs()[-1] == ("a.wav", "queued", None)


def test_a_done_file_that_is_removed_stays_done(world: watching.World) -> None:
    path = world.drop("a.wav")
    world.drop("b.wav")
    world.settle()
    world.finish("a.wav")
    os.unlink(path)  # noqa: PTH108
    world.settle()
    assert world.states()["a.wav"] == "done"


def test_nothing_is_missing_after_a_pass_that_could_not_see_everything(
    world: watching.World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.drop("sub/a.wav")
    world.drop("b.wav")
    world.settle()
    real = os.scandir

    def scandir(path: bytes) -> Any:
        if path.endswith(b"/sub"):
            raise OSError(5, "Input/output error")
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    (world.folder / "b.wav").unlink()
    world.settle()
    assert world.states() == {"sub/a.wav": "queued", "b.wav": "queued"}
    assert "could not be read" in world.root()["error"]
    monkeypatch.undo()
    world.settle()
    assert world.states() == {"sub/a.wav": "queued", "b.wav": "missing"}
    assert world.root()["error"] is None


@pytest.mark.parametrize("by_event", [True, False])
def test_a_rename_while_queued_is_followed(world: watching.World, by_event: bool) -> None:
    world.drop("a.wav")
    world.drop("keep.wav")
    world.settle()
    (world.folder / "a.wav").rename(world.folder / "b.wav")
    if by_event:
        world.hint("a.wav")
        world.hint("b.wav")
        world.step()
    else:
        world.scan()
    assert sorted(world.jobs()) == [("b.wav", "queued", None), ("keep.wav", "queued", None)]
    world.settle()
    assert len(world.jobs()) == 2


# -- roots -------------------------------------------------------------------------------------------------------------


def test_a_root_that_is_gone_is_waited_for_and_its_files_are_not_missing(world: watching.World) -> None:
    world.drop("a.wav", at=NS)
    world.settle()
    world.folder.rename(world.base / "unplugged")
    world.scan()
    assert world.root()["state"] == "away"
    assert world.states() == {"a.wav": "queued"}
    world.advance(60)
    assert world.states() == {"a.wav": "queued"}
    (world.base / "unplugged").rename(world.folder)
    world.advance(15)
    assert world.root()["state"] == "ok"
    assert world.jobs() == [("a.wav", "queued", None)]


def test_a_remount_with_other_inode_numbers_queues_nothing(world: watching.World) -> None:
    world.drop("a.wav", at=NS)
    world.settle()
    world.finish("a.wav")
    shutil.copytree(world.folder, world.base / "copy")
    world.folder.rename(world.base / "old")
    (world.base / "copy").rename(world.folder)
    world.settle()
    world.advance(10)
    assert world.jobs() == [("a.wav", "done", None)]
    assert not len(world.reconciler.hasher)


def test_a_suddenly_empty_root_is_away_until_a_second_pass_says_the_same(world: watching.World) -> None:
    world.drop("a.wav")
    world.settle()
    (world.folder / "a.wav").unlink()
    world.scan()
    assert world.root()["state"] == "away"
    assert world.states() == {"a.wav": "queued"}
    world.advance(11)
    assert world.root()["state"] == "ok"
    assert world.states() == {"a.wav": "missing"}


def test_an_empty_mount_point_stays_away(world: watching.World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dropscribe.watch.roots.examine", lambda path, *, was_mounted: Health("ok", None, True, (1, 1)))
    world.drop("a.wav")
    world.settle()
    assert world.root()["mounted"] == 1
    empty = Health("ok", None, True, (1, 1), empty=True)
    monkeypatch.setattr("dropscribe.watch.roots.examine", lambda path, *, was_mounted: empty)
    world.scan()
    world.advance(100)
    assert world.root()["state"] == "away"
    assert world.states() == {"a.wav": "queued"}


def test_a_mount_point_without_its_mount_is_away_even_after_a_restart(world: watching.World) -> None:
    world.drop("a.wav")
    world.settle()
    world.db.execute("UPDATE roots SET mounted = 1")
    world.reconciler.close()
    world.start()
    (world.folder / "a.wav").unlink()
    world.step()
    assert (world.root()["state"], world.root()["error"]) == ("away", "nothing is mounted there")
    assert world.states() == {"a.wav": "queued"}


def test_a_root_that_is_no_folder_or_forbidden_is_unreadable(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    world = watching.World(tmp_path, {"path": tmp_path / "file"})
    world.step()
    assert world.root()["state"] == "unreadable"
    world.close()


def test_existing_files_may_be_left_and_later_changes_still_count(tmp_path: Path) -> None:
    world = watching.World(tmp_path, {"path": tmp_path / "in", "existing": "leave"})
    world.drop("old.wav", b"old")
    world.drop("growing.wav", b"1")
    world.step()
    assert sorted(world.jobs()) == [("growing.wav", "skipped", "preexisting"), ("old.wav", "skipped", "preexisting")]
    world.drop("growing.wav", b"12")
    world.drop("new.wav", b"new")
    world.settle()
    assert world.states() == {"old.wav": "skipped", "growing.wav": "queued", "new.wav": "queued"}
    world.reconciler.close()
    world.start()
    world.drop("later.wav")
    world.settle()
    assert world.states()["later.wav"] == "queued"
    world.close()


def test_each_root_has_its_own_quiet_time_and_nested_ones_share_no_file(tmp_path: Path) -> None:
    inner = tmp_path / "in" / "slow"
    inner.mkdir(parents=True)
    world = watching.World(tmp_path, {"path": tmp_path / "in"}, {"path": inner, "quiet_seconds": 60})
    world.drop("a.wav")
    world.drop("slow/b.wav")
    world.scan()
    world.advance(5)
    assert world.states() == {"a.wav": "queued"}
    world.advance(60)
    assert world.states() == {"a.wav": "queued", "slow/b.wav": "queued"}
    assert world.db.rows("SELECT count(DISTINCT root_id) FROM jobs")[0][0] == 2
    world.close()


def test_waiting_files_and_placeholders_are_counted(world: watching.World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.drop("a.wav")
    cloud = os.stat(world.drop("cloud.wav")).st_ino  # noqa: PTH116
    monkeypatch.setattr(scan, "is_placeholder", lambda status: status.st_ino == cloud)
    world.scan()
    assert world.root()["waiting"] == 2
    world.advance(6)
    assert world.root()["waiting"] == 1
    assert world.states() == {"a.wav": "queued"}
    monkeypatch.undo()
    world.settle()
    assert world.states() == {"a.wav": "queued", "cloud.wav": "queued"}


# -- when to scan ------------------------------------------------------------------------------------------------------


def test_without_events_the_folder_is_scanned_every_thirty_seconds(world: watching.World) -> None:
    world.step()
    world.drop("a.wav")
    world.advance(29)
    assert world.jobs() == []
    world.advance(5)
    assert world.states() == {"a.wav": "queued"}


def test_a_jump_of_the_clock_means_a_scan(world: watching.World) -> None:
    world.step()
    world.drop("a.wav")
    world.clock.asleep += 3600
    world.advance(3.1)
    assert world.states() == {"a.wav": "queued"}


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_small_drift_of_the_clock_means_nothing(world: watching.World, hours: int) -> None:
    world.step()
    world.drop("a.wav")
    for _ in range(20):
        world.clock.asleep += hours * 0.5
        world.advance(1)
    assert world.jobs() == []


def test_a_locked_job_log_loses_nothing(world: watching.World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.drop("a.wav")
    world.scan()

    def busy(*args: Any, **kw: Any) -> None:
        raise DatabaseBusy("locked")

    monkeypatch.setattr(world.queue, "enqueue", busy)
    world.advance(4)
    assert world.jobs() == []
    monkeypatch.undo()
    world.advance(reconcile.RETRY_SECONDS + 4)
    assert world.states() == {"a.wav": "queued"}


def test_the_pause_between_steps_never_spins(world: watching.World) -> None:
    world.drop("a.wav")
    world.step()
    steps = 0
    until = world.clock.now + 300
    while world.clock.now < until:
        pause = world.step()
        world.clock.now += max(pause, 0.001)
        steps += 1
    assert steps < 120  # an observer check every five seconds, a scan now and then
