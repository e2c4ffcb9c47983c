"""Transcripts from audio to file: every format, made again from the log, replaced by those of another model."""

from __future__ import annotations

import functools
import io
import json
import os
import shutil
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import soundfile
import srt
import webvtt
import yaml

from audio_making import clip
from dropscribe import rerun
from dropscribe.errors import DiskFull, ModelUnavailable
from dropscribe.settings import FORMATS, Settings
from real_daemon import MODEL, Place, references
from test_transcripts_formats import strict
from test_transcripts_golden import read_by_ffmpeg

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

GAPS = (0.8, 1.1, 0.6)
AFTER = "import sys, os; open(sys.argv[1], 'a').write(' '.join(sys.argv[2:]) + '\\n'); print('ran')"


def joined(path: Path, *numbers: int) -> list[float]:
    """Held-out clips with gaps between; where each begins, in seconds."""
    parts: list[np.ndarray] = []
    begins = []
    for number, gap in zip(numbers, GAPS, strict=False):
        parts.append(np.zeros(int(gap * 16_000), np.float32))
        samples = clip(f"clip{number:03}")
        loud = np.flatnonzero(np.abs(samples) > 0.02 * np.abs(samples).max())[0]
        begins.append((sum(map(len, parts)) + loud) / 16_000)
        parts.append(samples)
    audio = np.concatenate(parts)
    audio += (
        np.random.default_rng(1).normal(0, 0.001, len(audio)).astype(np.float32)
    )  # a room is never digitally silent
    soundfile.write(path, audio, 16_000)
    return begins


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A daemon that has done one file of three clips, in every format, and ran a command after it."""
    base = tmp_path_factory.mktemp("transcripts")
    after = {"command": (sys.executable, "-c", AFTER, str(base / "after"), "{job}", "{srt}", "{source}")}
    with Place(base, watch={"formats": FORMATS}, after=after) as made:
        made.begins = joined(made.folder / "talk.wav", 1, 3, 6)  # type: ignore[attr-defined]
        assert made.once() == 0, made.log.read_text()
        yield made


def read(place: Place, suffix: str) -> str:
    return (place.folder / f"talk.{suffix}").read_text("utf-8")


@pytest.mark.slow
def test_every_format_is_there_and_others_read_it(place: Place) -> None:
    job = place.job("talk.wav")
    assert read(place, "txt") == job["text"] + "\n"
    value = strict((place.folder / "talk.json").read_bytes())
    assert set(value["outputs"]) == set(FORMATS) - {"json"}
    cues = list(srt.parse(read(place, "srt")))
    assert [cue.start.total_seconds() for cue in cues] == [cue["start"] for cue in value["cues"]]
    for suffix in ("srt", "vtt"):
        assert len(read_by_ffmpeg(place.folder / f"talk.{suffix}")) == len(cues)
    assert len(webvtt.from_buffer(io.StringIO(read(place, "vtt"))).captions) == len(cues)
    front = yaml.safe_load(read(place, "md").split("---\n")[1])
    assert (front["source"], front["language"], front["model"]) == ("talk.wav", "English", str(MODEL))


@pytest.mark.slow
def test_each_sentence_is_a_cue_that_begins_where_it_is_heard(place: Place) -> None:
    cues = strict((place.folder / "talk.json").read_bytes())["cues"]
    assert [cue["text"] for cue in cues] == [references()[f"clip00{number}"] for number in (1, 3, 6)]
    assert [cue["start"] for cue in cues] == pytest.approx(place.begins, abs=0.2)  # type: ignore[attr-defined]
    assert not any(cue["estimated"]["start"] or cue["estimated"]["end"] for cue in cues)


@pytest.mark.slow
def test_the_command_ran_once_and_was_logged(place: Place) -> None:
    job = place.job("talk.wav")
    lines = (place.base / "after").read_text().splitlines()
    assert lines[0] == f"{job['id']} {place.folder / 'talk.srt'} {place.folder / 'talk.wav'}"
    assert place.log.read_text().count("after_ended") == 1
    assert "output=ran" in place.log.read_text()


@pytest.mark.slow
def test_export_gives_what_was_published(place: Place, tmp_path: Path) -> None:
    done = place.command(
        "export", str(place.folder / "talk.wav"), "--format", ",".join(FORMATS), "-o", f"{tmp_path}/out/"
    )
    assert (done.returncode, done.stderr) == (0, "")
    for suffix in set(FORMATS) - {"json"}:  # when it was finished is a moment after it was written
        exported, published = [
            [line for line in text.splitlines() if not line.startswith("date:")]
            for text in ((tmp_path / "out" / f"talk.{suffix}").read_text("utf-8"), read(place, suffix))
        ]
        assert exported == published
    again, first = json.loads((tmp_path / "out" / "talk.json").read_text()), json.loads(read(place, "json"))
    for value in (again, first):
        del value["outputs"]["md"], value["created_at"]
    assert again == first


# -- with another model, in the foreground; these change the transcript, so they come last -----------------------------


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same weights in a model of another revision, which cuts every six seconds."""
    path = tmp_path_factory.mktemp("models") / "other"
    shutil.copytree(MODEL, path)
    config = json.loads((path / "generation_config.json").read_text())
    (path / "generation_config.json").write_text(json.dumps({**config, "max_segment_seconds": 6}))
    return path


def state(place: Place) -> tuple[Any, ...]:
    """Everything a job has: its row, segments and files."""
    rows = place.rows("SELECT * FROM jobs ORDER BY id")
    segments = place.rows("SELECT * FROM segments ORDER BY id")
    outputs = place.rows("SELECT * FROM outputs ORDER BY rowid")
    return rows, segments, outputs, {path.name: path.read_bytes() for path in place.folder.iterdir()}


loaded = functools.cache(rerun.load)


def run_again(place: Place, model: Path, monkeypatch: pytest.MonkeyPatch) -> rerun.Rerun:
    monkeypatch.setattr("tempfile.tempdir", place.env["TMPDIR"])  # the GPU lock
    monkeypatch.setattr(rerun, "load", loaded)
    settings = place.settings.model_copy(update={"model": str(model)})
    (result,) = rerun.rerun(settings, [place.job("talk.wav")["id"]])
    return result


def test_nobody_waits_for_the_gpu_with_a_wrong_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*_: object, **__: object) -> None:
        pytest.fail("the GPU was asked for")

    monkeypatch.setattr(rerun, "GpuLock", asked)
    settings = Settings(model=str(tmp_path / "none"), database=tmp_path / "jobs.db")
    with pytest.raises(ModelUnavailable, match="no such directory"):
        list(rerun.rerun(settings, [1]))


@pytest.mark.slow
@pytest.mark.parametrize("trouble", ["source gone", "source changed", "disk full"])
def test_whatever_goes_wrong_the_earlier_transcript_stays(
    place: Place, other: Path, trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, source = state(place), place.folder / "talk.wav"
    status, content = source.stat(), source.read_bytes()
    if trouble == "source gone":
        source.rename(place.base / "aside")
    elif trouble == "source changed":
        source.write_bytes((place.folder / "talk.wav").read_bytes()[:-2000])
    else:

        def full(*_: Any, **__: Any) -> None:
            raise DiskFull("no space left")

        monkeypatch.setattr(rerun, "publish", full)
    result = run_again(place, other, monkeypatch)
    kinds = {"source gone": "source_missing", "source changed": "source_changed", "disk full": "disk_full"}
    assert result.error_kind == kinds[trouble]
    if trouble == "source gone":
        (place.base / "aside").rename(source)
    source.write_bytes(content)
    os.utime(source, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert state(place) == before


@pytest.mark.slow
def test_another_models_transcript_takes_the_place_of_the_first(place: Place, other: Path) -> None:
    before = place.job("talk.wav")
    done = place.command("jobs", "retry", str(before["id"]), "--model", str(other), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[0]["error_kind"] is None
    after = place.job("talk.wav")
    assert (after["id"], after["state"], after["model"]) == (before["id"], "done", str(other))
    assert after["revision"] != before["revision"]
    assert after["params_key"] != before["params_key"]
    segments = place.rows("SELECT * FROM segments")
    assert {row["params_key"] for row in segments} == {after["params_key"]}
    assert len(segments) > 1, "it cuts every six seconds"
    assert json.loads(read(place, "json"))["model"]["name"] == str(other)
    assert sorted(path.suffix for path in place.folder.iterdir()) == sorted(["." + one for one in FORMATS] + [".wav"])
    assert len((place.base / "after").read_text().splitlines()) == 2
    assert not place.rows("SELECT 1 FROM batches WHERE finished_at IS NULL OR outcome <> 'done'")
    timing = place.rows("SELECT * FROM timings WHERE batch_id = ?", after["batch_id"])
    assert timing[0]["generated_tokens"] > 0


@pytest.mark.slow
def test_a_live_job_is_left_to_the_daemon(place: Place, other: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = place.job("talk.wav")["id"]
    assert place.command("jobs", "retry", str(job)).returncode == 0
    before = state(place)
    assert before[0][0]["state"] == "queued"
    assert before[0][0]["text"], "it keeps what it said"
    assert run_again(place, other, monkeypatch).error_kind == "source_changed"
    assert state(place)[:2] == before[:2]
