"""Damaged files end in samples or in one of our errors; never in a hang, a dead parent or anything else."""

from __future__ import annotations

import os
import random

import numpy as np
import pytest
import soundfile

from audio_making import at_rate, clip, encode, wav_bytes
from dropscribe import errors
from dropscribe.audio.client import Reader
from dropscribe.settings import Reader as Limits

ROUNDS = int(os.environ.get("FUZZ_ROUNDS", "25"))  # of each kind of damage, for each container
STALL_SECONDS = 20


def originals(folder) -> dict[str, bytes]:
    samples = clip()[:24_000]
    made = {"wav": wav_bytes(samples)}
    soundfile.write(folder / "a.flac", samples, 16_000)
    soundfile.write(folder / "a.aiff", np.stack((samples, samples), axis=1), 16_000, subtype="PCM_24")
    soundfile.write(folder / "a.rf64", at_rate(samples, 8_000), 8_000, format="RF64", subtype="ULAW")
    encode(folder / "a.mp3", samples, codec="libmp3lame", container="mp3")
    encode(folder / "a.m4a", samples, codec="aac", container="ipod")
    encode(folder / "a.alac", samples, codec="alac", container="ipod")
    encode(folder / "a.mp4", samples, codec="aac", container="mp4", video=True)
    encode(folder / "a.opus", samples, codec="libopus", container="ogg", rate=48_000)
    encode(folder / "a.webm", samples, codec="libopus", container="webm", rate=48_000, video=True)
    encode(folder / "a.avi", samples, codec="libmp3lame", container="avi", video=True)
    return made | {path.suffix[1:]: path.read_bytes() for path in folder.iterdir()}


KINDS = ["wav", "flac", "aiff", "rf64", "mp3", "m4a", "alac", "mp4", "opus", "webm", "avi"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return originals(tmp_path_factory.mktemp("originals"))


@pytest.fixture(scope="module")
def reader():
    with Reader(Limits(stall_seconds=STALL_SECONDS, memory_mb=1024, max_hours=1)) as made:
        yield made


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Cut off, bytes changed (mostly in the header, where the sizes stand), a stretch removed or overwritten."""
    what = rng.choice(("cut", "header", "header", "anywhere", "hole", "ones"))
    changed = bytearray(data)
    if what == "cut":
        return data[: rng.randrange(1, len(data))]
    if what in ("header", "anywhere"):
        limit = min(len(data), 400) if what == "header" else len(data)
        for _ in range(rng.randrange(1, 12)):
            changed[rng.randrange(limit)] = rng.randrange(256)
        return bytes(changed)
    start = rng.randrange(len(data))
    length = rng.randrange(1, 4_000)
    if what == "hole":
        del changed[start : start + length]
    else:
        changed[start : start + 8] = b"\xff" * 8
    return bytes(changed) or b"\0"


@pytest.mark.parametrize("kind", KINDS)
def test_damage_ends_in_samples_or_in_an_error_of_ours(reader, whole, tmp_path, kind):
    path = tmp_path / "damaged"
    for seed in range(ROUNDS):
        data = damaged(whole[kind], random.Random(f"{kind} {seed}"))  # noqa: S311 - damage, not secrets
        path.write_bytes(data)
        try:
            stream = reader.open(os.fsencode(path))
            for block in stream.blocks():
                assert np.isfinite(block).all(), (kind, seed)
            assert stream.drained is not None
            assert stream.drained.seconds <= 3600
        except (errors.ReaderHung, errors.ReaderCrashed) as error:
            # the parent is safe from these too, but a file that does it is worth knowing
            pytest.fail(f"{kind} {seed}: {error}")
        except errors.MediaError:
            pass
