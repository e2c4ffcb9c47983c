"""``bench sweep``: equal output at every batch size or an error, partial results after Ctrl-C, what --apply does."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import soundfile
from typer.testing import CliRunner

from asr_support import RATE, on_cpu, quick, random_model, source
from dropscribe import pipeline
from dropscribe.asr import selfcheck
from dropscribe.asr.plan import Plan, make_plan
from dropscribe.asr.recognizer import Recognizer, Segment
from dropscribe.asr.selfcheck import Verdict, key_of
from dropscribe.batch import transcribe_batch
from dropscribe.bench import running, sweep
from dropscribe.bench.report import Report, measured
from dropscribe.cli import app
from dropscribe.errors import ConfigError
from dropscribe.gpu_lock import GpuLock
from dropscribe.jobs import benchmarks
from dropscribe.jobs.database import open_database
from dropscribe.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from dropscribe.asr.recognizer import Result

on_cpu()

FIELDS = {
    "batch_size", "files", "total_audio", "total_inference", "aggregate_rtf", "x_realtime", "speedup", "process_wall",
    "model_load", "warmup", "feature_s", "encode_s", "prefill_s", "decode_s", "tokens", "tokens_per_s", "syncs",
    "unique_outputs", "output_digest", "peak_memory", "min_inference", "max_inference",
}  # fmt: skip
BULK = {"decoder": "bulk-sync"}
GOOD = Verdict((2, 3, 4), 3, (0,), {1: 100.0, 2: 150.0, 3: 200.0, 4: 300.0})


class Noting(Recognizer):
    """Notes the number of slots of every run."""

    def __init__(self) -> None:
        super().__init__(quick())
        self.slots: list[int] = []

    def transcribe(self, segments: Any, **how: Any) -> Any:
        self.slots.append(how["slots"])
        yield from super().transcribe(segments, **how)


class Broken(Recognizer):
    """A decoder whose second row hears something else when it has company; only from run ``since`` on."""

    def __init__(self, slots: int = 2, since: int = 0) -> None:
        super().__init__(quick())
        self._wrong, self._left = slots, since

    def transcribe(self, segments: Any, **how: Any) -> Any:
        self._left -= 1
        for result in super().transcribe(segments, **how):
            bad = how["slots"] == self._wrong and result.segment.key == 1 and self._left < 0
            yield self._spoilt(result) if bad else result

    def _spoilt(self, result: Result) -> Result:
        first, *rest = result.parts
        return replace(result, parts=(replace(first, text=f"{first.text} not"), *rest))


def chunks(count: int = 3, seconds: float = 1.5) -> sweep.Chunks:
    return sweep.cut_chunks([source("clip003"), source("clip001")], chunk_seconds=seconds, count=count)


def swept(sizes: Sequence[int] = (1, 2), **how: Any) -> Report:
    report = Report("sweep", sweep.COLUMNS)
    return measured(report, sweep.sweep(report, quick(), chunks(), sizes, **{"rounds": 1, **how}), lambda _text: None)


# --- chunks ---------------------------------------------------------------------------------------------------------


def test_chunks_lie_end_to_end_unless_a_stride_is_given() -> None:
    audio = np.arange(3 * RATE, dtype=np.float32)
    cut = sweep.cut_chunks([audio[:RATE], audio[RATE:]], chunk_seconds=1, count=3)
    assert [(chunk[0], len(chunk)) for chunk in cut.samples] == [(0, RATE), (RATE, RATE), (2 * RATE, RATE)]
    assert (cut.seconds, cut.audio_seconds, cut.repeated) == (3.0, 3.0, 0)
    overlapping = sweep.cut_chunks([audio], chunk_seconds=1, stride_seconds=0.5, count=5)
    assert [chunk[0] for chunk in overlapping.samples] == [at * RATE / 2 for at in range(5)]
    assert overlapping.repeated == 0


def test_audio_that_is_too_short_starts_again_and_is_counted() -> None:
    audio = np.arange(RATE * 3 // 2, dtype=np.float32)
    cut = sweep.cut_chunks([audio], chunk_seconds=1, count=4)
    assert [chunk[0] for chunk in cut.samples] == [0, RATE, RATE // 2, 0]
    assert cut.samples[1][-1] == RATE // 2 - 1  # around the end
    assert cut.repeated == 3


def test_no_audio_is_an_error_that_names_the_option() -> None:
    for nothing in ([], [np.zeros(0, np.float32)]):
        with pytest.raises(ConfigError, match="--audio"):
            sweep.cut_chunks(nothing, chunk_seconds=1, count=1)


@pytest.mark.parametrize(
    "lengths", [(float("nan"), 0), (float("inf"), 0), (0, 0), (1, -1), (1, float("nan")), (1, 1e300)]
)
def test_lengths_that_are_none_are_refused(lengths: tuple[float, float]) -> None:
    with pytest.raises(ConfigError, match="--chunk-seconds"):
        sweep.cut_chunks([np.ones(RATE, np.float32)], chunk_seconds=lengths[0], stride_seconds=lengths[1], count=1)


# --- the sweep ------------------------------------------------------------------------------------------------------


def test_the_output_is_the_same_at_every_batch_size_and_the_digest_from_run_to_run() -> None:
    report = swept((1, 2, 3), rounds=2)
    alone = Recognizer(quick())
    texts = {}
    for at, chunk in enumerate(chunks().samples):
        [result] = list(alone.transcribe([Segment(at, chunk)], decoder="serial"))
        texts[at] = " ".join(part.text for part in result.parts)
    assert any(texts.values())
    digest = hashlib.sha256("\n".join(texts[at] for at in sorted(texts)).encode()).hexdigest()[:12]
    assert [row["output_digest"] for row in report.rows] == [digest] * 3
    assert report.summary == {"identical": True, "differences": {}, "chunks_without_words": 0}
    again = swept((2,))
    assert again.rows[0]["output_digest"] == digest
    for decoder in ("serial", "batched"):
        other = swept((1,) if decoder == "serial" else (2,), decoder=decoder, verdict=GOOD)
        assert other.rows[0]["output_digest"] == digest, decoder


def test_what_has_no_words_is_told_apart_by_its_tokens() -> None:
    """Random weights: the digest of the texts is that of nothing, whatever was decoded."""
    report = Report("sweep", sweep.COLUMNS)
    measured(report, sweep.sweep(report, random_model("fp32"), chunks(), (1, 3), rounds=1), lambda _text: None)
    nothing = hashlib.sha256(b"\n\n").hexdigest()[:12]
    assert [row["output_digest"] for row in report.rows] == [nothing] * 2
    assert report.summary["chunks_without_words"] == 3
    segments = [Segment(at, chunk) for at, chunk in enumerate(chunks().samples)]
    results = Recognizer(random_model("fp32")).transcribe(segments, decoder="serial")
    said = "\n".join(" ".join(map(str, result.parts[0].token_ids)) for result in results)
    assert [row["token_digest"] for row in report.rows] == [hashlib.sha256(said.encode()).hexdigest()[:12]] * 2


def test_a_row_has_every_figure_and_they_fit_together() -> None:
    report = swept((1, 3), rounds=3, load_s=1.5)
    assert [row["batch_size"] for row in report.rows] == [1, 3]
    for row in report.rows:
        assert set(row) >= FIELDS
        assert row["min_inference"] <= row["total_inference"] <= row["max_inference"]
        assert row["aggregate_rtf"] * row["x_realtime"] == pytest.approx(1)
        assert row["total_audio"] == 4.5
        assert row["process_wall"] == pytest.approx(1.5 + row["warmup"] + row["total_inference"])
        assert row["tokens_per_s"] == pytest.approx(row["tokens"] / row["total_inference"])
        assert row["unique_outputs"] == 3
        assert row["files"] == row["rounds"] == 3
        assert row["syncs"] <= row["steps"]
        assert row["digest_stable"]
    assert report.rows[0]["speedup"] == 1.0
    assert report.rows[0]["tokens"] == report.rows[1]["tokens"]
    assert report.rows[1]["syncs"] <= report.rows[0]["syncs"] == report.rows[0]["tokens"]
    assert [curve.x for curve in report.curves] == [[1, 3]] * 2
    json.dumps(report.as_dict())


def test_sizes_are_warmed_up_then_measured_forwards_and_backwards() -> None:
    noting = Noting()
    swept((1, 2, 3), rounds=2, recognizer=noting)
    assert noting.slots == [1, 2, 3, 1, 2, 3, 3, 2, 1]


def test_a_size_that_says_something_else_is_named_with_its_chunk() -> None:
    report = swept((1, 2, 3), recognizer=Broken(slots=2))
    assert report.summary == {"identical": False, "differences": {"2": [2]}, "chunks_without_words": 0}
    assert len({row["output_digest"] for row in report.rows}) == 2
    assert sweep.in_words(report) == "at batch size 2, chunk 2 came out otherwise than at batch size 1"
    assert sweep.best_size(report) is None


def test_a_size_that_changes_its_mind_between_two_rounds_is_found_too() -> None:
    report = swept((2,), rounds=2, recognizer=Broken(slots=2, since=2))  # warm-up and first round are right
    assert report.summary["differences"] == {"2": [2]}
    assert not report.rows[0]["digest_stable"]
    assert "from one round to another" in sweep.in_words(report)


def test_ctrl_c_leaves_the_sizes_measured_so_far() -> None:
    class Interrupted(Noting):
        def transcribe(self, segments: Any, **how: Any) -> Any:
            if len(self.slots) == 4:  # three warm-ups and one size
                raise KeyboardInterrupt
            yield from super().transcribe(segments, **how)

    report = swept((1, 2, 3), rounds=2, recognizer=Interrupted())
    assert report.interrupted
    assert [row["batch_size"] for row in report.rows] == [1]
    assert sweep.best_size(report) is None


# --- the best size --------------------------------------------------------------------------------------------------


def timed(seconds: dict[int, float], **summary: Any) -> Report:
    report = Report("sweep", sweep.COLUMNS)
    report.rows += [{"batch_size": size, "total_inference": took} for size, took in seconds.items()]
    report.summary |= {"identical": True, **summary}
    return report


def test_the_best_size_is_the_smallest_within_two_percent_of_the_fastest() -> None:
    assert sweep.best_size(timed({1: 10.0, 2: 5.09, 4: 5.0, 8: 5.2})) == 2
    assert sweep.best_size(timed({1: 10.0, 2: 5.2, 4: 5.0, 8: 4.99})) == 4
    assert sweep.best_size(timed({8: 5.0, 1: 5.05})) == 1
    assert sweep.best_size(timed({1: 10.0, 2: 5.0}, identical=False)) is None
    assert sweep.best_size(Report("sweep", ())) is None


def test_batched_gets_no_size_that_the_self_check_did_not_pass() -> None:
    took = timed({1: 10.0, 2: 6.0, 3: 5.0, 4: 3.0, 8: 1.0})
    assert sweep.best_size(took, GOOD) == 3
    assert sweep.best_size(took, GOOD, "row") == 4
    assert sweep.best_size(took, Verdict((2,), 1, (0,), {})) is None
    assert sweep.best_size(timed({1: 5.0, 2: 6.0}), GOOD) is None  # one slot is bulk-sync's business


# --- what --apply leaves and who finds it ---------------------------------------------------------------------------


def apply_row(database: Path, size: Any, key: str = "k", decoder: str = "bulk-sync", kind: str = "sweep") -> None:
    db = open_database(database)
    result = {"summary": {"applied": {"key": key, "decoder": decoder, "batch_size": size}}}
    benchmarks.add(
        db, kind=kind, measured_at="2026-12-02T10:00:00.000Z", device=None, model=None, decoder=decoder, slots=None,
        audio_seconds=None, wall_s=None, result=result,
    )  # fmt: skip
    db.close()


def test_the_newest_applied_size_of_each_decoder_is_found(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    assert benchmarks.applied_sizes(path, "k") == {}
    assert not list(tmp_path.iterdir())
    apply_row(path, 4)
    apply_row(path, 3)
    apply_row(path, 7, decoder="batched")
    apply_row(path, 8, key="another machine")
    apply_row(path, 9, kind="knobs")
    assert benchmarks.applied_sizes(path, "k") == {"bulk-sync": 3, "batched": 7}
    assert benchmarks.applied_sizes(path, "unknown") == {}


@pytest.mark.parametrize("size", [0, 65, -1, None, "many", [2]])
def test_a_size_that_was_edited_into_nonsense_is_not_used(tmp_path: Path, size: Any) -> None:
    apply_row(tmp_path / "jobs.db", size)
    assert benchmarks.applied_sizes(tmp_path / "jobs.db", "k") == {}


def test_a_log_that_cannot_be_asked_is_no_reason_to_stop(tmp_path: Path) -> None:
    damaged, older, folder, locked = (tmp_path / name for name in ("damaged", "older", "folder", "locked"))
    damaged.write_bytes(b"not a database at all" * 100)
    with closing(sqlite3.connect(older)) as conn:
        conn.execute("CREATE TABLE jobs (id INTEGER PRIMARY KEY)")
    folder.mkdir()
    apply_row(locked, 3)
    for path in (damaged, older, folder, tmp_path / "no" / "such"):
        assert benchmarks.applied_sizes(path, "k") == {}
    with closing(sqlite3.connect(locked, isolation_level=None)) as holder:
        holder.execute("PRAGMA locking_mode = EXCLUSIVE")
        holder.execute("BEGIN EXCLUSIVE")
        assert benchmarks.applied_sizes(locked, "k") == {}
    assert benchmarks.applied_sizes(locked, "k") == {"bulk-sync": 3}


def test_a_newer_log_still_says_what_it_can(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    apply_row(path, 5)
    with closing(sqlite3.connect(path)) as conn:
        conn.execute("INSERT INTO _sqlite_migrations VALUES (99, 'dropscribe', 'from_the_future', '2027-01-01')")
        conn.commit()
    assert benchmarks.applied_sizes(path, "k") == {"bulk-sync": 5}


def test_auto_uses_the_applied_size_and_a_number_overrides_it(tmp_path: Path) -> None:
    settings = Settings.model_validate({"database": tmp_path / "jobs.db", "decode": BULK})
    assert pipeline.plan_for(settings, quick()) == Plan("bulk-sync", 6)
    apply_row(settings.database, 3, key_of(quick()))
    apply_row(settings.database, 5, "another model")
    assert pipeline.plan_for(settings, quick()) == Plan("bulk-sync", 3)
    assert pipeline.plan_for(settings, quick(), batch_size=2) == Plan("bulk-sync", 2)
    four = Settings.model_validate({"database": settings.database, "decode": {"batch_size": 4, **BULK}})
    assert pipeline.plan_for(four, quick()) == Plan("bulk-sync", 4)


def test_an_applied_size_caps_batched_and_never_lifts_the_self_check(tmp_path: Path) -> None:
    def planned(applied: dict[str, int], exactness: str = "serial") -> Plan:
        return make_plan(
            quick(), decoder="batched", applied=applied, exactness=exactness, cache=tmp_path / "c.json",
            checker=lambda *_a, **_k: GOOD,
        )  # fmt: skip

    assert planned({}).slots == 3
    assert planned({"batched": 2}).slots == 2
    assert planned({"batched": 64}).slots == 3
    assert planned({"batched": 64}, "row").slots == 4
    assert planned({"bulk-sync": 2}).slots == 3


# --- the command ----------------------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a clip and settings whose job log, GPU lock and cache are its own."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(selfcheck, "cache_file", lambda: tmp_path / "selfcheck.json")
    monkeypatch.setattr(running, "load", lambda _name: running.Loaded(quick(), 0.5, {"device": "cpu", "model": "tiny"}))
    soundfile.write(tmp_path / "clip.wav", source("clip003"), RATE)
    (tmp_path / "c.toml").write_text(
        f'database = "{tmp_path}/jobs.db"\nmodel = "bundled"\n[decode]\ndecoder = "bulk-sync"\n', "utf-8"
    )
    return tmp_path


def command(place: Path, *more: str) -> Any:
    fixed = ["--config", str(place / "c.toml"), "--audio", str(place / "clip.wav"), "--chunk-seconds", "1"]
    few = ["--num-chunks", "2", "--batch-sizes", "1,2", "--rounds", "1"]
    return CliRunner().invoke(app, ["bench", "sweep", *fixed, *few, *more])


def test_the_command_prints_stores_and_applies_and_auto_follows(place: Path) -> None:
    done = command(place, "--apply", "--json", "--require-identical-output", "--output", str(place / "o.json"))
    assert done.exit_code == 0, done.output
    printed = json.loads(done.stdout)
    assert printed == json.loads((place / "o.json").read_text("utf-8"))
    applied = printed["summary"]["applied"]
    assert applied == {"key": key_of(quick()), "decoder": "bulk-sync", "batch_size": printed["summary"]["best"]}
    assert applied["batch_size"] in (1, 2)
    assert "undo it by a number for decode.batch_size" in done.stderr
    settings = Settings.model_validate({"database": place / "jobs.db", "decode": BULK})
    assert pipeline.plan_for(settings, quick()).slots == applied["batch_size"]


def test_transcribe_batch_runs_with_the_applied_size(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dropscribe import batch

    monkeypatch.setattr(batch, "load", lambda _name: quick())
    settings = Settings.model_validate({"database": place / "jobs.db", "decode": BULK})
    apply_row(settings.database, 2, key_of(quick()))
    [result] = list(transcribe_batch(settings, [place / "clip.wav"]))
    assert (result.error_kind, result.batch_size) == (None, 2)


def test_without_a_decoder_the_one_is_measured_that_the_settings_come_to(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selfcheck, "verdict_of", lambda *_a, **_k: GOOD)
    config = place / "c.toml"
    for said, decoder, sizes in (("auto", "batched", [1, 2]), ("serial", "serial", [1])):
        config.write_text(config.read_text("utf-8").split("[decode]")[0] + f'[decode]\ndecoder = "{said}"\n', "utf-8")
        done = command(place, "--json", "--apply")
        assert done.exit_code == 0, done.output
        printed = json.loads(done.stdout)
        assert (printed["options"]["decoder"], printed["options"]["batch_sizes"]) == (decoder, sizes)
        assert f"measuring {decoder}, which is what runs here" in done.stderr
        assert [row["batch_size"] for row in printed["rows"]] == sizes
    assert set(benchmarks.applied_sizes(place / "jobs.db", key_of(quick()))) <= {"batched"}, "serial has no best size"


@pytest.mark.parametrize("required", [True, False])
def test_output_that_differs_fails_when_asked_and_warns_otherwise(
    place: Path, monkeypatch: pytest.MonkeyPatch, required: bool
) -> None:
    monkeypatch.setattr(sweep, "Recognizer", lambda _model: Broken(slots=2))
    done = command(place, "--apply", *(["--require-identical-output"] if required else []))
    assert done.exit_code == (1 if required else 0)
    assert "at batch size 2, chunk 2 came out otherwise than at batch size 1" in done.stderr
    assert "nothing is applied: the output is not identical" in done.stderr
    assert benchmarks.applied_sizes(place / "jobs.db", key_of(quick())) == {}


def test_batched_measures_with_the_verdict_of_the_self_check(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selfcheck, "verdict_of", lambda *_a, **_k: GOOD)
    done = command(place, "--decoder", "batched", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["summary"]["identical"] is True
    monkeypatch.setattr(selfcheck, "verdict_of", lambda *_a, **_k: replace(GOOD, failure="with 2 slots it differs"))
    refused = command(place, "--decoder", "batched")
    assert isinstance(refused.exception, ConfigError)
    assert "measure bulk-sync" in str(refused.exception)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--batch-sizes", "0"], "numbers from 1 to 64"),
        (["--batch-sizes", "1,x"], "numbers from 1 to 64"),
        (["--decoder", "fast"], "bulk-sync, batched or serial"),
        (["--decoder", "serial", "--apply"], "no best size"),
    ],
)
def test_wrong_usage_is_refused(place: Path, more: list[str], said: str) -> None:
    done = command(place, *more)
    assert done.exit_code == 2
    assert said in " ".join(done.stderr.replace("│", " ").split())


def test_chunks_longer_than_a_segment_and_audio_that_is_missing_are_refused(place: Path) -> None:
    for more, said in (
        (["--chunk-seconds", "31"], "30 is the most"),
        (["--output", str(place / "no" / "o.json")], "there is no folder"),
        (["--plot", str(place / "o.gif")], "a plot is one of"),
        (["--audio", str(place / "nowhere.wav")], "there is no such file"),
    ):
        done = command(place, *more)
        assert isinstance(done.exception, ConfigError)
        assert said in str(done.exception)
    bare = CliRunner().invoke(app, ["bench", "sweep", "--config", str(place / "c.toml")])
    assert isinstance(bare.exception, ConfigError)
    assert "--audio" in str(bare.exception)
    assert not (place / "jobs.db").exists()


# --- as a process ---------------------------------------------------------------------------------------------------

INTERRUPTS_ITSELF = """
import os, signal
from dropscribe.bench import sweep

measure, calls = sweep._run, 0

def interrupted(*arguments, **how):
    global calls
    calls += 1
    if calls == 4:  # two warm-ups and one size
        os.kill(os.getpid(), signal.SIGINT)
    return measure(*arguments, **how)

sweep._run = interrupted
from dropscribe.cli import main
main()
"""


def test_ctrl_c_ends_the_command_with_130_a_partial_result_and_no_mess(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "clip.wav", source("clip003"), RATE)
    (tmp_path / "c.toml").write_text(f'database = "{tmp_path}/jobs.db"\n', "utf-8")
    temp = tmp_path / "temp"
    temp.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTS_ITSELF, "bench", "sweep", "--model", "bundled", "--json", "--apply",
         "--config", str(tmp_path / "c.toml"), "--audio", str(tmp_path / "clip.wav"), "--chunk-seconds", "1",
         "--num-chunks", "2", "--batch-sizes", "1,2", "--rounds", "2", "--decoder", "bulk-sync"],
        capture_output=True, text=True, timeout=240, check=False, env={**os.environ, "TMPDIR": str(temp)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    assert done.returncode == 130, done.stderr
    printed = json.loads(done.stdout)
    assert printed["interrupted"] is True
    assert [row["batch_size"] for row in printed["rows"]] == [1]
    assert "applied" not in printed["summary"]
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as conn:
        [(kind, interrupted)] = conn.execute("SELECT kind, result ->> '$.interrupted' FROM benchmarks").fetchall()
    assert (kind, interrupted) == ("sweep", 1)
    lock_folder = temp / f"dropscribe-{os.getuid()}"
    assert {path.name for path in temp.iterdir()} == {lock_folder.name}
    with GpuLock("test", waiting_for=lambda holder: pytest.fail(f"still held by {holder}"), folder=lock_folder):
        pass


def test_the_measurements_need_neither_pydantic_nor_typer() -> None:
    code = (
        "import sys\n"
        "for name in ('pydantic', 'pydantic_settings', 'typer', 'structlog', 'sqlite_utils', 'matplotlib', 'av'):\n"
        "    sys.modules[name] = None\n"
        "import dropscribe.bench.sweep, dropscribe.bench.anatomy, dropscribe.bench.report\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
