"""One model at a time on this machine's accelerator, for all processes of a user.

The lock is held from before a model is loaded until it is gone. Two files in a folder of the user's, both flocked, so
that the system takes them back however a process ends: ``gpu.lock`` says who holds it, ``gpu.waiting`` is shared by all
who wait, so that a holder that is between two pieces of work can see that somebody does.
"""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from dropscribe.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

_LOOK_EVERY = 0.2  # seconds


def default_folder() -> Path:
    """Where the lock lives: local, private, and the same for a service and a shell (XDG_RUNTIME_DIR is not)."""
    path = Path(tempfile.gettempdir()) / f"dropscribe-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    if path.stat(follow_symlinks=False).st_uid != os.getuid():
        raise ConfigError(f"{path} belongs to somebody else; remove it, or set TMPDIR to a folder of your own")
    return path


class GpuLock:
    """Context manager. ``waiting_for`` is told whom we wait for; ``pulse`` is called while waiting and may raise."""

    def __init__(
        self,
        purpose: str,
        *,
        waiting_for: Callable[[str], None] = lambda _holder: None,
        pulse: Callable[[], None] = lambda: None,
        folder: Path | None = None,
    ) -> None:
        self._purpose, self._waiting_for, self._pulse = purpose, waiting_for, pulse
        self._folder = folder or default_folder()
        self._held = -1
        self._queue = -1  # opened once: between two batches the holder asks it who waits

    def __enter__(self) -> Self:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._held = os.open(self._folder / "gpu.lock", flags, 0o600)
        self._queue = os.open(self._folder / "gpu.waiting", flags, 0o600)
        try:
            self._acquire()
        except BaseException:
            self._close()
            raise
        os.ftruncate(self._held, 0)
        os.pwrite(self._held, f"process {os.getpid()} ({self._purpose})\n".encode(), 0)
        return self

    def __exit__(self, *exception: object) -> None:
        os.ftruncate(self._held, 0)
        self._close()

    def wanted(self) -> bool:
        """Whether another process waits for the lock we hold."""
        try:
            fcntl.flock(self._queue, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return error.errno in (errno.EWOULDBLOCK, errno.EAGAIN)
        fcntl.flock(self._queue, fcntl.LOCK_UN)
        return False

    def _acquire(self) -> None:
        if self._try():
            return
        self._waiting_for(os.pread(self._held, 200, 0).decode("utf-8", "replace").strip() or "another process")
        waiting = False
        while not self._try():
            if not waiting:  # a holder that asks at this very moment holds the queue for an instant: try again
                waiting = _flocked(self._queue, fcntl.LOCK_SH)
            self._pulse()
            time.sleep(_LOOK_EVERY)
        fcntl.flock(self._queue, fcntl.LOCK_UN)

    def _try(self) -> bool:
        return _flocked(self._held, fcntl.LOCK_EX)

    def _close(self) -> None:
        for descriptor in (self._held, self._queue):
            os.close(descriptor)


def _flocked(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
