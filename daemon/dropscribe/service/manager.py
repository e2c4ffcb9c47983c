"""The common face of the two service managers, and how their programs are called."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from dropscribe.errors import ServiceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dropscribe.service.program import Program

COMMAND_SECONDS = 60.0


@dataclass(frozen=True)
class Ran:
    """What a command of the service manager did. ``said``: stderr and stdout, stripped."""

    code: int
    stdout: str = ""
    stderr: str = ""

    @property
    def said(self) -> str:
        """What it printed, for a message."""
        return " ".join(f"{self.stderr}\n{self.stdout}".split())


@dataclass(frozen=True)
class State:
    """What the service manager says about the service."""

    installed: bool  # its file is there
    loaded: bool = False  # the manager knows it
    running: bool = False
    pid: int | None = None
    last_exit: str | None = None  # in the manager's words
    reachable: bool = True  # whether the manager could be asked at all
    detail: str | None = None  # why it could not be asked


@dataclass(frozen=True)
class Done:
    """What an action did, for a person: one line, and hints."""

    what: str
    hints: Sequence[str] = field(default=())


class Manager(Protocol):
    """launchd or systemd. Every action may raise ``ServiceError`` and does nothing when done already."""

    name: str
    unit: Path  # the file that describes the service

    def render(self, program: Program) -> str:
        """The text of the file for this program."""

    def install(self, program: Program) -> Done:
        """Write the file, load it, start it; in place when there is an older one."""

    def uninstall(self) -> Done:
        """Stop it, remove the file; data stays."""

    def start(self) -> Done:
        """Start what is installed."""

    def stop(self) -> Done:
        """Stop it until the next start or login."""

    def state(self) -> State:
        """Ask; never raises."""


def run(command: Sequence[str]) -> Ran:
    """Run a program of the system's. Raises ``ServiceError`` when it is missing or hangs."""
    try:
        done = subprocess.run(
            list(command), stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=COMMAND_SECONDS, check=False, env=_environment(),
        )  # fmt: skip
    except FileNotFoundError:
        raise ServiceError(f"{command[0]} is not there; run `dropscribe run` in the foreground instead") from None
    except subprocess.TimeoutExpired:
        raise ServiceError(f"`{' '.join(command)}` did not end within {COMMAND_SECONDS:.0f} s; try again") from None
    return Ran(done.returncode, done.stdout, done.stderr)


def _environment() -> dict[str, str]:
    """Ours, in English, and with the way to the user's systemd, which `su` and `ssh` with a command lack."""
    env = {**os.environ, "LC_ALL": "C"}
    runtime = Path(f"/run/user/{os.getuid()}")
    if "XDG_RUNTIME_DIR" not in env and runtime.is_dir():
        env["XDG_RUNTIME_DIR"] = str(runtime)
    return env


def current(platform: str = sys.platform) -> Manager:
    """The manager of this system. Raises ``ServiceError`` where there is none."""
    if platform == "darwin":
        from dropscribe.service.launchd import Launchd

        return Launchd()
    if platform.startswith("linux"):
        from dropscribe.service.systemd import Systemd

        return Systemd()
    raise ServiceError(f"no service manager is known for {platform}; run `dropscribe run` in the foreground")


def write_if_changed(path: Path, text: str) -> bool:
    """Write a file whole or not at all; False when it says so already. Raises ``ServiceError``."""
    try:
        if path.exists() and path.read_text("utf-8") == text:
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=".dropscribe-", dir=path.parent)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except OSError as error:
        raise ServiceError(f"cannot write {path}: {error.strerror}; make its folder writable") from None
    return True
