"""One claim from its jobs to their transcripts, timing rows and states."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog

from dropscribe import pipeline
from dropscribe.asr.timing import BatchTiming
from dropscribe.errors import (
    ClaimLost,
    Duplicate,
    SourceBusy,
    SourceChanged,
    SourceMissing,
    TransientError,
    reading_error,
)
from dropscribe.jobs.database import open_database
from dropscribe.jobs.queue import Queue
from dropscribe.jobs.records import printable
from dropscribe.transcripts.formats import render
from dropscribe.transcripts.names import target_for
from dropscribe.transcripts.publish import publish
from dropscribe.watch.health import examine

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dropscribe.asr.model import Model
    from dropscribe.asr.plan import Plan
    from dropscribe.asr.recognizer import Recognizer, Result
    from dropscribe.audio.client import Reader
    from dropscribe.jobs.database import Database
    from dropscribe.jobs.records import Job, SegmentRow
    from dropscribe.pipeline import File, Transcript
    from dropscribe.settings import Settings, Watch

log = structlog.get_logger("worker")

RETRY_SECONDS = 1.0
ENOUGH_AUDIO = 30 * 60.0  # seconds read; then files not yet begun go back, and long ones give way


@dataclass(frozen=True)
class Engine:
    """What a worker runs its batches with."""

    settings: Settings
    queue: Queue
    recognizer: Recognizer
    model: Model
    plan: Plan
    reader: Reader
    folders: dict[int, Watch]  # by root id
    emit: Callable[..., None]
    pulse: Callable[[], None]


@dataclass
class _Work:
    """One job of the claim."""

    job: Job
    watch: Watch
    params_key: str
    file: File
    twin: int | None = None  # a done job with this content
    twin_here: _Work | None = None  # a job of this claim with this content, read before
    noted: bool = False
    settled: bool = False
    text: str | None = None
    language: str | None = None


@dataclass
class Batch:
    """One claim. ``run`` once."""

    engine: Engine
    claim_id: str
    jobs: Sequence[Job]
    batch_id: int = 0
    timing: BatchTiming = field(default_factory=BatchTiming)
    _side: Database | None = field(default=None, init=False)  # the reading thread's connection

    def run(self) -> None:
        """Do every job of the claim; whatever is not settled at the end goes back to the queue.

        Raises what ``pulse`` raises, ``DatabaseReplaced``, and anything that is no single file's fault.
        """
        engine, started = self.engine, time.perf_counter()
        self.batch_id = engine.queue.open_batch(
            self.claim_id, decoder=engine.plan.decoder, slots=engine.plan.slots,
            model=engine.model.name, device=engine.model.device,
        )  # fmt: skip
        self._works = [self._work(job) for job in self.jobs]
        outcome = "failed"
        try:
            self._decode()
            outcome = "done"
        except TransientError as error:  # the job log is busy or its disk full: no file is at fault
            outcome = error.error_kind
            raise
        except Exception:
            raise
        except BaseException:
            outcome = "told"
            raise
        finally:
            if self._side is not None and outcome == "done":  # else the reading thread may still be at it
                self._side.close()
            if outcome != "failed":  # else the process is about to end, and its supervisor judges who is at fault
                self._close_patiently(outcome, time.perf_counter() - started)

    def _work(self, job: Job) -> _Work:
        settings, model = self.engine.settings, self.engine.model
        watch = self.engine.folders[job.root_id]
        request = pipeline.request_for(watch.language, watch.context, model)
        key = pipeline.params_key(settings, model, request, self.engine.plan)
        work = _Work(job, watch, key, pipeline.File(None, job.path_raw, request))
        work.file.key = work
        return work

    def _decode(self) -> None:
        engine = self.engine
        feed = pipeline.Feed(
            engine.reader,
            [work.file for work in self._works],
            max_segment_seconds=pipeline.longest_segment(engine.settings, engine.model),
            wanted=self._wanted,
            go_on=lambda seconds: seconds < ENOUGH_AUDIO,
            give_way=lambda seconds: seconds >= ENOUGH_AUDIO and self._aside().others_due(self.claim_id),
        )
        results = engine.recognizer.transcribe(
            feed.segments(),
            decoder=engine.plan.decoder,
            slots=engine.plan.slots,
            block_classes=engine.plan.block_classes,
            may_narrow=engine.plan.as_serial,
            kv_budget=engine.settings.decode.kv_budget,
            options=pipeline.options_of(engine.settings),
            timing=self.timing,
            pulse=engine.pulse,
        )
        with contextlib.closing(results):
            for result in results:
                self._keep(result)
                self._settle_ended(feed)
        self._settle_ended(feed)
        for work in self._works:
            if work.twin_here is not None:
                self._settle_twin_here(work)

    # -- in the thread that reads ahead ------------------------------------------------------------------------------

    def _wanted(self, file: File) -> Sequence[SegmentRow] | None:
        """Segments a job has already, or ``None`` where another job's will do."""
        work: _Work = file.key
        job, media = work.job, file.media
        assert media is not None  # noqa: S101 - it has just been opened
        signature = (media.size_bytes, media.mtime_ns)
        if signature != (job.size_bytes, job.mtime_ns) and media.content_hash != job.content_hash:
            raise SourceChanged(
                f"{job.path} holds other bytes than when it was queued; it is queued anew once it is whole"
            )
        aside = self._aside()
        if self.engine.settings.duplicates == "transcribe":
            return aside.saved_segments(job.id, work.params_key)
        work.twin = aside.done_twin(media.content_hash, work.params_key)
        if work.twin is not None:
            return None
        for other in self._works:
            if other is work:
                break
            same = other.file.media is not None and other.file.media.content_hash == media.content_hash
            if same and other.params_key == work.params_key and other.file.error is None:
                work.twin_here = other
                return None
        return aside.saved_segments(job.id, work.params_key)

    def _aside(self) -> Queue:
        """This thread's own connection; SQLite's belong to the thread that made them."""
        if self._side is None:
            self._side = open_database(self.engine.settings.database)
        return Queue(self._side)

    # -- in the thread that decodes and commits ----------------------------------------------------------------------

    def _keep(self, result: Result) -> None:
        """Commit a finished segment at once: a restart goes on after it."""
        file: File = result.segment.key
        work: _Work = file.key
        rows = file.add(result)
        if work.settled:
            return
        try:
            self._note_media(work)
            self.engine.queue.save_segments(work.job, work.params_key, rows)
        except ClaimLost:
            self._drop(work)
            return
        self.engine.emit("progress", job=work.job.id, at_ms=result.segment.end_ms, claim_id=self.claim_id)

    def _settle_ended(self, feed: pipeline.Feed) -> None:
        for work in self._works:
            # A file that broke off waits for its segments under way too: after a retry they need not be done again.
            if work.settled or not work.file.complete:
                continue
            if work.twin_here is None:
                self._settle(work)
        if feed.unread:
            ids = [file.key.job.id for file in feed.unread]
            feed.unread = []
            self.engine.queue.hand_back(self.claim_id, ids)
            for work in self._works:
                work.settled = work.settled or work.job.id in ids
            log.info("handed_back", jobs=len(ids), reason="enough audio for one batch")

    def _settle(self, work: _Work) -> None:
        """Bring one job to the end this batch has for it."""
        work.settled = True
        job, file = work.job, work.file
        state = "queued"
        try:
            self._note_media(work)
            if file.error is not None:
                file.dropped = True
                state = self.engine.queue.fail(job, self._fault(work, file.error))
            elif work.twin is not None and self.engine.settings.duplicates == "skip":
                file.error = Duplicate(f"job {work.twin} has transcribed this content; `duplicates` says to skip it")
                state = self.engine.queue.fail(job, file.error)
            elif work.twin is not None:
                state = self._reuse(work, work.twin)
            elif file.gave_way:
                self.engine.queue.hand_back(self.claim_id, [job.id], behind=True)
            else:
                seconds = file.drained.seconds if file.drained else 0.0
                state = self._publish(work, pipeline.assemble(file.rows, seconds, file.warnings))
        except ClaimLost:
            self._drop(work)
            return
        self._say(work, state)

    def _settle_twin_here(self, work: _Work) -> None:
        """A second file with the same content, once the first has been done; if that failed, it has its own turn."""
        if work.settled:
            return
        work.twin = self.engine.queue.done_twin(_hash_of(work.file), work.params_key)
        if work.twin is not None:
            self._settle(work)

    def _note_media(self, work: _Work) -> None:
        media = work.file.media
        if media is not None and not work.noted:
            self.engine.queue.note_media(work.job, content_hash=media.content_hash)
            work.noted = True

    def _reuse(self, work: _Work, twin: int) -> str:
        """The transcripts of content that another job has the segments of."""
        queue = self.engine.queue
        if queue.done_twin(_hash_of(work.file), work.params_key) != twin:  # pruned or queued again meanwhile
            queue.hand_back(self.claim_id, [work.job.id])
            return "queued"
        known = queue.db.rows("SELECT audio_seconds, warnings FROM jobs WHERE id = ?", (twin,))[0]
        rows = queue.saved_segments(twin, work.params_key)
        transcript = pipeline.assemble(rows, known["audio_seconds"] or 0.0, pipeline.words(known["warnings"]))
        return self._publish(work, transcript, reused_from=twin)

    def _publish(self, work: _Work, transcript: Transcript, *, reused_from: int | None = None) -> str:
        engine, job = self.engine, work.job
        record = pipeline.timing_record(work.file)
        document = pipeline.document(
            work.file, transcript, engine.model, plan=engine.plan, settings=engine.settings, timing=record
        )
        finish = {
            "text": transcript.text,
            "language": transcript.language,
            "model": engine.model.name,
            "revision": engine.model.revision,
            "params_key": work.params_key,
            "audio_seconds": transcript.seconds,
            "batch_id": self.batch_id,
            "warnings": transcript.warnings,
            "reused_from": reused_from,
        }
        try:
            publish(
                engine.queue.db,
                engine.queue,
                job,
                target_for(job.path_raw, work.watch.path, work.watch.output_dir),
                render(document, work.watch.formats),
                finish=finish,
                check_source=lambda: _check_source(work.file, job.path),
                in_commit=lambda: engine.queue.add_timing(job.id, self.batch_id, record),
            )
        except Exception as error:  # by the error's own rule; what says that we must not write is raised on
            return engine.queue.fail(job, self._fault(work, error))
        work.text, work.language = transcript.text, transcript.language
        return "done"

    def _fault(self, work: _Work, error: BaseException) -> BaseException:
        """A file that is gone with its whole folder is not missing: a disk was unplugged, and comes back."""
        if not isinstance(error, SourceMissing):
            return error
        mounted = self.engine.queue.db.rows("SELECT mounted FROM roots WHERE id = ?", (work.job.root_id,))[0]["mounted"]
        if examine(os.fsencode(work.watch.path), was_mounted=bool(mounted)).state == "ok":
            return error
        return SourceBusy(f"{work.job.path}: its folder is not there; it is waited for")

    def _drop(self, work: _Work) -> None:
        """The job is not ours any more: cancelled, superseded, or taken back."""
        work.settled = work.file.dropped = True
        log.info("claim_lost", job=work.job.id)

    def _say(self, work: _Work, state: str) -> None:
        error = work.file.error
        log.info(
            "job_ended", state=state, job=work.job.id, path=printable(work.job.path_raw),
            seconds=round(work.file.drained.seconds, 2) if work.file.drained else None, language=work.language,
            error=None if error is None else str(error),
        )  # fmt: skip
        self.engine.emit("done", job=work.job.id, state=state)

    def _close_patiently(self, outcome: str, wall_s: float) -> None:
        while True:
            try:
                self._close(outcome, wall_s)
            except TransientError as error:
                log.warning("job_log_unavailable", error_kind=error.error_kind, error=str(error))
                time.sleep(RETRY_SECONDS)
                if outcome != "told":
                    self.engine.pulse()
            else:
                return

    def _close(self, outcome: str, wall_s: float) -> None:
        """Facts about the batch and each of its files, and everything not settled back to the queue."""
        queue = self.engine.queue
        while self.timing.unfinished:
            file, spent = self.timing.unfinished.pop()
            file.timing.add(spent)
        queue.hand_back(self.claim_id)
        for work in self._works:
            if work.file.media is not None:
                queue.add_timing(work.job.id, self.batch_id, pipeline.timing_record(work.file))
        t = self.timing
        texts = "\n".join(work.text for work in self._works if work.text is not None)
        queue.close_batch(
            self.batch_id,
            outcome,
            {
                "rows": t.rows,
                "audio_seconds": t.audio_seconds,
                "feature_s": t.feature_s,
                "encode_s": t.encode_s,
                "prefill_s": t.prefill_s,
                "decode_s": t.decode_s,
                "wall_s": wall_s,
                "steps": t.steps,
                "syncs": t.syncs,
                "prompt_tokens": t.prompt_tokens,
                "generated_tokens": t.generated_tokens,
                "peak_memory_bytes": t.peak_memory_bytes,
                "output_digest": hashlib.sha256(texts.encode()).hexdigest()[:12],
            },
        )


def _hash_of(file: File) -> str:
    assert file.media is not None  # noqa: S101 - only files that were opened come here
    return file.media.content_hash


def _check_source(file: File, shown: str) -> None:
    """The bytes that were read are still the ones under that name."""
    media = file.media
    assert media is not None  # noqa: S101
    try:
        now = os.stat(file.path)  # noqa: PTH116 - bytes
    except OSError as error:
        raise reading_error(error, shown) from None
    if (now.st_size, now.st_mtime_ns, now.st_ino) != (media.size_bytes, media.mtime_ns, media.inode):
        raise SourceChanged(f"{shown} changed while it was transcribed; it is queued anew once it is whole")
