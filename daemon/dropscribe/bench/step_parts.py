"""One decode step and each of its parts, timed in turns; its graph operations and the bytes it has to read.

A part is the very code of ``asr.layers`` and ``asr.step`` over the same shapes, evaluated by itself. Every evaluation
pays once for waiting (*sync*), so that is measured with the smallest graph there is and taken off each part.
"""

from __future__ import annotations

import io
import re
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np

from dropscribe.asr.sampling import Options, make_sampler
from dropscribe.asr.step import Attention, causal_mask, greedy_step, most_likely, places, write

if TYPE_CHECKING:
    from collections.abc import Callable

    from dropscribe.asr.layers import TextDecoder

# Nodes of MLX's graph that only look at memory in another way. Nearly always: a Reshape of what does not lie in a row
# copies, and Flatten and Unflatten are Reshapes.
VIEWS = frozenset({
    "AsStrided", "Broadcast", "BroadcastAxes", "Copy", "Depends", "ExpandDims", "Flatten", "Reshape", "Slice", "Split",
    "Squeeze", "StopGradient", "Transpose", "Unflatten", "View",
})  # fmt: skip
WARM = 3  # runs that are not counted: the first ones trace and compile
SAMPLED = Options(temperature=0.7, top_p=0.95, seed=1)


@dataclass
class Timed:
    """Something that can be run again and again; ``seconds`` of each run."""

    name: str
    run: Callable[[], None]
    seconds: list[float] = field(default_factory=list)

    def once(self, *, counted: bool) -> None:
        """Run it between two ``mx.synchronize()``."""
        mx.synchronize()
        started = time.perf_counter()
        self.run()
        mx.synchronize()
        if counted:
            self.seconds.append(time.perf_counter() - started)


@dataclass(eq=False)
class Blocks:
    """State of S slots with C positions each, in the middle of a recording."""

    tokens: mx.array  # [S, 1]
    offsets: mx.array  # [S]
    keys: list[mx.array]  # [S, KV, C, hd] a layer
    values: list[mx.array]

    @classmethod
    def make(cls, decoder: TextDecoder, slots: int, context: int) -> Blocks:
        """``context`` positions, all but the last in use; noise in place of speech, which costs the same."""
        shape = decoder.shape
        size = (slots, shape.kv_heads, context, shape.head_dim)
        keys, values = ([mx.random.normal(size).astype(decoder.dtype) for _ in range(shape.layers)] for _ in "kv")
        blocks = cls(mx.ones((slots, 1), mx.int32), mx.full((slots,), context - 1, mx.int32), keys, values)
        mx.eval(blocks.tokens, blocks.offsets, blocks.keys, blocks.values)
        return blocks


# -- the parts ---------------------------------------------------------------------------------------------------------


def whole_step(decoder: TextDecoder, blocks: Blocks) -> Timed:
    """Step and read, nothing staged ahead: what the parts have to add up to."""
    step = greedy_step(decoder)

    def run() -> None:
        tokens, _, blocks.keys, blocks.values = step(blocks.tokens, blocks.offsets, blocks.keys, blocks.values)
        np.array(tokens)

    return Timed("whole step", run)


def sync(blocks: Blocks) -> Timed:
    """The smallest graph there is, evaluated and read."""

    def run() -> None:
        np.array(blocks.tokens + 1)

    return Timed("sync", run)


def fixed_parts(decoder: TextDecoder, slots: int) -> list[Timed]:
    """The parts that do not depend on the context length: embedding, layers, head, argmax; sampling for comparison."""
    shape = decoder.shape
    tokens, offsets = mx.ones((slots, 1), mx.int32), mx.full((slots,), 63, mx.int32)
    x = mx.random.normal((slots, 1, shape.hidden)).astype(decoder.dtype)
    logits = decoder.logits(x[:, -1])
    mx.eval(tokens, offsets, x, logits)

    def layers(x: mx.array, offsets: mx.array) -> Any:
        made: list[mx.array] = []

        def attend(q: mx.array, k: mx.array, v: mx.array) -> mx.array:
            made.extend((k, v))  # else nobody would ask for them, and they would not be computed
            return q

        for layer in decoder.layers:
            x = layer.forward(x, offsets, shape, attend)
        return x, made

    parts = [
        _part("embedding", decoder.embedding, tokens),
        _part("layers without attention", layers, x, offsets),
        _part("vocabulary head", lambda x: decoder.logits(x[:, -1]), x),
        _part("argmax", most_likely, logits),
    ]
    sampler = make_sampler(SAMPLED)
    if slots == 1 and sampler is not None:
        parts.append(_uncompiled("sampling", sampler, logits))
    return parts


def cache_parts(decoder: TextDecoder, blocks: Blocks) -> list[Timed]:
    """Masks, writing one position of keys and values, and attention over all of ``blocks``, in all layers.

    The blocks may be those of ``whole_step``: nobody keeps them between two runs, or each write would copy them.
    """
    shape = decoder.shape
    slots, _, context, _ = blocks.keys[0].shape
    like = mx.broadcast_to(mx.zeros((), decoder.dtype), blocks.keys[0].shape)  # takes no memory
    q = mx.random.normal((slots, shape.heads, 1, shape.head_dim)).astype(decoder.dtype)
    k = mx.random.normal((slots, shape.kv_heads, 1, shape.head_dim)).astype(decoder.dtype)
    over = Attention(decoder, causal_mask(blocks.offsets, 1, context))
    mx.eval(q, k, over.mask)

    def masks(offsets: mx.array) -> Any:
        return Attention(decoder, causal_mask(offsets, 1, context)).mask, places(offsets, like)

    def written_blocks(k: mx.array, at: mx.array, keys: list[mx.array], values: list[mx.array]) -> Any:
        return [write(block, k, at) for block in keys], [write(block, k, at) for block in values]

    def attention(q: mx.array, keys: list[mx.array], values: list[mx.array]) -> mx.array:
        for key, value in zip(keys, values, strict=True):  # one waits for the other, as in the step
            q = over(q, key, value)
        return q

    compiled_write, compiled_attention = mx.compile(written_blocks), mx.compile(attention)
    at = places(blocks.offsets, like)
    mx.eval(at)

    def written() -> None:
        blocks.keys, blocks.values = compiled_write(k, at, blocks.keys, blocks.values)
        mx.eval(blocks.keys, blocks.values)

    def attended() -> None:
        mx.eval(compiled_attention(q, blocks.keys, blocks.values))

    return [
        _part("masks", masks, blocks.offsets),
        Timed("key/value write", written),
        Timed("attention", attended),
    ]


def _part(name: str, function: Callable[..., Any], *arguments: Any) -> Timed:
    """A part, compiled as the step is (which does nothing where compiling is off)."""
    return _uncompiled(name, mx.compile(function), *arguments)


def _uncompiled(name: str, function: Callable[..., Any], *arguments: Any) -> Timed:
    return Timed(name, lambda: mx.eval(function(*arguments)))


# -- where the host's time goes ----------------------------------------------------------------------------------------


@dataclass
class HostTimes:
    """A step as the host sees it, seconds each."""

    build: list[float] = field(default_factory=list)  # Python: the graph is made
    dispatch: list[float] = field(default_factory=list)  # async_eval: the graph is walked and handed to the device
    wait: list[float] = field(default_factory=list)  # until the tokens are here
    ahead: list[float] = field(default_factory=list)  # from step to step when the next is staged before one is read


def host_times(decoder: TextDecoder, slots: int, context: int, repeats: int) -> HostTimes:
    """Build, hand over, wait; then the same steps staged one ahead, as the decoders do it."""
    step, times = greedy_step(decoder), HostTimes()
    blocks = Blocks.make(decoder, slots, context)
    for at in range(WARM + repeats):
        mx.synchronize()
        marks = [time.perf_counter()]
        tokens, _, blocks.keys, blocks.values = step(blocks.tokens, blocks.offsets, blocks.keys, blocks.values)
        marks.append(time.perf_counter())
        mx.async_eval(tokens, blocks.keys, blocks.values)  # type: ignore[no-untyped-call]
        marks.append(time.perf_counter())
        np.array(tokens)
        marks.append(time.perf_counter())
        if at >= WARM:
            for kept, start, end in zip((times.build, times.dispatch, times.wait), marks, marks[1:], strict=False):
                kept.append(end - start)
    before, last = blocks.tokens, time.perf_counter()
    for at in range(WARM + repeats):
        tokens, _, blocks.keys, blocks.values = step(before, blocks.offsets, blocks.keys, blocks.values)
        mx.async_eval(tokens)  # type: ignore[no-untyped-call]
        np.array(before)
        before, now = tokens, time.perf_counter()
        if at >= WARM:
            times.ahead.append(now - last)
        last = now
    mx.eval(before)
    return times


# -- operations and bytes ----------------------------------------------------------------------------------------------


def graph_operations(decoder: TextDecoder, blocks: Blocks) -> Counter[str]:
    """Nodes of the graph of one step by MLX's own names, as it is handed to the device (after ``mx.compile``)."""
    tokens, offsets, keys, values = greedy_step(decoder)(blocks.tokens, blocks.offsets, blocks.keys, blocks.values)
    text = io.StringIO()
    mx.export_to_dot(text, tokens, offsets, *keys, *values)
    return Counter(re.findall(r'label ="([^"]*)"', text.getvalue()))


@dataclass(frozen=True)
class StepBytes:
    """What one step moves between memory and processor, at the least."""

    weights: int  # read once for all slots
    attention: int  # keys and values of all positions of the blocks, read

    @property
    def total(self) -> int:
        """Both."""
        return self.weights + self.attention


def step_bytes(decoder: TextDecoder, slots: int, context: int) -> StepBytes:
    """From the sizes of the arrays as they lie in memory, quantised ones with their scales.

    Not counted: activations (small) and what a kernel reads twice.
    """
    shape = decoder.shape
    layers = sum(array.nbytes for layer in decoder.layers for array in layer.arrays())
    embedding = [array for array in decoder.embedding.parameters().values() if isinstance(array, mx.array)]
    head = embedding if decoder.head is None else decoder.head.arrays()
    looked_up = slots * sum(array.nbytes // array.shape[0] for array in embedding)
    weights = layers + decoder.norm.nbytes + sum(array.nbytes for array in head) + looked_up
    blocks = 2 * shape.layers * slots * shape.kv_heads * context * shape.head_dim * decoder.dtype.size
    return StepBytes(weights, blocks)


def bandwidth(megabytes: int, repeats: int, *, rows_first: bool) -> dict[str, float]:
    """Bytes a second that this device moves, the best of ``repeats``: copying, adding up, and matrix times vector.

    ``rows_first``: the matrix lies as the model's dense ones do.
    """
    side = 4096
    rows = max(1, megabytes * 2**20 // (4 * side))
    matrix = mx.random.normal((rows, side))
    vector = mx.random.normal((1, rows if rows_first else side))
    mx.eval(matrix, vector)
    size = matrix.nbytes
    ways = {
        "copy": (2 * size, lambda: mx.eval(matrix + 1)),
        "sum": (size, lambda: mx.eval(mx.sum(matrix))),
        "matrix × vector": (size, lambda: mx.eval(vector @ (matrix if rows_first else matrix.T))),
    }
    rates = {}
    for name, (moved, run) in ways.items():
        timed = Timed(name, run)
        for at in range(1 + repeats):
            timed.once(counted=at > 0)
        rates[name] = moved / min(timed.seconds)
    return rates
