#!/usr/bin/env python
"""``bench sweep`` and ``bench anatomy`` where only MLX and the recognizer are installed. Prints one JSON object a line.

    python tools/bench_device.py MODEL AUDIO_DIR [--quick] [--sweep-slots 1,2,4,6,8] [--anatomy-slots 1,7]
        [--decoders bulk-sync,batched] [--skip-sweep] [--skip-anatomy] [--rounds N] …

MODEL is a checkpoint directory (tools/make_random_model.py writes any shape), AUDIO_DIR a folder of .wav or .flac files
at 16 kHz. ``dropscribe bench`` itself needs the whole package. Not done here: reading through the reader process, the
GPU lock, the job log. Batched is swept without the self-check at whatever numbers of slots are named: what it says of
identical output is measured, what it says of speed may be of slots that would never be used.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import soundfile

from dropscribe.asr.model import load
from dropscribe.asr.selfcheck import Verdict, device_name
from dropscribe.bench import anatomy, sweep
from dropscribe.bench.latency import Recording, shortened
from dropscribe.bench.report import Report, measured

if TYPE_CHECKING:
    from dropscribe.asr.model import Model

QUICK = {
    "chunk_seconds": 5.0,
    "num_chunks": 6,
    "rounds": 2,
    "clip_seconds": 4.0,
    "contexts": [64, 256, 1024],
    "repeats": 10,
}
FULL = {
    "chunk_seconds": 10.0, "num_chunks": 24, "rounds": 3, "clip_seconds": 30.0, "contexts": [64, 256, 1024, 4096],
    "repeats": 50,
}  # fmt: skip


def say(text: str) -> None:
    print(json.dumps({"note": text}), flush=True)


def show(report: Report) -> None:
    whole = report.as_dict()
    rows = whole.pop("rows")
    for row in rows:
        print(json.dumps({"kind": report.kind, **row}), flush=True)
    print(json.dumps({**whole, "wall_s": report.wall_s}), flush=True)


def read(folder: Path) -> list[Recording]:
    recordings = []
    for path in sorted(p for p in folder.iterdir() if p.suffix in {".flac", ".wav"}):
        started = time.perf_counter()
        samples, rate = soundfile.read(path, dtype="float32")
        if rate != 16_000 or samples.ndim != 1:
            raise SystemExit(f"{path}: {rate} Hz, {samples.ndim} channels; give 16 kHz mono")
        recordings.append(Recording(path.name, samples, time.perf_counter() - started))
    if not recordings:
        raise SystemExit(f"{folder}: no .wav or .flac in it")
    return recordings


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def sweep_all(model: Model, recordings: list[Recording], options: argparse.Namespace, **more: Any) -> None:
    samples = [one.samples for one in recordings]
    chunks = sweep.cut_chunks(samples, chunk_seconds=options.chunk_seconds, count=options.num_chunks)
    for decoder in options.decoders.split(","):
        report = Report("sweep", sweep.COLUMNS, machine=more["machine"], options={**vars(options), "decoder": decoder})
        report.options["chunks_repeated"] = chunks.repeated
        verdict = Verdict((), 1, (0,), {}) if decoder == "batched" else None  # never narrows: S stays what it is
        parts = sweep.sweep(
            report, model, chunks, options.sweep_slots, decoder=decoder, rounds=options.rounds, verdict=verdict,
            load_s=more["load_s"],
        )  # fmt: skip
        show(measured(report, parts, say))
        if report.interrupted:
            raise SystemExit(130)


def take_apart(model: Model, recordings: list[Recording], options: argparse.Namespace, machine: dict[str, Any]) -> None:
    report = Report("anatomy", anatomy.COLUMNS, machine=machine, options=vars(options))
    longest = min(model.longest_seconds, model.max_segment_seconds, options.clip_seconds)
    clips = shortened(recordings[: options.clips], longest, say)
    parts = anatomy.anatomy(
        report, model, clips, slots=options.anatomy_slots, contexts=options.contexts, repeats=options.repeats,
        rounds=options.rounds, probe_megabytes=options.probe_mb, progress=say,
    )  # fmt: skip
    show(measured(report, parts, say))
    if report.interrupted:
        raise SystemExit(130)


def main() -> None:
    parser = argparse.ArgumentParser(description="Sweep and anatomy without settings; one JSON object a line.")
    parser.add_argument("model")
    parser.add_argument("audio_dir", type=Path)
    parser.add_argument("--sweep-slots", type=numbers, default=[1, 2, 4, 6, 8])
    parser.add_argument("--anatomy-slots", type=numbers, default=[1, 7])
    parser.add_argument("--decoders", default="bulk-sync,batched", help="of the sweep")
    parser.add_argument("--chunk-seconds", type=float)
    parser.add_argument("--num-chunks", type=int)
    parser.add_argument("--rounds", type=int, help="of the sweep, and of the recordings for the latencies")
    parser.add_argument("--clips", type=int, default=8, help="files the latencies are measured with")
    parser.add_argument("--clip-seconds", type=float, help="of each of them at the most")
    parser.add_argument("--contexts", type=numbers, help="positions a slot")
    parser.add_argument("--repeats", type=int, help="runs of each part of a step")
    parser.add_argument(
        "--probe-mb", type=int, default=1024, help="array of the bandwidth probe; larger than any cache"
    )
    parser.add_argument("--quick", action="store_true", help=f"unless given: {QUICK}")
    parser.add_argument("--skip-sweep", action="store_true")
    parser.add_argument("--skip-anatomy", action="store_true")
    options = parser.parse_args()
    for name, value in (QUICK if options.quick else FULL).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    recordings = read(options.audio_dir)
    options.audio_dir = str(options.audio_dir)
    started = time.perf_counter()
    model = load(options.model)
    load_s = time.perf_counter() - started
    machine = {
        "machine": platform.machine(), "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(), "mlx": version("mlx"), "mlx-audio": version("mlx-audio"),
        "device": model.device, "device_name": device_name(), "model": model.name, "revision": model.revision,
        "dtype": str(model.dtype),
    }  # fmt: skip
    if not options.skip_anatomy:
        take_apart(model, recordings, options, machine)
    if not options.skip_sweep:
        sweep_all(model, recordings, options, machine=machine, load_s=load_s)


if __name__ == "__main__":
    main()
