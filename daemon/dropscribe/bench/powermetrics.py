"""Power of Apple silicon (and Intel Macs), by macOS's ``powermetrics``.

``powermetrics -f plist`` writes one property list a sample, with a NUL before each but the first. Of a sample we use:

==========================  ===============================================================================
``elapsed_ns``              how long the sample is
``processor``               ``cpu_power``, ``gpu_power``, ``ane_power``, ``combined_power``: milliwatts (macOS 13 on)
                            ``cpu_energy``, ``gpu_energy``, ``ane_energy``: millijoules in the sample (macOS 12 has
                            only these, and ``package_energy``); on Intel ``package_watts``
``hw_model``,               which machine and system
``kern_osversion``
==========================  ===============================================================================

The figures are the system's own estimates, for comparing runs on one machine; ``man powermetrics`` says so itself.
"""

from __future__ import annotations

import getpass
import math
import os
import plistlib
import select
import subprocess
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from xml.parsers.expat import ExpatError

from dropscribe.bench.metering import Channel, Span
from dropscribe.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PROGRAM = "/usr/bin/powermetrics"
PARTS = ("cpu", "gpu", "ane")
TOGETHER = "package"
FIRST_SECONDS = 15.0  # until the first sample: sudo, start, one interval
LAST_SECONDS = 5.0  # beyond an interval, for the sample that covers the end, and for it to leave
LOOK_SECONDS = 0.2
SAID_BYTES = 2000
LONGEST_SAMPLE = 1 << 24  # bytes; without an end until then it is something else
_BEGIN, _OPEN, _END = b"<?xml", b"<plist", b"</plist>"


@dataclass(frozen=True)
class Sample:
    """One property list. ``watts`` by part, without those that are not in it; ``machine``: what it says of itself."""

    seconds: float | None
    watts: dict[str, float]
    machine: dict[str, str]


class Parser:
    """Property lists out of a stream. ``feed`` bytes as they come; what is no whole sample gives none."""

    def __init__(self) -> None:
        self._rest = b""
        self.unusable = 0  # documents that were whole but held no power, or were no property list

    def feed(self, data: bytes) -> list[Sample]:
        """The samples that ``data`` completes."""
        self._rest += data
        samples = []
        while (end := self._rest.find(_END)) >= 0:
            document, self._rest = self._rest[: end + len(_END)], self._rest[end + len(_END) :]
            found = sample_of(document)
            if found is None:
                self.unusable += 1
            else:
                samples.append(found)
        self._rest = self._rest[-LONGEST_SAMPLE:]
        return samples

    @property
    def cut_off(self) -> bool:
        """Whether a sample has begun that has not ended."""
        return _BEGIN in self._rest or _OPEN in self._rest


def sample_of(document: bytes) -> Sample | None:
    """A sample from what ends with its property list; None if that cannot be read, or holds no power."""
    # the last beginning: before it may lie garbage, a NUL, or a sample that was cut off
    begin = max(document.rfind(_BEGIN), 0) or max(document.rfind(_OPEN), 0)
    try:
        found = plistlib.loads(document[begin:])
    except (ValueError, ExpatError, AttributeError, IndexError, KeyError, TypeError, OverflowError):
        return None
    if not isinstance(found, dict):
        return None
    seconds = _number(found.get("elapsed_ns"), 1e-9)
    watts = _watts(found.get("processor"), found.get("gpu"), seconds)
    if not watts:
        return None
    machine = {name: str(found[name]) for name in ("hw_model", "kern_osversion") if found.get(name)}
    return Sample(seconds, watts, machine)


def _watts(processor: object, gpu: object, seconds: float | None) -> dict[str, float]:
    values: dict[str, Any] = processor if isinstance(processor, dict) else {}
    watts = {}
    for part in PARTS:
        found = _power(values, part, seconds)
        if found is None and part == "gpu" and isinstance(gpu, dict):
            found = _power(gpu, part, seconds)
        if found is not None:
            watts[part] = found
    together = _number(values.get("combined_power"), 1e-3)
    if together is None:
        together = _power(values, TOGETHER, seconds)
    if together is None:
        together = _number(values.get("package_watts"), 1.0)
    if together is None and watts:
        together = sum(watts.values())
    return watts if together is None else {**watts, TOGETHER: together}


def _power(values: dict[str, Any], part: str, seconds: float | None) -> float | None:
    power = _number(values.get(f"{part}_power"), 1e-3)
    if power is not None:
        return power
    energy = _number(values.get(f"{part}_energy"), 1e-3)
    return None if energy is None or not seconds else energy / seconds


def _number(value: object, scale: float) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        return None
    return value * scale


def arguments(interval_ms: int) -> list[str]:
    """What ``powermetrics`` is called with. Unbuffered, else samples would come in heaps."""
    return [PROGRAM, "--samplers", "cpu_power,gpu_power", "-i", str(interval_ms), "-f", "plist", "-b", "0"]


def allowed_by(interval_ms: int, user: str) -> str:
    """The line for ``sudoers`` that allows exactly this call: with other options powermetrics writes files as root."""
    return f"{user} ALL=(root) NOPASSWD: {' '.join(arguments(interval_ms)).replace(',', chr(92) + ',')}"


class PowerMetrics:
    """A running ``powermetrics``. Root only, so through ``sudo -n``, which never asks."""

    name = "powermetrics"

    def __init__(
        self,
        interval: float,
        *,
        command: Sequence[str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._interval_ms = max(1, round(1000 * interval))
        sudo = [] if os.geteuid() == 0 else ["sudo", "-n"]
        self._command = list(command) if command is not None else [*sudo, *arguments(self._interval_ms)]
        self._clock = clock
        self._parser = Parser()
        self._came: list[tuple[float, Sample]] = []
        self._news = threading.Condition()
        self._ended = False
        self._leaving = threading.Event()
        self.describe: dict[str, Any] = {}

    def start(self) -> None:
        """Start it and wait for the first sample."""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in _end; not a pipe, which nobody would empty
        try:
            # a group of its own, so that Ctrl-C leaves it the last sample; not a session: sudo remembers by terminal
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self._errors, process_group=0
            )
        except OSError as error:
            self._errors.close()
            raise ConfigError(f"{self._command[0]}: {error.strerror}; power is read by macOS's powermetrics") from None
        self._thread = threading.Thread(target=self._listen, name="powermetrics", daemon=True)
        self._thread.start()
        if not self._wait(lambda: bool(self._came), FIRST_SECONDS):
            raise ConfigError(self._refused(self._end()))
        self.describe = dict(self._came[0][1].machine)

    def stop(self) -> tuple[list[Channel], list[str]]:
        """Wait for the sample that covers this moment, then end it."""
        now = self._clock()
        complete = self._wait(lambda: self._came[-1][0] >= now, self._interval_ms / 1000 + LAST_SECONDS)
        said = self._end()
        troubles = []
        if not complete:
            troubles.append(f"powermetrics ended before the command did, and its figures with it{said and ': '}{said}")
        if self._parser.unusable:
            troubles.append(f"{self._parser.unusable} samples of powermetrics could not be read")
        if self._process.poll() is None:
            troubles.append(f"powermetrics (process {self._process.pid}) does not end; `sudo kill {self._process.pid}`")
        return channels_of(self._came, self._interval_ms / 1000), troubles

    def _listen(self) -> None:
        stdout = self._process.stdout
        assert stdout is not None  # noqa: S101 - it is a pipe
        with stdout:
            while not self._leaving.is_set():
                if not select.select([stdout], [], [], LOOK_SECONDS)[0]:
                    continue
                if not (data := os.read(stdout.fileno(), 1 << 16)):
                    break
                at, samples = self._clock(), self._parser.feed(data)
                with self._news:
                    self._came += [(at, sample) for sample in samples]
                    self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    def _wait(self, until: Callable[[], bool], seconds: float) -> bool:
        with self._news:
            self._news.wait_for(lambda: self._ended or until(), seconds)
            return until()

    def _end(self) -> str:
        """End it; what it said. Root's process cannot be signalled: without a reader it ends at its next sample."""
        self._leaving.set()
        self._thread.join()
        with suppress(PermissionError):
            self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(self._interval_ms / 1000 + LAST_SECONDS)
        with self._errors as errors:
            errors.seek(0)
            return " ".join(errors.read(SAID_BYTES).decode("utf-8", "replace").split())

    def _refused(self, said: str) -> str:
        if "password" not in said and "sudo:" not in said:
            return f"powermetrics gave no sample: {said or 'it said nothing'}; try `sudo {' '.join(arguments(1000))}`"
        return (
            f"powermetrics needs root, and sudo does not give it without asking ({said}). Either run `sudo -v` and "
            "then this again, or allow exactly this call for good, by `sudo visudo -f /etc/sudoers.d/dropscribe` and\n"
            f"{allowed_by(self._interval_ms, getpass.getuser())}"
        )


def channels_of(came: Sequence[tuple[float, Sample]], interval: float) -> list[Channel]:
    """Samples and when they came, as channels. A sample ends when it comes, and does not overlap the one before."""
    channels = {name: Channel(name) for name in (*PARTS, TOGETHER)}
    before = -math.inf
    for at, sample in came:
        start = max(before, at - (sample.seconds or interval))
        for name, watts in sample.watts.items():
            if at > start:
                channels[name].spans.append(Span(start, at, watts))
        before = at
    return [channel for channel in channels.values() if channel.spans]
