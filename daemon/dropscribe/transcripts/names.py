"""What a transcript is called and where it goes. Names are bytes throughout: a file name need not be UTF-8."""

# Paths are bytes here, which pathlib does not take.
# ruff: noqa: PTH118, PTH119, PTH120, PTH122

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAME_MAX = 255  # bytes; what every common file system allows, some allow less
SUFFIX_ROOM = 5  # of the longest suffix there is (".json"): every format of one source shares one base


@dataclass(frozen=True)
class Target:
    """Where the transcripts of one source go.

    ``source`` is the source's absolute path as the system has it, ``folder`` the absolute folder the transcripts
    belong in. ``make_folder`` allows that folder to be created: true in an output tree, never beside the audio, where
    a missing folder means that the source is gone.
    """

    source: bytes
    folder: bytes
    make_folder: bool = False

    @property
    def source_name(self) -> bytes:
        """The file name of the source."""
        return os.path.basename(self.source)


def target_for(source: bytes, root: Path, output_dir: Path | None) -> Target:
    """Beside the audio, or at the same place below ``output_dir`` as the source has below ``root``."""
    folder = os.path.dirname(source)
    if output_dir is None:
        return Target(source, folder)
    relative = os.path.relpath(folder, os.fsencode(root))
    if relative.split(b"/")[0] == b"..":  # not below the root after all: never climb out of the output tree
        relative = b"."
    return Target(source, os.path.normpath(os.path.join(os.fsencode(output_dir), relative)), make_folder=True)


def bases(name: bytes, *, name_max: int = NAME_MAX) -> Iterator[bytes]:
    """Names without suffix to try for a source called ``name``, best first, without end and without repeats.

    ``{stem}``, then ``{name}``, then ``{name} (2)``, ``{name} (3)`` … each short enough for a suffix of
    ``SUFFIX_ROOM`` bytes to fit into ``name_max`` bytes.
    """
    room = name_max - SUFFIX_ROOM
    stem = shorten(os.path.splitext(name)[0], room)
    yield stem
    full = shorten(name, room)
    if full != stem:
        yield full
    for number in count(2):
        tail = b" (%d)" % number
        yield shorten(name, room - len(tail)) + tail


def shorten(name: bytes, limit: int) -> bytes:
    """``name`` in at most ``limit`` bytes, cut before a UTF-8 character rather than inside it."""
    if len(name) <= limit:
        return name
    # A character has at most three continuation bytes; bytes that are not UTF-8 are cut where they fall.
    for cut in range(limit, max(limit - 4, 0), -1):
        if name[cut] & 0xC0 != 0x80:
            return name[:cut]
    return name[:limit]
