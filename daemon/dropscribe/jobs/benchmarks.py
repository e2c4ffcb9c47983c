"""What ``bench`` measured, and what was taken over from it."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dropscribe.jobs.database import transaction

if TYPE_CHECKING:
    from dropscribe.jobs.database import Database


_PATIENCE_SECONDS = 1.0  # for another program's lock
_LARGEST = 64  # as `decode.batch_size` allows: the log may have been edited by hand


def add(
    db: Database,
    *,
    kind: str,
    measured_at: str,
    device: str | None,
    model: str | None,
    decoder: str | None,
    slots: int | None,
    audio_seconds: float | None,
    wall_s: float | None,
    result: dict[str, Any],
) -> int:
    """Keep one report; returns its id."""
    with transaction(db):
        cursor = db.conn.execute(
            "INSERT INTO benchmarks (measured_at, kind, device, model, decoder, slots, audio_seconds, wall_s, result) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (measured_at, kind, device, model, decoder, slots, audio_seconds, wall_s, json.dumps(result)),
        )
    return int(cursor.lastrowid or 0)


def applied_rows(conn: sqlite3.Connection, key: str, decoder: str) -> int | None:
    """The most rows side by side that ``bench sweep --apply`` found best for ``decoder``; ``None``: none was.

    ``key`` stands for model, device and library version, as ``asr.selfcheck.key_of`` makes it.
    """
    row = conn.execute(
        "SELECT applied ->> '$.batch_size' FROM (SELECT id, result -> '$.summary.applied' AS applied FROM benchmarks "
        "WHERE kind = 'sweep') WHERE applied ->> '$.key' = ? AND applied ->> '$.decoder' = ? ORDER BY id DESC LIMIT 1",
        (key, decoder),
    ).fetchone()
    return None if row is None else int(row[0])


def applied_sizes(path: str | Path, key: str) -> dict[str, int]:
    """What ``bench sweep --apply`` found best for ``key``, by decoder; the job log at ``path`` is only read.

    Nothing is found in a log that is not there, locked, damaged, older or newer: a benchmark is a hint, and whoever
    asks works without one.
    """
    found = {}
    try:
        uri = Path(path).absolute().as_uri()
        with closing(sqlite3.connect(f"{uri}?mode=ro", uri=True, timeout=_PATIENCE_SECONDS)) as conn:
            for decoder in ("bulk-sync", "batched"):
                size = applied_rows(conn, key, decoder)
                if size is not None and 1 <= size <= _LARGEST:
                    found[decoder] = size
    except (sqlite3.Error, ValueError, TypeError):
        return {}
    return found
