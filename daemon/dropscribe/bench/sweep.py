"""Fixed chunks of speech at several batch sizes: how fast each is, and whether all of them say the same.

Takes plain values and needs no settings, so that it also runs where only MLX is installed (``tools/bench_device.py``).
"""

from __future__ import annotations

import hashlib
import statistics
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np

from dropscribe.asr import guards
from dropscribe.asr.encoder import audio_tokens
from dropscribe.asr.features import HOP, SAMPLE_RATE
from dropscribe.asr.recognizer import Recognizer, Segment
from dropscribe.asr.step import KV_BUDGET
from dropscribe.asr.timing import BatchTiming
from dropscribe.bench.plot import Curve
from dropscribe.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from dropscribe.asr.model import Model
    from dropscribe.asr.selfcheck import Verdict
    from dropscribe.bench.report import Report

COLUMNS = (
    "batch_size", "total_inference", "min_inference", "max_inference", "x_realtime", "speedup", "feature_s", "encode_s",
    "prefill_s", "decode_s", "tokens", "tokens_per_s", "syncs", "unique_outputs", "output_digest", "peak_memory",
)  # fmt: skip
SECONDS = ("feature_s", "encode_s", "prefill_s", "decode_s")
WITHIN = 0.02  # a larger size must be faster by more than this to be worth its memory


@dataclass(frozen=True, eq=False)
class Chunks:
    """Pieces of equal length, and how often the audio had to be repeated for them."""

    samples: list[np.ndarray]  # float32 [n] each, 16 kHz mono
    audio_seconds: float  # of the audio they were cut from
    repeated: int  # chunks that reach into audio used before

    @property
    def seconds(self) -> float:
        """All of them together."""
        return sum(len(chunk) for chunk in self.samples) / SAMPLE_RATE


@dataclass(frozen=True)
class Run:
    """All chunks once at one batch size."""

    texts: tuple[str, ...]  # in the order of the chunks
    tokens: tuple[tuple[int, ...], ...]
    seconds: float  # between two mx.synchronize()
    timing: BatchTiming

    @property
    def digest(self) -> str:
        """First 12 hex digits of the sha256 of the texts joined by newlines."""
        return _short_hash(self.texts)

    @property
    def token_digest(self) -> str:
        """The same of the tokens: tells apart what an untrained model says, which has no words."""
        return _short_hash(" ".join(map(str, ids)) for ids in self.tokens)


DAY = 86_400.0  # seconds; nobody means more, and numbers beyond have no position in any audio


@dataclass
class _Size:
    """What was measured at one batch size."""

    batch_size: int
    warmup_s: float
    runs: list[Run] = field(default_factory=list)


def cut_chunks(
    recordings: Sequence[np.ndarray], *, chunk_seconds: float, stride_seconds: float = 0.0, count: int
) -> Chunks:
    """Cut ``count`` chunks from recordings laid end to end, one every ``stride_seconds`` (0: the chunk's length).

    Audio that is too short starts again from its beginning. Raises ``ConfigError`` when there is none, and for lengths
    that are none.
    """
    if not (0 < chunk_seconds <= DAY and 0 <= stride_seconds <= DAY):
        raise ConfigError("--chunk-seconds and --stride-seconds are numbers of seconds, such as 10 and 5")
    audio = np.concatenate(recordings) if recordings else np.zeros(0, np.float32)
    if not len(audio):
        raise ConfigError("there is no sound in the audio; name another file with --audio")
    length = round(chunk_seconds * SAMPLE_RATE)
    stride = round(stride_seconds * SAMPLE_RATE) or length
    starts = [at * stride for at in range(count)]
    samples = [
        audio[start : start + length]
        if start + length <= len(audio)
        else np.take(audio, np.arange(start, start + length), mode="wrap")
        for start in starts
    ]
    return Chunks(samples, len(audio) / SAMPLE_RATE, sum(start + length > len(audio) for start in starts))


def sweep(
    report: Report,
    model: Model,
    chunks: Chunks,
    sizes: Sequence[int],
    *,
    decoder: str = "bulk-sync",
    rounds: int = 3,
    kv_budget: int = KV_BUDGET,
    verdict: Verdict | None = None,
    load_s: float = 0.0,
    progress: Callable[[str], None] = lambda _text: None,
    recognizer: Recognizer | None = None,
) -> Iterator[None]:
    """Measure ``sizes`` over the same chunks and fill ``report`` after every run.

    Every size is run once unmeasured (warm-up), then ``rounds`` times in turns, forwards and backwards, so that what
    else the machine does meets all of them. ``verdict``: the self-check's, needed for the batched decoder.
    ``recognizer``: another one than the model's own (tests).
    """
    recognizer = recognizer or Recognizer(model)
    report.decoder, report.audio_seconds = decoder, chunks.seconds
    measured: list[_Size] = []
    for size in sizes:
        progress(f"warming up batch size {size}")
        started = time.perf_counter()
        _run(recognizer, chunks, size, decoder=decoder, kv_budget=kv_budget, verdict=verdict)
        measured.append(_Size(size, time.perf_counter() - started))
        yield
    for at in range(rounds):
        for one in measured if at % 2 == 0 else reversed(measured):
            progress(f"round {at + 1} of {rounds}, batch size {one.batch_size}")
            one.runs.append(
                _run(recognizer, chunks, one.batch_size, decoder=decoder, kv_budget=kv_budget, verdict=verdict)
            )
            _fill(report, measured, chunks, load_s)
            yield


def _run(
    recognizer: Recognizer, chunks: Chunks, size: int, *, decoder: str, kv_budget: int, verdict: Verdict | None
) -> Run:
    timing = BatchTiming()
    results: dict[int, Any] = {}
    mx.synchronize()
    started = time.perf_counter()
    for result in recognizer.transcribe(
        (Segment(at, samples) for at, samples in enumerate(chunks.samples)),
        decoder=decoder,
        slots=size,
        block_classes=verdict.block_classes if verdict else (0,),
        may_narrow=verdict is not None and size <= verdict.serial_equal_slots,
        kv_budget=kv_budget,
        timing=timing,
    ):
        results[result.segment.key] = result
    mx.synchronize()
    seconds = time.perf_counter() - started
    ordered = [results[at] for at in sorted(results)]
    return Run(
        texts=tuple(" ".join(part.text for part in result.parts) for result in ordered),
        tokens=tuple(tuple(t for part in result.parts for t in part.token_ids) for result in ordered),
        seconds=seconds,
        timing=timing,
    )


def _short_hash(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]


def _fill(report: Report, measured: Sequence[_Size], chunks: Chunks, load_s: float) -> None:
    """Rows, differences and curves from all there is until now."""
    have = [one for one in measured if one.runs]
    report.rows[:] = [_row(one, have[0], chunks, load_s) for one in have]
    found = differences(have)
    report.summary["identical"] = not found
    report.summary["chunks_without_words"] = sum(not text for text in have[0].runs[0].texts)
    report.summary["differences"] = {str(size): chunk_numbers for size, chunk_numbers in found.items()}
    sizes = [one.batch_size for one in have]
    report.curves[:] = [
        Curve("Speed", "batch size", "× real time", sizes, {"median": [row["x_realtime"] for row in report.rows]}),
        Curve("Peak memory", "batch size", "MB", sizes, {"peak": [row["peak_memory"] / 1e6 for row in report.rows]}),
    ]


def _row(one: _Size, first: _Size, chunks: Chunks, load_s: float) -> dict[str, Any]:
    took = [run.seconds for run in one.runs]
    timings = [run.timing for run in one.runs]
    inference = statistics.median(took)
    # a pair was measured within one round, so what else the machine did is in both
    pairs = [before.seconds / run.seconds for before, run in zip(first.runs, one.runs, strict=False)]
    tokens = timings[0].generated_tokens
    return {
        "batch_size": one.batch_size,
        "files": len(chunks.samples),
        "total_audio": chunks.seconds,
        "total_inference": inference,
        "min_inference": min(took),
        "max_inference": max(took),
        "aggregate_rtf": inference / chunks.seconds,
        "x_realtime": chunks.seconds / inference,
        "speedup": statistics.median(pairs) if pairs else None,
        "min_speedup": min(pairs, default=None),
        "max_speedup": max(pairs, default=None),
        "process_wall": load_s + one.warmup_s + inference,
        "model_load": load_s,
        "warmup": one.warmup_s,
        **{name: statistics.median(getattr(timing, name) for timing in timings) for name in SECONDS},
        "tokens": tokens,
        "tokens_per_s": tokens / inference,
        "steps": statistics.median_low([timing.steps for timing in timings]),
        "syncs": statistics.median_low([timing.syncs for timing in timings]),
        "unique_outputs": len(set(one.runs[0].texts)),
        "output_digest": one.runs[0].digest,
        "token_digest": one.runs[0].token_digest,
        "digest_stable": len({(run.digest, run.token_digest) for run in one.runs}) == 1,
        "peak_memory": max(timing.peak_memory_bytes for timing in timings),
        "rounds": len(one.runs),
    }


def differences(measured: Sequence[_Size]) -> dict[int, list[int]]:
    """Batch sizes whose words or tokens are not those of the first run of all, and the chunks (from 1) that differ."""
    reference = measured[0].runs[0]
    found: dict[int, set[int]] = {}
    for one in measured:
        for run in one.runs:
            for at, expected in enumerate(zip(reference.texts, reference.tokens, strict=True)):
                if (run.texts[at], run.tokens[at]) != expected:
                    found.setdefault(one.batch_size, set()).add(at + 1)
    return {size: sorted(numbers) for size, numbers in found.items()}


def in_words(report: Report) -> str:
    """What ``differences`` found, for people."""
    first = report.rows[0]["batch_size"]
    parts = []
    for size, numbers in report.summary["differences"].items():
        shown = ", ".join(map(str, numbers[:8])) + (" …" if len(numbers) > 8 else "")
        beside = "from one round to another" if int(size) == first else f"than at batch size {first}"
        parts.append(f"at batch size {size}, chunk {shown} came out otherwise {beside}")
    return "; ".join(parts)


def best_size(report: Report, verdict: Verdict | None = None, exactness: str = "serial") -> int | None:
    """The smallest size within 2 % of the best median; ``None`` where there is none to recommend.

    Only of output that was identical at all sizes. With a ``verdict``, only of sizes above one that the self-check
    allows under ``exactness``.
    """
    if report.interrupted or not report.summary.get("identical"):
        return None
    took: dict[int, float] = {row["batch_size"]: row["total_inference"] for row in report.rows}
    best = min(took, key=lambda size: took[size], default=None)
    if best is None:
        return None
    size = min(size for size in took if took[size] <= (1 + WITHIN) * took[best])
    if verdict is None:
        return size
    usable = {s for s in took if s in verdict.exact_slots and (exactness == "row" or s <= verdict.serial_equal_slots)}
    if size == 1 or not usable:
        return None  # one slot is not a batch: bulk-sync does that, too
    best = min(usable, key=lambda size: took[size])
    return min(size for size in usable if took[size] <= (1 + WITHIN) * took[best])


def room_needed(model: Model, chunk_seconds: float) -> int:
    """Tokens of key/value memory that one chunk may come to need."""
    prefix, suffix = model.prompts.parts(Segment(0, np.zeros(0, np.float32)).request)
    frames = round(max(chunk_seconds, 1.0) * SAMPLE_RATE) // HOP
    return len(prefix) + audio_tokens(frames) + len(suffix) + guards.token_budget(chunk_seconds)
