"""The real program as a process of its own, on a folder, a job log and a GPU lock of its own; the bundled model."""

from __future__ import annotations

import atexit
import csv
import functools
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import dropscribe
from dropscribe.settings import Settings, to_toml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

HELDOUT = Path(__file__).parent / "data" / "heldout"
MODEL = Path(dropscribe.__file__).parent / "demo" / "model"
PROGRAM = (sys.executable, "-m", "dropscribe")
SUM = "feature_s + encode_s + prefill_s + decode_s"


@functools.cache
def references() -> dict[str, str]:
    """The spoken text of each held-out clip, by its stem."""
    with (HELDOUT / "transcripts.tsv").open(encoding="utf-8", newline="") as file:
        return {Path(row["file"]).stem: row["text"] for row in csv.DictReader(file, delimiter="\t")}


def clips(*numbers: int) -> list[Path]:
    """Held-out clips by number."""
    return [HELDOUT / f"clip{number:03}.flac" for number in numbers]


def environment(temp: Path, **extra: str) -> dict[str, str]:
    """For a process that must not meet our user's settings or the GPU lock of other tests.

    What MLX compiled for the CPU is kept where it always is: compiling it anew costs more than a test. For the same
    reason the true batch has its verdict already; tests/test_e2e_decoder.py lets it be found.
    """
    compiled = Path(tempfile.gettempdir()) / "mlx"
    compiled.mkdir(exist_ok=True)
    temp.mkdir(exist_ok=True)
    if not (temp / "mlx").exists():
        (temp / "mlx").symlink_to(compiled)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DROPSCRIBE_")}
    return {**kept, "TMPDIR": str(temp), "XDG_CACHE_HOME": str(checked_cache()), **extra}


@functools.cache
def checked_cache() -> Path:
    """A cache folder in which the bundled model has passed the self-check with up to 8 slots."""
    from dropscribe.asr.model import load  # here: some who use this module must not have imported mlx
    from dropscribe.asr.selfcheck import Verdict, cache_file, keep

    folder = Path(tempfile.mkdtemp(prefix="dropscribe-cache-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    rates = {1: 1.0, 2: 2.0, 4: 3.0, 8: 4.0}
    verdict = Verdict((2, 4, 8), 8, (0,), rates, positions=2**30, kv_budget=2**40)
    keep(load(str(MODEL)), verdict, folder / "dropscribe" / cache_file().name)
    return folder


class Place:
    """A watched folder, its job log, and what was started on it. Use as a context manager."""

    def __init__(self, base: Path, *, model: str = str(MODEL), quiet: float = 0.3, **settings: Any) -> None:
        self.base, self.folder, self.log = base, base / "in", base / "log"
        self.folder.mkdir()
        watch = {"path": str(self.folder), **settings.pop("watch", {})}
        self.settings = Settings.model_validate({
            "model": model, "database": str(base / "jobs.db"), "watch": [watch],
            "settle": {"quiet_seconds": quiet}, **settings,
        })  # fmt: skip
        self.config = base / "dropscribe.toml"
        self.config.write_text(to_toml(self.settings), encoding="utf-8")
        self.env = environment(base / "tmp")
        self._started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        for process in self._started:
            if process.poll() is None:
                kill(tree(process.pid))
                process.wait()

    def drop(self, source: Path, name: str | None = None) -> Path:
        """Copy a file into the folder."""
        return Path(shutil.copyfile(source, self.folder / (name or source.name)))

    # -- the program -----------------------------------------------------------------------------------------------

    def start(self, *arguments: str, **env: str) -> subprocess.Popen[bytes]:
        """``dropscribe run`` in the background; its stderr goes to ``log``."""
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [*PROGRAM, "run", "--config", str(self.config), *arguments], stderr=log, env={**self.env, **env}
            )
        self._started.append(process)
        return process

    def once(self, seconds: float = 120, **env: str) -> int:
        """``dropscribe run --once`` to its end: its exit code."""
        return self.start("--once", **env).wait(seconds)

    def command(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Any other command with this place's configuration."""
        return subprocess.run(
            [*PROGRAM, *arguments, "--config", str(self.config)],
            capture_output=True, text=True, check=False, timeout=240, env={**self.env, **env},
        )  # fmt: skip

    # -- what came of it -------------------------------------------------------------------------------------------

    def rows(self, sql: str, *parameters: object) -> list[dict[str, Any]]:
        """One query on the job log; nothing while there is none."""
        if not self.settings.database.exists():
            return []
        with closing(sqlite3.connect(f"file:{self.settings.database}?mode=ro", uri=True, timeout=10)) as conn:
            conn.row_factory = sqlite3.Row
            try:
                return [dict(row) for row in conn.execute(sql, parameters)]
            except sqlite3.OperationalError as error:
                if "no such table" in str(error):  # it is being made
                    return []
                raise

    def value(self, sql: str, *parameters: object) -> Any:
        """The first column of the first row, or None."""
        found = self.rows(sql, *parameters)
        return next(iter(found[0].values())) if found else None

    def states(self) -> dict[str, str]:
        """State of the newest job of each file, by name."""
        return {Path(row["path"]).name: row["state"] for row in self.rows("SELECT path, state FROM jobs ORDER BY id")}

    def job(self, name: str) -> dict[str, Any]:
        """The newest job of a file."""
        return self.rows("SELECT * FROM jobs WHERE path = ? ORDER BY id DESC LIMIT 1", str(self.folder / name))[0]

    def transcripts(self) -> set[str]:
        """Names of the text files in the folder."""
        return {path.name for path in self.folder.rglob("*.txt")}

    def until(self, condition: Callable[[], Any], seconds: float = 60) -> Any:
        """Wait for a condition; what it gave."""
        deadline = time.monotonic() + seconds
        while not (value := condition()):
            assert time.monotonic() < deadline, f"not in {seconds} s: {self.states()}\n{self.log.read_text()}"
            time.sleep(0.05)
        return value

    def check(self) -> None:
        """What holds for every job log at rest: every done file once, its transcripts whole, sums right."""
        check_outputs(self)
        check_sums(self)


def check_outputs(place: Place) -> None:
    """Rows and files agree: one done job a content, each with its transcripts, no temp file, nothing foreign."""
    import hashlib

    twice = place.rows("SELECT path FROM jobs WHERE state = 'done' GROUP BY path, content_hash HAVING count(*) > 1")
    assert not twice
    known = {}
    for row in place.rows("SELECT j.*, o.format, o.path_raw AS out, o.sha256, o.next_sha256 FROM jobs j "
                          "JOIN outputs o ON o.job_id = j.id"):  # fmt: skip
        path = Path(os.fsdecode(row["out"]))
        known[path] = row
        content = path.read_bytes()
        assert row["next_sha256"] is None
        assert row["sha256"] == hashlib.sha256(content).hexdigest(), f"{path} is torn"
        if row["format"] == "json":
            written = json.loads(content)
            assert (written["text"], written["content_hash"]) == (row["text"], row["content_hash"])
        elif row["format"] == "txt" and "[…" not in content.decode():  # else it says that it is not whole
            assert content.decode().rstrip("\n") == row["text"]
    done = place.value("SELECT count(*) FROM jobs WHERE state = 'done'") or 0
    assert len(known) == done * len(place.settings.watch[0].formats), "a done job lacks a transcript"
    on_disk = {path for path in place.folder.rglob("*") if path.suffix in {".txt", ".json", ".tmp"}}
    assert on_disk == set(known), "files that no row knows"
    assert place.value("PRAGMA integrity_check") == "ok"
    assert not place.rows("PRAGMA foreign_key_check")
    assert not place.rows("SELECT 1 FROM jobs WHERE state = 'running'")
    assert not place.rows("SELECT 1 FROM batches WHERE finished_at IS NULL")


def check_sums(place: Place) -> None:
    """Over every batch that closed by itself the sum of its timings is its compute time."""
    batches = place.rows(
        f"SELECT id, outcome, {SUM} AS compute, "  # noqa: S608 - a constant
        "(SELECT total(time) FROM timings WHERE batch_id = b.id) AS shared FROM batches b WHERE decode_s IS NOT NULL"
    )
    for batch in batches:
        assert abs(batch["shared"] - batch["compute"]) <= 0.01 * batch["compute"] + 1e-9, batch


# -- processes ---------------------------------------------------------------------------------------------------------


def children() -> dict[int, list[int]]:
    """Process ids by parent, of all that live."""
    found: dict[int, list[int]] = {}
    for pid, parent, state in _listed():
        if not state.startswith("Z"):
            found.setdefault(int(parent), []).append(int(pid))
    return found


def _listed() -> Iterator[list[str]]:
    """Process id, parent and state of everything that runs."""
    if not Path("/proc/self/stat").exists():
        command = ["ps", "-A", "-o", "pid=,ppid=,stat="]
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        yield from (line.split()[:3] for line in listed.splitlines())
        return
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = file.read_text().rpartition(")")[2].split()[:2]
        except (FileNotFoundError, ProcessLookupError):  # it ended as we looked
            continue
        yield [file.parent.name, parent, state]


def tree(pid: int) -> list[int]:
    """A process and all below it, from the top."""
    below, found = children(), [pid]
    for parent in found:
        found += below.get(parent, [])
    return found


def kill(pids: Iterable[int], how: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal to processes that may be gone already."""
    for pid in pids:
        try:
            os.kill(pid, how)
        except ProcessLookupError:
            continue


def alive(pids: Iterable[int]) -> list[int]:
    """Those that still run; a zombie does not."""
    living = {pid for family in children().values() for pid in family}
    return [pid for pid in pids if pid in living]
