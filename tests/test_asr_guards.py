"""What keeps a recognizer from running away, and how the next token is chosen."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr_support import on_cpu, quick, texts
from dropscribe.asr.guards import echoes_context, is_looping, repeated_tail, token_budget, without_loop
from dropscribe.asr.sampling import Options, make_sampler, resolve

on_cpu()


def stops_at(tokens: list[int], seconds: float) -> int | None:
    """After how many tokens a row with these would be called a loop."""
    return next((n for n in range(1, len(tokens) + 1) if is_looping(tokens[:n], seconds)), None)


# --- budget ---------------------------------------------------------------------------------------------------------


def test_the_budget_follows_the_length_of_the_segment() -> None:
    assert token_budget(0.01) == 48
    assert token_budget(10) == 208
    assert token_budget(300) == 48 + 4800
    budgets = [token_budget(s / 10) for s in range(6000)]
    assert budgets == sorted(budgets)


def test_the_budget_leaves_real_speech_more_than_twice_its_room() -> None:
    """The held-out clips are spoken at 5 to 6 tokens a second, the prompt's answer head included."""
    for text in texts().values():
        tokens = len(quick().tokenizer.encode(text)) + 4
        assert 2 * tokens <= token_budget(len(text) / 15)  # fast speech: 15 characters a second


# --- loops ----------------------------------------------------------------------------------------------------------


def test_one_character_over_and_over_is_a_loop() -> None:
    assert stops_at([7] * 119, 10.0) == 32
    assert stops_at([1, 2, 3] + [7] * 119, 10.0) is not None


@pytest.mark.parametrize("period", [1, 2, 3, 5, 12, 30, 64])
def test_any_period_is_found_before_the_budget_is_spent(period: int) -> None:
    seconds = 20.0
    tokens = [3, 1, 4] + list(range(100, 100 + period)) * 400
    at = stops_at(tokens[: token_budget(seconds)], seconds)
    assert at is not None
    assert at < token_budget(seconds)


def test_a_sentence_said_seven_times_at_natural_speed_is_not_a_loop() -> None:
    """12 tokens in 2.5 s, seven times over."""
    assert stops_at(list(range(12)) * 7, 7 * 2.5) is None


def test_a_word_said_ten_times_is_not_a_loop() -> None:
    """ "No no no no …", one token each, three a second."""
    assert stops_at([5] * 10, 3.3) is None
    assert stops_at([9, 8, *[5] * 24, 1], 12.0) is None


def test_a_clip_looped_by_its_speaker_fifty_times_is_not_a_loop() -> None:
    assert stops_at(list(range(15)) * 50, 50 * 3.2) is None


@given(st.lists(st.integers(0, 400), max_size=300, unique=True), st.floats(0.1, 300))
def test_text_without_repetition_is_never_a_loop(tokens: list[int], seconds: float) -> None:
    assert stops_at(tokens, seconds) is None


def test_a_repeated_tail_is_measured_in_tokens() -> None:
    assert repeated_tail([1, 2, 9, 9, 9], 1) == 3
    assert repeated_tail([1, 5, 6, 5, 6, 5], 2) == 5
    assert repeated_tail([1, 2, 3], 1) == 0
    assert repeated_tail([], 1) == 0


def test_a_loop_is_cut_down_to_its_first_round() -> None:
    assert without_loop([1, 2, *[9] * 40]) == [1, 2, 9]
    assert without_loop([1, 2, *([5, 6, 7] * 12), 5]) == [1, 2, 5, 6, 7]
    assert without_loop([1, 2, 3]) == [1, 2, 3]
    assert without_loop([]) == []


@given(
    head=st.lists(st.integers(0, 50), max_size=12),
    period=st.lists(st.integers(51, 400), min_size=1, max_size=64, unique=True),
    rounds=st.integers(2, 6),
)
def test_what_was_said_before_a_loop_is_kept(head: list[int], period: list[int], rounds: int) -> None:
    assert without_loop(head + period * rounds)[: len(head) + len(period)] == head + period


# --- context --------------------------------------------------------------------------------------------------------


def test_a_transcript_that_is_the_context_is_an_echo() -> None:
    context = "Names: Kate, Janet"
    assert echoes_context("names: Kate,  Janet.", context)
    assert not echoes_context("Kate and Janet", context)
    assert not echoes_context("Names: Kate, Janet and I went home", context)
    assert not echoes_context("", context)
    assert not echoes_context("anything", None)
    assert not echoes_context("", "")


# --- options --------------------------------------------------------------------------------------------------------


def test_explicit_arguments_override_options() -> None:
    base = Options(temperature=0.7, top_p=0.9, seed=4)
    assert resolve(base, temperature=0.0) == Options(0.0, 0.9, 0, 4)
    assert resolve({"temperature": 0.5, "top_k": 3}, top_k=7, seed=None) == Options(0.5, 1.0, 7, 0)
    assert resolve() == Options()
    assert resolve(base) == base
    assert resolve(base, top_p=None) == base


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(TypeError):
        resolve({"beams": 4})
    with pytest.raises(TypeError):
        resolve(None, beams=4)


def test_only_temperature_decides_whether_it_is_greedy() -> None:
    assert Options().greedy
    assert Options(top_p=0.5, top_k=3).greedy
    assert make_sampler(Options(top_k=3)) is None
    assert not Options(temperature=0.1).greedy


def test_sampling_repeats_with_its_seed_and_differs_with_another() -> None:
    logits = mx.array(np.random.default_rng(1).standard_normal((1, 500)).astype(np.float32))

    def drawn(seed: int) -> list[int]:
        sampler = make_sampler(Options(temperature=1.0, seed=seed))
        assert sampler is not None
        tokens = [sampler(logits) for _ in range(20)]
        assert {(t.shape, t.dtype) for t in tokens} == {((1, 1), mx.int32)}
        return [t.item() for t in tokens]

    assert drawn(3) == drawn(3)
    assert drawn(3) != drawn(4)


def test_top_k_leaves_the_most_likely_only() -> None:
    logits = mx.array(np.random.default_rng(2).standard_normal((1, 300)).astype(np.float32))
    best = set(np.argsort(np.array(logits)[0])[-3:].tolist())
    sampler = make_sampler(Options(temperature=2.0, top_k=3, seed=1))
    assert sampler is not None
    assert {sampler(logits).item() for _ in range(60)} == best
