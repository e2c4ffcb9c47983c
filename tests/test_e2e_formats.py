"""One sentence in every common container, dropped into a running daemon."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import numpy as np
import pytest
import soundfile

from audio_making import at_rate, clip, encode
from dropscribe.demo.score import word_error_rate
from real_daemon import Place, references

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CLIP = "clip003"


def _ffmpeg(codec: str, container: str, **more: object) -> Callable[[Path, np.ndarray], object]:
    return lambda path, samples: encode(path, samples, codec=codec, container=container, **more)  # type: ignore[arg-type]


def _wav(rate: int = 16_000, channels: int = 1, subtype: str = "PCM_16") -> Callable[[Path, np.ndarray], object]:
    def write(path: Path, samples: np.ndarray) -> None:
        spread = np.repeat(at_rate(samples, rate)[:, None], channels, axis=1)
        soundfile.write(path, spread, rate, format="WAV", subtype=subtype)

    return write


def _surround(path: Path, samples: np.ndarray) -> None:
    """Speech in the centre channel of 5.1 alone, as a film has it."""
    spread = np.zeros((len(at_rate(samples, 48_000)), 6), np.float32)
    spread[:, 2] = at_rate(samples, 48_000)
    soundfile.write(path, spread, 48_000, format="FLAC")


FORMATS: dict[str, Callable[[Path, np.ndarray], object]] = {
    "plain.wav": _wav(),
    "plain.flac": lambda path, samples: soundfile.write(path, samples, 16_000, format="FLAC"),
    "plain.mp3": _ffmpeg("libmp3lame", "mp3"),
    "opus.ogg": _ffmpeg("libopus", "ogg", rate=48_000),
    "vorbis.ogg": lambda path, samples: soundfile.write(path, samples, 16_000, format="OGG", subtype="VORBIS"),
    "aac.m4a": _ffmpeg("aac", "ipod"),
    "alac.m4a": _ffmpeg("alac", "ipod"),
    "video.mp4": _ffmpeg("aac", "mp4", rate=44_100, layout="stereo", video=True),
    "video.mov": _ffmpeg("aac", "mov", rate=48_000, video=True),
    "video.webm": _ffmpeg("libopus", "webm", rate=48_000, video=True),
    "telephone.wav": _wav(8_000, subtype="ULAW"),
    "stereo.wav": _wav(44_100, 2),
    "surround.flac": _surround,
    "deep.wav": _wav(48_000, subtype="PCM_24"),
    "float.wav": _wav(subtype="FLOAT"),
}


@pytest.mark.slow
def test_the_same_sentence_in_every_container_comes_back_as_its_text(tmp_path: Path) -> None:
    made = tmp_path / "made"
    made.mkdir()
    for name, write in FORMATS.items():
        write(made / name, clip(CLIP))
    wrong = {}
    with Place(tmp_path) as place:
        daemon = place.start()
        for name in FORMATS:
            place.drop(made / name)
            place.until(lambda name=name: place.states().get(name) in ("done", "failed"))  # type: ignore[misc]
            job = place.job(name)
            text = next(place.folder.glob(f"{name.partition('.')[0]}*.txt"), None)
            if job["state"] != "done" or word_error_rate(references()[CLIP], job["text"]) > 0.1 or text is None:
                wrong[name] = (job["state"], job["error"], job["text"])
            assert len(place.rows("SELECT 1 FROM timings WHERE job_id = ?", job["id"])) == 1
            seconds = (_time(job["finished_at"]) - _time(job["queued_at"])).total_seconds()
            # the first file brings up the worker too
            assert seconds <= 10 or name == next(iter(FORMATS)), f"{name} took {seconds} s once it was whole"
        daemon.terminate()
        assert daemon.wait(10) == 0
        assert not wrong
        assert not place.rows("SELECT 1 FROM jobs WHERE reused_from IS NOT NULL"), "every one was decoded"
        assert len(list(place.folder.glob("*.txt"))) == len(FORMATS)
        place.check()


def _time(iso: str) -> datetime:
    return datetime.fromisoformat(iso)
