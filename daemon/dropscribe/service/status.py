"""How the service is: what its manager, the job log and the record of its starts say, as one."""

from __future__ import annotations

import contextlib
import fcntl
import os
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from dropscribe.errors import ConfigError, DropscribeError
from dropscribe.jobs import log as job_log
from dropscribe.jobs.database import connect_readonly
from dropscribe.jobs.records import parse_iso
from dropscribe.service.places import log_file, starts_file
from dropscribe.service.starts import Starts

if TYPE_CHECKING:
    from pathlib import Path

    from dropscribe.service.manager import Manager, State
    from dropscribe.settings import Settings


@dataclass(frozen=True)
class Status:
    """Everything `service status` shows."""

    manager: str
    unit: str
    installed: bool
    running: bool  # by the manager, or by hand in the foreground
    by_hand: bool  # it runs, but not as the service
    pid: int | None
    started_at: str | None
    paused: bool
    working: bool | None  # files are being done; None: the job log cannot be asked, as the settings cannot be read
    queued: int | None
    problem: str | None  # why nothing moves
    gave_up: str | None  # why it stays down
    last_exit: str | None
    config: str
    config_newer: bool  # than the process: it still works by the older one
    log: str
    detail: str | None = None  # why the manager could not be asked

    def record(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return asdict(self)


def status_of(manager: Manager, config: Path, settings: Settings | None, *, starts: Starts | None = None) -> Status:
    """Ask all three. ``settings``: None when they cannot be read, then the job log is not asked."""
    state = manager.state()
    row: dict[str, Any] = {}
    counts: dict[str, int] = {}
    if settings is not None and settings.database.exists():
        with contextlib.suppress(ConfigError, DropscribeError), closing(connect_readonly(settings.database)) as conn:
            row, counts = dict(job_log.service(conn)), job_log.counts(conn)
    alive = settings is not None and is_held(settings.database)
    record = (starts or Starts(starts_file())).read()
    gave_up = None
    if record.gave_up_at is not None and not state.running:
        at = datetime.fromtimestamp(record.gave_up_at, UTC).strftime("%Y-%m-%d %H:%M UTC")
        gave_up = f"{record.error} ({record.error_kind}, {at})"
    return Status(
        manager=manager.name,
        unit=str(manager.unit),
        installed=state.installed,
        running=state.running or alive,
        by_hand=_by_hand(state, row, alive=alive),
        pid=state.pid or (row.get("pid") if alive else None),
        started_at=row.get("started_at") if alive else None,
        paused=bool(row.get("paused")),
        working=None if settings is None else alive and counts.get("running", 0) > 0,
        queued=None if settings is None else counts.get("queued", 0),
        problem=row.get("problem") if alive else None,
        gave_up=gave_up,
        last_exit=state.last_exit,
        config=str(config),
        config_newer=alive and newer(config, row.get("started_at")),
        log=str(log_file()),
        detail=state.detail,
    )


def _by_hand(state: State, row: dict[str, Any], *, alive: bool) -> bool:
    return alive and not (state.running and state.pid in (None, row.get("pid")))


def newer(config: Path, started_at: str | None) -> bool:
    """Whether the file was changed after the process that read it had started."""
    if started_at is None:
        return False
    try:
        return config.stat().st_mtime > parse_iso(started_at).timestamp()
    except OSError:
        return False


def is_held(database: Path) -> bool:
    """Whether a supervisor holds the instance lock of this job log, without disturbing one that is about to take it."""
    try:
        descriptor = os.open(f"{database}.lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def lines(status: Status) -> list[str]:
    """For a person: what it is, then what there is to know, then what to do."""
    shown = []
    if status.running:
        how = "by hand, not as the service" if status.by_hand else f"by {status.manager}"
        since = f", since {status.started_at}" if status.started_at else ""
        shown.append(f"running ({how}, process {status.pid}{since})")
        work = "paused: `dropscribe service resume` goes on" if status.paused else (
            "transcribing" if status.working else "idle")  # fmt: skip
        unknown = "  what it does cannot be told: the settings cannot be read; it works by those it was started with"
        shown.append(unknown if status.queued is None else f"  {work}; {status.queued} queued")
        if status.problem:
            shown.append(f"  problem: {status.problem}")
    else:
        shown.append("not running" if status.installed else "not installed: `dropscribe service install`")
        if status.gave_up:
            shown.append(f"  it gave up: {status.gave_up}")
        elif status.last_exit not in (None, "0", "0 (success)"):
            shown.append(f"  last exit: {status.last_exit}")
        if status.installed:
            shown.append(
                "  `dropscribe service start` starts it; `dropscribe doctor` looks for what keeps it from running"
            )
    if status.detail:
        shown.append(f"  {status.manager}: {status.detail}")
    if status.config_newer:
        shown.append(
            "  the settings file is newer than the process: "
            "`dropscribe service stop` and `start` take the new one, nothing is lost by that"
        )
    shown += [f"  settings {status.config}", f"  log      {status.log}"]
    if status.installed:
        shown.append(f"  unit     {status.unit}")
    return shown
