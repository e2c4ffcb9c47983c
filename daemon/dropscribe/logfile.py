"""The log of a service: one file that this program rotates, with repeated faults collapsed.

A service manager's own file is never rotated (launchd) or by somebody who does not tell us (newsyslog). Everything the
daemon's processes write to stderr, libraries and dying children included, comes through one pipe into one thread here.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import time
from collections import OrderedDict, deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import BinaryIO

MAX_BYTES = 5 * 2**20  # of one file
KEEP = 4  # older ones beside it
LINE_BYTES = 8192
SHOWN = 3  # so many alike in a window are written out
WINDOW = 600.0
KEYS = 256
LINES_A_MINUTE = 2000
END_SECONDS = 2.0

_VARIES = re.compile(rb"\b(timestamp|pid|worker_pid|next_in_s|seconds)=\S+ ?")
_FAULT = re.compile(rb"\blevel=(warning|error|critical)\b")
_OURS = re.compile(rb"^timestamp=\S+ level=")


class RotatingFile:
    """Appends lines; at ``max_bytes`` the file becomes ``.1``, that ``.2`` and so on, ``keep`` of them.

    One process writes to it. A full disk loses lines, never the daemon.
    """

    def __init__(self, path: Path, *, max_bytes: int = MAX_BYTES, keep: int = KEEP) -> None:
        self.path, self._max, self._keep = path, max_bytes, keep
        self._file = -1
        self._size = 0
        self.lost = 0
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._open()

    def write(self, line: bytes) -> None:
        """One line; the newline is added."""
        data = line[:LINE_BYTES] + b"\n"
        try:
            if self._size + len(data) > self._max and self._size > 0:
                self._rotate()
            if self._file < 0:
                self._open()
            if self.lost:
                data = b"event=log_lines_lost lines=%d\n" % self.lost + data
            os.write(self._file, data)
        except OSError:
            self.lost += 1
            return
        self._size += len(data)
        self.lost = 0

    def close(self) -> None:
        """Let go of the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _open(self) -> None:
        self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(self._file).st_size

    def _rotate(self) -> None:
        self.close()
        for number in range(self._keep, 0, -1):
            older = self.path if number == 1 else self.path.with_name(f"{self.path.name}.{number - 1}")
            with contextlib.suppress(FileNotFoundError):
                older.replace(self.path.with_name(f"{self.path.name}.{number}"))
        self._open()


class Collapser:
    """Faults that say the same again and again are counted instead of written; a flood is cut.

    "The same" leaves aside time, process ids and delays; a job's number or path makes another line. Lines that are no
    faults pass. ``write`` gets what remains.
    """

    def __init__(self, write: Callable[[bytes], None], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._write, self._clock = write, clock
        self._seen: OrderedDict[bytes, list[float]] = OrderedDict()  # what → [window's start, count]
        self._recent: deque[float] = deque(maxlen=LINES_A_MINUTE)
        self._cut = 0

    def line(self, line: bytes) -> None:
        """One line without its newline."""
        now = self._clock()
        self.flush(now)
        if (_OURS.match(line) and not _FAULT.search(line)) or not line.strip():
            if line.strip():
                self._limited(line, now)
            return
        key = _VARIES.sub(b"", line)[:512]
        seen = self._seen.get(key)
        if seen is None:
            if len(self._seen) >= KEYS:
                self._summary(*self._seen.popitem(last=False))
            seen = self._seen[key] = [now, 0.0]
        seen[1] += 1
        if seen[1] <= SHOWN:
            self._limited(line, now)

    def flush(self, now: float | None = None) -> None:
        """Say what was counted in windows that are over; without ``now`` in all of them."""
        while self._seen:
            key, seen = next(iter(self._seen.items()))
            if now is not None and now - seen[0] < WINDOW:
                break
            del self._seen[key]
            self._summary(key, seen)

    def _summary(self, key: bytes, seen: list[float]) -> None:
        more = int(seen[1]) - SHOWN
        if more > 0:
            stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()).encode()
            what = key.decode("utf-8", "backslashreplace").replace("\\", "\\\\").replace('"', '\\"')
            text = f'level=warning event=repeated times={more} what="{what}"'.encode()
            self._write(b"timestamp=" + stamp + b" " + text)

    def _limited(self, line: bytes, now: float) -> None:
        if len(self._recent) == LINES_A_MINUTE and now - self._recent[0] < 60.0:
            self._cut += 1
            return
        if self._cut:
            self._write(b"level=warning event=log_flood lines_left_out=%d" % self._cut)
            self._cut = 0
        self._recent.append(now)
        self._write(line)


@contextlib.contextmanager
def stderr_into(path: Path, *, max_bytes: int = MAX_BYTES, keep: int = KEEP) -> Iterator[None]:
    """For as long as this lasts, descriptor 2 of this process and of its children leads into the log file."""
    file = RotatingFile(path, max_bytes=max_bytes, keep=keep)
    collapser = Collapser(file.write)
    reading, writing = os.pipe()
    before = os.dup(2)
    sys.stderr.flush()
    os.dup2(writing, 2)
    os.close(writing)
    pump = threading.Thread(target=_pump, args=(reading, collapser), name="log", daemon=True)
    pump.start()
    try:
        yield
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()
        os.dup2(before, 2)  # the last writing end, once the children are gone
        os.close(before)
        pump.join(END_SECONDS)
        if not pump.is_alive():
            collapser.flush()
            file.close()


def _pump(reading: int, collapser: Collapser) -> None:
    """Lines from the pipe to the file. Must not end before the pipe does: its writers would block."""
    rest = b""
    while chunk := os.read(reading, 65536):
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > LINE_BYTES:
            lines, rest = [*lines, rest], b""
        for line in lines:
            collapser.line(line)
    if rest:
        collapser.line(rest)
    os.close(reading)


def tail(path: Path, lines: int) -> list[str]:
    """The last lines of the log, over a rotation if need be."""
    found: list[str] = []
    for part in (path.with_name(f"{path.name}.1"), path):
        with contextlib.suppress(FileNotFoundError):
            found += part.read_bytes().decode("utf-8", "backslashreplace").splitlines()
    return found[-lines:] if lines > 0 else []


def follow(path: Path, *, pause: Callable[[], None] = lambda: time.sleep(0.5)) -> Iterator[str]:
    """New lines as they come, for ever; what is written around a rotation is not lost."""
    file: BinaryIO | None = None
    rest = b""
    try:
        with contextlib.suppress(FileNotFoundError):
            file = path.open("rb")
            file.seek(0, os.SEEK_END)
        while True:
            if file is not None:
                *lines, rest = (rest + file.read()).split(b"\n")
                yield from (line.decode("utf-8", "backslashreplace") for line in lines)
            newer = _newer(path, file)
            if newer is None:
                pause()
                continue
            if file is not None:
                rest += file.read()  # written after we looked and before it was renamed
                file.close()
            file = newer
    finally:
        if file is not None:
            file.close()


def _newer(path: Path, file: BinaryIO | None) -> BinaryIO | None:
    """The log opened anew, if it is another file than ``file`` by now."""
    try:
        if file is not None and os.fstat(file.fileno()).st_ino == path.stat().st_ino:
            return None
        return path.open("rb")
    except FileNotFoundError:
        return None
