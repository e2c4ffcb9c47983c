"""Checks of files and folders: settings, job log, watched folders as we and as the service see them, free space."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dropscribe.errors import ConfigError, DropscribeError, SchemaTooNew
from dropscribe.jobs import log
from dropscribe.jobs.database import connect_readonly
from dropscribe.jobs.records import printable
from dropscribe.service.doctor import Finding, ok, problem, warning
from dropscribe.service.places import log_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dropscribe.settings import Settings

FULL_BYTES, LOW_BYTES = 100 * 2**20, 2 * 2**30
# what the system says of a folder its privacy settings protect, whatever the permission bits are
DENIED_BY_PRIVACY = os.strerror(errno.EPERM)


def settings_file(path: Path, settings: Settings) -> Iterator[Finding]:
    """There are settings, and a folder in them."""
    if not settings.watch:
        yield problem(
            "settings", f"no folder to watch in {path}", "`dropscribe config init`, then name one under [[watch]]"
        )
    else:
        number = len(settings.watch)
        yield ok("settings", f"{path}, {number} folder{'s' * (number > 1)}")


def job_log(database: Path) -> Iterator[Finding]:
    """The job log can be read, and is one we know."""
    try:
        if not database.exists():
            yield from _creatable(database)
            return
        with closing(connect_readonly(database)) as conn:
            counts = log.counts(conn)
    except SchemaTooNew as error:
        yield problem("job log", str(error), "upgrade dropscribe (the job log was written by a newer one)")
    except ConfigError as error:
        if "older dropscribe" in str(error):
            yield ok("job log", f"{database}, from an older version; the next start brings it up to date")
        else:
            yield problem("job log", str(error), "move it away, or set `database` to another file")
    except (DropscribeError, OSError) as error:
        yield problem("job log", str(error), f"make {database} and its folder yours: see `ls -l {database.parent}`")
    else:
        if not os.access(database, os.W_OK):
            yield problem(
                "job log", f"{database} cannot be written", f"make it yours: `sudo chown $(id -un) {database}*`"
            )
            return
        told = ", ".join(f"{count} {state}" for state, count in counts.items() if count) or "no job yet"
        yield ok("job log", f"{database}: {told}")


def _creatable(database: Path) -> Iterator[Finding]:
    parent = next(folder for folder in database.parents if folder.exists())
    if os.access(parent, os.W_OK):
        yield ok("job log", f"{database} is not there yet; the first start creates it")
    else:
        yield problem(
            "job log",
            f"{database} cannot be created: {parent} is not writable",
            "make that folder writable, or set `database`",
        )


def folders(settings: Settings, *, system: str = sys.platform) -> Iterator[Finding]:
    """Each watched folder, as this shell sees it and as the service recorded it when it looked last."""
    recorded = _recorded(settings.database)
    for watch in settings.watch:
        here = _look(watch.path, writable=watch.output_dir is None)
        there: dict[str, Any] = recorded.get(printable(os.fsencode(watch.path)), {})
        if here is not None:
            yield problem("folders", f"{watch.path}: {here}", _remedy(watch.path, here, system))
        elif there.get("state") in ("away", "unreadable"):
            error = str(there.get("error") or "it was not there")
            yield problem(
                "folders",
                f"{watch.path}: this shell can read it, the service could not ({error}; {there.get('last_scan_at')})",
                _remedy(watch.path, error, system),
            )
        else:
            seen = f", last scanned {there['last_scan_at']}" if there.get("last_scan_at") else ", not scanned yet"
            yield ok("folders", f"{watch.path}{seen}")
        if watch.output_dir is not None and watch.output_dir.exists() and not os.access(watch.output_dir, os.W_OK):
            yield problem(
                "folders", f"{watch.output_dir} cannot be written", "make it writable, or set another output_dir"
            )


def _recorded(database: Path) -> dict[str, dict[str, Any]]:
    try:
        with closing(connect_readonly(database)) as conn:
            return {row["path"]: row for row in log.roots(conn)}
    except DropscribeError:
        return {}


def _look(path: Path, *, writable: bool) -> str | None:
    """What is wrong with a folder, in the system's words."""
    try:
        with os.scandir(path) as entries:
            next(entries, None)
    except FileNotFoundError:
        return "it is not there"
    except NotADirectoryError:
        return "it is not a folder"
    except OSError as error:
        return error.strerror or str(error)
    if writable and not os.access(path, os.W_OK):
        return "transcripts cannot be written there"
    return None


def _remedy(path: Path, why: str, system: str) -> str:
    if "not a folder" in why:
        return "name a folder under [[watch]]"
    if "not there" in why or "mounted" in why:
        return f"create it (`mkdir -p {path}`), connect the disk it is on, or correct [[watch]]"
    if system == "darwin" and DENIED_BY_PRIVACY in why:
        return (
            "this is macOS's privacy protection, not the folder's permissions: System Settings → Privacy & Security → "
            f"Files & Folders (or Full Disk Access: + and choose {Path(sys.executable).resolve()}), allow it, then "
            "`dropscribe service stop` and `start`; or watch a folder outside Desktop, Documents, Downloads and iCloud"
        )
    if "written" in why:
        return f"make it writable (`chmod u+w {path}`), or set output_dir for this folder"
    return f"allow reading it: `ls -ld {path}` shows whose it is, `chmod u+rx {path}` opens it"


def disk(
    settings: Settings, *, free: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free
) -> Iterator[Finding]:
    """Space where we write, each file system once."""
    wanted = [settings.database.parent, log_file().parent]
    wanted += [watch.output_dir or watch.path for watch in settings.watch]
    seen: set[int] = set()
    for folder in wanted:
        there = next((part for part in (folder, *folder.parents) if part.exists()), None)
        if there is None:
            continue
        device = there.stat().st_dev
        if device in seen:
            continue
        seen.add(device)
        space = free(there)
        told = f"{space / 2**30:.1f} GB free at {there}"
        if space < FULL_BYTES:
            yield problem("disk", f"the disk is full: {told}", "free some space; what waits for it goes on by itself")
        elif space < LOW_BYTES:
            yield warning("disk", f"little space: {told}", "free some; models alone take 1 to 4 GB")
        else:
            yield ok("disk", told)
