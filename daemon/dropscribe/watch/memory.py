"""What this process has seen of a root and found in agreement with the job log: 16 bytes a file, bounded.

Kept for three questions: is a folder as it was (then nothing in it is judged anew), is a file under a known name
another one than before (same size and time, other inode), and was a file that is new here elsewhere before (a move).
Nothing of it is stored: device and inode numbers mean nothing after a remount.
"""

from __future__ import annotations

import functools
import operator
import os
from array import array
from typing import TYPE_CHECKING

from dropscribe.watch.scan import mark

if TYPE_CHECKING:
    from dropscribe.watch.scan import Found

MOST_FILES = 2_000_000  # further folders are judged anew in each pass
MOST_GONE = 20_000  # vanished files whose move could still be noticed


class Memory:
    """Marks by folder: packed where all is well, open (a dict) where something is under way."""

    def __init__(self, most: int = MOST_FILES) -> None:
        self._most = most
        self._totals: dict[bytes, int] = {}
        self._packed: dict[bytes, array[int]] = {}  # hash of name, mark, hash of name, mark, …
        self._open: dict[bytes, dict[int, int]] = {}
        # of open folders: the total of the last listing, and that of the marks known by now; equal, all is well
        self._listed: dict[bytes, int] = {}
        self._known: dict[bytes, int] = {}
        self._files = 0
        # (folder, hash of name) → mark, of this pass and of the one before: the new name may be met in a later pass
        self._gone: dict[tuple[bytes, int], int] = {}
        self._gone_before: dict[tuple[bytes, int], int] = {}
        self.left: set[bytes] = set()  # folders that lost files since the last complete pass
        self.covers = False  # every queued file has been in here since a complete pass: none is gone unnoticed
        self.audit = False  # for one pass believe nothing but the job log

    def __bool__(self) -> bool:
        return bool(self._packed or self._open)

    def __len__(self) -> int:
        return self._files

    def total(self, folder: bytes) -> int | None:
        """What ``scan.folders`` asks for."""
        return None if self.audit else self._totals.get(folder)

    def marks(self, folder: bytes) -> dict[int, int]:
        """Hash of name → mark, of the files known in a folder. Read only."""
        if folder in self._open:
            return self._open[folder]
        packed = self._packed.get(folder)
        return {} if packed is None else dict(zip(packed[::2], packed[1::2], strict=True))

    def learn(self, folder: bytes, total: int | None, marks: dict[int, int], *, agrees: bool = True) -> None:
        """What a pass found in a folder. ``agrees``: with the job log, all of it; else ``remember`` tells the rest."""
        before = self.marks(folder)
        self._note_gone(folder, {name: old for name, old in before.items() if name not in marks})
        self._drop(folder)
        if not marks and total is None:
            return
        self._files += len(marks)
        if self._files > self._most:
            self._files -= len(marks)
            return
        self._open[folder] = marks
        self._known[folder] = functools.reduce(operator.xor, marks.values(), 0)
        if total is not None:
            self._listed[folder] = total
            if agrees:
                self._pack(folder)

    def remember(self, found: Found) -> None:
        """One file that agrees with the job log now."""
        folder, name = os.path.split(found.path)
        marks = self._opened(folder)
        now, before = mark(name, *found.signature), marks.get(hash(name))
        if before is None:
            if self._files >= self._most:
                return
            self._files += 1
        marks[hash(name)] = now
        self._known[folder] ^= now ^ (before or 0)
        if self._known[folder] == self._listed.get(folder):  # the last of a listing: no need to judge it once more
            self._pack(folder)

    def forget(self, path: bytes) -> None:
        """A path that is no more, or that must be judged anew."""
        folder, name = os.path.split(path)
        before = self._opened(folder).pop(hash(name), None)
        self._listed.pop(folder, None)
        if before is not None:
            self._known[folder] ^= before
            self._files -= 1

    def forget_all(self) -> None:
        """The numbers mean nothing any more."""
        self._totals.clear()
        self._packed.clear()
        self._open.clear()
        self._listed.clear()
        self._known.clear()
        self._gone.clear()
        self._gone_before.clear()
        self._files = 0
        self.covers = False

    def finished_pass(self, met: set[bytes]) -> set[bytes]:
        """A complete pass met these folders; others are gone. Returns those that lost files since the last one."""
        absent = [folder for known in (self._packed, self._open) for folder in known if folder not in met]
        for folder in absent:
            self._note_gone(folder, self.marks(folder))
            self._drop(folder)
        self._gone, self._gone_before = {}, self._gone
        left, self.left = self.left, set()
        self.covers = self._files < self._most
        self.audit = False
        return left

    def replaced(self, found: Found) -> bool:
        """Whether another file than the one known was at this path before."""
        folder, name = os.path.split(found.path)
        return self.marks(folder).get(hash(name)) not in (None, mark(name, *found.signature))

    def held(self, path: bytes, signature: tuple[int, int, int]) -> bool:
        """Whether a file of this size, time and inode was at ``path``."""
        folder, name = os.path.split(path)
        wanted, key = mark(name, *signature), (folder, hash(name))
        if wanted in (self._gone.get(key), self._gone_before.get(key)):
            return True
        return self.marks(folder).get(hash(name)) == wanted

    def _note_gone(self, folder: bytes, marks: dict[int, int]) -> None:
        if marks:
            self.left.add(folder)
        for name, old in marks.items():
            if len(self._gone) >= MOST_GONE:
                return
            self._gone[folder, name] = old

    def _opened(self, folder: bytes) -> dict[int, int]:
        self._totals.pop(folder, None)
        if folder not in self._open:
            self._open[folder] = marks = self.marks(folder)
            self._known[folder] = functools.reduce(operator.xor, marks.values(), 0)
            self._packed.pop(folder, None)
        return self._open[folder]

    def _pack(self, folder: bytes) -> None:
        """All is well with an open folder."""
        del self._known[folder]
        marks = self._open.pop(folder)
        self._totals[folder] = self._listed.pop(folder)
        self._packed[folder] = array("q", [number for pair in marks.items() for number in pair])

    def _drop(self, folder: bytes) -> None:
        for kept in (self._totals, self._listed, self._known):
            kept.pop(folder, None)
        self._files -= len(self._open.pop(folder, ()))
        self._files -= len(self._packed.pop(folder, ())) // 2
