"""``scan --dry-run`` says what the watcher would do, one reason a file, and writes nothing; what watching costs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import watching
from dropscribe.bench import intake
from dropscribe.jobs.database import connect_readonly
from dropscribe.settings import Settings, to_toml
from dropscribe.watch import scan
from dropscribe.watch.preview import preview

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NS = 1_700_000_000_000_000_000


@pytest.fixture
def world(tmp_path: Path) -> Iterator[watching.World]:
    made = watching.World(tmp_path)
    yield made
    made.close()


def reasons(world: watching.World) -> dict[str, tuple[bool, str]]:
    conn = connect_readonly(world.settings.database)
    found = list(preview(world.settings, conn))
    conn.close()
    prefix = f"{world.folder}/"
    told = {one.path.removeprefix(prefix): (one.takes, one.reason) for one in found}
    assert len(told) == len(found), "one reason a file"
    return told


def test_every_file_has_one_reason(world: watching.World) -> None:
    for name in ("done.wav", "failed.wav", "queued.wav", "gone.wav", "grown.wav", "touched.wav"):
        world.drop(name, name.encode(), at=NS)
    world.settle()
    for name in ("done.wav", "grown.wav", "touched.wav"):
        world.finish(name)
    world.finish("failed.wav", "failed")
    (world.folder / "gone.wav").unlink()
    world.settle()
    world.drop("gone.wav", b"back")
    world.drop("grown.wav", b"more than before")
    os.utime(world.folder / "touched.wav", ns=(NS + 1, NS + 1))
    world.drop("new.wav")
    for name in ("a.txt", "a.wav.part", ".hidden.wav", "@eaDir/x.wav", "x.wav/inside.wav"):
        world.drop(name)
    os.mkfifo(world.folder / "pipe.wav")
    (world.folder / "loop").symlink_to(world.folder)
    before = world.db.rows("SELECT * FROM jobs")
    assert reasons(world) == {
        "done.wav": (False, "done"), "failed.wav": (False, "failed"), "queued.wav": (False, "queued"),
        "gone.wav": (True, "back"), "grown.wav": (True, "changed"), "touched.wav": (True, "maybe_changed"),
        "new.wav": (True, "new"), "a.txt": (False, "not_media"), "a.wav.part": (False, "temporary"),
        ".hidden.wav": (False, "hidden"), "@eaDir": (False, "system"), "x.wav/inside.wav": (True, "new"),
        "pipe.wav": (False, "not_regular"), "loop": (False, "link_loop"),
    }  # fmt: skip
    assert [tuple(row) for row in world.db.rows("SELECT * FROM jobs")] == [tuple(row) for row in before]


def test_a_transcript_of_ours_is_told_from_a_foreign_file(world: watching.World) -> None:
    world.drop("talk.wav", at=NS)
    world.settle()
    world.finish("talk.wav")
    for name in ("talk.txt", "notes.txt"):
        world.drop(name)
    row = (os.fsencode(world.folder / "talk.txt"), "a" * 64)
    world.db.execute("INSERT INTO outputs (job_id, format, path_raw, sha256) SELECT id, 'txt', ?, ? FROM jobs", row)
    told = reasons(world)
    assert told["talk.txt"] == (False, "own_output")
    assert told["notes.txt"] == (False, "not_media")


def test_settings_are_reasons_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in" / "inner").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "in")
    tables: list[dict[str, Any]] = [
        {"path": tmp_path / "in", "existing": "leave", "exclude": ["draft*"], "include": ["*.wav"]},
        {"path": tmp_path / "in" / "inner", "recursive": False}, {"path": tmp_path / "link"},
        {"path": tmp_path / "gone"},
    ]  # fmt: skip
    world = watching.World(tmp_path, *tables)
    for name in ("a.wav", "draft.wav", "b.mp3", "inner/c.wav", "inner/deep/d.wav"):
        world.drop(name)
    told = {one.path.removeprefix(f"{tmp_path}/"): one.reason for one in preview(world.settings, None)}
    assert told == {
        "in/a.wav": "preexisting", "in/draft.wav": "excluded", "in/b.mp3": "not_included", "in/inner": "other_root",
        "in/inner/c.wav": "new", "in/inner/deep": "not_recursive", "link": "duplicate_watch", "gone": "away",
    }  # fmt: skip
    real = os.scandir

    def scandir(path: bytes) -> Any:
        if path.endswith(b"/inner"):
            raise PermissionError(13, "denied")
        return real(path)

    monkeypatch.setattr(scan.os, "scandir", scandir)
    assert any(one.reason in ("unreadable", "cannot_be_read") for one in preview(world.settings, None))
    world.close()


def test_an_empty_folder_where_a_disk_was_mounted_is_away(world: watching.World) -> None:
    world.db.execute("UPDATE roots SET mounted = 1")
    world.drop("of-another-disk.wav")
    assert reasons(world) == {str(world.folder): (False, "away")}


def test_the_command_prints_it_for_people_and_for_programs(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.wav").write_bytes(b"x")
    (tmp_path / "in" / "a.txt").write_bytes(b"x")
    config = tmp_path / "c.toml"
    settings = Settings.model_validate({"database": tmp_path / "jobs.db", "watch": [{"path": tmp_path / "in"}]})
    config.write_text(to_toml(settings))

    def call(*args: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "dropscribe", "scan", "--config", str(config), *args]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    assert call("--dry-run").stdout.split() == ["queue", "new", str(tmp_path / "in" / "a.wav")]
    [one] = json.loads(call("--dry-run", "--json").stdout)
    assert (one["takes"], one["reason"]) == (True, "new")
    assert len(call("--dry-run", "--jsonl", "--all").stdout.splitlines()) == 2
    assert call().returncode == 2
    assert not (tmp_path / "jobs.db").exists()


def test_the_bench_measures_scans_and_a_real_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "CALM_SECONDS", 0)
    figures = intake.measure(files=40, folders=4, burst=10, idle_seconds=0.2, say=lambda _text: None, within=tmp_path)
    assert figures["rescan_rows_written"] == 1
    for name in ("first_scan", "rescan"):
        assert 0 < figures[f"{name}_ratio_least"] <= figures[f"{name}_ratio"] <= figures[f"{name}_ratio_most"]
    assert figures["burst_queued"] == 10
    assert figures["idle_cpu_s"] >= 0
    assert figures["daemon_memory_mb"] > 10
    assert list(tmp_path.iterdir()) == []
