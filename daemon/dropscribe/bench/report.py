"""What every measurement leaves behind: figures for machines, a table for people, a plot, a row in the job log.

A report grows while its measurement runs, so that Ctrl-C leaves what was measured until then.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from dropscribe import tables
from dropscribe.errors import ConfigError, DropscribeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from dropscribe.bench.plot import Curve
    from dropscribe.settings import Settings


@dataclass
class Report:
    """One measurement. ``rows`` are its table, in the order they were measured; all values go into JSON."""

    kind: str  # sweep, knobs, anatomy, eval, power
    columns: Sequence[str]  # of ``rows``, those that people are shown
    rows: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)  # what it was asked to do
    curves: list[Curve] = field(default_factory=list)  # what a plot shows; none: nothing to plot
    decoder: str | None = None  # of the one configuration measured, if it was one
    slots: int | None = None
    audio_seconds: float | None = None
    wall_s: float | None = None
    interrupted: bool = False
    failure: Exception | None = None  # what ended it half-way; ``deliver`` raises it when all else is done
    measured_at: str = field(default_factory=lambda: datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z")

    def as_dict(self) -> dict[str, Any]:
        """The document for machines."""
        return {
            "kind": self.kind,
            "measured_at": self.measured_at,
            "interrupted": self.interrupted,
            "machine": self.machine,
            "options": self.options,
            "rows": self.rows,
            "summary": self.summary,
        }


def measured(report: Report, parts: Iterator[Any], say: Callable[[str], None]) -> Report:
    """Run a measurement, a generator that fills ``report`` part by part; what ends it half-way loses no row of it.

    Ctrl-C is noted; an error is raised by ``deliver`` once the rows are safe, or here if there are none.
    """
    started = time.perf_counter()
    try:
        for _ in parts:
            pass
    except KeyboardInterrupt:
        report.interrupted = True
        say("interrupted: what was measured until now follows")
    except Exception as error:
        if not report.rows:
            raise
        report.interrupted, report.failure = True, error
        say(f"it ended with an error ({type(error).__name__}): what was measured until now follows")
    report.wall_s = time.perf_counter() - started
    return report


def host() -> dict[str, Any]:
    """What a figure depends on besides the model: processor, system, versions."""
    return {
        "machine": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **{package: version(package) for package in ("dropscribe", "mlx", "mlx-audio")},
    }


def deliver(
    report: Report,
    settings: Settings,
    say: Callable[[str], None],
    *,
    as_json: bool,
    output: Path | None = None,
    plot: Path | None = None,
) -> bool:
    """Keep the report in the job log, write ``output`` (JSON) and ``plot`` (PNG or SVG by its suffix), and print it.

    In that order: a reader of our output that has gone costs nothing else. Returns whether the job log has it. Raises
    what ended the measurement, or ``ConfigError`` when a file cannot be written; everything else has been done by then.
    """
    kept = keep(report, settings, say)
    if not kept:
        report.summary.pop("applied", None)  # what is applied is what the log has
    text = json.dumps(report.as_dict(), indent=2, ensure_ascii=False)
    trouble: list[Exception] = []
    if output is not None:
        trouble += _written(output, lambda: output.write_text(text + "\n", "utf-8"), lambda: say(f"written: {output}"))
    if plot is not None and report.curves:
        from dropscribe.bench.plot import draw

        trouble += _written(plot, lambda: draw(report.curves, plot), lambda: say(f"drawn: {plot}"))
    if as_json:
        sys.stdout.write(text + "\n")
    else:
        tables.show(report.columns, [[_cell(row.get(name)) for name in report.columns] for row in report.rows])
        for name, value in report.summary.items():
            if not isinstance(value, dict | list):
                sys.stdout.write(f"{name}: {_cell(value)}\n")
    sys.stdout.flush()
    for error in (report.failure, *trouble):
        if error is not None:
            raise error
    return kept


def keep(report: Report, settings: Settings, say: Callable[[str], None]) -> bool:
    """Put the report into the ``benchmarks`` table; whether it is there now.

    A log that cannot be written is said, and costs the row only.
    """
    from dropscribe.jobs import benchmarks
    from dropscribe.jobs.database import open_database

    try:
        db = open_database(settings.database)
        try:
            benchmarks.add(
                db,
                kind=report.kind,
                measured_at=report.measured_at,
                device=report.machine.get("device"),
                model=report.machine.get("model"),
                decoder=report.decoder,
                slots=report.slots,
                audio_seconds=report.audio_seconds,
                wall_s=report.wall_s,
                result=report.as_dict(),
            )
        finally:
            db.close()
    except (DropscribeError, OSError) as error:
        say(f"not kept in the job log: {error}")
        return False
    return True


def check_writable(*paths: Path | None) -> None:
    """Find out before an hour of measuring that a result cannot be written. Raises ``ConfigError``."""
    for path in paths:
        if path is not None and not path.parent.is_dir():
            raise ConfigError(f"{path}: there is no folder {path.parent}; make it first")
        if path is not None and path.is_dir():
            raise ConfigError(f"{path} is a folder; name a file in it")


def _written(path: Path, write: Callable[[], object], then: Callable[[], None]) -> list[Exception]:
    try:
        write()
    except OSError as error:
        return [ConfigError(f"cannot write {path}: {error.strerror}; name another file")]
    then()
    return []


def _cell(value: object) -> object:
    """Figures as people read them: four digits."""
    if isinstance(value, bool) or not isinstance(value, float):
        return value
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
