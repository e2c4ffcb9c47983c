"""Content hashes for the few files that cannot be judged without, off the deciding thread.

Needed where a file of a finished job has kept its size but not its time or inode (equal content means that nothing
happened), and where a file nobody knows has a transcript of ours beside it. A reader child does the reading, so a dead
network share hangs that child and not the watcher.
"""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dropscribe.errors import DropscribeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from dropscribe.jobs.records import Restorable
    from dropscribe.settings import Reader

    Check = Callable[[Callable[[], str]], Restorable | None]

IDLE_SECONDS = 30.0  # then the reader child goes


@dataclass(frozen=True)
class Hashed:
    """One answer: ``media`` has ``content_hash``, ``size_bytes``, ``mtime_ns``; or ``error`` says why there is none.

    ``restorable``: what the check that was asked for found. With neither ``media`` nor ``error`` that check did not
    come to the hash.
    """

    path: bytes
    media: Any = None
    restorable: Restorable | None = None
    error: DropscribeError | None = None


class Hasher:
    """A thread that hashes one file after another; started when first needed. ``done`` is called after each answer."""

    def __init__(self, settings: Reader, done: Callable[[], None], reader: Callable[[], Any] | None = None) -> None:
        self._settings = settings
        self._done = done
        self._reader = reader or self._default_reader
        self._wanted: queue.SimpleQueue[tuple[bytes, Check | None] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Hashed] = queue.SimpleQueue()
        self._pending: set[bytes] = set()
        self._thread: threading.Thread | None = None

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def pending(self) -> set[bytes]:
        """Files asked for and not answered."""
        return set(self._pending)

    def ask(self, path: bytes, check: Check | None = None) -> None:
        """Have a file hashed; asking twice is asking once. With ``check``, that decides whether it needs hashing."""
        if path in self._pending:
            return
        self._pending.add(path)
        self._wanted.put((path, check))
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
                wanted = self._wanted.get(timeout=IDLE_SECONDS if reader is not None else None)
            except queue.Empty:
                _end(reader)
                reader = None
                continue
            if wanted is None:
                _end(reader)
                return
            reader = reader or self._reader()
            self._answers.put(_answer(reader, *wanted))
            self._done()

    def _default_reader(self) -> Any:
        from dropscribe.audio.client import Reader  # numpy comes with it, and hashing is rare

        return Reader(self._settings)


def _answer(reader: Any, path: bytes, check: Check | None) -> Hashed:
    media: Any = None

    def content_hash() -> str:
        nonlocal media
        media = reader.hash(path)
        return str(media.content_hash)

    try:
        if check is not None:
            restorable = check(content_hash)
            return Hashed(path, media, restorable)
        content_hash()
        return Hashed(path, media)
    except DropscribeError as error:
        return Hashed(path, error=error)
    except Exception as error:  # a bug here must not leave a file unanswered for ever
        return Hashed(path, error=DropscribeError(f"cannot hash: {error!r}"))


def _end(reader: Any) -> None:
    if reader is not None:
        reader.close()
