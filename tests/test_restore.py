"""A job log that was lost is built anew: what our own transcripts prove comes back as done, all else is done again."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from dropscribe.jobs import log
from dropscribe.jobs.database import open_database
from dropscribe.jobs.queue import Queue, SegmentRow
from dropscribe.jobs.records import printable
from dropscribe.transcripts.formats import Document, render
from dropscribe.transcripts.names import target_for
from dropscribe.transcripts.publish import publish
from dropscribe.transcripts.restore import restorer
from real_daemon import Place, clips
from watching import Fingerprint, World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

ROWS = (
    SegmentRow(0, 1000, "It was", "English", 3, "eos"),
    SegmentRow(1000, 2500, "like this.", "English", 4, "loop", ((1200, 1450),)),
)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path, restorer=restorer)
    yield world
    world.close()


def lose(world: World, *tables: dict[str, Any]) -> World:
    """The same folder with a job log that knows nothing."""
    world.close()
    for path in world.base.glob("jobs.db*"):
        path.unlink()
    return World(world.base, *tables, restorer=restorer)


def transcribe(world: World, *, formats: tuple[str, ...] = ("txt", "json")) -> None:
    """Everything that is queued, as the worker does it."""
    watch = world.settings.watch[0]
    for job in world.queue.claim("c", 100):
        media = Fingerprint(job.path_raw)
        document = Document(
            os.path.basename(job.path_raw), "It was like this.", "English", 2.5, ROWS, "m", "r", "serial",  # noqa: PTH119
            media.content_hash, "key", "2026-01-01T00:00:00.000Z", {}, ["shorter_than_claimed"],
        )  # fmt: skip
        finish = {
            "text": document.text,
            "language": "English",
            "model": "m",
            "revision": "r",
            "params_key": "key",
            "audio_seconds": 2.5,
        }
        finish["warnings"] = document.warnings
        world.queue.note_media(job, content_hash=media.content_hash)
        world.queue.save_segments(job, "key", ROWS)
        publish(
            world.db, world.queue, job, target_for(job.path_raw, watch.path, watch.output_dir),
            render(document, formats), finish=finish, check_source=lambda: None,
        )  # fmt: skip


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_lost_log_comes_back_from_the_transcripts(world: World) -> None:
    for name in ("a.wav", "a.mp3", "deep/b.wav", b"odd-\xff.wav", "x" * 250 + ".wav"):
        world.drop(name, os.fsencode(name))
    world.settle()
    transcribe(world)
    kept = ("path", "path_raw", "state", "content_hash", "size_bytes", "mtime_ns", "text", "language", "model",
            "revision", "params_key", "audio_seconds", "transcript_path", "reused_from", "error_kind")  # fmt: skip
    columns, order = ", ".join(kept), "ORDER BY path_raw"
    before = [tuple(row) for row in world.db.rows(f"SELECT {columns} FROM jobs {order}")]  # noqa: S608
    outputs = {tuple(row) for row in world.db.rows("SELECT format, path_raw, sha256 FROM outputs")}
    disk = snapshot(world.folder)
    world = lose(world)
    world.settle()
    assert [tuple(row) for row in world.db.rows(f"SELECT {columns} FROM jobs {order}")] == before  # noqa: S608
    assert {tuple(row) for row in world.db.rows("SELECT format, path_raw, sha256 FROM outputs")} == outputs
    assert snapshot(world.folder) == disk
    assert world.queue.saved_segments(1, "key") == list(ROWS)
    job = log.get_job(world.db.conn, 1)
    assert job is not None
    assert job["warnings"] == ["restored", "shorter_than_claimed"]
    assert job["finished_at"] == "2026-01-01T00:00:00.000Z"
    assert [hit["start_ms"] for hit in log.search(world.db.conn, "like", limit=1)] == [1000]
    # and then it is a job like any other: known, found as a twin, its transcript its own
    assert world.queue.done_twin(job["content_hash"], "key") == 1
    world.settle()
    assert len(world.jobs()) == 5
    world.close()


def test_transcripts_in_a_folder_of_their_own_are_found_there(tmp_path: Path) -> None:
    table = {"path": tmp_path / "in", "output_dir": tmp_path / "out"}
    world = World(tmp_path, table, restorer=restorer)
    world.drop("deep/a.wav")
    world.settle()
    transcribe(world)
    world = lose(world, table)
    world.settle()
    assert world.states() == {"deep/a.wav": "done"}
    world.close()


def test_without_a_json_a_file_is_transcribed_anew_and_its_old_text_is_left_alone(world: World) -> None:
    world.drop("a.wav")
    world.settle()
    transcribe(world, formats=("txt",))
    world = lose(world)
    world.settle()
    assert world.states() == {"a.wav": "queued"}
    (world.folder / "a.txt").write_text("edited meanwhile")
    transcribe(world)
    assert (world.folder / "a.txt").read_text() == "edited meanwhile"
    assert (world.folder / "a.wav.json").exists()
    world.close()


def edit(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = folder / "a.json"
        document = json.loads(path.read_text())
        change(document)
        path.write_text(json.dumps(document))

    return damage


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda folder: (folder / "a.wav").write_bytes(b"other"), id="other audio"),
        pytest.param(lambda folder: (folder / "a.txt").write_text("edited"), id="edited text"),
        pytest.param(lambda folder: (folder / "a.txt").unlink(), id="text gone"),
        pytest.param(lambda folder: (folder / "a.json").write_text("{"), id="torn json"),
        pytest.param(lambda folder: (folder / "a.json").write_text("[" * 100_000), id="deep json"),
        pytest.param(lambda folder: (folder / "a.json").write_text('{"version": 1}'), id="somebody else's json"),
        pytest.param(edit(lambda d: d.update(version=2)), id="a later version"),
        pytest.param(edit(lambda d: d.update(content_hash=None)), id="no hash"),
        pytest.param(edit(lambda d: d["segments"][1].update(start=0)), id="segments on top of each other"),
        pytest.param(edit(lambda d: d["segments"][1].update(end=0.5)), id="segment ends before it starts"),
        pytest.param(edit(lambda d: d["segments"][0].update(finish_reason="bored")), id="unknown finish reason"),
        pytest.param(edit(lambda d: d["segments"][0].update(text=None)), id="no segment text"),
        pytest.param(edit(lambda d: d["segments"][0].update(pauses=[[1]])), id="half a pause"),
        pytest.param(edit(lambda d: d.update(text="\ud800")), id="lone surrogate"),
        pytest.param(edit(lambda d: d.update(duration=float("nan"))), id="not a number"),
        pytest.param(edit(lambda d: d.update(duration=True)), id="not a length"),
        pytest.param(edit(lambda d: d.update(warnings=[1])), id="odd warnings"),
        pytest.param(edit(lambda d: d.update(outputs={"../a": {"sha256": "0" * 64}})), id="a path for a format"),
        pytest.param(edit(lambda d: d.update(created_at=5)), id="odd time"),
        pytest.param(edit(lambda d: d.update(source={"name": 5, "name_hex": None})), id="odd name"),
    ],
)
def test_what_does_not_agree_is_transcribed_anew(world: World, damage: Callable[[Path], object]) -> None:
    world.drop("a.wav")
    world.settle()
    transcribe(world)
    damage(world.folder)
    world = lose(world)
    world.settle()
    assert world.states() == {"a.wav": "queued"}
    assert world.db.rows("SELECT 1 FROM outputs") == []
    world.close()


def test_a_transcript_renamed_with_its_audio_is_still_its_own(world: World) -> None:
    world.drop("a.wav")
    world.settle()
    transcribe(world)
    for suffix in ("wav", "txt", "json"):
        (world.folder / f"a.{suffix}").rename(world.folder / f"b.{suffix}")
    world = lose(world)
    world.settle()
    assert world.states() == {"b.wav": "done"}
    world.close()


def test_a_second_file_of_the_same_content_does_not_take_the_transcript_of_the_first(world: World) -> None:
    world.drop("a.wav", b"same")
    world.settle()
    transcribe(world)
    world = lose(world)
    world.drop("a.mp3", b"same")
    world.settle()
    assert world.states() == {"a.wav": "done", "a.mp3": "queued"}
    world.close()


def test_a_transcript_that_belongs_to_a_job_is_nobody_elses(world: World) -> None:
    path = world.drop("a.wav", b"same")
    world.settle()
    transcribe(world)
    shutil.copyfile(path, path[:-3] + b"mp3")
    os.unlink(path)  # noqa: PTH108 - the job log still knows it as a.wav
    world.settle()
    assert world.states() == {"a.wav": "done", "a.mp3": "queued"}
    world.close()


def test_a_file_left_by_setting_is_done_if_it_was_before(tmp_path: Path) -> None:
    table = {"path": tmp_path / "in", "existing": "leave"}
    world = World(tmp_path, table, restorer=restorer)
    world.settle()
    world.drop("a.wav")
    world.settle()
    transcribe(world)
    world.drop("b.wav", b"never")
    world = lose(world, table)
    world.settle()
    assert world.jobs() == [("b.wav", "skipped", "preexisting"), ("a.wav", "done", None)]
    world.close()


def test_a_file_that_grows_while_it_is_compared_waits_until_it_is_whole(world: World) -> None:
    world.drop("a.wav")
    world.settle()
    transcribe(world)
    world = lose(world)
    world.scan()
    world.drop("a.wav", b"sound and more")
    world.settle()
    assert world.states() == {"a.wav": "queued"}
    world.close()


def test_a_missing_file_is_not_restored_and_an_unreadable_one_is_a_job(tmp_path: Path) -> None:
    class Broken:
        def hash(self, path: bytes) -> None:
            from dropscribe.errors import SourceBusy

            raise SourceBusy(f"cannot read {printable(path)}")

        def close(self) -> None:
            pass

    world = World(tmp_path, restorer=restorer)
    world.drop("a.wav")
    world.settle()
    transcribe(world)
    world.kw["reader"] = Broken
    world.close()
    for path in tmp_path.glob("jobs.db*"):
        path.unlink()
    world = World(tmp_path, restorer=restorer, reader=Broken)
    world.settle()
    assert world.states() == {"a.wav": "queued"}
    world.close()


def test_the_source_is_read_by_a_reader_child_and_not_by_the_supervisor(tmp_path: Path) -> None:
    """The real reader, the real hash; and no library that opens media in this process."""
    program = """
import sys
from pathlib import Path
base = Path(sys.argv[1])
sys.path.insert(0, sys.argv[2])
import test_restore
from watching import World
from dropscribe.transcripts.restore import restorer
world = World(base, restorer=restorer, reader=None)
world.settle()
print(world.jobs())
opened = {name.split(".")[0] for name in sys.modules}
print(sorted(opened & {"soundfile", "av", "soxr", "mlx", "scipy"}))
world.close()
"""
    first = World(tmp_path, restorer=restorer)
    first.drop("a.wav")
    first.settle()
    digest = hashlib.sha256(b"sound").hexdigest()
    transcribe(first)
    path = first.folder / "a.json"
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "content_hash": digest}))
    first.close()
    for path in tmp_path.glob("jobs.db*"):
        path.unlink()
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path), os.path.dirname(__file__)],  # noqa: PTH120
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.stdout.splitlines()[-2:] == ["[('a.wav', 'done', None)]", "[]"], done.stderr


def test_restoring_is_refused_for_a_path_the_log_knows(world: World) -> None:
    world.drop("a.wav")
    world.settle()
    transcribe(world)
    source = os.fsencode(world.folder / "a.wav")
    check = restorer(world.settings.watch[0], source)
    assert check is not None
    found = check(lambda: Fingerprint(source).content_hash)
    assert found is not None
    queue = Queue(world.db)
    status = os.stat(source)  # noqa: PTH116
    assert queue.restore(1, source, status.st_size, status.st_mtime_ns, found) is None
    assert queue.restore(1, source + b"2", 1, 1, found) is None  # its files are another job's
    shutil.rmtree(world.folder)
    assert check(lambda: "x" * 64) is None


@pytest.mark.slow
def test_a_log_that_goes_under_the_running_daemon_comes_back_without_transcribing_anew(tmp_path: Path) -> None:
    with Place(tmp_path) as place:
        place.drop(clips(1)[0])
        open_database(place.settings.database, checkpoints=True).close()
        shutil.copyfile(place.settings.database, tmp_path / "empty.db")
        place.start()
        place.until(lambda: place.states() == {"clip001.flac": "done"})
        before = snapshot(place.folder)
        for how in ("deleted", "replaced"):
            for path in [*tmp_path.glob("jobs.db"), *tmp_path.glob("jobs.db-*")]:
                path.unlink()
            if how == "replaced":
                (tmp_path / "empty.db").rename(place.settings.database)
            place.until(lambda: place.rows("SELECT 1 FROM jobs WHERE warnings LIKE '%restored%'"))
            assert place.rows("SELECT state, reused_from, batch_id FROM jobs") == [
                {"state": "done", "reused_from": None, "batch_id": None}
            ]
            place.check()
        assert place.log.read_text().count("event=job_log_replaced") >= 2  # the worker says it too
        assert snapshot(place.folder) == before
