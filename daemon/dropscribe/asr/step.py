"""One decode step over S slots.

A *slot* holds one row: its key/value block of C positions and its next position. Every shape in the step depends on S
and C alone, never on a row, so a row's bits cannot depend on its neighbours. Serial is this step with one slot,
bulk-sync is many states of one slot, a true batch is one state of many.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import mlx.core as mx

if TYPE_CHECKING:
    from collections.abc import Callable

    from dropscribe.asr.layers import TextDecoder

    State = tuple[mx.array, mx.array, list[mx.array], list[mx.array]]  # tokens or logits, offsets, keys, values
    Step = Callable[[mx.array, mx.array, list[mx.array], list[mx.array]], State]


CHECKED_SLOTS = (2, 3, 4, 5, 6, 7, 8, 12, 16)  # numbers of slots that the self-check looks at, besides 1
KV_BUDGET = 32_768  # positions of keys and values for all rows together; the default of decode.kv_budget


def block_length(position: int) -> int:
    """Block length C that has room for ``position``: 64, 128, 256, then by 256. A pure function of the row's own."""
    needed = position + 1
    for size in (64, 128):
        if needed <= size:
            return size
    return -(-needed // 256) * 256


def causal_mask(offsets: mx.array, length: int, block: int) -> mx.array:
    """What ``length`` new tokens of each slot may look at in its block: bool ``[S, 1, L, C]``.

    ``offsets [S]``: position of each slot's first new token. A row sees its own past and itself, whatever the others'
    lengths are; positions beyond are whatever an earlier row left there.
    """
    queries = offsets[:, None] + mx.arange(length)[None]  # [S, L]
    return (mx.arange(block)[None, None] <= queries[:, :, None])[:, None]


def places(offsets: mx.array, held: mx.array) -> mx.array:
    """Where each slot of ``held [S, KV, C, hd]`` writes next, as ``write`` takes it; the same for all layers.

    MLX writes where it is told, also past the end. A live row's position is never there; an empty slot's runs on, and
    may spoil the last position of its own block.
    """
    slots, kv_heads, block, head_dim = held.shape
    at = mx.minimum(offsets, block - 1)[:, None, None, None]
    return mx.broadcast_to(at, (slots, kv_heads, 1, head_dim))


def write(held: mx.array, new: mx.array, at: mx.array) -> mx.array:
    """``held [S, KV, C, hd]`` with ``new [S, KV, 1, hd]`` at ``places``; in place where nobody else holds it."""
    return mx.put_along_axis(held, at, new, axis=2)


class Attention:
    """One new token of each slot over its block, the same mask in all layers.

    MLX's CUDA backend attends under a mask in one fused operation, but from two query positions on; for one it takes
    five. So there the query heads that share a key head go as if they were positions of one head: the same sums.
    """

    def __init__(self, decoder: TextDecoder, seen: mx.array, *, grouped: bool | None = None) -> None:
        """``seen [S, 1, 1, C]`` as ``causal_mask`` gives it; ``grouped``: heads as positions; as the device likes."""
        shape = decoder.shape
        self._scale, self._kv_heads = shape.head_dim**-0.5, shape.kv_heads
        self._grouped = _on_cuda() if grouped is None else grouped
        if self._grouped:
            slots, _, _, block = seen.shape
            bias = mx.where(seen, 0.0, float(mx.finfo(decoder.dtype).min)).astype(decoder.dtype)
            seen = mx.contiguous(mx.broadcast_to(bias, (slots, 1, shape.heads // shape.kv_heads, block)))
        self.mask = seen

    def __call__(self, q: mx.array, keys: mx.array, values: mx.array) -> mx.array:
        """``q [S, H, 1, hd]``, ``keys``, ``values [S, KV, C, hd]`` → ``[S, H, 1, hd]``."""
        S, H, _, hd = q.shape
        if self._grouped:
            q = q.reshape(S, self._kv_heads, -1, hd)
        out = mx.fast.scaled_dot_product_attention(q, keys, values, scale=self._scale, mask=self.mask)
        return out.reshape(S, H, 1, hd)


def _on_cuda() -> bool:
    return bool(mx.cuda.is_available()) and mx.default_device().type == mx.DeviceType.gpu


@dataclass(eq=False)
class SlotState:
    """What S slots carry from step to step; ``keys`` and ``values`` hold one ``[S, KV, C, hd]`` a layer."""

    offsets: mx.array  # [S] int32: position of the token that goes in next
    keys: list[mx.array]
    values: list[mx.array]
    length: int  # the same position as the host knows it (the largest, for S > 1)

    @property
    def block(self) -> int:
        """Block length C."""
        return int(self.keys[0].shape[2])

    def grow(self) -> None:
        """Lengthen the blocks if the next position has no room."""
        self.lengthen(block_length(self.length))

    def lengthen(self, block: int) -> None:
        """Make the blocks at least ``block`` positions long; what they hold keeps its bits."""
        more = block - self.block
        if more > 0:
            self.keys = [_longer(k, more) for k in self.keys]
            self.values = [_longer(v, more) for v in self.values]


def _longer(block: mx.array, more: int) -> mx.array:
    return mx.pad(block, [(0, 0), (0, 0), (0, more), (0, 0)])


def logits_step(decoder: TextDecoder) -> Step:
    """``step(tokens [S, 1], offsets [S], keys, values) → (logits [S, V], offsets + 1, keys, values)``, compiled."""

    def step(tokens: mx.array, offsets: mx.array, keys: list[mx.array], values: list[mx.array]) -> State:
        return _step(decoder, tokens, offsets, keys, values)

    return _compiled(decoder, "logits", step)


def greedy_step(decoder: TextDecoder) -> Step:
    """As ``logits_step``, but with the next tokens ``[S, 1]`` int32 (argmax of the raw logits) in first place."""

    def step(tokens: mx.array, offsets: mx.array, keys: list[mx.array], values: list[mx.array]) -> State:
        logits, offsets, keys, values = _step(decoder, tokens, offsets, keys, values)
        return most_likely(logits), offsets, keys, values

    return _compiled(decoder, "greedy", step)


def _compiled(decoder: TextDecoder, name: str, step: Step) -> Step:
    if name not in decoder.compiled:
        decoder.compiled[name] = mx.compile(step)
    return decoder.compiled[name]  # type: ignore[no-any-return]


def most_likely(logits: mx.array) -> mx.array:
    """``logits [S, V] → [S, 1]`` int32. Raw logits: normalising first can change the order in low precision."""
    return mx.argmax(logits, axis=-1, keepdims=True).astype(mx.int32)


def _step(
    decoder: TextDecoder, tokens: mx.array, offsets: mx.array, keys: list[mx.array], values: list[mx.array]
) -> State:
    attention = Attention(decoder, causal_mask(offsets, 1, keys[0].shape[2]))
    at = places(offsets, keys[0])
    new_keys: list[mx.array] = []
    new_values: list[mx.array] = []

    def attend(q: mx.array, k: mx.array, v: mx.array) -> mx.array:
        layer = len(new_keys)
        new_keys.append(write(keys[layer], k, at))
        new_values.append(write(values[layer], v, at))
        return attention(q, new_keys[layer], new_values[layer])

    x = decoder.embedding(tokens)  # [S, 1, D]
    for layer in decoder.layers:
        x = layer.forward(x, offsets, decoder.shape, attend)
    return decoder.logits(x[:, -1]), offsets + 1, new_keys, new_values
