"""Power while a command runs: which meters there are, and a report of what they said."""

from __future__ import annotations

import shlex
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from dropscribe.bench.following import follow
from dropscribe.bench.metering import Span, figures
from dropscribe.bench.plot import Curve
from dropscribe.bench.report import Report, host
from dropscribe.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dropscribe.bench.following import Ran
    from dropscribe.bench.metering import Channel, Meter

COLUMNS = ("channel", "average_w", "max_w", "joules", "joules_per_audio_hour")
POINTS = 1000  # of a curve
ENOUGH = 0.95  # of the time must be covered by figures, else it is said


def meters(interval: float, *, system: str = sys.platform) -> tuple[list[Meter], list[str]]:
    """What can be asked on this machine, and why the rest cannot. Raises ``ConfigError`` when there is nothing."""
    if system == "darwin":
        from dropscribe.bench.powermetrics import PowerMetrics

        return [PowerMetrics(interval)], []
    from dropscribe.bench.nvml import Nvml
    from dropscribe.bench.rapl import Rapl

    found: list[Meter] = []
    without = []
    kinds: tuple[Callable[[float], Meter], ...] = (Nvml, Rapl)
    for kind in kinds:
        try:
            found.append(kind(interval))
        except ConfigError as error:
            without.append(str(error))
    if not found:
        raise ConfigError("\n".join(["nothing here tells its power", *without]))
    return found, without


def measure(
    command: Sequence[str],
    found: Sequence[Meter],
    *,
    interval: float,
    audio_seconds: float | None,
    say: Callable[[str], None],
) -> tuple[Report, Ran]:
    """Run ``command`` under the meters. Raises ``ConfigError``, before it runs, when none of them can be started."""
    channels: list[tuple[Meter, list[Channel]]] = []
    troubles: list[str] = []
    with ExitStack() as started:
        running = [meter for meter in found if _started(meter, started, channels, troubles)]
        if not running:
            raise ConfigError("\n".join(troubles))
        ran = follow(command, then=started.close)
    report = report_of(command, ran, channels[::-1], interval=interval, audio_seconds=audio_seconds)
    troubles += _thin(report, ran)
    for trouble in troubles:
        say(f"dropscribe: {trouble}")
    report.summary["troubles"] = troubles
    return report, ran


def _started(
    meter: Meter, started: ExitStack, channels: list[tuple[Meter, list[Channel]]], troubles: list[str]
) -> bool:
    """Start a meter; its ``stop`` is on the stack then, and adds to the two lists."""
    try:
        meter.start()
    except ConfigError as error:
        troubles.append(str(error))
        return False

    def stop() -> None:
        seen, wrong = meter.stop()
        channels.append((meter, seen))
        troubles.extend(wrong)

    started.callback(stop)
    return True


def report_of(
    command: Sequence[str],
    ran: Ran,
    measured: Sequence[tuple[Meter, Sequence[Channel]]],
    *,
    interval: float,
    audio_seconds: float | None,
) -> Report:
    """Every channel's figures over the time of the command, and a curve for each meter."""
    report = Report("power", COLUMNS, audio_seconds=audio_seconds, wall_s=ran.ended - ran.began)
    report.machine = {**host(), **{meter.name: meter.describe for meter, _ in measured}}
    report.options = {"command": list(command), "interval_ms": 1000 * interval, "audio_seconds": audio_seconds}
    report.interrupted = bool(ran.signals)
    for meter, channels in measured:
        for channel in channels:
            report.rows.append(_row(meter, channel, ran, audio_seconds))
        report.curves += _curve(meter, channels, ran)
    report.summary = {
        "command": shlex.join(command),
        "exit_code": ran.code,
        "wall_s": report.wall_s,
        **({} if audio_seconds is None else {"audio_seconds": audio_seconds}),
    }
    return report


def _row(meter: Meter, channel: Channel, ran: Ran, audio_seconds: float | None) -> dict[str, Any]:
    found = figures(channel, ran.began, ran.ended)
    per_hour = None if not audio_seconds or found.joules is None else found.joules / audio_seconds * 3600
    return {
        "channel": channel.name,
        "meter": meter.name,
        **found._asdict(),
        "joules_per_audio_hour": per_hour,
        "samples": len(channel.spans),
        "curve": [[round(span.end - ran.began, 3), round(span.watts, 3)] for span in thinned(channel.spans)],
    }


def thinned(spans: Sequence[Span], most: int = POINTS) -> list[Span]:
    """At most so many spans, neighbours made one: an hour's figures would fill the job log."""
    group = -(-len(spans) // most) or 1
    joined = []
    for first in range(0, len(spans), group):
        part = spans[first : first + group]
        seconds = sum(span.end - span.start for span in part)
        watts = sum(span.watts * (span.end - span.start) for span in part) / seconds
        joined.append(Span(part[0].start, part[-1].end, watts))
    return joined


def _curve(meter: Meter, channels: Sequence[Channel], ran: Ran) -> list[Curve]:
    """Those channels that have as many figures as the longest: all, unless one came late."""
    most = max((len(channel.spans) for channel in channels), default=0)
    full = [channel for channel in channels if len(channel.spans) == most]
    if most == 0:
        return []
    x = [span.end - ran.began for span in thinned(full[0].spans)]
    lines: dict[str, Sequence[float]] = {
        channel.name: [span.watts for span in thinned(channel.spans)] for channel in full
    }
    return [Curve(f"power ({meter.name})", "seconds", "watts", x, lines)]


def _thin(report: Report, ran: Ran) -> list[str]:
    wall = ran.ended - ran.began
    return [
        f"{row['channel']}: only {row['covered_s']:.1f} of {wall:.1f} s are covered by figures"
        for row in report.rows
        if row["covered_s"] < ENOUGH * wall
    ]
