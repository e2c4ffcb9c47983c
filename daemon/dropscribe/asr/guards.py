"""What keeps a recognizer from running away: a token budget, a stop for repetition loops, an echo check."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# Fast speech makes 5–8 tokens a second in Latin script and up to about 12 where the vocabulary covers a script badly.
_TOKENS_PER_SECOND = 16
_TOKENS_AT_LEAST = 48

_LONGEST_PERIOD = 64
_MIN_REPEATS = 4
_CHECK_EVERY = 8


def token_budget(seconds: float) -> int:
    """The most tokens a segment of ``seconds`` may take, its own end token included."""
    return _TOKENS_AT_LEAST + int(_TOKENS_PER_SECOND * seconds)


def is_looping(tokens: Sequence[int], seconds: float) -> bool:
    """Whether the end of ``tokens`` repeats itself for longer than anybody says so within ``seconds``.

    People do repeat themselves, so the repeated tail must be implausible for its audio: more than 6 tokens a second,
    or, for a period of up to 4 tokens ("ha ha ha"), more than 2 a second; never fewer than 24 and 32 tokens. Looked
    at every few tokens only.
    """
    if len(tokens) % _CHECK_EVERY:
        return False
    for period in range(1, min(_LONGEST_PERIOD, len(tokens) // _MIN_REPEATS) + 1):
        needed = max(32, 2 * seconds) if period <= 4 else max(24, 6 * seconds)
        needed = max(needed, _MIN_REPEATS * period)
        if needed <= len(tokens) and repeated_tail(tokens, period) >= needed:
            return True
    return False


def repeated_tail(tokens: Sequence[int], period: int) -> int:
    """How many of the last tokens are periodic with ``period`` (0 if the last one already differs)."""
    at = len(tokens) - 1
    while at >= period and tokens[at] == tokens[at - period]:
        at -= 1
    run = len(tokens) - 1 - at
    return run + period if run else 0


def without_loop(tokens: Sequence[int]) -> list[int]:
    """``tokens`` with a repeated tail cut down to its first occurrence."""
    best_period, best_run = 0, 0
    for period in range(1, min(_LONGEST_PERIOD, len(tokens) // 2) + 1):
        run = repeated_tail(tokens, period)
        if run >= 2 * period and run > best_run:
            best_period, best_run = period, run
    return list(tokens[: len(tokens) - best_run + best_period]) if best_run else list(tokens)


def echoes_context(text: str, context: str | None) -> bool:
    """Whether a transcript is nothing but the context it was given (Qwen3-ASR does that on near-silent audio)."""
    if not context:
        return False
    said, given = (" ".join(t.casefold().split()).strip(" .,;:!?") for t in (text, context))
    return bool(said) and said == given
