"""What the reader child and its parent say to each other: frames of one kind byte, a length and a payload.

Parent to child: ``HASH``/``OPEN`` (payload: the path's bytes), ``ABANDON`` (payload: the number of the request, counted
from 1, as decimal digits: a late one must not hit the next file). Child to parent: ``READY`` once; then per request any
number of ``ALIVE`` (work went on, nothing to show yet), ``MEDIA``, ``BLOCK`` …, and exactly one last frame: ``DONE``,
``ERROR`` or ``ABANDONED``.
"""

from __future__ import annotations

import struct

HEADER = struct.Struct(">cI")
MAX_PAYLOAD = 1 << 20  # a longer frame can only be noise on the pipe

HASH, OPEN, ABANDON = b"H", b"O", b"A"
READY, ALIVE, MEDIA, BLOCK, DONE, ERROR, ABANDONED = b"R", b"P", b"M", b"B", b"D", b"E", b"X"
LAST = frozenset((DONE, ERROR, ABANDONED))

EXIT_MEMORY = 86  # the child's own watch found it over its memory limit

RATE = 16_000
BLOCK_SAMPLES = RATE  # every block but the last of a file: one second


def pack(kind: bytes, payload: bytes = b"") -> bytes:
    """One frame, ready to be written."""
    return HEADER.pack(kind, len(payload)) + payload
