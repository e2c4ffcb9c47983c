"""Power of the processor on Linux, by the energy counters that the kernel shows under ``/sys/class/powercap``.

Since Linux 5.10 only root may read them (they tell what others compute). Packages only: parts are counted in them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dropscribe.bench.metering import Channel, Poller, counted_spans
from dropscribe.errors import ConfigError

POWERCAP = Path("/sys/class/powercap")
TOGETHER = "cpu"


class Rapl:
    """All processor packages. Raises ``ConfigError`` when there are none, or they may not be read."""

    name = "rapl"

    def __init__(self, interval: float, *, powercap: Path = POWERCAP) -> None:
        # intel-rapl:0 is a package (AMD's have the same name), intel-rapl:0:1 a part of one
        packages = [path for path in sorted(powercap.glob("intel-rapl:*")) if path.name.count(":") == 1]
        self._counters = [(path / "energy_uj", *_name_and_range(path)) for path in packages]
        self._counters = [counter for counter in self._counters if counter[1].startswith("package")]
        if not self._counters:
            raise ConfigError(
                f"the processor's power is not shown here (no package under {powercap}; a virtual machine?)"
            )
        try:
            self._last = [_read(path) for path, _, _ in self._counters]
        except PermissionError as error:
            raise ConfigError(
                f"the processor's power may be read by root only: `sudo chmod a+r {powercap}/intel-rapl:*/energy_uj` "
                f"allows it until the next boot ({error.filename})"
            ) from None
        except OSError as error:
            raise ConfigError(f"the processor's power cannot be read: {error.filename}: {error.strerror}") from None
        self._total = 0
        self._poller = Poller(self._joules, interval)
        self.describe: dict[str, Any] = {"packages": len(self._counters)}

    def start(self) -> None:
        """Begin."""
        self._last = [_read(path) for path, _, _ in self._counters]
        self._poller.start()

    def stop(self) -> tuple[list[Channel], list[str]]:
        """One channel: all packages."""
        seen, failed = self._poller.stop()
        return [Channel(TOGETHER, counted_spans(seen, TOGETHER))], (
            [f"the processor's power could not be read to the end: {failed}"] if failed else []
        )

    def _joules(self) -> dict[str, float]:
        """Since the start; a counter begins at zero again after its range."""
        for index, (path, _, wraps_at) in enumerate(self._counters):
            now = _read(path)
            gone = now - self._last[index]
            self._total += gone if gone >= 0 else gone + wraps_at
            self._last[index] = now
        return {TOGETHER: self._total / 1e6}


def _name_and_range(package: Path) -> tuple[str, int]:
    try:
        return (package / "name").read_text().strip(), _read(package / "max_energy_range_uj")
    except (OSError, ValueError):
        return "", 0


def _read(path: Path) -> int:
    return int(path.read_text())
