"""Content hashes for the few files that cannot be judged without, off the deciding thread.

Needed only where a file of a finished job has kept its size but not its time or inode: equal content means that nothing
happened. A reader child does the reading, so a dead network share hangs that child and not the watcher.
"""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dropscribe.errors import DropscribeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from dropscribe.settings import Reader

IDLE_SECONDS = 30.0  # then the reader child goes


@dataclass(frozen=True)
class Hashed:
    """One answer: ``media`` has ``content_hash``, ``size_bytes``, ``mtime_ns``; or ``error`` says why there is none."""

    path: bytes
    media: Any = None
    error: DropscribeError | None = None


class Hasher:
    """A thread that hashes one file after another; started when first needed. ``done`` is called after each answer."""

    def __init__(self, settings: Reader, done: Callable[[], None], reader: Callable[[], Any] | None = None) -> None:
        self._settings = settings
        self._done = done
        self._reader = reader or self._default_reader
        self._wanted: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Hashed] = queue.SimpleQueue()
        self._pending: set[bytes] = set()
        self._thread: threading.Thread | None = None

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def pending(self) -> set[bytes]:
        """Files asked for and not answered."""
        return set(self._pending)

    def ask(self, path: bytes) -> None:
        """Have a file hashed; asking twice is asking once."""
        if path in self._pending:
            return
        self._pending.add(path)
        self._wanted.put(path)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="hasher", daemon=True)
            self._thread.start()

    def answers(self) -> list[Hashed]:
        """What has been hashed since the last call."""
        found = []
        while not self._answers.empty():
            answer = self._answers.get()
            self._pending.discard(answer.path)
            found.append(answer)
        return found

    def close(self) -> None:
        """Ask the thread to leave. It is a daemon and its child leaves with us, so nobody waits for a hanging read."""
        self._wanted.put(None)

    def _run(self) -> None:
        reader = None
        while True:
            try:
                path = self._wanted.get(timeout=IDLE_SECONDS if reader is not None else None)
            except queue.Empty:
                _end(reader)
                reader = None
                continue
            if path is None:
                _end(reader)
                return
            try:
                reader = reader or self._reader()
                self._answers.put(Hashed(path, reader.hash(path)))
            except DropscribeError as error:
                self._answers.put(Hashed(path, error=error))
            except Exception as error:  # a bug here must not leave a file unanswered for ever
                self._answers.put(Hashed(path, error=DropscribeError(f"cannot hash: {error!r}")))
            self._done()

    def _default_reader(self) -> Any:
        from dropscribe.audio.client import Reader  # numpy comes with it, and hashing is rare

        return Reader(self._settings)


def _end(reader: Any) -> None:
    if reader is not None:
        reader.close()
