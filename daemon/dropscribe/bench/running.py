"""The model for a measurement: alone on the GPU, from load to unload."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dropscribe import resources
from dropscribe.bench.report import host
from dropscribe.gpu_lock import GpuLock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dropscribe.asr.model import Model
    from dropscribe.settings import Settings

BUNDLED = "bundled"  # --model bundled: the tiny model of the demo


def wanted(model: str | None, *, quick: bool) -> str | None:
    """What ``--model`` and ``--quick`` name together; ``None``: the settings' own."""
    return model or (BUNDLED if quick else None)


@dataclass(frozen=True)
class Loaded:
    """A model that is held alone, and what it took."""

    model: Model
    load_s: float
    machine: dict[str, Any]  # for a report


@contextmanager
def loaded(settings: Settings, say: Callable[[str], None]) -> Iterator[Loaded]:
    """Wait for the GPU lock, load the settings' model, hold both. Raises ``ModelError``."""
    with holding_gpu(say), model_at(settings.model) as name:
        yield load(name)


@contextmanager
def holding_gpu(say: Callable[[str], None]) -> Iterator[None]:
    """The GPU is ours; Ctrl-C ends the wait for it."""
    with GpuLock("dropscribe bench", waiting_for=lambda holder: say(f"waiting for the GPU, held by {holder}")):
        yield


@contextmanager
def model_at(name: str) -> Iterator[str]:
    """What to load for ``name``; the bundled model may have to be unpacked for as long as it is used."""
    if name == BUNDLED:
        with resources.demo_model() as folder:
            yield str(folder)
    else:
        yield name


def load(name: str) -> Loaded:
    """Load a model under a lock that is held already."""
    from dropscribe.asr import model as models
    from dropscribe.asr.selfcheck import device_name

    started = time.perf_counter()
    model = models.load(name)
    took = time.perf_counter() - started
    machine = {
        **host(),
        "device": model.device,
        "device_name": device_name(),
        "model": model.name,
        "revision": model.revision,
        "dtype": str(model.dtype),
    }
    return Loaded(model, took, machine)
