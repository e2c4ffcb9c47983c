"""systemd's user manager, through systemctl."""

from __future__ import annotations

import getpass
import os
from pathlib import Path
from typing import TYPE_CHECKING

from dropscribe import resources
from dropscribe.errors import ServiceError
from dropscribe.service import manager
from dropscribe.service.manager import Done, Ran, State, write_if_changed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dropscribe.service.program import Program

UNIT = "dropscribe.service"
FOREGROUND = (
    "run `dropscribe run` in the foreground instead (in tmux, or as a container's command), or log in by a way that "
    "starts systemd's user manager"
)
NO_BUS = ("Failed to connect to", "No medium found", "Host is down", "has not been booted with systemd")
LINGER = "it runs only while you are logged in; `loginctl enable-linger` (no sudo, as a rule) lets it run without"


class Systemd:
    """A user unit. Everything that would touch the system comes through the arguments."""

    name = "systemd"

    def __init__(
        self,
        *,
        run: Callable[[Sequence[str]], Ran] = manager.run,
        config_home: Path | None = None,
        user: str | None = None,
    ) -> None:
        self._run = run
        self._user = user
        home = config_home or Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        self.unit = home / "systemd" / "user" / UNIT

    def render(self, program: Program) -> str:
        """The unit of this program."""
        text = resources.template("config/dropscribe.service")
        command = " ".join(quoted(argument) for argument in program.arguments)
        variables = "\n".join(
            f"Environment={quoted(f'{name}={value}', dollars=False)}" for name, value in program.environment.items()
        )
        lines = [f"# dropscribe {program.version}"]
        for line in text.splitlines():
            if line.startswith("ExecStart="):
                lines.append(f"ExecStart={command}")
            elif line.startswith("Environment="):
                lines.append(variables)
            elif not line.startswith("#"):  # its comments explain the template
                lines.append(line)
        return "\n".join(lines) + "\n"

    def install(self, program: Program) -> Done:
        """Write the unit, enable and start it; an older one is replaced in place."""
        program.stderr.parent.mkdir(parents=True, exist_ok=True)
        existed = self.unit.exists()
        self._systemctl("show-environment")  # is there anyone to talk to, before a file is written
        changed = write_if_changed(self.unit, self.render(program))
        self._systemctl("daemon-reload")
        self._systemctl("reset-failed", UNIT, may_fail=True)
        self._systemctl("enable", UNIT)
        self._systemctl("restart" if changed and existed else "start", UNIT)
        what = "installed" if not existed else "installed anew" if changed else "was installed already"
        return Done(what, self._hints())

    def uninstall(self) -> Done:
        """Stop it, remove the unit."""
        if not self.unit.exists():
            return Done("was not installed")
        try:
            self._systemctl("disable", "--now", UNIT, may_fail=True)
        finally:
            self.unit.unlink(missing_ok=True)
        self._systemctl("daemon-reload")
        self._systemctl("reset-failed", UNIT, may_fail=True)
        return Done("uninstalled")

    def start(self) -> Done:
        """Start it, whatever its start limit says."""
        if not self.unit.exists():
            raise ServiceError("the service is not installed; `dropscribe service install` does it")
        self._systemctl("reset-failed", UNIT, may_fail=True)
        self._systemctl("start", UNIT)
        return Done("started", self._hints())

    def stop(self) -> Done:
        """Stop it until the next start, login or boot."""
        self._systemctl("stop", UNIT, may_fail=not self.unit.exists())
        return Done("stopped", ["it starts again with `dropscribe service start`, or when you log in"])

    def state(self) -> State:
        """What `systemctl show` says."""
        installed = self.unit.exists()
        wanted = "LoadState,ActiveState,SubState,MainPID,ExecMainCode,ExecMainStatus,Result"
        try:
            shown = self._systemctl("show", UNIT, f"--property={wanted}")
        except ServiceError as error:
            return State(installed, reachable=False, detail=str(error))
        fields = dict(line.split("=", 1) for line in shown.stdout.splitlines() if "=" in line)
        pid = int(fields.get("MainPID", "0") or 0)
        ended = None
        if fields.get("ExecMainCode", "0") not in ("", "0"):  # it has ended at least once
            ended = f"{fields.get('ExecMainStatus')} ({fields.get('Result')})"
        return State(
            installed,
            loaded=fields.get("LoadState") == "loaded",
            running=fields.get("ActiveState") in ("active", "activating", "reloading") and pid > 0,
            pid=pid or None,
            last_exit=ended,
        )

    def lingers(self) -> bool | None:
        """Whether the user's services run without a login; None when that cannot be told."""
        try:
            done = self._run(["loginctl", "show-user", self._user or getpass.getuser(), "--property=Linger"])
        except (ServiceError, OSError, KeyError):
            return None
        return {"Linger=yes": True, "Linger=no": False}.get(done.stdout.strip())

    def _hints(self) -> list[str]:
        return [LINGER] if self.lingers() is False else []

    def _systemctl(self, *arguments: str, may_fail: bool = False) -> Ran:
        done = self._run(["systemctl", "--user", *arguments])
        if done.code != 0:
            if any(words in done.said for words in NO_BUS):
                raise ServiceError(f"systemd's user manager cannot be reached ({done.said}); {FOREGROUND}")
            if not may_fail:
                raise ServiceError(f"`systemctl --user {' '.join(arguments)}` failed: {done.said}")
        return done


def quoted(word: str, *, dollars: bool = True) -> str:
    """A word of a command line or an assignment as systemd reads it: quotes, backslashes, specifiers, variables."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("\n", "\\n")
    if dollars:  # expanded in command lines, not in assignments
        escaped = escaped.replace("$", "$$")
    return f'"{escaped}"' if escaped != word or any(c in word for c in " \t;'") else word
