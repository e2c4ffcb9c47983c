"""What a full job log costs: claims and other statements of the queue, and whole read commands.

    python tools/measure_job_log.py --jobs 100000 --runs 9

Fills a log in a temporary folder: jobs that all ended in the last two weeks (what `stats` finds hardest), a transcript
of 60 words each, one reused job in fifty, one failed in a hundred, a batch for ten of them. Statements are timed in a
process that is already running; commands are whole processes (`python -m dropscribe …`), the first of each left out.
Figures are median (fastest, slowest).
"""

from __future__ import annotations

import argparse
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from dropscribe.jobs import log
from dropscribe.jobs.database import open_database, transaction
from dropscribe.jobs.queue import Queue
from dropscribe.jobs.records import iso
from dropscribe.jobs.statistics import statistics as figures_of

SAID = """the a of and to in we have it is that for on with as at be this by from or budget meeting minutes agenda
project schedule customer invoice delivery review question answer morning evening monday tuesday number please thank"""
COMMANDS = (
    ("jobs", "list"),
    ("jobs", "list", "--state", "failed", "--json"),
    ("search", "budget", "minutes"),
    ("search", "nowhere"),
    ("search", "会議"),
    ("stats",),
)
ROOT = b"/in"


def fill(path: Path, jobs: int, *, words: int = 60, seed: int = 1) -> None:
    """A log with that many finished jobs; every statement is one that the daemon could have left behind."""
    rng = random.Random(seed)
    db = open_database(path, checkpoints=True)
    db.execute("PRAGMA synchronous = OFF")  # it is thrown away anyway
    Queue(db).ensure_root(ROOT)
    step = timedelta(days=13) / (jobs / 10)
    began = datetime.now(UTC) - timedelta(days=13)
    with transaction(db):
        for start in range(0, jobs, 10):
            batch = start // 10 + 1
            at = iso(began + batch * step)
            here = range(start + 1, min(start + 10, jobs) + 1)
            db.execute(
                "INSERT INTO batches (id, claim_id, started_at, finished_at, outcome, decoder, slots, model, "
                "rows, audio_seconds, decode_s, wall_s) "
                "VALUES (?, 'c' || ?, ?, ?, 'done', 'bulk-sync', 6, 'model', ?, ?, ?, ?)",
                (batch, batch, at, at, len(here), 30.0 * len(here), 1.8 * len(here), 2.0 * len(here)),
            )
            for job in here:
                _add(db, job, batch, at, " ".join(rng.choices(SAID.split(), k=words)))
    db.execute("PRAGMA optimize")
    db.close()


def _add(db, job, batch, at, text):
    failed, reused = job % 100 == 99, job > 1 and job % 50 == 1
    name = b"%s/folder-%03d/recording %06d.m4a" % (ROOT, job % 1000, job)
    db.execute(
        "INSERT INTO jobs (id, root_id, path, path_raw, size_bytes, mtime_ns, content_hash, state, attempts, "
        "queued_at, created_at, started_at, finished_at, audio_seconds, language, model, params_key, batch_id, "
        "reused_from, error_kind, error, transcript_path, text) VALUES "
        "(?, 1, ?, ?, ?, ?, ?, ?, 1, ?, ?, ?, ?, ?, ?, ?, 'key', ?, ?, ?, ?, ?, ?)",
        (
            job, name.decode(), name, 480_000 + job, 10**18 + job, f"{1 if reused else job:064x}",
            "failed" if failed else "done", at, at, at, at, None if failed else 30.0, None if failed else "English",
            None if failed else "model", batch, 1 if reused else None, "decode_failed" if failed else None,
            "cannot be decoded" if failed else None, None if failed else name.decode()[:-3] + "txt",
            None if failed else text,
        ),
    )  # fmt: skip
    if not failed and not reused:
        db.execute(
            "INSERT INTO segments (job_id, params_key, start_ms, end_ms, text, language, tokens, finish_reason) "
            "VALUES (?, 'key', 0, 30000, ?, 'English', 80, 'eos')",
            (job, text),
        )
    if not failed:
        seconds = 0.0 if reused else 30.0
        db.execute(
            "INSERT INTO timings (job_id, batch_id, read_s, encode_s, prefill_s, decode_s, duration, time, rtf) "
            "VALUES (?, ?, 0.1, 0.2, 0.1, 1.5, ?, ?, ?)",
            (job, batch, seconds, seconds * 0.06, None if reused else 0.06),
        )


def spread(values: list[float], digits: int = 2) -> str:
    """Median (fastest, slowest)."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}, {max(values):.{digits}f})"


def measure_statements(path: Path, runs: int) -> None:
    """Milliseconds of the statements that the daemon waits for."""
    db = open_database(path, checkpoints=True)
    queue = Queue(db)
    serial = iter(range(10**9))

    def arrive() -> None:
        number = next(serial)
        queue.enqueue(1, b"%s/new/%06d.m4a" % (ROOT, number), number, number)

    for _ in range(24 * (runs + 2)):
        arrive()
    conn = log.connect_readonly(path)
    works = {
        "claim of 24 jobs": lambda: queue.claim(f"claim-{next(serial)}", 24),
        "is anything due": queue.due,
        "a new file": arrive,
        "the newest job of a path": lambda: queue.newest(b"/in/folder-500/recording 000500.m4a"),
        "list_jobs": lambda: log.list_jobs(conn),
        "search": lambda: log.search(conn, "budget minutes"),
        "statistics": lambda: figures_of(conn),
    }
    print("| in a running process | ms |\n|---|---|")
    for name, work in works.items():
        took = []
        work()
        for _ in range(runs):
            began = time.perf_counter()
            work()
            took.append((time.perf_counter() - began) * 1000)
        print(f"| {name} | {spread(took)} |", flush=True)
    conn.close()
    db.close()


def measure_commands(path: Path, runs: int) -> None:
    """Seconds of whole commands, by the clock and of processor time; one run of each in turn."""
    config = path.with_name("dropscribe.toml")
    config.write_text(f'model = "none"\ndatabase = "{path}"\n[[watch]]\npath = "{path.parent}"\n', encoding="utf-8")
    took: dict[tuple[str, ...], list[tuple[float, float]]] = {command: [] for command in COMMANDS}
    for turn in range(runs + 1):
        for command in COMMANDS:
            figures = once([sys.executable, "-m", "dropscribe", *command, "--config", str(config)])
            if turn:
                took[command].append(figures)
    print("\n| whole command | wall s | user + system s |\n|---|---|---|")
    for command, rounds in took.items():
        wall, cpu = ([figures[which] for figures in rounds] for which in (0, 1))
        print(f"| `dropscribe {' '.join(command)}` | {spread(wall)} | {spread(cpu)} |", flush=True)


def once(command: list[str]) -> tuple[float, float]:
    """Wall and processor seconds of one process."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure a full job log.")
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--in", dest="folder", help="make (or find) the log there and keep it")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(arguments.folder or temporary).absolute() / f"jobs-{arguments.jobs}.db"
        if not path.exists():
            fill(path, arguments.jobs)
        print(f"{arguments.jobs} finished jobs, {path.stat().st_size / 1e6:.0f} MB, {arguments.runs} runs\n")
        measure_commands(path, arguments.runs)
        print()
        measure_statements(path, arguments.runs)


if __name__ == "__main__":
    main()
