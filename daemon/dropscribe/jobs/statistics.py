"""What the job log adds up to: throughput, days, models, failures, the backlog and when it may be done.

Plain functions over a read-only connection; loads nothing but sqlite3. Each query is fetched whole.
"""

from __future__ import annotations

import os
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from dropscribe.jobs.log import Row, counts, fetch, service
from dropscribe.jobs.records import iso, utcnow

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable
    from datetime import datetime

_PERIODS = {"24 hours": timedelta(hours=24), "7 days": timedelta(days=7), "30 days": timedelta(days=30)}
_ENOUGH_BATCHES = 4  # for a range around the estimate


def statistics(
    conn: sqlite3.Connection,
    *,
    days: int = 14,
    now: Callable[[], datetime] = utcnow,
    alive: Callable[[int], bool] | None = None,
) -> Row:
    """Everything ``dropscribe stats`` prints, as JSON can hold it.

    ``audio_seconds`` of throughput and days is of all files that are done; ``decoded_seconds`` leaves out those whose
    content was known, and is what a real-time factor is for. Models have decoded audio only.
    ``days``: the last that many days up to the newest result. ``alive`` says whether a process runs.
    """
    running = service(conn)
    return {
        "states": counts(conn),
        "throughput": _throughput(conn, now()),
        "days": _last_days(conn, days),
        "models": fetch(conn, _MODELS),
        "failures": fetch(
            conn,
            "SELECT error_kind, count(*) AS files FROM failures GROUP BY error_kind ORDER BY files DESC, error_kind",
        ),
        "backlog": {**backlog(conn), "blocked": _blocked(running, alive or process_lives)},
        "service": running,
    }


def backlog(conn: sqlite3.Connection) -> Row:
    """What waits or runs, and the seconds it may take.

    ``audio_seconds`` is what is left to transcribe; ``guessed_seconds`` of it belong to ``unread`` files and follow
    from their sizes and what a byte of such files (by suffix) has held so far. ``eta_seconds`` is for the pace of the
    last 20 batches, ``eta_range`` for their slower and faster quarters. None: there is nothing to tell it from.
    """
    live = fetch(conn, _LIVE)
    unread = [row for row in live if row["audio_seconds"] is None]
    known = sum(max(0.0, row["audio_seconds"] - row["covered"]) for row in live if row["audio_seconds"] is not None)
    guessed = _guess(unread, fetch(conn, _LENGTHS)) if unread else 0.0
    left = None if guessed is None else known + guessed
    pace = fetch(conn, _PACE)
    audio = sum(row["audio_seconds"] for row in pace)
    eta = None if left is None or not audio else left * sum(row["wall_s"] for row in pace) / audio
    rates = sorted(row["wall_s"] / row["audio_seconds"] for row in pace)
    quarter = len(rates) // 4
    wide = eta is not None and left is not None and len(rates) >= _ENOUGH_BATCHES
    return {
        "files": len(live),
        "running": sum(row["state"] == "running" for row in live),
        "due_later": sum(row["not_before"] is not None for row in live),
        "unread": len(unread),
        "audio_seconds": left,
        "guessed_seconds": guessed,
        "eta_seconds": eta,
        "eta_range": [left * rates[quarter], left * rates[-1 - quarter]] if wide and left is not None else None,
    }


def _guess(unread: Iterable[Row], done: Iterable[Row]) -> float | None:
    """Seconds of audio in files nobody has opened yet."""
    size: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    for row in done:
        for kind in (_suffix(row["path"]), ""):
            size[kind] += row["size_bytes"]
            seconds[kind] += row["audio_seconds"]
    if not size[""]:
        return None
    total = 0.0
    for row in unread:
        kind = _suffix(row["path"])
        kind = kind if size[kind] else ""
        total += max(0.0, row["size_bytes"] * seconds[kind] / size[kind] - row["covered"])
    return total


def _suffix(path: str) -> str:
    return os.path.splitext(path)[1].lower()  # noqa: PTH122 - a printable name, of a hundred thousand


def _throughput(conn: sqlite3.Connection, now: datetime) -> list[Row]:
    rows: list[Row] = []
    for name, length in _PERIODS.items():
        since = iso(now - length)
        done = fetch(conn, _DONE_SINCE, (since,))[0]
        work = fetch(conn, _WORK_SINCE, (since,))[0]
        rows.append({"period": name, **done, **work})
    return rows


def _last_days(conn: sqlite3.Connection, days: int) -> list[Row]:
    newest = "SELECT date(substr(max(finished_at), 1, 10), ?) FROM jobs WHERE finished_at IS NOT NULL"
    first = conn.execute(newest, (f"-{days - 1} days",)).fetchone()[0]
    return fetch(conn, "SELECT * FROM daily WHERE day >= ? ORDER BY day DESC, model", (first,))


def _blocked(row: Row, alive: Callable[[int], bool]) -> str | None:
    """Why the backlog does not get shorter, if so."""
    if row["pid"] is None or not alive(row["pid"]):
        return "the daemon is not running"
    problem: Any = row["problem"]
    return "paused" if row["paused"] else problem


def process_lives(pid: int) -> bool:
    """Whether there is a process of that number, whoever it belongs to."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # somebody else's, so there is one
        return True
    return True


_MODELS = """
SELECT model, decoder, slots, count(*) AS batches, sum(audio_seconds) AS audio_seconds, sum(wall_s) AS wall_s,
  sum(wall_s) / nullif(sum(audio_seconds), 0) AS rtf FROM batches WHERE outcome = 'done'
GROUP BY 1, 2, 3 ORDER BY 1, 2, 3"""
_LIVE = """
SELECT path, state, size_bytes, audio_seconds, not_before,
  coalesce((SELECT sum(end_ms - start_ms) FROM segments WHERE job_id = jobs.id), 0) / 1000.0 AS covered
FROM jobs WHERE state IN ('queued', 'running')"""
_LENGTHS = """
SELECT path, size_bytes, audio_seconds FROM jobs
WHERE state = 'done' AND audio_seconds IS NOT NULL ORDER BY finished_at DESC LIMIT 500"""
_PACE = """
SELECT wall_s, audio_seconds FROM batches WHERE wall_s IS NOT NULL AND audio_seconds > 0 ORDER BY id DESC LIMIT 20"""
# The index holds all that is asked for; that of the states, which SQLite would take, leads to rows with their texts.
_DONE_SINCE = """
SELECT count(*) AS files, coalesce(sum(audio_seconds), 0.0) AS audio_seconds FROM jobs INDEXED BY jobs_by_day
WHERE state = 'done' AND finished_at >= ?"""
# Batches are in the order of their start, so those of the last days are at the end of the table.
_WORK_SINCE = """
SELECT coalesce(sum(audio_seconds), 0.0) AS decoded_seconds, coalesce(sum(wall_s), 0.0) AS busy_s,
  sum(wall_s) / nullif(sum(audio_seconds), 0) AS rtf FROM batches
WHERE id > coalesce((SELECT max(id) FROM batches WHERE started_at < ?), 0)"""
