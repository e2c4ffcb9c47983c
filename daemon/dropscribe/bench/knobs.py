"""Configurations against each other over an evaluation set: a ladder of many, or two of them pair by pair.

A knob is a checkpoint, a setting of ``[decode]`` or the prefill step; each is turned alone, away from a base. What
makes the text worse is rejected, however fast it is.
"""

from __future__ import annotations

import gc
import hashlib
import statistics
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import mlx.core as mx

from dropscribe import pipeline
from dropscribe.bench import ab, evaluate, running, score
from dropscribe.errors import ConfigError, DropscribeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from dropscribe.asr.plan import Plan
    from dropscribe.audio.client import Reader
    from dropscribe.bench.configuration import Configuration
    from dropscribe.bench.evalset import EvalSet
    from dropscribe.bench.report import Report

WER_GUARD = 0.005
ROUNDS = 3
COLUMNS = (
    "configuration", "decoder", "slots", "runs", "wall_s", "wall_min", "wall_max", "rtf", "x_base", "x_base_min",
    "x_base_max", "wer", "wer_difference", "cer", "peak_mb", "state",
)  # fmt: skip
PAIR_COLUMNS = ("pair", "first", "a_s", "b_s", "b_over_a")


@dataclass(frozen=True)
class Run:
    """The whole set once."""

    wall_s: float
    audio_s: float
    tokens: int
    peak_mb: float
    word_edits: score.Edits
    character_edits: score.Edits
    digest: str  # of all texts


class Models:
    """The checkpoints that are loaded, at most ``most`` at a time. A context manager; the GPU lock is held already."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: dict[str, running.Loaded] = {}
        self._places = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._held.clear()
        self._places.close()

    def get(self, name: str) -> running.Loaded:
        """The model of that name; whatever does not fit beside it goes."""
        if name not in self._held:
            while len(self._held) >= self._most:
                del self._held[next(iter(self._held))]
            gc.collect()
            mx.clear_cache()
            self._held[name] = running.load(self._places.enter_context(running.model_at(name)))
        return self._held[name]


def transcribed(
    configuration: Configuration, chosen: EvalSet, loaded: running.Loaded, plan: Plan, reader: Reader
) -> Run:
    """The set once through one configuration. Raises ``ConfigError`` when a file of the set cannot be used."""
    over = evaluate.a_pass(chosen.folder, chosen.entries, loaded.model)
    for _ in evaluate.go(
        over, configuration.settings, loaded.model, plan, reader, prefill_step=configuration.prefill_step
    ):
        pass
    for entry, file in over.files:
        if why := evaluate.trouble(entry, file):
            raise ConfigError(f"the set cannot be used: {why}")
    texts = [evaluate.heard(file) for _, file in over.files]
    return Run(
        wall_s=over.wall_s,
        audio_s=over.audio_s,
        tokens=over.timing.generated_tokens,
        peak_mb=over.timing.peak_memory_bytes / 1e6,
        word_edits=_summed(score.word_edits, over, texts),
        character_edits=_summed(score.character_edits, over, texts),
        digest=hashlib.sha256("\n".join(texts).encode()).hexdigest()[:12],
    )


def _summed(edits: Callable[[str, str], score.Edits], over: evaluate.Pass, texts: Sequence[str]) -> score.Edits:
    each = [edits(entry.text, text) for (entry, _), text in zip(over.files, texts, strict=True)]
    return score.Edits(*(sum(column) for column in zip(*each, strict=True)))


@dataclass
class _Measured:
    configuration: Configuration
    runs: dict[int, Run] = field(default_factory=dict)  # by round
    plan: Plan | None = None
    failure: str | None = None


def ladder(
    report: Report,
    configurations: Sequence[Configuration],
    chosen: EvalSet,
    reader: Reader,
    *,
    rounds: int = ROUNDS,
    guard: float = WER_GUARD,
    say: Callable[[str], None] = lambda _text: None,
    run: Callable[..., Run] = transcribed,
) -> Iterator[None]:
    """Measure every configuration ``rounds`` times and fill ``report`` after every run; the first is the base.

    Rounds go forwards and backwards, so that what else the machine does meets all of them. One model is loaded at a
    time, so that peak memory is that of one; after each load a configuration runs once unmeasured. One that fails is
    said and left out from there on.
    """
    measured = [_Measured(one) for one in configurations]
    names = list(dict.fromkeys(one.settings.model for one in configurations))
    with Models(most=1) as models:
        work = _Work(report, models, chosen, reader, run)
        for at in range(rounds):
            for name in names if at % 2 == 0 else reversed(names):
                group = [one for one in measured if one.configuration.settings.model == name]
                for one in group if at % 2 == 0 else reversed(group):
                    if one.failure is None:
                        say(f"round {at + 1} of {rounds}: {one.configuration.name}")
                        _measure(one, at, work, fresh=at == 0 or len(names) > 1)
                    _fill(report, measured, guard)
                    yield


@dataclass(frozen=True)
class _Work:
    """What measuring takes, whatever the configuration."""

    report: Report
    models: Models
    chosen: EvalSet
    reader: Reader
    run: Callable[..., Run]


def _measure(one: _Measured, at: int, work: _Work, *, fresh: bool) -> None:
    try:
        loaded = work.models.get(one.configuration.settings.model)
        work.report.machine = work.report.machine or loaded.machine
        one.plan = pipeline.plan_for(one.configuration.settings, loaded.model)
        if fresh:
            work.run(one.configuration, _first(work.chosen), loaded, one.plan, work.reader)
        one.runs[at] = work.run(one.configuration, work.chosen, loaded, one.plan, work.reader)
    except (DropscribeError, RuntimeError, ValueError) as error:  # MLX's own, such as too little memory, included
        one.failure = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _first(chosen: EvalSet) -> EvalSet:
    """For warming up."""
    return type(chosen)(chosen.folder, chosen.entries[:1])


def _fill(report: Report, measured: Sequence[_Measured], guard: float) -> None:
    base = measured[0]
    rows = [_row(one, base, guard) for one in measured if one.runs or one.failure]
    report.rows = rows
    report.audio_seconds = next((run.audio_s for one in measured for run in one.runs.values()), None)
    accepted = [row for row in rows if row["state"] == "ok" and row["runs"] > 1 and (row["x_base_min"] or 0) > 1]
    report.summary["fastest_seen"] = (
        max(accepted, key=lambda row: row["x_base"])["configuration"] if accepted else "base"
    )
    report.summary["rejected"] = ", ".join(row["configuration"] for row in rows if row["state"] == "rejected") or None
    for row in rows:
        if row["failure"]:
            report.summary[f"{row['configuration']} failed"] = row["failure"]
        elif row["fallback"]:
            report.summary[f"{row['configuration']} fell back"] = row["fallback"]


def _row(one: _Measured, base: _Measured, guard: float) -> dict[str, Any]:
    runs = list(one.runs.values())
    row: dict[str, Any] = dict.fromkeys((*COLUMNS, "tokens", "texts"))
    row |= {
        "configuration": one.configuration.name,
        "runs": len(runs),
        "failure": one.failure,
        "fallback": one.plan.fallback if one.plan else None,
    }
    if one.plan:
        row |= {"decoder": one.plan.decoder, "slots": one.plan.slots}
    if runs:
        walls = [run.wall_s for run in runs]
        wall, last = statistics.median(walls), runs[-1]
        row |= {
            "wall_s": wall, "wall_min": min(walls), "wall_max": max(walls), "rtf": wall / last.audio_s,
            "wer": last.word_edits.rate, "cer": last.character_edits.rate, "tokens": last.tokens,
            "texts": sorted({run.digest for run in runs}), "peak_mb": max(run.peak_mb for run in runs),
            "walls": walls,
        }  # fmt: skip
    if runs and base.runs:
        ratios = [base.runs[at].wall_s / run.wall_s for at, run in one.runs.items() if at in base.runs]
        if ratios:
            row |= {"x_base": statistics.median(ratios), "x_base_min": min(ratios), "x_base_max": max(ratios)}
        row["wer_difference"] = wer_difference(next(iter(base.runs.values())), runs[-1])
    row["state"] = _state(one, base, row["wer_difference"], guard)
    return row


def _state(one: _Measured, base: _Measured, change: float | None, guard: float) -> str:
    if one.failure:
        return "failed"
    if one is base:
        return "base"
    if change is None:
        return "no base"
    return "rejected" if change > guard else "ok"


def wer_difference(base: Run, run: Run) -> float | None:
    """How much higher the word error rate of ``run`` is."""
    if base.word_edits.rate is None or run.word_edits.rate is None:
        return None
    return run.word_edits.rate - base.word_edits.rate


def side_by_side(
    report: Report,
    a: Configuration,
    b: Configuration,
    chosen: EvalSet,
    reader: Reader,
    *,
    pairs: int,
    guard: float = WER_GUARD,
    say: Callable[[str], None] = lambda _text: None,
) -> Iterator[None]:
    """Two configurations A B B A …, with a probe of the machine before and after; fills ``report`` after every pair.

    Both models are loaded all the time if they are two.
    """
    clock = time.perf_counter
    runs: dict[str, list[Run]] = {"A": [], "B": []}
    with Models(most=2) as models:
        ways = {name: _way(one, models, chosen, reader, runs[name]) for name, one in (("A", a), ("B", b))}
        report.machine = models.get(a.settings.model).machine
        for way in ways.values():
            say("warming up")
            way()
            yield
        for kept in runs.values():
            kept.clear()
        probe = ab.Probe(ab.matmul(clock), clock)
        probe.measure(probe.before)
        done: list[ab.Pair] = []
        try:
            for pair in ab.interleaved(ways["A"], ways["B"], pairs=pairs, clock=clock, synchronize=mx.synchronize):
                done.append(pair)
                say(f"pair {len(done)} of {pairs}: B took {pair.ratio:.3f} × A")
                yield
            probe.measure(probe.after)
        finally:
            _fill_pairs(report, done, runs, probe, guard)


def _way(one: Configuration, models: Models, chosen: EvalSet, reader: Reader, into: list[Run]) -> Callable[[], None]:
    loaded = models.get(one.settings.model)
    plan = pipeline.plan_for(one.settings, loaded.model)

    def way() -> None:
        into.append(transcribed(one, chosen, loaded, plan, reader))

    return ab.delayed(way, one.delay, clock=time.perf_counter, sleep=time.sleep) if one.delay else way


def _fill_pairs(
    report: Report, done: Sequence[ab.Pair], runs: Mapping[str, Sequence[Run]], probe: ab.Probe, guard: float
) -> None:
    report.rows = [
        {"pair": at, "first": pair.first, "a_s": pair.a, "b_s": pair.b, "b_over_a": pair.ratio}
        for at, pair in enumerate(done, 1)
    ]
    report.summary |= ab.judge(done).as_dict()
    report.summary |= probe.as_dict()
    if not (runs["A"] and runs["B"]):
        return
    first = {name: kept[0] for name, kept in runs.items()}
    report.audio_seconds = first["A"].audio_s
    change = wer_difference(first["A"], first["B"])
    for name, run in first.items():
        report.summary |= {f"wer_{name.lower()}": run.word_edits.rate, f"peak_mb_{name.lower()}": run.peak_mb}
    report.summary |= {
        "wer_difference": change,
        "same_texts": len({run.digest for kept in runs.values() for run in kept}) == 1,
        "guard": _guarded(change, guard),
    }


def _guarded(change: float | None, guard: float) -> str:
    if change is None or abs(change) <= guard:
        return "ok"
    return "B rejected: more errors" if change > 0 else "A rejected: more errors"
