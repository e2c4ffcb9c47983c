"""Checks of the service and of the locks that processes hold."""

from __future__ import annotations

import os
import plistlib
import re
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from dropscribe.errors import DropscribeError, ServiceError
from dropscribe.jobs import log
from dropscribe.jobs.database import connect_readonly
from dropscribe.service import status as service_status
from dropscribe.service.doctor import Finding, ok, problem, warning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dropscribe.service.manager import Manager
    from dropscribe.settings import Settings

START = "`dropscribe service start`"


def lock(database: Path) -> Iterator[Finding]:
    """The instance lock: held by one that lives, free, or a leftover."""
    path = Path(f"{database}.lock")
    if not path.exists():
        yield ok("lock", "no dropscribe has run on this job log yet")
        return
    if not os.access(path, os.R_OK | os.W_OK):
        yield problem(
            "lock",
            f"{path} is not ours to use, as after a start with sudo",
            f"`sudo chown $(id -un) {database}*`, and never start dropscribe with sudo",
        )
        return
    holder = path.read_text("ascii", "replace").strip()
    if service_status.is_held(database):
        yield ok("lock", f"process {holder or '?'} runs dropscribe on this job log")
    elif holder or _pid(database):
        yield warning(
            "lock",
            f"process {holder or _pid(database)} ended without saying so (killed, power cut); its mark is in {path}",
            f"nothing is to be removed: the next start ({START}) takes the lock and takes up its jobs",
        )
    else:
        yield ok("lock", "free")


def _pid(database: Path) -> int | None:
    try:
        with closing(connect_readonly(database)) as conn:
            pid = log.service(conn)["pid"]
    except DropscribeError:
        return None
    return None if pid is None else int(pid)


def service(manager: Callable[[], Manager], config: Path, settings: Settings | None) -> Iterator[Finding]:
    """Installed, alive, of this installation; and if not, why."""
    try:
        found = manager()
    except ServiceError as error:
        yield warning("service", str(error), "keep `dropscribe run` in the foreground")
        return
    state = service_status.status_of(found, config, settings)
    if not state.installed:
        how = f"it runs by hand (process {state.pid})" if state.running else "not installed"
        if state.detail is None:
            yield ok("service", f"{how}; `dropscribe service install` runs it from login on")
        else:
            yield warning("service", f"{how}, and {state.detail}", "keep `dropscribe run` in the foreground")
        return
    yield from _interpreter(found.unit)
    if state.running:
        who = "by hand, beside the installed service" if state.by_hand else f"by {state.manager}"
        yield ok("service", f"running {who} (process {state.pid})")
    elif state.gave_up:
        yield problem("service", f"it gave up: {state.gave_up}", f"mend that, then {START}")
    elif state.detail:
        yield warning("service", state.detail, f"then {START}")
    else:
        why = f" (last exit: {state.last_exit})" if state.last_exit else ""
        yield problem(
            "service", f"installed, but not running{why}", f"{START}; `dropscribe service logs` says why it ended"
        )
    if state.problem:
        yield problem("service", f"nothing moves: {state.problem}", "do what that says; it goes on by itself")
    if state.paused:
        yield warning("service", "paused by hand", "`dropscribe service resume`")
    if state.config_newer:
        yield warning(
            "service",
            "the settings are newer than the process",
            "`dropscribe service stop`, then `dropscribe service start`",
        )


def _interpreter(unit: Path) -> Iterator[Finding]:
    """The program in the unit is there, and is ours."""
    python = program_in(unit)
    again = "`dropscribe service install` writes it anew"
    if python is None:
        yield problem("service", f"{unit} cannot be read", again)
    elif not python.exists():
        yield problem("service", f"the Python it starts is gone: {python}", again)
    elif python != Path(sys.executable) and not python.samefile(sys.executable):
        yield warning("service", f"it runs another installation: {python}", f"{again} for this one")


def program_in(unit: Path) -> Path | None:
    """The interpreter that a plist or unit starts."""
    try:
        if unit.suffix == ".plist":
            return Path(plistlib.loads(unit.read_bytes())["ProgramArguments"][0])
        command = re.search(r'^ExecStart=(?:"((?:[^"\\]|\\.)*)"|(\S+))', unit.read_text("utf-8"), re.MULTILINE)
    except (OSError, ValueError, LookupError, plistlib.InvalidFileException):
        return None
    if command is None:
        return None
    word = re.sub(r"\\(.)", r"\1", command[1]) if command[1] is not None else command[2]
    return Path(word.replace("%%", "%").replace("$$", "$"))
