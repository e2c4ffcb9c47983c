"""Configurations against each other: pairs, the sign test, the ladder and its guard. Time is made up."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dropscribe.bench import ab, configuration, evalset, knobs, running
from dropscribe.bench.ab import Pair
from dropscribe.bench.knobs import Run
from dropscribe.bench.report import Report, measured
from dropscribe.bench.score import Edits
from dropscribe.errors import ConfigError, ModelError
from dropscribe.settings import Settings, load_settings
from real_daemon import MODEL, clips, references

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Machine:
    """A clock that only work moves, by what it takes on a noisy machine that may get slower and slower."""

    def __init__(self, seed: int, *, noise: float, drift: float = 0.0) -> None:
        self.now, self._random, self._noise, self._drift = 0.0, random.Random(seed), noise, drift  # noqa: S311 - a made-up noise

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def work(self) -> None:
        self.now += self._random.lognormvariate(0, self._noise) * (1 + self._drift * self.now)


def verdict(machine: Machine, *, delay: float = 0.0, pairs: int = 16) -> str:
    slower = ab.delayed(machine.work, delay, clock=machine.clock, sleep=machine.sleep)
    return ab.judge(list(ab.interleaved(machine.work, slower, pairs=pairs, clock=machine.clock))).verdict


def share_of_winners(**options: Any) -> float:
    machine = {name: options.pop(name) for name in ("noise", "drift") if name in options}
    return sum(verdict(Machine(seed, **machine), **options) != "no winner" for seed in range(1000)) / 1000


# -- pairs -------------------------------------------------------------------------------------------------------------


def test_a_way_against_itself_wins_as_rarely_as_is_said() -> None:
    for pairs in (6, 12, 16):
        said = ab.false_winner_chance(pairs)
        assert said <= ab.ALPHA
        assert share_of_winners(noise=0.05, pairs=pairs) == pytest.approx(said, abs=0.015)


def test_a_machine_that_slows_down_makes_no_winner() -> None:
    assert share_of_winners(noise=0.02, drift=0.01) <= ab.ALPHA
    machine = Machine(1, noise=0.02, drift=0.01)
    one_after_the_other = []
    for _ in range(2):
        started = machine.now
        for _ in range(16):
            machine.work()
        one_after_the_other.append(machine.now - started)
    assert one_after_the_other[1] > 1.1 * one_after_the_other[0], "measured one after the other, the first would win"


def test_a_delay_of_a_tenth_is_found() -> None:
    assert verdict(Machine(0, noise=0.02), delay=0.1) == "A faster"
    assert share_of_winners(noise=0.03, delay=0.1) >= 0.99
    assert share_of_winners(noise=0.05, delay=0.1) >= 0.9


def test_runs_alternate_and_each_is_bracketed() -> None:
    seen: list[str] = []
    pairs = ab.interleaved(
        lambda: seen.append("A"), lambda: seen.append("B"),
        pairs=4, clock=itertools.count().__next__, synchronize=lambda: seen.append("|"),
    )  # fmt: skip
    assert [pair.first for pair in pairs] == ["A", "B", "A", "B"]
    assert "".join(seen).replace("||", "|") == "|A|B|B|A|A|B|B|A|"


def test_the_sign_test_is_exact() -> None:
    assert ab.sign_test(6, 0) == pytest.approx(2 / 64)
    assert ab.sign_test(9, 1) == pytest.approx(22 / 1024)
    assert ab.sign_test(5, 5) == 1.0
    assert ab.sign_test(0, 0) == 1.0
    assert ab.false_winner_chance(ab.FEWEST_PAIRS) == pytest.approx(2 / 64)
    assert ab.false_winner_chance(ab.FEWEST_PAIRS - 1) == 0.0


def test_what_the_pairs_say() -> None:
    pairs = [Pair("A", 1.0, ratio) for ratio in (1.2, 1.1, 1.3, 1.15, 0.9, 1.25, 1.05, 1.4, 1.12, 1.18)]
    outcome = ab.judge(pairs)
    assert (outcome.a_faster, outcome.b_faster, outcome.verdict) == (9, 1, "A faster")
    assert outcome.median_ratio == pytest.approx(1.165)
    assert (outcome.low, outcome.high) == (1.05, 1.3)  # the second lowest and highest of ten
    assert ab.judge([Pair("A", pair.b, pair.a) for pair in pairs]).verdict == "B faster"
    assert ab.judge([Pair("A", 1.0, 1.0)] * 10).verdict == "no winner"
    empty = ab.judge([])
    assert (empty.verdict, empty.median_ratio, empty.low) == ("no winner", None, None)


def test_the_probe_says_whether_the_machine_was_left_alone() -> None:
    def said(before: list[float], after: list[float]) -> str:
        probe = ab.Probe(lambda: None, lambda: 0.0, before=before, after=after)
        return str(probe.as_dict()["machine"])

    calm = [1.0, 1.01, 0.99, 1.0, 1.02]
    assert said(calm, calm) == "quiet"
    assert "+20%" in said(calm, [1.2 * time for time in calm])
    assert "spread" in said(calm, [1.0, 1.4, 0.8, 1.3, 1.0])
    assert "not known" in said(calm, [])


def test_the_probe_times_its_work() -> None:
    machine = Machine(0, noise=0.0)
    probe = ab.Probe(machine.work, machine.clock, runs=3)
    probe.measure(probe.before)
    assert probe.before == [1.0, 1.0, 1.0]


# -- configurations ----------------------------------------------------------------------------------------------------


@pytest.fixture
def load(tmp_path: Path) -> Callable[[Mapping[str, Any]], Settings]:
    config = tmp_path / "dropscribe.toml"
    config.write_text(f'model = "bundled"\ndatabase = "{tmp_path / "jobs.db"}"\n', "utf-8")
    return lambda flags: load_settings(config, flags)


def test_knobs_become_settings(load: Any) -> None:
    made = configuration.configured(
        "A", ["decode.batch_size=2", "decode.decoder=serial", "prefill.step=64", "delay=0.1", "model=one/two"], load
    )
    assert (made.settings.decode.batch_size, made.settings.decode.decoder) == (2, "serial")
    assert (made.settings.model, made.prefill_step, made.delay) == ("one/two", 64, 0.1)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("decode.batch_size", "no KEY=VALUE"),
        ("decode.batchsize=2", "the keys are"),
        ("decode.batch_size=0", "choose 1 to 64"),
        ("decode.decoder=fast", "decode.decoder"),
        ("prefill.step=0", "number of positions"),
        ("prefill.step=many", "number of positions"),
        ("delay=-1", "share"),
        ("watch=1", "the keys are"),
    ],
)
def test_a_wrong_knob_is_said(load: Any, word: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        configuration.configured("A", [word], load)


def test_each_knob_is_turned_alone_and_the_bases_own_value_is_left_out(load: Any) -> None:
    made = configuration.one_at_a_time(["other/model"], ["decode.batch_size=auto,1,6,1", "prefill.step=2048,64"], load)
    names = ["base", "model=other/model", "decode.batch_size=1", "decode.batch_size=6", "prefill.step=64"]
    assert [one.name for one in made] == names
    with pytest.raises(ConfigError, match="ab only"):
        configuration.one_at_a_time([], ["delay=0.1"], load)
    with pytest.raises(ConfigError, match="no KEY=VALUE"):
        configuration.one_at_a_time([], ["decode.batch_size="], load)


def test_a_checkpoint_that_is_not_there_is_found_before_anything_is_measured(load: Any) -> None:
    with pytest.raises(ModelError, match="no such directory"):
        configuration.check_models(configuration.one_at_a_time(["/not/there"], [], load))


# -- the ladder --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def held() -> running.Loaded:
    return running.load(str(MODEL))


@pytest.fixture
def one_load(held: running.Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "load", lambda _name: held)


NOTHING = evalset.EvalSet(Path(), (evalset.Entry("a", "b", 1.0, "short", (), ""),))


def ladder(configurations: Any, run: Any, **options: Any) -> Report:
    report = Report("knobs", knobs.COLUMNS)
    parts = knobs.ladder(report, configurations, NOTHING, None, run=run, **options)  # type: ignore[arg-type]
    return measured(report, parts, lambda _text: None)


def a_run(wall: float, errors: int) -> Run:
    return Run(wall, 100.0, 50, 10.0, Edits(errors, 0, 0, 1000), Edits(errors, 0, 0, 5000), f"{errors}")


def test_what_makes_more_errors_is_rejected_however_fast(load: Any, one_load: None) -> None:
    runs = {
        "base": a_run(10, 10), "decode.batch_size=1": a_run(1, 16), "decode.batch_size=2": a_run(5, 15),
        "decode.batch_size=3": a_run(8, 0), "decode.batch_size=4": a_run(20, 10),
    }  # fmt: skip
    made = configuration.one_at_a_time([], ["decode.batch_size=1,2,3,4"], load)
    report = ladder(made, lambda one, *_rest: runs[one.name])
    rows = {row["configuration"]: row for row in report.rows}
    assert {name: row["state"] for name, row in rows.items()} == {
        "base": "base", "decode.batch_size=1": "rejected", "decode.batch_size=2": "ok", "decode.batch_size=3": "ok",
        "decode.batch_size=4": "ok",
    }  # fmt: skip
    assert rows["decode.batch_size=1"]["wer_difference"] == pytest.approx(0.006)
    assert rows["decode.batch_size=2"]["x_base"] == 2.0
    assert rows["base"]["runs"] == 3
    assert (report.summary["fastest_seen"], report.summary["rejected"]) == (
        "decode.batch_size=2",
        "decode.batch_size=1",
    )


def test_rounds_go_to_and_fro_and_medians_are_of_pairs_within_a_round(load: Any, one_load: None) -> None:
    seen: list[str] = []
    slow = iter([1, 1, 1, 1, 4, 4, 1, 1])  # twice warming up; the machine is four times slower in the second round

    def run(one: Any, *_rest: object) -> Run:
        seen.append(one.name)
        return a_run((2 if one.name == "base" else 1) * next(slow), 0)

    report = ladder(configuration.one_at_a_time([], ["prefill.step=64"], load), run)
    names = ["base", "prefill.step=64"]
    assert seen == ["base", "base", "prefill.step=64", "prefill.step=64", *reversed(names), *names]
    row = report.rows[1]
    assert (row["x_base"], row["x_base_min"], row["x_base_max"]) == (2.0, 2.0, 2.0)
    assert (row["wall_s"], row["wall_min"], row["wall_max"]) == (1.0, 1.0, 4.0)


def test_one_that_fails_is_left_out_and_the_others_go_on(load: Any, one_load: None) -> None:
    def run(one: Any, *_rest: object) -> Run:
        if one.name == "decode.batch_size=64":
            raise RuntimeError("[malloc] too much\nand more")
        return a_run(1, 0)

    report = ladder(configuration.one_at_a_time([], ["decode.batch_size=64,2"], load), run)
    assert [(row["state"], row["runs"]) for row in report.rows] == [("base", 3), ("failed", 0), ("ok", 3)]
    assert report.summary["decode.batch_size=64 failed"] == "[malloc] too much"


def test_ctrl_c_keeps_the_rounds_that_are_whole(load: Any, one_load: None) -> None:
    left = iter(range(5))

    def run(_one: Any, *_rest: object) -> Run:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return a_run(1, 0)

    report = ladder(configuration.one_at_a_time([], ["prefill.step=64"], load), run)
    assert report.interrupted
    assert [(row["configuration"], row["runs"]) for row in report.rows] == [("base", 1), ("prefill.step=64", 2)]


# -- the real thing, on one clip ---------------------------------------------------------------------------------------


@pytest.fixture
def short(tmp_path: Path) -> evalset.EvalSet:
    source = tmp_path / "source"
    source.mkdir()
    (source / "one.flac").write_bytes(clips(1)[0].read_bytes())
    (source / "one.txt").write_text(references()["clip001"], "utf-8")
    made, _ = evalset.build(source, tmp_path / "set", Settings(), print, long_seconds=())
    return made


def test_both_modes_measure_real_configurations(load: Any, one_load: None, short: evalset.EvalSet) -> None:
    from dropscribe.audio.client import Reader

    say = lambda _text: None  # noqa: E731
    made = configuration.one_at_a_time([], ["prefill.step=16"], load)
    with Reader(made[0].settings.reader) as reader:
        rungs = Report("knobs", knobs.COLUMNS)
        measured(rungs, knobs.ladder(rungs, made, short, reader, rounds=1), say)
        pairs = Report("knobs", knobs.PAIR_COLUMNS)
        b = replace(made[0], name="B", delay=0.5)
        parts = knobs.side_by_side(pairs, made[0], b, short, reader, pairs=2)
        measured(pairs, parts, say)
    assert [row["state"] for row in rungs.rows] == ["base", "ok"]
    for row in rungs.rows:
        assert row["wer"] == 0.0
        assert row["wall_s"] > 0
        assert row["peak_mb"] > 1
        assert row["texts"] == rungs.rows[0]["texts"]
    assert [row["first"] for row in pairs.rows] == ["A", "B"]
    assert pairs.summary["same_texts"] is True
    assert pairs.summary["guard"] == "ok"
    assert pairs.summary["probe_before_ms"] > 0
    assert pairs.summary["verdict"] == "no winner", "two pairs never give one"
