"""Matrices laid out for the device that multiplies them, and the decoder layers built from them.

The arithmetic is mlx-audio's Qwen3 decoder (``mlx_audio.stt.models.qwen3_asr``); what changes is where the numbers lie:
q/k/v and gate/up are one matrix each and queries and keys share a norm and a rotation, so that a layer is fewer and
larger operations, and on the CPU dense matrices are stored ``[in, out]``, which MLX's CPU product reads about twice as
fast for the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx import nn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Linear = "Dense | Quantized"


class Dense:
    """``x [..., in] → [..., out]`` with a plain matrix."""

    __slots__ = ("bias", "matrix", "rows_first")

    def __init__(self, weight: mx.array, bias: mx.array | None, *, rows_first: bool) -> None:
        """``weight [out, in]`` as checkpoints hold it; ``rows_first`` stores it as ``[in, out]``."""
        self.matrix = mx.contiguous(weight.T) if rows_first else weight.T  # [in, out]
        self.bias, self.rows_first = bias, rows_first

    def __call__(self, x: mx.array) -> mx.array:
        if self.bias is None:
            return x @ self.matrix
        # addmm adds the bias last for a transposed matrix but starts from it for this layout: other bits
        return x @ self.matrix + self.bias if self.rows_first else mx.addmm(self.bias, x, self.matrix)

    def arrays(self) -> list[mx.array]:
        """Everything that has to be in memory before the first call."""
        return [self.matrix] if self.bias is None else [self.matrix, self.bias]


class Quantized:
    """``x [..., in] → [..., out]`` with a matrix quantised in groups along ``in``."""

    __slots__ = ("biases", "bits", "group_size", "mode", "scales", "weight")

    def __init__(
        self, weight: mx.array, scales: mx.array, biases: mx.array | None, *, group_size: int, bits: int, mode: str
    ) -> None:
        self.weight, self.scales, self.biases = weight, scales, biases
        self.group_size, self.bits, self.mode = group_size, bits, mode

    def __call__(self, x: mx.array) -> mx.array:
        return mx.quantized_matmul(
            x,
            self.weight,
            scales=self.scales,
            biases=self.biases,
            transpose=True,
            group_size=self.group_size,
            bits=self.bits,
            mode=self.mode,
        )

    def arrays(self) -> list[mx.array]:
        """Everything that has to be in memory before the first call."""
        return [a for a in (self.weight, self.scales, self.biases) if a is not None]


def fused_linear(modules: Sequence[Any], *, rows_first: bool) -> Dense | Quantized:
    """One matrix for several ``nn.Linear`` or ``nn.QuantizedLinear`` of the same input, outputs in their order.

    Rows of a product do not depend on other rows of the matrix, so fusing changes no value by itself.
    Raises ``ValueError`` when the modules are quantised differently.
    """
    first = modules[0]
    if not isinstance(first, nn.QuantizedLinear):
        bias = None if "bias" not in first else mx.concatenate([m.bias for m in modules])
        return Dense(mx.concatenate([m.weight for m in modules]), bias, rows_first=rows_first)
    kinds = {(m.group_size, m.bits, m.mode) for m in modules}
    if len(kinds) > 1:
        raise ValueError(f"matrices to be fused are quantised differently: {sorted(kinds)}")
    if "bias" in first:
        raise ValueError("a quantised projection with a bias is not part of Qwen3-ASR")
    biases = None if first.get("biases") is None else mx.concatenate([m.biases for m in modules])
    return Quantized(
        mx.concatenate([m.weight for m in modules]),
        mx.concatenate([m.scales for m in modules]),
        biases,
        group_size=first.group_size,
        bits=first.bits,
        mode=first.mode,
    )


@dataclass(frozen=True)
class TextShape:
    """Sizes of the text decoder, in the field's letters."""

    layers: int
    heads: int  # H
    kv_heads: int  # KV
    head_dim: int  # hd
    hidden: int  # D
    vocab: int  # V
    rope_base: float
    norm_eps: float

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values one token keeps, at two bytes a number."""
        return self.layers * 2 * self.kv_heads * self.head_dim * 2


def _heads(x: mx.array, heads: int, head_dim: int) -> mx.array:
    """``[S, L, heads · hd] → [S, heads, L, hd]``; for one token the two lie in memory alike, and a view will do."""
    S, L, _ = x.shape
    if L == 1:
        return x.reshape(S, heads, 1, head_dim)
    return x.reshape(S, L, heads, head_dim).transpose(0, 2, 1, 3)


def _side_by_side(x: mx.array) -> mx.array:
    """``[S, heads, L, hd] → [S, L, heads · hd]``."""
    S, heads, L, head_dim = x.shape
    return (x if L == 1 else x.transpose(0, 2, 1, 3)).reshape(S, L, heads * head_dim)


@dataclass(frozen=True, eq=False)
class Layer:
    """One decoder layer."""

    norm_in: mx.array  # [D]
    qkv: Dense | Quantized  # D → (H + 2·KV)·hd
    qk_norm: mx.array  # [H + KV, 1, hd]: the queries' norm for each of their heads, then the keys'
    out: Dense | Quantized  # H·hd → D
    norm_mlp: mx.array  # [D]
    gate_up: Dense | Quantized  # D → 2·I
    down: Dense | Quantized  # I → D

    @classmethod
    def of(cls, layer: Any, shape: TextShape, *, rows_first: bool) -> Layer:
        """From mlx-audio's ``TextDecoderLayer``."""
        attention, mlp = layer.self_attn, layer.mlp
        norms = [(attention.q_norm.weight, shape.heads), (attention.k_norm.weight, shape.kv_heads)]
        return cls(
            norm_in=layer.input_layernorm.weight,
            qkv=fused_linear([attention.q_proj, attention.k_proj, attention.v_proj], rows_first=rows_first),
            qk_norm=mx.concatenate([mx.broadcast_to(w, (heads, 1, shape.head_dim)) for w, heads in norms]),
            out=fused_linear([attention.o_proj], rows_first=rows_first),
            norm_mlp=layer.post_attention_layernorm.weight,
            gate_up=fused_linear([mlp.gate_proj, mlp.up_proj], rows_first=rows_first),
            down=fused_linear([mlp.down_proj], rows_first=rows_first),
        )

    def forward(
        self, x: mx.array, offset: mx.array | int, shape: TextShape, attend: Callable[..., mx.array]
    ) -> mx.array:
        """``x [S, L, D] → [S, L, D]``.

        ``offset``: position of the first of the L tokens, one for all or ``[S]``. ``attend(q [S, H, L, hd], k, v
        [S, KV, L, hd]) → [S, H, L, hd]`` stores the new keys and values and attends over what the row has so far.
        """
        H, KV, hd = shape.heads, shape.kv_heads, shape.head_dim
        qkv = self.qkv(mx.fast.rms_norm(x, self.norm_in, shape.norm_eps))
        qk, v = mx.split(qkv, [(H + KV) * hd], axis=-1)
        # Queries and keys together, one operation each for both: a norm with a weight also rounds first
        qk = mx.fast.rms_norm(_heads(qk, H + KV, hd), None, shape.norm_eps) * self.qk_norm
        qk = mx.fast.rope(qk, hd, traditional=False, base=shape.rope_base, scale=1.0, offset=offset)
        q, k = mx.split(qk, [H], axis=1)
        x = x + self.out(_side_by_side(attend(q, k, _heads(v, KV, hd))))
        gate, up = mx.split(self.gate_up(mx.fast.rms_norm(x, self.norm_mlp, shape.norm_eps)), 2, axis=-1)
        return x + self.down(nn.silu(gate) * up)

    def arrays(self) -> list[mx.array]:
        """Everything that has to be in memory before the first call."""
        norms = [self.norm_in, self.qk_norm, self.norm_mlp]
        return norms + [a for m in (self.qkv, self.out, self.gate_up, self.down) for a in m.arrays()]


@dataclass(frozen=True, eq=False)
class TextDecoder:
    """The Qwen3 text decoder: embedding, layers, final norm, vocabulary head."""

    shape: TextShape
    embedding: Any  # nn.Embedding | nn.QuantizedEmbedding
    layers: tuple[Layer, ...]
    norm: mx.array  # [D]
    head: Dense | Quantized | None  # None: tied to the embedding
    dtype: mx.Dtype  # of hidden states, keys and values
    compiled: dict[str, Any] = field(
        default_factory=dict, repr=False
    )  # steps, traced once a model and not once a batch

    @classmethod
    def of(cls, model: Any, *, rows_first: bool) -> TextDecoder:
        """From mlx-audio's ``Qwen3ASRModel``."""
        config, text = model.config.text_config, model.model
        shape = TextShape(
            layers=config.num_hidden_layers,
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            hidden=config.hidden_size,
            vocab=config.vocab_size,
            rope_base=float(config.rope_theta),
            norm_eps=float(config.rms_norm_eps),
        )
        embedding, head = text.embed_tokens, None
        if model.lm_head is not None:
            head = fused_linear([model.lm_head], rows_first=rows_first)
        elif rows_first and not isinstance(embedding, nn.QuantizedEmbedding):
            head = Dense(embedding.weight, None, rows_first=True)  # a second copy, read twice as fast
        layers = tuple(Layer.of(layer, shape, rows_first=rows_first) for layer in text.layers)
        return cls(shape, embedding, layers, text.norm.weight, head, text.norm.weight.dtype)

    def logits(self, x: mx.array) -> mx.array:
        """``x [S, D]`` (last hidden states, not yet normed) → logits ``[S, V]``."""
        x = mx.fast.rms_norm(x, self.norm, self.shape.norm_eps)
        return self.embedding.as_linear(x) if self.head is None else self.head(x)

    def arrays(self) -> list[mx.array]:
        """Everything that has to be in memory before the first call."""
        own = [self.norm, *(() if self.head is None else self.head.arrays())]
        embedding = [a for a in self.embedding.parameters().values() if isinstance(a, mx.array)]
        return own + embedding + [a for layer in self.layers for a in layer.arrays()]
