"""Prompt and audio through the decoder once: first token and the row's key/value block.

A row at a time, so its arithmetic cannot depend on others; the vocabulary head on the last position only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import mlx.core as mx
import numpy as np

from dropscribe.asr.step import SlotState, block_length

if TYPE_CHECKING:
    from dropscribe.asr.layers import TextDecoder

PREFILL_STEP = 2048  # positions a pass; bounds the attention's memory for long prompts


def embed(decoder: TextDecoder, prefix: np.ndarray, audio: mx.array, suffix: np.ndarray) -> mx.array:
    """``prefix [a]``, ``audio [N, D]``, ``suffix [b]`` → ``[1, a + N + b, D]``: one lookup, one concatenation."""
    ids = mx.array(np.concatenate([prefix, suffix]))
    words = decoder.embedding(ids)  # [a + b, D]
    a = len(prefix)
    return mx.concatenate([words[:a], audio.astype(words.dtype), words[a:]])[None]


def prefill(decoder: TextDecoder, embeddings: mx.array, step: int = PREFILL_STEP) -> tuple[mx.array, SlotState]:
    """Run a prompt.

    ``embeddings [1, L, D]``. Returns the logits of the first token ``[1, V]`` and the row's state with room for the
    first decode step; nothing is evaluated beyond the last pass. The same prompt is always cut the same way.
    """
    L = embeddings.shape[1]
    shape = decoder.shape
    C = block_length(L)
    blocks = [
        [mx.zeros((1, shape.kv_heads, C, shape.head_dim), decoder.dtype) for _ in range(shape.layers)] for _ in "kv"
    ]
    last = embeddings
    for start in range(0, L, step):
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
