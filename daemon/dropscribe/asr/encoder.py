"""The audio encoder: log-mel [128, T] → audio embeddings [N, D], window by window.

mlx-audio encodes a row in one dense pass and masks what lies outside the window of a position, which costs time and
memory quadratic in the length. Attention never leaves a window of 8 chunks of 100 frames, so here the windows are the
batch axis: the same numbers (bit for bit on the CPU, a test holds that), cost linear in the length.

On a GPU the *number* of windows in a pass changes the bits, so there every pass has exactly 8, dummies filling up, and
every window 8 chunks, with the keys beyond its valid positions masked. On the CPU it changes nothing and only real
chunks are computed; filling up cost six times the time of an 11 s clip there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
from mlx import nn

from dropscribe.asr.layers import Dense, fused_linear

if TYPE_CHECKING:
    from collections.abc import Callable

WINDOWS_PER_PASS = 8
_MASKED = -1e9


def conv_length(frames: int) -> int:
    """Positions left of ``frames`` mel frames (≤ one chunk) after three stride-2 convolutions."""
    for _ in range(3):
        frames = (frames - 1) // 2 + 1
    return frames


def audio_tokens(frames: int, chunk: int = 100) -> int:
    """Embeddings of a row of ``frames`` mel frames: 13 a full chunk of 100."""
    full, rest = divmod(frames, chunk)
    return full * conv_length(chunk) + (conv_length(rest) if rest else 0)


def _gelu(x: mx.array) -> mx.array:
    return nn.gelu(x)  # type: ignore[no-any-return]  # mlx.nn's activations are untyped


class Conv:
    """3 × 3 convolution, stride 2, padding 1, then GELU: ``[B, F, T, C] → [B, F/2, T/2, C']``."""

    def __init__(self, conv: Any, *, as_product: bool) -> None:
        """``as_product``: gather the nine neighbours and multiply; on the CPU the same bits in half the time."""
        self.weight, self.bias = conv.weight, conv.bias  # [C', 3, 3, C], [C']
        channels = self.weight.shape[0]
        self.product = Dense(self.weight.reshape(channels, -1), None, rows_first=True) if as_product else None

    def __call__(self, x: mx.array) -> mx.array:
        if self.product is None:
            return _gelu(mx.conv2d(x, self.weight, stride=2, padding=1) + self.bias)
        batch, height, width, _ = x.shape
        out_h, out_w = (height - 1) // 2 + 1, (width - 1) // 2 + 1
        x = mx.pad(x, [(0, 0), (1, 1), (1, 1), (0, 0)])
        near = [x[:, i : i + 2 * out_h - 1 : 2, j : j + 2 * out_w - 1 : 2] for i in range(3) for j in range(3)]
        columns = mx.concatenate(near, axis=-1).reshape(batch * out_h * out_w, -1)
        return _gelu(self.product(columns).reshape(batch, out_h, out_w, -1) + self.bias)

    def arrays(self) -> list[mx.array]:
        """Everything that has to be in memory before the first call."""
        return [self.bias, *([self.weight] if self.product is None else self.product.arrays())]


@dataclass(frozen=True, eq=False)
class EncoderLayer:
    """One pre-norm transformer layer with biases."""

    norm_in: Any
    qkv: Dense
    out: Dense
    norm_mlp: Any
    up: Dense
    down: Dense
    heads: int

    @classmethod
    def of(cls, layer: Any, *, rows_first: bool) -> EncoderLayer:
        """From mlx-audio's ``AudioEncoderLayer``."""
        attention = layer.self_attn

        def linear(*modules: Any) -> Dense:
            fused = fused_linear(modules, rows_first=rows_first)
            if not isinstance(fused, Dense):
                raise TypeError("a quantised audio tower is not supported")
            return fused

        return cls(
            norm_in=layer.self_attn_layer_norm,
            qkv=linear(attention.q_proj, attention.k_proj, attention.v_proj),
            out=linear(attention.out_proj),
            norm_mlp=layer.final_layer_norm,
            up=linear(layer.fc1),
            down=linear(layer.fc2),
            heads=attention.num_heads,
        )

    def __call__(self, x: mx.array, mask: mx.array | None) -> mx.array:
        """``x [W, P, D] → [W, P, D]``; ``mask`` additive, broadcast to ``[W, 1, P, P]``."""
        W, P, D = x.shape
        H, hd = self.heads, D // self.heads
        qkv = self.qkv(self.norm_in(x)).reshape(W, P, 3, H, hd).transpose(2, 0, 3, 1, 4)  # [3, W, H, P, hd]
        q = qkv[0] * hd**-0.5
        mixed = mx.fast.scaled_dot_product_attention(q, qkv[1], qkv[2], scale=1.0, mask=mask)
        x = x + self.out(mixed.transpose(0, 2, 1, 3).reshape(W, P, D))
        return x + self.down(_gelu(self.up(self.norm_mlp(x))))

    def arrays(self) -> list[mx.array]:
        """Everything that has to be in memory before the first call."""
        norms = [self.norm_in.weight, self.norm_in.bias, self.norm_mlp.weight, self.norm_mlp.bias]
        return norms + [a for m in (self.qkv, self.out, self.up, self.down) for a in m.arrays()]


class Encoder:
    """The audio tower of one model on one device."""

    def __init__(self, tower: Any, *, fixed_windows: bool, rows_first: bool) -> None:
        """``tower``: mlx-audio's ``AudioEncoder``; ``fixed_windows``: always 8 whole windows a pass (GPUs)."""
        self.fixed_windows = fixed_windows
        self.chunk = tower.n_window * 2  # frames
        self.chunks_per_window = tower.n_window_infer // self.chunk
        self.positions = conv_length(self.chunk)  # of one chunk
        self.dtype = tower.conv2d1.weight.dtype
        self.convs = [Conv(c, as_product=rows_first) for c in (tower.conv2d1, tower.conv2d2, tower.conv2d3)]
        self.conv_out = fused_linear([tower.conv_out], rows_first=rows_first)
        self.position_table = tower.positional_embedding(self.positions).astype(self.dtype)  # [13, D]
        self.layers = [EncoderLayer.of(layer, rows_first=rows_first) for layer in tower.layers]
        self.ln_post = tower.ln_post
        self.proj1 = fused_linear([tower.proj1], rows_first=rows_first)
        self.proj2 = fused_linear([tower.proj2], rows_first=rows_first)

    def arrays(self) -> list[mx.array]:
        """Everything that has to be in memory before the first call."""
        own = [self.position_table, self.ln_post.weight, self.ln_post.bias]
        parts: list[Any] = [*self.convs, self.conv_out, *self.layers, self.proj1, self.proj2]
        return own + [a for part in parts for a in part.arrays()]

    def encode(self, mel: np.ndarray, pulse: Callable[[], None] = lambda: None) -> mx.array:
        """Audio embeddings of one row.

        ``mel``: float32 ``[128, T]``, T ≥ 100 (one second). Returns ``[audio_tokens(T), D_text]``, not yet evaluated
        beyond its last pass; each pass is evaluated before the next is built, so memory does not grow with the length.
        """
        bins, frames = mel.shape
        if frames < self.chunk:
            raise ValueError(f"{frames} frames: pad the samples to one second first")
        chunks = -(-frames // self.chunk)
        filled = np.zeros((bins, chunks * self.chunk), np.float32)  # 0.0 in the mel, as mlx-audio fills a last chunk
        filled[:, :frames] = mel
        stack = filled.reshape(bins, chunks, self.chunk).transpose(1, 0, 2)  # [chunks, bins, 100]
        valid = audio_tokens(frames, self.chunk)
        per_pass = WINDOWS_PER_PASS * self.chunks_per_window
        passes = []
        for at in range(0, chunks, per_pass):
            pulse()
            passes.append(self._one_pass(stack[at : at + per_pass], valid - at * self.positions))
            mx.eval(passes[-1])
        return passes[0] if len(passes) == 1 else mx.concatenate(passes)

    def _one_pass(self, stack: np.ndarray, valid: int) -> mx.array:
        """``stack [≤ 64, bins, 100]`` → embeddings of its first ``valid`` positions, or of all."""
        chunks, window = len(stack), self.chunks_per_window * self.positions
        valid = min(valid, chunks * self.positions)
        if self.fixed_windows:
            whole = np.zeros((WINDOWS_PER_PASS * self.chunks_per_window, *stack.shape[1:]), np.float32)
            whole[:chunks] = stack
            x = self._convolve(whole).reshape(WINDOWS_PER_PASS, window, -1)
            held = np.clip(valid - window * np.arange(WINDOWS_PER_PASS), 0, window)
            held[held == 0] = (
                window  # a dummy window attends to itself: a row of nothing but masked keys has no softmax
            )
            mask = mx.array(np.where(np.arange(window) < held[:, None], 0.0, _MASKED), dtype=self.dtype)
            return self._transform(x, mask[:, None, None, :]).reshape(WINDOWS_PER_PASS * window, -1)[:valid]
        # A window's chunks at a time: the convolutions are the widest part, and chunks do not see each other.
        pieces = []
        for at in range(0, chunks, self.chunks_per_window):
            pieces.append(self._convolve(stack[at : at + self.chunks_per_window]))
            mx.eval(pieces[-1])
        x = mx.concatenate(pieces).reshape(chunks * self.positions, -1)[:valid]
        full = valid // window
        parts = []
        if full:
            parts.append(self._transform(x[: full * window].reshape(full, window, -1), None).reshape(full * window, -1))
        if valid > full * window:
            parts.append(self._transform(x[full * window :][None], None)[0])
        return parts[0] if len(parts) == 1 else mx.concatenate(parts)

    def _convolve(self, stack: np.ndarray) -> mx.array:
        """``[n, bins, 100] → [n, 13, D]`` with positions added; they start anew in every chunk."""
        x = mx.array(stack[..., None]).astype(self.dtype)
        for conv in self.convs:
            x = conv(x)
        n, freq, time, channels = x.shape
        x = self.conv_out(x.transpose(0, 2, 3, 1).reshape(n, time, channels * freq))
        placed: mx.array = x + self.position_table
        return placed

    def _transform(self, x: mx.array, mask: mx.array | None) -> mx.array:
        """``[W, P, D] → [W, P, D_text]``; a window sees itself alone."""
        for layer in self.layers:
            x = layer(x, mask)
        out: mx.array = self.proj2(_gelu(self.proj1(self.ln_post(x))))
        return out
