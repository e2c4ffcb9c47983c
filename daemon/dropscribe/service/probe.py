"""The doctor's child: everything that needs mlx, step by step, each step a JSON line; a crash then names its step.

``python -m dropscribe.service.probe`` reads the settings from stdin. The model is looked for on this machine only.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dropscribe.errors import DropscribeError
from dropscribe.service import clip
from dropscribe.settings import Settings

if TYPE_CHECKING:
    from dropscribe.batch import FileResult

_LINES = 1


def main() -> None:
    """Say what was found; every line has ``step`` and ``state``: begun, ok or problem."""
    global _LINES  # noqa: PLW0603 - moved once, before any library can print
    _LINES = os.dup(1)
    os.dup2(2, 1)
    os.environ["HF_HUB_OFFLINE"] = "1"  # before huggingface_hub is imported: a doctor fetches nothing
    settings = Settings.model_validate_json(sys.stdin.readline())
    steps = [("mlx", _mlx), ("model", _model)]
    if sys.argv[1:] != ["--no-transcription"]:
        steps += [("decoder", _decoder), ("transcription", _transcription)]
    for step, look in steps:
        _say(step, "begun")
        try:
            _say(step, "ok", **look(settings))
        except (DropscribeError, ImportError, RuntimeError, OSError, ValueError) as error:
            kind = error.error_kind if isinstance(error, DropscribeError) else type(error).__name__
            _say(step, "problem", error_kind=kind, error=str(error))
            return


def _say(step: str, state: str, **fields: Any) -> None:
    os.write(_LINES, (json.dumps({"step": step, "state": state, **fields}) + "\n").encode())


def _mlx(_settings: Settings) -> dict[str, Any]:
    """The device computes what it should."""
    import mlx.core as mx

    ones = mx.ones((64, 64))
    total = (ones @ ones).sum().item()
    if total != 64.0**3:
        raise ValueError(f"a product of ones came out as {total}")
    return {
        "device": str(mx.default_device()), "mlx": metadata.version("mlx"), "mlx_audio": metadata.version("mlx-audio")
    }  # fmt: skip


def _model(settings: Settings) -> dict[str, Any]:
    """It is there and whole. It is loaded by the next step, or by the service."""
    from dropscribe.asr.model import locate

    located = locate(settings.model, fetch=False)
    return {"name": located.name, "path": str(located.path), "revision": located.revision}


def _decoder(settings: Settings) -> dict[str, Any]:
    """The schedule that would run here; where the true batch is in question, by its self-check (kept between runs)."""
    if settings.decode.decoder in ("serial", "bulk-sync"):
        return {"decoder": settings.decode.decoder, "slots": None, "as_serial": True, "fallback": None}
    from dropscribe import pipeline
    from dropscribe.asr.model import load
    from dropscribe.gpu_lock import GpuLock

    with GpuLock("dropscribe doctor", waiting_for=_waiting):
        plan = pipeline.plan_for(settings, load(settings.model))
    return {"decoder": plan.decoder, "slots": plan.slots, "as_serial": plan.as_serial, "fallback": plan.fallback}


def _waiting(holder: str) -> None:
    _say("transcription", "waiting", holder=holder)


def _transcription(settings: Settings) -> dict[str, Any]:
    """Two rows side by side by the decoder that is set, then one after another: the same tokens?"""
    from dropscribe.batch import transcribe_batch

    with tempfile.TemporaryDirectory(prefix="dropscribe-doctor-") as folder:
        files = [Path(folder) / "one.wav", Path(folder) / "two.wav"]
        for file in files:
            file.write_bytes(clip.clip())
        results = {
            decoder: list(transcribe_batch(settings, files, batch_size=2, decoder=decoder, waiting_for=_waiting))
            for decoder in dict.fromkeys((settings.decode.decoder, "serial"))
        }
    first = results[settings.decode.decoder]
    for result in first:
        if result.error_kind:
            raise ValueError(f"{result.error_kind}: {result.error}")
    return {
        "text": first[0].text,
        "time": first[0].time,
        "rtf": first[0].rtf,
        "decoder": settings.decode.decoder,
        "exactness": settings.decode.exactness,
        "same_as_serial": [_tokens(result) for result in first] == [_tokens(result) for result in results["serial"]],
    }


def _tokens(result: FileResult) -> tuple[int, ...]:
    return tuple(result.tokens)


if __name__ == "__main__":
    main()
