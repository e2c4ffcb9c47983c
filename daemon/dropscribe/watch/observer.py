"""The hints: the platform's own file events, made into "look here soon".

watchdog's native observer listens; its handler does nothing but put paths into a ``Mailbox``, because an exception in a
handler would end the dispatching thread while everything else looks alive. One observer a watched folder, so that each
can die, be re-armed and be reported for itself.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dropscribe.jobs.database import file_identity
from dropscribe.watch.eligibility import is_inside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

MOST_HINTS = 50_000  # beyond this many paths a scan is cheaper than the hints
# Changes made by another machine raise no event here. fuse.* too, except the local ones behind fuseblk.
REMOTE_FILESYSTEMS = frozenset({
    "9p", "acfs", "afpfs", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "glusterfs", "gpfs", "lustre", "ncpfs",
    "nfs", "nfs4", "prl_fs", "smb2", "smb3", "smbfs", "vboxsf", "virtiofs", "vmhgfs", "webdav",
})  # fmt: skip


@dataclass
class Mail:
    """What one look into the mailbox brings."""

    paths: list[bytes] = field(default_factory=list)  # in the order of their first mention
    rescans: dict[bytes, str] = field(default_factory=dict)  # root → why


class Mailbox:
    """Paths to look at and roots to scan, from any thread to the one that decides. Never blocks a sender for long."""

    def __init__(self, most: int = MOST_HINTS) -> None:
        self._most = most
        self._changed = threading.Condition()
        self._paths: dict[bytes, None] = {}
        self._rescans: dict[bytes, str] = {}
        self._awake = False

    def hint(self, root: bytes, path: bytes) -> None:
        """Something happened at ``path``."""
        with self._changed:
            if len(self._paths) >= self._most:
                self._rescans.setdefault(root, "too_many_events")
            else:
                self._paths[path] = None
            self._changed.notify_all()

    def rescan(self, root: bytes, why: str) -> None:
        """Events of this root may have been lost."""
        with self._changed:
            self._rescans[root] = why
            self._changed.notify_all()

    def wake(self) -> None:
        """End a ``wait`` that is going on, or the next one."""
        with self._changed:
            self._awake = True
            self._changed.notify_all()

    def wait(self, seconds: float) -> None:
        """Until there is mail, somebody wakes us, or the time is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._awake or bool(self._paths or self._rescans), seconds)
            self._awake = False

    def take(self) -> Mail:
        """Everything so far; the box is empty afterwards."""
        with self._changed:
            mail = Mail(list(self._paths), self._rescans)
            self._paths, self._rescans = {}, {}
        return mail


class RootObserver:
    """Native events of one watched folder. ``factory`` makes a watchdog observer; tests hand in another."""

    def __init__(
        self, root: bytes, *, recursive: bool, mailbox: Mailbox, factory: Callable[[], Any] | None = None
    ) -> None:
        self._root = root
        self._recursive = recursive
        self._mailbox = mailbox
        self._factory = factory or _native_observer
        self._observer: Any = None
        self._identity: tuple[int, int] | None = None
        self.problem: str | None = None  # why events cannot be relied upon

    def arm(self) -> bool:
        """Start to listen (again). False: events do not work here, ``problem`` says why; then only scans help."""
        self.disarm()
        real = os.path.realpath(self._root)  # inotify does not follow the last link, FSEvents reports real paths
        self.problem = remote_filesystem(real)
        observer = None
        try:
            observer = self._factory()
            self._tap(observer)
            handler: Any = _Handler(self._root, real, self._mailbox)
            observer.schedule(handler, os.fsdecode(real), recursive=self._recursive, event_filter=_event_filter())
            observer.start()
            self._identity = file_identity(real)
        except Exception as error:  # whatever events fail with, scans go on without
            self.problem = _explain(error)
            if observer is not None:
                _end(observer)
            return False
        self._observer = observer
        return self.problem is None

    def disarm(self) -> None:
        """Stop to listen."""
        observer, self._observer = self._observer, None
        if observer is not None:
            _end(observer)

    @property
    def armed(self) -> bool:
        """``arm`` was called and listens; whether it still lives says ``alive``."""
        return self._observer is not None

    def alive(self) -> bool:
        """All threads of the observer run and the folder is still the one they were started for."""
        observer = self._observer
        if observer is None:
            return False
        threads = [observer, *observer.emitters]
        if (descriptor := getattr(observer, "_inotify_fd", None)) is not None:
            threads.append(descriptor)
        running = bool(observer.emitters) and all(thread.is_alive() for thread in threads)
        return running and self._identity == file_identity(os.path.realpath(self._root))

    def _tap(self, observer: Any) -> None:
        """The one seam into watchdog: learn of lost events and of the watch limit, both of which it keeps to itself.

        The kernel's queue overflowing is handled inside (watches are renewed) but not passed on; a folder below the
        root that could not be watched is skipped without a word. Where the seam is not there, events are not relied on.
        """
        if not sys.platform.startswith("linux"):
            return
        descriptor: Any = getattr(observer, "_inotify_fd", None)
        handle, add = getattr(descriptor, "handle_event", None), getattr(descriptor, "add_callback", None)
        if handle is None or add is None:
            self.problem = self.problem or "this watchdog does not tell of lost events"
            return

        def handle_event(event: Any) -> None:
            try:
                handle(event)
            finally:
                if event.is_queue_overflow:
                    self._mailbox.rescan(self._root, "overflow")

        def add_callback(*args: Any, **kwargs: Any) -> Any:
            try:
                return add(*args, **kwargs)
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.ENOMEM):
                    self.problem = _explain(error)
                    self._mailbox.rescan(self._root, "watch_limit")
                raise

        descriptor.handle_event, descriptor.add_callback = handle_event, add_callback


class _Handler:
    """watchdog's handler: puts the paths into the mailbox as the user spelled the root, and never raises."""

    def __init__(self, root: bytes, real: bytes, mailbox: Mailbox) -> None:
        self._root = root
        self._real = real
        self._mailbox = mailbox

    def dispatch(self, event: Any) -> None:
        for raw in (event.src_path, getattr(event, "dest_path", "")):
            if not raw:
                continue
            path = os.fsencode(raw)
            if path == self._real:
                self._mailbox.rescan(self._root, "root_changed")
            elif is_inside(path, self._real):
                self._mailbox.hint(self._root, os.path.join(self._root, path[len(self._real) :].lstrip(b"/")))  # noqa: PTH118


def remote_filesystem(path: bytes, mounts: Iterable[tuple[bytes, str]] | None = None) -> str | None:
    """Why changes made elsewhere raise no event at ``path``, if it lies on a network or shared file system."""
    kind = ""
    longest = -1
    for point, name in _mounts() if mounts is None else mounts:
        if is_inside(path, point) and len(point) >= longest:  # the later of two mounts on one point hides the other
            kind, longest = name, len(point)
    if kind in REMOTE_FILESYSTEMS or kind.startswith("fuse."):
        return f"{kind} reports no changes made on other machines"
    return None


def _mounts() -> list[tuple[bytes, str]]:
    """Mount points and file system types; empty where they cannot be told."""
    if sys.platform == "darwin":
        import re
        import subprocess

        try:
            listing = subprocess.run(["/sbin/mount"], capture_output=True, timeout=5, check=False).stdout
        except (OSError, subprocess.TimeoutExpired):
            return []
        return [
            (point, kind.decode()) for point, kind in re.findall(rb"^.* on (/.*?) \((\w+)[,)]", listing, re.MULTILINE)
        ]
    try:
        lines = Path("/proc/self/mountinfo").read_bytes().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        fields, _, rest = line.partition(b" - ")
        # the kernel writes space, tab, newline and backslash as octal escapes
        point = fields.split(b" ")[4].decode("unicode_escape").encode("latin-1")
        found.append((point, rest.split(b" ")[0].decode()))
    return found


def _native_observer() -> Any:
    from watchdog.observers import Observer
    from watchdog.observers.polling import PollingObserver

    logging.getLogger("watchdog").setLevel(logging.CRITICAL)  # what it warns of, we say ourselves, once
    if Observer is PollingObserver:
        raise OSError(errno.ENOSYS, "no native file events on this system")
    return Observer()


def _event_filter() -> list[Any]:
    """What may bring or complete a file. Mere readers raise opened/closed_no_write, which nobody needs to hear."""
    from watchdog import events

    wanted: list[Any] = [
        events.FileCreatedEvent, events.FileMovedEvent, events.FileDeletedEvent,
        events.DirCreatedEvent, events.DirMovedEvent, events.DirDeletedEvent,
    ]  # fmt: skip
    # Linux says when a writer closes a file, which spares an event for every write; elsewhere writes are all there is
    wanted.append(events.FileClosedEvent if sys.platform.startswith("linux") else events.FileModifiedEvent)
    return wanted


def _explain(error: BaseException) -> str:
    number = getattr(error, "errno", None)
    if number == errno.ENOSPC:
        return "the limit of watched folders is reached; raise fs.inotify.max_user_watches"
    if number == errno.EMFILE:
        return "the limit of inotify instances is reached; raise fs.inotify.max_user_instances"
    return f"native file events do not work: {error}"


def _end(observer: Any) -> None:
    """Stop an observer in whatever state it is. Its threads are daemons, so one that hangs holds nobody up."""
    try:
        observer.stop()
        for thread in (observer, getattr(observer, "_inotify_fd", None)):
            if thread is not None and thread.is_alive():
                thread.join(2.0)
    except Exception:  # half-started observers raise all sorts of things when stopped
        logging.getLogger(__name__).debug("observer did not stop cleanly", exc_info=True)
