"""A long recording made of clips with known texts, and what it costs to transcribe it; for tests and tools."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import soundfile

from asr_support import RATE, quick, source, texts, tiny
from dropscribe import pipeline
from dropscribe.asr.prompt import PLAIN
from dropscribe.asr.recognizer import Recognizer, Segment
from dropscribe.asr.timing import BatchTiming
from dropscribe.audio.client import Reader
from dropscribe.demo.score import words
from dropscribe.settings import Reader as ReaderSettings

if TYPE_CHECKING:
    from pathlib import Path

FLOOR = 10 ** (-50 / 20)  # noise under everything, −50 dB


@dataclass(frozen=True)
class Recording:
    """What is in the file."""

    clips: tuple[str, ...]  # in order
    seconds: float


@dataclass(frozen=True)
class LongRun:
    """What came out."""

    wer: float
    single_wer: float  # of the same clips done one by one
    segments: int
    reasons: frozenset[str]
    tiles: bool  # segments follow each other without gap or overlap
    seconds: float
    wall_s: float
    rss_growth: int  # bytes over what the process had with the model loaded and a clip done, highest
    rss: int
    timing: BatchTiming


def write_recording(path: Path, minutes: float, seed: int) -> Recording:
    """Clips over a noise floor, in a shuffled order, every third gap 150 ms and the others up to 2 s."""
    rng = np.random.default_rng(seed)
    names, wanted, total = sorted(texts()), int(minutes * 60 * RATE), 0
    clips: list[str] = []
    with soundfile.SoundFile(path, "w", RATE, 1, "PCM_16") as out:
        while total < wanted:
            for name in rng.permutation(names).tolist():
                gap = 0.15 if len(clips) % 3 == 0 else rng.uniform(0.15, 2.0)
                block = np.concatenate([source(name), np.zeros(int(gap * RATE), np.float32)])
                block = block + FLOOR * rng.standard_normal(len(block)).astype(np.float32)
                out.write(block)
                clips.append(name)
                total += len(block)
                if total >= wanted:
                    break
    return Recording(tuple(clips), total / RATE)


def transcribe_recording(path: Path, recording: Recording, *, decoder: str = "bulk-sync", slots: int = 6) -> LongRun:
    """Through the reader child, the cuts and the recognizer, as the daemon does it."""
    model = tiny()
    recognizer = Recognizer(model)
    list(recognizer.transcribe([Segment(0, source("clip011"))]))  # what the first use allocates is the model's
    before = highest = rss_bytes()
    file, timing, started = pipeline.File("long", os.fsencode(path), PLAIN), BatchTiming(), time.perf_counter()
    with Reader(ReaderSettings()) as reader:
        feed = pipeline.Feed(reader, [file], max_segment_seconds=model.max_segment_seconds)
        results = recognizer.transcribe(feed.segments(), decoder=decoder, slots=slots, timing=timing)
        with contextlib.closing(results):
            for result in results:
                result.segment.key.add(result)
                highest = max(highest, rss_bytes())
    wall = time.perf_counter() - started
    assert file.error is None, file.error
    assert file.drained is not None
    transcript = pipeline.assemble(file.rows, file.drained.seconds, file.warnings)
    starts, ends = [row.start_ms for row in transcript.rows], [row.end_ms for row in transcript.rows]
    return LongRun(
        wer=error_rate(" ".join(texts()[name] for name in recording.clips), transcript.text),
        single_wer=single_error_rate(recording.clips),
        segments=len(transcript.rows),
        reasons=frozenset(row.finish_reason for row in transcript.rows),
        tiles=starts == [0, *ends[:-1]] and abs(ends[-1] / 1000 - recording.seconds) < 0.01,
        seconds=recording.seconds,
        wall_s=wall,
        rss_growth=highest - before,
        rss=highest,
        timing=timing,
    )


def single_error_rate(clips: tuple[str, ...]) -> float:
    """Word errors of the clips done singly, each counted as often as it occurs; without the noise floor."""
    done = {name: Segment(name, source(name)) for name in clips}
    told = {r.segment.key: r.parts[0].text for r in Recognizer(quick()).transcribe(list(done.values()))}
    return error_rate(" ".join(texts()[n] for n in clips), " ".join(told[n] for n in clips))


def error_rate(reference: str, said: str) -> float:
    """Word error rate by a banded edit distance, which stays quick for the thousands of words of an hour."""
    a, b = words(reference), words(said)
    band = abs(len(a) - len(b)) + 200
    row = {j: j for j in range(min(len(b), band) + 1)}
    far = len(a) + len(b)
    for i, word in enumerate(a, 1):
        low, high = max(0, i - band), min(len(b), i + band)
        new: dict[int, int] = {}
        for j in range(low, high + 1):
            if j == 0:
                new[j] = i
                continue
            new[j] = min(row.get(j - 1, far) + (word != b[j - 1]), row.get(j, far) + 1, new.get(j - 1, far) + 1)
        row = new
    return row[len(b)] / len(a)


def rss_bytes() -> int:
    """Resident memory of this process."""
    told = subprocess.run(["ps", "-o", "rss=", "-p", str(os.getpid())], capture_output=True, text=True, check=True)
    return int(told.stdout) * 1024
