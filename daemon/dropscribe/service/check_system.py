"""Checks of what the machine brings: Python, SQLite, file events."""

from __future__ import annotations

import os
import platform
import sqlite3
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dropscribe.jobs.database import OLDEST_SQLITE
from dropscribe.service.doctor import Finding, ok, problem, warning
from dropscribe.watch.observer import Mailbox, RootObserver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dropscribe.settings import Settings

PYTHONS = ((3, 11), (3, 15))  # from, and up to without
WAL_FAULT_FROM, WAL_FAULT_FIXED = (3, 7, 0), (3, 51, 3)
WAL_BACKPORTS = {(3, 44): 6, (3, 50): 7}  # minor version → the patch that has the fix


def python(
    version: tuple[int, int, int] = sys.version_info[:3],
    *,
    system: str = sys.platform,
    machine: str | None = None,
    macos: str | None = None,
) -> Iterator[Finding]:
    """The interpreter, and whether mlx exists for it."""
    found = ".".join(map(str, version))
    machine = machine or platform.machine()
    first, after = PYTHONS
    if not first <= version[:2] < after:
        yield problem(
            "python",
            f"Python {found} at {sys.executable} is not one dropscribe works with",
            "install it with Python 3.11 to 3.14, for example `uv tool install --python 3.12 …`",
        )
        return
    if system == "darwin" and machine != "arm64":
        yield problem(
            "python",
            f"Python {found} is built for {machine}, for which there is no mlx on macOS",
            "on Apple silicon install a native (arm64) Python, not Rosetta's; Intel Macs cannot run mlx",
        )
        return
    macos = macos if macos is not None else platform.mac_ver()[0]
    if system == "darwin" and macos and int(macos.split(".")[0]) < 14:
        yield problem("python", f"macOS {macos} is older than mlx supports", "update to macOS 14 or later")
        return
    yield ok("python", f"Python {found} ({machine}), {sys.executable}")


def sqlite(version: tuple[int, ...] = sqlite3.sqlite_version_info) -> Iterator[Finding]:
    """SQLite's version against what the job log needs, and against the range with the WAL fault."""
    found = ".".join(map(str, version))
    if version < OLDEST_SQLITE:
        oldest = ".".join(map(str, OLDEST_SQLITE))
        yield problem(
            "sqlite", f"SQLite {found} is too old for the job log", f"use a Python built with SQLite {oldest} or later"
        )
    elif has_wal_fault(version):
        yield warning(
            "sqlite",
            f"SQLite {found} is in the range (3.7.0 to 3.51.2) that can damage a database when two connections "
            "checkpoint and write at the same instant; dropscribe avoids that by checkpointing from one process only",
            "use a Python with SQLite 3.51.3 (3.50.7, 3.44.6) or later; let no other program write to the job log",
        )
    else:
        yield ok("sqlite", f"SQLite {found}")


def has_wal_fault(version: tuple[int, ...]) -> bool:
    """Whether this SQLite has the fault of https://www.sqlite.org/wal.html#walresetbug."""
    fixed_in = WAL_BACKPORTS.get((version[0], version[1]))
    return WAL_FAULT_FROM <= version < WAL_FAULT_FIXED and (fixed_in is None or version[2] < fixed_in)


def events(settings: Settings, *, factory: Callable[[], Any] | None = None) -> Iterator[Finding]:
    """Whether native file events work, by really asking for them once."""
    for watch in settings.watch:
        if not watch.path.is_dir():
            continue  # another finding
        observer = RootObserver(os.fsencode(watch.path), recursive=watch.recursive, mailbox=Mailbox(), factory=factory)
        try:
            works = observer.arm()
        finally:
            observer.disarm()
        if works:
            yield ok("events", f"{watch.path}: native file events work")
        else:
            yield warning("events", f"{watch.path}: {observer.problem}; it is scanned every 30 s instead",
                          _events_remedy(observer.problem or ""))  # fmt: skip


def _events_remedy(why: str) -> str:
    if "fs.inotify." not in why:
        return "nothing must be done; for files to be noticed at once, watch a folder on a local disk"
    name = "max_user_instances" if "instances" in why else "max_user_watches"
    now = _limit(name)
    wanted = max(1024 if name == "max_user_instances" else 524288, 4 * now)
    return (
        f"raise the limit (it is {now or 'not known'}): put `fs.inotify.{name} = {wanted}` into "
        "/etc/sysctl.d/60-inotify.conf, then `sudo sysctl --system`"
    )


def _limit(name: str) -> int:
    try:
        return int(Path("/proc/sys/fs/inotify", name).read_text())
    except (OSError, ValueError):
        return 0
