"""Transcribe an evaluation set the way ``transcribe-batch`` does, and say how wrong it is; compare two such runs."""

from __future__ import annotations

import json
import operator
import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from dropscribe import batch, pipeline
from dropscribe.asr.prefill import PREFILL_STEP
from dropscribe.asr.timing import BatchTiming
from dropscribe.bench import score
from dropscribe.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from dropscribe.asr.model import Model
    from dropscribe.asr.plan import Plan
    from dropscribe.audio.client import Reader
    from dropscribe.bench.evalset import Entry, EvalSet
    from dropscribe.bench.report import Report
    from dropscribe.settings import Settings

SCORING = 1  # raised when the same texts would be scored differently: such runs cannot be compared
RATES = ("wer", "cer")
COLUMNS = (
    "kind", "files", "audio_s", "wer", "wer_low", "wer_high", "wer_mean", "wer_mean_low", "wer_mean_high",
    "cer", "cer_low", "cer_high", "time_s", "rtf",
)  # fmt: skip
FILE_COLUMNS = ("file", "kind", "seconds", "words", "wer", "substitutions", "deletions", "insertions", "cer", "rtf")


@dataclass
class Pass:
    """One pass over some files of a set. Grows while it runs."""

    files: list[tuple[Entry, pipeline.File]]
    timing: BatchTiming = field(default_factory=BatchTiming)  # of all batches; peak_memory_bytes: the highest
    wall_s: float = 0.0

    @property
    def audio_s(self) -> float:
        """Of the files that were transcribed whole."""
        return sum(entry.seconds for entry, file in self.files if done(entry, file))


def go(
    over: Pass,
    settings: Settings,
    model: Model,
    plan: Plan,
    reader: Reader,
    *,
    prefill_step: int = PREFILL_STEP,
    on_progress: Callable[[str, float], None] | None = None,
) -> Iterator[None]:
    """Fill ``over`` batch by batch; its wall time lies between two ``mx.synchronize()``."""
    mx.synchronize()
    started = time.perf_counter()
    files = [file for _, file in over.files]
    try:
        for _, timing, _ in batch.decoded(
            settings, model, plan, reader, files, on_progress=on_progress, prefill_step=prefill_step
        ):
            mx.synchronize()
            over.timing.add(timing)
            over.timing.syncs += timing.syncs
            over.timing.peak_memory_bytes = max(over.timing.peak_memory_bytes, timing.peak_memory_bytes)
            yield
    finally:
        over.wall_s = time.perf_counter() - started


def a_pass(folder: Path, entries: Sequence[Entry], model: Model) -> Pass:
    """The files of a pass that has not begun."""
    request = pipeline.request_for(None, None, model)
    return Pass([(entry, pipeline.File(entry.file, os.fsencode(folder / entry.file), request)) for entry in entries])


def trouble(entry: Entry, file: pipeline.File) -> str | None:
    """Why a file has no text that counts, if so."""
    if file.error is not None:
        return str(file.error)
    if file.media is not None and file.media.content_hash != entry.sha256:
        return f"{entry.file}: not the audio that the set was built with; build the set again"
    return None


def done(entry: Entry, file: pipeline.File) -> bool:
    """Whether it was transcribed whole and is what the set says."""
    return file.drained is not None and file.complete and trouble(entry, file) is None


def heard(file: pipeline.File) -> str:
    """The text of a file that is done."""
    seconds = file.drained.seconds if file.drained else 0.0
    return pipeline.assemble(file.rows, seconds, file.warnings).text


def evaluate(
    report: Report,
    chosen: EvalSet,
    *,
    settings: Settings,
    model: Model,
    plan: Plan,
    reader: Reader,
    on_progress: Callable[[str, float], None] | None = None,
) -> Iterator[None]:
    """Transcribe a set and fill ``report``; what is complete is in it however this ends.

    The first file is transcribed once before, so that what a first pass compiles is in no figure.
    """
    report.decoder, report.slots = plan.decoder, plan.slots
    report.summary.update({"set": chosen.digest, "scoring": SCORING})
    whole = a_pass(chosen.folder, chosen.entries, model)
    try:
        warm_up = a_pass(chosen.folder, chosen.entries[:1], model)
        yield from go(warm_up, settings, model, plan, reader)
        report.summary["warm_up_s"] = warm_up.wall_s
        yield from go(whole, settings, model, plan, reader, on_progress=on_progress)
    finally:
        _fill(report, whole)


def _fill(report: Report, whole: Pass) -> None:
    rows = [_row(entry, file) for entry, file in whole.files if done(entry, file)]
    failed = {entry.file: why for entry, file in whole.files if (why := trouble(entry, file)) is not None}
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    report.rows = [_together(kind, [row for row in rows if row["kind"] == kind]) for kind in kinds]
    if len(kinds) > 1:
        # long files are made of the short ones: drawn together they would promise more than they can hold
        report.rows.append(_together("all", rows, intervals=False))
    report.audio_seconds = whole.audio_s
    report.summary.update(
        {
            "decoder": report.decoder,
            "batch_size": report.slots,
            "wall_s": whole.wall_s or None,
            "x_realtime": whole.audio_s / whole.wall_s if whole.wall_s else None,
            "peak_memory_mb": whole.timing.peak_memory_bytes / 1e6,
            "files_done": len(rows),
            "files_failed": len(failed),
            "failed": failed,
            "files": rows,
        }
    )


def _row(entry: Entry, file: pipeline.File) -> dict[str, Any]:
    text = heard(file)
    by_words, by_characters = score.word_edits(entry.text, text), score.character_edits(entry.text, text)
    return {
        "file": entry.file,
        "kind": entry.group,
        "seconds": entry.seconds,
        "words": by_words.length,
        "wer": by_words.rate,
        "cer": by_characters.rate,
        "substitutions": by_words.substitutions,
        "deletions": by_words.deletions,
        "insertions": by_words.insertions,
        "word_edits": by_words,
        "character_edits": by_characters,
        "time_s": file.timing.compute_s,
        "rtf": file.timing.compute_s / entry.seconds,
        "text": entry.text,
        "heard": text,
        "warnings": sorted(file.warnings),
    }


def _together(kind: str, rows: Sequence[dict[str, Any]], *, intervals: bool = True) -> dict[str, Any]:
    audio, took = (sum(row[name] for row in rows) for name in ("seconds", "time_s"))
    together: dict[str, Any] = {"kind": kind, "files": len(rows), "audio_s": audio, "time_s": took, "rtf": took / audio}
    for name, column in (("wer", "word_edits"), ("cer", "character_edits")):
        edits = [score.Edits(*row[column]) for row in rows]
        for suffix, rate in (("", score.corpus_rate(edits)), ("_mean", score.mean_rate(edits))):
            together[f"{name}{suffix}"] = rate.value
            together[f"{name}{suffix}_low"] = rate.low if intervals else None
            together[f"{name}{suffix}_high"] = rate.high if intervals else None
    return together


def earlier(path: Path) -> dict[str, Any]:
    """A run that ``--output`` wrote. Raises ``ConfigError`` for anything else."""
    try:
        document = json.loads(path.read_text("utf-8"))
        if document["kind"] != "eval" or document["summary"]["scoring"] != SCORING:
            raise ValueError  # noqa: TRY301 - one message for all of it
        if not {"measured_at", "machine"} <= document.keys():
            raise ValueError  # noqa: TRY301
        for row in document["summary"]["files"]:
            (
                row["kind"],
                row["file"],
                row["time_s"],
                row["wer"],
                row["cer"],
                score.Edits(*map(operator.index, row["word_edits"])),
                score.Edits(*map(operator.index, row["character_edits"])),
            )
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; name what --output wrote") from None
    except (ValueError, KeyError, TypeError):
        raise ConfigError(f"{path} is no run of this version's `bench eval run`; name what --output wrote") from None
    return dict(document)


def check_same_set(before: dict[str, Any], digest: str) -> None:
    """Raises ``ConfigError`` when a run was over other files than those of ``digest``."""
    if before["summary"].get("set") != digest:
        raise ConfigError(
            f"the earlier run was over another set ({before['summary'].get('set')}, now {digest}); "
            "compare runs over the same files and texts"
        )


def compare(before: dict[str, Any], report: Report) -> None:
    """Put the difference of ``report`` to an earlier run into it: file by file, by kind, with paired intervals.

    Only files that both have count, which matters when one was interrupted.
    """
    then = {row["file"]: row for row in before["summary"]["files"]}
    both = [(then[row["file"]], row) for row in report.summary["files"] if row["file"] in then]
    kinds = list(dict.fromkeys(now["kind"] for _, now in both))
    compared = {kind: _compared([pair for pair in both if pair[1]["kind"] == kind]) for kind in kinds}
    report.summary["compared"] = {"measured_at": before["measured_at"], "machine": before["machine"], "kinds": compared}
    report.summary["compared_files"] = [
        {"file": now["file"], "kind": now["kind"]}
        | {name: None if now[name] is None else now[name] - old[name] for name in RATES}
        for old, now in both
    ]
    for kind, found in compared.items():
        for name in RATES:
            report.summary[f"{kind}: {name} now − then"] = in_words(found[name])


def _compared(pairs: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> dict[str, Any]:
    found: dict[str, Any] = {"files": len(pairs)}
    for name, column in (("wer", "word_edits"), ("cer", "character_edits")):
        before, after = ([score.Edits(*row[column]) for row in side] for side in zip(*pairs, strict=True))
        change = score.difference(before, after)
        moved = [new.total - old.total for old, new in zip(before, after, strict=True)]
        found[name] = {
            **change.as_dict(),
            "verdict": score.verdict(change),
            "files_better": sum(one < 0 for one in moved),
            "files_worse": sum(one > 0 for one in moved),
        }
    now_s, then_s = (sum(row["time_s"] for row in side) for side in reversed(list(zip(*pairs, strict=True))))
    found["time_ratio"] = now_s / then_s if then_s else None
    return found


def in_words(change: dict[str, Any]) -> str:
    """One rate's difference on one line."""
    if change["value"] is None:
        return "cannot be compared"
    between = "" if change["low"] is None else f" ({change['low']:+.4f} to {change['high']:+.4f})"
    moved = f"{change['files_better']} files better, {change['files_worse']} worse"
    return f"{change['value']:+.4f}{between}: {change['verdict']}; {moved}"
