"""The command after a transcript: its arguments, its end, and that nothing it does matters to a job."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from dropscribe.after import DOCTOR, AfterCommands, arguments_of, run_after
from dropscribe.jobs.database import open_database
from dropscribe.jobs.queue import Queue
from dropscribe.settings import After, Settings

if TYPE_CHECKING:
    from collections.abc import Callable

NASTY = b"/in/--help; rm -rf ~ $(touch x) `y` \"'{job}\xff\n.wav"
JOB = {"id": 7, "path_raw": NASTY, "language": "English"}
OUTPUTS = [{"format": "srt", "path_raw": b"/out/a.srt"}, {"format": "json", "path_raw": b"/out/a.json"}]


def command(script: str, *arguments: str, seconds: float = 20) -> After:
    return After(command=(sys.executable, "-c", script, *arguments), timeout_seconds=seconds)


def run(after: After) -> tuple[bool, dict[str, Any]]:
    """How it ended, and the line in the log."""
    with capture_logs() as lines:
        ended = run_after(after, JOB, OUTPUTS)
    (line,) = lines
    return ended, line


def test_every_argument_arrives_as_it_is(tmp_path: Path) -> None:
    script = "import sys, os, json; json.dump([os.fsencode(a).hex() for a in sys.argv[2:]], open(sys.argv[1], 'w'))"
    after = command(script, str(tmp_path / "got"), "{source}", "{transcript}", "--id={job}", "{json}", "{md}", "{{x}}")
    assert run(after)[0]
    got = [bytes.fromhex(one) for one in json.loads((tmp_path / "got").read_text())]
    assert got == [NASTY, b"/out/a.srt", b"--id=7", b"/out/a.json", b"", b"{x}"]
    assert list(tmp_path.iterdir()) == [tmp_path / "got"]


def test_a_program_may_lie_in_the_home_folder() -> None:
    assert arguments_of(After(command=("~/bin/x", "{language}")), JOB, ()) == [
        os.path.expanduser("~/bin/x"), "English",  # noqa: PTH111
    ]  # fmt: skip


def test_what_it_prints_is_logged_but_only_the_end_of_it() -> None:
    ended, line = run(command("import sys; print('x' * 100_000); print('the end', file=sys.stderr)"))
    assert ended
    assert (line["event"], line["log_level"], line["job"]) == ("after_ended", "info", 7)
    assert line["output"].endswith("the end\\n")
    assert len(line["output"]) <= 2010


@pytest.mark.parametrize(
    ("after", "why"),
    [
        (command("raise SystemExit(3)"), "exit code 3"),
        (command("import os; os.kill(os.getpid(), 9)"), "exit code -9"),
        (command("import time; time.sleep(60)", seconds=0.3), "longer than 0.3 s"),
        (After(command=("/nowhere/program",)), "No such file"),
        (After(command=("/",)), "Permission denied"),
    ],
)
def test_a_failure_is_a_line_in_the_log(after: After, why: str) -> None:
    ended, line = run(after)
    assert not ended
    assert (line["event"], line["log_level"]) == ("after_failed", "warning")
    assert why in line["error"]


def gone(pid: int) -> bool:
    """A zombie is, too: nobody may have asked for it yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_what_it_started_goes_with_it_when_it_takes_too_long(tmp_path: Path) -> None:
    script = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "open(sys.argv[1], 'w').write(str(child.pid)); time.sleep(60)"
    )
    started = time.monotonic()
    assert not run(command(script, str(tmp_path / "pid"), seconds=5))[0]
    assert time.monotonic() - started < 30
    pid = int((tmp_path / "pid").read_text())
    while not gone(pid):  # killed is not yet dead
        assert time.monotonic() - started < 50
        time.sleep(0.05)


# -- the supervisor's end ----------------------------------------------------------------------------------------------


@pytest.fixture
def commands(tmp_path: Path) -> Callable[[After], tuple[AfterCommands, int]]:
    """A job log with one job, and what runs its command."""

    def make(after: After) -> tuple[AfterCommands, int]:
        path = tmp_path / "jobs.db"
        db = open_database(path)
        queue = Queue(db)
        job = queue.enqueue(queue.ensure_root(tmp_path), os.fsencode(tmp_path / "a.wav"), 1, 1)
        assert job is not None
        db.close()
        return AfterCommands(Settings(database=path, after=after)), job

    return make


def until_idle(commands: AfterCommands) -> None:
    deadline = time.monotonic() + 20
    while not commands.idle:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_commands_run_one_after_another_beside_everything_else(commands: Any, tmp_path: Path) -> None:
    script = "import sys; open(sys.argv[1], 'a').write(sys.argv[2] + '\\n')"
    running, job = commands(command(script, str(tmp_path / "got"), "{job} {source}"))
    for one in (job, 999, job):  # one that is not in the log is passed over
        running.submit(one)
    until_idle(running)
    assert (tmp_path / "got").read_text().splitlines() == [f"{job} {tmp_path / 'a.wav'}"] * 2
    running.close()


def test_the_doctors_clip_is_no_file_of_the_user(commands: Any, tmp_path: Path) -> None:
    script = "import sys; open(sys.argv[1], 'a').write(sys.argv[2])"
    running, job = commands(command(script, str(tmp_path / "got"), "{job}"))
    folder = tmp_path / f"{DOCTOR}abcdefgh"
    db = open_database(tmp_path / "jobs.db")
    queue = Queue(db)
    clip = queue.enqueue(queue.ensure_root(folder), os.fsencode(folder / "doctor.wav"), 1, 1)
    db.close()
    running.submit(clip)
    running.submit(job)
    until_idle(running)
    assert (tmp_path / "got").read_text() == str(job)
    running.close()


def test_without_a_command_nothing_is_started(commands: Any) -> None:
    running, job = commands(After())
    running.submit(job)
    assert running.idle
    assert running._thread is None
    running.close()


def test_leaving_ends_the_one_that_runs_and_names_those_that_wait(commands: Any, tmp_path: Path) -> None:
    script = "import sys, time; open(sys.argv[1], 'a').write('x'); time.sleep(60)"
    running, job = commands(command(script, str(tmp_path / "got")))
    with capture_logs() as lines:
        for _ in range(3):
            running.submit(job)
        while not (tmp_path / "got").exists() or not (tmp_path / "got").read_text():
            time.sleep(0.01)
        started = time.monotonic()
        running.close()
        assert time.monotonic() - started < 3
    assert {"event": "after_not_run", "log_level": "warning", "jobs": [job, job]} in lines
    assert any(line["event"] == "after_failed" and line["error"] == "the daemon leaves" for line in lines)
    assert (tmp_path / "got").read_text() == "x"
