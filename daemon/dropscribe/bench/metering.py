"""Power over time: what a meter gives, and what is made of it. Nothing here needs more than the standard library."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

JOIN_SECONDS = 10.0  # a driver that does not answer for so long is given up


class Span(NamedTuple):
    """Average watts from ``start`` to ``end``, both in seconds of ``time.monotonic``."""

    start: float
    end: float
    watts: float


@dataclass
class Channel:
    """One thing whose power is known. ``joules``: by the hardware's counter, which misses nothing, if it has one."""

    name: str
    spans: list[Span] = field(default_factory=list)
    joules: float | None = None


class Meter(Protocol):
    """A source of power figures. ``describe`` says what it found; it goes into the report as it is."""

    name: str
    describe: dict[str, Any]

    def start(self) -> None:
        """Begin; returns when figures come. Raises ``ConfigError``, whose message names the remedy."""

    def stop(self) -> tuple[list[Channel], list[str]]:
        """End. Gives the channels that are parts of a whole, and what went wrong meanwhile, for a person."""


class Figures(NamedTuple):
    """A channel between two moments."""

    average_w: float | None  # None: no figure lies between them
    max_w: float | None
    joules: float | None
    covered_s: float  # how much of the time the figures stand for


def figures(channel: Channel, start: float, end: float) -> Figures:
    """Integrate a channel from ``start`` to ``end``; spans that stick out count with the part that lies inside.

    A counter's joules go before the integral: its meter was started and stopped with the command.
    """
    inside = [(span, min(span.end, end) - max(span.start, start)) for span in channel.spans]
    inside = [(span, seconds) for span, seconds in inside if seconds > 0]
    covered = sum(seconds for _, seconds in inside)
    if not covered:
        return Figures(None, None, channel.joules, 0.0)
    joules = channel.joules
    if joules is None:
        joules = sum(span.watts * seconds for span, seconds in inside)
    return Figures(joules / covered, max(span.watts for span, _ in inside), joules, covered)


class Poller:
    """Calls ``read`` at once, every ``interval`` seconds in a thread of its own, and once more at the end.

    ``read`` gives watts by channel; a value stands for the time since the one before, with which it is averaged.
    """

    def __init__(
        self, read: Callable[[], dict[str, float]], interval: float, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._read, self._interval, self._clock = read, interval, clock
        self._seen: list[tuple[float, dict[str, float]]] = []
        self._failed: Exception | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="power", daemon=True)

    def start(self) -> None:
        """Begin. What the first ``read`` raises comes out of here."""
        self._look()
        self._thread.start()

    def stop(self) -> tuple[list[tuple[float, dict[str, float]]], Exception | None]:
        """End. What was read, and when; and what made it end early, if something did."""
        self._ended.set()
        self._thread.join(JOIN_SECONDS)
        return list(self._seen), self._failed

    def _look(self) -> None:
        self._seen.append((self._clock(), self._read()))

    def _run(self) -> None:
        try:
            while not self._ended.wait(self._interval):
                self._look()
            self._look()
        except Exception as error:  # the command must not end because a driver did
            self._failed = error


def spans_of(seen: Sequence[tuple[float, dict[str, float]]], channel: str) -> list[Span]:
    """Power read at moments, as spans between them, each with the mean of its two ends."""
    points = [(at, watts[channel]) for at, watts in seen if channel in watts]
    return [
        Span(before, at, (earlier + later) / 2) for (before, earlier), (at, later) in pairwise(points) if at > before
    ]


def counted_spans(seen: Sequence[tuple[float, dict[str, float]]], channel: str) -> list[Span]:
    """Joules of a counter read at moments, as the power between them."""
    points = [(at, joules[channel]) for at, joules in seen if channel in joules]
    return [
        Span(before, at, (later - earlier) / (at - before))
        for (before, earlier), (at, later) in pairwise(points)
        if at > before
    ]
