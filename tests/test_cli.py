"""The command line: what goes where, and with which exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from dropscribe import __version__
from dropscribe.settings import Settings

# What the commands need of dropscribe.batch, without a model.
STAND_IN = """
import hashlib, json, sys, types
from dataclasses import dataclass, field
from dropscribe.transcripts.formats import Rendered

@dataclass
class FileResult:
    file: str
    text: str | None = "Hello there."
    language: str | None = "English"
    time: float | None = 0.5
    rtf: float | None = 0.25
    duration: float | None = 2.0
    batch_time: float | None = 1.25
    batch_rtf: float | None = 0.3
    batch_size: int | None = 3
    segments: list = field(default_factory=list)
    error_kind: str | None = None
    error: str | None = None
    tokens: list = field(default_factory=list)
    document: object = None

    def rendered(self, formats=("txt", "json")):
        txt = Rendered("txt", (self.text + "\\n").encode())
        content_hash = hashlib.sha256(self.file.encode()).hexdigest()
        content = {"outputs": {"txt": {"sha256": txt.sha256}}, "content_hash": content_hash}
        return [txt, Rendered("json", json.dumps(content).encode())]

def transcribe_batch(settings, paths, **options):
    sys.stderr.write(f"{settings.decode.batch_size} {settings.decode.decoder} {settings.model}\\n")
    for path in paths:
        if "bad" in str(path):
            yield FileResult(str(path), text=None, error_kind="not_media", error="no audio in it")
        else:
            yield FileResult(str(path))

module = types.ModuleType("dropscribe.batch")
module.transcribe_batch = transcribe_batch
sys.modules["dropscribe.batch"] = module
from dropscribe.cli import main
main()
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in list(os.environ):
        if name.startswith("DROPSCRIBE_"):
            monkeypatch.delenv(name)
    for name, value in {"HOME": "", "XDG_CONFIG_HOME": ".config", "XDG_DATA_HOME": ".local/share"}.items():
        monkeypatch.setenv(name, str(tmp_path / value))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def dropscribe(*args: str) -> subprocess.CompletedProcess[str]:
    return call(sys.executable, "-m", "dropscribe", *args)


def batch(*args: str) -> subprocess.CompletedProcess[str]:
    return call(sys.executable, "-c", STAND_IN, "transcribe-batch", *args)


def test_version_and_help_go_to_stdout() -> None:
    assert dropscribe("--version").stdout == f"dropscribe {__version__}\n"
    for command in (
        [],
        ["run"],
        ["transcribe-batch"],
        ["jobs", "list"],
        ["jobs", "show"],
        ["config", "init"],
        ["demo"],
    ):
        done = dropscribe(*command, "--help")
        assert done.returncode == 0
        assert "Usage" in done.stdout


@pytest.mark.parametrize("args", [["frobnicate"], ["run", "--frob"], ["transcribe-batch"], ["jobs", "show"]])
def test_wrong_usage_is_status_2_and_says_so_on_stderr(args: list[str]) -> None:
    done = dropscribe(*args)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Usage" in done.stderr


def test_a_wrong_setting_is_status_2_one_line_and_no_traceback(home: Path) -> None:
    (home / "c.toml").write_text("[decode]\nbatch_sise = 2\n")
    for command in (["run"], ["jobs", "list"], ["config", "show"], ["transcribe-batch", "x.wav"]):
        done = dropscribe(*command, "--config", "c.toml")
        assert done.returncode == 2
        expected = "dropscribe: c.toml: `decode.batch_sise` is not a setting; did you mean `batch_size`?\n"
        assert (done.stdout, done.stderr) == ("", expected)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize(
    "args", [["--version"], ["--help"], ["config", "show"], ["config", "schema"], ["jobs", "list", "--json"]]
)
def test_a_full_disk_under_stdout_is_one_line_and_status_1(args: list[str], buffered: bool) -> None:
    env = {**os.environ, "PYTHONUNBUFFERED": "" if buffered else "1"}
    command = [sys.executable, "-m", "dropscribe", *args]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=env, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "dropscribe: cannot write the output: No space left on device"
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_a_batch_whose_results_cannot_be_written_says_so(home: Path) -> None:
    (home / "a.wav").write_bytes(b"x")
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run([sys.executable, "-c", STAND_IN, "transcribe-batch", "a.wav"], stdout=full,
                              stderr=subprocess.PIPE, text=True, check=False)  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.splitlines()[1:] == ["dropscribe: cannot write the output: No space left on device"]


def test_streams_that_are_closed_or_full_cost_what_would_go_there_only() -> None:
    closed = call("sh", "-c", f"'{sys.executable}' -m dropscribe --version >&-")
    assert (closed.returncode, closed.stderr) == (0, "")
    closed = call("sh", "-c", f"'{sys.executable}' -m dropscribe config show <&- 2>&-")
    assert closed.returncode == 0
    assert tomllib.loads(closed.stdout)["model"]
    if Path("/dev/full").exists():
        full = call("sh", "-c", f"'{sys.executable}' -m dropscribe config show 2>/dev/full")
        assert full.returncode == 0
        assert tomllib.loads(full.stdout)["model"]


def test_run_without_a_folder_says_how_to_name_one() -> None:
    done = dropscribe("run")
    assert done.returncode == 2
    assert "dropscribe config init" in done.stderr


def test_config_init_writes_the_manual_once(home: Path) -> None:
    done = dropscribe("config", "init")
    path = Path(done.stdout.strip())
    assert (done.returncode, f"{path}\n") == (0, dropscribe("config", "path").stdout)
    assert home in path.parents
    written = Settings.model_validate(tomllib.loads(path.read_text()))
    assert written.watch[0].path == home / "Transcribe"
    again = dropscribe("config", "init")
    assert again.returncode == 2
    assert "--force" in again.stderr
    assert dropscribe("config", "init", "--force").returncode == 0


def test_config_show_gives_back_what_is_in_force(home: Path) -> None:
    (home / "c.toml").write_text('[[watch]]\npath = "/in"\n')
    shown = dropscribe("config", "show", "--config", "c.toml", "--model", "some/model")
    settings = Settings.model_validate(tomllib.loads(shown.stdout))
    assert (settings.model, str(settings.watch[0].path)) == ("some/model", "/in")
    assert "c.toml" in shown.stderr
    as_json = dropscribe("config", "show", "--config", "c.toml", "--model", "some/model", "--json")
    assert Settings.model_validate_json(as_json.stdout) == settings


def test_the_config_file_may_come_from_the_environment(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "c.toml").write_text('model = "from/environment"\n')
    monkeypatch.setenv("DROPSCRIBE_CONFIG", str(home / "c.toml"))
    assert 'model = "from/environment"' in dropscribe("config", "show").stdout


def test_a_batch_prints_a_row_a_file_with_what_it_cost() -> None:
    done = batch("a.wav", "b.wav", "--batch-size", "3", "--decoder", "serial", "--model", "some/model")
    assert done.returncode == 0
    assert done.stderr == "3 serial some/model\n"
    assert done.stdout.startswith("a.wav\n    Hello there.\n\nb.wav\n    Hello there.\n\n")
    header, *rows = done.stdout.splitlines()[6:]
    for column in ("file", "audio", "time", "RTF", "batch time", "batch RTF", "batch size"):
        assert column in header
    assert rows[0].split() == ["a.wav", "2.00", "s", "0.50", "s", "0.250", "1.25", "s", "0.300", "3"]


def test_jsonl_is_one_object_a_line_and_nothing_else() -> None:
    done = batch("a.wav", "bad.wav", "--jsonl")
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert [record["file"] for record in records] == ["a.wav", "bad.wav"]
    fields = {"file", "text", "language", "time", "rtf", "duration", "batch_time", "batch_rtf", "batch_size"}
    assert all(fields <= set(record) for record in records)


def test_a_failed_file_is_status_1_and_named_while_the_rest_goes_on() -> None:
    done = batch("bad.wav", "good.wav")
    assert done.returncode == 1
    assert "bad.wav: no audio in it (not_media)" in done.stderr
    assert "Hello there." in done.stdout


def test_output_dir_gets_a_pair_for_each_good_file(home: Path) -> None:
    batch("one/a.wav", "two/a.wav", "bad.wav", "--output-dir", "out", "--jsonl")
    assert sorted(path.name for path in (home / "out").iterdir()) == ["a.json", "a.txt", "a.wav.json", "a.wav.txt"]


def test_a_folder_gives_what_a_watched_one_would(home: Path) -> None:
    for name in (
        "in/b.wav",
        "in/a.mp4",
        "in/notes.txt",
        "in/._a.wav",
        "in/c.wav.part",
        "in/x.wav/d.flac",
        "in/.git/e.wav",
    ):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("")
    done = batch("in", "in/b.wav", "in/notes.txt", "--jsonl")
    files = [json.loads(line)["file"] for line in done.stdout.splitlines()]
    assert files == ["in/a.mp4", "in/b.wav", "in/x.wav/d.flac", "in/notes.txt"]
    (home / "empty").mkdir()
    nothing = batch("empty")
    assert (nothing.returncode, nothing.stdout) == (0, "")
    assert "no audio or video file" in nothing.stderr


def test_a_batch_size_out_of_range_is_wrong_usage() -> None:
    for wrong in (["--batch-size", "0"], ["--decoder", "magic"]):
        done = batch("a.wav", *wrong)
        assert (done.returncode, done.stdout) == (2, "")


def test_progress_on_a_terminal_leaves_redirected_results_alone(home: Path) -> None:
    terminal, theirs = os.openpty()
    command = [sys.executable, "-c", STAND_IN, "transcribe-batch", "a.wav", "--jsonl"]
    with (home / "out.jsonl").open("wb") as out:
        done = subprocess.run(command, stdout=out, stderr=theirs, check=False, timeout=60)
    os.close(theirs)
    said = os.read(terminal, 100_000).decode()
    os.close(terminal)
    assert done.returncode == 0
    assert [json.loads(line)["file"] for line in (home / "out.jsonl").read_text().splitlines()] == ["a.wav"]
    assert "loading the model" in said
    assert "Hello there" not in said


def test_names_that_are_not_utf8_come_out_as_valid_json(home: Path) -> None:
    name = os.fsdecode(b"caf\xe9.wav")
    done = subprocess.run(
        [sys.executable, "-c", STAND_IN, "transcribe-batch", name, "--jsonl"],
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert json.loads(done.stdout)["file"] == name


def test_a_reader_that_has_seen_enough_ends_a_batch_without_a_traceback() -> None:
    files = [f"{number}.wav" for number in range(300)]
    command = [sys.executable, "-c", STAND_IN, "transcribe-batch", *files, "--jsonl"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert "Traceback" not in process.stderr.read()
    assert process.returncode == 1
