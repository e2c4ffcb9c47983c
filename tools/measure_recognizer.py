#!/usr/bin/env python
"""Measure the recognizer against mlx-audio on the same weights and clips, interleaved in one run.

    python tools/measure_recognizer.py MODEL encoder CLIPS [--minutes 0.5 2 5 8 20]   encoder seconds by length
    python tools/measure_recognizer.py MODEL files CLIPS [--rounds 3]                 whole clips, serial and bulk-sync
    python tools/measure_recognizer.py MODEL prefixes CLIPS [--rounds 3]              long prompts, once or each time

CLIPS is a folder of audio files. Prints one JSON object a line; figures are medians with their minimum and maximum.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
import soundfile as sf
from mlx_audio.stt.utils import load_model

from dropscribe.asr.features import log_mel
from dropscribe.asr.model import load
from dropscribe.asr.prefill import Prefiller, embed, prefill
from dropscribe.asr.recognizer import Recognizer, Segment
from dropscribe.asr.timing import BatchTiming

if TYPE_CHECKING:
    from collections.abc import Callable


def timed(run: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of one call, and what it returned."""
    started = time.perf_counter()
    result = run()
    return time.perf_counter() - started, result


def spread(seconds: list[float]) -> dict[str, float]:
    return {"median": statistics.median(seconds), "min": min(seconds), "max": max(seconds)}


def measure_encoder(
    model_dir: str, clips: list[np.ndarray], minutes: list[float], rounds: int, dense_up_to: float
) -> None:
    """Encoder seconds at several lengths: windows against mlx-audio's dense pass."""
    ours = load(model_dir)
    theirs = load_model(Path(model_dir), strict=True)
    theirs = getattr(theirs, "_model", theirs)
    speech = np.concatenate(clips)
    for length in minutes:
        samples = np.resize(speech, int(length * 60 * 16_000))
        mel = log_mel(samples)
        dense_mel, mask = mx.array(mel)[None], mx.ones((1, mel.shape[1]), mx.int32)
        windows, dense = [], []
        for _ in range(rounds):
            windows.append(timed(lambda mel=mel: mx.eval(ours.encoder.encode(mel)))[0])
            if length <= dense_up_to:
                dense.append(timed(lambda m=dense_mel, a=mask: mx.eval(theirs.get_audio_features(m, a)))[0])
        row = {
            "minutes": length,
            "windows_s": spread(windows),
            "per_audio_second": statistics.median(windows) / (60 * length),
        }
        if dense:
            row |= {
                "mlx_audio_s": spread(dense),
                "speedup": statistics.median([d / w for d, w in zip(dense, windows, strict=True)]),
            }
        print(json.dumps(row), flush=True)


def measure_files(model_dir: str, clips: list[np.ndarray], rounds: int) -> None:
    """Whole clips: mlx-audio's ``generate`` and our two schedules, one after another, several rounds."""
    ours = load(model_dir)
    recognizer = Recognizer(ours)
    theirs = load_model(Path(model_dir), strict=True)
    theirs = getattr(theirs, "_model", theirs)
    parts: dict[str, BatchTiming] = {}

    def run_ours(decoder: str, slots: int) -> list[str]:
        timing = BatchTiming()
        segments = [Segment(at, samples) for at, samples in enumerate(clips)]
        results = recognizer.transcribe(segments, decoder=decoder, slots=slots, timing=timing)
        texts = {result.segment.key: result.parts[0].text for result in results}
        parts[f"{decoder} {slots}"] = timing
        return [texts[at] for at in range(len(clips))]

    def run_theirs() -> list[str]:
        return [theirs.generate(samples).text.strip() for samples in clips]

    ways: dict[str, Callable[[], list[str]]] = {
        "mlx-audio generate": run_theirs,
        "serial 1": lambda: run_ours("serial", 1),
        "bulk-sync 6": lambda: run_ours("bulk-sync", 6),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    texts: dict[str, list[str]] = {}
    for at in range(rounds):
        order = list(ways) if at % 2 == 0 else list(reversed(ways))
        for name in order:
            took, texts[name] = timed(ways[name])
            seconds[name].append(took)
    base = seconds["mlx-audio generate"]
    for name, took in seconds.items():
        same = sum(a == b for a, b in zip(texts[name], texts["mlx-audio generate"], strict=True))
        row: dict[str, Any] = {"way": name, "seconds": spread(took), "texts_as_mlx_audio": f"{same}/{len(clips)}"}
        row["throughput_ratio"] = spread([b / t for b, t in zip(base, took, strict=True)])
        if name in parts:
            t = parts[name]
            row["last_round"] = {
                key: round(getattr(t, key), 3)
                for key in (
                    "feature_s",
                    "encode_s",
                    "prefill_s",
                    "decode_s",
                    "steps",
                    "syncs",
                    "forwards",
                    "wasted_forwards",
                )
            }
        print(json.dumps(row), flush=True)


def measure_prefixes(model_dir: str, rounds: int) -> None:
    """Prefill of a row behind a beginning of so many tokens: run with the row, and copied."""
    model = load(model_dir)
    decoder, words = model.decoder, np.random.default_rng(1)
    prefiller = Prefiller(decoder)
    for length in (64, 128, 256, 480):
        for audio_seconds in (5, 30):
            prefix, suffix = (words.integers(0, 900, n, dtype=np.int32) for n in (length, 6))
            audio = (0.3 * mx.random.normal((13 * audio_seconds, decoder.shape.hidden))).astype(decoder.dtype)
            mx.eval(audio)

            parts = (prefix, audio, suffix)

            def each_time(parts: tuple[Any, Any, Any] = parts) -> mx.array:
                logits, state = prefill(decoder, embed(decoder, *parts))
                mx.eval(logits, state.keys, state.values)
                return logits

            def copied(parts: tuple[Any, Any, Any] = parts) -> mx.array:
                logits, state = prefiller.run(*parts)
                mx.eval(logits, state.keys, state.values)
                return logits

            same = bool(mx.array_equal(each_time(), copied()))
            pairs = [(timed(each_time)[0], timed(copied)[0]) for _ in range(rounds)]
            row = {
                "prefix_tokens": length, "audio_seconds": audio_seconds, "each_time_s": spread([a for a, _ in pairs]),
                "copied_s": spread([b for _, b in pairs]), "ratio": spread([a / b for a, b in pairs]),
                "same_bits": same,
            }  # fmt: skip
            print(json.dumps(row), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("what", choices=["encoder", "files", "prefixes"])
    parser.add_argument("clips", type=Path)
    parser.add_argument("--minutes", type=float, nargs="+", default=[0.5, 2, 5, 8, 20])
    parser.add_argument("--dense-up-to", type=float, default=8, help="minutes; the dense mask is quadratic")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    paths = sorted(p for p in arguments.clips.iterdir() if p.suffix in {".flac", ".wav"})
    clips = [sf.read(p, dtype="float32")[0] for p in paths]
    if arguments.what == "encoder":
        measure_encoder(arguments.model, clips, arguments.minutes, arguments.rounds, arguments.dense_up_to)
    elif arguments.what == "prefixes":
        measure_prefixes(arguments.model, arguments.rounds)
    else:
        measure_files(arguments.model, clips, arguments.rounds)


if __name__ == "__main__":
    main()
