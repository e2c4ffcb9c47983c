"""Is the watched folder itself there? An unplugged disk must not look like a thousand deleted files."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from typing import Literal

AWAY_ERRNOS = frozenset({
    errno.ENOENT, errno.ENOTDIR, errno.ESTALE, errno.ENOTCONN, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ETIMEDOUT,
    errno.ENXIO, errno.ENODEV, errno.ENETDOWN, errno.ENETUNREACH, errno.ECONNABORTED,
})  # fmt: skip


@dataclass(frozen=True)
class Health:
    """What one look at a root says. ``identity``: device and inode, for telling a remount or a new folder."""

    state: Literal["ok", "away", "unreadable"]
    error: str | None = None
    mounted: bool = False
    identity: tuple[int, int] | None = None
    empty: bool = False


def examine(root: bytes, *, was_mounted: bool = False) -> Health:
    """Look at a root. ``was_mounted``: it was a mount point when it was last well."""
    real = os.path.realpath(root)
    try:
        status = os.stat(real)  # noqa: PTH116 - bytes
        if not os.path.isdir(real):  # noqa: PTH112 - bytes
            return Health("unreadable", "is not a folder")
        with os.scandir(real) as entries:
            empty = next(entries, None) is None
    except OSError as error:
        if error.errno in AWAY_ERRNOS:
            gone = "is not there; make the folder, or connect the disk it is on"
            return Health("away", gone if error.errno == errno.ENOENT else _words(error))
        return Health("unreadable", f"{_words(error)}; allow reading it")
    mounted = os.path.ismount(real)
    if was_mounted and not mounted:
        return Health("away", "nothing is mounted there")
    return Health("ok", None, mounted, (status.st_dev, status.st_ino), empty)


def _words(error: OSError) -> str:
    return error.strerror or str(error)
