"""What an error means for the job it happened to: the retry rules, in one place.

======================  =========================================================================================
error                   the job
======================  =========================================================================================
``NoAudioTrack``        ``skipped``: a video without sound is nobody's fault; ``Duplicate`` too
``ReaderCrashed``       ``queued`` again at once (it may have been killed from outside), ``failed`` the third time
other ``MediaError``    ``failed``: the same bytes would fail again
``SourceMissing``       ``missing``
``TransientError``      ``queued`` again, for ever, after a wait that doubles from ``BACKOFF`` up to its cap
``ModelError``          handed back untouched: no file is at fault
anything else           ``internal``: ``queued`` again with a wait, ``failed`` at the third time running
======================  =========================================================================================

A crash of the worker is not an error that anybody can catch; ``Queue.recover`` has its rule.
"""

from __future__ import annotations

from dataclasses import dataclass

from dropscribe.errors import (
    DropscribeError,
    Duplicate,
    MediaError,
    ModelError,
    NoAudioTrack,
    ReaderCrashed,
    SourceMissing,
    TransientError,
)

INTERNAL_ATTEMPTS = 3  # of reader crashes too
CRASH_CAP = 3  # lone crashes until a job is quarantined

# error_kind → (first wait, longest wait) in seconds. What its owner must put right is looked at after half a minute,
# later every five minutes; what passes by itself sooner.
BACKOFF: dict[str, tuple[float, float]] = {
    "source_changed": (2.0, 300.0),
    "source_busy": (2.0, 300.0),
    "disk_full": (30.0, 300.0),
    "output_unwritable": (30.0, 300.0),
    "database_busy": (5.0, 60.0),
    "reader_crashed": (0.0, 0.0),
}
_OTHERWISE = (5.0, 300.0)
_LONGEST_MESSAGE = 1000


@dataclass(frozen=True)
class Verdict:
    """Where a job goes. ``wait_seconds`` is for ``queued``; ``counts`` is whether it was an attempt."""

    state: str
    error_kind: str
    error: str
    wait_seconds: float = 0.0
    counts: bool = True


def verdict(error: BaseException, attempts: int, last_kind: str | None) -> Verdict:  # noqa: PLR0911 - a table of rules
    """The rule for ``error`` on a job with ``attempts`` earlier attempts, the last of which ended in ``last_kind``."""
    kind = error.error_kind if isinstance(error, DropscribeError) else "internal"
    message = describe(error)
    if isinstance(error, NoAudioTrack | Duplicate):
        return Verdict("skipped", kind, message)
    if isinstance(error, MediaError) and not isinstance(error, ReaderCrashed):
        return Verdict("failed", kind, message)
    if isinstance(error, SourceMissing):
        return Verdict("missing", kind, message)
    if isinstance(error, ModelError):
        return Verdict("queued", kind, message, counts=False)
    # With the same kind as last time the waits grow; a new kind starts afresh.
    wait = backoff_seconds(kind, attempts if kind == last_kind else 0)
    if isinstance(error, TransientError):
        return Verdict("queued", kind, message, wait)
    if kind == last_kind and attempts + 1 >= INTERNAL_ATTEMPTS:
        return Verdict("failed", kind, message)
    return Verdict("queued", kind, message, wait)


def backoff_seconds(kind: str, failures: int) -> float:
    """The wait after one more failure of ``kind`` than ``failures``."""
    first, longest = BACKOFF.get(kind, _OTHERWISE)
    return float(min(longest, first * 2 ** min(failures, 30)))


def describe(error: BaseException) -> str:
    """One line for a person, storable whatever bytes a file name put into it."""
    text = str(error) if isinstance(error, DropscribeError) else f"{type(error).__name__}: {error}"
    return storable(" ".join(text.split())[:_LONGEST_MESSAGE])


def storable(text: str) -> str:
    """``text`` without the lone surrogates that stand for undecodable bytes: SQLite holds UTF-8 only."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
