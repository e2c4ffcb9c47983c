"""``transcribe-batch``: files to texts without folders, queue or job log."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dropscribe import pipeline
from dropscribe.asr.model import check, load
from dropscribe.asr.prefill import PREFILL_STEP
from dropscribe.asr.recognizer import Recognizer
from dropscribe.asr.timing import BatchTiming
from dropscribe.audio.client import Reader
from dropscribe.errors import DropscribeError
from dropscribe.gpu_lock import GpuLock
from dropscribe.transcripts.formats import Document, Rendered, render

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from dropscribe.asr.model import Model
    from dropscribe.asr.plan import Plan
    from dropscribe.jobs.records import SegmentRow
    from dropscribe.pipeline import File
    from dropscribe.settings import Settings


@dataclass(frozen=True)
class FileResult:
    """One file's outcome; ``error_kind`` is set when there is no text."""

    file: str
    text: str | None
    language: str | None
    time: float  # seconds of computing on it: its share of every pass it took part in
    rtf: float | None  # time / duration
    duration: float | None  # seconds of audio
    batch_time: float  # wall seconds of the batch it was in
    batch_rtf: float | None  # batch_time / audio of the batch
    batch_size: int  # rows decoded side by side
    segments: tuple[SegmentRow, ...] = ()
    tokens: tuple[int, ...] = ()
    warnings: tuple[str, ...] = ()
    error_kind: str | None = None
    error: str | None = None
    document: Document | None = None

    def rendered(self, formats: Sequence[str] = ("txt", "json")) -> list[Rendered]:
        """The transcript files of a result that has a text."""
        return [] if self.document is None else render(self.document, formats)


def transcribe_batch(
    settings: Settings,
    paths: Sequence[Path],
    *,
    batch_size: int | None = None,
    decoder: str | None = None,
    language: str | None = None,
    context: str | None = None,
    on_progress: Callable[[str, float], None] | None = None,
    waiting_for: Callable[[str], None] = lambda _holder: None,
    checking: Callable[[], None] = lambda: None,
) -> Iterator[FileResult]:
    """Transcribe ``paths`` in batches of up to 4 files a row side by side; results come batch by batch, in order.

    ``on_progress(file, seconds)`` is told of every finished segment. Raises ``ModelError`` and ``ConfigError``; what is
    wrong with a file is in its result.
    """
    check(settings.model)  # nobody should wait for the GPU with a wrong name
    with GpuLock("dropscribe transcribe-batch", waiting_for=waiting_for), Reader(settings.reader) as reader:
        model = load(settings.model)
        request = pipeline.request_for(language, context, model)
        plan = pipeline.plan_for(settings, model, decoder=decoder, batch_size=batch_size, checking=checking)
        files = [pipeline.File(str(path), os.fsencode(path), request) for path in paths]
        for done, timing, wall in decoded(settings, model, plan, reader, files, on_progress=on_progress):
            for file in done:
                yield _outcome(file, settings, model, plan, wall=wall, audio=timing.audio_seconds)


def decoded(
    settings: Settings,
    model: Model,
    plan: Plan,
    reader: Reader,
    files: Sequence[File],
    *,
    on_progress: Callable[[str, float], None] | None = None,
    prefill_step: int = PREFILL_STEP,
) -> Iterator[tuple[Sequence[File], BatchTiming, float]]:
    """Read and decode ``files`` batch by batch: the files of each, its figures, and its wall seconds."""
    recognizer = Recognizer(model, prefill_step=prefill_step)
    for at in range(0, len(files), 4 * plan.slots):
        some = files[at : at + 4 * plan.slots]
        timing, started = BatchTiming(), time.perf_counter()
        feed = pipeline.Feed(reader, some, max_segment_seconds=pipeline.longest_segment(settings, model))
        results = recognizer.transcribe(
            feed.segments(),
            decoder=plan.decoder,
            slots=plan.slots,
            block_classes=plan.block_classes,
            may_narrow=plan.as_serial,
            kv_budget=settings.decode.kv_budget,
            options=pipeline.options_of(settings),
            timing=timing,
        )
        with contextlib.closing(results):
            for result in results:
                result.segment.key.add(result)
                if on_progress is not None:
                    on_progress(str(result.segment.key.key), result.segment.seconds)
        yield some, timing, time.perf_counter() - started


def _outcome(file: File, settings: Settings, model: Model, plan: Plan, *, wall: float, audio: float) -> FileResult:
    record = pipeline.timing_record(file)
    seconds = file.drained.seconds if file.drained else None
    common = {
        "file": file.key,
        "time": file.timing.compute_s,
        "rtf": record["rtf"],
        "duration": seconds,
        "batch_time": wall,
        "batch_rtf": wall / audio if audio else None,
        "batch_size": plan.slots,
    }
    if file.error is not None or file.media is None:
        kind = file.error.error_kind if isinstance(file.error, DropscribeError) else "internal"
        return FileResult(text=None, language=None, error_kind=kind, error=str(file.error), **common)
    transcript = pipeline.assemble(file.rows, seconds or 0.0, file.warnings)
    document = pipeline.document(file, transcript, model, plan=plan, settings=settings, timing=record)
    return FileResult(
        text=transcript.text,
        language=transcript.language,
        segments=transcript.rows,
        tokens=file.tokens,
        warnings=transcript.warnings,
        document=document,
        **common,
    )
