#!/usr/bin/env python
"""Decode the same prefilled rows every way there is, interleaved in one run. Prints one JSON object a line.

    python tools/compare_decoders.py MODEL CLIPS [--rows 64] [--tokens 48] [--rounds 3] [--slots 2 4 7 8 16 32 64]
    python tools/compare_decoders.py MODEL CLIPS --whole [--rows 24] [--slots 7]      whole files, mlx-audio beside

Ways: "published" (one row, a growing cache, one `.item()` a token, nothing staged: what the published serial loop
does), serial, bulk-sync with 6 rows, and the true batch at each number of slots. Every row is decoded to `--tokens`
tokens, because random weights never end by themselves; without `--tokens` rows end as they do. CLIPS is a folder of
audio files, taken in turn until there are `--rows` rows.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import soundfile as sf
from mlx_audio.stt.utils import load_model

from dropscribe.asr import decoders, guards, selfcheck
from dropscribe.asr.batched import batched
from dropscribe.asr.features import log_mel
from dropscribe.asr.model import Model, load
from dropscribe.asr.plan import make_plan
from dropscribe.asr.prefill import embed, prefill
from dropscribe.asr.prompt import PLAIN
from dropscribe.asr.recognizer import Recognizer, Segment
from dropscribe.asr.step import most_likely
from dropscribe.asr.timing import BatchTiming

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np


def say(**row: Any) -> None:
    print(json.dumps(row), flush=True)


class Prefilled:
    """Rows ready to be decoded, as a decoder's line; made anew for every run from the same states."""

    def __init__(self, model: Model, clips: list[np.ndarray], count: int) -> None:
        self.model = model
        self.embeddings = []
        kept: list[decoders.Row] = []
        for at in range(count):
            samples = clips[at % len(clips)]
            if at < len(clips):
                prefix, suffix = model.prompts.parts(PLAIN)
                audio = model.encoder.encode(log_mel(samples, model.mel_bins))
                embeddings = embed(model.decoder, prefix, audio, suffix)
                logits, state = prefill(model.decoder, embeddings)
                token = most_likely(logits)
                mx.eval(embeddings, token, state.keys, state.values)
                self.embeddings.append(embeddings)
                kept.append(decoders.Row(at, len(samples) / 16_000, token, state, model.eos))
            else:
                kept.append(copy.copy(kept[at % len(clips)]))
                kept[-1].key = at
        self.kept = kept
        self.waiting: list[decoders.Row] = []

    def start(self) -> Prefilled:
        self.waiting = []
        for row in self.kept:
            state = copy.copy(row.state)
            state.keys, state.values = list(state.keys), list(state.values)
            self.waiting.append(decoders.Row(row.key, row.seconds, row.token, state, row.eos))
        return self

    def peek(self, *, wait: bool) -> int | None:  # noqa: ARG002 - the decoders' protocol
        return self.waiting[0].kv_tokens if self.waiting else None

    def next(self) -> decoders.Row:
        return self.waiting.pop(0)


def published(theirs: Any, rows: Prefilled, budget: int | None) -> dict[int, tuple[int, ...]]:
    """The published serial loop over mlx-audio's own modules and cache."""
    said = {}
    for row in rows.kept:
        cache = theirs.make_cache()
        hidden = theirs.model(inputs_embeds=rows.embeddings[row.key % len(rows.embeddings)], cache=cache)
        head = theirs.model.embed_tokens.as_linear
        token = mx.argmax(head(hidden[:, -1]), -1).item()
        tokens = [token]
        limit = budget or row.budget
        while token not in row.eos and len(tokens) < limit:
            hidden = theirs.model(mx.array([[token]]), cache=cache)
            token = mx.argmax(head(hidden[:, -1]), -1).item()
            tokens.append(token)
        said[row.key] = tuple(tokens)
    return said


def compare_decoding(model_dir: str, clips: list[np.ndarray], arguments: argparse.Namespace) -> None:
    model = load(model_dir)
    if arguments.tokens:
        guards.token_budget = lambda _seconds: arguments.tokens
        guards.is_looping = lambda _tokens, _seconds: False
    theirs = load_model(Path(model_dir), strict=True)
    theirs = getattr(theirs, "_model", theirs)
    rows = Prefilled(model, clips, arguments.rows)
    kv = 1 << 30

    def ours(run: Callable[..., Any]) -> Callable[[], dict[int, tuple[int, ...]]]:
        return lambda: {row.key: tuple(row.tokens) for row in run(model.decoder, rows.start(), BatchTiming())}

    ways: dict[str, Callable[[], dict[int, tuple[int, ...]]]] = {
        "published": lambda: published(theirs, rows, arguments.tokens),
        "serial": ours(decoders.serial),
        "bulk-sync 6": ours(lambda d, line, t: decoders.bulk_sync(d, line, t, slots=6, kv_budget=kv)),
    }
    if arguments.auto:
        plan = make_plan(model)
        say(auto=plan.decoder, slots=plan.slots, as_serial=plan.as_serial)
        if plan.decoder == "batched":
            arguments.slots = sorted({*arguments.slots, plan.slots})
    for slots in arguments.slots:
        ways[f"batched {slots}"] = ours(lambda d, line, t, s=slots: batched(d, line, t, slots=s, kv_budget=kv))
    ways = {name: run for name, run in ways.items() if name.split()[0] not in arguments.without}
    report(ways, arguments.rounds, "serial", model)


def compare_whole(model_dir: str, clips: list[np.ndarray], arguments: argparse.Namespace) -> None:
    model = load(model_dir)
    recognizer = Recognizer(model)
    theirs = load_model(Path(model_dir), strict=True)
    theirs = getattr(theirs, "_model", theirs)
    if arguments.tokens:
        guards.token_budget = lambda _seconds: arguments.tokens
        guards.is_looping = lambda _tokens, _seconds: False
    files = [clips[at % len(clips)] for at in range(arguments.rows)]
    limit = arguments.tokens or 448

    def ours(decoder: str, slots: int) -> dict[int, tuple[int, ...]]:
        segments = [Segment(at, samples) for at, samples in enumerate(files)]
        results = recognizer.transcribe(segments, decoder=decoder, slots=slots, kv_budget=1 << 30)
        return {result.segment.key: result.parts[0].token_ids for result in results}

    def generate() -> dict[int, tuple[int, ...]]:
        return {at: (theirs.generate(samples, max_tokens=limit).generation_tokens,) for at, samples in enumerate(files)}

    def generate_batch(slots: int) -> dict[int, tuple[int, ...]]:
        # Its batch path, which `generate` uses for the chunks of one file, over our files: groups in order, each
        # decoded until its slowest row has ended.
        counts = {}
        for at in range(0, len(files), slots):
            group = [(samples, 0.0) for samples in files[at : at + slots]]
            _, generated, _, _ = theirs._generate_chunks_batched(  # noqa: SLF001 - the path to be compared with
                group, max_tokens=limit * len(group), sampler=lambda x: mx.argmax(x, axis=-1), logits_processors=None,
                language=None, system_prompt=None, batch_size=slots, verbose=False,
            )  # fmt: skip
            counts |= {at + n: (count,) for n, count in enumerate(generated)}
        return counts

    ways: dict[str, Callable[[], dict[int, tuple[int, ...]]]] = {
        "mlx-audio generate": generate,
        **{f"mlx-audio batch {slots}": lambda s=slots: generate_batch(s) for slots in arguments.slots},
        "serial": lambda: ours("serial", 1),
        "bulk-sync 6": lambda: ours("bulk-sync", 6),
    }
    if arguments.mlx_qwen3_asr:
        from mlx_qwen3_asr import Session  # not among our tools: pip install --no-deps mlx-qwen3-asr

        session = Session(model_dir, dtype=model.dtype)
        ways["mlx-qwen3-asr"] = lambda: {
            at: (session.transcribe((samples, 16_000), max_new_tokens=limit).text,) for at, samples in enumerate(files)
        }
    for slots in arguments.slots:
        ways[f"batched {slots}"] = lambda s=slots: ours("batched", s)
    report(ways, arguments.rounds, "mlx-audio generate", model, seconds_of_audio=sum(map(len, files)) / 16_000)


def report(
    ways: dict[str, Callable[[], dict[int, tuple[int, ...]]]], rounds: int, base: str, model: Model,
    *, seconds_of_audio: float | None = None,
) -> None:  # fmt: skip
    """Run every way once to warm up, then ``rounds`` times in turn, every other time backwards."""
    said = {name: run() for name, run in ways.items()}
    took: dict[str, list[float]] = {name: [] for name in ways}
    for at in range(rounds):
        for name in list(ways) if at % 2 == 0 else list(reversed(ways)):
            started = time.perf_counter()
            ways[name]()
            took[name].append(time.perf_counter() - started)
    for name, seconds in took.items():
        tokens = sum(len(row) for row in said[name].values())
        median = statistics.median(seconds)
        ratios = [b / s for b, s in zip(took[base], seconds, strict=True)]
        row: dict[str, Any] = {
            "way": name, "seconds": [round(s, 3) for s in (min(seconds), median, max(seconds))],
            f"times_{base}": [round(r, 2) for r in (min(ratios), statistics.median(ratios), max(ratios))],
            "rows_equal_to_serial": f"{sum(said[name][k] == said['serial'][k] for k in said[name])}/{len(said[name])}",
        }  # fmt: skip
        row |= (
            {"tokens_per_s": round(tokens / median)}
            if seconds_of_audio is None
            else {"x_realtime": round(seconds_of_audio / median, 1)}
        )
        say(**row)
    say(model=model.name, device=model.device, dtype=str(model.dtype), key=selfcheck.key_of(model))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("clips", type=Path)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--tokens", type=int, help="decode every row to this many")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--slots", type=int, nargs="+", default=[2, 4, 7, 8, 16, 32, 64])
    parser.add_argument(
        "--without", nargs="+", default=[], choices=["published", "bulk-sync"], help="slow ways to skip"
    )
    parser.add_argument("--auto", action="store_true", help='and at the number of slots that decoder = "auto" takes')
    parser.add_argument("--whole", action="store_true", help="whole files, mlx-audio's generate beside")
    parser.add_argument(
        "--mlx-qwen3-asr",
        action="store_true",
        help="with --whole: that package beside, if installed; it takes the true shapes only",
    )
    arguments = parser.parse_args()
    paths = sorted(p for p in arguments.clips.iterdir() if p.suffix in {".flac", ".wav"})
    clips = [sf.read(p, dtype="float32")[0] for p in paths]
    (compare_whole if arguments.whole else compare_decoding)(arguments.model, clips, arguments)


if __name__ == "__main__":
    main()
