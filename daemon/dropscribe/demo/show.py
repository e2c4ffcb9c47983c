"""``dropscribe demo``: drop the samples into a folder the daemon watches; show what comes back and what it cost."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from dropscribe import resources, tables
from dropscribe.demo.score import word_error_rate
from dropscribe.jobs import log
from dropscribe.jobs.database import connect_readonly
from dropscribe.settings import ENV_PREFIX, Settings, to_toml

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator

WER_LIMIT = 0.10
START_SECONDS = 60.0  # for the daemon to open its job log
DONE_SECONDS = 150.0  # for everything, counted from the first drop; loading the model is part of it
STOP_SECONDS = 15.0
SLOW_SAMPLE = "meeting.wav"  # copied in pieces, as a copy over a network is
PIECES = 6
PIECE_SECONDS = 0.6
QUIET_SECONDS = 1.5  # shorter than the default of 3, longer than the pause between two pieces


@dataclass(frozen=True)
class Sample:
    """One bundled clip and what is said in it."""

    path: Path
    reference: str


@dataclass
class Folder:
    """The demo's folder: what is dropped, the daemon's config, job log and diagnostics."""

    path: Path
    seen: dict[str, str] = field(default_factory=dict)  # file name → the state last shown

    @property
    def drop(self) -> Path:
        """The watched folder."""
        return self.path / "drop"

    @property
    def database(self) -> Path:
        """The job log."""
        return self.path / "jobs.db"

    @property
    def config(self) -> Path:
        """The daemon's configuration file."""
        return self.path / "dropscribe.toml"

    @property
    def daemon_log(self) -> Path:
        """What the daemon says about itself."""
        return self.path / "daemon.log"


def run_demo(*, keep: bool = False) -> int:
    """Run the demo; 0 when every sample came back in time at a WER of 10 % or less, else 1."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)  # cleaned up after like Ctrl-C
    folder = Folder(Path(tempfile.mkdtemp(prefix="dropscribe-demo-")).resolve())
    try:
        with ExitStack() as stack:
            samples = _samples(stack.enter_context(resources.demo_samples()))
            _configure(folder, stack.enter_context(resources.demo_model()))
            stack.enter_context(_daemon(folder))
            arrived = _drop_and_wait(folder, samples)
            passed = _compare(folder, samples) and arrived
            if folder.database.exists():
                _explain(folder, keep=keep)
    except KeyboardInterrupt:
        _say("stopped")
        return 130
    except _DaemonError as error:
        _say(f"the daemon {error}; this is what it said:")
        _say(folder.daemon_log.read_text("utf-8", "replace").strip())
        return 1
    finally:
        if not keep:
            shutil.rmtree(folder.path, ignore_errors=True)
    _say("every sample arrived and is right" if passed else "not every sample arrived and is right")
    return 0 if passed else 1


class _DaemonError(Exception):
    """The daemon ended or never came up."""


def _samples(directory: Path) -> list[Sample]:
    rows = (directory / "transcripts.tsv").read_text("utf-8").splitlines()[1:]
    return [Sample(directory / name, text) for name, _, text in (row.split("\t") for row in rows)]


def _configure(folder: Folder, model: Path) -> None:
    folder.drop.mkdir()
    settings = Settings.model_validate({
        "model": str(model),
        "database": folder.database,
        "watch": [{"path": folder.drop}],
        "settle": {"quiet_seconds": QUIET_SECONDS},
        "decode": {"decoder": "bulk-sync"},  # "auto" would first find out what is exact here
    })  # fmt: skip
    folder.config.write_text(to_toml(settings), "utf-8")
    _say(f"folder      {folder.drop}")
    _say(f"config      {folder.config}")
    _say(f"job log     {folder.database}")


@contextmanager
def _daemon(folder: Folder) -> Iterator[None]:
    """``dropscribe run`` on the folder, up and watching; stopped at the end, whatever happens."""
    command = [sys.executable, "-m", "dropscribe", "run", "--config", str(folder.config)]
    env = {name: value for name, value in os.environ.items() if not name.upper().startswith(ENV_PREFIX)}
    _say("daemon      dropscribe run --config …/dropscribe.toml")
    with folder.daemon_log.open("wb") as said:
        # a session of its own: Ctrl-C reaches us alone, and we stop the daemon in order
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            env=env,
            cwd=folder.path,
            start_new_session=True,
        )
        try:
            _wait_until_up(folder, process)
            yield
        finally:
            _stop(process)


def _wait_until_up(folder: Folder, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise _DaemonError(f"ended with status {process.returncode}")
        if folder.database.exists() and _is_watching(folder):
            return
        time.sleep(0.1)
    raise _DaemonError(f"was not up after {START_SECONDS:.0f} s")


def _is_watching(folder: Folder) -> bool:
    from dropscribe.errors import DropscribeError

    try:
        with closing(connect_readonly(folder.database)) as conn:
            return log.service(conn)["pid"] is not None
    except DropscribeError:  # half made
        return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _drop_and_wait(folder: Folder, samples: list[Sample]) -> bool:
    """Drop everything and report every change of state; True when each sample is finished in time."""
    _say()
    slow = next(sample for sample in samples if sample.path.name == SLOW_SAMPLE)
    for sample in samples:
        if sample is not slow:
            shutil.copyfile(sample.path, folder.drop / sample.path.name)
            _say(f"{sample.path.name:16} dropped")
    pieces = _pieces(slow.path.read_bytes())
    started = time.monotonic()
    next_piece = started
    with (folder.drop / SLOW_SAMPLE).open("wb") as target, closing(connect_readonly(folder.database)) as conn:
        while time.monotonic() < started + DONE_SECONDS:
            if pieces and time.monotonic() >= next_piece:
                target.write(pieces.pop(0))
                target.flush()
                next_piece = time.monotonic() + PIECE_SECONDS
                share = (PIECES - len(pieces)) * 100 // PIECES
                _say(f"{SLOW_SAMPLE:16} {'dropped' if share == 100 else 'is being copied'}: {share} %")
            finished = _report_changes(folder, conn, started)
            if not pieces and finished == len(samples):
                return True
            time.sleep(0.1)
    for sample in samples:
        if folder.seen.get(sample.path.name) not in log.FINISHED:
            _say(f"{sample.path.name:16} did not arrive within {DONE_SECONDS:.0f} s")
    return False


def _pieces(data: bytes) -> list[bytes]:
    size = -(-len(data) // PIECES)
    return [data[at : at + size] for at in range(0, len(data), size)]


def _report_changes(folder: Folder, conn: sqlite3.Connection, started: float) -> int:
    """Say what changed since the last call; how many files are finished."""
    rows = {Path(row["path"]).name: row for row in reversed(log.list_jobs(conn))}
    for name, row in rows.items():
        if folder.seen.get(name) != row["state"]:
            folder.seen[name] = row["state"]
            why = f" ({row['error_kind']}: {row['error']})" if row["error_kind"] else ""
            _say(f"{name:16} {row['state']}{why}, {time.monotonic() - started:.1f} s after the first drop")
    return sum(state in log.FINISHED for state in folder.seen.values())


def _compare(folder: Folder, samples: list[Sample]) -> bool:
    """Print each transcript beside its reference; True when all are there and good enough."""
    good = True
    for sample in samples:
        transcript = (folder.drop / sample.path.name).with_suffix(".txt")
        text = transcript.read_text("utf-8").strip() if transcript.exists() else ""
        rate = word_error_rate(sample.reference, text)
        good = good and rate <= WER_LIMIT
        verdict = f"WER {rate:.1%}" if transcript.exists() else "no transcript"
        _print(f"\n{sample.path.name}: {verdict}{'' if rate <= WER_LIMIT else '  <-- over 10 %'}")
        _print(f"  said        {sample.reference}")
        _print(f"  transcript  {text}")
    return good


TIMINGS = "SELECT path, duration, time, rtf, batch_time, batch_rtf, batch_size FROM transcript_timings"


def _explain(folder: Folder, *, keep: bool) -> None:
    """Print the timing table, and how to get at it."""
    with closing(connect_readonly(folder.database)) as conn:
        timings = conn.execute(TIMINGS).fetchall()
    _print()
    columns = ("file", "audio", "time", "RTF", "batch time", "batch RTF", "batch size")
    rows = [
        (Path(row["path"]).name, tables.seconds(row["duration"]), tables.seconds(row["time"]), tables.ratio(row["rtf"]),
         tables.seconds(row["batch_time"]), tables.ratio(row["batch_rtf"]), row["batch_size"])
        for row in timings
    ]  # fmt: skip
    tables.show(columns, rows, title="From the job log (RTF: seconds of work for a second of audio)")
    here = Path(sys.executable).parent  # the programs of this installation need not be on the PATH
    if keep:
        sqlite_utils = here / "sqlite-utils"
        _print("\nAsk it yourself:")
        _print(f"  {sqlite_utils} {folder.database} '{TIMINGS}' -t")
        _print(f"  sqlite3 -box {folder.database} '{TIMINGS}'")
        _print(f"  {here / 'dropscribe'} jobs list --config {folder.config}")
        _print(f"Remove it all with: rm -r {folder.path}")
    else:
        _print(f"\nTo ask it yourself run `{here / 'dropscribe'} demo --keep`; it keeps the folder and says how, with")
        _print(f"  sqlite-utils jobs.db '{TIMINGS}' -t")


def _print(text: str = "") -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _say(text: str = "") -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
