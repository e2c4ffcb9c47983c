"""The decoder nobody asked for: the real program finds out what is exact and fast here, once, and says so."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
import soundfile as sf

from dropscribe.demo.score import word_error_rate
from real_daemon import Place, clips, references

if TYPE_CHECKING:
    from pathlib import Path

RATE = 16_000
ROWS = "select decoder, slots from batches where rows > 0"


@pytest.mark.slow
def test_without_a_word_about_decoders_the_fastest_that_is_exact_runs_and_is_found_once(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": str(tmp_path / "home" / ".cache")}
    with Place(tmp_path) as place:
        for clip in clips(0, 1, 2):
            place.drop(clip)
        assert place.once(300, **home) == 0
        [first] = place.rows(ROWS)
        assert (first["decoder"], first["slots"] > 1) == ("batched", True)
        assert [place.job(clip.name)["text"] for clip in clips(0, 1, 2)] == [
            references()[c.stem] for c in clips(0, 1, 2)
        ]
        [verdicts] = [json.loads(path.read_text()) for path in (tmp_path / "home").rglob("selfcheck.json")]
        assert place.log.read_text().count("self_check") == 1
        place.drop(clips(3)[0])
        assert place.once(120, **home) == 0
        assert place.log.read_text().count("self_check") == 1, "kept"
        assert len(verdicts) == 1


@pytest.mark.slow
def test_a_recording_of_several_segments_beside_short_ones_with_the_decoder_nobody_asked_for(tmp_path: Path) -> None:
    parts = clips(0, 1, 2, 3, 4, 5, 6, 7)
    pause = np.zeros(RATE * 3 // 4, np.float32)
    with Place(tmp_path, decode={"max_segment_seconds": 12}) as place:
        talk = np.concatenate([block for part in parts for block in (sf.read(part, dtype="float32")[0], pause)])
        sf.write(place.folder / "talk.wav", talk, RATE)
        place.drop(clips(8)[0])
        assert place.once() == 0
        assert {row["decoder"] for row in place.rows(ROWS)} == {"batched"}
        assert place.value("SELECT count(*) FROM segments WHERE job_id = ?", place.job("talk.wav")["id"]) >= 4
        said = " ".join(references()[part.stem] for part in parts)
        assert word_error_rate(said, place.job("talk.wav")["text"]) <= 0.1
        assert place.job(clips(8)[0].name)["text"] == references()["clip008"]
        assert place.rows("SELECT DISTINCT attempts, crashes FROM jobs") == [{"attempts": 1, "crashes": 0}]
