"""Logs of the daemon's processes: key=value on stderr, one line an event, whatever a file name holds."""

from __future__ import annotations

import contextlib
import logging
import sys

import structlog


class _Stderr:
    """stderr as a place that may be gone: a closed terminal or a broken pipe must not end the daemon."""

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            return sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()


def configure(level: str = "info") -> None:
    """Set up structlog for this process. ``level``: debug, info, warning or error."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"], bool_as_flag=False),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.WriteLoggerFactory(_Stderr()),  # type: ignore[arg-type]  # it writes and flushes, no more
        cache_logger_on_first_use=False,
    )
