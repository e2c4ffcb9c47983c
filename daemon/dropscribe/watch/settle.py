"""Is this file whole? Not a change of (size, time, inode) for a while, told by a timer, never by the absence of events.

Knows nothing of watchers or of the job log: the clock and the look at a file are passed in.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from dropscribe.watch.scan import Found

PLACEHOLDER_SECONDS = 30.0  # how often a file that is still in the cloud is looked at
FIRST_RETRY_SECONDS = 1.0
LAST_RETRY_SECONDS = 60.0
TICKS = 20  # a second: deadlines are rounded up to a tick, so that a burst shares one timer


@dataclass(slots=True)
class _Waiting:
    quiet: float
    deadline: float
    signature: int | None  # hashed, for there may be 100,000; None: never seen, or unseen since an error
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
        self._timers: list[float] = []  # deadlines, each once
        self._due: dict[float, list[bytes]] = {}  # what was armed for one; it may have been armed anew since

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
        if waiting is None or waiting.signature != hash(seen.signature):
            self._arm(path, _Waiting(quiet, self._clock() + quiet, hash(seen.signature)))

    def forget(self, path: bytes) -> None:
        """Stop waiting."""
        self._files.pop(path, None)

    def next_deadline(self) -> float | None:
        """When ``due`` has something to look at, on the same clock."""
        while self._timers:
            deadline = self._timers[0]
            armed = self._due[deadline]
            while armed and not self._is_armed(armed[-1], deadline):
                armed.pop()
            if armed:
                return deadline
            del self._due[heapq.heappop(self._timers)]
        return None

    def due(self, limit: int | None = None) -> list[Found]:
        """Files that are whole now; they are no longer waited for. Looks at ``limit`` files at most."""
        whole: list[Found] = []
        looks = 0
        while (deadline := self.next_deadline()) is not None and deadline <= self._clock():
            armed, self._due[deadline] = self._due[deadline], []
            for place, path in enumerate(armed):
                if limit is not None and looks >= limit:
                    self._due[deadline] += armed[place:]
                    return whole
                if not self._is_armed(path, deadline):
                    continue
                looks += 1
                waiting = self._files[path]
                waiting.deadline = math.inf  # not armed any more, so that a name that is listed twice is seen once
                found = self._settled(path, waiting)
                if found is not None:
                    whole.append(found)
        return whole

    def _is_armed(self, path: bytes, deadline: float) -> bool:
        waiting = self._files.get(path)
        return waiting is not None and waiting.deadline == deadline

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
        if hash(found.signature) != waiting.signature:
            self._arm(path, _Waiting(waiting.quiet, self._clock() + waiting.quiet, hash(found.signature)))
            return None
        del self._files[path]
        return found

    def _fail(self, path: bytes, quiet: float) -> None:
        waiting = self._files.get(path)
        failures = waiting.failures + 1 if waiting else 1
        delay = min(LAST_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2 ** (failures - 1))
        self._arm(path, _Waiting(quiet, self._clock() + delay, None, failures))

    def _arm(self, path: bytes, waiting: _Waiting) -> None:
        waiting.deadline = math.ceil(waiting.deadline * TICKS) / TICKS
        self._files[path] = waiting
        if waiting.deadline not in self._due:
            self._due[waiting.deadline] = []
            heapq.heappush(self._timers, waiting.deadline)
        self._due[waiting.deadline].append(path)
