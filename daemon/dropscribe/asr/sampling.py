"""Decoding options and the sampler they call for. Greedy unless asked otherwise; anything else goes serial."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import mlx.core as mx


@dataclass(frozen=True)
class Options:
    """How the next token is chosen."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken; then ``top_p`` and ``top_k`` have nothing to choose from."""
        return self.temperature == 0.0


def resolve(options: Options | Mapping[str, Any] | None = None, **explicit: Any) -> Options:
    """Options with explicit arguments laid over them; ``None`` among the arguments means "not given"."""
    base = options if isinstance(options, Options) else Options(**dict(options or {}))
    return replace(base, **{name: value for name, value in explicit.items() if value is not None})


def make_sampler(options: Options) -> Callable[[mx.array], mx.array] | None:
    """``logits [1, V] → token [1, 1]`` for ``options``, or ``None`` when they are greedy."""
    if options.greedy:
        return None
    import mlx.core as mx
    from mlx_audio.lm.sample_utils import make_sampler as library_sampler

    mx.random.seed(options.seed)
    sample = library_sampler(options.temperature, options.top_p, 0.0, top_k=options.top_k)

    def sampler(logits: mx.array) -> mx.array:
        logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        return sample(logprobs).reshape(-1, 1).astype(mx.int32)  # type: ignore[no-any-return]

    return sampler
