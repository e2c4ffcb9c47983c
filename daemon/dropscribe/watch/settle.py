"""Is this file whole? Not a change of (size, time, inode) for a while, told by a timer, never by the absence of events.

Knows nothing of watchers or of the job log: the clock and the look at a file are passed in.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from dropscribe.watch.scan import Found

PLACEHOLDER_SECONDS = 30.0  # how often a file that is still in the cloud is looked at
FIRST_RETRY_SECONDS = 1.0
LAST_RETRY_SECONDS = 60.0


@dataclass(slots=True)
class _Waiting:
    quiet: float
    deadline: float
    signature: tuple[int, int, int] | None  # None: never seen, or unseen since an error
    failures: int = 0


class Settle:
    """Files on their way to being whole.

    ``clock`` counts seconds and never goes back; ``look`` returns a file's state, ``None`` when it is gone or no
    regular file, and raises ``OSError`` when it cannot tell. Every file here has a timer: nothing waits for an event.
    """

    def __init__(self, clock: Callable[[], float], look: Callable[[bytes], Found | None]) -> None:
        self._clock = clock
        self._look = look
        self._files: dict[bytes, _Waiting] = {}
        self._timers: list[tuple[float, bytes]] = []

    def __len__(self) -> int:
        return len(self._files)

    def __contains__(self, path: bytes) -> bool:
        return path in self._files

    @property
    def paths(self) -> list[bytes]:
        """What is not whole yet."""
        return list(self._files)

    def watch(self, path: bytes, quiet: float, seen: Found | None = None) -> None:
        """Begin to wait for a file, or look again at one that is waited for.

        Only another signature restarts its clock, so somebody who merely opens and closes it delays nothing. ``seen``
        saves the look when the caller has just had one.
        """
        if seen is None:
            try:
                seen = self._look(path)
            except OSError:
                self._fail(path, quiet)
                return
            if seen is None:
                self._files.pop(path, None)
                return
        waiting = self._files.get(path)
        if waiting is None or waiting.signature != seen.signature:
            self._arm(path, _Waiting(quiet, self._clock() + quiet, seen.signature))

    def forget(self, path: bytes) -> None:
        """Stop waiting."""
        self._files.pop(path, None)

    def next_deadline(self) -> float | None:
        """When ``due`` has something to look at, on the same clock."""
        while self._timers:
            deadline, path = self._timers[0]
            waiting = self._files.get(path)
            if waiting is not None and waiting.deadline == deadline:
                return deadline
            heapq.heappop(self._timers)
        return None

    def due(self, limit: int | None = None) -> list[Found]:
        """Files that are whole now; they are no longer waited for. Looks at ``limit`` files at most."""
        whole = []
        looks = 0
        while (deadline := self.next_deadline()) is not None and deadline <= self._clock():
            if limit is not None and looks >= limit:
                break
            looks += 1
            _, path = heapq.heappop(self._timers)
            found = self._settled(path, self._files[path])
            if found is not None:
                whole.append(found)
        return whole

    def _settled(self, path: bytes, waiting: _Waiting) -> Found | None:
        try:
            found = self._look(path)
        except OSError:  # busy or forbidden for now; not a verdict
            self._fail(path, waiting.quiet)
            return None
        if found is None:
            del self._files[path]
            return None
        if found.placeholder:
            # fetched some day: then it has a quiet time like any other
            self._arm(path, _Waiting(waiting.quiet, self._clock() + max(waiting.quiet, PLACEHOLDER_SECONDS), None))
            return None
        if found.signature != waiting.signature:
            self._arm(path, _Waiting(waiting.quiet, self._clock() + waiting.quiet, found.signature))
            return None
        del self._files[path]
        return found

    def _fail(self, path: bytes, quiet: float) -> None:
        waiting = self._files.get(path)
        failures = waiting.failures + 1 if waiting else 1
        delay = min(LAST_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2 ** (failures - 1))
        self._arm(path, _Waiting(quiet, self._clock() + delay, None, failures))

    def _arm(self, path: bytes, waiting: _Waiting) -> None:
        self._files[path] = waiting
        heapq.heappush(self._timers, (waiting.deadline, path))
