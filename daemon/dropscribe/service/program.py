"""What the service starts: an interpreter whose path outlives an upgrade, the settings file, an environment."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from dropscribe import __version__
from dropscribe.errors import ServiceError
from dropscribe.service.places import log_file

if TYPE_CHECKING:
    from collections.abc import Mapping

BREW = "/opt/homebrew/bin:/usr/local/bin"
SYSTEM = "/usr/bin:/bin:/usr/sbin:/sbin"
# what decides where models and data are and how rows are decoded; a service manager knows no shell's variables
PASSED = (
    "HF_HOME", "HF_HUB_CACHE", "HF_ENDPOINT", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME",
    "QWEN3_ASR_EXPERIMENTAL_BATCH_DECODE",
)  # fmt: skip
THROW_AWAY = re.compile(r"/(archive-v\d+|environments-v\d+|builds-v\d+)/|/pipx/\.cache/|/\.cache/pipx/")
CELLAR = re.compile(r"^(?P<prefix>.*)/Cellar/(?P<formula>[^/]+)/[^/]+/(?P<rest>.*)$")


@dataclass(frozen=True)
class Program:
    """One service's command line and surroundings."""

    python: Path
    config: Path
    home: Path
    stderr: Path  # what is said before the log is open, and nothing else
    environment: Mapping[str, str] = field(default_factory=dict)
    version: str = __version__  # in the file as a comment: an upgrade changes it, so `install` starts the new one

    @property
    def arguments(self) -> tuple[str, ...]:
        """The command line."""
        return (str(self.python), "-m", "dropscribe", "run", "--config", str(self.config), "--service")


def program_of(config: Path, environ: Mapping[str, str] | None = None) -> Program:
    """The service of this installation with this settings file. Raises ``ServiceError`` where it could not last."""
    environ = os.environ if environ is None else environ
    check_installation()
    path = f"{BREW}:{SYSTEM}" if sys.platform == "darwin" else f"/usr/local/bin:{SYSTEM}"
    env = {"PATH": path, "PYTHONSAFEPATH": "1"}  # the latter: never import from the working directory
    env |= {name: environ[name] for name in PASSED if environ.get(name)}
    if sys.platform != "darwin" and environ.get("TMPDIR"):  # launchd sets its own, the same for a shell
        env["TMPDIR"] = environ["TMPDIR"]
    return Program(
        python=stable_python(),
        config=Path(os.path.abspath(config)),  # noqa: PTH100 - links stay as the user made them
        home=Path.home(),
        stderr=log_file().with_name("service.err"),
        environment=env,
    )


def check_installation(executable: str = sys.executable) -> None:
    """Raise ``ServiceError`` for installations that a service must not run from."""
    how = "install it for good, for example with `uv tool install` or `pipx install` on the wheel, then again"
    try:
        origin = json.loads(metadata.distribution("dropscribe").read_text("direct_url.json") or "{}")
    except metadata.PackageNotFoundError:
        raise ServiceError(f"this dropscribe runs from a source folder without being installed; {how}") from None
    if origin.get("dir_info", {}).get("editable"):
        raise ServiceError(
            f"this is an editable installation: a service would change with every edit of {origin.get('url')}; {how}"
        )
    if THROW_AWAY.search(executable):
        raise ServiceError(f"{executable} belongs to a throw-away environment (uvx, pipx run); {how}")
    if Path(executable).is_relative_to(tempfile.gettempdir()):
        raise ServiceError(f"{executable} is in the folder for temporary files, which the system empties; {how}")


def stable_python(executable: str = sys.executable) -> Path:
    """The interpreter by a path that an upgrade leaves alone: that of the environment, never what it links to."""
    brewed = CELLAR.match(executable)
    if brewed:  # a versioned folder that `brew upgrade` removes; its link stays
        stays = Path(brewed["prefix"], "opt", brewed["formula"], brewed["rest"])
        if stays.exists():
            return stays
    return Path(executable)
