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
import time
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


@pytest.mark.usefixtures("log")
def test_the_list_answers_in_less_than_eight_tenths_of_a_second_warm(
    dropscribe: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    def once() -> float:
        start = time.perf_counter()
        assert dropscribe("jobs", "list").returncode == 0
        return time.perf_counter() - start

    once()
    assert min(once() for _ in range(5)) < 0.8


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["--kind", "not_media"], ["bad"]),
        (["--folder", "/in"], ["new\\x0a", "bad", "good"]),
        (["--folder", "/elsewhere"], []),
        (["--name", "goo"], ["good"]),
        (["--since", "2026-01-02T03:04:00+00:00"], ["new\\x0a", "bad", "good"]),
        (["--since", "3000-01-01"], []),
        (["--since", "1h"], []),
        (["-n", "0", "--state", "done"], ["good"]),
    ],
)
def test_the_list_can_be_narrowed(dropscribe_here: Call, options: list[str], names: list[str]) -> None:
    done = dropscribe_here("jobs", "list", "--json", *options)
    assert [row["path"].removeprefix("/in/").removesuffix(".wav") for row in json.loads(done.stdout)] == names


@pytest.mark.usefixtures("log")
def test_columns_can_be_chosen_for_every_form(dropscribe_here: Call) -> None:
    def chosen(*form: str) -> str:
        return dropscribe_here("jobs", "list", "--columns", "state, id", "--state", "done", *form).stdout

    assert json.loads(chosen("--json")) == [{"state": "done", "id": 1}]
    assert json.loads(chosen("--jsonl")) == {"state": "done", "id": 1}
    assert chosen("--csv") == "state,id\ndone,1\n"
    assert [line.split() for line in chosen().splitlines()] == [["state", "id"], ["done", "1"]]
    wrong = dropscribe_here("jobs", "list", "--columns", "stat")
    assert wrong.returncode == 2
    assert "transcript_path" in wrong.stderr
    [heading, *rows] = dropscribe_here("jobs", "list", "--csv").stdout.splitlines()
    assert heading.startswith("id,path,state,")
    assert len(rows) == 3


@pytest.mark.usefixtures("log")
def test_a_search_gives_file_time_and_highlighted_words(
    dropscribe_here: Call,
) -> None:
    assert dropscribe_here("search", "THERE").stdout == "/in/good.wav  (job 1)\n       0:00  Hello [there].\n"
    [hit] = json.loads(dropscribe_here("search", "hello", "there", "--json").stdout)
    assert (hit["snippet"], hit["hits"]) == ("Hello there.", [[0, 5], [6, 11]])
    assert (hit["job_id"], hit["start_ms"], hit["end_ms"]) == (1, 0, 2000)
    none = dropscribe_here("search", "absent")
    assert (none.returncode, none.stdout) == (0, "")
    assert "nothing found" in none.stderr
    wrong = dropscribe_here("search", "--exact", "NEAR(")
    assert wrong.returncode == 2


@pytest.mark.usefixtures("log")
def test_statistics_are_one_page_or_one_document(dropscribe_here: Call) -> None:
    page = dropscribe_here("stats").stdout
    assert page.startswith("1 queued  1 done  1 failed\nbacklog: 1 files, 2.00 s of audio, 1 of them not opened yet")
    assert "but nothing moves: the daemon is not running" in page
    assert "not_media" in page
    assert "2026-01-02" in page
    found = json.loads(dropscribe_here("stats", "--json").stdout)
    assert found["states"]["done"] == 1
    assert found["models"][0]["rtf"] == 0.25


@pytest.mark.usefixtures("log")
def test_failed_jobs_are_queued_again_by_number_path_or_all(
    dropscribe_here: Call,
) -> None:
    def states() -> list[str]:
        return [row["state"] for row in json.loads(dropscribe_here("jobs", "list", "--json").stdout)]

    assert dropscribe_here("jobs", "retry").returncode == 2
    done = dropscribe_here("jobs", "retry", "--failed")
    assert (done.returncode, done.stdout) == (0, "queued again: 2  /in/bad.wav\n")
    assert states() == ["queued", "queued", "done"]
    assert json.loads(dropscribe_here("jobs", "retry", "1", "/in/good.wav", "--json").stdout) == [
        {"id": 1, "path": "/in/good.wav", "changed": True}
    ]
    assert states() == ["queued", "queued", "queued"]
    cancelled = dropscribe_here("jobs", "cancel", "--queued", "--json")
    assert [row["changed"] for row in json.loads(cancelled.stdout)] == [True, True, True]
    again = dropscribe_here("jobs", "cancel", "2")
    assert (again.returncode, again.stdout) == (1, "")
    assert "it is skipped" in again.stderr
    assert [row["error_kind"] for row in json.loads(dropscribe_here("jobs", "list", "--json").stdout)] == [
        "cancelled"
    ] * 3
    assert len(dropscribe_here("jobs", "retry", "--kind", "cancelled").stdout.splitlines()) == 3


@pytest.mark.usefixtures("log")
def test_a_job_that_is_not_there_stops_the_command_before_it_changes_anything(
    dropscribe_here: Call,
) -> None:
    done = dropscribe_here("jobs", "retry", "2", "77")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no job 77" in done.stderr
    assert json.loads(dropscribe_here("jobs", "show", "2", "--json").stdout)["state"] == "failed"


def test_pruning_says_first_what_it_would_do_and_keeps_what_is_in_a_folder_that_is_away(
    dropscribe_here: Call, log: Path, tmp_path: Path
) -> None:
    tried = json.loads(dropscribe_here("jobs", "prune", "--older-than", "2w", "--dry-run", "--json").stdout)
    assert tried == {"dry_run": True, "stripped": [1], "removed": []}  # /in is not there, so who knows
    assert json.loads(dropscribe_here("jobs", "show", "1", "--json").stdout)["text"]
    assert "of 1 jobs" in dropscribe_here("jobs", "prune", "--older-than", "14d").stdout
    shown = json.loads(dropscribe_here("jobs", "show", "1", "--json").stdout)
    assert (shown["state"], shown["text"], shown["segments"], shown["timings"]) == ("done", None, [], [])
    folder = tmp_path / "folder"
    folder.mkdir()
    db = open_database(log)
    db.execute("UPDATE roots SET path = ?", (str(folder),))
    db.close()
    nothing = json.loads(dropscribe_here("jobs", "prune", "--older-than", "1h", "--json").stdout)
    assert nothing["removed"] == []  # suddenly empty: more likely unplugged than cleared
    (folder / "other.wav").touch()
    assert json.loads(dropscribe_here("jobs", "prune", "--older-than", "1h", "--json").stdout)["removed"] == [1, 2]
    assert dropscribe_here("jobs", "prune", "--older-than", "soon").returncode == 2


def test_writing_commands_without_a_log_make_none(dropscribe_here: Call, tmp_path: Path) -> None:
    for command in (["retry", "1"], ["cancel", "1"], ["prune", "--older-than", "1d"]):
        assert "no job log yet" in dropscribe_here("jobs", *command).stderr
    assert not (tmp_path / "jobs.db").exists()
