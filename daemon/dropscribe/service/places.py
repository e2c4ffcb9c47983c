"""Where a service keeps what belongs to no job log: its log, and the small file about its starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from platformdirs import user_log_path, user_state_path

if TYPE_CHECKING:
    from pathlib import Path


def log_file() -> Path:
    """The daemon's own log when it runs as a service."""
    return user_log_path("dropscribe", appauthor=False) / "dropscribe.log"


def starts_file() -> Path:
    """The record of recent starts."""
    return user_state_path("dropscribe", appauthor=False) / "service.json"
