"""Which job somebody means who names one on the command line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from dropscribe.jobs.log import Row, fetch, get_job
from dropscribe.jobs.records import printable

if TYPE_CHECKING:
    import sqlite3

# The newest of each path; the name is compared at the end, so no row's text is touched.
_NAMED = """
SELECT max(id) AS id, path FROM jobs WHERE substr(path, -length(?1)) = ?1 GROUP BY path_raw ORDER BY id DESC"""


def find(conn: sqlite3.Connection, name: str) -> tuple[Row | None, list[Row]]:
    """The job of this number, of the file at this path, or of the one file of this name.

    When several files have the name there is no job, and second come the newest job (id, path) of each.
    """
    row = get_job(conn, Path(name).expanduser() if name.startswith("~") else name)
    if row is not None or not name or os.sep in name:
        return row, []
    named = fetch(conn, _NAMED, ["/" + printable(os.fsencode(name))])
    return (get_job(conn, named[0]["id"]), []) if len(named) == 1 else (None, named)
