"""What watching a large tree costs: scans against a bare walk, the real daemon's memory, a burst, and idling.

The tree is made in a temporary folder. Scans are measured in this process, by wall and by processor time; memory, burst
and idling on a real ``dropscribe run`` that is paused, so that it watches and queues but starts no worker.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from dropscribe.errors import ConfigError
from dropscribe.jobs.database import connect_readonly, open_database, transaction
from dropscribe.jobs.queue import Queue
from dropscribe.settings import Settings, to_toml
from dropscribe.watch import scan
from dropscribe.watch.eligibility import Rules
from dropscribe.watch.reconcile import LOOKS_A_STEP, Reconciler

if TYPE_CHECKING:
    from collections.abc import Callable

    from dropscribe.jobs.database import Database

ROUNDS = 9  # pairs of a scan of the unchanged tree and a bare walk
FIRST_ROUNDS = 3  # first scans, each of an empty job log
CALM_SECONDS = 10.0  # from the burst until idling is measured
QUEUE_SECONDS = 1800.0  # longest wait for the daemon to queue everything


class Took(NamedTuple):
    """Seconds."""

    wall: float
    cpu: float


def measure(
    *, files: int, folders: int, burst: int, idle_seconds: float, say: Callable[[str], None], within: Path | None = None
) -> dict[str, Any]:
    """All figures. ``within``: where the temporary tree is made (default: the system's temporary folder)."""
    try:
        base = Path(tempfile.mkdtemp(prefix="dropscribe-bench-", dir=within))
    except OSError as error:
        raise ConfigError(f"nothing can be made in {within}: {error.strerror}; name another folder with --in") from None
    try:
        say(f"making {files} files in {folders} folders")
        make_tree(base / "tree", files, folders)
        return {
            "files": files,
            "folders": folders,
            **_scans(base, say),
            **_daemon(base, files, burst, idle_seconds, say),
        }
    finally:
        shutil.rmtree(base)


def make_tree(tree: Path, files: int, folders: int) -> None:
    """``files`` small files of their own content, spread evenly."""
    for number in range(folders):
        (tree / f"folder-{number:05}").mkdir(parents=True)
    for number in range(files):
        (tree / f"folder-{number % folders:05}" / f"recording-{number:06}.wav").write_bytes(b"%d" % number)


def bare_walk(tree: bytes) -> int:
    """os.scandir and a stat for every file, nothing else: what a scan is compared with."""
    seen = 0
    below = [tree]
    while below:
        with os.scandir(below.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    below.append(entry.path)
                else:
                    entry.stat()
                    seen += 1
    return seen


def _took(work: Callable[[], object]) -> Took:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return Took(time.perf_counter() - wall, time.process_time() - cpu)


class Pair(NamedTuple):
    """A scan, and right beside it in time what it is compared with."""

    scan: Took
    plain: Took

    @property
    def ratio(self) -> float:
        """Of processor time."""
        return self.scan.cpu / self.plain.cpu


def _scans(base: Path, say: Callable[[str], None]) -> dict[str, Any]:
    tree = os.fsencode(base / "tree")
    bare_walk(tree)
    firsts: list[Pair] = []
    steady: list[Pair] = []
    writes = 0
    for number in range(FIRST_ROUNDS):
        say(f"first scan beside a bare walk and the inserts alone, {number + 1} of {FIRST_ROUNDS}")
        bare, inserts = _took(lambda: bare_walk(tree)), _took(partial(_insert, base, tree, number))
        db = open_database(base / f"scans-{number}.db")
        reconciler = Reconciler(db, Queue(db), _settings(base, db.path.name, quiet=0.0, interval=1e6), observe=False)
        first = _took(partial(_until_settled, reconciler))
        firsts.append(Pair(first, Took(bare.wall + inserts.wall, bare.cpu + inserts.cpu)))
        if number + 1 == FIRST_ROUNDS:
            say("steady scans beside bare walks")
            steady, writes = _steady(tree, reconciler, db)
        reconciler.close()
        db.close()
    return {**_figures("first_scan", "walk_and_inserts", firsts), **_figures("rescan", "bare_walk", steady),
            "rescan_rows_written": writes}  # fmt: skip


def _until_settled(reconciler: Reconciler) -> None:
    reconciler.step()
    while not reconciler.settled:
        reconciler.step()


def _steady(tree: bytes, reconciler: Reconciler, db: Database) -> tuple[list[Pair], int]:
    """Scans of the unchanged tree, and the most rows that one of them wrote."""
    pairs, writes = [], 0
    for number in range(ROUNDS + 1):
        plain = _took(lambda: bare_walk(tree))
        before = db.conn.total_changes
        reconciler.rescan("bench")
        pair = Pair(_took(reconciler.step), plain)
        writes = max(writes, db.conn.total_changes - before)
        if number:  # the first one notes what the first scan has queued
            pairs.append(pair)
    return pairs, writes


def _figures(name: str, plain: str, pairs: list[Pair]) -> dict[str, float]:
    """Medians, and the ratio's spread."""
    ratios = [pair.ratio for pair in pairs]
    return {
        f"{plain}_s": median(pair.plain.wall for pair in pairs),
        f"{plain}_cpu_s": median(pair.plain.cpu for pair in pairs),
        f"{name}_s": median(pair.scan.wall for pair in pairs),
        f"{name}_cpu_s": median(pair.scan.cpu for pair in pairs),
        f"{name}_ratio": median(ratios), f"{name}_ratio_least": min(ratios), f"{name}_ratio_most": max(ratios),
    }  # fmt: skip


def _insert(base: Path, tree: bytes, number: int) -> None:
    """The rows alone, as the watcher writes them."""
    with closing(open_database(base / f"inserts-{number}.db")) as db:
        queue = Queue(db)
        root = queue.ensure_root(os.fsdecode(tree))
        found = list(scan.walk(Rules(tree), scan.Pass()))
        for start in range(0, len(found), LOOKS_A_STEP):
            with transaction(db):
                for one in found[start : start + LOOKS_A_STEP]:
                    queue.enqueue(root, one.path, one.size, one.mtime_ns)


def _settings(base: Path, database: str, *, quiet: float, interval: float | None = None) -> Settings:
    return Settings.model_validate(
        {
            "model": str(base),
            "database": base / database,
            "watch": [{"path": base / "tree"}],
            "settle": {"quiet_seconds": quiet},
            "scan": {} if interval is None else {"interval_seconds": interval},
            "log": {"level": "warning"},
        }
    )


def _daemon(base: Path, files: int, burst: int, idle_seconds: float, say: Callable[[str], None]) -> dict[str, Any]:
    settings = _settings(base, "daemon.db", quiet=1.0)
    config = base / "dropscribe.toml"
    config.write_text(to_toml(settings), encoding="utf-8")
    with closing(open_database(settings.database)) as db:
        Queue(db).set_service(paused=1)
    say("starting the daemon")
    process = subprocess.Popen([sys.executable, "-m", "dropscribe", "run", "--config", str(config)])
    try:
        started = time.monotonic()
        _until_queued(settings.database, files, process)
        queued_s = time.monotonic() - started
        say(f"all queued; a burst of {burst} files")
        for number in range(burst):
            (base / "tree" / f"burst-{number:06}.wav").write_bytes(b"burst %d" % number)
        started = time.monotonic()
        queued = _until_queued(settings.database, files + burst, process)
        burst_s = time.monotonic() - started
        time.sleep(CALM_SECONDS)
        say(f"idle for {idle_seconds:.0f} s")
        cpu, started = cpu_seconds(process.pid), time.monotonic()
        time.sleep(idle_seconds)
        cpu, wall = cpu_seconds(process.pid) - cpu, time.monotonic() - started
        return {
            "daemon_all_queued_s": queued_s, "burst": burst, "burst_queued": queued - files, "burst_queued_s": burst_s,
            "daemon_memory_mb": memory_mb(process.pid), "daemon_peak_memory_mb": memory_mb(process.pid, peak=True),
            "idle_s": wall, "idle_cpu_s": cpu, "idle_percent": 100 * cpu / wall if wall else 0.0,
        }  # fmt: skip
    finally:
        process.terminate()
        process.wait()


def _until_queued(database: Path, number: int, process: subprocess.Popen[bytes]) -> int:
    """Wait until that many jobs are queued, or nothing comes any more; how many there are."""
    deadline = time.monotonic() + QUEUE_SECONDS
    count = 0
    with closing(connect_readonly(database)) as conn:
        while count < number and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.2)
            count = conn.execute("SELECT count(*) FROM jobs WHERE state = 'queued'").fetchone()[0]
    return count


def cpu_seconds(pid: int) -> float:
    """Processor time of a process so far."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        listed = _ps(pid, "time").replace("-", ":").split(":")
        return float(sum(float(part) * 60**place for place, part in enumerate(reversed(listed))))
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mb(pid: int, *, peak: bool = False) -> float | None:
    """Resident memory of a process in MB; its peak where the system tells."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except FileNotFoundError:
        return None if peak else int(_ps(pid, "rss")) / 1024
    wanted = "VmHWM:" if peak else "VmRSS:"
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(wanted))


def _ps(pid: int, column: str) -> str:
    command = ["/bin/ps", "-o", f"{column}=", "-p", str(pid)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
