"""One decode step taken apart, the memory floor under it, and what a listener waits for.

Takes plain values and needs no settings, so that it also runs where only MLX is installed (``tools/bench_device.py``).
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np

from dropscribe.asr.features import SAMPLE_RATE
from dropscribe.asr.step import KV_BUDGET
from dropscribe.bench import step_parts
from dropscribe.bench.latency import clocked
from dropscribe.bench.plot import Curve
from dropscribe.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from dropscribe.asr.layers import TextDecoder
    from dropscribe.asr.model import Model
    from dropscribe.bench.latency import Clocked, Recording
    from dropscribe.bench.report import Report

COLUMNS = ("what", "decoder", "slots", "context", "n", "median_ms", "min_ms", "max_ms", "p90_ms", "p99_ms", "share",
           "operations", "times_floor")  # fmt: skip
CONTEXTS = (64, 256, 1024, 4096)
NOT_IN_A_STEP = ("sampling",)  # measured for comparison; a greedy step has none


def anatomy(
    report: Report,
    model: Model,
    recordings: Sequence[Recording],
    *,
    slots: Sequence[int] = (1, 7),
    contexts: Sequence[int] = CONTEXTS,
    repeats: int = 30,
    rounds: int = 3,
    probe_megabytes: int = 256,
    kv_budget: int = KV_BUDGET,
    progress: Callable[[str], None] = lambda _text: None,
) -> Iterator[None]:
    """Measure and fill ``report`` part by part.

    ``contexts``: block lengths C of the keys and values. ``repeats``: runs of every part, in turns; ``rounds``: times
    the recordings are decoded for the latencies, after once unmeasured. ``kv_budget``: the most positions of all slots
    together; what is larger never runs, might not fit the memory, and is left out. ``ConfigError`` if nothing remains.
    """
    decoder = model.decoder
    fitting = {count: [context for context in contexts if count * context <= kv_budget] for count in slots}
    if empty := [count for count, some in fitting.items() if not some]:
        raise ConfigError(
            f"{empty[0]} slots of {min(contexts)} positions are more than decode.kv_budget = {kv_budget}, which the "
            "daemon never exceeds; measure fewer slots or shorter contexts, or raise it"
        )
    if left_out := [f"{n} × {context}" for n in slots for context in contexts if context not in fitting[n]]:
        report.summary[f"left out: slots × positions over decode.kv_budget = {kv_budget}"] = ", ".join(left_out)
    report.audio_seconds = sum(len(recording.samples) for recording in recordings) / SAMPLE_RATE
    progress("memory bandwidth")
    on_cpu = mx.default_device().type == mx.DeviceType.cpu
    rates = step_parts.bandwidth(probe_megabytes, max(3, repeats // 3), rows_first=on_cpu)
    best = max(rates.values())
    report.summary["bandwidth_probe_mb"] = probe_megabytes
    report.summary |= {f"bandwidth_gb_s ({name})": rate / 1e9 for name, rate in rates.items()}
    yield
    for count in slots:
        progress(f"one step, slots {count}")
        yield from _steps(report, decoder, slots=count, contexts=fitting[count], repeats=repeats, bytes_per_second=best)
    for count in slots:
        for name in ("serial",) if count == 1 else ("bulk-sync", "batched"):
            enough = [recordings[at % len(recordings)] for at in range(max(count, len(recordings)))]
            rows: list[Clocked] = []
            for at in range(1 + rounds):
                now = f"round {at} of {rounds}" if at else "warm-up"
                progress(f"first and next tokens, {name}, slots {count}, {now}")
                for row in clocked(model, enough, name, count):
                    rows += [row] if at else []
                    yield
            _latencies(report, rows, decoder=name, slots=count)
            yield


def _steps(
    report: Report,
    decoder: TextDecoder,
    *,
    slots: int,
    contexts: Sequence[int],
    repeats: int,
    bytes_per_second: float,
) -> Iterator[None]:
    """The step and its parts at every context, all in turns, so that what else the machine does meets all of them."""
    fixed = step_parts.fixed_parts(decoder, slots)
    blocks = {context: step_parts.Blocks.make(decoder, slots, context) for context in contexts}
    wholes = {context: step_parts.whole_step(decoder, blocks[context]) for context in contexts}
    cache = {context: step_parts.cache_parts(decoder, blocks[context]) for context in contexts}
    sync = step_parts.sync(blocks[contexts[0]])
    everything = [sync, *fixed, *wholes.values(), *(part for parts in cache.values() for part in parts)]
    for at in range(step_parts.WARM + repeats):
        for timed in everything:
            timed.once(counted=at >= step_parts.WARM)
        yield
    base = min(contexts, key=lambda context: abs(context - 256))
    waited = statistics.median(sync.seconds)
    common = {"decoder": "batched" if slots > 1 else "serial", "slots": slots}
    for context in contexts:
        whole = statistics.median(wholes[context].seconds)
        row = _row("step", "whole step", wholes[context].seconds, context=context, share=1.0, **common)
        report.rows.append(row | _floor(decoder, blocks[context], whole, bytes_per_second))
    known = statistics.median(wholes[base].seconds)
    report.rows.append(_row("part", "sync", sync.seconds, share=waited / known, **common))
    explained = waited
    for part in fixed:
        net = [max(0.0, took - waited) for took in part.seconds]
        inside = part.name not in NOT_IN_A_STEP
        share = statistics.median(net) / known if inside else None
        report.rows.append(_row("part" if inside else "beside", part.name, net, share=share, **common))
        explained += statistics.median(net) if inside else 0.0
    for context in contexts:
        whole, total = statistics.median(wholes[context].seconds), explained
        for part in cache[context]:
            net = [max(0.0, took - waited) for took in part.seconds]
            total += statistics.median(net)
            share = statistics.median(net) / whole
            report.rows.append(_row("part", part.name, net, context=context, share=share, **common))
        report.rows.append(_row("sum", "all parts", [total], context=context, share=total / whole, **common))
    times = step_parts.host_times(decoder, slots, base, repeats)
    _host(report, times, context=base, **common)
    yield
    attention = [statistics.median(parts[-1].seconds) * 1000 for parts in cache.values()]
    steps = [statistics.median(timed.seconds) * 1000 for timed in wholes.values()]
    title = f"Step by context, slots {slots}"
    report.curves.append(Curve(title, "positions", "ms", list(contexts), {"step": steps, "attention": attention}))
    yield


def _host(report: Report, times: step_parts.HostTimes, **common: Any) -> None:
    """The step as the host sees it."""
    three = {"graph built (Python)": times.build, "handed over": times.dispatch, "waited for": times.wait}
    whole = sum(statistics.median(seconds) for seconds in three.values())
    for name, seconds in {**three, "step, one staged ahead": times.ahead}.items():
        report.rows.append(_row("host", name, seconds, share=statistics.median(seconds) / whole, **common))


def _floor(decoder: TextDecoder, blocks: step_parts.Blocks, seconds: float, bytes_per_second: float) -> dict[str, Any]:
    """Operations and bytes of a step, and how far it is from what its bytes alone would take."""
    slots, _, context, _ = blocks.keys[0].shape
    nodes = step_parts.graph_operations(decoder, blocks)
    views = sum(count for name, count in nodes.items() if name in step_parts.VIEWS)
    moved = step_parts.step_bytes(decoder, slots, context)
    floor = moved.total / bytes_per_second
    return {
        "graph_nodes": sum(nodes.values()),
        "operations": sum(nodes.values()) - views,
        "operations_per_token": (sum(nodes.values()) - views) / slots,
        "operations_by_name": dict(nodes.most_common()),
        "weight_bytes": moved.weights,
        "attention_bytes": moved.attention,
        "bytes_per_token": moved.total / slots,
        "floor_ms": floor * 1000,
        "times_floor": seconds / floor,
    }


def _latencies(report: Report, rows: Sequence[Clocked], **common: Any) -> None:
    """Time to first token by its parts, time per output token, time between tokens: over all rows of all rounds."""
    ttft = [row.ttft for row in rows]
    whole = statistics.median(ttft)
    parts = {
        "first token: read": [row.read_s for row in rows if row.recording and row.recording.read_s is not None],
        "first token: mel": [row.mel_s for row in rows],
        "first token: encode": [row.encode_s for row in rows],
        "first token: prefill": [row.prefill_s for row in rows],
        "first token: wait": [row.wait_s for row in rows],
    }
    report.rows.append(_row("first token", "TTFT", ttft, share=1.0, **common))
    for name, seconds in parts.items():
        if seconds:
            report.rows.append(_row("first token", name, seconds, share=statistics.median(seconds) / whole, **common))
    tpot = [row.tpot for row in rows if row.tpot is not None]
    gaps = [gap for row in rows for gap in row.gaps]
    for name, seconds in (("TPOT", tpot), ("inter-token latency", gaps)):
        if seconds:
            report.rows.append(_row("tokens", name, seconds, **common))


def _row(section: str, what: str, seconds: Sequence[float], **more: Any) -> dict[str, Any]:
    """A row of the report: the spread of ``seconds`` in milliseconds; percentiles are interpolated."""
    p50, p90, p99 = np.percentile(np.array(seconds) * 1000, [50, 90, 99]).tolist()
    return {
        "section": section,
        "what": what,
        "n": len(seconds),
        "median_ms": p50,
        "min_ms": min(seconds) * 1000,
        "max_ms": max(seconds) * 1000,
        "p90_ms": p90,
        "p99_ms": p99,
        **more,
    }
