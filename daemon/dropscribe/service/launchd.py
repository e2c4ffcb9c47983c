"""launchd, through launchctl. What its exit codes mean is known from what it was seen to do; Apple documents none.

| code | said | means |
|---|---|---|
| 3 | Boot-out failed: 3: No such process | not loaded |
| 5 | Bootstrap failed: 5: Input/output error | already loaded, or a bootout is still draining, or disabled |
| 5 | Boot-out failed: 5: Input/output error | not loaded, on recent systems |
| 36 | Boot-out failed: 36: Operation now in progress | it goes; wait |
| 37 | Bootstrap failed: 37: Operation already in progress | draining or starting; wait |
| 112, 125 | Could not find domain / Domain does not support specified action | no graphical session of this user |
| 113 | Could not find service … in domain for user gui | not loaded |
| 119 | Service is disabled | `launchctl disable` outlives everything; enable undoes it |
| 133 | Invalid property list | a mistake of ours |

The only reliable question is ``launchctl print gui/UID/LABEL``: 0 loaded, 113 not loaded.
"""

from __future__ import annotations

import os
import plistlib
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

from dropscribe import resources
from dropscribe.errors import ServiceError
from dropscribe.service import manager
from dropscribe.service.manager import Done, Ran, State, write_if_changed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dropscribe.service.program import Program

LABEL = "dropscribe"
DRAIN_SECONDS = 15.0  # a bootout is seen to take about five; our own leaving at most ten
LOOK_EVERY = 0.5
NOT_LOADED, NO_DOMAIN, DRAINING, STARTING, DISABLED = (3, 113), (112, 125), (5, 36, 37), 37, 119
NO_SESSION = (
    "launchd has no graphical session of this user, which is where the service lives: log in on the Mac's screen or by "
    "Screen Sharing, then try again; over SSH alone, keep `dropscribe run` in the foreground (tmux, screen)"
)
_FIELD = re.compile(r"^\t([a-z ]+) = (.*)$", re.MULTILINE)  # one tab: of the service itself, not of something in it


class Launchd:
    """A user agent in ``gui/UID``. Everything that would touch the system comes through the arguments."""

    name = "launchd"

    def __init__(
        self,
        *,
        run: Callable[[Sequence[str]], Ran] = manager.run,
        home: Path | None = None,
        uid: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._run = run
        self._domain = f"gui/{os.getuid() if uid is None else uid}"
        self._target = f"{self._domain}/{LABEL}"
        self._clock, self._sleep = clock, sleep
        self.unit = (home or Path.home()) / "Library" / "LaunchAgents" / f"{LABEL}.plist"

    def render(self, program: Program) -> str:
        """The property list of this program."""
        plist = plistlib.loads(resources.template("launchd/dropscribe.plist").encode())
        plist["Label"] = LABEL
        plist["ProgramArguments"] = list(program.arguments)
        plist["EnvironmentVariables"] = dict(program.environment)
        plist["WorkingDirectory"] = str(program.home)
        plist["StandardOutPath"] = plist["StandardErrorPath"] = str(program.stderr)
        text = plistlib.dumps(plist, sort_keys=False).decode()
        return text.replace("<plist ", f"<!-- dropscribe {program.version} -->\n<plist ", 1)

    def install(self, program: Program) -> Done:
        """Write the plist, load and start it; an older one is replaced in place."""
        program.stderr.parent.mkdir(parents=True, exist_ok=True)  # launchd starts nothing whose log it cannot open
        existed = self.unit.exists()
        changed = write_if_changed(self.unit, self.render(program))
        loaded = self._loaded()
        if loaded and changed:
            self._bootout()
            loaded = False
        self._up(loaded=loaded)
        return Done("installed" if not existed else "installed anew" if changed else "was installed already")

    def uninstall(self) -> Done:
        """Unload it and remove the plist."""
        existed = self.unit.exists()
        if self._print().code not in (*NOT_LOADED, *NO_DOMAIN):
            self._bootout()
        self.unit.unlink(missing_ok=True)
        return Done("uninstalled" if existed else "was not installed")

    def start(self) -> Done:
        """Load it if need be and start it."""
        if not self.unit.exists():
            raise ServiceError("the service is not installed; `dropscribe service install` does it")
        self._up(loaded=self._loaded())
        return Done("started")

    def stop(self) -> Done:
        """Unload it: a mere signal to a process that is just starting would make launchd start it again."""
        if not self._loaded():
            return Done("was not running")
        self._bootout()
        return Done("stopped", ["it starts again with `dropscribe service start`, or when you log in"])

    def state(self) -> State:
        """What `launchctl print` says. Its layout is no interface of Apple's: what is not found is not claimed."""
        installed = self.unit.exists()
        try:
            shown = self._print()
        except ServiceError as error:
            return State(installed, reachable=False, detail=str(error))
        if shown.code in NO_DOMAIN:
            return State(installed, reachable=False, detail=NO_SESSION)
        if shown.code != 0:
            known = shown.code in NOT_LOADED
            return State(installed, reachable=known, detail=None if known else shown.said)
        fields = dict(reversed(_FIELD.findall(shown.stdout)))  # of several the first
        pid = fields.get("pid", "")
        ended = fields.get("last exit code", "")
        return State(
            installed,
            loaded=True,
            running=fields.get("state") == "running" or pid.isdigit(),
            pid=int(pid) if pid.isdigit() else None,
            last_exit=None if not ended or ended.startswith("(") else ended,
        )

    # -- the verbs -----------------------------------------------------------------------------------------------------

    def _launchctl(self, *arguments: str) -> Ran:
        return self._run(["launchctl", *arguments])

    def _print(self) -> Ran:
        return self._launchctl("print", self._target)

    def _loaded(self) -> bool:
        shown = self._print()
        if shown.code in NO_DOMAIN:
            raise ServiceError(NO_SESSION)
        if shown.code not in (0, *NOT_LOADED):
            raise ServiceError(f"launchctl cannot tell whether the service is loaded: {shown.said}")
        return shown.code == 0

    def _bootout(self) -> None:
        """Unload, and wait until it is gone: bootout returns before the process does."""
        done = self._launchctl("bootout", self._target)
        if done.code not in (0, *NOT_LOADED, *DRAINING):
            raise ServiceError(f"launchctl could not unload the service: {done.said}")
        deadline = self._clock() + DRAIN_SECONDS
        while self._loaded():
            if self._clock() >= deadline:
                raise ServiceError(
                    f"the service is still being unloaded after {DRAIN_SECONDS:.0f} s; try again in a minute"
                )
            self._sleep(LOOK_EVERY)

    def _up(self, *, loaded: bool) -> None:
        """Load it if it is not, and start it: RunAtLoad is seen not to, now and then. One that runs is left alone.

        Error 5 stands for several things: whether it is loaded is asked for, and else it is tried again.
        """
        if loaded and (done := self._launchctl("kickstart", self._target)).code in (0, STARTING):
            return
        self._launchctl("enable", self._target)  # a disabled label is refused with 5 or 119, for ever
        deadline = self._clock() + DRAIN_SECONDS
        while True:
            done = self._launchctl("bootstrap", self._domain, str(self.unit))
            if done.code == 0 or (done.code in DRAINING and self._loaded()):
                done = self._launchctl("kickstart", self._target)
                if done.code in (0, STARTING):
                    return
            if done.code in NO_DOMAIN:
                raise ServiceError(NO_SESSION)
            if done.code not in (*DRAINING, *NOT_LOADED, DISABLED):
                raise ServiceError(f"launchctl refused {self.unit}: {done.said}")
            if self._clock() >= deadline:
                raise ServiceError(
                    f"launchctl did not load {self.unit} within {DRAIN_SECONDS:.0f} s: {done.said}; "
                    "log out and in again, then `dropscribe service start`"
                )
            self._sleep(LOOK_EVERY)
