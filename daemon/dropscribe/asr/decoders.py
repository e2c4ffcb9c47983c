"""The schedules over the one decode step: serial and bulk-sync.

Both take rows from a line and give back finished rows; neither does I/O or logs. A row's tokens are the same in either,
because a row's forward is the same forward: one slot, its own block, its own offset.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import mlx.core as mx
import numpy as np

from dropscribe.asr import guards
from dropscribe.asr.step import greedy_step, logits_step
from dropscribe.asr.timing import BatchTiming, RowTiming

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dropscribe.asr.layers import TextDecoder
    from dropscribe.asr.step import SlotState

    Sampler = Callable[[mx.array], mx.array]  # logits [1, V] → token [1, 1] int32


@dataclass(eq=False)
class Row:
    """A prefilled row: its first token is known to the device, maybe not yet to the host."""

    key: Any
    seconds: float  # of its audio: sets the budget and what counts as a loop
    token: mx.array  # [1, 1] int32, goes into the next step
    state: SlotState
    eos: frozenset[int]
    timing: RowTiming = field(default_factory=RowTiming)
    tokens: list[int] = field(default_factory=list)
    finish_reason: str | None = None  # eos · length · loop

    def __post_init__(self) -> None:
        self.budget = guards.token_budget(self.seconds)

    @property
    def kv_tokens(self) -> int:
        """Positions of key/value memory it may come to need."""
        return self.state.length + self.budget - len(self.tokens)

    def take(self, token: int) -> None:
        """Append a token the host has read and decide whether the row has ended."""
        self.tokens.append(token)
        if token in self.eos:
            self.finish_reason = "eos"
        elif len(self.tokens) >= self.budget:
            self.finish_reason = "length"
        elif guards.is_looping(self.tokens, self.seconds):
            self.finish_reason = "loop"

    def stage(self, step: Callable[..., Any]) -> None:
        """Put one more step for this row into the graph; nothing is waited for."""
        self.state.grow()
        state = self.state
        self.token, state.offsets, state.keys, state.values = step(self.token, state.offsets, state.keys, state.values)
        state.length += 1


class Line(Protocol):
    """Where rows come from."""

    def peek(self, *, wait: bool) -> int | None:
        """KV tokens the next row may come to need; ``None`` if there is none yet (``wait`` false) or none any more."""

    def next(self) -> Row:
        """The row just peeked at, encoded and prefilled and evaluated."""


def serial(
    decoder: TextDecoder,
    line: Line,
    timing: BatchTiming,
    *,
    sampler: Sampler | None = None,
    pulse: Callable[[], None] = lambda: None,
) -> Iterator[Row]:
    """One row after another, one host sync a token, nothing staged ahead: the reference for every other schedule."""
    step = greedy_step(decoder) if sampler is None else _sampling_step(decoder, sampler)
    while line.peek(wait=True) is not None:
        row = line.next()
        row.take(read(row.token)[0])
        timing.steps += 1
        timing.syncs += 1
        share(timing, [row], 0.0)
        while row.finish_reason is None:
            pulse()
            started = time.perf_counter()
            row.stage(step)
            row.take(read(row.token)[0])
            timing.steps += 1
            timing.syncs += 1
            timing.forwards += 1
            share(timing, [row], time.perf_counter() - started)
        yield row


def bulk_sync(
    decoder: TextDecoder,
    line: Line,
    timing: BatchTiming,
    *,
    slots: int,
    kv_budget: int,
    pulse: Callable[[], None] = lambda: None,
) -> Iterator[Row]:
    """Up to ``slots`` rows side by side, a forward each, all their tokens read in one sync, one step behind.

    Step N + 1 is staged before the tokens of step N are read, so that the device works while the host looks; the price
    is one forward for each row that turns out to have ended. A place that falls free is taken at once by the next row,
    as long as all rows together stay within ``kv_budget`` tokens of keys and values; one row is always taken.
    """
    step = greedy_step(decoder)
    live: list[Row] = []
    staged: list[Row] = []  # whose tokens `unread` holds
    unread: mx.array | None = None  # [B, 1]: computed or on its way, not yet seen by the host
    while True:
        admitted = False
        while another_fits(line, live, slots, kv_budget):
            if unread is not None and not admitted:
                drain(unread, live, timing)
            live.append(line.next())
            admitted = True
        if not live:
            return
        pulse()
        started = time.perf_counter()
        if admitted or unread is None:
            staged, unread = list(live), mx.concatenate([row.token for row in live])
            mx.async_eval(unread)  # type: ignore[no-untyped-call]
        for row in live:
            row.stage(step)
        ahead = mx.concatenate([row.token for row in live])
        mx.async_eval(ahead)  # type: ignore[no-untyped-call]
        for row, token in zip(staged, read(unread), strict=True):  # the one sync of this step
            if row.finish_reason is None:
                row.take(token)
        timing.steps += 1
        timing.syncs += 1
        timing.forwards += len(live)
        share(timing, live, time.perf_counter() - started)
        staged, unread = live, ahead
        live = [row for row in staged if row.finish_reason is None]
        for row in staged:
            if row.finish_reason is not None:
                timing.wasted_forwards += 1
                yield row
        if not live:
            unread = None  # nothing but look-ahead of ended rows


def another_fits(line: Line, live: list[Row], slots: int, kv_budget: int) -> bool:
    """Whether the next row can be taken now; waits for one only when nothing else could be done."""
    if len(live) >= slots:
        return False
    need = line.peek(wait=not live)
    return need is not None and (not live or need <= kv_budget - sum(row.kv_tokens for row in live))


def read(tokens: mx.array) -> list[int]:
    """``tokens [B, 1]`` as the host sees them; waits until they are computed."""
    return [int(token) for token in np.array(tokens)[:, 0]]


def drain(unread: mx.array, live: list[Row], timing: BatchTiming) -> None:
    """Let the staged step finish where its seconds belong, before an encoder pass queues up behind it."""
    started = time.perf_counter()
    mx.eval(unread)
    share(timing, live, time.perf_counter() - started)


def share(timing: BatchTiming, rows: list[Row], seconds: float) -> None:
    """Divide a step's seconds equally among the rows that were live in it, and note the tokens they have by now."""
    timing.decode_s += seconds
    for row in rows:
        row.timing.decode_s += seconds / len(rows)
        timing.generated_tokens += len(row.tokens) - row.timing.generated_tokens
        row.timing.generated_tokens = len(row.tokens)


def _sampling_step(decoder: TextDecoder, sampler: Sampler) -> Callable[..., Any]:
    forward = logits_step(decoder)

    def step(*state: Any) -> tuple[Any, ...]:
        logits, *rest = forward(*state)
        return sampler(logits), *rest

    return step
