"""The decode step over S slots: shapes depend on S and C alone, and a row's bits on nothing but itself."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from asr_support import Prefilled, model_named, on_cpu, pool
from dropscribe.asr.bucketing import bucket_by_length
from dropscribe.asr.step import Attention, SlotState, block_length, causal_mask, greedy_step, logits_step

on_cpu()
STEPS = 14


def stacked(members: list[Prefilled]) -> tuple[mx.array, SlotState]:
    """Rows of different lengths as one state of S slots, blocks of the length the longest needs."""
    block = max(block_length(m.state.length + STEPS) for m in members)

    def tall(array: mx.array) -> mx.array:
        return mx.pad(array, [(0, 0), (0, 0), (0, block - array.shape[2]), (0, 0)])

    layers = range(len(members[0].state.keys))
    return mx.concatenate([m.token for m in members]), SlotState(
        offsets=mx.concatenate([m.state.offsets for m in members]),
        keys=[mx.concatenate([tall(m.state.keys[at]) for m in members]) for at in layers],
        values=[mx.concatenate([tall(m.state.values[at]) for m in members]) for at in layers],
        length=max(m.state.length for m in members),
    )


@pytest.mark.parametrize("name", ["tiny", "fp32", "bf16", "4-bit"])
@pytest.mark.parametrize("slots", [2, 5, 8])
def test_slots_of_ragged_rows_give_each_the_tokens_it_has_alone(name: str, slots: int) -> None:
    members = [pool(name)[at] for at in (0, 3, 1, 7, 5, 2, 6, 4)][:slots]
    step = greedy_step(model_named(name).decoder)
    tokens, state = stacked(members)
    said = [np.array(tokens)[:, 0]]
    for _ in range(STEPS - 1):
        tokens, state.offsets, state.keys, state.values = step(tokens, state.offsets, state.keys, state.values)
        assert tokens.shape == (slots, 1)
        said.append(np.array(tokens)[:, 0])
    for slot, member in enumerate(members):
        expected = member.reference[:STEPS]
        assert tuple(int(row[slot]) for row in said)[: len(expected)] == expected
    assert np.array(state.offsets).tolist() == [m.state.length + STEPS - 1 for m in members]


def logits_of(name: str, members: list[Prefilled], slot: int) -> np.ndarray:
    tokens, state = stacked(members)
    step = logits_step(model_named(name).decoder)
    logits, *_ = step(tokens, state.offsets, state.keys, state.values)
    return np.array(logits[slot].astype(mx.float32))


@pytest.mark.parametrize("name", ["tiny", "bf16", "4-bit"])
def test_a_rows_bits_do_not_depend_on_its_neighbours_or_its_slot(name: str) -> None:
    rows = pool(name)
    # one row with the longest prompt in each batch, so that the blocks have the same length
    alone = logits_of(name, [rows[0], rows[7], rows[7], rows[7]], 0)
    for members, slot in (([rows[2], rows[0], rows[7], rows[3]], 1), ([rows[7], rows[5], rows[4], rows[0]], 3)):
        assert np.array_equal(logits_of(name, members, slot), alone)


@pytest.mark.parametrize("name", ["tiny", "fp32", "bf16", "4-bit"])
def test_a_rows_bits_do_not_depend_on_the_length_of_its_block(name: str) -> None:
    member = pool(name)[0]
    step = logits_step(model_named(name).decoder)

    def with_block(length: int) -> np.ndarray:
        more = length - member.state.block
        keys, values = (
            [mx.pad(a, [(0, 0), (0, 0), (0, more), (0, 0)]) for a in part]
            for part in (member.state.keys, member.state.values)
        )
        return np.array(step(member.token, member.state.offsets, keys, values)[0].astype(mx.float32))

    short = with_block(member.state.block)
    assert all(np.array_equal(with_block(length), short) for length in (128, 256, 512))


def test_what_lies_beyond_a_row_in_its_block_is_not_seen() -> None:
    member = pool("tiny")[0]
    step = logits_step(model_named("tiny").decoder)
    clean = step(member.token, member.state.offsets, member.state.keys, member.state.values)[0]
    beyond = mx.arange(member.state.block)[None, None, :, None] > member.state.length
    dirty = [[mx.where(beyond, mx.array(99.0), a) for a in part] for part in (member.state.keys, member.state.values)]
    assert np.array_equal(np.array(step(member.token, member.state.offsets, *dirty)[0]), np.array(clean))


def test_blocks_are_64_then_128_then_multiples_of_256() -> None:
    assert [block_length(at) for at in (0, 63, 64, 127, 128, 255, 256, 511, 512, 768)] == [
        64, 64, 128, 128, 256, 256, 512, 512, 768, 1024,
    ]  # fmt: skip


def test_a_block_grows_only_when_the_next_position_has_no_room_and_keeps_its_bits() -> None:
    member = pool("fp32")[0]
    row = member.row(0, frozenset())
    before = np.array(row.state.keys[0])
    row.state.grow()
    assert row.state.block == 64
    row.state.length = 64
    row.state.grow()
    assert row.state.block == 128
    after = np.array(row.state.keys[0])
    assert np.array_equal(after[:, :, :64], before)
    assert not after[:, :, 64:].any()
    row.state.grow()
    assert row.state.block == 128


def test_keys_and_values_are_in_the_decoders_dtype() -> None:
    for name in ("tiny", "fp32", "bf16"):
        model, member = model_named(name), pool(name)[0]
        step = greedy_step(model.decoder)
        token, offsets, keys, values = step(member.token, member.state.offsets, member.state.keys, member.state.values)
        assert {a.dtype for part in (keys, values, member.state.keys, member.state.values) for a in part} == {
            model.dtype
        }
        assert (token.dtype, offsets.dtype) == (mx.int32, mx.int32)


def test_one_new_token_sees_its_own_past_and_itself() -> None:
    mask = np.array(causal_mask(mx.array([0, 2, 4]), 1, 6))
    assert mask.shape == (3, 1, 1, 6)
    assert mask[:, 0, 0].astype(int).tolist() == [[1, 0, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 0]]


def test_several_new_tokens_see_each_other_backwards_only() -> None:
    mask = np.array(causal_mask(mx.array([0, 1]), 3, 4)).astype(int)
    assert mask[0, 0].tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0]]
    assert mask[1, 0].tolist() == [[1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]


def test_rows_of_equal_length_share_a_bucket_up_to_the_cap() -> None:
    assert bucket_by_length([10, 20, 10, 30, 20, 10], 8) == [[0, 2, 5], [1, 4], [3]]
    assert bucket_by_length([10, 10, 10, 10, 20], 2) == [[0, 1], [2, 3], [4]]
    assert bucket_by_length([], 3) == []
    with pytest.raises(ValueError, match="cap"):
        bucket_by_length([1], 0)


@pytest.mark.parametrize("slots", [1, 3])
def test_heads_that_share_keys_may_go_as_positions_of_one(slots: int) -> None:
    """What the CUDA backend is given; here both ways can be computed."""
    decoder = model_named("tiny").decoder
    shape, block = decoder.shape, 64
    mx.random.seed(slots)
    q = mx.random.normal((slots, shape.heads, 1, shape.head_dim))
    keys, values = (mx.random.normal((slots, shape.kv_heads, block, shape.head_dim)) for _ in "kv")
    seen = causal_mask(mx.arange(slots) * 7 + 3, 1, block)
    apart = Attention(decoder, seen, grouped=False)(q, keys, values)
    grouped = Attention(decoder, seen, grouped=True)(q, keys, values)
    assert shape.heads > shape.kv_heads
    assert np.array_equal(np.array(apart), np.array(grouped))
    beyond = mx.arange(block)[None, None, :, None] > mx.arange(slots)[:, None, None, None] * 7 + 3
    other = Attention(decoder, seen, grouped=True)(q, mx.where(beyond, 99.0, keys), mx.where(beyond, -99.0, values))
    assert np.array_equal(np.array(grouped), np.array(other))
