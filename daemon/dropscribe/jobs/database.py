"""Opening the job log, and the one way to write to it: ``with transaction(db):``.

Importing this module, reading, and opening a log whose schema is current load nothing but sqlite3; sqlite-utils comes
in when there is something to migrate.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dropscribe.errors import (
    ConfigError,
    DatabaseBusy,
    DatabaseReplaced,
    DiskFull,
    DropscribeError,
    OutputUnwritable,
    SchemaTooNew,
)
from dropscribe.jobs.records import MIGRATIONS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import sqlite_utils

    Parameters = Sequence[Any] | Mapping[str, Any]

# how long a statement waits for another program's lock
BUSY_SECONDS = float(os.environ.get("DROPSCRIBE_TEST_BUSY_SECONDS", "10"))
OPEN_SECONDS = 60.0  # how long we wait for other processes of ours that open or migrate the same file
WAL_LIMIT_BYTES = 16 * 2**20  # the -wal file is cut back to this after a checkpoint
OLDEST_SQLITE = (3, 37, 0)  # STRICT tables


class Database:
    """A connection for writing. Threads may share it: ``lock`` is held for the length of a transaction or a read."""

    def __init__(self, conn: sqlite3.Connection, path: Path, *, checkpoints: bool = False) -> None:
        self.conn = conn
        self.path = path
        self.checkpoints = checkpoints
        self.lock = threading.RLock()
        self._identity = file_identity(path)

    @property
    def tables(self) -> sqlite_utils.Database:
        """The same connection as sqlite-utils sees it."""
        import sqlite_utils

        return sqlite_utils.Database(self.conn, execute_plugins=False)

    def execute(self, sql: str, parameters: Parameters = ()) -> sqlite3.Cursor:
        """Run one statement. Writes belong inside ``transaction``; a bare one commits by itself."""
        with self.lock, translated(self.path):
            return self.conn.execute(sql, parameters)

    def rows(self, sql: str, parameters: Parameters = ()) -> list[sqlite3.Row]:
        """All rows of one query; no read transaction outlives the call."""
        with self.lock, translated(self.path):
            return self.conn.execute(sql, parameters).fetchall()

    def check_not_replaced(self) -> None:
        """Raise ``DatabaseReplaced`` when the path no longer leads to the file this connection has open."""
        # While we hold the file open its inode cannot be given to another, so equal numbers mean the same file.
        if self._identity != file_identity(self.path):
            raise _replaced(self.path)

    def close(self) -> None:
        """Close the connection."""
        with self.lock:
            self.conn.close()


def open_database(path: str | os.PathLike[str], *, checkpoints: bool = False) -> Database:
    """Open the job log for writing; create and migrate it as needed. Any number of processes may do so at once.

    ``checkpoints``: this connection moves the write-ahead log into the file. Only the supervisor asks for that: SQLite
    up to 3.51.2 can corrupt a database when one connection checkpoints and another writes at the same instant.
    Raises ``SchemaTooNew``, ``DatabaseBusy``, ``DiskFull``, ``OutputUnwritable``, ``ConfigError``.
    """
    _check_sqlite()
    path = Path(path)
    _check_no_folder(path)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise OutputUnwritable(f"cannot create the job log's folder {path.parent}: {error.strerror}") from None
    with _opening(path) as lock, translated(path):
        _drop_leftovers(path, lock)
        conn = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            _prepare(conn, path, checkpoints=checkpoints)
            db = Database(conn, path, checkpoints=checkpoints)
            _note_pair(path, lock)
        except BaseException:
            conn.close()
            raise
    return db


def connect_readonly(path: str | os.PathLike[str]) -> sqlite3.Connection:
    """A connection that cannot write; rows have names.

    Raises ``ConfigError`` when there is no job log or it is an older one, and ``SchemaTooNew``.
    """
    _check_sqlite()
    path = Path(path).absolute()
    if not path.exists():
        raise ConfigError(f"no job log at {path} yet; `dropscribe run` creates it, `database` in the config moves it")
    _check_no_folder(path)
    with translated(path):
        conn = _readonly(path)
        try:
            conn.row_factory = sqlite3.Row
            missing = _missing_migrations(conn, path)
        except BaseException:
            conn.close()
            raise
    if missing:
        conn.close()
        raise ConfigError(
            f"{path} was written by an older dropscribe; start `dropscribe run` once to bring it up to date"
        )
    return conn


@contextmanager
def transaction(db: Database) -> Iterator[None]:
    """``BEGIN IMMEDIATE`` … ``COMMIT``, or ``ROLLBACK`` on any exception; inside another one it joins that.

    Keep everything slow out of it. Raises ``DatabaseReplaced``, ``DatabaseBusy``, ``DiskFull``, ``OutputUnwritable``.
    """
    with db.lock:
        if _in_transaction(db):
            yield
            return
        with translated(db.path):
            db.check_not_replaced()
            db.conn.execute("BEGIN IMMEDIATE")
            try:
                db.check_not_replaced()  # waiting for the lock may have taken seconds
                yield
                db.conn.execute("COMMIT")
            except BaseException:
                if _in_transaction(db):  # some errors have rolled back by themselves
                    db.conn.execute("ROLLBACK")
                raise


def checkpoint(db: Database) -> bool:
    """Move the write-ahead log into the file and empty it; waits for nobody: False when one is in the way."""
    with db.lock, translated(db.path):
        db.check_not_replaced()
        db.conn.execute("PRAGMA busy_timeout = 0")
        try:
            busy, _, _ = db.conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        finally:
            db.conn.execute(f"PRAGMA busy_timeout = {int(BUSY_SECONDS * 1000)}")
    return not busy


def _in_transaction(db: Database) -> bool:
    return db.conn.in_transaction


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """SQLite's errors as ours; what is a mistake in our own SQL passes unchanged."""
    try:
        yield
    except sqlite3.Error as error:
        ours = translate(error, path)
        if ours is None:
            raise
        raise ours from error


def translate(error: sqlite3.Error, path: Path) -> DropscribeError | None:  # noqa: PLR0911 - a table of codes
    """The error of ours that an SQLite error on the job log stands for, or None."""
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return None
    primary = code & 0xFF
    if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return DatabaseBusy(f"another program keeps {path} locked; it is tried again until that one lets go")
    if primary not in _STORAGE_ERRORS:
        return None
    if code == sqlite3.SQLITE_READONLY_DBMOVED or (file_identity(path) is None and path.parent.exists()):
        return _replaced(path)
    if primary in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
        return DiskFull(f"no space left (or a disk error) while writing {path}: {error}; free some and work goes on")
    if primary in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return ConfigError(
            f"{path} is not a job log or is damaged ({error}); move it away and a new one is built by the scan"
        )
    return OutputUnwritable(f"cannot write the job log {path}: {error}; make it and its folder writable")


_STORAGE_ERRORS = frozenset({
    sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB,
})  # fmt: skip


def _prepare(conn: sqlite3.Connection, path: Path, *, checkpoints: bool) -> None:
    """Settings of a writing connection, WAL and migrations; called under the opening lock."""
    conn.execute("PRAGMA foreign_keys = ON")
    conn.execute("PRAGMA recursive_triggers = ON")  # a REPLACE must reach the full-text index too
    missing = _missing_migrations(conn, path)
    _switch_to_wal(conn, path)
    conn.execute("PRAGMA synchronous = FULL")
    if sys.platform == "darwin":
        conn.execute("PRAGMA fullfsync = ON")
        conn.execute("PRAGMA checkpoint_fullfsync = ON")
    conn.execute(f"PRAGMA journal_size_limit = {WAL_LIMIT_BYTES}")
    conn.execute(f"PRAGMA wal_autocheckpoint = {1000 if checkpoints else 0}")
    if missing:
        import sqlite_utils

        from dropscribe.jobs.schema import migrations

        migrations.apply(sqlite_utils.Database(conn, execute_plugins=False))
    conn.row_factory = sqlite3.Row


def _missing_migrations(conn: sqlite3.Connection, path: Path) -> list[str]:
    """Our migrations that ``conn`` lacks. Raises when the file is somebody else's or newer than we are."""
    tables = {name for (name,) in conn.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    applied = []
    if "_sqlite_migrations" in tables:
        query = "SELECT name FROM _sqlite_migrations WHERE migration_set = 'dropscribe'"
        applied = [name for (name,) in conn.execute(query)]
    unknown = [name for name in applied if name not in MIGRATIONS]
    if unknown:
        raise SchemaTooNew(
            f"{path} was written by a newer dropscribe (it has {', '.join(unknown)}); "
            "upgrade, or choose another `database`"
        )
    if not applied and tables - {"_sqlite_migrations"}:
        raise ConfigError(f"{path} is another program's database; choose another `database`")
    return [name for name in MIGRATIONS if name not in applied]


def _check_no_folder(path: Path) -> None:
    if path.is_dir():  # SQLite would speak of a disk error
        raise ConfigError(f"{path} is a folder; set `database` to a file in it, such as {path / 'jobs.db'}")


def _drop_leftovers(path: Path, lock: int) -> None:
    """Remove the -wal and -shm of a log that was deleted or replaced.

    Another process may still have them open, and SQLite leaves them when their file was moved away. It would believe
    what they say about a file that they do not belong to, and ruin it.
    """
    here, wal = file_identity(path), file_identity(f"{path}-wal")
    noted = os.pread(lock, 200, 0).decode("ascii", "replace").splitlines()
    replaced = wal is not None and len(noted) == 2 and noted[0] != str(here) and noted[1] == str(wal)
    if here is not None and not replaced:
        return
    for suffix in ("-wal", "-shm"):
        try:
            Path(f"{path}{suffix}").unlink(missing_ok=True)
        except OSError as error:
            raise OutputUnwritable(
                f"cannot remove {path}{suffix}, left of a deleted or replaced job log: {error.strerror}"
            ) from None


def _note_pair(path: Path, lock: int) -> None:
    """Which write-ahead log belongs to which file, in the lock file: their names alone do not tell."""
    pair = f"{file_identity(path)}\n{file_identity(f'{path}-wal')}\n".encode("ascii")
    if os.pread(lock, 200, 0) == pair:
        return
    with suppress(OSError):  # a full disk; what was noted before never names this file with this log
        os.ftruncate(lock, 0)
        os.pwrite(lock, pair, 0)


def _switch_to_wal(conn: sqlite3.Connection, path: Path) -> None:
    """The first switch needs the file for itself and does not heed the busy timeout: it is tried until that is over."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            mode = conn.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            break
    if mode != "wal":
        raise ConfigError(f"the file system of {path} cannot hold the job log; choose a `database` on a local disk")


@contextmanager
def _opening(path: Path) -> Iterator[int]:
    """Hold the lock file under which a job log is created and migrated; its descriptor.

    It stays on disk: unlinking it would race.
    """
    name = f"{path}.opening"
    try:
        lock = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise OutputUnwritable(
            f"cannot write the job log's lock file {name}: {error.strerror}; make it and its folder writable"
        ) from None
    try:
        deadline = time.monotonic() + OPEN_SECONDS
        while not _flocked(lock):
            if time.monotonic() > deadline:
                raise DatabaseBusy(f"another dropscribe keeps {name} locked; wait for it or stop it")
            time.sleep(0.01)
        yield lock
    finally:
        os.close(lock)


def _flocked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _readonly(path: Path) -> sqlite3.Connection:
    uri = path.as_uri()
    conn = sqlite3.connect(f"{uri}?mode=ro", uri=True, timeout=BUSY_SECONDS, isolation_level=None)
    try:
        conn.execute("SELECT 1 FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:
        conn.close()
        if os.access(path.parent, os.W_OK) or Path(f"{path}-wal").exists():
            raise
        # Read-only folder and no write-ahead log: nobody can be writing, and SQLite cannot make its -shm file there.
        conn = sqlite3.connect(f"{uri}?mode=ro&immutable=1", uri=True, isolation_level=None)
    return conn


def file_identity(path: bytes | str | os.PathLike[str]) -> tuple[int, int] | None:
    """Device and inode of a file or folder, or ``None`` where there is none: whether it is still the same one."""
    try:
        status = os.stat(path)  # noqa: PTH116 - bytes too
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _replaced(path: Path) -> DatabaseReplaced:
    return DatabaseReplaced(f"{path} was deleted or replaced while it was open; nothing more is written to the old one")


def _check_sqlite() -> None:
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        oldest = ".".join(map(str, OLDEST_SQLITE))
        raise ConfigError(f"SQLite {sqlite3.sqlite_version} is too old; use a Python built with {oldest} or later")
