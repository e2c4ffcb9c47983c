"""``bench anatomy``: what is counted is counted right, what is clocked is the real decoder, the parts add up."""

from __future__ import annotations

import json
import sqlite3
import tempfile
from contextlib import closing
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
import pytest
import soundfile
from typer.testing import CliRunner

from asr_support import RATE, on_cpu, quick, random_model, source, transcribed
from dropscribe.asr import selfcheck
from dropscribe.bench import anatomy, running, step_parts
from dropscribe.bench.latency import Clocked, Recording, clocked, shortened
from dropscribe.bench.report import Report, measured
from dropscribe.cli import app
from dropscribe.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

on_cpu()

# of the bundled model: layers, heads, kv_heads, head_dim, hidden, intermediate, vocabulary
L, H, KV, HD, D, I, V = 4, 4, 2, 64, 192, 384, 1024  # noqa: E741 - the field's letters
MATRICES = {"qkv": (H + 2 * KV) * HD * D, "out": H * HD * D, "gate_up": 2 * I * D, "down": I * D}
NORMS = 2 * D + (H + KV) * HD


def recordings(count: int = 3) -> list[Recording]:
    names = ("clip001", "clip003", "clip010")
    return [Recording(name, source(name)[:RATE], 0.25) for name in names[:count]]


def taken_apart(clips: Sequence[Recording] | None = None, **how: Any) -> Report:
    report = Report("anatomy", anatomy.COLUMNS)
    options = {"slots": (1, 2), "contexts": (64, 128), "repeats": 3, "rounds": 1, "probe_megabytes": 1, **how}
    parts = anatomy.anatomy(report, quick(), recordings() if clips is None else clips, **options)
    return measured(report, parts, lambda _text: None)


# --- bytes and operations -------------------------------------------------------------------------------------------


def test_a_step_reads_every_weight_once_and_the_whole_blocks() -> None:
    weights = L * (sum(MATRICES.values()) + NORMS) + D + V * D  # layers, last norm, head
    for slots, context in ((1, 64), (1, 256), (5, 256)):
        moved = step_parts.step_bytes(quick().decoder, slots, context)
        assert moved.weights == 4 * (weights + slots * D)  # and a looked-up row for each slot
        assert moved.attention == 4 * 2 * L * slots * KV * context * HD
        assert moved.total == moved.weights + moved.attention


def test_quantised_weights_count_as_they_lie_in_memory_with_their_scales() -> None:
    decoder = random_model("4-bit").decoder
    shape, layer = decoder.shape, decoder.layers[0]
    assert layer.down.weight.dtype.size == 4  # eight 4-bit numbers each
    intermediate = layer.down.weight.shape[1] * 8
    numbers = shape.hidden * (
        (shape.heads + 2 * shape.kv_heads) * shape.head_dim + shape.heads * shape.head_dim + 3 * intermediate
    )
    norms = 2 * shape.hidden + (shape.heads + shape.kv_heads) * shape.head_dim  # q and k: one for each head
    in_four_bits = 0.5 + 8 / 64  # a half byte, and a float32 scale and bias for every 64
    head = shape.vocab * shape.hidden * in_four_bits
    looked_up = shape.hidden * in_four_bits
    expected = shape.layers * (numbers * in_four_bits + 4 * norms) + 4 * shape.hidden + head + looked_up
    assert step_parts.step_bytes(decoder, 1, 64).weights == expected


def test_the_graph_of_a_step_has_the_operations_the_code_asks_for() -> None:
    decoder = quick().decoder
    one, two = (step_parts.graph_operations(decoder, step_parts.Blocks.make(decoder, slots, 64)) for slots in (1, 2))
    for nodes in (one, two):
        assert nodes["ArgReduce"] == 1
        assert nodes["Gather"] == 1  # the embedding
        assert nodes["Matmul"] + nodes["AddMM"] == 4 * L + 1 + 2 * L  # projections, head, both products of attention
        assert nodes["Rsqrt"] == 3 * L + 1  # norms: in, queries and keys together, mlp; and the last
        assert nodes["ScatterAxis"] == 2 * L  # keys and values, each slot at its own position, in place
        assert nodes["Cos"] == L  # the rotation, of both together
    assert one == step_parts.graph_operations(decoder, step_parts.Blocks.make(decoder, 1, 64))


def test_looking_at_memory_in_another_way_is_no_operation() -> None:
    row = next(row for row in taken_apart(slots=(1,), contexts=(64,)).rows if row["section"] == "step")
    by_name = row["operations_by_name"]
    assert row["graph_nodes"] == sum(by_name.values())
    assert row["operations"] == sum(count for name, count in by_name.items() if name not in step_parts.VIEWS)
    assert {"Matmul", "Softmax", "ArgReduce"} <= set(by_name) - step_parts.VIEWS
    assert {"Broadcast", "Split"} <= set(by_name) & step_parts.VIEWS


def test_the_bandwidth_counts_what_each_way_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_parts.time, "perf_counter", iter(range(1000)).__next__)  # every run takes one second
    rates = step_parts.bandwidth(1, 3, rows_first=True)
    assert rates == {"copy": 2 * 2**20, "sum": 2**20, "matrix × vector": 2**20}


def test_blocks_that_are_measured_in_turns_are_written_in_place_and_held_once() -> None:
    """Three copies of 64 slots of 4,096 positions were more than an H200 has."""
    decoder = random_model("fp32").decoder
    blocks = step_parts.Blocks.make(decoder, 4, 1024)
    parts = [step_parts.whole_step(decoder, blocks), *step_parts.cache_parts(decoder, blocks)]
    step_parts.graph_operations(decoder, blocks)
    held = sum(array.nbytes for array in (*blocks.keys, *blocks.values))
    for at in range(2):
        if at:
            mx.reset_peak_memory()
            before = mx.get_active_memory()
        for part in parts:
            part.once(counted=False)
    assert mx.get_peak_memory() - before < held / 2


def test_more_positions_than_the_daemon_ever_holds_are_left_out() -> None:
    report = taken_apart(slots=(1, 2), contexts=(64, 128), kv_budget=128)
    measured_at = {(row["slots"], row["context"]) for row in report.rows if row["section"] == "step"}
    assert measured_at == {(1, 64), (1, 128), (2, 64)}
    assert "2 × 128" in report.summary.values()
    with pytest.raises(ConfigError, match=r"2 slots of 64 positions .* decode\.kv_budget = 127"):
        taken_apart(slots=(1, 2), contexts=(64,), kv_budget=127)


# --- the report -----------------------------------------------------------------------------------------------------


def test_every_part_is_there_and_the_sum_is_the_sum_of_the_parts() -> None:
    report = taken_apart()
    json.dumps(report.as_dict())
    for slots in (1, 2):
        rows = [row for row in report.rows if row["slots"] == slots]
        fixed = [row for row in rows if row["section"] == "part" and "context" not in row]
        assert [row["what"] for row in fixed] == [
            "sync", "embedding", "layers without attention", "vocabulary head", "argmax",
        ]  # fmt: skip
        for context in (64, 128):
            here = [row for row in rows if row.get("context") == context]
            parts = [row for row in here if row["section"] == "part"]
            assert [row["what"] for row in parts] == ["masks", "key/value write", "attention"]
            [whole] = [row for row in here if row["section"] == "step"]
            [total] = [row for row in here if row["section"] == "sum"]
            assert total["median_ms"] == pytest.approx(sum(row["median_ms"] for row in fixed + parts))
            assert total["share"] == pytest.approx(total["median_ms"] / whole["median_ms"])
            assert whole["n"] == 3
            assert whole["times_floor"] == pytest.approx(whole["median_ms"] / whole["floor_ms"])
            best = max(value for name, value in report.summary.items() if name.startswith("bandwidth_gb_s"))
            moved = whole["weight_bytes"] + whole["attention_bytes"]
            assert whole["floor_ms"] == pytest.approx(moved / best / 1e6)
            assert whole["bytes_per_token"] == moved / slots
        host = {row["what"]: row for row in rows if row["section"] == "host"}
        assert len(host) == 4
        three = [row["share"] for what, row in host.items() if what != "step, one staged ahead"]
        assert sum(three) == pytest.approx(1)
    assert [row["slots"] for row in report.rows if row["what"] == "sampling"] == [1]  # beside the step, not in it
    assert [curve.x for curve in report.curves] == [[64, 128]] * 2


def test_latencies_come_from_every_schedule_with_enough_rows_for_the_slots() -> None:
    report = taken_apart(recordings(1))
    for decoder, slots, rows in (("serial", 1, 1), ("bulk-sync", 2, 2), ("batched", 2, 2)):
        mine = {
            row["what"]: row
            for row in report.rows
            if row["decoder"] == decoder and row["slots"] == slots and row["section"] in ("first token", "tokens")
        }
        assert list(mine)[:2] == ["TTFT", "first token: read"]
        assert {"TPOT", "inter-token latency"} < set(mine)
        assert mine["TTFT"]["n"] == rows
        assert mine["first token: read"]["median_ms"] == 250
        parts = sum(row["median_ms"] for what, row in mine.items() if what.startswith("first token"))
        if rows == 1:
            assert parts == pytest.approx(mine["TTFT"]["median_ms"])
        for row in mine.values():
            assert row["min_ms"] <= row["median_ms"] <= row["p90_ms"] <= row["p99_ms"] <= row["max_ms"]


def test_samples_that_were_not_read_from_a_file_have_no_reading_time() -> None:
    report = taken_apart([Recording("made", source("clip003")[:RATE])], slots=(1,), contexts=(64,))
    assert "first token: read" not in {row["what"] for row in report.rows}
    assert "first token: mel" in {row["what"] for row in report.rows}


def test_percentiles_are_those_of_all_values() -> None:
    row = anatomy._row("tokens", "TPOT", [at / 1000 for at in range(101)], slots=3)
    assert (row["n"], row["slots"]) == (101, 3)
    shown = [row[name] for name in ("min_ms", "median_ms", "p90_ms", "p99_ms", "max_ms")]
    assert shown == pytest.approx([0, 50, 90, 99, 100])


def test_ctrl_c_keeps_the_parts_that_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_arguments: Any) -> Iterator[Clocked]:
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(anatomy, "clocked", never)
    report = taken_apart(slots=(1,), contexts=(64,))
    assert report.interrupted
    assert {row["section"] for row in report.rows} == {"step", "part", "beside", "sum", "host"}


# --- the clock ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("decoder", "slots"), [("serial", 1), ("bulk-sync", 2), ("batched", 2)])
def test_what_is_clocked_says_what_the_decoder_says(decoder: str, slots: int) -> None:
    clips = recordings()
    expected = {
        clips[result.segment.key].name: [token for part in result.parts for token in part.token_ids]
        for result in transcribed(quick(), [clip.samples for clip in clips], decoder="serial")
    }
    rows = list(clocked(quick(), clips, decoder, slots))
    assert {row.key: row.tokens for row in rows} == expected
    for row in rows:
        assert len(row.seen) == len(row.tokens)
        assert row.seen == sorted(row.seen)
        assert len(row.gaps) == len(row.tokens) - 1
        assert row.tpot == pytest.approx((row.seen[-1] - row.seen[0]) / len(row.gaps))
        assert row.ttft == pytest.approx(row.read_s + row.mel_s + row.encode_s + row.prefill_s + row.wait_s)
        assert row.wait_s >= 0
        assert row.seen[0] >= row.started + row.mel_s + row.encode_s + row.prefill_s


def test_recordings_are_cut_to_what_the_model_takes_and_that_is_said() -> None:
    said: list[str] = []
    kept = shortened([Recording("long", np.zeros(RATE * 3, np.float32), 0.5), *recordings(1)], 2.0, said.append)
    assert [len(one.samples) for one in kept] == [2 * RATE, RATE]
    assert kept[0].read_s == 0.5
    assert said == ["long: only the first 2 s are used"]


# --- the command ----------------------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(selfcheck, "cache_file", lambda: tmp_path / "selfcheck.json")
    monkeypatch.setattr(running, "load", lambda _name: running.Loaded(quick(), 0.5, {"device": "cpu", "model": "tiny"}))
    soundfile.write(tmp_path / "clip.wav", source("clip003")[:RATE], RATE)
    (tmp_path / "c.toml").write_text(f'database = "{tmp_path}/jobs.db"\nmodel = "bundled"\n', "utf-8")
    return tmp_path


def command(place: Path, *more: str) -> Any:
    few = ["--slots", "1", "--contexts", "64", "--repeats", "3", "--rounds", "1", "--quick"]
    fixed = ["--config", str(place / "c.toml"), "--audio", str(place / "clip.wav")]
    return CliRunner().invoke(app, ["bench", "anatomy", *fixed, *few, *more])


def test_the_command_prints_draws_and_stores(place: Path) -> None:
    done = command(place, "--json", "--plot", str(place / "a.svg"))
    assert done.exit_code == 0, done.output
    printed = json.loads(done.stdout)
    assert printed["kind"] == "anatomy"
    assert printed["options"]["slots"] == [1]
    read = next(row for row in printed["rows"] if row["what"] == "first token: read")
    assert read["median_ms"] > 0  # a real file through the real reader
    assert (place / "a.svg").stat().st_size > 1000
    with closing(sqlite3.connect(place / "jobs.db")) as conn:
        assert conn.execute("SELECT kind, model FROM benchmarks").fetchall() == [("anatomy", "tiny")]


def test_a_table_has_a_line_for_every_part(place: Path) -> None:
    out = command(place).stdout
    for what in ("whole step", "vocabulary head", "attention", "all parts", "waited for", "TTFT", "TPOT", "bandwidth"):
        assert what in out


def test_wrong_usage_is_refused(place: Path) -> None:
    assert command(place, "--slots", "0").exit_code == 2
    assert command(place, "--contexts", "none").exit_code == 2
    missing = command(place, "--output", str(place / "no" / "a.json"))
    assert isinstance(missing.exception, ConfigError)
