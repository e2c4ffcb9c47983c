"""What a scan would do now: one reason a file, nothing written. For ``dropscribe scan --dry-run``."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dropscribe.jobs.records import KnownFile, printable
from dropscribe.watch import scan
from dropscribe.watch.decision import decide
from dropscribe.watch.eligibility import plan
from dropscribe.watch.health import examine

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator

    from dropscribe.settings import Settings, Watch
    from dropscribe.watch.eligibility import Rules
    from dropscribe.watch.scan import Found

_NEWEST = """SELECT id, state, size_bytes, mtime_ns, content_hash, claim_id, error_kind FROM jobs WHERE path_raw = ?
  ORDER BY id DESC LIMIT 1"""


class Preview(NamedTuple):
    """One path. ``takes``: it would be queued. ``reason``: a stable word; ``job``: what the job log has of it."""

    root: str
    path: str
    takes: bool
    reason: str
    job: int | None = None


def preview(settings: Settings, conn: sqlite3.Connection | None) -> Iterator[Preview]:
    """Every path in the watched folders, files and folders that are not gone into. ``conn``: the job log, if any.

    Reasons to take: ``new`` · ``changed`` · ``back`` (it was missing) · ``maybe_changed`` (only its content can tell).
    Others: the state of its job (``done``, ``queued``, …; of skipped ones their ``error_kind``), ``preexisting``,
    ``placeholder``, ``cannot_be_read``, ``own_output`` (a transcript we wrote), why its name is not ours
    (``not_media``, ``hidden``, ``temporary``, ``system``, ``excluded``, ``not_included``, ``not_recursive``,
    ``other_root``, ``not_regular``, ``link_loop``), and of a root ``away``, ``unreadable`` or ``duplicate_watch``.
    """
    planned, twins = plan(settings.watch)
    for twin, _ in twins:
        yield Preview(str(twin.path), str(twin.path), takes=False, reason="duplicate_watch")
    for watch, rules in planned:
        health = examine(rules.root, was_mounted=_was_mounted(conn, printable(rules.root)))
        if health.state != "ok":
            yield Preview(str(watch.path), str(watch.path), takes=False, reason=health.state)
        else:
            yield from _root(watch, rules, conn)


def _root(watch: Watch, rules: Rules, conn: sqlite3.Connection | None) -> Iterator[Preview]:
    root = printable(rules.root)
    leave = watch.existing == "leave" and not _scanned(conn, root)
    record = scan.Pass()
    left_out: list[tuple[bytes, str]] = []

    def reject(path: bytes, why: str) -> None:
        left_out.append((path, why))

    def told() -> Iterator[Preview]:
        left_out.extend((path, "cannot_be_read") for path, _ in record.errors)
        left_out.extend((path, "placeholder") for path in record.unread)
        for path, why in sorted(left_out):
            ours = why == "not_media" and _is_output(conn, path)
            yield Preview(root, printable(path), takes=False, reason="own_output" if ours else why)
        for done in (left_out, record.errors, record.unread):
            done.clear()

    for folder in scan.folders(rules, record, rejected=reject):
        for found in sorted(folder.files or ()):
            yield _file(root, found, conn, leave=leave)
        yield from told()
    yield from told()  # links come last


def _file(root: str, found: Found, conn: sqlite3.Connection | None, *, leave: bool) -> Preview:
    row = None if conn is None else conn.execute(_NEWEST, (found.path,)).fetchone()
    known = None if row is None else KnownFile(*row)
    decision = decide(found, known)
    if found.placeholder:
        takes, reason = False, "placeholder"
    elif known is None:
        takes, reason = not leave, "preexisting" if leave else "new"
    elif decision == "nothing":
        takes, reason = False, str(known.error_kind) if known.state == "skipped" else known.state
    elif decision == "compare":
        takes, reason = True, "maybe_changed"
    else:
        takes, reason = True, "back" if known.state == "missing" else "changed"
    return Preview(root, printable(found.path), takes, reason, None if known is None else known.id)


def _is_output(conn: sqlite3.Connection | None, path: bytes) -> bool:
    """Whether we wrote it."""
    return conn is not None and conn.execute("SELECT 1 FROM outputs WHERE path_raw = ?", (path,)).fetchone() is not None


def _scanned(conn: sqlite3.Connection | None, root: str) -> bool:
    """Whether a root has been looked at before."""
    query = "SELECT 1 FROM roots WHERE path = ? AND last_scan_at IS NOT NULL"
    return conn is not None and conn.execute(query, (root,)).fetchone() is not None


def _was_mounted(conn: sqlite3.Connection | None, root: str) -> bool:
    """Whether a root was a mount point when it was last well: then an empty folder in its place is none of ours."""
    query = "SELECT 1 FROM roots WHERE path = ? AND mounted = 1"
    return conn is not None and conn.execute(query, (root,)).fetchone() is not None
