"""The small file about a service's starts: when, and why it stays down.

launchd starts again for ever whatever ends unsuccessfully, so the program itself must give up: it ends with 0 on what
no new start can mend, and when it was started five times within ten minutes without once ending in order.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MOST = 5
WITHIN = 600.0  # seconds


@dataclass
class Record:
    """What the file holds. Times are seconds since 1970."""

    starts: list[float] = field(default_factory=list)  # those that have not ended in order
    gave_up_at: float | None = None
    error_kind: str | None = None  # of the last fault
    error: str | None = None


class Starts:
    """The file. A state folder that cannot be written costs the count, never the service."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        self.path, self._clock = path, clock

    def read(self) -> Record:
        """What is known; nothing when there is no file or it is damaged."""
        try:
            data = json.loads(self.path.read_text("utf-8"))
            record = Record(**data)
            record.starts = [float(start) for start in record.starts]
        except (OSError, ValueError, TypeError):
            return Record()
        return record

    def begin(self) -> bool:
        """Note a start. False: there were too many, stay down."""
        record, now = self.read(), self._clock()
        recent = [start for start in record.starts if 0 <= now - start < WITHIN]
        if len(recent) >= MOST:
            why = (
                f"; the last one ended with: {record.error}" if record.error else ", and none of them said why it ended"
            )
            record.gave_up_at, record.starts = now, []  # the next start by hand begins anew
            record.error_kind = record.error_kind or "internal"
            record.error = f"started {MOST} times within {WITHIN / 60:.0f} minutes{why}"
            self._write(record)
            return False
        self._write(
            Record([*recent, now], None, record.error_kind if recent else None, record.error if recent else None)
        )
        return True

    def fault(self, error_kind: str, error: str, *, gave_up: bool) -> None:
        """Why this start ended. ``gave_up``: another one would end the same."""
        record = self.read()
        record.error_kind, record.error = error_kind, error
        if gave_up:
            record.gave_up_at, record.starts = self._clock(), []
        self._write(record)

    def ended_in_order(self) -> None:
        """This start was a good one."""
        self._write(Record())

    def clear(self) -> None:
        """Somebody starts it by hand: begin to count anew."""
        with contextlib.suppress(OSError):
            self.path.unlink()

    def _write(self, record: Record) -> None:
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            temp = self.path.with_name(f"{self.path.name}.{os.getpid()}")
            temp.write_text(json.dumps(asdict(record)), "utf-8")
            temp.replace(self.path)
