"""A media file as the reader child sees it: opened without ever blocking, hashed whole, watched for changes."""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dropscribe.errors import DecodeFailed, EmptyFile, NotMedia, SourceChanged, reading_error

if TYPE_CHECKING:
    from collections.abc import Callable

HASH_CHUNK = 1 << 20
READ_SLACK = 64 << 20


def printable(path: bytes) -> str:
    """The name for people: bytes that are not UTF-8 are spelled out."""
    return path.decode("utf-8", "backslashreplace")


@dataclass(frozen=True)
class Fingerprint:
    """What identifies the bytes that were read."""

    content_hash: str
    size_bytes: int
    mtime_ns: int
    inode: int


class Source:
    """One open regular file, and the file object PyAV reads it through.

    ``alive`` is called whenever work visibly went on. Reads beyond twice the file's size without any audio coming out
    stop counting as such, so a demuxer that seeks in circles runs into the parent's stall limit.
    """

    def __init__(self, path: bytes, alive: Callable[[], None]) -> None:
        self.path = path
        self.name_for_people = printable(path)
        self.failure: OSError | None = None
        self._alive = alive
        self._read_since_audio = 0
        try:
            # stat first: merely opening a device or a FIFO can have effects
            if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 - a bytes path
                raise NotMedia(f"{self.name_for_people} is not a regular file; only files are transcribed")
            # O_NONBLOCK: should it have become a FIFO since, the open returns at once and the check below ends it
            self.fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        except ValueError:
            raise NotMedia(f"{self.name_for_people!r} is no possible file name") from None
        except OSError as error:
            raise reading_error(error, self.name_for_people) from error
        self._before = os.fstat(self.fd)
        if not stat.S_ISREG(self._before.st_mode):
            self.close()
            raise NotMedia(f"{self.name_for_people} is not a regular file; only files are transcribed")

    @property
    def size(self) -> int:
        """Bytes, as of opening."""
        return self._before.st_size

    def fingerprint(self) -> Fingerprint:
        """Hash the whole file. Raises ``EmptyFile``, ``SourceChanged``, ``SourceBusy``, ``SourceMissing``."""
        if self.size == 0:
            raise EmptyFile(f"{self.name_for_people} has zero bytes; copy it again")
        digest = hashlib.sha256()
        buffer = bytearray(HASH_CHUNK)
        position = 0
        while count := self._readinto(buffer, position):
            digest.update(memoryview(buffer)[:count])
            position += count
            self._alive()
            if position > self.size:
                break
        self.check_unchanged()
        before = self._before
        return Fingerprint(digest.hexdigest(), before.st_size, before.st_mtime_ns, before.st_ino)

    def check_unchanged(self) -> None:
        """Raise ``SourceChanged`` if the bytes under the descriptor are not those of opening any more."""
        now = os.fstat(self.fd)
        if (now.st_size, now.st_mtime_ns) != (self._before.st_size, self._before.st_mtime_ns):
            raise SourceChanged(f"{self.name_for_people} changed while it was read; it is read again once it is whole")

    def close(self) -> None:
        """Give the descriptor back; harmless twice."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    # --- random access, for the decoders ---

    def pread(self, count: int, offset: int) -> bytes:
        """Up to ``count`` bytes at ``offset``; fewer only at the end."""
        try:
            return os.pread(self.fd, count, offset)
        except OSError as error:
            raise reading_error(error, self.name_for_people) from error

    def _readinto(self, buffer: bytearray, position: int) -> int:
        try:
            return os.preadv(self.fd, [buffer], position)
        except OSError as error:
            raise reading_error(error, self.name_for_people) from error

    def audio_came_out(self) -> None:
        """The decoder made something of what it read."""
        self._read_since_audio = 0
        self._alive()

    def file_object(self) -> SourceFile:
        """A fresh reader from the first byte; it has no ``name``, so nothing can be guessed from the suffix."""
        return SourceFile(self)

    def note_read(self, count: int) -> None:
        """Count ``count`` bytes that a demuxer took."""
        self._read_since_audio += count
        if self._read_since_audio <= 2 * self.size + READ_SLACK:
            self._alive()


class SourceFile:
    """``read``/``seek``/``tell`` over a ``Source``; offsets of its own, so the descriptor's place does not matter."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._position = 0

    def read(self, count: int) -> bytes:
        """Up to ``count`` bytes. An I/O error is kept in ``Source.failure``, since ffmpeg would swallow it."""
        try:
            data = os.pread(self._source.fd, count, self._position)
        except OSError as error:
            self._source.failure = error
            raise
        self._position += len(data)
        self._source.note_read(len(data))
        return data

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Like ``io.IOBase.seek``; before the start is an error."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._source.size}[whence]
        if base + offset < 0:
            raise DecodeFailed("seek before the start of the file")
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        """The place of the next read."""
        return self._position
