"""The true batch: one forward over S slots reads the weights once for all of them.

S is fixed while a batch runs, empty slots hold a dummy row, and every shape depends on S and the block length alone.
So a row's result is a function of the row and of S, never of who sits beside it; ``selfcheck`` shows on the machine at
hand whether that holds, up to which S the bits are those of one slot, and across which block lengths.

A *lane* is one state of S slots. Rows whose block lengths give different bits on this device must not share a forward,
so there is a lane for each class of block lengths; a row that outgrows its class moves on.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import mlx.core as mx

from dropscribe.asr.decoders import drain, read, share
from dropscribe.asr.step import CHECKED_SLOTS, SlotState, block_length, greedy_step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from dropscribe.asr.decoders import Line, Row
    from dropscribe.asr.layers import TextDecoder
    from dropscribe.asr.step import Step
    from dropscribe.asr.timing import BatchTiming


PATIENCE = 8  # steps without a row in sight before slots are given up; one that is late shall not cost half of them


class Lane:
    """S slots in one state, and the rows in them."""

    def __init__(self, decoder: TextDecoder, slots: int) -> None:
        self._decoder = decoder
        self.rows: list[Row | None] = [None] * slots
        self.tokens = mx.zeros((slots, 1), mx.int32)
        self.state = self._empty(slots, 0)

    def _empty(self, slots: int, block: int) -> SlotState:
        shape = self._decoder.shape
        size = (slots, shape.kv_heads, block, shape.head_dim)
        blocks = [[mx.zeros(size, self._decoder.dtype) for _ in range(shape.layers)] for _ in "kv"]
        return SlotState(mx.zeros((slots,), mx.int32), blocks[0], blocks[1], 0)

    @property
    def live(self) -> list[Row]:
        """The rows that have not ended."""
        return [row for row in self.rows if row is not None]

    def insert(self, row: Row) -> None:
        """Put a row into an empty slot; its own state is given up, and its next token moves here unread.

        Only what the row has is copied; beyond it lies what an earlier row left there, which no mask lets it see.
        """
        at = self.rows.index(None)
        self.rows[at] = row
        self._make_room()
        self.state.lengthen(row.state.block)
        where, own, state = mx.array([at], mx.int32), row.state, self.state
        state.keys = [_put(k, new, where) for k, new in zip(state.keys, own.keys, strict=True)]
        state.values = [_put(v, new, where) for v, new in zip(state.values, own.values, strict=True)]
        self.tokens = _put(self.tokens, row.token, where)
        state.offsets = _put(state.offsets, own.offsets, where)
        own.keys, own.values = [], []  # one copy of a row's memory is enough
        # Now, not later: with the last update still on its way MLX copies all slots instead of writing into them.
        mx.eval(self.tokens, state.offsets, state.keys, state.values)

    def remove(self, row: Row) -> None:
        """Free a row's slot; what it leaves there is a dummy until the next row overwrites it."""
        self.rows[self.rows.index(row)] = None

    def take_out(self, row: Row) -> None:
        """Free a row's slot and give it its own state back, to go on elsewhere."""
        at = self.rows.index(row)
        state = self.state
        row.token = self.tokens[at : at + 1]
        row.state.offsets = state.offsets[at : at + 1]
        row.state.keys = [k[at : at + 1] for k in state.keys]
        row.state.values = [v[at : at + 1] for v in state.values]
        mx.eval(row.token, row.state.offsets, row.state.keys, row.state.values)
        self.rows[at] = None

    def stage(self, step: Step) -> None:
        """Put one more step for all slots into the graph."""
        self._make_room()
        state = self.state
        self.tokens, state.offsets, state.keys, state.values = step(
            self.tokens, state.offsets, state.keys, state.values
        )
        for row in self.live:
            row.state.length += 1

    def resize(self, slots: int) -> None:
        """Go on with ``slots`` of them, all live rows included, as long as those need; new slots hold dummies."""
        keep = sorted(range(len(self.rows)), key=lambda at: (self.rows[at] is None, at))[:slots]
        index, more, block = mx.array(keep, mx.int32), slots - len(keep), self._needed()

        def changed(array: mx.array) -> mx.array:
            return mx.pad(array[index], [(0, more)] + [(0, 0)] * (array.ndim - 1))

        state = self.state
        self.rows = [*(self.rows[at] for at in keep), *[None] * more]
        self.tokens, state.offsets = changed(self.tokens), changed(state.offsets)
        for arrays in (state.keys, state.values):
            for at, array in enumerate(arrays):  # one after another: old and new of one layer are enough
                arrays[at] = changed(array[:, :, :block])
                mx.eval(arrays[at])
        mx.eval(self.tokens, state.offsets)

    def _make_room(self) -> None:
        """The block must hold the next position of every live row; only ``resize`` shortens it."""
        self.state.lengthen(self._needed())

    def _needed(self) -> int:
        return max(block_length(row.state.length) for row in self.live)


def _block_before(block: int) -> int:
    """The longest block that is shorter than ``block``."""
    return {64: 0, 128: 64, 256: 128}.get(block, block - 256)


def _put(slots: mx.array, row: mx.array, at: mx.array) -> mx.array:
    """``slots [S, …]`` with ``row [1, …]`` at ``at [1]``; the row may be shorter in the other axes."""
    return mx.slice_update(slots, row, at, axes=(0,))


class Lanes:
    """All lanes of one batch: who sits where, and whose tokens come in which order."""

    def __init__(self, decoder: TextDecoder, slots: int, block_classes: Sequence[int]) -> None:
        self._decoder, self.slots, self.most, self._classes = decoder, slots, slots, sorted(block_classes)
        self._lanes: dict[int, Lane] = {}

    @property
    def live(self) -> list[Row]:
        """The rows that have not ended."""
        return [row for lane in self._lanes.values() for row in lane.live]

    @property
    def count(self) -> int:
        """Forwards a step."""
        return len(self._lanes)

    def place(self, row: Row) -> None:
        """Put a row into the lane of its class."""
        key = self._class_of(row)
        if key not in self._lanes:
            self._lanes[key] = Lane(self._decoder, self.slots)
        self._lanes[key].insert(row)

    def regroup(self) -> bool:
        """Move rows that have outgrown their class; True if anything has changed."""
        grown = [(lane, row) for key, lane in self._lanes.items() for row in lane.live if self._class_of(row) != key]
        for lane, row in grown:
            lane.take_out(row)
        for _, row in grown:
            self.place(row)
        return self._drop_empty() or bool(grown)

    def remove(self, row: Row) -> None:
        """A row has ended."""
        next(lane for lane in self._lanes.values() if row in lane.rows).remove(row)

    def resize(self, slots: int) -> None:
        """Go on with ``slots``; every live row keeps one."""
        self.slots = slots
        self._drop_empty()
        for lane in self._lanes.values():
            lane.resize(slots)

    def start_afresh(self) -> None:
        """All slots again; only when no row is live."""
        self._lanes.clear()
        self.slots = self.most

    def length_of_slots(self, positions: int) -> int:
        """Positions a slot may come to take in all lanes together, for rows of up to ``positions``: they pass through
        the lanes one after another, and others may be in those behind them.
        """
        block = block_length(positions - 1)
        return block + sum(_block_before(start) for start in self._classes if 0 < start <= block)

    def stage(self, step: Step) -> None:
        """Put one more step for every slot into the graph."""
        for lane in self._lanes.values():
            lane.stage(step)

    def tokens(self) -> tuple[list[Row | None], mx.array]:
        """The rows slot by slot and their next tokens ``[B, 1]``, on their way to the host."""
        rows = [row for lane in self._lanes.values() for row in lane.rows]
        tokens = [lane.tokens for lane in self._lanes.values()]
        gathered = tokens[0] if len(tokens) == 1 else mx.concatenate(tokens)
        mx.async_eval(gathered)  # type: ignore[no-untyped-call]
        return rows, gathered

    def _class_of(self, row: Row) -> int:
        return max(c for c in self._classes if c <= block_length(row.state.length))

    def _drop_empty(self) -> bool:
        empty = [key for key, lane in self._lanes.items() if not lane.live]
        for key in empty:
            del self._lanes[key]
        return bool(empty)


def batched(
    decoder: TextDecoder,
    line: Line,
    timing: BatchTiming,
    *,
    slots: int,
    kv_budget: int,
    block_classes: Sequence[int] = (0,),
    may_narrow: bool = False,
    pulse: Callable[[], None] = lambda: None,
) -> Iterator[Row]:
    """Rows in ``slots`` slots, one forward a step for all of them, their tokens read one step behind.

    ``block_classes``: the first block length of each class within which the bits are the same on this device; ``(0,)``
    where they always are. ``may_narrow``: as the line runs dry, or for rows so long that ``kv_budget`` tokens do not
    hold every slot at their length, go on with fewer slots, and with more when they can be used again; only where the
    bits are the same. A slot whose row has ended computes one token in vain, as look-ahead does.
    """
    step = greedy_step(decoder)
    lanes = Lanes(decoder, slots, block_classes)
    staged: tuple[list[Row | None], mx.array] | None = None  # slot by slot: whose tokens these are, unseen by the host
    idle = 0
    while True:
        if _fill(lanes, line, timing, kv_budget, staged, may_narrow=may_narrow):
            staged = None
        if not lanes.live:
            return
        pulse()
        started = time.perf_counter()
        if may_narrow:
            idle = idle + 1 if len(lanes.live) <= lanes.slots // 2 and line.peek(wait=False) is None else 0
            if idle > PATIENCE:
                lanes.resize(lanes.slots // 2)
                staged, idle = None, 0
        if lanes.regroup() or staged is None:
            staged = lanes.tokens()
        live = lanes.live
        lanes.stage(step)
        rows, unread = staged
        staged = lanes.tokens()
        for row, token in zip(rows, read(unread), strict=True):  # the one sync of this step
            if row is not None and row.finish_reason is None:
                row.take(token)
        timing.steps += 1
        timing.syncs += 1
        timing.forwards += lanes.count
        share(timing, live, time.perf_counter() - started)
        for row in live:
            if row.finish_reason is not None:
                lanes.remove(row)
                timing.wasted_forwards += 1
                yield row


def _fill(
    lanes: Lanes,
    line: Line,
    timing: BatchTiming,
    kv_budget: int,
    staged: tuple[list[Row | None], mx.array] | None,
    *,
    may_narrow: bool,
) -> bool:
    """Give free slots to waiting rows; True if there was one."""
    placed = False
    while (slots := _slots_for_next(lanes, line, kv_budget, may_narrow=may_narrow)) is not None:
        if staged is not None and not placed:
            drain(staged[1], lanes.live, timing)
        row = line.next()
        started = time.perf_counter()
        if slots != lanes.slots:
            lanes.resize(slots)
        lanes.place(row)
        share(timing, [row], time.perf_counter() - started)
        placed = True
    return placed


def _slots_for_next(lanes: Lanes, line: Line, kv_budget: int, *, may_narrow: bool) -> int | None:
    """How many slots to go on with when the next row is taken now; ``None`` if it has to wait, or there is none.

    Every slot is as long as the longest row will come to be, so that is what has to fit, not the rows' sum. One row is
    always taken; where slots may not change and do not fit, it stays alone.
    """
    live = lanes.live
    if not live:
        lanes.start_afresh()
    need = None if len(live) >= lanes.most else line.peek(wait=not live)
    if need is None:
        return None
    held = lanes.length_of_slots(max([need, *(row.kv_tokens for row in live)]))
    sizes = {1, *CHECKED_SLOTS, lanes.most} if may_narrow else {lanes.most}
    fitting = [size for size in sizes if len(live) < size <= lanes.most and size * held <= kv_budget]
    return max(fitting, default=None if live else min(sizes))
