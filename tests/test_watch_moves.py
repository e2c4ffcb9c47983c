"""Who is the same file: renames, moves between folders, touches; what is believed of a quiet folder."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

import watching
from dropscribe.errors import SourceMissing
from dropscribe.jobs.queue import SegmentRow
from dropscribe.watch.memory import MOST_GONE, Memory
from dropscribe.watch.scan import Found, mark

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NS = 1_700_000_000_000_000_000


@pytest.fixture
def world(tmp_path: Path) -> Iterator[watching.World]:
    made = watching.World(tmp_path)
    made.drop("keep.wav", b"keep")  # a folder that is suddenly empty is another story
    yield made
    made.close()


def mine(world: watching.World) -> list[tuple[str, str, str | None]]:
    return [job for job in world.jobs() if job[0] != "keep.wav"]


@pytest.mark.parametrize("state", ["done", "failed"])
def test_a_finished_file_that_is_renamed_is_not_done_again(world: watching.World, state: str) -> None:
    world.drop("a.wav")
    world.settle()
    world.finish("a.wav", state)
    (world.folder / "sub").mkdir()
    (world.folder / "a.wav").rename(world.folder / "sub" / "b.wav")
    world.settle()
    assert [job[:2] for job in mine(world)] == [("sub/b.wav", state)]


def test_a_renamed_folder_takes_its_jobs_along(world: watching.World) -> None:
    for name in ("old/a.wav", "old/deep/b.wav"):
        world.drop(name, name.encode())
    world.settle()
    world.finish("old/a.wav")
    (world.folder / "old").rename(world.folder / "new")
    world.settle()
    assert mine(world) == [("new/a.wav", "done", None), ("new/deep/b.wav", "queued", None)]


def test_a_file_renamed_while_it_runs_goes_on_under_its_new_name_with_its_segments(world: watching.World) -> None:
    world.drop("a.wav")
    world.scan()
    world.advance(3.1)
    (job,) = [job for job in world.queue.claim("c", 9) if job.path.endswith("/a.wav")]
    world.queue.save_segments(job, "k", [SegmentRow(0, 1000, "one", None, 1, "eos")])
    (world.folder / "a.wav").rename(world.folder / "b.wav")
    world.settle()
    assert mine(world) == [("b.wav", "running", None)]
    world.queue.fail(job, SourceMissing("gone"))
    assert mine(world) == [("b.wav", "queued", None)]
    assert len(world.queue.saved_segments(job.id, "k")) == 1


@pytest.mark.parametrize("first", ["old scanned first", "new scanned first"])
def test_a_queued_file_moved_between_watched_folders_keeps_its_job(tmp_path: Path, first: str) -> None:
    one, two = tmp_path / "in", tmp_path / "two"
    two.mkdir()
    tables = [{"path": one}, {"path": two}]
    world = watching.World(tmp_path, *(tables if first == "old scanned first" else reversed(tables)))
    world.drop("keep.wav", b"keep")
    world.drop("a.wav")
    world.settle()
    (one / "a.wav").rename(two / "b.wav")
    world.settle()
    rows = world.db.rows("SELECT j.path, j.state, r.path AS root FROM jobs j JOIN roots r ON r.id = j.root_id "
                         "WHERE j.path NOT LIKE '%keep.wav'")  # fmt: skip
    assert [tuple(row) for row in rows] == [(str(two / "b.wav"), "queued", str(two))]
    world.close()


def test_a_queued_file_of_known_content_is_followed_to_another_disk(world: watching.World) -> None:
    world.drop("a.wav", b"known content")
    world.settle()
    world.db.execute(
        "UPDATE jobs SET content_hash = ? WHERE path_raw = ?",
        (watching.Fingerprint(os.fsencode(world.folder / "a.wav")).content_hash, os.fsencode(world.folder / "a.wav")),
    )
    shutil.copyfile(world.folder / "a.wav", world.folder / "copied.wav")  # another inode, another time
    (world.folder / "a.wav").unlink()
    world.settle()
    world.settle()
    assert mine(world) == [("copied.wav", "queued", None)]


def test_content_done_under_a_name_that_is_gone_gets_a_job_of_its_own(world: watching.World) -> None:
    world.drop("a.wav", b"talk")
    world.settle()
    world.finish("a.wav")
    (world.folder / "a.wav").unlink()
    world.settle()
    world.drop("b.wav", b"talk")
    world.settle()
    assert mine(world) == [("a.wav", "done", None), ("b.wav", "queued", None)]


def test_a_copy_with_size_and_time_of_a_file_that_stays_is_a_file_of_its_own(world: watching.World) -> None:
    world.drop("a.wav", at=NS)
    world.settle()
    shutil.copy2(world.folder / "a.wav", world.folder / "b.wav")
    world.settle()
    assert [job[:2] for job in mine(world)] == [("a.wav", "queued"), ("b.wav", "queued")]


def test_what_lies_on_a_disk_that_is_gone_has_not_moved(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    world = watching.World(tmp_path, {"path": tmp_path / "in"}, {"path": tmp_path / "disk"})
    (tmp_path / "disk" / "a.wav").write_bytes(b"talk")
    os.utime(tmp_path / "disk" / "a.wav", ns=(NS, NS))
    world.settle()
    (tmp_path / "disk").rename(tmp_path / "unplugged")
    os.link(tmp_path / "unplugged" / "a.wav", tmp_path / "in" / "a.wav")  # the very inode
    world.settle()
    paths = [row[0] for row in world.db.rows("SELECT path FROM jobs ORDER BY id")]
    assert paths == [str(tmp_path / "disk" / "a.wav"), str(tmp_path / "in" / "a.wav")]
    world.close()


def test_a_running_file_of_known_content_that_is_only_touched_goes_on(world: watching.World) -> None:
    world.drop("a.wav", at=NS)
    world.settle()
    for job in world.queue.claim("c", 9):
        world.queue.note_media(job, content_hash=watching.Fingerprint(job.path_raw).content_hash)
    os.utime(world.folder / "a.wav", ns=(NS + 7, NS + 7))
    world.settle()
    assert mine(world) == [("a.wav", "running", None)]
    assert world.db.rows("SELECT 1 FROM jobs WHERE mtime_ns = ?", (NS + 7,))


def test_a_running_file_of_known_content_that_is_replaced_is_superseded(world: watching.World) -> None:
    world.drop("a.wav", b"one", at=NS)
    world.settle()
    for job in world.queue.claim("c", 9):
        world.queue.note_media(job, content_hash=watching.Fingerprint(job.path_raw).content_hash)
    world.drop("a.wav", b"two", at=NS + 7)
    world.settle()
    assert mine(world) == [("a.wav", "skipped", "superseded"), ("a.wav", "queued", None)]


# -- what is believed of a folder that is as it was -------------------------------------------------------------------


def test_a_quiet_folder_is_listed_and_nothing_is_asked_of_the_job_log(world: watching.World) -> None:
    for number in range(20):
        world.drop(f"sub/{number}.wav", b"%d" % number)
    world.settle()
    world.scan()
    asked: list[str] = []
    world.db.conn.set_trace_callback(asked.append)
    world.scan()
    world.db.conn.set_trace_callback(None)
    assert not [sql for sql in asked if "path_raw" in sql]
    assert len([sql for sql in asked if "UPDATE" in sql or "INSERT" in sql]) == 1


def test_a_file_that_went_missing_by_mistake_is_queued_again_though_nothing_in_its_folder_changed(
    world: watching.World,
) -> None:
    world.drop("a.wav")
    world.settle()
    world.scan()
    side = watching.open_database(world.settings.database)
    queue = watching.Queue(side)
    for job in queue.claim("c", 9):  # another process; for a moment the share did not answer
        queue.fail(job, SourceMissing("gone"))
    world.settle()
    assert [job[:2] for job in mine(world)] == [("a.wav", "missing"), ("a.wav", "queued")]
    side.close()


def test_a_row_that_somebody_removed_is_made_anew(world: watching.World) -> None:
    world.drop("a.wav")
    world.settle()
    world.finish("a.wav")
    world.scan()
    side = watching.open_database(world.settings.database)
    side.execute("DELETE FROM jobs WHERE state = 'done'")
    side.close()
    world.settle()
    assert mine(world) == [("a.wav", "queued", None)]


def test_memory_is_bounded_and_what_does_not_fit_is_judged_anew_each_time() -> None:
    memory = Memory(most=10)
    for folder in range(4):
        marks = {hash(b"%d" % name): name for name in range(4)}
        memory.learn(b"/w/%d" % folder, 7, marks)
    assert len(memory) == 8
    assert [memory.total(b"/w/%d" % folder) for folder in range(4)] == [7, 7, None, None]
    memory.finished_pass(set())
    assert len(memory) == 0
    assert not memory


def test_only_so_many_vanished_files_are_kept_in_mind() -> None:
    memory = Memory()
    memory.learn(b"/w", 1, {number: number for number in range(MOST_GONE + 5)})
    memory.learn(b"/w", 1, {})
    assert len(memory._gone) == MOST_GONE


def test_a_vanished_file_is_kept_in_mind_for_one_more_pass() -> None:
    memory = Memory()
    found = Found(b"/w/a.wav", 1, 2, 3)
    memory.learn(b"/w", 1, {hash(b"a.wav"): mark(b"a.wav", *found.signature)})
    memory.learn(b"/w", 1, {})
    for _ in range(2):
        assert memory.held(found.path, found.signature)
        memory.finished_pass({b"/w"})
    assert not memory.held(found.path, found.signature)
