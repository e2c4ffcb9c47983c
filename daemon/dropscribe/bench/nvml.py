"""Power of NVIDIA GPUs, by NVML, which comes with the driver (the Python side is nvidia-ml-py, in the extra ``bench``).

Needs nothing else of ours, so a machine without the rest can sample too::

    python -m dropscribe.bench.nvml --seconds 10
    python -m dropscribe.bench.nvml -- COMMAND

``nvmlDeviceGetPowerUsage`` is an average over the last second from Ampere on (except GA100): fine for a curve, late for
a short command. Joules come from ``nvmlDeviceGetTotalEnergyConsumption``, a counter, wherever there is one (Volta on).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from dropscribe.bench.metering import Channel, Poller, figures, spans_of
from dropscribe.errors import ConfigError

TOGETHER = "gpu"
INTERVAL = 0.1


class Nvml:
    """All GPUs that NVML shows. Raises ``ConfigError`` when there is nothing to ask."""

    name = "nvml"

    def __init__(self, interval: float = INTERVAL) -> None:
        self._nvml = _library()
        try:
            self._devices = [self._device(index) for index in range(self._nvml.nvmlDeviceGetCount())]
            if not self._devices:
                raise ConfigError("NVML shows no GPU; see what `nvidia-smi -L` says")
            self.describe: dict[str, Any] = {
                "driver": _text(self._nvml.nvmlSystemGetDriverVersion()),
                "gpus": [name for name, _ in self._devices],
            }
        except self._nvml.NVMLError as error:
            raise ConfigError(f"NVML cannot be asked: {error}; see what `nvidia-smi` says") from None
        self._poller = Poller(self._watts, interval)
        self._before: dict[str, int] = {}

    def _device(self, index: int) -> tuple[str, Any]:
        handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
        return f"gpu {index} ({_text(self._nvml.nvmlDeviceGetName(handle))})", handle

    def start(self) -> None:
        """Begin. Raises ``ConfigError`` when no GPU tells its power."""
        self._before = self._millijoules()
        try:
            self._poller.start()
        except self._nvml.NVMLError as error:
            raise ConfigError(f"the GPU does not tell its power: {error}; see `nvidia-smi -q -d POWER`") from None

    def stop(self) -> tuple[list[Channel], list[str]]:
        """One channel a GPU, and their sum if there are several."""
        after = self._millijoules()
        seen, failed = self._poller.stop()
        self._nvml.nvmlShutdown()
        names = [name for name, _ in self._devices]
        counted = {
            name: (after[name] - self._before[name]) / 1000 for name in names if name in self._before and name in after
        }
        if len(names) > 1:
            if len(counted) == len(names):
                counted[TOGETHER] = sum(counted.values())
            names.append(TOGETHER)
        channels = [Channel(name, spans_of(seen, name), counted.get(name)) for name in names]
        troubles = [f"{channel.name} does not tell its power" for channel in channels if not channel.spans]
        return channels, troubles + ([f"NVML stopped answering: {failed}"] if failed else [])

    def _watts(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for name, handle in self._devices:
            try:
                found[name] = self._nvml.nvmlDeviceGetPowerUsage(handle) / 1000
            except self._nvml.NVMLError:  # one of several may not support it, or be in use by someone who may forbid it
                if len(self._devices) == 1:
                    raise
        if len(self._devices) > 1:
            found[TOGETHER] = sum(found.values())
        return found

    def _millijoules(self) -> dict[str, int]:
        found = {}
        for name, handle in self._devices:
            try:
                found[name] = int(self._nvml.nvmlDeviceGetTotalEnergyConsumption(handle))
            except self._nvml.NVMLError:  # older than Volta: the integral has to do
                continue
        return found


def _library() -> Any:
    try:
        import pynvml
    except ImportError:
        raise ConfigError('the power of NVIDIA GPUs is read by nvidia-ml-py: pip install "dropscribe[bench]"') from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise ConfigError(
            f"no NVIDIA GPU can be asked for its power: {error}; NVML comes with the driver, `nvidia-smi` shows "
            "whether it works (in a container: start it with --gpus all)"
        ) from None
    return pynvml


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name


def sample(seconds: float, *, interval: float = INTERVAL) -> dict[str, Any]:
    """Watch all GPUs for a while; figures by channel."""
    meter = Nvml(interval)
    meter.start()
    began = time.monotonic()
    time.sleep(seconds)
    ended = time.monotonic()
    return record(meter, *meter.stop(), began, ended)


def record(meter: Nvml, channels: list[Channel], troubles: list[str], began: float, ended: float) -> dict[str, Any]:
    """What was found, for machines."""
    return {
        **meter.describe,
        "seconds": ended - began,
        "samples": max((len(channel.spans) + 1 for channel in channels), default=0),
        "channels": {channel.name: figures(channel, began, ended)._asdict() for channel in channels},
        "troubles": troubles,
    }


def main(arguments: list[str] | None = None) -> int:
    """Sample and print JSON; the exit status is the command's, if one was given."""
    parser = argparse.ArgumentParser(prog="python -m dropscribe.bench.nvml", description="Power of NVIDIA GPUs.")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long, when there is no command")
    parser.add_argument("--interval-ms", type=float, default=1000 * INTERVAL)
    parser.add_argument("command", nargs="*", help="watch while this runs")
    given = parser.parse_args(arguments)
    interval = given.interval_ms / 1000
    try:
        if not given.command:
            found, code = sample(given.seconds, interval=interval), 0
        else:
            from dropscribe.bench.following import follow

            meter = Nvml(interval)
            meter.start()
            ran = follow(given.command)
            found = {**record(meter, *meter.stop(), ran.began, ran.ended), "exit_code": ran.code}
            code = ran.code
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(json.dumps(found, indent=2) + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
