"""Prompt and audio through the decoder once: first token and the row's key/value block.

A row at a time, so its arithmetic cannot depend on others; the vocabulary head on the last position only. What stands
before the audio is the same for all rows of a folder: where that is long, ``Prefiller`` computes it once.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

import mlx.core as mx
import numpy as np

from dropscribe.asr.step import SlotState, block_length

if TYPE_CHECKING:
    from dropscribe.asr.layers import TextDecoder

PREFILL_STEP = 2048  # positions a pass; bounds the attention's memory for long prompts
REUSED_FROM = 64  # tokens of a prefix that is computed once; below, the copy is hardly cheaper
KEPT_PREFIXES = 4  # at 0.6B and 512 tokens 56 MB each


def embed(decoder: TextDecoder, prefix: np.ndarray, audio: mx.array, suffix: np.ndarray) -> mx.array:
    """``prefix [a]``, ``audio [N, D]``, ``suffix [b]`` → ``[1, a + N + b, D]``: one lookup, one concatenation."""
    ids = mx.array(np.concatenate([prefix, suffix]))
    words = decoder.embedding(ids)  # [a + b, D]
    a = len(prefix)
    return mx.concatenate([words[:a], audio.astype(words.dtype), words[a:]])[None]


class Prefiller:
    """Runs prompts; long beginnings (system text, names and terms) once, to be copied into every row.

    Whether a beginning is reused depends on its length alone. Run apart from what follows it may round differently (on
    the CPU it does not), so a row must not depend on whether somebody asked for the same before.
    """

    def __init__(self, decoder: TextDecoder, step: int = PREFILL_STEP) -> None:
        """``step``: positions a pass."""
        self._decoder, self._step = decoder, step
        self._kept: OrderedDict[bytes, SlotState] = OrderedDict()

    def run(self, prefix: np.ndarray, audio: mx.array, suffix: np.ndarray) -> tuple[mx.array, SlotState]:
        """``prefix [a]`` and ``suffix [b]`` int32, ``audio [N, D]``: logits of the first token ``[1, V]`` and state."""
        embeddings = embed(self._decoder, prefix, audio, suffix)
        return prefill(self._decoder, embeddings, self._step, self._known(prefix))

    def _known(self, ids: np.ndarray) -> SlotState | None:
        if len(ids) < REUSED_FROM:
            return None
        key = ids.tobytes()
        if key not in self._kept:
            _, state = prefill(self._decoder, self._decoder.embedding(mx.array(ids))[None], self._step)
            mx.eval(state.keys, state.values)
            self._kept[key] = state
        self._kept.move_to_end(key)
        while len(self._kept) > KEPT_PREFIXES:
            self._kept.popitem(last=False)
        return self._kept[key]


def prefill(
    decoder: TextDecoder, embeddings: mx.array, step: int = PREFILL_STEP, known: SlotState | None = None
) -> tuple[mx.array, SlotState]:
    """Run a prompt.

    ``embeddings [1, L, D]``; ``known``: state of its first positions, which are left out. Returns the logits of the
    first token ``[1, V]`` and the row's state with room for the first decode step; nothing is evaluated beyond the last
    pass. The same prompt is always cut the same way.
    """
    L = embeddings.shape[1]
    shape = decoder.shape
    C, first = block_length(L), 0 if known is None else known.length
    if known is None:
        size = (1, shape.kv_heads, C, shape.head_dim)
        blocks = [[mx.zeros(size, decoder.dtype) for _ in range(shape.layers)] for _ in "kv"]
    else:  # copies: the next row starts from it, too
        more = [(0, 0), (0, 0), (0, C - known.block), (0, 0)]
        blocks = [[mx.pad(array, more) for array in arrays] for arrays in (known.keys, known.values)]
    last = embeddings
    for start in range(first, L, step):
        end = min(start + step, L)
        last = _forward(decoder, embeddings[:, start:end], blocks, start, end)
        if end < L:
            mx.eval(last, blocks)
    logits = decoder.logits(last[:, -1])
    return logits, SlotState(offsets=mx.array([L], mx.int32), keys=blocks[0], values=blocks[1], length=L)


def _forward(decoder: TextDecoder, x: mx.array, blocks: list[list[mx.array]], start: int, end: int) -> mx.array:
    """Positions ``start … end`` of a row, ``x [1, end − start, D]``; writes their keys and values into ``blocks``."""
    scale = decoder.shape.head_dim**-0.5
    for at, layer in enumerate(decoder.layers):

        def attend(q: mx.array, k: mx.array, v: mx.array, at: int = at) -> mx.array:
            keys, values = blocks
            keys[at][:, :, start:end] = k
            values[at][:, :, start:end] = v
            if start:
                k, v = keys[at][:, :, :end], values[at][:, :, :end]
            return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask="causal")

        x = layer.forward(x, start, decoder.shape, attend)
    return x
