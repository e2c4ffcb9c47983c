"""How far cue times are from the truth: held-out clips joined with known gaps, transcribed, compared.

    python tools/measure_cues.py --minutes 10 --seed 1

The truth. Every clip begins where it was put; inside a clip a sentence begins after one of its longest silences (as
many as it has sentences, less one), looked for in the clean clip by a plain threshold, not by the code under test. One
that begins in mid-sentence is compared with the even pace of that sentence. Times without pauses are measured too, by
making the same cues again from segments whose pauses were forgotten: that is how far off `estimated` may be.
"""

from __future__ import annotations

import argparse
import csv
import difflib
import json
import re
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import soundfile

import dropscribe
from dropscribe.jobs.records import SegmentRow
from dropscribe.transcripts.cues import cues
from dropscribe.transcripts.join import join

HELDOUT = Path(__file__).parents[1] / "tests" / "data" / "heldout"
RATE = 16_000


def words_of(text):
    return re.findall(r"[\w']+", text.lower())


def sentences_of(text):
    return [part for part in re.split(r"(?<=[.!?])\s+(?=[A-Z0-9\"'])", text.strip()) if part]


def clip_truth(samples, count):
    """Where each of ``count`` sentences of a clean clip begins, in seconds; None if that cannot be told."""
    frames = samples[: len(samples) // 160 * 160].reshape(-1, 160)
    level = np.sqrt((frames**2).mean(axis=1))
    loud = level > 10 ** (-40 / 20) * np.abs(samples).max()
    first = int(np.argmax(loud))
    last = len(loud) - int(np.argmax(loud[::-1]))
    edges = np.flatnonzero(np.diff(loud[first:last].astype(int)))
    silent = [(first + a + 1, first + b + 1) for a, b in edges.reshape(-1, 2)]
    longest = sorted(sorted(silent, key=lambda s: s[0] - s[1])[: count - 1])
    if len(longest) < count - 1:
        return None
    return [first / 100, *(b / 100 for _, b in longest)], last / 100


def build(minutes, seed, noise_db, gaps):
    """Samples, and for every word of the reference: (word, truth in seconds, whether a sentence begins with it)."""
    rng = np.random.default_rng(seed)
    with (HELDOUT / "transcripts.tsv").open(encoding="utf-8", newline="") as file:
        texts = {row["file"]: row["text"] for row in csv.DictReader(file, delimiter="\t")}
    names = sorted(texts)
    parts, reference, at = [], [], 0
    while at < minutes * 60 * RATE:
        for name in rng.permutation(names):
            samples, rate = soundfile.read(HELDOUT / name, dtype="float32")
            assert rate == RATE
            gap = int(rng.uniform(*gaps) * RATE)
            sentences = sentences_of(texts[name])
            begins, end = clip_truth(samples, len(sentences))
            borders = [*begins, end]
            for number, sentence in enumerate(sentences):
                said = words_of(sentence)
                letters = np.cumsum([0, *(len(word) for word in said)])
                span = borders[number + 1] - borders[number]
                for place, word in enumerate(said):
                    when = (at + gap) / RATE + borders[number] + span * letters[place] / letters[-1]
                    reference.append((word, when, place == 0))
            parts += [np.zeros(gap, np.float32), samples]
            at += gap + len(samples)
            if at >= minutes * 60 * RATE:
                break
    audio = np.concatenate(parts)
    audio += rng.normal(0, 10 ** (noise_db / 20), len(audio)).astype(np.float32)
    return audio, reference


def compare(found, reference):
    """For each cue whose first word is known: (error in seconds, measured, begins a sentence)."""
    said, first = [], []
    for cue in found:
        first.append(len(said))
        said += words_of(cue.text)
    matcher = difflib.SequenceMatcher(None, said, [word for word, _, _ in reference], autojunk=False)
    place = {a + i: b + i for a, b, size in matcher.get_matching_blocks() for i in range(size)}
    return [
        (cue.start_ms / 1000 - reference[place[at]][1], cue.start_measured, reference[place[at]][2])
        for cue, at in zip(found, first, strict=True)
        if at in place
    ]


def summary(errors):
    if not errors:
        return {"cues": 0}
    off = np.abs([error for error, _, _ in errors])
    return {
        "cues": len(off),
        "within_0.5_s": round(float((off <= 0.5).mean()), 4),
        "median_s": round(float(np.median(off)), 3),
        "p95_s": round(float(np.quantile(off, 0.95)), 3),
        "worst_s": round(float(off.max()), 3),
    }


def merged(rows, seconds):
    """Neighbouring segments as one of up to ``seconds``: what a model that takes longer ones would give."""
    out = []
    for row in rows:
        if out and row.end_ms - out[-1].start_ms <= seconds * 1000:
            last = out[-1]
            pauses = [*last.pauses, *row.pauses]
            both = [pause for pause in pauses if row.start_ms in pause]  # the cut lay inside a pause: one again
            if len(both) == 2:
                pauses = sorted([*(p for p in pauses if p not in both), (both[0][0], both[1][1])])
            out[-1] = replace(last, end_ms=row.end_ms, text=join((last.text, row.text)), pauses=tuple(pauses))
        else:
            out.append(row)
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--noise-db", type=float, default=-60, help="level of the noise floor laid over everything")
    parser.add_argument("--model", default=str(Path(dropscribe.__file__).parent / "demo" / "model"))
    parser.add_argument("--gaps", type=float, nargs=2, default=(0.3, 2.5), help="shortest and longest gap, seconds")
    parser.add_argument("--segment-seconds", type=float, help="longest segment; default: what the model says")
    parser.add_argument("--merge", type=float, metavar="SECONDS", help="join segments to longer ones before that")
    parser.add_argument("--keep", type=Path, help="write segments and truth there as JSON")
    parser.add_argument("--again", type=Path, help="measure what --keep wrote; nothing is transcribed")
    args = parser.parse_args()
    if args.again:
        kept = json.loads(args.again.read_text())
        rows = [SegmentRow(**{**row, "pauses": tuple(map(tuple, row["pauses"]))}) for row in kept["rows"]]
        reference, seconds = kept["reference"], kept["seconds"]
    else:
        from dropscribe.batch import transcribe_batch
        from dropscribe.settings import Settings

        audio, reference = build(args.minutes, args.seed, args.noise_db, args.gaps)
        settings = Settings(model=args.model, decode={"max_segment_seconds": args.segment_seconds})
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "joined.wav"
            soundfile.write(path, audio, RATE)
            (result,) = transcribe_batch(settings, [path])
        rows, seconds = list(result.segments), result.duration
    if args.keep:
        kept = {"rows": [vars(row) for row in rows], "reference": reference, "seconds": seconds}
        args.keep.write_text(json.dumps(kept))
    if args.merge:
        rows = merged(rows, args.merge)
    started = time.perf_counter()
    errors = compare(cues(rows, seconds), reference)
    blind = compare(cues([replace(row, pauses=None) for row in rows], seconds), reference)
    print(f"{time.perf_counter() - started:.2f} s for two times the cues", file=sys.stderr)
    print(json.dumps({
        "seconds": seconds, "segments": len(rows),
        "measured": summary([e for e in errors if e[1]]),
        "measured, at a sentence": summary([e for e in errors if e[1] and e[2]]),
        "estimated": summary([e for e in errors if not e[1]]),
        "estimated, had there been no pauses": summary([e for e in blind if not e[1]]),
    }, indent=2))  # fmt: skip


if __name__ == "__main__":
    main()
