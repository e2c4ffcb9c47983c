"""Evaluation sets from every layout, and what a run over one says of it."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile

from dropscribe import pipeline
from dropscribe.audio.client import Reader
from dropscribe.bench import evalset, evaluate, running
from dropscribe.bench.report import Report, measured
from dropscribe.errors import ConfigError, OutputUnwritable
from dropscribe.settings import Settings
from real_daemon import MODEL, Place, clips, references

if TYPE_CHECKING:
    from collections.abc import Callable

RATE = 16_000


def tone(seconds: float, pitch: float = 220.0) -> np.ndarray:
    """Float32 [n]."""
    return (0.3 * np.sin(2 * np.pi * pitch * np.arange(int(seconds * RATE)) / RATE)).astype(np.float32)


def put(path: Path, samples: np.ndarray, text: str | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, samples, RATE)
    if text is not None:
        path.with_suffix(".txt").write_text(text, "utf-8")
    return path


def build(source: Path, output: Path, **options: Any) -> tuple[evalset.EvalSet, dict[str, int], list[str]]:
    said: list[str] = []
    options = {"long_seconds": (), **options}
    made, skipped = evalset.build(source, output, Settings(), said.append, **options)
    assert evalset.read(output) == made
    for entry in made.entries:
        content = (output / entry.file).read_bytes()
        assert entry.sha256 == hashlib.sha256(content).hexdigest()
        info = soundfile.info(output / entry.file)
        assert (info.samplerate, info.channels, info.format) == (RATE, 1, "FLAC")
        assert entry.seconds == info.frames / RATE
    assert {path.name for path in output.parent.iterdir() if path.name.endswith(".tmp")} == set()
    return made, skipped, said


# -- layouts -----------------------------------------------------------------------------------------------------------


def test_a_folder_of_audio_with_a_text_beside_each(tmp_path: Path) -> None:
    source = tmp_path / "source"
    put(source / "b c.wav", tone(0.5), "\ufeffTwo  words.\n")
    put(source / "deep" / "日本 'q'\n.flac", tone(0.7), "Three more words")
    put(source / "a.ogg", tone(0.6), "One")
    put(source / "untold.wav", tone(0.5))
    put(source / "empty.wav", tone(0.5), " …\n")
    put(source / "latin.wav", tone(0.5)).with_suffix(".txt").write_bytes(b"caf\xe9")
    put(source / "own.wav", tone(0.5), "made by us").with_suffix(".json").write_text(
        json.dumps({"content_hash": "x", "params_key": "y"}), "utf-8"
    )
    (source / "broken.wav").write_bytes(b"RIFF nothing")
    (source / "broken.txt").write_text("never heard", "utf-8")
    put(source / ".hidden.wav", tone(0.5), "hidden")
    made, skipped, said = build(source, tmp_path / "set")
    assert [(entry.sources, entry.text) for entry in made.entries] == [
        (("a.ogg",), "One"), (("b c.wav",), "Two words."), (("deep/日本 'q'\n.flac",), "Three more words"),
    ]  # fmt: skip
    assert all(entry.kind == "short" and entry.file.isascii() for entry in made.entries)
    assert skipped == {
        "no text beside it": 1, "no words in its text": 1, "the text is not UTF-8": 1,
        "the text beside it is a transcript of dropscribe's own": 1, "cannot be decoded (not_media)": 1,
    }  # fmt: skip
    assert len(said) == 5
    assert any("broken.wav" in line for line in said)


def test_what_a_killed_build_left_is_removed_by_the_next_of_that_name(spoken: Path, tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    left = tmp_path / f".set.{gone.pid}.tmp" / "clips"
    at_work = tmp_path / f".set.{os.getppid()}.tmp"
    other = tmp_path / f".another.{gone.pid}.tmp"
    for folder in (left, at_work, other):
        folder.mkdir(parents=True)
    evalset.build(spoken, tmp_path / "set", Settings(), lambda _text: None, long_seconds=())
    assert not left.parent.exists()
    assert at_work.exists()
    assert other.exists()


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    source = tmp_path / "source"
    put(source / "a.wav", tone(0.5))
    odd = os.fsencode(source) + b"/caf\xe9.wav"
    try:
        os.rename(source / "a.wav", odd)  # noqa: PTH104 - bytes
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    Path(os.fsdecode(odd)).with_suffix(".txt").write_text("coffee", "utf-8")
    made, _, _ = build(source, tmp_path / "set")
    assert made.entries[0].sources == ("caf\udce9.wav",)
    assert made.entries[0].file == "clips/00000-caf.flac"


@pytest.mark.parametrize(("name", "delimiter", "columns"), [
    ("transcripts.tsv", "\t", ("file", "voice", "text")), ("transcripts.csv", ",", ("file", "voice", "text")),
    ("metadata.csv", ",", ("file_name", "voice", "transcription")),
])  # fmt: skip
def test_a_folder_with_a_table(tmp_path: Path, name: str, delimiter: str, columns: tuple[str, ...]) -> None:
    source = tmp_path / "source"
    for clip in ("one.wav", "sub/two.wav"):
        put(source / clip, tone(0.5), "the table goes before this")
    with (source / name).open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, delimiter=delimiter, quoting=csv.QUOTE_MINIMAL)
        rows.writerow(columns)
        second = 'It\'s "two", says she' if delimiter == "," else "It is two"
        rows.writerows([("one.wav", "x", "One."), ("sub/two.wav", "x", second), ("gone.wav", "x", "Gone"),
                        ("one.wav", "x", "Again"), ("sub/two.wav",)])  # fmt: skip
    made, skipped, _ = build(source, tmp_path / "set")
    assert [(entry.sources[0], entry.text) for entry in made.entries] == [("one.wav", "One."), ("sub/two.wav", second)]
    assert skipped == {"the table names a file that is not there": 1, "named twice in the table": 2}


def test_a_librispeech_tree(tmp_path: Path) -> None:
    source = tmp_path / "LibriSpeech"
    for speaker, chapter in ((84, 121123), (1272, 5)):
        folder = source / "dev-clean" / str(speaker) / str(chapter)
        for number in range(2):
            put(folder / f"{speaker}-{chapter}-{number:04}.flac", tone(0.5, 200 + speaker + number))
        (folder / f"{speaker}-{chapter}.trans.txt").write_text(
            f"{speaker}-{chapter}-0000 GO DO YOU HEAR\n{speaker}-{chapter}-0001 BUT IN LESS THAN\n"
            f"{speaker}-{chapter}-0002 NOT THERE\n",
            "utf-8",
        )
    made, skipped, _ = build(source, tmp_path / "set")
    assert [entry.sources[0] for entry in made.entries] == sorted(entry.sources[0] for entry in made.entries)
    assert len(made.entries) == 4
    assert made.entries[-1].about == {"speaker": "84", "chapter": "121123"}
    assert made.entries[-1].text == "BUT IN LESS THAN"
    assert skipped == {"no audio of that name": 2}


@pytest.mark.parametrize("column", ["text", "sentence", "transcription"])
def test_parquet_as_hugging_face_lays_it_out(tmp_path: Path, column: str) -> None:
    source = tmp_path / "data"
    beside = put(source / "beside.flac", tone(0.8))
    content = put(tmp_path / "in.wav", tone(0.5)).read_bytes()
    audio = [
        {"bytes": content, "path": "in.wav"}, {"bytes": None, "path": beside.name}, {"bytes": b"noise", "path": None},
        {"bytes": None, "path": "gone.wav"}, {"bytes": content, "path": "in.wav"},
    ]  # fmt: skip
    audio_type = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table({"audio": pa.array(audio, audio_type), column: ["One.", "Two.", "Three.", "Four.", None]})
    pq.write_table(table, source / "test-00000-of-00001.parquet", row_group_size=2)
    made, skipped, _ = build(source / "test-00000-of-00001.parquet", tmp_path / "set")
    assert [(entry.text, entry.seconds) for entry in made.entries] == [("One.", 0.5), ("Two.", 0.8)]
    assert made.entries[0].sources == ("test-00000-of-00001.parquet:000000",)
    assert skipped == {
        "no words in its text": 1, "cannot be decoded (not_media)": 1, "cannot be decoded (source_missing)": 1,
    }  # fmt: skip
    beside.unlink()
    whole, _, _ = build(source, tmp_path / "whole")  # a folder of nothing but parquet
    assert [entry.text for entry in whole.entries] == ["One."]


def test_what_is_no_source_is_said_and_leaves_nothing(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    (tmp_path / "a.parquet").write_bytes(b"PAR1 no more")
    (tmp_path / "a.txt").write_text("text", "utf-8")
    pq.write_table(pa.table({"audio": [b"x"], "words": ["y"]}), tmp_path / "b.parquet")
    put(tmp_path / "broken" / "x.wav", tone(0.1), "words").write_bytes(b"no audio")
    for source, why in [
        ("gone", "is not there"), ("empty", "no recording with a text"), ("a.txt", "neither a folder nor a parquet"),
        ("a.parquet", "cannot be read as parquet"), ("b.parquet", "no column text"), ("broken", "could be decoded"),
    ]:  # fmt: skip
        with pytest.raises(ConfigError, match=why):
            build(tmp_path / source, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".*"))


def test_a_folder_that_is_there_is_never_overwritten(tmp_path: Path) -> None:
    put(tmp_path / "source" / "a.wav", tone(0.5), "one")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    (tmp_path / "made").mkdir()
    with pytest.raises(ConfigError, match="there already"):
        build(tmp_path / "source", tmp_path / "full")
    with pytest.raises(OutputUnwritable):
        build(tmp_path / "source", tmp_path / "source" / "a.wav" / "out")
    build(tmp_path / "source", tmp_path / "made")


# -- sets --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def tones(tmp_path: Path) -> Path:
    for at in range(12):
        put(tmp_path / "tones" / f"{at:02}.wav", tone(0.4 + at / 10, 100 + 10 * at), f"number {at}")
    return tmp_path / "tones"


def test_the_same_source_and_seed_give_the_same_set(tones: Path, tmp_path: Path) -> None:
    options = {"limit": 6, "long_seconds": (3.0, 5.0), "long_files": 2}
    made = [build(tones, tmp_path / f"set{at}", seed=seed, **options)[0] for at, seed in enumerate((1, 1, 2))]
    trees = [
        {path.relative_to(one.folder): path.read_bytes() for path in one.folder.rglob("*") if path.is_file()}
        for one in made
    ]
    assert trees[0] == trees[1]
    assert made[0].digest == made[1].digest != made[2].digest
    assert sum(entry.kind == "short" for entry in made[0].entries) == 6


def test_long_files_hold_their_clips_with_silence_between_and_the_texts_joined(tones: Path, tmp_path: Path) -> None:
    made, _, _ = build(tones, tmp_path / "set", long_seconds=(4.0,))
    short = {entry.sources[0]: entry for entry in made.entries if entry.kind == "short"}
    long = [entry for entry in made.entries if entry.kind == "long"]
    assert len(long) >= 2
    used = [name for entry in long for name in entry.sources]
    assert len(used) == len(set(used)), "each clip is in one file of a length at most"
    for entry in long:
        assert entry.group == "4 s"
        assert 0.8 * 4 <= entry.seconds <= 4
        assert entry.text == " ".join(short[name].text for name in entry.sources)
        audio, _ = soundfile.read(made.folder / entry.file, dtype="int16")
        at = 0
        for number, name in enumerate(entry.sources):
            if number:
                assert not audio[at : at + 4800].any()
                at += 4800
            clip, _ = soundfile.read(made.folder / short[name].file, dtype="int16")
            assert np.array_equal(audio[at : at + len(clip)], clip)
            at += len(clip)
        assert at == len(audio)


def test_too_little_audio_for_a_long_file_comes_again_and_that_is_said(tmp_path: Path) -> None:
    put(tmp_path / "s" / "a.wav", tone(1), "one")
    put(tmp_path / "s" / "b.wav", tone(1.5), "two")
    made, _, said = build(tmp_path / "s", tmp_path / "set", long_seconds=(10.0, 1.2, 0.5))
    assert [(entry.group, len(entry.sources)) for entry in made.entries[2:]] == [("10 s", 6), ("1.2 s", 1)]
    assert [line for line in said if "more than once" in line]
    assert [line for line in said if "no clip is short enough for files of 0.5 s" in line]


def test_what_is_no_set_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no evaluation set"):
        evalset.read(tmp_path)
    line = {"file": "clips/a.flac", "text": "a", "seconds": 1.0, "kind": "short", "sources": ["a"], "sha256": "0"}
    for content, why in [("", "is empty"), ("{}\n", "line 1"), ("no json\n", "line 1"),
                         (json.dumps({**line, "file": "../a.flac"}), "line 1"),
                         (json.dumps({**line, "seconds": 0}), "line 1"),
                         (json.dumps({**line, "seconds": "7"}), "line 1"),
                         (json.dumps({**line, "target_seconds": "x"}), "line 1"),
                         (json.dumps({**line, "more": 1}), "line 1")]:  # fmt: skip
        (tmp_path / "set.jsonl").write_text(content, "utf-8")
        with pytest.raises(ConfigError, match=why):
            evalset.read(tmp_path)


def test_the_bundled_set_is_made_of_the_packages_own_clips(tmp_path: Path) -> None:
    made = evalset.bundled(tmp_path, Settings(), long_seconds=(20.0,))
    assert [entry.group for entry in made.entries] == ["short"] * 5 + ["20 s"]
    assert "office move" in made.entries[0].text


# -- runs --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def held() -> running.Loaded:
    return running.load(str(MODEL))


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three clips that the bundled model gets right, as a source."""
    source = tmp_path_factory.mktemp("spoken")
    for path in clips(1, 2, 3):
        (source / path.name).write_bytes(path.read_bytes())
        (source / f"{path.stem}.txt").write_text(references()[path.stem], "utf-8")
    return source


def go(
    chosen: evalset.EvalSet, held: running.Loaded, *, on_progress: Callable[[str, float], None] | None = None
) -> Report:
    settings = Settings(model=str(MODEL), decode={"decoder": "serial"})
    report = Report("eval", evaluate.COLUMNS, machine=held.machine)
    with Reader(settings.reader) as reader:
        parts = evaluate.evaluate(
            report, chosen, settings=settings, model=held.model, plan=pipeline.plan_for(settings, held.model),
            reader=reader, on_progress=on_progress,
        )  # fmt: skip
        return measured(report, parts, lambda _text: None)


def altered(made: evalset.EvalSet, texts: dict[str, str]) -> evalset.EvalSet:
    """The same audio under other references, on disk too."""
    path = made.folder / "set.jsonl"
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    for line in lines:
        line["text"] = texts.get(line["sources"][0], line["text"])
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return evalset.read(made.folder)


def test_known_errors_are_counted_as_by_hand(spoken: Path, held: running.Loaded, tmp_path: Path) -> None:
    made, _, _ = build(spoken, tmp_path / "set")
    heard = {"clip001.flac": references()["clip001"], "clip002.flac": references()["clip002"],
             "clip003.flac": references()["clip003"]}  # fmt: skip
    words = {name: text.split() for name, text in heard.items()}
    lengths = {name: len(text) for name, text in words.items()}
    # a reference with a word that was never said is a deletion, one without a word that was is an insertion
    wrong = {
        "clip001.flac": " ".join(["zzz", *words["clip001.flac"][1:]]),  # 1 substitution
        "clip002.flac": " ".join([*words["clip002.flac"], "qqq", "xx"]),  # 2 deletions
        "clip003.flac": " ".join(words["clip003.flac"][:-1]),  # 1 insertion
    }
    report = go(altered(made, wrong), held)
    rows = {Path(row["file"]).stem[6:]: row for row in report.summary["files"]}
    assert {name: (row["substitutions"], row["deletions"], row["insertions"]) for name, row in rows.items()} == {
        "clip001": (1, 0, 0), "clip002": (0, 2, 0), "clip003": (0, 0, 1),
    }  # fmt: skip
    n1, n2, n3 = lengths["clip001.flac"], lengths["clip002.flac"] + 2, lengths["clip003.flac"] - 1
    [row] = report.rows
    assert (row["kind"], row["files"]) == ("short", 3)
    assert row["wer"] == pytest.approx(4 / (n1 + n2 + n3))
    assert row["wer_mean"] == pytest.approx((1 / n1 + 2 / n2 + 1 / n3) / 3)
    assert row["wer_low"] <= row["wer"] <= row["wer_high"]
    # " qqq xx" is seven characters that nobody said; " " and the last word without its full stop were said
    inserted = len(words["clip003.flac"][-1].rstrip(".?!")) + 1
    assert rows["clip002"]["character_edits"][:3] == (0, 7, 0)
    assert rows["clip003"]["character_edits"][:3] == (0, 0, inserted)
    assert rows["clip001"]["rtf"] > 0
    assert report.summary["x_realtime"] > 0
    assert report.summary["files_failed"] == 0


def test_audio_that_is_not_the_sets_counts_as_failed(spoken: Path, held: running.Loaded, tmp_path: Path) -> None:
    made, _, _ = build(spoken, tmp_path / "set")
    first, second, third = (made.folder / entry.file for entry in made.entries)
    first.write_bytes(second.read_bytes())
    third.unlink()
    report = go(made, held)
    assert (report.summary["files_done"], report.summary["files_failed"]) == (1, 2)
    assert "not the audio" in report.summary["failed"][made.entries[0].file]
    assert "is not there" in report.summary["failed"][made.entries[2].file]
    assert report.rows[0]["files"] == 1


def test_ctrl_c_keeps_the_files_that_are_whole(spoken: Path, held: running.Loaded, tmp_path: Path) -> None:
    made, _, _ = build(spoken, tmp_path / "set")

    def interrupt(name: str, _seconds: float) -> None:
        if name == made.entries[2].file:
            raise KeyboardInterrupt

    report = go(made, held, on_progress=interrupt)
    assert report.interrupted
    # whether the third was known to be at its end already is a matter of threads
    assert [row["file"] for row in report.summary["files"]][:2] == [entry.file for entry in made.entries[:2]]
    assert report.rows[0]["wer"] == 0.0
    assert report.summary["wall_s"] > sum(row["time_s"] for row in report.summary["files"]) / 2, "the cut batch counts"


def a_run(made: str, errors: list[int], kind: str = "short") -> dict[str, Any]:
    files = [
        {"file": f"{at}", "kind": kind, "time_s": 1.0, "wer": count / 20, "cer": 0.0,
         "word_edits": [count, 0, 0, 20], "character_edits": [0, 0, 0, 90]}
        for at, count in enumerate(errors)
    ]  # fmt: skip
    return {"kind": "eval", "measured_at": "then", "machine": {}, "rows": [],
            "summary": {"set": made, "scoring": evaluate.SCORING, "files": files}}  # fmt: skip


def test_two_runs_are_compared_file_by_file() -> None:
    before = a_run("s", [0, 1, 2, 3, 4, 5, 6, 7])
    for errors, verdict in [
        ([1, 2, 3, 4, 5, 6, 7, 8], "worse"), ([0, 0, 1, 2, 3, 4, 5, 6], "better"),
        ([0, 1, 2, 3, 4, 5, 6, 7], "no difference found"), ([1, 0, 2, 4, 3, 5, 6, 7], "no difference found"),
        ([1, 2], "too few files to say"),
    ]:  # fmt: skip
        report = Report("eval", evaluate.COLUMNS, summary=a_run("s", errors)["summary"])
        evaluate.compare(before, report)
        found = report.summary["compared"]["kinds"]["short"]
        assert found["wer"]["verdict"] == verdict
        assert found["files"] == len(errors)
        assert found["time_ratio"] == 1.0
    changed = {row["file"]: row["wer"] for row in report.summary["compared_files"]}
    assert changed == {"0": pytest.approx(0.05), "1": pytest.approx(0.05)}


def test_runs_over_other_sets_and_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "earlier.json"
    path.write_text(json.dumps(a_run("one", [0, 1])), "utf-8")
    before = evaluate.earlier(path)
    evaluate.check_same_set(before, "one")
    with pytest.raises(ConfigError, match="another set"):
        evaluate.check_same_set(before, "two")
    whole = a_run("one", [0, 1])
    undated = {name: value for name, value in whole.items() if name != "measured_at"}
    strange = json.loads(json.dumps(whole))
    strange["summary"]["files"][0]["word_edits"] = ["a", "b", "c", "d"]
    for content in (
        "no json",
        "[]",
        json.dumps({"kind": "sweep", "summary": {}}),
        json.dumps(undated),
        json.dumps(strange),
    ):
        path.write_text(content, "utf-8")
        with pytest.raises(ConfigError, match="is no run"):
            evaluate.earlier(path)
    with pytest.raises(ConfigError, match="cannot read"):
        evaluate.earlier(tmp_path / "gone.json")


# -- commands ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_commands_from_source_to_comparison(spoken: Path, tmp_path: Path) -> None:
    with Place(tmp_path) as place:
        chosen, result = str(tmp_path / "set"), tmp_path / "run.json"
        made = place.command(
            "bench", "eval", "build", str(spoken), "--output", chosen, "--long", "0", "--limit", "2", "--json"
        )
        assert made.returncode == 0, made.stderr
        assert json.loads(made.stdout)["kinds"][0]["files"] == 2
        ran = place.command("bench", "eval", "run", chosen, "--model", "bundled", "--json", "--output", str(result))
        assert ran.returncode == 0, ran.stderr
        document = json.loads(ran.stdout)
        assert document == json.loads(result.read_text("utf-8"))
        assert document["summary"]["set"] == json.loads(made.stdout)["set"]
        assert document["rows"][0]["wer"] == 0.0
        kept = place.rows("SELECT kind, decoder, audio_seconds FROM benchmarks")
        assert [(row["kind"], row["decoder"]) for row in kept] == [("eval", "batched")]
        again = place.command("bench", "eval", "run", chosen, "--model", "bundled", "--files", "--compare", str(result))
        assert again.returncode == 0, again.stderr
        assert "short: wer now − then: +0.0000" in again.stdout
        assert "clips/00000-clip00" in again.stdout
        other = place.command("bench", "eval", "run", "--model", "bundled", "--compare", str(result))
        assert other.returncode == 2
        assert "another set" in other.stderr
        wrong = place.command("bench", "knobs", "--mode", "ab", "--vary", "decode.batch_size=1")
        assert wrong.returncode == 2
