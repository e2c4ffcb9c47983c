"""One supervisor a job log: an flock beside it, which the system takes back however its holder ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from dropscribe.errors import AlreadyRunning, OutputUnwritable

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

TRIES = 6
BETWEEN_TRIES = 0.05


class InstanceLock:
    """Context manager. The file stays: unlinking it would let two processes hold "the" lock."""

    def __init__(self, database: Path, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self._sleep = sleep
        self.path = Path(f"{database}.lock")
        self._database = database
        self._descriptor = -1

    def __enter__(self) -> Self:
        """Raises ``AlreadyRunning``, naming the holder; ``OutputUnwritable``."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise OutputUnwritable(f"cannot write {self.path}: {error.strerror}; make its folder writable") from None
        if not self._locked():
            holder = os.read(self._descriptor, 32).decode("ascii", "replace").strip()
            os.close(self._descriptor)
            who = f"process {holder}" if holder else "another process"
            raise AlreadyRunning(
                f"dropscribe already runs on {self._database} ({who}); stop it, or choose another `database`"
            )
        with contextlib.suppress(OSError):  # a full disk; the name is a courtesy, the lock is what counts
            os.ftruncate(self._descriptor, 0)
            os.write(self._descriptor, f"{os.getpid()}\n".encode())
        return self

    def _locked(self) -> bool:
        """Tried more than once: who only asks whether somebody runs (`service status`) holds it for an instant."""
        for number in range(TRIES):
            if number:
                self._sleep(BETWEEN_TRIES)
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
        return False

    def __exit__(self, *exception: object) -> None:
        with contextlib.suppress(OSError):
            os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)
