"""``dropscribe doctor``: each thing dropscribe needs, looked at in turn; what is wrong comes with its remedy.

A check is a function that gives findings; none may raise, none may change anything that lasts. What touches mlx runs in
a child (``probe``), so that a crash there is a finding too.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from dropscribe.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from dropscribe.service.manager import Manager
    from dropscribe.settings import Settings


@dataclass(frozen=True)
class Finding:
    """One thing looked at. ``problem``: it must be fixed; ``warning``: good to know; ``skipped``: not looked at."""

    check: str
    status: Literal["ok", "warning", "problem", "skipped"]
    message: str
    remedy: str | None = None

    def record(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return asdict(self)


def ok(check: str, message: str) -> Finding:
    """It is as it should be."""
    return Finding(check, "ok", message)


def warning(check: str, message: str, remedy: str) -> Finding:
    """It works, but."""
    return Finding(check, "warning", message, remedy)


def problem(check: str, message: str, remedy: str) -> Finding:
    """It does not work until somebody does something."""
    return Finding(check, "problem", message, remedy)


def skipped(check: str, message: str) -> Finding:
    """It could not be looked at, for a reason that is another finding, or by choice."""
    return Finding(check, "skipped", message)


def examine(
    path: Path,
    config: Path | None,
    model: str | None,
    manager: Callable[[], Manager],
    *,
    quick: bool = False,
) -> Iterator[Finding]:
    """All findings, in an order in which the first problem is likely the cause of the others.

    ``path``: where the settings are looked for; ``config``: what ``--config`` named, if anything.
    """
    from dropscribe.service import check_files, check_service, check_system
    from dropscribe.settings import load_settings

    yield from guarded("python", check_system.python)
    yield from guarded("sqlite", check_system.sqlite)
    settings: Settings | None = None
    try:
        settings = load_settings(config, {} if model is None else {"model": model})
    except ConfigError as error:
        for line in str(error).splitlines():
            yield problem("settings", line, _mend(path))
    else:
        yield from guarded("settings", lambda: check_files.settings_file(path, settings))
    if settings is None:
        yield skipped("folders, job log, model", "the settings cannot be read")
        yield from guarded("service", lambda: check_service.service(manager, path, None))
        return
    ready = settings
    yield from guarded("job log", lambda: check_files.job_log(ready.database))
    yield from guarded("folders", lambda: check_files.folders(ready))
    yield from guarded("disk", lambda: check_files.disk(ready))
    yield from guarded("events", lambda: check_system.events(ready))
    yield from guarded("lock", lambda: check_service.lock(ready.database))
    yield from guarded("service", lambda: check_service.service(manager, path, ready))
    if quick:
        yield skipped("model", "left out (--quick)")
        return
    from dropscribe.service import check_model

    yield from guarded("model", lambda: check_model.model(ready))


def _mend(path: Path) -> str:
    if not path.exists():
        return "`dropscribe config init` writes one; --config names another"
    return f"mend {path}; `dropscribe config init --force` writes a fresh one"


def guarded(check: str, look: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """The findings of a check; one that fails itself is a finding."""
    try:
        yield from look()
    except Exception as error:  # a doctor that falls over helps nobody
        yield warning(check, f"could not be looked at: {type(error).__name__}: {error}", "report this, with this line")


def lines(finding: Finding) -> list[str]:
    """For a person."""
    word = {"ok": "ok", "warning": "note", "problem": "PROBLEM", "skipped": "-"}[finding.status]
    shown = [f"{word:8} {finding.check:10} {finding.message}"]
    if finding.remedy:
        shown.append(f"{'':19} → {finding.remedy}")
    return shown
