"""One supervisor a job log: an flock beside it, which the system takes back however its holder ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import TYPE_CHECKING

from dropscribe.errors import AlreadyRunning, OutputUnwritable

if TYPE_CHECKING:
    from typing import Self


class InstanceLock:
    """Context manager. The file stays: unlinking it would let two processes hold "the" lock."""

    def __init__(self, database: Path) -> None:
        self.path = Path(f"{database}.lock")
        self._database = database
        self._descriptor = -1

    def __enter__(self) -> Self:
        """Raises ``AlreadyRunning`` at once, naming the holder; ``OutputUnwritable``."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise OutputUnwritable(f"cannot write {self.path}: {error.strerror}; make its folder writable") from None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(self._descriptor, 32).decode("ascii", "replace").strip()
            os.close(self._descriptor)
            who = f"process {holder}" if holder else "another process"
            raise AlreadyRunning(
                f"dropscribe already runs on {self._database} ({who}); stop it, or choose another `database`"
            ) from None
        with contextlib.suppress(OSError):  # a full disk; the name is a courtesy, the lock is what counts
            os.ftruncate(self._descriptor, 0)
            os.write(self._descriptor, f"{os.getpid()}\n".encode())
        return self

    def __exit__(self, *exception: object) -> None:
        with contextlib.suppress(OSError):
            os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)
