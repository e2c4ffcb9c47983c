"""A watched folder with real files, a clock that only moves when told to, and a reconciler driven by hand."""

# Paths are bytes here, which pathlib does not take.
# ruff: noqa: PTH103, PTH118, PTH120, PTH123

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from dropscribe.jobs.database import open_database
from dropscribe.jobs.queue import Queue
from dropscribe.settings import Settings
from dropscribe.watch.reconcile import Reconciler

if TYPE_CHECKING:
    from pathlib import Path


class Clock:
    """Seconds; ``jump`` moves the wall clock alone, as sleep does."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.asleep = 0.0

    def __call__(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now + self.asleep


class Fingerprint:
    """What a reader's ``hash`` gives: the content itself stands for its hash."""

    def __init__(self, path: bytes) -> None:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            self.content_hash = file.read().hex().rjust(64, "0")[-64:]
        self.size_bytes, self.mtime_ns, self.inode = status.st_size, status.st_mtime_ns, status.st_ino


class FakeReader:
    def hash(self, path: bytes) -> Fingerprint:
        return Fingerprint(path)

    def close(self) -> None:
        pass


class World:
    """``folder`` is watched; ``tables`` are further ``[[watch]]`` tables or replace it."""

    def __init__(self, base: Path, *tables: dict[str, Any], observe: bool = False, **kw: Any) -> None:
        self.base = base
        self.folder = base / "in"
        self.folder.mkdir(exist_ok=True)
        self.clock = Clock()
        self.settings = Settings.model_validate(
            {"database": base / "jobs.db", "watch": tables or ({"path": self.folder},), "settle": {"quiet_seconds": 3}}
        )
        self.db = open_database(self.settings.database)
        self.db.execute("PRAGMA synchronous = OFF")
        self.queue = Queue(self.db)
        self.wakes = 0
        self.kw = {"observe": observe, "reader": FakeReader, **kw}
        self.reconciler = self.start()

    def start(self) -> Reconciler:
        """A fresh reconciler, as after a restart."""
        self.reconciler = Reconciler(
            self.db, self.queue, self.settings, clock=self.clock, wall=self.clock.wall, queued=self._woken, **self.kw
        )
        return self.reconciler

    def _woken(self) -> None:
        self.wakes += 1

    def drop(self, name: str | bytes, content: bytes = b"sound", *, at: int | None = None) -> bytes:
        path = os.path.join(os.fsencode(self.folder), os.fsencode(name))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(content)
        if at is not None:
            os.utime(path, ns=(at, at))
        return path

    def step(self) -> float:
        return self.reconciler.step()

    def advance(self, seconds: float) -> None:
        """Let time pass, waking whenever the reconciler asked to be."""
        until = self.clock.now + seconds
        pause = self.step()
        while self.clock.now + pause < until:
            self.clock.now += max(pause, 0.01)
            pause = self.step()
        self.clock.now = until
        self.step()

    def hint(self, path: str | bytes) -> None:
        raw = os.path.join(os.fsencode(self.folder), os.fsencode(path))
        self.reconciler.mailbox.hint(os.fsencode(self.folder), raw)

    def scan(self) -> None:
        self.reconciler.rescan("test")
        self.step()

    def settle(self) -> None:
        """A scan, the quiet time, and what follows."""
        self.scan()
        self.advance(3.1)
        self.hashed()

    def hashed(self) -> None:
        """Wait until every file asked for is hashed."""
        while len(self.reconciler.hasher):
            self.reconciler.mailbox.wait(0.05)
            self.step()

    def jobs(self) -> list[tuple[str, str, str | None]]:
        """(name, state, error_kind), oldest first."""
        rows = self.db.rows("SELECT path_raw, state, error_kind FROM jobs ORDER BY id")
        prefix = os.fsencode(self.folder) + b"/"
        return [(os.fsdecode(row[0].removeprefix(prefix)), row[1], row[2]) for row in rows]

    def states(self) -> dict[str, str]:
        """name → state of its newest row."""
        return {name: state for name, state, _ in self.jobs()}

    def finish(self, name: str, state: str = "done") -> None:
        """As if the worker had read and finished a file."""
        path = os.path.join(os.fsencode(self.folder), os.fsencode(name))
        self.db.execute(
            "UPDATE jobs SET state = ?, error_kind = iif(? = 'done', NULL, 'decode_failed'), content_hash = ?, "
            "claim_id = NULL, finished_at = '2026-01-01T00:00:00.000Z' WHERE path_raw = ? AND state = 'queued'",
            (state, state, Fingerprint(path).content_hash, path),
        )

    def root(self) -> dict[str, Any]:
        return dict(self.db.rows("SELECT * FROM roots ORDER BY id LIMIT 1")[0])

    def close(self) -> None:
        self.reconciler.close()
        self.db.close()
