#!/usr/bin/env python
"""What equals what on this machine's accelerator, and how fast it is. Prints one JSON object a line.

    python tools/check_device.py encoder MODEL CLIPS       features of a row whatever shares its pass, and where it lies
    python tools/check_device.py decoders MODEL CLIPS      serial and bulk-sync, token for token, with times
    python tools/check_device.py steps MODEL [--slots …]   one decode step at several numbers of slots: bits and times

MODEL is a checkpoint directory (tools/make_random_model.py writes any shape), CLIPS a folder of audio files.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import soundfile as sf

from dropscribe.asr import guards
from dropscribe.asr.encoder import WINDOWS_PER_PASS, audio_tokens
from dropscribe.asr.features import log_mel
from dropscribe.asr.model import Model, load
from dropscribe.asr.recognizer import Recognizer, Segment
from dropscribe.asr.step import SlotState, block_length, greedy_step, logits_step
from dropscribe.asr.timing import BatchTiming


def say(**row: Any) -> None:
    print(json.dumps(row), flush=True)


def read_clips(folder: Path) -> list[np.ndarray]:
    return [sf.read(p, dtype="float32")[0] for p in sorted(folder.iterdir()) if p.suffix in {".flac", ".wav"}]


def check_encoder(model: Model, clips: list[np.ndarray]) -> None:
    """Each row alone, then with its windows at every place of a pass whose other windows hold other speech."""
    encoder = model.encoder
    speech = np.concatenate(clips)
    lengths = [round(0.2 + 0.01 * n, 2) for n in range(81)] + [1.5, 3.0, 7.99, 8.0, 8.01, 15.5, 24.0, 31.3, 60.0]
    window = encoder.chunks_per_window * encoder.positions
    others = np.stack(np.split(log_mel(speech)[:, :6400], 64, axis=1))  # 8 windows of 8 chunks of 100 frames
    equal = places = 0
    for at, seconds in enumerate(lengths):
        start = (at * 7919) % (len(speech) - 61 * 16_000)
        mel = log_mel(speech[start : start + int(seconds * 16_000)])
        frames = mel.shape[1]
        alone = np.array(encoder.encode(mel).astype(mx.float32))
        chunks = -(-frames // encoder.chunk)
        windows = -(-chunks // encoder.chunks_per_window)
        filled = np.zeros((mel.shape[0], windows * encoder.chunks_per_window * encoder.chunk), np.float32)
        filled[:, :frames] = mel
        stack = filled.reshape(mel.shape[0], -1, encoder.chunk).transpose(1, 0, 2)
        valid = audio_tokens(frames)
        for place in range(WINDOWS_PER_PASS - windows + 1):
            whole = others.copy()
            first = place * encoder.chunks_per_window
            whole[first : first + len(stack)] = stack
            x = encoder._convolve(whole).reshape(WINDOWS_PER_PASS, window, -1)  # noqa: SLF001 - the seam under test
            held = np.full(WINDOWS_PER_PASS, window)
            held[place + windows - 1] = valid - (windows - 1) * window
            mask = mx.array(np.where(np.arange(window) < held[:, None], 0.0, -1e9), dtype=encoder.dtype)
            out = encoder._transform(x, mask[:, None, None, :]).reshape(-1, alone.shape[1])  # noqa: SLF001
            beside = np.array(out[place * window : place * window + valid].astype(mx.float32))
            places += 1
            equal += bool(np.array_equal(alone, beside))
    say(check="encoder", rows=len(lengths), places=places, equal=equal, device=model.device, dtype=str(encoder.dtype))


def check_decoders(model: Model, clips: list[np.ndarray], budget: int | None) -> None:
    if budget is not None:
        guards.token_budget = lambda _seconds: budget  # random weights never end by themselves
        guards.is_looping = lambda _tokens, _seconds: False
    recognizer = Recognizer(model)
    reference: dict[int, Any] = {}
    for decoder, slots in (
        ("serial", 1),
        ("bulk-sync", 1),
        ("bulk-sync", 2),
        ("bulk-sync", 4),
        ("bulk-sync", 6),
        ("serial", 1),
    ):
        timing, started = BatchTiming(), time.perf_counter()
        order = list(range(len(clips)))
        random.Random(slots).shuffle(order)
        results = recognizer.transcribe(
            [Segment(at, clips[at]) for at in order], decoder=decoder, slots=slots, timing=timing
        )
        tokens = {result.segment.key: result.parts[0].token_ids for result in results}
        wall = time.perf_counter() - started
        reference = reference or tokens
        say(
            check="decoders", decoder=decoder, slots=slots, equal=sum(tokens[k] == reference[k] for k in tokens),
            rows=len(tokens), wall_s=round(wall, 3),
            ms_per_token=round(1e3 * timing.decode_s / timing.generated_tokens, 3), encode_s=round(timing.encode_s, 3),
            prefill_s=round(timing.prefill_s, 3), decode_s=round(timing.decode_s, 3),
            tokens=timing.generated_tokens, steps=timing.steps, wasted=timing.wasted_forwards,
            peak_mb=round(timing.peak_memory_bytes / 2**20),
        )  # fmt: skip


def random_row(model: Model, block: int, seed: int) -> tuple[list[mx.array], list[mx.array]]:
    shape = model.decoder.shape
    mx.random.seed(seed)
    size = (1, shape.kv_heads, block, shape.head_dim)
    arrays = [mx.random.normal(size).astype(model.dtype) for _ in range(2 * shape.layers)]
    mx.eval(arrays)
    return arrays[: shape.layers], arrays[shape.layers :]


def check_steps(model: Model, slot_counts: list[int], rounds: int, steps: int, length: int) -> None:
    """Row 0's logits at each number of slots against one slot's; with two sets of neighbours; and step times."""
    block = block_length(length + steps)
    vocab = model.decoder.shape.vocab
    logits_of = logits_step(model.decoder)
    step = greedy_step(model.decoder)
    rows = [random_row(model, block, seed) for seed in range(4)]

    def state(slots: int, neighbours: int, first: int = 0) -> tuple[mx.array, SlotState]:
        picked = [0 if at == first else 1 + (at + neighbours) % 3 for at in range(slots)]
        keys = [mx.concatenate([rows[r][0][n] for r in picked]) for n in range(model.decoder.shape.layers)]
        values = [mx.concatenate([rows[r][1][n] for r in picked]) for n in range(model.decoder.shape.layers)]
        tokens = mx.array([[17 if r == 0 else (r * 101 + neighbours) % vocab] for r in picked], mx.int32)
        offsets = mx.array([length if r == 0 else length - 3 * r - neighbours for r in picked], mx.int32)
        mx.eval(keys, values, tokens, offsets)
        return tokens, SlotState(offsets, keys, values, length)

    def logits(slots: int, neighbours: int, first: int = 0) -> np.ndarray:
        tokens, s = state(slots, neighbours, first)
        return np.array(logits_of(tokens, s.offsets, s.keys, s.values)[0][first].astype(mx.float32))

    alone = logits(1, 0)
    times: dict[int, list[float]] = {slots: [] for slots in slot_counts}
    for _ in range(rounds):
        for slots in slot_counts:
            tokens, s = state(slots, 0)
            offsets, keys, values = s.offsets, s.keys, s.values
            s.keys = s.values = []
            started = None
            for at in range(steps + 3):
                if at == 3:
                    mx.eval(tokens)
                    started = time.perf_counter()
                before = tokens
                tokens, offsets, keys, values = step(tokens, offsets, keys, values)
                mx.async_eval(tokens)
                np.array(before)
            mx.eval(tokens)
            times[slots].append((time.perf_counter() - (started or 0.0)) / steps)
    for slots in slot_counts:
        base = logits(slots, 0)
        same = all(
            np.array_equal(base, logits(slots, n, first)) for n in (0, 1, 5) for first in {0, slots // 2, slots - 1}
        )
        took = statistics.median(times[slots])
        say(
            check="steps", slots=slots, neighbours_change_nothing=same,
            equals_one_slot=bool(np.array_equal(alone, base)),
            max_difference=float(np.abs(alone - base).max()), step_ms=round(1e3 * took, 3),
            tokens_per_s=round(slots / took),
            spread_ms=[round(1e3 * t, 3) for t in (min(times[slots]), max(times[slots]))],
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["encoder", "decoders", "steps"])
    parser.add_argument("model")
    parser.add_argument("clips", type=Path, nargs="?")
    parser.add_argument("--slots", type=int, nargs="+", default=[1, 2, 4, 6, 7, 8, 16, 32, 64])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--length", type=int, default=180, help="tokens each row has before the first step")
    parser.add_argument("--budget", type=int, help="tokens a row, for random weights")
    parser.add_argument("--dtype", default="auto", choices=["auto", "stored"])
    arguments = parser.parse_args()
    model = load(arguments.model, dtype=arguments.dtype)
    say(model=arguments.model, device=model.device, dtype=str(model.dtype), mlx=mx.__version__)
    if arguments.what == "steps":
        check_steps(model, arguments.slots, arguments.rounds, arguments.steps, arguments.length)
    elif arguments.what == "encoder":
        check_encoder(model, read_clips(arguments.clips))
    else:
        check_decoders(model, read_clips(arguments.clips), arguments.budget)


if __name__ == "__main__":
    main()
