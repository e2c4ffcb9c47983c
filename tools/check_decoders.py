#!/usr/bin/env python
"""The recognizer's long runs, too long for the test suite. Exit 1 if anything is not as it must be.

    python tools/check_decoders.py --batches 1000 --seed 7      random batches, trained and random weights
    python tools/check_decoders.py --batches 200 --device gpu   the same on a GPU
    python tools/check_decoders.py --batches 1000 --decoder batched     rows in the slots of the true batch
    python tools/check_decoders.py --logits 1000                a row's logits over random neighbours, bit for bit
    python tools/check_decoders.py --noise                      all clips, clean and in noise, in 2 to 16 slots
    python tools/check_decoders.py --minutes 60                 a long recording: WER against its clips, memory
    python tools/check_decoders.py --files 500                  short files of different lengths: memory stays flat

In a batch every token of every row is compared with what the row says alone: by the oracle for the trained model (on
the CPU), by the serial schedule for random weights.
Run from a checkout with the development tools installed. The seed is printed; the same seed gives the same batches.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import mlx.core as mx
import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))


def check_batches(name: str, batches: int, number: int, decoder: str) -> None:
    """Raises on the first batch in which a row differs, made as small as it can be."""
    from asr_support import Plan, plans, pool, run_plan

    count = rows = tokens = steps = 0
    started = time.perf_counter()

    @seed(number)
    @settings(
        max_examples=batches,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
    )
    @given(plan=plans(len(pool(name))))
    def run(plan: Plan) -> None:
        nonlocal count, rows, tokens, steps
        timing = run_plan(name, plan, decoder)
        count, rows, tokens, steps = (
            count + 1,
            rows + len(plan.places),
            tokens + timing.generated_tokens,
            steps + timing.steps,
        )

    run()
    took = time.perf_counter() - started
    print(f"{name}: {count} batches, {rows} rows, {tokens} tokens in {steps} steps, all equal; {took:.0f} s")


def check_logits(name: str, companies_: int, number: int) -> None:
    """Raises on the first set of neighbours over which the row's logits are not those it has alone."""
    from asr_support import Company, check_company, companies

    sizes: Counter[int] = Counter()

    @seed(number)
    @settings(max_examples=companies_, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(company=companies())
    def run(company: Company) -> None:
        check_company(name, company)
        sizes[company.slots] += 1

    run()
    print(f"{name}: {sizes.total()} sets of neighbours in {min(sizes)} to {max(sizes)} slots, the same bits in all")


def check_noise(number: int) -> None:
    """Raises at the first number of slots at which a clip says something else than alone."""
    from asr_support import check_slots, noisy_prefilled, texts

    rows = [noisy_prefilled(clip, decibels) for clip in texts() for decibels in (None, 20, 10, 0)]
    rng = np.random.default_rng(number)
    for slots in range(2, 17):
        shuffled = [rows[at] for at in rng.permutation(len(rows))]
        tokens = check_slots(shuffled, slots, may_narrow=bool(slots % 2)).generated_tokens
        print(f"{slots} slots: {len(rows)} rows, {tokens} tokens, all as serial", flush=True)


def check_long(minutes: float, number: int, decoder: str) -> bool:
    """One recording of that length."""
    from asr_long import transcribe_recording, write_recording

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "long.wav"
        recording = write_recording(path, minutes, number)
        run = transcribe_recording(path, recording, decoder=decoder)
    reasons = ", ".join(sorted(run.reasons))
    print(f"{run.seconds / 60:.1f} min, {len(recording.clips)} clips, {run.segments} segments, ends: {reasons}")
    print(f"WER {run.wer:.2%}, its clips singly {run.single_wer:.2%}; segments tile the file: {run.tiles}")
    print(f"{run.wall_s:.0f} s, RTF {run.wall_s / run.seconds:.3f}")
    memory = f"RSS {run.rss / 1e6:.0f} MB, {run.rss_growth / 1e6:.0f} MB over the model"
    print(f"{memory}; MLX peak {run.timing.peak_memory_bytes / 1e6:.0f} MB")
    return run.tiles and run.wer <= run.single_wer + 0.01 and run.rss_growth < 300e6


def check_files(files: int, number: int) -> bool:
    """Short rows of different lengths in batches of 20: what is held after each, first against last."""
    from asr_long import rss_bytes
    from asr_support import RATE, random_model, source, transcribed

    model, rng = random_model("fp32"), np.random.default_rng(number)
    audio = np.concatenate([source("clip001"), source("clip018")])
    lengths = rng.permutation(np.linspace(0.1, 6.0, files) * RATE).astype(int)
    held: list[tuple[int, int]] = []
    for at in range(0, files, 20):
        transcribed(model, [audio[:n] for n in lengths[at : at + 20]])
        model.encoder.kept.clear()  # type: ignore[attr-defined]
        held.append((mx.get_active_memory(), rss_bytes()))
    settled = max(len(held) // 5, 1)
    active = max(a for a, _ in held) - held[0][0]
    resident = max(r for _, r in held[settled:]) - max(r for _, r in held[:settled])
    print(f"{files} files: MLX holds {active / 1e6:+.1f} MB more than after the first {min(files, 20)}")
    print(f"RSS {resident / 1e6:+.1f} MB over the highest of the first fifth, {held[-1][1] / 1e6:.0f} MB at the end")
    return active < 1e6 and resident < 60e6


def main() -> int:
    parser = argparse.ArgumentParser(description="The recognizer's long runs.")
    parser.add_argument("--batches", type=int, default=0, help="random batches for each model")
    parser.add_argument("--models", default="tiny,fp32,bf16,4-bit", help="of tiny, fp32, bf16, 4-bit, 4-bit bf16")
    parser.add_argument("--minutes", type=float, default=0, help="length of a long recording")
    parser.add_argument("--files", type=int, default=0, help="short rows of different lengths")
    parser.add_argument("--logits", type=int, default=0, help="sets of neighbours of a row for each model")
    parser.add_argument("--noise", action="store_true", help="all held-out clips at 20, 10 and 0 dB and without noise")
    parser.add_argument(
        "--decoder",
        default="bulk-sync",
        choices=("bulk-sync", "batched", "serial"),
        help="for --minutes and --batches",
    )
    parser.add_argument("--seed", type=int, default=None, help="default: a new one, printed")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    args = parser.parse_args()
    if not (args.batches or args.logits or args.noise or args.minutes or args.files):
        parser.error("nothing to do: give --batches, --logits, --noise, --minutes or --files")
    if args.batches and args.decoder == "serial":
        parser.error("serial has no batches; --decoder bulk-sync or batched")
    mx.set_default_device(mx.gpu if args.device == "gpu" else mx.cpu)
    number = secrets.randbelow(2**32) if args.seed is None else args.seed
    print(f"seed {number}, {mx.default_device()}", flush=True)
    good = True
    for name in args.models.split(",") if args.batches else ():
        check_batches(name, args.batches, number, args.decoder)
    for name in args.models.split(",") if args.logits else ():
        check_logits(name, args.logits, number)
    if args.noise:
        check_noise(number)
    if args.minutes:
        good &= check_long(args.minutes, number, args.decoder)
    if args.files:
        good &= check_files(args.files, number)
    print("as it must be" if good else "NOT as it must be")
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
