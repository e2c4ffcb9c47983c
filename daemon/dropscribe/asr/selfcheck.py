"""What equals what for this model on this device: run before the true batch is trusted, and kept for next time.

Rows with random prompts are prefilled one by one; then, for each number of slots S and each class of block lengths, a
row's logits are compared bit for bit: alone among dummies, beside copies of itself, beside ragged neighbours, in every
slot, and beside a neighbour that ends while it goes on. One slot is the measure of ``serial_equal_slots``. The same row
in longer and longer blocks tells at which lengths the bits change. Last, a few steps of every candidate are timed.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import time
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
from platformdirs import user_cache_path

from dropscribe.asr.model import read_json
from dropscribe.asr.prefill import prefill
from dropscribe.asr.step import CHECKED_SLOTS, KV_BUDGET, SlotState, block_length, greedy_step, logits_step, most_likely

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from dropscribe.asr.layers import TextDecoder
    from dropscribe.asr.model import Model
    from dropscribe.asr.step import Step

VERSION = 3  # of this check and of the arithmetic it vouches for: raised when either changes
PROMPTS = (61, 40, 93)  # tokens of the rows; the first crosses the growth of its block at the third step
STEPS = 4
TIMED_STEPS = 20
BUDGET_SECONDS = 60.0  # a start; what there was no time for waits for the next one
TIMED_SECONDS = 4.0  # the longest one candidate is timed for


@dataclass(frozen=True)
class Verdict:
    """What the self-check found."""

    exact_slots: tuple[int, ...]  # numbers of slots at which rows do not depend on one another
    serial_equal_slots: int  # up to here, the bits are those of one slot; 1: not even those of two
    block_classes: tuple[int, ...]  # first block length of each class with the same bits
    tokens_per_second: dict[int, float]  # by slots; 1 stands for bulk-sync
    failure: str | None = None  # why the true batch must not be used, if so
    unchecked: tuple[int, ...] = ()  # numbers of slots there was no time for; the next start goes on with them
    positions: int = 0  # block lengths were compared up to here; longer rows need another check
    kv_budget: int = 0  # slots were compared while they fit in so many positions; more need another check

    def fastest(self, exactness: str, cap: int | None = None) -> int:
        """The number of slots to use under ``exactness`` ("serial" or "row"), at most ``cap``; 1 where none is left."""
        allowed = [
            s
            for s in self.exact_slots
            if (exactness == "row" or s <= self.serial_equal_slots) and (cap is None or s <= cap)
        ]
        return max(allowed, key=lambda s: self.tokens_per_second.get(s, 0.0), default=1)


@dataclass(frozen=True, eq=False)
class _Prefilled:
    token: mx.array  # [1, 1]
    state: SlotState


def check(
    model: Model,
    *,
    known: Verdict | None = None,
    longest: int,
    candidates: Sequence[int] = CHECKED_SLOTS,
    kv_budget: int = KV_BUDGET,
    step: Step | None = None,
    budget_seconds: float = BUDGET_SECONDS,
    clock: Callable[[], float] = time.perf_counter,
    pulse: Callable[[], None] = lambda: None,
) -> Verdict:
    """Run the check, or go on with one that ran out of time (``known``): at least one more candidate each time.

    ``longest``: positions a row may come to need; ``kv_budget``: those
    that all slots may have together, as for ``batched``, which never runs what does not fit: it is not compared here.
    ``step``: another step to be judged (tests).
    """
    step = step or logits_step(model.decoder)
    rows = [_row(model, length, seed) for seed, length in enumerate(PROMPTS)]
    classes = known.block_classes if known else block_classes(rows[0], longest, step, pulse)
    blocks = [block_length(max(PROMPTS) + STEPS), *classes[1:]]
    alone = {block: [_run(step, [row], block)[:, 0] for row in rows] for block in blocks}
    waiting = sorted(known.unchecked if known else candidates)
    exact = list(known.exact_slots) if known else []
    equal = known.serial_equal_slots if known else 1
    started = clock()  # what came before compiles kernels that every schedule needs
    while waiting:
        slots = waiting.pop(0)
        same = True
        for block in [blocks[0], *(b for b in blocks[1:] if b * slots <= kv_budget)]:
            pulse()
            own = _among_dummies(step, rows, slots, block)
            problem = _dependence(step, rows, slots, block, own)
            if problem is not None:
                return Verdict(
                    (), 1, classes, {}, f"with {slots} slots {problem}", positions=longest, kv_budget=kv_budget
                )
            same = same and all(np.array_equal(a, b) for a, b in zip(own, alone[block], strict=True))
        if same and equal == max([1, *exact]):
            equal = slots
        exact.append(slots)
        if clock() - started > budget_seconds:
            break
    timed = time_slots(model.decoder, (1, *exact), rows[0], pulse)
    left = tuple(waiting)
    return Verdict(tuple(exact), equal, classes, timed, unchecked=left, positions=longest, kv_budget=kv_budget)


def block_classes(
    row: _Prefilled, longest: int, step: Step, pulse: Callable[[], None] = lambda: None
) -> tuple[int, ...]:
    """First block length of each class: where a row in a longer block gives other bits than in the one before."""
    classes, before = [0], None
    for block in (64, 128, *range(256, block_length(longest) + 1, 256)):
        if block < block_length(row.state.length):
            continue
        pulse()
        logits = _run(step, [row], block, steps=1)
        if before is not None and not np.array_equal(before, logits):
            classes.append(block)
        before = logits
    return tuple(classes)


def time_slots(
    decoder: TextDecoder, slot_counts: Sequence[int], row: _Prefilled, pulse: Callable[[], None] = lambda: None
) -> dict[int, float]:
    """Tokens a second at each number of slots: the median step of two interleaved rounds, staged one ahead."""
    step = greedy_step(decoder)
    times: dict[int, list[float]] = {slots: [] for slots in slot_counts}
    for _ in range(2):
        for slots in slot_counts:
            pulse()
            tokens, state = _together([row] * slots, block_length(row.state.length + TIMED_STEPS + 3))
            carried: Any = (state.offsets, state.keys, state.values)
            del state
            began = time.perf_counter()
            for at in range(TIMED_STEPS + 3):
                started = time.perf_counter()
                before = tokens
                tokens, *carried = step(tokens, *carried)
                mx.async_eval(tokens)  # type: ignore[no-untyped-call]
                np.array(before)
                if at >= 3:  # the first steps trace and compile
                    times[slots].append(time.perf_counter() - started)
                    if started - began > TIMED_SECONDS:
                        break
            mx.eval(tokens)
    return {slots: round(slots / statistics.median(measured), 1) for slots, measured in times.items()}


# -- the comparisons -------------------------------------------------------------------------------------------------


def _among_dummies(step: Step, rows: Sequence[_Prefilled], slots: int, block: int) -> list[np.ndarray]:
    """Each row's logits ``[STEPS, V]`` in the first of ``slots`` slots, nobody in the others."""
    dummies = [_dummy(rows[0])] * (slots - 1)
    return [_run(step, [row, *dummies], block)[:, 0] for row in rows]


def _dependence(
    step: Step, rows: Sequence[_Prefilled], slots: int, block: int, own: Sequence[np.ndarray]
) -> str | None:
    """How a row's logits depend on what is beside it, or ``None`` if they do not."""
    repeated = _run(step, [rows[0]] * slots, block)
    if any(not np.array_equal(repeated[:, at], own[0]) for at in range(slots)):
        return "a row beside copies of itself gives other bits than among dummies"
    for shift in range(len(rows)):
        order = [(at + shift) % len(rows) for at in range(slots)]  # over the shifts, every row has been in every slot
        ragged = _run(step, [rows[r] for r in order], block)
        for at, r in enumerate(order):
            if not np.array_equal(ragged[:, at], own[r]):
                return f"a row in slot {at} beside rows of other lengths gives other bits than among dummies"
    ending = _run(step, [rows[0], rows[1], *[_dummy(rows[0])] * (slots - 2)], block, first_ends_after=1)
    if not np.array_equal(ending[:, 1], own[1]):
        return "a row changes when its neighbour ends"
    return None


def _run(
    step: Step, rows: Sequence[_Prefilled], block: int, *, steps: int = STEPS, first_ends_after: int | None = None
) -> np.ndarray:
    """Logits ``[steps, S, V]`` float32 of rows decoded greedily side by side, each from its own position."""
    tokens, state = _together(rows, block)
    out = []
    for at in range(1, steps + 1):
        logits, state.offsets, state.keys, state.values = step(tokens, state.offsets, state.keys, state.values)
        tokens = most_likely(logits)
        if first_ends_after == at:
            others = mx.arange(len(rows)) > 0
            tokens, state.offsets = tokens * others[:, None], state.offsets * others
        out.append(np.array(logits.astype(mx.float32)))
    return np.stack(out)


def _together(rows: Sequence[_Prefilled], block: int) -> tuple[mx.array, SlotState]:
    """Rows side by side in one state: tokens ``[S, 1]``, blocks ``[S, KV, block, hd]``.

    Beyond a row's own positions lies what an earlier row might have left there: other noise each time. A step that
    looks one position too far gives itself away by it.
    """

    def fitted(array: mx.array) -> mx.array:
        return mx.pad(array, [(0, 0), (0, 0), (0, max(0, block - array.shape[2])), (0, 0)])[:, :, :block]

    layers = range(len(rows[0].state.keys))
    tokens = mx.concatenate([row.token for row in rows])
    offsets = mx.concatenate([row.state.offsets for row in rows])
    beyond = (mx.arange(block)[None] >= offsets[:, None])[:, None, :, None]

    def beside(arrays: list[mx.array]) -> mx.array:
        together = mx.concatenate([fitted(array) for array in arrays])
        together = mx.where(beyond, _noise(together), together)
        mx.eval(together)  # layer by layer: what it is made from is as large as itself
        return together

    keys = [beside([row.state.keys[n] for row in rows]) for n in layers]
    values = [beside([row.state.values[n] for row in rows]) for n in layers]
    mx.eval(tokens, offsets)
    return tokens, SlotState(offsets, keys, values, max(row.state.length for row in rows))


def _noise(like: mx.array) -> mx.array:
    return mx.random.normal(like.shape).astype(like.dtype)


def _row(model: Model, length: int, seed: int) -> _Prefilled:
    """A row whose prompt is ``length`` random words: what is compared is arithmetic, not speech."""
    words = min(model.decoder.shape.vocab, 1000)
    ids = np.random.default_rng(seed).integers(0, words, length, dtype=np.int32)
    logits, state = prefill(model.decoder, model.decoder.embedding(mx.array(ids))[None])
    token = most_likely(logits)
    mx.eval(token, state.keys, state.values)
    return _Prefilled(token, state)


def _dummy(like: _Prefilled) -> _Prefilled:
    """An empty slot: zeros, at position 0."""
    keys = [mx.zeros_like(k) for k in like.state.keys]
    values = [mx.zeros_like(v) for v in like.state.values]
    return _Prefilled(mx.zeros((1, 1), mx.int32), SlotState(mx.zeros((1,), mx.int32), keys, values, 0))


# -- kept verdicts ---------------------------------------------------------------------------------------------------


def cache_file() -> Path:
    """Where verdicts are kept between starts."""
    return user_cache_path("dropscribe", appauthor=False) / "selfcheck.json"


def device_name() -> str:
    """The processor or GPU behind the device, as MLX names it."""
    return str(mx.device_info().get("device_name", ""))


def key_of(model: Model) -> str:
    """What a verdict holds for: the model, the device, the library and this code."""
    return " | ".join(
        [model.revision, model.device, device_name(), str(model.dtype), f"mlx {version('mlx')}", f"{VERSION}"]
    )


def verdict_of(
    model: Model,
    path: Path | None = None,
    *,
    longest: int | None = None,
    kv_budget: int = KV_BUDGET,
    pulse: Callable[[], None] = lambda: None,
    checker: Callable[..., Verdict] = check,
) -> Verdict:
    """The kept verdict, if it holds for rows of ``longest`` positions and for ``kv_budget`` (as for ``check``).

    ``longest`` is by default what the model's own longest segments need.
    Without one the check is run and kept; one that ran out of time is gone on with.
    """
    longest = longest or model.positions_for(model.max_segment_seconds)
    verdict = kept(model, path)
    if verdict is not None and (verdict.positions < longest or verdict.kv_budget < kv_budget):
        verdict = None
    if verdict is None or verdict.unchecked:
        if verdict is not None:
            longest, kv_budget = verdict.positions, verdict.kv_budget
        verdict = checker(model, known=verdict, longest=longest, kv_budget=kv_budget, pulse=pulse)
        keep(model, verdict, path)
    return verdict


def kept(model: Model, path: Path | None = None) -> Verdict | None:
    """The verdict of an earlier start, if there is one."""
    stored = read_json(path or cache_file()).get(key_of(model))
    if not isinstance(stored, dict):
        return None
    try:
        return Verdict(
            exact_slots=tuple(int(slots) for slots in stored["exact_slots"]),
            serial_equal_slots=int(stored["serial_equal_slots"]),
            block_classes=tuple(int(start) for start in stored["block_classes"]),
            tokens_per_second={int(slots): float(rate) for slots, rate in stored["tokens_per_second"].items()},
            failure=None if stored["failure"] is None else str(stored["failure"]),
            unchecked=tuple(int(slots) for slots in stored["unchecked"]),
            positions=int(stored["positions"]),
            kv_budget=int(stored["kv_budget"]),
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        return None  # written by something else: check again


def keep(model: Model, verdict: Verdict, path: Path | None = None) -> None:
    """Note a verdict for the next start. A cache that cannot be written costs a few seconds then, nothing else."""
    path = path or cache_file()
    stored = {**read_json(path), key_of(model): asdict(verdict)}
    temp = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temp.write_text(json.dumps(stored, indent=1), "utf-8")
        temp.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temp.unlink()
