"""The reader child: ``python -m dropscribe.audio.child MEMORY_MB MAX_HOURS``, started by ``client.Reader``.

It exists so that a media file can hang, crash or eat memory without taking anything else along. Frames (``protocol``)
come in on stdin and go out on what was stdout; file descriptor 1 is pointed at stderr first, so nothing a library
prints can get between them. It leaves at once when stdin closes, which is how it dies with its parent.

``DROPSCRIBE_TEST__READER=WHAT:NAME`` (tests only) makes it misbehave on the file called NAME: ``crash`` and ``hang`` as
it is opened, ``crash-late`` and ``hang-late`` after its first block, ``memory`` allocates without end.
"""

from __future__ import annotations

import json
import os
import queue
import resource
import select
import signal
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dropscribe.audio import protocol
from dropscribe.audio.source import Source, printable
from dropscribe.errors import DecodeFailed, DropscribeError, MediaLimit

if TYPE_CHECKING:
    from collections.abc import Iterator

ALIVE_EVERY = 0.5  # seconds between two signs of life, at most
MEMORY_LOOK = 0.25
STATM = Path("/proc/self/statm")


class _AbandonedByParent(Exception):  # noqa: N818 - a way out of nested loops, not an error
    pass


class Child:
    """Serves one request after another on the calling thread; a second thread listens on stdin all the while."""

    def __init__(self, stdin: int, out: int, *, memory_mb: int, max_hours: float) -> None:
        self._stdin, self._out = stdin, out
        self._memory = memory_mb << 20
        self._max_seconds = max_hours * 3600
        self._requests: queue.SimpleQueue[tuple[bytes, bytes]] = queue.SimpleQueue()
        self._serving = 0  # the number of the request in work
        self._abandoned = 0  # the highest number the parent gave up on
        self._memory_ceiling: int | None = None
        self._said_alive = 0.0
        self._writing_s = 0.0

    def serve(self) -> None:
        """Until stdin closes. Never returns: the listener ends the process."""
        threading.Thread(target=self._listen, daemon=True).start()
        self._send(protocol.READY)
        while True:
            kind, path = self._requests.get()
            self._serving += 1
            with suppress(OSError):
                os.ftruncate(2, 0)  # stderr is a scratch file of the parent's: keep only this file's noise
            self._send(*self._answer(kind, path))

    def _answer(self, kind: bytes, path: bytes) -> tuple[bytes, bytes]:
        """Do the request; the frame that ends it."""
        try:
            if kind == protocol.HASH:
                return protocol.DONE, _json(self._hash(path))
            return protocol.DONE, _json(self._decode(path))
        except _AbandonedByParent:
            return protocol.ABANDONED, b""
        except DropscribeError as error:
            return protocol.ERROR, _error(error)
        except MemoryError:
            text = f"{printable(path)} takes more memory than reader.memory_mb allows; convert it to FLAC or WAV"
            return protocol.ERROR, _error(MediaLimit(text))
        except Exception as error:  # a decoder's own kind of failure must not end the daemon's reader
            text = f"{printable(path)}: {type(error).__name__}: {error}; export it again"
            return protocol.ERROR, _error(DecodeFailed(text))

    def _hash(self, path: bytes) -> dict[str, Any]:
        _misbehave(path, "")
        source = Source(path, self._alive)
        try:
            return asdict(source.fingerprint())
        finally:
            source.close()

    def _decode(self, path: bytes) -> dict[str, Any]:
        started = time.perf_counter()
        self._writing_s = 0.0
        self._load()
        from dropscribe.audio.decode import open_media
        from dropscribe.audio.mono import mono_16k

        _misbehave(path, "")
        source = Source(path, self._alive)
        try:
            fingerprint = source.fingerprint()
            decoded = open_media(source)
            media = asdict(fingerprint) | {
                "container": decoded.container,
                "codec": decoded.codec,
                "sample_rate": decoded.sample_rate,
                "channels": decoded.channels,
                "claimed_seconds": decoded.claimed_seconds,
            }
            blocks = mono_16k(decoded.frames, self._max_seconds, source.name_for_people)
            samples = self._send_blocks(path, media, blocks)
            source.check_unchanged()
        finally:
            source.close()
            self._memory_ceiling = None
        seconds = samples / protocol.RATE
        warnings = set(decoded.warnings)
        if decoded.claimed_seconds is not None and seconds < decoded.claimed_seconds - decoded.tolerance:
            warnings.add("shorter_than_claimed")
        read_s = time.perf_counter() - started - self._writing_s
        return {"seconds": seconds, "read_s": read_s, "warnings": sorted(warnings)}

    def _send_blocks(self, path: bytes, media: dict[str, Any], blocks: Iterator[Any]) -> int:
        """Send what is known, then the audio; the number of samples. The first block comes before the description, so
        that a file of which nothing can be decoded fails as it is opened."""
        samples = 0
        first = next(blocks, None)
        self._send(protocol.MEDIA, _json(media))
        if first is None:
            return 0
        for block in _with_first(first, blocks):
            self._send(protocol.BLOCK, block.astype("<f4", copy=False).tobytes())
            if not samples:
                _misbehave(path, "-late")
            samples += len(block)
        return samples

    def _load(self) -> None:
        """Import the decoders, then fence this process in: the limits count from here."""
        self._send(protocol.ALIVE)  # the first imports can take seconds; the file is not to blame
        import av

        from dropscribe.audio import decode, mono  # noqa: F401 - loaded before the limits are set

        av.logging.set_level(None)
        ceiling = _resident() + self._memory
        if STATM.exists():  # Linux; elsewhere RLIMIT_AS does nothing, and the listener's look has to do
            mapped = int(STATM.read_bytes().split()[0]) * resource.getpagesize()
            _, hard = resource.getrlimit(resource.RLIMIT_AS)
            limit = mapped + self._memory
            if hard != resource.RLIM_INFINITY:
                limit = min(limit, hard)
            resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
        self._memory_ceiling = ceiling
        self._send(protocol.ALIVE)

    # --- the two pipes ---

    def _send(self, kind: bytes, payload: bytes = b"") -> None:
        if self._abandoned >= self._serving > 0 and kind not in protocol.LAST:
            raise _AbandonedByParent
        started = time.perf_counter()
        data = memoryview(protocol.pack(kind, payload))
        while data:
            data = data[os.write(self._out, data) :]
        now = time.perf_counter()
        self._said_alive = now
        self._writing_s += now - started

    def _alive(self) -> None:
        if self._abandoned >= self._serving > 0:
            raise _AbandonedByParent
        if time.perf_counter() - self._said_alive > ALIVE_EVERY:
            self._send(protocol.ALIVE)

    def _listen(self) -> None:
        """Take frames off stdin; leave when it closes; look at the memory while a file is open."""
        buffer = bytearray()
        while True:
            busy = self._memory_ceiling is not None
            ready, _, _ = select.select([self._stdin], [], [], MEMORY_LOOK if busy else 5.0)
            ceiling = self._memory_ceiling
            if ceiling is not None and _resident() > ceiling:
                os._exit(protocol.EXIT_MEMORY)
            if not ready:
                continue
            data = os.read(self._stdin, 1 << 16)
            if not data:
                os._exit(0)
            buffer += data
            while len(buffer) >= protocol.HEADER.size:
                kind, length = protocol.HEADER.unpack_from(buffer)
                end = protocol.HEADER.size + length
                if len(buffer) < end:
                    break
                payload = bytes(buffer[protocol.HEADER.size : end])
                del buffer[:end]
                if kind == protocol.ABANDON:
                    self._abandoned = max(self._abandoned, int(payload))
                else:
                    self._requests.put((kind, payload))


def _with_first(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from rest


def _json(values: dict[str, Any]) -> bytes:
    return json.dumps(values).encode()


def _error(error: DropscribeError) -> bytes:
    return _json({"error": type(error).__name__, "message": str(error)[:2000]})


def _resident() -> int:
    """Bytes of memory in use now (Linux) or at most so far (elsewhere)."""
    if STATM.exists():
        return int(STATM.read_bytes().split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS


def _misbehave(path: bytes, when: str) -> None:
    what, _, name = os.environ.get("DROPSCRIBE_TEST__READER", "").partition(":")
    if not name or os.path.basename(path) != os.fsencode(name):  # noqa: PTH119 - bytes
        return
    if what == f"crash{when}":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif what == f"hang{when}":
        while True:
            signal.pause()
    elif what == "memory" and not when:
        hoard = []
        while True:
            hoard.append(bytearray(64 << 20))


def main() -> None:
    """Take over the descriptors, then serve."""
    out = os.dup(1)
    os.dup2(2, 1)
    # a signal to the whole group or unit is the parent's to answer: it closes our stdin when it has
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))  # all it ever writes to a file is its own stderr
    memory_mb, max_hours = sys.argv[1:]
    try:
        Child(0, out, memory_mb=int(memory_mb), max_hours=float(max_hours)).serve()
    except BrokenPipeError:
        os._exit(0)  # the parent is gone


if __name__ == "__main__":
    main()
