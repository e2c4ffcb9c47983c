"""Originals of done jobs go to ``move_done_to``, so that a kill at any instant leaves the file somewhere, once.

1. The intent is committed (``moves``): where from, the hidden name in between, where to.
2. The file takes the hidden name, in its own folder: from now on nobody writes to it by its name.
3. What is hidden must have the signature that was transcribed; else it goes back.
4. It moves: by a link where both ends are on one file system, else as a copy, synced and compared with the content
   hash, before the hidden one goes. Never over another file.
5. The job's path says where it is now, and the intent is gone, in one transaction.

Whatever fails puts the file back under its name. A link in the watched folder is left alone: it is not the file.
"""

# Paths are bytes here, which pathlib does not take.
# ruff: noqa: PTH104, PTH116, PTH118, PTH120, PTH122

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
import threading
import time
from datetime import timedelta
from itertools import count
from typing import TYPE_CHECKING

import structlog

from dropscribe.errors import DatabaseReplaced, DropscribeError
from dropscribe.jobs import moves
from dropscribe.jobs.database import open_database
from dropscribe.jobs.records import iso, printable, utcnow
from dropscribe.transcripts import files
from dropscribe.transcripts.names import target_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime

    from dropscribe.jobs.database import Database
    from dropscribe.jobs.moves import Done, Move
    from dropscribe.settings import Settings, Watch

log = structlog.get_logger("originals")

LOOK_SECONDS = 2.0  # how often the job log is asked whether it has changed
RETRY_SECONDS = 60.0  # after a folder that could not be written to
AGAIN_SECONDS = 600.0  # a job that ended this long before the last look is not looked at again
COPY_BYTES = 1 << 20


class Originals:
    """Does what is due when ``step`` is called, on one thread. ``checkpoint`` is told each step; tests kill there."""

    def __init__(
        self,
        db: Database,
        settings: Settings,
        *,
        clock: Callable[[], float] = time.monotonic,
        checkpoint: Callable[[str], None] = lambda _step: None,
        now: Callable[[], datetime] = utcnow,
    ) -> None:
        self._db = db
        self._now = now
        self._watches = [watch for watch in settings.watch if watch.move_done_to is not None]
        self._clock = clock
        self._checkpoint = checkpoint
        self._not_before: dict[bytes, float] = {}  # folder of the originals → when it is tried again
        self._left: set[tuple[int, bytes]] = set()  # jobs whose file is not to be moved, as it is
        self._since: dict[bytes, str] = {}  # folder of the originals → what ended before then has been looked at

    def step(self, stopping: Callable[[], bool] = lambda: False) -> int:
        """Finish what was begun, then move what is done; how many arrived."""
        arrived = sum(self._carry_on(move) for move in moves.under_way(self._db) if not stopping())
        for watch in self._watches:
            root, began = os.fsencode(watch.path), self._now()
            for done in self._ready(watch):
                if stopping():
                    return arrived
                arrived += self._one(watch, done)
            if root not in self._not_before:  # else there are some that wait
                self._since[root] = iso(began - timedelta(seconds=AGAIN_SECONDS))
        return arrived

    def _ready(self, watch: Watch) -> Iterator[Done]:
        root = os.fsencode(watch.path)
        rows = self._db.rows("SELECT id FROM roots WHERE path = ?", (printable(root),))
        if not rows or self._waits(root):
            return
        self._not_before.pop(root, None)
        since = self._since.get(root, "")
        for done in moves.ready(self._db, rows[0]["id"], root.rstrip(b"/") + b"/", since=since):
            if self._waits(root):
                return
            if (done.job_id, done.path) not in self._left:
                yield done

    def _waits(self, root: bytes) -> bool:
        return self._not_before.get(root, 0.0) > self._clock()

    def _one(self, watch: Watch, done: Done) -> bool:
        assert watch.move_done_to is not None  # noqa: S101 - only such watches are kept
        target = target_for(done.path, watch.path, watch.move_done_to)
        try:
            if not _is_file(done.path) or not _same(done.path, done):
                self._left.add(
                    (done.job_id, done.path)
                )  # gone, a link, or changed: then the scan makes a new job of it
                return False
            files.make_folder(target.folder)
            goal = _free_name(os.path.join(target.folder, target.source_name))
        except OSError as error:
            self._put_off(os.fsencode(watch.path), done.path, error)
            return False
        hidden = os.path.join(os.path.dirname(done.path), b".dropscribe-moving-%d" % done.job_id)
        move = moves.begin(self._db, done, hidden, goal)
        self._checkpoint("intended")
        arrived = move is not None and self._carry_on(move)
        if not arrived:
            self._not_before[os.fsencode(watch.path)] = self._clock() + RETRY_SECONDS
        return arrived

    def _carry_on(self, move: Move) -> bool:
        """From wherever it is; True when it has arrived."""
        try:
            return self._steps(move)
        except OSError as error:
            log.warning("original_not_moved", job=move.job_id, path=printable(move.source), error=str(error))
        try:
            self._back(move)
        except OSError as error:
            moves.note_error(self._db, move, f"it is at {printable(move.hidden)} and cannot go on or back: {error}")
        return False

    def _steps(self, move: Move) -> bool:
        if not os.path.lexists(move.hidden):
            if _is_file(move.target) and files.look(move.target) == move.content_hash:
                return self._arrived(move)  # it had arrived and nobody had said so
            if not _is_file(move.source) or not _same(move.source, move):
                moves.give_up(self._db, move)
                return False
            os.rename(move.source, move.hidden)
            files.sync_folder(os.path.dirname(move.hidden))
            self._checkpoint("hidden")
        if not _same(move.hidden, move):
            self._back(move)
            return False
        if not self._is_placed(move) and not self._place(move):
            self._back(move)
            return False
        files.sync_folder(os.path.dirname(move.target))
        self._checkpoint("placed")
        files.unlink(move.hidden)
        files.sync_folder(os.path.dirname(move.hidden))
        self._checkpoint("unlinked")
        return self._arrived(move)

    def _arrived(self, move: Move) -> bool:
        moves.arrived(self._db, move)
        self._checkpoint("arrived")
        log.info("original_moved", job=move.job_id, path=printable(move.target), was=printable(move.source))
        return True

    def _is_placed(self, move: Move) -> bool:
        """Whether the target is there already, from an attempt that was cut off after it."""
        if not os.path.lexists(move.target):
            return False
        return (
            files.identity(move.target) == files.identity(move.hidden) or files.look(move.target) == move.content_hash
        )

    def _place(self, move: Move) -> bool:
        """The content at the target; the hidden one may be there still. False when the target is somebody else's."""
        if os.path.lexists(move.target) and files.look(move.target) == files.EMPTY:
            files.unlink(move.target)  # our own placeholder: the name was free when it was picked
        try:
            if _device(move.hidden) == _device(os.path.dirname(move.target)):
                return files.place_new(move.hidden, move.target, self._checkpoint)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
        return self._copy(move)

    def _copy(self, move: Move) -> bool:
        temp = os.path.join(os.path.dirname(move.target), b".dropscribe-moving-%d" % move.job_id)
        files.unlink(temp)
        try:
            with open(move.hidden, "rb") as source, open(temp, "xb") as copy:  # noqa: PTH123 - bytes
                digest = hashlib.sha256()
                while block := source.read(COPY_BYTES):
                    digest.update(block)
                    copy.write(block)
                copy.flush()
                shutil.copystat(move.hidden, temp)
                files.full_sync(copy.fileno())
            self._checkpoint("copied")
            whole = digest.hexdigest() == move.content_hash == files.look(temp)
            return whole and files.place_new(temp, move.target, self._checkpoint)
        finally:
            files.unlink(temp)

    def _back(self, move: Move) -> None:
        """The hidden file has its name again, or the next free one if somebody has taken that."""
        if os.path.lexists(move.hidden):
            while not files.place_new(move.hidden, goal := _free_name(move.source), self._checkpoint):
                pass
            files.sync_folder(os.path.dirname(goal))
        moves.give_up(self._db, move)

    def _put_off(self, root: bytes, path: bytes, error: OSError) -> None:
        log.warning("originals_wait", path=printable(path), error=str(error), retry_s=RETRY_SECONDS)
        self._not_before[root] = self._clock() + RETRY_SECONDS


class OriginalsThread:
    """Looks after every change of the job log. A daemon thread: what it leaves half done the next start finishes."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="originals", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask it to leave after the file in hand."""
        self._stop.set()

    def join(self, seconds: float) -> None:
        """Wait for it to leave."""
        self._thread.join(seconds)

    def _run(self) -> None:
        db = version = originals = None
        while not self._stop.wait(LOOK_SECONDS):
            try:
                if db is None or originals is None:
                    db = open_database(self._settings.database)
                    originals, version = Originals(db, self._settings), None
                now = (db.rows("PRAGMA data_version")[0][0], int(time.monotonic() / RETRY_SECONDS))
                if now != version:
                    version = now
                    originals.step(self._stop.is_set)
            except DatabaseReplaced:
                break
            except (DropscribeError, OSError) as error:
                version = None
                log.warning("originals_wait", error=str(error))
            except Exception:  # a bug in here must not end it silently
                log.exception("originals_failed")
        if db is not None:
            db.close()


def _same(path: bytes, of: Done | Move) -> bool:
    status = os.lstat(path)
    return (status.st_size, status.st_mtime_ns) == (of.size_bytes, of.mtime_ns)


def _is_file(path: bytes) -> bool:
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _device(path: bytes) -> int:
    return os.stat(path).st_dev


def _free_name(path: bytes) -> bytes:
    """``path``, or ``stem (2).suffix``, ``stem (3).suffix`` …: the first that nothing has."""
    folder, name = os.path.split(path)
    stem, suffix = os.path.splitext(name)
    room = files.name_max(folder)
    for number in count(1):
        tail = suffix if number == 1 else b" (%d)" % number + suffix
        goal = os.path.join(folder, stem[: room - len(tail)] + tail)
        if not os.path.lexists(goal):
            return goal
    raise AssertionError  # pragma: no cover - there is always a free one
