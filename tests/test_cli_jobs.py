"""The commands on the job log: they answer at once, load nothing that transcribes, end quietly in a pipe, and those
that write change what they say and nothing else."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from dropscribe.cli import main
from dropscribe.jobs.database import open_database

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Call = Callable[..., subprocess.CompletedProcess[str]]

HEAVY = {
    "mlx",
    "mlx_audio",
    "transformers",
    "scipy",
    "av",
    "soundfile",
    "numpy",
    "sqlite_utils",
    "watchdog",
    "huggingface_hub",
}
WHEN = "2026-01-02T03:04:05.000Z"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "dropscribe.toml"
    path.write_text(f'database = "{tmp_path / "jobs.db"}"\n')
    return path


@pytest.fixture
def dropscribe(config: Path, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    env = {key: value for key, value in os.environ.items() if not key.startswith("DROPSCRIBE_")}

    def call(*args: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "dropscribe", *args, "--config", str(config)]
        return subprocess.run(command, capture_output=True, text=True, env=env, cwd=tmp_path, check=False, timeout=60)

    return call


@pytest.fixture
def dropscribe_here(config: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Call]:
    """The same in this process: a tenth of the time."""
    for name in [name for name in os.environ if name.startswith("DROPSCRIBE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "1000")
    before = signal.getsignal(signal.SIGPIPE)

    def call(*args: str) -> subprocess.CompletedProcess[str]:
        out, err = io.StringIO(), io.StringIO()
        monkeypatch.setattr(sys, "argv", ["dropscribe", *args, "--config", str(config)])
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as left:
            main()
        return subprocess.CompletedProcess(args, left.value.code or 0, out.getvalue(), err.getvalue())

    yield call
    signal.signal(signal.SIGPIPE, before)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Three jobs: one done with a segment and timings, one failed, one queued."""
    path = tmp_path / "jobs.db"
    db = open_database(path, checkpoints=True)
    db.execute("INSERT INTO roots (id, path) VALUES (1, '/in')")
    db.execute(
        "INSERT INTO batches (id, claim_id, started_at, finished_at, outcome, decoder, slots, model, device, rows, "
        "audio_seconds, wall_s) VALUES (1, 'c', ?, ?, 'done', 'bulk-sync', 6, 'tiny', 'cpu', 1, 2.0, 0.5)",
        (WHEN, WHEN),
    )
    insert = (
        "INSERT INTO jobs (root_id, path, path_raw, size_bytes, mtime_ns, state, queued_at, created_at, finished_at, "
        "audio_seconds, language, error_kind, error, batch_id, params_key, text) "
        "VALUES (1, ?, ?, 10, 1, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'p', ?)"
    )
    rows = [
        ("/in/good.wav", "done", WHEN, 2.0, "English", None, None, 1, "Hello there."),
        ("/in/bad.wav", "failed", WHEN, None, None, "not_media", "no audio in it", None, None),
        ("/in/new\\x0a.wav", "queued", None, None, None, None, None, None, None),
    ]
    for name, state, finished, audio, language, kind, error, batch, text in rows:
        values = (name, name.encode(), state, WHEN, WHEN, finished, audio, language, kind, error, batch, text)
        db.execute(insert, values)
    db.execute(
        "INSERT INTO segments (job_id, params_key, start_ms, end_ms, text, language, tokens, finish_reason) "
        "VALUES (1, 'p', 0, 2000, 'Hello there.', 'English', 4, 'eos')"
    )
    db.execute(
        "INSERT INTO timings (job_id, batch_id, decode_s, duration, time, rtf) VALUES (1, 1, 0.2, 2.0, 0.4, 0.2)"
    )
    db.close()
    return path


def test_before_there_is_a_log_it_says_so_kindly(dropscribe: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = dropscribe("jobs", "list")
    assert (done.returncode, done.stdout) == (0, "")
    assert "no job log yet" in done.stderr
    assert "dropscribe run" in done.stderr
    assert json.loads(dropscribe("jobs", "list", "--json").stdout) == []


@pytest.mark.usefixtures("log")
def test_the_list_is_newest_first_and_nothing_is_cut_off_in_a_pipe(
    dropscribe: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    lines = dropscribe("jobs", "list").stdout.splitlines()
    assert lines[0].split() == ["id", "state", "since", "audio", "file", "note"]
    assert [line.split()[1] for line in lines[1:]] == ["queued", "failed", "done"]
    assert "not_media: no audio in it" in lines[2]
    assert "/in/good.wav" in lines[3]


@pytest.mark.usefixtures("log")
def test_a_bare_file_name_will_do_where_only_one_file_has_it(
    dropscribe: Call, dropscribe_here: Call, tmp_path: Path
) -> None:
    assert json.loads(dropscribe_here("jobs", "show", "good.wav", "--json").stdout)["id"] == 1
    assert dropscribe("export", "good.wav").stdout == "Hello there.\n"
    assert json.loads(dropscribe_here("jobs", "show", "new\\x0a.wav", "--json").stdout)["id"] == 3
    for name in ("ood.wav", "in", "wav", "%.wav", ""):  # a name is whole, and no pattern
        missed = dropscribe_here("jobs", "show", name)
        assert (missed.returncode, missed.stdout) == (1, "")
        assert "no job" in missed.stderr
    db = open_database(tmp_path / "jobs.db", checkpoints=True)
    db.execute(
        "INSERT INTO jobs (root_id, path, path_raw, size_bytes, mtime_ns, state, queued_at, created_at) "
        "VALUES (1, '/in/b/good.wav', ?, 1, 1, 'queued', ?, ?)",
        (b"/in/b/good.wav", WHEN, WHEN),
    )
    db.close()
    for command in (["jobs", "show"], ["jobs", "cancel"], ["export"]):
        several = dropscribe_here(*command, "good.wav")
        assert (several.returncode, several.stdout) == (1, "")
        assert "2 files are called good.wav" in several.stderr
        assert "4  /in/b/good.wav" in several.stderr
        assert "1  /in/good.wav" in several.stderr


@pytest.mark.usefixtures("log")
def test_a_cancelled_rerun_is_said_to_be_done_as_before(dropscribe_here: Call) -> None:
    assert dropscribe_here("jobs", "retry", "1").returncode == 0
    done = dropscribe_here("jobs", "cancel", "1", "3")
    assert done.returncode == 0
    assert "cancelled: 1  /in/good.wav (done as before, with its earlier transcript)\n" in done.stdout
    assert "cancelled: 3  /in/new\\x0a.wav\n" in done.stdout


@pytest.mark.usefixtures("log")
def test_states_and_limit_narrow_the_list(dropscribe: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = dropscribe("jobs", "list", "--state", "done", "--state", "failed", "--jsonl")
    assert [json.loads(line)["state"] for line in done.stdout.splitlines()] == ["failed", "done"]
    assert len(json.loads(dropscribe("jobs", "list", "-n", "1", "--json").stdout)) == 1
    wrong = dropscribe("jobs", "list", "--state", "doen")
    assert wrong.returncode == 2
    assert "quarantined" in wrong.stderr


@pytest.mark.usefixtures("log")
def test_show_gives_everything_by_number_and_by_path(
    dropscribe: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    shown = json.loads(dropscribe("jobs", "show", "1", "--json").stdout)
    assert (shown["state"], shown["text"], shown["warnings"]) == ("done", "Hello there.", [])
    assert [segment["finish_reason"] for segment in shown["segments"]] == ["eos"]
    assert shown["timings"][0]["batch_size"] == 6
    assert shown["timings"][0]["batch_rtf"] == 0.25
    assert json.loads(dropscribe("jobs", "show", "/in/good.wav", "--json").stdout) == shown
    people = dropscribe("jobs", "show", "1").stdout
    assert "/in/good.wav" in people
    assert people.rstrip().endswith("Hello there.")


@pytest.mark.usefixtures("log")
def test_show_of_what_is_not_there_fails_in_one_line(
    dropscribe: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = dropscribe("jobs", "show", "99")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1


@pytest.mark.usefixtures("log")
def test_a_reader_that_has_seen_enough_is_no_error(config: Path) -> None:
    command = [sys.executable, "-m", "dropscribe", "jobs", "list", "--config", str(config)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()  # as `head` does
        assert process.stderr.read() == b""
    assert process.returncode == -signal.SIGPIPE


def test_a_damaged_log_is_one_line_without_traceback(
    dropscribe: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    (tmp_path / "jobs.db").write_bytes(b"not a database, and long enough to be read as one" * 50)
    done = dropscribe("jobs", "list")
    assert done.returncode == 2
    assert done.stderr.startswith("dropscribe: ")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "code",
    [
        "import sys; sys.argv = ['dropscribe', 'jobs', 'list', '--config', CONFIG]",
        "import sys; sys.argv = ['dropscribe', 'jobs', 'show', '1', '--config', CONFIG]",
        "import sys; sys.argv = ['dropscribe', 'search', 'hello', '--config', CONFIG]",
        "import sys; sys.argv = ['dropscribe', 'stats', '--config', CONFIG]",
        "import sys; sys.argv = ['dropscribe', 'config', 'show', '--config', CONFIG]",
    ],
)
@pytest.mark.usefixtures("log")
def test_read_commands_load_nothing_that_transcribes(config: Path, code: str) -> None:
    program = (
        f"CONFIG = {str(config)!r}\n{code}\nimport atexit\n"
        "atexit.register(lambda: sys.stderr.write(' '.join(sorted({name.split('.')[0] for name in sys.modules}))))\n"
        "from dropscribe.cli import main\nmain()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stderr.splitlines()[-1].split())
    assert "dropscribe" in loaded
    assert not loaded & HEAVY
