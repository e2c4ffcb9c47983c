"""The read side of the job log: plain functions over a ``connect_readonly`` connection. Loads nothing but sqlite3.

Every function fetches all its rows, so no read transaction outlives a call and holds up the checkpoint.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
from typing import TYPE_CHECKING, Any

from dropscribe.jobs.database import connect_readonly
from dropscribe.jobs.records import FINISHED, STATES, pauses_from, printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

Row = dict[str, Any]

# Everything but the text: a list of thousands stays small.
LISTED = (
    "id", "path", "path_raw", "state", "error_kind", "error", "attempts", "suspect", "crashes", "priority",
    "size_bytes", "audio_seconds", "language", "model", "queued_at", "not_before", "created_at", "started_at",
    "finished_at", "batch_id", "reused_from", "warnings", "transcript_path",
)  # fmt: skip
_LISTED = ", ".join(f"j.{column}" for column in LISTED)

# Scripts written without spaces: the tokenizer sees a whole clause as one word, so substrings are looked for instead.
_UNSPACED = re.compile(
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
MARK_START, MARK_END = "\x02", "\x03"  # around a hit in a snippet; the caller turns them into its own highlighting


def list_jobs(
    conn: sqlite3.Connection,
    *,
    states: Sequence[str] = (),
    limit: int | None = 50,
    root: str | bytes | Path | None = None,
    error_kind: str | None = None,
    contains: str | None = None,
    since: str | None = None,
) -> list[Row]:
    """Jobs, newest first, without their text.

    ``contains`` is a part of the path; ``since`` the earliest UTC time a job ended, or was taken in if it has not.
    """
    unknown = set(states) - set(STATES)
    if unknown:
        raise ValueError(f"no such state: {', '.join(sorted(unknown))}; known are {', '.join(STATES)}")
    where: list[str] = []
    values: list[Any] = []
    if states:
        where.append(f"j.state IN ({', '.join('?' * len(states))})")
        values.extend(states)
    if root is not None:
        where.append("j.root_id IN (SELECT id FROM roots WHERE path = ?)")
        values.append(printable(os.fsencode(root)))
    if error_kind is not None:
        where.append("j.error_kind = ?")
        values.append(error_kind)
    if contains is not None:
        where.append("instr(j.path, ?) > 0")
        values.append(contains)
    if since is not None:
        where.append("coalesce(j.finished_at, j.created_at) >= ?")
        values.append(since)
    condition = f"WHERE {' AND '.join(where)}" if where else ""
    query = f"SELECT {_LISTED} FROM jobs j {condition} ORDER BY j.id DESC LIMIT ?"  # noqa: S608 - constants, values bound
    rows = fetch(conn, query, (*values, -1 if limit is None else limit))
    return [{**row, "warnings": json.loads(row["warnings"])} for row in rows]


def get_job(conn: sqlite3.Connection, ident: int | str | bytes | Path) -> Row | None:
    """Everything of one job by id, or the newest one of a path; a path may be relative. None if there is none."""
    if isinstance(ident, int) or (isinstance(ident, str) and ident.isdecimal()):
        rows = fetch(conn, "SELECT * FROM jobs WHERE id = ?", (int(ident),)) if int(ident) < 2**63 else []
    else:
        raw = os.path.abspath(os.fsencode(ident))  # noqa: PTH100 - bytes, and links stay as they are
        rows = fetch(conn, "SELECT * FROM jobs WHERE path_raw = ? ORDER BY id DESC LIMIT 1", (raw,))
        shown = printable(os.fsencode(ident))
        if not rows and "\\" in shown:  # as printed by us; there is no index for that
            rows = fetch(conn, "SELECT * FROM jobs WHERE path = ? ORDER BY id DESC LIMIT 1", (shown,))
    return {**rows[0], "warnings": json.loads(rows[0]["warnings"])} if rows else None


def segments(conn: sqlite3.Connection, job_id: int) -> list[Row]:
    """The segments that count for a job, in order: of its own ``params_key``, or those of the job it reuses.

    A job that is not done yet shows what is finished so far.
    """
    query = """
        SELECT s.start_ms, s.end_ms, s.text, s.language, s.tokens, s.finish_reason, s.pauses
        FROM jobs j JOIN segments s ON s.job_id = coalesce(j.reused_from, j.id)
        WHERE j.id = ? AND s.params_key = CASE WHEN j.state = 'done' THEN j.params_key
          ELSE (SELECT params_key FROM segments WHERE job_id = j.id ORDER BY id DESC LIMIT 1) END
        ORDER BY s.start_ms
        """
    return [{**row, "pauses": pauses_from(row["pauses"])} for row in fetch(conn, query, (job_id,))]


def transcript(conn: sqlite3.Connection, job_id: int) -> list[Row]:
    """The segments its ``text`` was made of, whatever became of the job since: it keeps them until it has new ones."""
    query = """
        SELECT s.start_ms, s.end_ms, s.text, s.language, s.tokens, s.finish_reason, s.pauses
        FROM jobs j JOIN segments s ON s.job_id = coalesce(j.reused_from, j.id) AND s.params_key = j.params_key
        WHERE j.id = ? ORDER BY s.start_ms
        """
    return [{**row, "pauses": pauses_from(row["pauses"])} for row in fetch(conn, query, (job_id,))]


def timings(conn: sqlite3.Connection, job_id: int) -> list[Row]:
    """What a job cost in each batch it took part in (view ``transcript_timings``)."""
    return fetch(conn, "SELECT * FROM transcript_timings WHERE job_id = ? ORDER BY batch_id", (job_id,))


def outputs(conn: sqlite3.Connection, job_id: int) -> list[Row]:
    """The files written for a job."""
    query = "SELECT format, path_raw, sha256, next_sha256, written_at FROM outputs WHERE job_id = ? ORDER BY rowid"
    return [{**row, "path": printable(row["path_raw"])} for row in fetch(conn, query, (job_id,))]


def counts(conn: sqlite3.Connection) -> dict[str, int]:
    """Jobs by state, all states."""
    found = dict(conn.execute("SELECT state, count(*) FROM jobs GROUP BY state").fetchall())
    return {state: found.get(state, 0) for state in STATES}


def roots(conn: sqlite3.Connection) -> list[Row]:
    """The watched folders as the last scan saw them."""
    return fetch(conn, "SELECT * FROM roots ORDER BY path")


def service(conn: sqlite3.Connection) -> Row:
    """The service row."""
    return fetch(conn, "SELECT pid, worker_pid, started_at, paused, problem FROM service")[0]


def queue(conn: sqlite3.Connection, limit: int | None = None) -> list[Row]:
    """What is being done and what comes next (view ``queue``)."""
    return fetch(conn, "SELECT * FROM queue ORDER BY place LIMIT ?", (-1 if limit is None else limit,))


def search(conn: sqlite3.Connection, words: str, *, limit: int = 20, exact: bool = False) -> list[Row]:
    """Segments of transcripts that hold all ``words``, newest job first: path, times, a snippet with the hits marked.

    ``same_content`` are the paths of further files with this very content.
    ``exact`` hands ``words`` to FTS5 as a query of its own language; raises ``ValueError`` where that is not one.
    """
    if not words.strip():
        return []
    if not exact and _UNSPACED.search(words):
        rows = _search_substrings(conn, words.split(), limit)
    else:
        query = words if exact else " ".join(f'"{word.replace(chr(34), chr(34) * 2)}"' for word in words.split())
        try:
            rows = fetch(conn, _SEARCH, (MARK_START, MARK_END, query, limit))
        except sqlite3.OperationalError as error:
            raise ValueError(f"cannot search for {words!r}: {error}") from None
    newest = {row["job_id"]: place for place, row in reversed(list(enumerate(rows)))}
    same = _same_content(conn, newest)
    rows = [{**row, "same_content": same.get(row["job_id"], [])} for row in rows]
    return sorted(rows, key=lambda row: (newest[row["job_id"]], row["start_ms"]))


def _same_content(conn: sqlite3.Connection, job_ids: Iterable[int]) -> dict[int, list[str]]:
    """The paths of those jobs that have no segments of their own because their content was known."""
    found: dict[int, list[str]] = {}
    for job_id in job_ids:
        for row in fetch(conn, "SELECT path FROM jobs WHERE reused_from = ? AND state = 'done' ORDER BY id", (job_id,)):
            found.setdefault(job_id, []).append(row["path"])
    return found


def _search_substrings(conn: sqlite3.Connection, words: Sequence[str], limit: int) -> list[Row]:
    # lower() costs more than the search; words of these scripts have no case
    tests = [
        "instr(s.text, ?) > 0" if word.lower() == word.upper() else "instr(lower(s.text), lower(?)) > 0"
        for word in words
    ]
    rows = fetch(conn, _SUBSTRINGS.format(condition=" AND ".join(tests)), (*words, limit))
    pattern = re.compile("|".join(re.escape(word) for word in sorted(words, key=len, reverse=True)), re.IGNORECASE)
    return [{**row, "snippet": _snippet(row["snippet"], pattern)} for row in rows]


def _snippet(text: str, pattern: re.Pattern[str], around: int = 40) -> str:
    first = pattern.search(text)
    start = max(0, first.start() - around) if first else 0
    cut = text[start : start + 3 * around]
    marked = pattern.sub(lambda hit: f"{MARK_START}{hit.group()}{MARK_END}", cut)
    return f"{'…' if start else ''}{marked}{'…' if start + len(cut) < len(text) else ''}"


def fetch(conn: sqlite3.Connection, query: str, values: Sequence[Any] = ()) -> list[Row]:
    """All rows of one query."""
    return [dict(row) for row in conn.execute(query, values).fetchall()]


_HIT = """s.job_id, j.path, j.transcript_path, s.start_ms, s.end_ms, s.language"""
# A job that was queued again has its earlier text until there is a new one.
_COUNTED = "j.text IS NOT NULL AND s.params_key = j.params_key"
# In the order of the row ids, which full-text search walks by itself: twenty of 100,000 hits cost as little as twenty.
_SEARCH = f"""
SELECT {_HIT}, snippet(segments_fts, 0, ?, ?, '…', 24) AS snippet
FROM segments_fts f CROSS JOIN segments s ON s.id = f.rowid CROSS JOIN jobs j ON j.id = s.job_id
WHERE segments_fts MATCH ? AND {_COUNTED} ORDER BY f.rowid DESC LIMIT ?"""  # noqa: S608
_SUBSTRINGS = f"""
SELECT {_HIT}, s.text AS snippet FROM segments s CROSS JOIN jobs j ON j.id = s.job_id
WHERE {{condition}} AND {_COUNTED} ORDER BY s.id DESC LIMIT ?"""  # noqa: S608

__all__ = [
    "FINISHED", "LISTED", "MARK_END", "MARK_START", "STATES", "Row", "connect_readonly", "counts", "fetch",
    "get_job", "list_jobs", "outputs", "queue", "roots", "search", "segments", "service", "timings", "transcript",
]  # fmt: skip
