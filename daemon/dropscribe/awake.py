"""Keeps the machine from falling asleep by itself while files are being transcribed, and never otherwise.

A child of the system's own tool holds the assertion: ``caffeinate -i`` on macOS, ``systemd-inhibit --what=idle`` on
Linux. What the tool runs is a ``cat`` on our pipe, so the assertion ends with this process however that ends. Neither
keeps a lid from closing or a person from choosing "sleep"; that is meant.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from collections.abc import Sequence

log = structlog.get_logger("awake")

TOOLS = {
    "darwin": ("caffeinate", "-i", "cat"),
    "linux": ("systemd-inhibit", "--what=idle", "--who=dropscribe", "--why=transcribing", "--mode=block", "cat"),
}
END_SECONDS = 1.0


class Awake:
    """``hold`` and ``release`` may be called at any time and as often as one likes; a missing tool changes nothing."""

    def __init__(self, command: Sequence[str] | None = None, *, platform: str = sys.platform) -> None:
        self._command = tuple(command or TOOLS.get(platform, ()))
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def held(self) -> bool:
        """It was asked for; whether the system granted it only its tool knows."""
        return self._child is not None

    def hold(self) -> None:
        """From now on, until ``release``."""
        if self._child is not None or not self._command:
            return
        found = shutil.which(self._command[0])
        try:
            if found is None:
                raise FileNotFoundError
            self._child = subprocess.Popen(
                [found, *self._command[1:]],
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                process_group=0,  # Ctrl-C is for us; we let go of it in order
            )  # fmt: skip
        except OSError as error:
            log.info("may_fall_asleep", tool=self._command[0], why=error.strerror or "not there")
            self._command = ()  # asked once

    def release(self) -> None:
        """Let go."""
        child, self._child = self._child, None
        if child is None:
            return
        with contextlib.suppress(OSError):
            if child.stdin is not None:
                child.stdin.close()
        try:
            code = child.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            code = child.wait()
        if code != 0:  # no session, no permission: the same next time, so it is said once
            log.info("may_fall_asleep", tool=self._command[0], why=f"it was refused (exit code {code})")
            self._command = ()
