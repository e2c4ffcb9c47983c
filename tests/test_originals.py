"""Originals of done jobs move on, whole and once, wherever the process is killed."""

from __future__ import annotations

import hashlib
import json
import os
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

import watching
from dropscribe import originals
from dropscribe.jobs.records import iso
from dropscribe.originals import Originals
from dropscribe.settings import Settings
from dropscribe.transcripts import files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class Killed(BaseException):
    """The power went."""


class Studio(watching.World):
    """A watched folder whose originals go to ``done``."""

    def __init__(self, base: Path) -> None:
        self.goal = base / "done"
        super().__init__(base, {"path": base / "in", "move_done_to": self.goal})

    def finish(self, name: str, state: str = "done", *, warnings: tuple[str, ...] = ()) -> None:
        super().finish(name, state)
        path = os.fsencode(self.folder / name)
        content = hashlib.sha256((self.folder / name).read_bytes()).hexdigest()
        self.db.execute(
            "UPDATE jobs SET content_hash = ?, warnings = ? WHERE path_raw = ?", (content, json.dumps(warnings), path)
        )

    def transcribed(self, name: str, content: bytes = b"sound", **kw: Any) -> None:
        self.drop(name, content)
        self.settle()
        self.finish(name, **kw)

    def movers(self, **kw: Any) -> Originals:
        return Originals(self.db, self.settings, **kw)

    def everything(self) -> dict[str, bytes]:
        """Every file below the folder and its goal."""
        found = [path for top in (self.folder, self.goal) for path in top.rglob("*") if path.is_file()]
        return {str(path.relative_to(self.base)): path.read_bytes() for path in found}

    def paths(self) -> list[str]:
        rows = self.db.rows("SELECT path FROM jobs ORDER BY id")
        return [row[0].removeprefix(f"{self.base}/") for row in rows]


@pytest.fixture
def studio(tmp_path: Path) -> Iterator[Studio]:
    made = Studio(tmp_path)
    yield made
    made.close()


@pytest.fixture(params=["one file system", "two file systems", "no links"])
def ends(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "two file systems":
        monkeypatch.setattr(originals, "_device", hash)
    elif request.param == "no links":

        def link(*_paths: bytes) -> None:
            raise PermissionError(1, "Operation not permitted")

        monkeypatch.setattr(os, "link", link)
    return str(request.param)


def test_done_originals_go_where_the_setting_says_in_folders_like_theirs(studio: Studio, ends: str) -> None:
    studio.transcribed("a.wav", b"a")
    studio.transcribed("deep/er/b.wav", b"b")
    before = os.stat(studio.folder / "a.wav").st_mtime_ns  # noqa: PTH116
    assert studio.movers().step() == 2
    assert studio.everything() == {"done/a.wav": b"a", "done/deep/er/b.wav": b"b"}
    assert studio.paths() == ["done/a.wav", "done/deep/er/b.wav"]
    assert (studio.goal / "a.wav").stat().st_mtime_ns == before
    studio.settle()
    assert [state for _, state, _ in studio.jobs()] == ["done", "done"]
    assert studio.movers().step() == 0


def test_a_kill_at_any_instant_leaves_the_file_once_and_the_next_start_finishes(studio: Studio, ends: str) -> None:
    steps: list[str] = []
    studio.transcribed("probe.wav", b"probe")
    studio.movers(checkpoint=steps.append).step()
    assert {"intended", "hidden", "placed", "unlinked", "arrived"} <= set(steps)
    for number in range(len(steps)):
        name, content = f"{number}.wav", b"content %d" % number
        studio.transcribed(name, content)
        left = [number]

        def kill(_step: str, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise Killed

        with pytest.raises(Killed):
            studio.movers(checkpoint=kill).step()
        contents = [value for value in studio.everything().values() if value == content]
        assert contents, steps[number]
        studio.settle()  # what is under way is nobody's new file
        studio.movers().step()
        assert studio.everything()[f"done/{name}"] == content
        assert list(studio.everything().values()).count(content) == 1, steps[number]
        assert f"done/{name}" in studio.paths()
        assert studio.db.rows("SELECT * FROM moves") == []
    assert all(not name.startswith("in/") for name in studio.everything())


def test_files_with_warnings_failed_ones_and_links_stay(studio: Studio) -> None:
    studio.transcribed("warned.wav", b"1", warnings=("cut_off",))
    studio.transcribed("failed.wav", b"2", state="failed")
    (studio.base / "elsewhere.wav").write_bytes(b"3")
    (studio.folder / "link.wav").symlink_to(studio.base / "elsewhere.wav")
    studio.settle()
    studio.finish("link.wav")
    assert studio.movers().step() == 0
    assert set(studio.everything()) == {"in/warned.wav", "in/failed.wav", "in/link.wav"}


def test_a_file_that_changed_since_goes_back_to_its_name(studio: Studio) -> None:
    studio.transcribed("a.wav", b"old")

    def change(step: str) -> None:
        if step == "hidden":
            (studio.folder / ".dropscribe-moving-1").write_bytes(b"newer")

    assert studio.movers(checkpoint=change).step() == 0
    assert studio.everything() == {"in/a.wav": b"newer"}
    studio.settle()
    assert studio.jobs() == [("a.wav", "done", None), ("a.wav", "queued", None)]


def test_a_new_file_under_the_name_meanwhile_is_kept_beside_the_one_that_goes_back(studio: Studio) -> None:
    studio.transcribed("a.wav", b"old")

    def drop(step: str) -> None:
        if step == "hidden":
            (studio.folder / ".dropscribe-moving-1").write_bytes(b"newer")
            studio.drop("a.wav", b"another")

    studio.movers(checkpoint=drop).step()
    assert studio.everything() == {"in/a.wav": b"another", "in/a (2).wav": b"newer"}


def test_nothing_at_the_goal_is_overwritten(studio: Studio, ends: str) -> None:
    studio.goal.mkdir()
    (studio.goal / "a.wav").write_bytes(b"somebody's")
    studio.transcribed("a.wav", b"ours")
    studio.movers().step()
    assert studio.everything() == {"done/a.wav": b"somebody's", "done/a (2).wav": b"ours"}


def test_a_goal_that_cannot_be_written_to_is_tried_again_and_the_file_stays(
    studio: Studio, monkeypatch: pytest.MonkeyPatch
) -> None:
    studio.transcribed("a.wav")
    mover = studio.movers(clock=studio.clock)
    with monkeypatch.context() as patch:
        patch.setattr(files, "make_folder", _raise(PermissionError(13, "denied")))
        assert mover.step() == 0
    assert set(studio.everything()) == {"in/a.wav"}
    assert mover.step() == 0
    studio.clock.now += originals.RETRY_SECONDS
    assert mover.step() == 1


def test_a_copy_that_fails_half_way_leaves_the_file_where_it_was(
    studio: Studio, monkeypatch: pytest.MonkeyPatch
) -> None:
    studio.transcribed("a.wav", b"whole")
    monkeypatch.setattr(originals, "_device", hash)
    with monkeypatch.context() as patch:
        patch.setattr(files, "full_sync", _raise(OSError(28, "No space left on device")))
        assert studio.movers().step() == 0
    assert studio.everything() == {"in/a.wav": b"whole"}
    assert studio.db.rows("SELECT * FROM moves") == []


def test_what_was_left_long_ago_is_not_looked_at_again_and_what_ends_now_is(studio: Studio) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    studio.transcribed("gone.wav", b"gone")
    studio.db.execute("UPDATE jobs SET finished_at = ?", (iso(now),))
    (studio.folder / "gone.wav").unlink()
    movers = studio.movers(now=lambda: now)
    assert movers.step() == 0
    now += timedelta(hours=1)
    assert movers.step() == 0
    (studio.folder / "gone.wav").write_bytes(b"gone")
    studio.transcribed("new.wav", b"new")
    studio.db.execute("UPDATE jobs SET finished_at = ? WHERE path LIKE '%new.wav'", (iso(now),))
    asked = []
    studio.db.conn.set_trace_callback(lambda sql: asked.append(sql) if "jobs_by_state" in sql else None)
    assert movers.step() == 1
    studio.db.conn.set_trace_callback(None)
    assert [iso(now - timedelta(minutes=10)) in sql for sql in asked] == [True]


def test_the_goal_must_lie_outside_the_watched_folders(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="outside"):
        Settings.model_validate({"watch": [{"path": tmp_path, "move_done_to": tmp_path / "done"}]})


def _raise(error: OSError) -> Callable[..., None]:
    def fail(*_args: object) -> None:
        raise error

    return fail
