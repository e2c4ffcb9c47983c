"""The parent's side of the reader child: files in, hashes and 16 kHz mono blocks out, whatever the child does.

One child serves many files one after another and is replaced when it crashes or hangs. Its pipe holds a few seconds of
audio, so it works ahead and then waits. Not thread-safe: a ``Reader`` belongs to one thread.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, NoReturn, Self

from dropscribe import errors
from dropscribe.audio import protocol
from dropscribe.audio.source import Fingerprint, printable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    import numpy as np

    from dropscribe import settings

START_SECONDS = 60.0  # a cold start from a slow disk imports the interpreter and little else
ABANDON_SECONDS = 0.5  # a child that has not let go of a file by then is replaced
PIPE_BYTES = 1 << 20
FILES_PER_CHILD = 200  # decoders leak; a fresh child costs 0.3 s


@dataclass(frozen=True)
class Media(Fingerprint):
    """What is known once the header was read: the fingerprint of the bytes, and what the container says."""

    container: str
    codec: str
    sample_rate: int  # as the header says; 0 when only the decoded frames tell
    channels: int
    claimed_seconds: float | None  # None if it says nothing that can be relied on


@dataclass(frozen=True)
class Drained:
    """What is known at the end of a file."""

    seconds: float  # decoded audio: samples at 16 kHz / 16000
    read_s: float  # the child's working seconds on it: hashing, reading, decoding, resampling
    # shorter_than_claimed, recovered_decode_errors, several_audio_tracks, header_length_ignored
    warnings: tuple[str, ...]


class Reader:
    """Opens media files in a child process. A context manager; the child starts with the first file."""

    def __init__(self, settings: settings.Reader) -> None:
        self._settings = settings
        self._child: _ChildProcess | None = None
        self._stream: Stream | None = None

    def hash(self, path: bytes) -> Fingerprint:
        """Hash a file without decoding it. ``path``: its bytes as the system has them.

        Raises ``EmptyFile``, ``NotMedia`` (no regular file), ``SourceMissing``, ``SourceBusy``, ``SourceChanged``,
        ``ReaderCrashed``, ``ReaderHung``; ``TransientError`` when the child does not start.
        """
        _, payload = self._ask(protocol.HASH, path)
        return Fingerprint(**json.loads(payload))

    def open(self, path: bytes) -> Stream:
        """Hash a file whole, open it by content and decode its first second.

        A stream still open is abandoned. Raises what ``hash`` does, and every ``MediaError``.
        """
        child, payload = self._ask(protocol.OPEN, path)
        self._stream = Stream(child, path, Media(**json.loads(payload)))
        return self._stream

    def close(self) -> None:
        """End the child, also in the middle of a file."""
        self._stream = None
        child, self._child = self._child, None
        if child is not None:
            child.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def child_pid(self) -> int | None:
        """The child's process id while one runs."""
        return self._child.pid if self._child is not None and not self._child.ended else None

    def _ask(self, kind: bytes, path: bytes) -> tuple[_ChildProcess, bytearray]:
        """Hand over a path; the child that has it, and the payload of what it says first."""
        child = self._request(kind, path)
        try:
            return child, child.next_frame(path)[1]
        except errors.ReaderCrashed:
            if child.requests == 1:
                raise
        # It may have been dying before it was given this file; one that dies of its first file leaves no doubt.
        child = self._request(kind, path)
        return child, child.next_frame(path)[1]

    def _request(self, kind: bytes, path: bytes) -> _ChildProcess:
        if self._stream is not None:
            self._stream.abandon()
            self._stream = None
        for fresh in (False, True):
            if self._child is None or self._child.ended or self._child.requests >= FILES_PER_CHILD or fresh:
                if self._child is not None:
                    self._child.end()
                self._child = _ChildProcess(self._settings)
            try:
                self._child.request(kind, path)
            except BrokenPipeError:
                continue  # it died while idle: no file is to blame
            return self._child
        raise errors.TransientError("the reader process dies before it is given a file; `dropscribe doctor` checks it")


class Stream:
    """One opened file. Read ``blocks()`` to the end or call ``abandon()``."""

    def __init__(self, child: _ChildProcess, path: bytes, media: Media) -> None:
        self.media = media
        self.drained: Drained | None = None
        self._child = child
        self._path = path
        self._open = True

    def blocks(self) -> Iterator[np.ndarray]:
        """float32 [16000] at 16 kHz mono, the last shorter; ``drained`` is set afterwards.

        Raises every ``MediaError``, ``SourceChanged``, ``SourceBusy``. Only the time spent waiting for the child counts
        against ``stall_seconds``, not what the caller does between two blocks.
        """
        import numpy as np

        while self._open:
            try:
                kind, payload = self._child.next_frame(self._path)
            except errors.DropscribeError:
                self._open = False
                raise
            if kind == protocol.BLOCK:
                yield np.frombuffer(payload, "<f4")
            else:
                values = json.loads(payload)
                self._open = False
                self.drained = Drained(values["seconds"], values["read_s"], tuple(values["warnings"]))

    def abandon(self) -> None:
        """Stop early. Harmless when the file is finished."""
        if self._open:
            self._open = False
            self._child.abandon()


class _ChildProcess:
    """One reader process and its two pipes."""

    def __init__(self, settings: settings.Reader) -> None:
        self._stall_seconds = settings.stall_seconds
        self.requests = 0
        self._buffer = bytearray()
        # a scratch file of ours: an inherited stderr would fill the log with ffmpeg's and mpg123's complaints
        self._stderr: IO[bytes] = tempfile.TemporaryFile(mode="a+b")  # noqa: SIM115 - lives as long as the process
        command = [sys.executable, "-P", "-m", "dropscribe.audio.child"]  # -P: the folder we run in holds no modules
        command += [str(settings.memory_mb), repr(settings.max_hours)]
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr, bufsize=0
            )
        except OSError as error:
            self._stderr.close()
            raise errors.TransientError(
                f"cannot start the reader process: {error.strerror}; it is tried again"
            ) from error
        if self._process.stdin is None or self._process.stdout is None:  # pragma: no cover - PIPE gives both
            raise AssertionError
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self.ended = False
        with suppress(AttributeError, OSError):  # Linux: more room to work ahead
            fcntl.fcntl(self._stdout.fileno(), fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._wait_until_ready()

    @property
    def pid(self) -> int:
        return self._process.pid

    def request(self, kind: bytes, path: bytes) -> None:
        """Hand over one path. Raises ``BrokenPipeError`` if the child is dead."""
        if self._process.poll() is not None:
            raise BrokenPipeError
        self.requests += 1
        self._stdin.write(protocol.pack(kind, path))

    def next_frame(self, path: bytes) -> tuple[bytes, bytearray]:
        """The next frame that says something; errors in it are raised here."""
        while True:
            try:
                kind, payload = self._read_frame(self._stall_seconds)
            except TimeoutError:
                self.end()
                raise errors.ReaderHung(
                    f"{printable(path)}: no audio came out for {self._stall_seconds:g} s; export it again, or raise "
                    "reader.stall_seconds if the disk is that slow"
                ) from None
            except EOFError:
                self._raise_for_death(path)
            if kind == protocol.ERROR:
                raise _error_from(payload)
            if kind != protocol.ALIVE:
                return kind, payload

    def abandon(self) -> None:
        """Let the child drop the file in work; replace it if it does not do so soon."""
        if self.ended:
            return
        deadline = time.monotonic() + ABANDON_SECONDS
        try:
            self._stdin.write(protocol.pack(protocol.ABANDON, b"%d" % self.requests))
            while (remaining := deadline - time.monotonic()) > 0:
                kind, _ = self._read_frame(remaining)
                if kind in protocol.LAST:
                    return
        except (OSError, EOFError):
            pass  # TimeoutError is an OSError
        self.end()

    def end(self) -> None:
        """Kill the process (it holds nothing worth saving) and close everything."""
        self.ended = True
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                self._process.kill()
        self._process.wait()
        for stream in (self._stdin, self._stdout, self._stderr):
            with suppress(OSError):
                stream.close()

    def _wait_until_ready(self) -> None:
        try:
            self._read_frame(START_SECONDS)
        except TimeoutError:
            cause = self._last_words() or f"silent for {START_SECONDS:.0f} s"
        except EOFError:
            cause = self._how_it_died()
        else:
            return
        self.end()
        raise errors.TransientError(
            f"the reader process does not start: {cause}; `dropscribe doctor` checks the installation"
        )

    def _read_frame(self, timeout: float) -> tuple[bytes, bytearray]:
        """One frame. Raises ``TimeoutError`` after ``timeout`` seconds without a byte, ``EOFError`` at the end."""
        self._fill(protocol.HEADER.size, timeout)
        kind, length = protocol.HEADER.unpack_from(self._buffer)
        if length > protocol.MAX_PAYLOAD:
            raise EOFError
        end = protocol.HEADER.size + length
        self._fill(end, timeout)
        payload = self._buffer[protocol.HEADER.size : end]
        del self._buffer[:end]
        return kind, payload

    def _fill(self, count: int, timeout: float) -> None:
        descriptor = self._stdout.fileno()
        poll = select.poll()  # select() refuses descriptors from 1024 on
        poll.register(descriptor, select.POLLIN)
        while len(self._buffer) < count:
            if not poll.poll(timeout * 1000):
                raise TimeoutError
            data = os.read(descriptor, PIPE_BYTES)
            if not data:
                raise EOFError
            self._buffer += data

    def _raise_for_death(self, path: bytes) -> NoReturn:
        cause = self._how_it_died()
        self.end()
        name = printable(path)
        if self._process.returncode == protocol.EXIT_MEMORY:
            raise errors.MediaLimit(f"{name} takes more memory than reader.memory_mb allows; convert it to FLAC or WAV")
        raise errors.ReaderCrashed(f"{name}: the reader process died on it ({cause}); export the file again")

    def _how_it_died(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)  # its end of the pipe closes a moment before it is gone
        status = self._process.poll()
        if status is not None and status < 0:
            return f"killed by {signal.Signals(-status).name}"
        return self._last_words() or f"exit status {status}"

    def _last_words(self) -> str:
        """The last line the child wrote to stderr."""
        self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(self._stderr.tell() - 2000, 0))
        lines = self._stderr.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else ""


def _error_from(payload: bytearray) -> errors.DropscribeError:
    values: dict[str, Any] = json.loads(payload)
    kind = getattr(errors, values["error"], errors.DecodeFailed)
    error: errors.DropscribeError = kind(values["message"])
    return error
