"""The few file operations publishing is made of, each either done or not done when the power goes.

Paths are bytes. Every function raises plain ``OSError``; what that means for a job is decided in ``publish``.
"""

# Paths are bytes here, which pathlib does not take.
# ruff: noqa: PTH101, PTH102, PTH105, PTH108, PTH112, PTH116, PTH118, PTH120

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from dropscribe.transcripts.names import NAME_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# What ``look`` says besides a hash.
ABSENT: Final = "absent"
EMPTY: Final = "empty"
FOREIGN: Final = "foreign"

# What file systems without hard links answer (FAT, exFAT, SMB, sshfs, some FUSE), and those that ran out of them.
_NO_LINKS = frozenset(
    {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV, errno.EINVAL}
)
# What folders answer that cannot be opened or synced on this file system; the data is as safe there as it can be.
_NO_FOLDER_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EACCES, errno.EBADF})
_TEMP = re.compile(rb"\.dropscribe-(.+)-[0-9]+\.tmp", re.DOTALL)


def full_sync(descriptor: int) -> None:
    """What was written is on the medium, not only in the drive's cache (macOS: F_FULLFSYNC)."""
    if sys.platform == "darwin":
        import fcntl

        try:
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
        except OSError as error:  # network and FUSE file systems know only the plain call
            if error.errno not in (errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOTTY):
                raise
        else:
            return
    os.fsync(descriptor)


def sync_folder(folder: bytes) -> None:
    """The folder's names are on the medium, where the file system can say so."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        if error.errno in _NO_FOLDER_SYNC:
            return
        raise
    try:
        full_sync(descriptor)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(descriptor)


def make_folder(folder: bytes) -> None:
    """``folder`` and whatever is missing above it, each new name synced."""
    if os.path.isdir(folder):
        return
    parent = os.path.dirname(folder)
    if parent != folder:
        make_folder(parent)
    try:
        os.mkdir(folder)
    except FileExistsError:
        if not os.path.isdir(folder):
            raise
    sync_folder(parent)


def name_max(folder: bytes) -> int:
    """The longest file name ``folder`` takes, in bytes."""
    try:
        return min(os.pathconf(folder, "PC_NAME_MAX"), NAME_MAX)
    except (OSError, ValueError):
        return NAME_MAX


def write_temp(folder: bytes, claim_id: str, content: bytes) -> bytes:
    """A new synced file ``.dropscribe-{claim_id}-{n}.tmp`` in ``folder``; returns its path. Nothing stays on failure.

    Its mode is what the umask leaves, its group what the folder gives. A folder that hands its group on and lets the
    group write is a shared one: there the group may write the file too.
    """
    number = 0
    while True:
        path = os.path.join(folder, f".dropscribe-{claim_id}-{number}.tmp".encode())
        try:
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        except FileExistsError:
            number += 1
            continue
        break
    try:
        with os.fdopen(descriptor, "wb") as file:
            shared = os.stat(folder).st_mode
            if shared & stat.S_ISGID and shared & stat.S_IWGRP:
                os.fchmod(descriptor, stat.S_IMODE(os.fstat(descriptor).st_mode) | stat.S_IRGRP | stat.S_IWGRP)
            file.write(content)
            file.flush()
            full_sync(descriptor)
    except BaseException:
        unlink(path)
        raise
    return path


def temps(folder: bytes, *, below: bool = False) -> Iterator[tuple[bytes, str]]:
    """Path and claim of every temp file in ``folder``, and ``below``. Folders that cannot be read are passed over."""
    for parent, folders, names in os.walk(folder):
        if not below:
            folders.clear()
        for name in names:
            if found := _TEMP.fullmatch(name):
                yield os.path.join(parent, name), os.fsdecode(found[1])


def unlink(path: bytes) -> None:
    """Remove a file that may be gone already."""
    with suppress(FileNotFoundError):
        os.unlink(path)


def look(path: bytes) -> str:
    """What is at ``path``: the sha256 of a file, or ``ABSENT``, ``EMPTY`` (a file of zero bytes) or ``FOREIGN``.

    Anything that is not a plain readable file, a link above all, is foreign: we never put such a thing there.
    """
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            return FOREIGN
    except FileNotFoundError:
        return ABSENT
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return ABSENT
    except PermissionError:
        return FOREIGN
    with os.fdopen(descriptor, "rb") as file:
        if os.fstat(descriptor).st_size == 0:
            return EMPTY
        return hashlib.file_digest(file, "sha256").hexdigest()


def place_new(temp: bytes, path: bytes, checkpoint: Callable[[str], None]) -> bool:
    """Give the temp file its name, never over another file; False if the name is taken.

    Where hard links do not exist an empty file takes the name first and is then replaced: the only instant at which a
    file of ours is not whole, and it is empty, not torn.
    """
    try:
        os.link(temp, path)
    except FileExistsError:
        if identity(temp) != identity(path):  # NFS repeats a request whose answer was lost, and finds its own work
            return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return _place_over_placeholder(temp, path, checkpoint)
    checkpoint("linked")
    os.unlink(temp)
    return True


def _place_over_placeholder(temp: bytes, path: bytes, checkpoint: Callable[[str], None]) -> bool:
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    except FileExistsError:
        return False
    os.close(descriptor)
    try:
        checkpoint("placeholder")
        if look(path) != EMPTY:  # somebody took it for theirs and wrote into it
            return False
        os.replace(temp, path)
    except BaseException:
        if look(path) == EMPTY:
            unlink(path)
        raise
    return True


def replace(temp: bytes, path: bytes) -> None:
    """The temp file in place of the one at ``path``, with that one's mode: its owner may have changed it."""
    with suppress(PermissionError):  # file systems without modes
        os.chmod(temp, stat.S_IMODE(os.lstat(path).st_mode))
    os.replace(temp, path)


def identity(path: bytes) -> tuple[int, int]:
    """Device and inode: the same file under whatever name, as long as it is there."""
    status = os.lstat(path)
    return status.st_dev, status.st_ino
