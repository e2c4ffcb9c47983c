"""``transcribe-batch`` on real audio: accuracy, the same tokens at every batch size, and stdout for programs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import soundfile

from audio_making import clip
from dropscribe import batch
from dropscribe.asr.model import load
from dropscribe.demo.score import word_error_rate
from real_daemon import HELDOUT, Place, clips, references

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dropscribe.batch import FileResult

FIELDS = {"file", "text", "language", "time", "rtf", "duration", "batch_time", "batch_rtf", "batch_size"}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    with Place(tmp_path) as made:
        monkeypatch.setattr("tempfile.tempdir", made.env["TMPDIR"])  # the GPU lock
        model = load(made.settings.model)
        monkeypatch.setattr(batch, "load", lambda _name: model)
        yield made


def run(place: Place, paths: list[Path], **options: Any) -> list[FileResult]:
    return list(batch.transcribe_batch(place.settings, paths, **options))


@pytest.mark.slow
def test_the_held_out_clips_come_back_right_as_lines_that_a_program_can_read(tmp_path: Path) -> None:
    with Place(tmp_path) as place:
        done = place.command("transcribe-batch", str(HELDOUT), "--jsonl")
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        results = [json.loads(line) for line in done.stdout.splitlines()]
        assert not place.settings.database.exists(), "the job log is left alone"
    assert [result["file"] for result in results] == [str(path) for path in clips(*range(24))]
    assert all(result.keys() >= FIELDS for result in results)
    errors = [
        word_error_rate(references()[path.stem], result["text"])
        for path, result in zip(clips(*range(24)), results, strict=True)
    ]
    assert sum(errors) / len(errors) <= 0.01
    for result in results:
        assert result["language"] == "English"
        assert result["rtf"] == pytest.approx(result["time"] / result["duration"])
        assert result["batch_size"] == 8
        assert result["batch_time"] > result["time"] > 0
    for batch_time in {result["batch_time"] for result in results}:
        own = [result for result in results if result["batch_time"] == batch_time]
        assert sum(result["time"] for result in own) <= 1.1 * batch_time  # features are made beside the decoding
        assert own[0]["batch_rtf"] == pytest.approx(batch_time / sum(result["duration"] for result in own))


@pytest.mark.slow
def test_a_clips_tokens_are_the_same_whatever_is_decoded_beside_it(place: Place) -> None:
    paths = clips(1, 18, 3, 6, 16, 17)  # all lengths of a few seconds, so that rows come and go
    alone = {result.file: result.tokens for result in run(place, paths, decoder="serial", batch_size=1)}
    assert all(alone.values())
    for size in (1, 3, 8):
        beside = {result.file: result.tokens for result in run(place, paths, batch_size=size)}
        assert beside == alone, f"at batch size {size}"
    assert {result.file: result.tokens for result in run(place, paths[::-1], batch_size=3)} == alone


@pytest.mark.slow
def test_the_tokens_of_a_long_file_are_in_the_order_they_are_spoken(place: Place, tmp_path: Path) -> None:
    place.settings = place.settings.model_copy(
        update={"decode": place.settings.decode.model_copy(update={"max_segment_seconds": 5.0})}
    )
    path = tmp_path / "long.wav"
    soundfile.write(path, np.concatenate([clip("clip000"), clip("clip001"), clip("clip003")]), 16_000)
    [one] = run(place, [path], batch_size=1)
    [three] = run(place, [path], batch_size=3)
    assert len(one.segments) > 3
    assert [segment.start_ms for segment in three.segments] == sorted(segment.start_ms for segment in three.segments)
    assert (one.tokens, one.text, one.segments) == (three.tokens, three.text, three.segments)
    assert one.duration == pytest.approx(one.segments[-1].end_ms / 1000, abs=0.001)


def test_bad_files_have_an_error_kind_and_the_rest_its_text(place: Place, tmp_path: Path) -> None:
    text, empty = tmp_path / "text.wav", tmp_path / "empty.wav"
    text.write_text("no sound\n" * 50)
    empty.touch()
    results = run(place, [text, clips(3)[0], empty, tmp_path / "gone.wav"])
    assert [result.error_kind for result in results] == ["not_media", None, "empty_file", "source_missing"]
    assert [result.text is None for result in results] == [True, False, True, True]
    assert [result.rtf is None for result in results] == [True, False, True, True]
    assert word_error_rate(references()["clip003"], results[1].text or "") == 0


def test_results_come_batch_by_batch(place: Place, tmp_path: Path) -> None:
    paths = []
    for number in range(5):
        paths.append(tmp_path / f"{number}.wav")
        soundfile.write(paths[-1], clip("clip001")[number * 8000 : number * 8000 + 16_000], 16_000)
    heard: list[str] = []
    results = batch.transcribe_batch(
        place.settings, paths, batch_size=1, on_progress=lambda file, _seconds: heard.append(file)
    )
    next(results)
    assert heard == [str(path) for path in paths[:4]], "four times the batch size, then a word"
    assert len(list(results)) == 4
    assert len(heard) == 5
