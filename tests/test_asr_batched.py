"""The true batch equals serial token for token; the self-check tells a wrong step from a right one."""

from __future__ import annotations

import gc
import json
import os
import random
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from asr_support import (
    SHORT_CLIPS,
    FakeLine,
    check_company,
    check_slots,
    companies,
    golden_prefilled,
    golden_rows,
    lines_of,
    noisy_prefilled,
    plans,
    pool,
    quick,
    random_model,
    run_plan,
)
from dropscribe.asr import selfcheck
from dropscribe.asr import step as step_module
from dropscribe.asr.batched import Lanes, batched
from dropscribe.asr.decoders import Row, serial
from dropscribe.asr.plan import Plan, make_plan
from dropscribe.asr.selfcheck import Verdict
from dropscribe.asr.step import SlotState, block_length, causal_mask, logits_step
from dropscribe.asr.timing import BatchTiming

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SEED = int(os.environ.get("DROPSCRIBE_TEST_SEED") or secrets.randbits(32))
QUIET = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}


@pytest.mark.slow
@pytest.mark.parametrize("slots", [2, 3, 7, 8, 16])
def test_every_clip_gives_the_oracles_tokens_at_every_number_of_slots(slots: int) -> None:
    rows = [golden_prefilled(row) for row in golden_rows("free")]
    random.Random(slots).shuffle(rows)  # noqa: S311 - an order, not a secret
    timing = check_slots(rows, slots, may_narrow=slots % 2 == 0)
    assert timing.syncs == timing.steps == timing.forwards  # one lane: one forward, one sync a step
    assert timing.decode_s > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tiny", "4-bit"])
def test_ragged_batches_with_refilled_slots_change_no_token(name: str) -> None:
    print(f"seed {SEED}: set DROPSCRIBE_TEST_SEED to it to see these batches again")  # noqa: T201

    @seed(SEED)
    @settings(max_examples=15, **QUIET)
    @given(
        plan=plans(len(pool(name))), narrow=st.booleans(), classes=st.sampled_from([(0,), (0, 128), (0, 64, 128, 256)])
    )
    def hold(plan: Any, narrow: bool, classes: tuple[int, ...]) -> None:
        run_plan(name, plan, "batched", may_narrow=narrow, block_classes=classes)

    hold()


@pytest.mark.slow
@pytest.mark.parametrize("slots", [3, 8])
def test_clips_in_noise_give_serials_tokens_too(slots: int) -> None:
    rows = [noisy_prefilled(clip, decibels) for clip in SHORT_CLIPS for decibels in (20, 10, 0)]
    random.Random(slots).shuffle(rows)  # noqa: S311 - an order, not a secret
    assert check_slots(rows, slots, may_narrow=True).generated_tokens > len(rows)


@pytest.mark.parametrize("name", ["tiny", "fp32"])
def test_a_rows_logits_are_the_bits_it_has_alone_over_random_neighbours(name: str) -> None:
    print(f"seed {SEED}: set DROPSCRIBE_TEST_SEED to it to see these neighbours again")  # noqa: T201

    @seed(SEED)
    @settings(max_examples=25, **QUIET)
    @given(company=companies())
    def hold(company: Any) -> None:
        check_company(name, company)

    hold()


def test_a_row_that_outgrows_its_class_of_blocks_moves_to_another_lane_and_says_the_same() -> None:
    rows = golden_rows("free", sources=["clip011", "clip003", "joined", "clip018"])
    model, timing = quick(), BatchTiming()
    line = FakeLine([golden_prefilled(row).row(at, model.eos) for at, row in enumerate(rows)])
    blocks = {block_length(golden_prefilled(row).state.length) for row in rows}
    assert len(blocks) > 1, "the rows must begin in different blocks"
    ended = batched(model.decoder, line, timing, slots=4, kv_budget=1 << 20, block_classes=(0, 128, 256, 512))
    said = dict(lines_of(list(ended)))
    assert [said[at] for at in range(len(rows))] == [row.tokens for row in rows]
    assert timing.forwards > timing.steps, "several lanes, several forwards a step"


def test_an_empty_slot_that_runs_past_the_end_of_its_block_touches_nobody() -> None:
    model = random_model("fp32")
    shape, step = model.decoder.shape, logits_step(model.decoder)
    blocks = [mx.random.normal((3, shape.kv_heads, 64, shape.head_dim)) for _ in range(2 * shape.layers)]
    before = [np.array(block) for block in blocks]
    offsets = mx.array([5, 1000, 9], mx.int32)
    tokens = mx.zeros((3, 1), mx.int32)
    _, _, keys, values = step(tokens, offsets, blocks[: shape.layers], blocks[shape.layers :])
    for held, was in zip([*keys, *values], before, strict=True):
        changed = {(int(slot), int(at)) for slot, _, at, _ in np.argwhere(np.array(held) != was)}
        assert changed == {(0, 5), (1, 63), (2, 9)}


def test_the_self_check_finds_every_candidate_exact_on_the_cpu() -> None:
    verdict = selfcheck.check(quick(), candidates=(2, 4), longest=300)
    assert verdict.failure is None
    assert verdict.exact_slots == (2, 4)
    assert verdict.serial_equal_slots == 4
    assert verdict.block_classes == (0,)
    assert set(verdict.tokens_per_second) == {1, 2, 4}


def test_a_step_that_sees_one_position_too_many_fails_the_self_check(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = random_model("fp32").decoder
    monkeypatch.setattr(step_module, "causal_mask", lambda offsets, *sizes: causal_mask(offsets + 1, *sizes))
    assert_refused(lambda *state: step_module._step(decoder, *state))


def test_a_step_with_one_rotary_offset_for_all_rows_fails_the_self_check() -> None:
    right = logits_step(random_model("fp32").decoder)

    def shared(tokens: mx.array, offsets: mx.array, keys: Any, values: Any) -> Any:
        logits, _, k, v = right(tokens, mx.broadcast_to(offsets.max(), offsets.shape), keys, values)
        return logits, offsets + 1, k, v

    assert_refused(shared)


def assert_refused(step: Any) -> None:
    verdict = selfcheck.check(random_model("fp32"), candidates=(2, 4), longest=200, step=step)
    assert verdict.failure is not None
    assert verdict.exact_slots == ()
    assert verdict.serial_equal_slots == 1


def test_the_causal_mask_of_a_batch_lets_each_row_see_its_own_past_and_itself() -> None:
    mask = np.array(causal_mask(mx.array([0, 3], mx.int32), 2, 6))
    assert mask.shape == (2, 1, 2, 6)
    assert mask[:, 0].astype(int).tolist() == [
        [[1, 0, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0]],
        [[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 0]],
    ]


# --- plans ----------------------------------------------------------------------------------------------------------

GOOD = Verdict((2, 4, 8), 4, (0,), {1: 100.0, 2: 150.0, 4: 300.0, 8: 500.0}, positions=1 << 20, kv_budget=1 << 20)


def plan_of(verdict: Verdict, tmp_path: Path, **asked: Any) -> Plan:
    return make_plan(quick(), cache=tmp_path / "c.json", checker=lambda *_a, **_k: verdict, **asked)


def test_auto_takes_the_fastest_number_of_slots_with_the_bits_of_one(tmp_path: Path) -> None:
    assert plan_of(GOOD, tmp_path) == Plan("batched", 4, (0,), as_serial=True)


def test_row_exactness_allows_more_slots_and_says_that_they_count(tmp_path: Path) -> None:
    assert plan_of(GOOD, tmp_path, exactness="row") == Plan("batched", 8, (0,), as_serial=False)


def test_a_batch_size_caps_the_slots(tmp_path: Path) -> None:
    assert plan_of(GOOD, tmp_path, batch_size=3).slots == 2
    assert plan_of(GOOD, tmp_path, batch_size=1) == Plan("bulk-sync", 1)


def test_auto_stays_with_bulk_sync_where_the_true_batch_is_no_faster(tmp_path: Path) -> None:
    slow = Verdict((2, 4), 4, (0,), {1: 100.0, 2: 90.0, 4: 99.0})
    assert plan_of(slow, tmp_path) == Plan("bulk-sync", 6)
    assert plan_of(slow, tmp_path, decoder="batched").slots == 4  # asked for by name


def test_a_failed_check_falls_back_to_bulk_sync_and_says_why(tmp_path: Path) -> None:
    plan = plan_of(
        Verdict((), 1, (0,), {}, "with 2 slots a row changes when its neighbour ends"), tmp_path, decoder="batched"
    )
    assert (plan.decoder, plan.slots) == ("bulk-sync", 6)
    assert "neighbour ends" in str(plan.fallback)


def test_a_device_whose_bits_change_at_two_slots_keeps_bulk_sync_under_serial_exactness(tmp_path: Path) -> None:
    other_bits = Verdict((2, 4), 1, (0,), {1: 100.0, 2: 200.0, 4: 400.0})
    assert plan_of(other_bits, tmp_path).decoder == "bulk-sync"
    assert 'exactness = "row"' in str(plan_of(other_bits, tmp_path, decoder="batched").fallback)
    assert plan_of(other_bits, tmp_path, exactness="row").slots == 4


def refuse(*_: Any, **__: Any) -> Verdict:
    raise AssertionError


def test_sampling_and_serial_need_no_check(tmp_path: Path) -> None:
    for asked in ({"greedy": False}, {"decoder": "serial"}):
        assert make_plan(quick(), cache=tmp_path / "c.json", checker=refuse, **asked) == Plan("serial", 1)
    assert make_plan(quick(), cache=tmp_path / "c.json", checker=refuse, decoder="bulk-sync") == Plan("bulk-sync", 6)


def test_a_verdict_is_kept_for_the_same_model_and_asked_for_once(tmp_path: Path) -> None:
    calls = []

    def checker(*_: Any, **__: Any) -> Verdict:
        calls.append(1)
        return GOOD

    path = tmp_path / "deep" / "c.json"
    plans_made = [make_plan(quick(), cache=path, checker=checker) for _ in range(2)]
    assert plans_made[0] == plans_made[1]
    assert len(calls) == 1
    assert selfcheck.kept(quick(), path) == GOOD


def test_a_check_that_ran_out_of_time_goes_on_at_the_next_start_and_comes_to_an_end(tmp_path: Path) -> None:
    path, now = tmp_path / "c.json", iter(range(0, 100_000, 1000))  # every look at the clock finds the budget spent

    def checker(model: Any, **how: Any) -> Verdict:
        return selfcheck.check(model, candidates=(2, 3, 4), clock=lambda: float(next(now)), **how)

    seen = [selfcheck.verdict_of(quick(), path, longest=200, checker=checker) for _ in range(3)]
    assert [verdict.exact_slots for verdict in seen] == [(2,), (2, 3), (2, 3, 4)]
    assert [verdict.serial_equal_slots for verdict in seen] == [2, 3, 4]
    assert [verdict.unchecked for verdict in seen] == [(3, 4), (4,), ()]
    assert selfcheck.verdict_of(quick(), path, longest=200, checker=refuse) == seen[-1]
    assert selfcheck.verdict_of(quick(), path, longest=100, checker=refuse) == seen[-1], "shorter rows are checked too"


def test_rows_longer_than_those_that_were_checked_need_another_check(tmp_path: Path) -> None:
    model, path, asked = quick(), tmp_path / "c.json", []

    def checker(_model: Any, *, known: Verdict | None, longest: int, kv_budget: int, **_: Any) -> Verdict:
        asked.append((known, longest, kv_budget))
        return replace(GOOD, positions=longest, kv_budget=kv_budget)

    for seconds in (None, 10, 150, 60, 150):
        longest = None if seconds is None else model.positions_for(seconds)
        make_plan(model, longest=longest, cache=path, checker=checker)
    make_plan(model, kv_budget=99_999, cache=path, checker=checker)
    default = step_module.KV_BUDGET
    short, long = model.positions_for(30), model.positions_for(150)
    assert asked == [(None, short, default), (None, long, default), (None, short, 99_999)]
    assert block_length(model.positions_for(150)) > 4096, "where some attention kernels change"


def test_a_cache_that_cannot_be_written_costs_nothing_but_the_next_check(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file" / "c.json", tmp_path / "file" / "deep" / "c.json"):
        assert make_plan(quick(), cache=path, checker=lambda *_a, **_k: GOOD).slots == 4
    locked = tmp_path / "locked"
    (locked / "c.json").mkdir(parents=True)  # a folder where the file should be: nobody can replace it
    assert make_plan(quick(), cache=locked / "c.json", checker=lambda *_a, **_k: GOOD).slots == 4
    assert [path.name for path in locked.iterdir()] == ["c.json"], "no half-written file is left"


@pytest.mark.parametrize(
    "wrong", [{"tokens_per_second": []}, {"exact_slots": ["a"]}, {"serial_equal_slots": None}, {"kv_budget": "x"}]
)
def test_a_kept_verdict_with_something_else_in_it_means_a_new_check(tmp_path: Path, wrong: dict[str, Any]) -> None:
    path = tmp_path / "c.json"
    selfcheck.keep(quick(), GOOD, path)
    stored = json.loads(path.read_text())
    stored[selfcheck.key_of(quick())] |= wrong
    path.write_text(json.dumps(stored))
    assert selfcheck.kept(quick(), path) is None
    assert make_plan(quick(), cache=path, checker=lambda *_a, **_k: GOOD).slots == 4


@pytest.mark.parametrize("content", ["", "[]", "{", '{"x": 1}'])
def test_a_broken_cache_means_a_new_check(tmp_path: Path, content: str) -> None:
    path = tmp_path / "c.json"
    path.write_text(content)
    assert selfcheck.kept(quick(), path) is None
    path.write_text(json.dumps({selfcheck.key_of(quick()): {"exact_slots": "no"}}))
    assert selfcheck.kept(quick(), path) is None


# -- memory ------------------------------------------------------------------------------------------------------------


class Endless:
    """A line of empty rows, each made when it is taken; all have the same length and budget."""

    def __init__(self, model: Any, count: int, length: int, budget: int) -> None:
        self.model, self.left, self.length, self.budget = model, count, length, budget

    def peek(self, *, wait: bool) -> int | None:
        return 1 if self.left else None

    def next(self) -> Row:
        self.left -= 1
        shape, size = self.model.decoder.shape, block_length(self.length)
        one = (1, shape.kv_heads, size, shape.head_dim)
        blocks = [[mx.zeros(one, self.model.dtype) for _ in range(shape.layers)] for _ in "kv"]
        state = SlotState(mx.array([self.length], mx.int32), blocks[0], blocks[1], self.length)
        row = Row(self.left, 60.0, mx.array([[5]], mx.int32), state, frozenset())
        row.budget = self.budget
        mx.eval(row.token, state.offsets, state.keys, state.values)
        return row


def seen_slots(
    monkeypatch: pytest.MonkeyPatch, budgets: list[int], *, kv_budget: int, may_narrow: bool,
    classes: tuple[int, ...] = (0,), late: Sequence[int] = (),
) -> list[tuple[int, int, int]]:  # fmt: skip
    """(rows live, slots, positions of a slot in all lanes) at every step of rows with these budgets.

    What they say is what they say in serial.
    """
    model = random_model("fp32")
    held: list[tuple[int, int, int]] = []
    stage = Lanes.stage

    def watched(lanes: Lanes, step: Any) -> None:
        stage(lanes, step)
        slots, blocks = lanes.slots, [lane.state.block for lane in lanes._lanes.values()]
        assert all(len(lane.rows) == slots for lane in lanes._lanes.values())
        held.append((len(lanes.live), slots, sum(blocks)))

    def rows() -> list[Row]:
        return [pool("fp32")[at % 4].row(at, frozenset(), budget) for at, budget in enumerate(budgets)]

    alone = dict(lines_of(list(serial(model.decoder, FakeLine(rows()), BatchTiming()))))
    with monkeypatch.context() as patch:
        patch.setattr(Lanes, "stage", watched)
        ended = batched(
            model.decoder, FakeLine(rows(), late), BatchTiming(), slots=8, kv_budget=kv_budget, may_narrow=may_narrow,
            block_classes=classes,
        )  # fmt: skip
        assert dict(lines_of(list(ended))) == alone
    return held


def test_long_rows_get_fewer_slots_so_that_all_slots_fit_the_memory_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    held = seen_slots(monkeypatch, [10] * 9 + [150] * 3 + [10] * 32, kv_budget=600, may_narrow=True)
    assert max(slots * block for _, slots, block in held) <= 600
    assert held[0] == (8, 8, 64), "short rows get all slots"
    assert {slots for _, slots, block in held if block == 256} == {2}
    assert (8, 8, 64) in held[-20:], "and again after the long ones"


def test_where_slots_may_not_change_long_rows_wait_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    held = seen_slots(monkeypatch, [10] * 9 + [150] * 2, kv_budget=600, may_narrow=False)
    assert {slots for _, slots, _ in held} == {8}, "the number of slots is part of what the text depends on"
    assert held[0] == (8, 8, 64)
    assert (1, 8, 64) in held, "they wait until the last short one has ended"
    assert {live for live, _, block in held if block > 64} == {1}, "what does not fit stays alone"


@pytest.mark.parametrize("classes", [(0,), (0, 128), (0, 128, 256), (0, 64, 128, 256, 512)])
def test_all_lanes_together_fit_the_memory_budget(monkeypatch: pytest.MonkeyPatch, classes: tuple[int, ...]) -> None:
    budgets = [10, 10, 150, 10, 300, 10, 150, 300, 10, 500] * 3
    for kv_budget in (1200, 2048):
        held = seen_slots(monkeypatch, budgets, kv_budget=kv_budget, may_narrow=True, classes=classes)
        assert max(slots * positions for _, slots, positions in held) <= kv_budget
        assert max(slots for _, slots, _ in held) > 1


def test_slots_that_were_given_up_come_back_when_rows_do(monkeypatch: pytest.MonkeyPatch) -> None:
    late = [0] * 8 + [40] + [0] * 30
    held = seen_slots(monkeypatch, [12] * 7 + [60] + [12] * 31, kv_budget=1 << 20, may_narrow=True, late=late)
    slots = [slots for _, slots, _ in held]
    assert slots[0] == 8
    assert min(slots[:60]) < 8, "one row is left, and nothing in sight for many steps"
    assert 8 in slots[slots.index(min(slots[:60])) :], "then all of them come"


def test_a_row_that_is_late_by_a_step_costs_no_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    late = [0, 0, 2] + [0] * 21
    held = seen_slots(monkeypatch, [12] * 24, kv_budget=1 << 20, may_narrow=True, late=late)
    assert {slots for _, slots, _ in held[:20]} == {8}


def test_one_row_is_always_taken_by_the_true_batch_too(monkeypatch: pytest.MonkeyPatch) -> None:
    held = seen_slots(monkeypatch, [6] * 3, kv_budget=1, may_narrow=True)
    assert {(live, slots) for live, slots, _ in held} == {(1, 1)}


@pytest.mark.parametrize("slots", [4, 16])
@pytest.mark.parametrize("name", ["fp32", "bf16"])
def test_memory_is_what_the_page_about_the_decoder_predicts(name: str, slots: int) -> None:
    model = random_model(name)
    shape, width = model.decoder.shape, model.dtype.size
    a_position = shape.layers * 2 * shape.kv_heads * shape.head_dim * width  # docs/DECODER.md, Memory
    before, after = 768, 1024
    list(batched(model.decoder, Endless(model, slots, 760, 2), BatchTiming(), slots=slots, kv_budget=1 << 30))
    gc.collect()
    base, held, peaks = mx.get_active_memory(), [], []

    def look() -> None:
        held.append(mx.get_active_memory() - base)
        peaks.append(mx.get_peak_memory() - base)
        mx.reset_peak_memory()

    mx.reset_peak_memory()
    line = Endless(model, slots, 760, 20)
    list(batched(model.decoder, line, BatchTiming(), slots=slots, kv_budget=1 << 30, pulse=look))
    small, large = slots * before * a_position, slots * after * a_position
    assert peaks[0] < 1.1 * (small + 2 * before * a_position), "filling: one row more, and the next"
    assert all(abs(bytes_ - small) < 0.1 * small for bytes_ in held[1:6])
    assert all(abs(bytes_ - large) < 0.1 * large for bytes_ in held[-6:])
    assert max(peaks[1:]) < 1.1 * (small + large), "growing: never more than both blocks"
    assert max(peaks[-6:]) < 1.1 * large
