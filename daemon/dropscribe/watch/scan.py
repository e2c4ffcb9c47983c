"""The truth: what lies in a watched folder right now.

``os.scandir`` over bytes paths, one ``stat`` a candidate, nothing else: no file is opened, no folder that only exists
in the cloud is fetched. What could not be read is recorded, so that nobody takes an unread folder for an empty one.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from dropscribe.watch.eligibility import MEDIA_SUFFIXES, TRAILING, Rules, has_media_suffix, is_inside, why_not_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

COMMON_ENDS = frozenset(end for suffix in MEDIA_SUFFIXES if len(suffix) == 4 for end in (suffix, suffix.upper()))
SF_DATALESS = 0x40000000  # <sys/stat.h> of macOS: the content is in the cloud; reading would fetch it


class Found(NamedTuple):
    """One regular file as ``stat`` sees it."""

    path: bytes
    size: int
    mtime_ns: int
    inode: int
    placeholder: bool = False  # its content is not on this machine

    @property
    def signature(self) -> tuple[int, int, int]:
        """What must hold still for a file to count as whole."""
        return self.size, self.mtime_ns, self.inode


@dataclass
class Pass:
    """What one walk met besides the files it yielded."""

    folders: int = 0
    placeholders: int = 0  # files and folders that only exist in the cloud
    unread: list[bytes] = field(default_factory=list)  # cloud folders: what they hold is not known, and not asked
    errors: list[tuple[bytes, OSError]] = field(default_factory=list)
    leftovers: list[bytes] = field(default_factory=list)  # folders with a .dropscribe-*.tmp in them
    stopped: bool = False

    @property
    def complete(self) -> bool:
        """Everything was seen: a path that was not yielded is not there."""
        return not self.errors and not self.stopped

    def is_unread(self, path: bytes) -> bool:
        """Below a folder that was not asked."""
        return any(is_inside(path, folder) for folder in self.unread)


def is_placeholder(status: os.stat_result) -> bool:
    """macOS only; elsewhere there are no such flags."""
    return bool(getattr(status, "st_flags", 0) & SF_DATALESS)


def look(path: bytes) -> Found | None:
    """One file, links followed; ``None`` when it is gone or not a regular file. Raises other ``OSError``."""
    try:
        status = os.stat(path)  # noqa: PTH116 - bytes
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISREG(status.st_mode):  # opening a FIFO would hang
        return None
    return Found(path, status.st_size, status.st_mtime_ns, status.st_ino, is_placeholder(status))


def is_gone(path: bytes) -> bool:
    """Certainly gone, and not merely unreadable at the moment."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def mark(name: bytes, size: int, mtime_ns: int, inode: int) -> int:
    """A file in one number, for comparing within this process. ``folders`` has it written out, for speed."""
    return hash((name, size, mtime_ns, inode))


class Folder(NamedTuple):
    """One folder of a walk."""

    path: bytes
    files_met: int  # candidates in it
    total: int | None  # all their marks in one number; None: not to be relied on next time
    files: list[Found] | None  # None: as they were when ``total`` was remembered


def walk(rules: Rules, record: Pass, **how: Any) -> Iterator[Found]:
    """Every eligible file under the root (or ``below``), in no order. Takes what ``folders`` takes."""
    for folder in folders(rules, record, **how):
        yield from folder.files or ()


def folders(
    rules: Rules,
    record: Pass,
    *,
    below: bytes | None = None,
    stop: Callable[[], bool] = lambda: False,
    rejected: Callable[[bytes, str], None] | None = None,
    remembered: Callable[[bytes], int | None] = lambda _folder: None,
) -> Iterator[Folder]:
    """Folder by folder, the root (or ``below``, itself gone into) first.

    Links to folders wait until the real ones are done, so which name a file gets does not depend on luck; each real
    folder is gone into once, which also ends every loop. ``rejected`` hears of what is left out, and why.
    ``remembered`` gives the total that a folder had when all was well with it; as long as it has that, its files are
    not judged anew, which is most of the work.
    """
    start = rules.root if below is None else below
    real_root = os.path.realpath(rules.root)
    walker = _Walker(rules, record, rejected, remembered)
    yield from walker.tree(start, stop)
    while walker.links and not record.stopped:
        links, walker.links = sorted(walker.links), []
        for path in links:
            real = os.path.realpath(path)
            twice = any(is_inside(real, other) for other in walker.seen)
            if twice or is_inside(real, real_root) or is_inside(real_root, real):
                walker.reject(path, "link_loop")
            elif rules.is_others(real):
                walker.reject(path, "other_root")
            else:
                walker.link = (path, real)
                yield from walker.tree(path, stop)
                walker.seen.add(real)


@dataclass
class _Walker:
    rules: Rules
    record: Pass
    rejected: Callable[[bytes, str], None] | None
    remembered: Callable[[bytes], int | None]
    links: list[bytes] = field(default_factory=list)
    below: list[bytes] = field(default_factory=list)  # folders still to be gone into
    link: tuple[bytes, bytes] | None = None  # the link to a folder that is gone into, and its real path
    seen: set[bytes] = field(default_factory=set)  # real paths of those done

    def reject(self, path: bytes, why: str) -> None:
        if self.rejected is not None:
            self.rejected(path, why)

    def tree(self, start: bytes, stop: Callable[[], bool]) -> Iterator[Folder]:
        self.below = [start]
        while self.below:
            if stop():
                self.record.stopped = True
                return
            self.record.folders += 1
            folder = self.below.pop()
            expected = self.remembered(folder)
            same = None if expected is None or self.rejected is not None else self._same(folder, expected)
            yield self._folder(folder) if same is None else same

    def _same(self, folder: bytes, expected: int) -> Folder | None:
        """One listing of a folder that should be as it was: None if it is not, or if it holds anything unusual.

        This loop is all that a pass over an unchanged tree does; there is nothing in it that can be left out.
        """
        total = met = 0
        inner = []
        common, suffixes = COMMON_ENDS, MEDIA_SUFFIXES
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_file(follow_symlinks=False):
                        name = entry.name
                        if name[-4:] in common or name[name.rfind(b".") :].lower() in suffixes:
                            status = entry.stat()
                            total ^= hash((name, status.st_size, status.st_mtime_ns, status.st_ino))
                            met += 1
                        elif name[-1] in TRAILING or name.startswith(b".dropscribe-"):
                            return None
                    elif entry.is_dir(follow_symlinks=False):
                        inner.append(entry)
                    else:
                        return None
        except OSError:
            return None
        if total != expected:
            return None
        self.below += [entry.path for entry in inner if self._enter(entry)]
        return Folder(folder, met, total, None)

    def _folder(self, folder: bytes) -> Folder:
        """One listing of a folder that is new, changed or unusual."""
        total = 0
        sure = True
        candidates: list[os.DirEntry[bytes]] = []
        files: list[Found] = []
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if not entry.is_file(follow_symlinks=False):
                        if (other := self._other(entry)) is not None:
                            files.append(other)
                            total ^= mark(entry.name, *other.signature)
                        continue
                    name = entry.name
                    if not has_media_suffix(name):
                        self._no_media(entry, folder)
                        continue
                    candidates.append(entry)
                    try:
                        status = entry.stat()
                    except OSError:
                        sure = False
                    else:
                        total ^= mark(name, status.st_size, status.st_mtime_ns, status.st_ino)
        except OSError as error:
            # a folder that vanished meanwhile too: it may have moved to where we have been already
            self.record.errors.append((folder, error))
            sure = False
        count = len(candidates) + len(files)
        files += [found for entry in candidates if (found := self._candidate(entry)) is not None]
        sure = sure and not any(found.placeholder for found in files)
        return Folder(folder, count, total if sure else None, files)

    def _no_media(self, entry: os.DirEntry[bytes], folder: bytes) -> None:
        if entry.name.startswith(b".dropscribe-") and folder not in self.record.leftovers[-1:]:
            self.record.leftovers.append(folder)
        if self.rejected is not None:
            self.rejected(entry.path, self.rules.why_not_file(entry.path, entry.name) or "not_media")

    def _other(self, entry: os.DirEntry[bytes]) -> Found | None:
        """A folder, a link or something odd."""
        if entry.is_dir(follow_symlinks=False):
            if self._enter(entry):
                self.below.append(entry.path)
            return None
        if entry.is_symlink() and self._is_linked_folder(entry):
            if self._enter(entry):
                self.links.append(entry.path)
            return None
        if self.rules.why_not_file(entry.path, entry.name) is None and not self._is_file(entry):
            self.reject(entry.path, "not_regular")
            return None
        return self._candidate(entry)

    def _is_file(self, entry: os.DirEntry[bytes]) -> bool:
        # DirEntry swallows ENOENT alone; what else a link runs into must not end the listing of its folder
        try:
            return entry.is_file()
        except OSError as error:
            self._unfollowed(entry, error)
            return False

    def _unfollowed(self, entry: os.DirEntry[bytes], error: OSError) -> None:
        """A link that could not be followed. One that leads nowhere is left alone; any other error is one."""
        if error.errno not in _NOWHERE:
            self.record.errors.append((entry.path, error))

    def _candidate(self, entry: os.DirEntry[bytes]) -> Found | None:
        reason = self.rules.why_not_file(entry.path, entry.name)
        if reason is not None:
            self.reject(entry.path, reason)
            return None
        return self._file(entry)

    def _file(self, entry: os.DirEntry[bytes]) -> Found | None:
        try:
            status = entry.stat()
        except FileNotFoundError:
            return None  # gone since it was listed, or a link to nowhere
        except OSError as error:
            self.record.errors.append((entry.path, error))
            return None
        placeholder = is_placeholder(status)
        self.record.placeholders += placeholder
        return Found(entry.path, status.st_size, status.st_mtime_ns, status.st_ino, placeholder)

    def _enter(self, entry: os.DirEntry[bytes]) -> bool:
        reason = self.rules.why_not_folder(entry.path, entry.name)
        if reason is None and self.link is not None:
            reason = self._why_not_twice(entry)
        if reason is None and _flags_exist:
            try:
                if is_placeholder(entry.stat()):
                    self.record.placeholders += 1
                    self.record.unread.append(entry.path)
                    reason = "placeholder"
            except OSError as error:
                self.record.errors.append((entry.path, error))
                return False
        if reason is not None:
            self.reject(entry.path, reason)
        return reason is None

    def _why_not_twice(self, entry: os.DirEntry[bytes]) -> str | None:
        """Behind a link: a folder that another link or another watched folder has under its own name."""
        assert self.link is not None  # noqa: S101 - asked behind links alone
        path, real = self.link
        here = real + entry.path[len(path) :]
        if here in self.seen:
            return "link_loop"
        return "other_root" if self.rules.is_others(here) else None

    def _is_linked_folder(self, entry: os.DirEntry[bytes]) -> bool:
        if why_not_name(entry.name):
            return False  # not worth following; judged as a file, with the same answer
        try:
            return entry.is_dir()
        except OSError as error:
            self._unfollowed(entry, error)
            return False


_NOWHERE = frozenset({errno.ENOENT, errno.ELOOP, errno.ENOTDIR, errno.ENAMETOOLONG})
_flags_exist = hasattr(os.stat_result, "st_flags")  # a plain stat per folder is saved where there is nothing to see
