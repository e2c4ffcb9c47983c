"""A file that is new here and gone from where it was is the same file: its job goes with it.

Told by inode, size and time within one mount while this process has seen both ends, else by equal content. By content
alone only jobs that are not finished follow (or whose file went missing): content that was *done* under a name that is
gone may be dropped again on purpose, and gets its transcripts without being decoded (``duplicates``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from dropscribe.jobs import lookups
from dropscribe.jobs.records import printable
from dropscribe.watch import scan

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable

    from dropscribe.jobs.queue import Queue
    from dropscribe.watch.roots import Root
    from dropscribe.watch.scan import Found

log = structlog.get_logger("watch")


class Moves:
    """``owner`` names the root of a path. A file to be followed must have no row of its own."""

    def __init__(self, queue: Queue, owner: Callable[[bytes], Root | None]) -> None:
        self._queue = queue
        self._owner = owner

    def by_inode(self, root: Root, found: Found) -> bytes | None:
        """Follow a file this process has seen elsewhere; returns the old path."""
        for row in lookups.same_signature(self._queue.db, found.size, found.mtime_ns):
            old = row["path_raw"]
            before = self._owner(old)
            if before is None or not before.memory.held(old, found.signature) or before.device != root.device:
                continue
            if self._left(old) and self._follow(row, root, found):
                return bytes(old)
        return None

    def may_follow(self, found: Found) -> bool:
        """Whether knowing the content could tell that this is a move."""
        return any(self._left(row["path_raw"]) for row in lookups.unfinished_of_size(self._queue.db, found.size))

    def by_content(self, root: Root, found: Found, content_hash: str) -> bytes | None:
        """Follow a file by its content; returns the old path."""
        for row in lookups.unfinished_of_size(self._queue.db, found.size):
            old = row["path_raw"]
            if row["content_hash"] == content_hash and self._left(old) and self._follow(row, root, found):
                self._queue.update_signature(row["id"], found.size, found.mtime_ns)
                return bytes(old)
        return None

    def _left(self, path: bytes) -> bool:
        """Gone from a folder that is itself there: what lies on an unplugged disk has not moved."""
        root = self._owner(path)
        return scan.is_gone(path) and (root is None or root.is_there())

    def _follow(self, row: sqlite3.Row, root: Root, found: Found) -> bool:
        old = row["path_raw"]
        if old == found.path or not self._queue.move(row["id"], found.path, root_id=root.id):
            return False
        if row["state"] == "missing":  # it was only looked for in the wrong place
            self._queue.retry([row["id"]])
        log.info("moved", job=row["id"], path=printable(found.path), was=printable(old))
        before = self._owner(old)
        if before is not None:
            before.memory.forget(old)
        root.memory.remember(found)
        return True
