"""Jobs once more with another model, in the foreground: ``dropscribe jobs retry --model``.

The daemon has one model, so this is not its work. The audio is read and decoded here, as ``transcribe-batch`` does it,
and the job log is not touched meanwhile: the job stays what it was, with its earlier transcript. Only when the new one
is whole is the job held, for as long as it takes to put the new files and rows in the place of the old. Whatever goes
wrong before that, a kill included, leaves everything as it was.
"""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dropscribe import pipeline
from dropscribe.after import run_after
from dropscribe.asr.model import check, load
from dropscribe.audio.client import Reader
from dropscribe.batch import decoded
from dropscribe.errors import DropscribeError, SourceChanged, reading_error
from dropscribe.gpu_lock import GpuLock
from dropscribe.jobs import log
from dropscribe.jobs.database import connect_readonly, open_database, transaction
from dropscribe.jobs.queue import Queue
from dropscribe.jobs.records import printable, utcnow
from dropscribe.settings import Watch
from dropscribe.transcripts.formats import render
from dropscribe.transcripts.names import target_for
from dropscribe.transcripts.publish import publish

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from datetime import datetime

    from dropscribe.asr.model import Model
    from dropscribe.asr.plan import Plan
    from dropscribe.asr.timing import BatchTiming
    from dropscribe.pipeline import File
    from dropscribe.settings import Settings


@dataclass(frozen=True)
class Rerun:
    """What became of one job; with an error it is as it was."""

    job: int
    path: str
    transcript_path: str | None = None
    error_kind: str | None = None
    error: str | None = None


@dataclass(frozen=True)
class _Engine:
    settings: Settings
    model: Model
    plan: Plan
    queue: Queue
    folders: Mapping[int, Watch]


def rerun(
    settings: Settings,
    job_ids: Sequence[int],
    *,
    on_progress: Callable[[str, float], None] | None = None,
    waiting_for: Callable[[str], None] = lambda _holder: None,
    checking: Callable[[], None] = lambda: None,
) -> Iterator[Rerun]:
    """Transcribe the files of finished jobs with ``settings.model`` and put the result in the place of what they have.

    Raises ``ModelError``, ``ConfigError``, and what opening the job log raises.
    """
    check(settings.model)  # nobody should wait for the GPU with a wrong name
    with GpuLock("dropscribe jobs retry", waiting_for=waiting_for), Reader(settings.reader) as reader:
        db = open_database(settings.database)
        try:
            model = load(settings.model)
            plan = pipeline.plan_for(settings, model, checking=checking)
            engine = _Engine(settings, model, plan, Queue(db), _folders(settings, db.rows))
            files = [file for job_id in dict.fromkeys(job_ids) for file in _file(engine, job_id)]
            began = utcnow()
            for done, timing, wall in decoded(settings, model, engine.plan, reader, files, on_progress=on_progress):
                claim_id = uuid.uuid4().hex
                batch_id = _note_batch(engine, claim_id, began, timing, wall)
                for file in done:
                    yield _settle(engine, file, claim_id, batch_id)
                began = utcnow()
        finally:
            db.close()


def _folders(settings: Settings, rows: Callable[..., Any]) -> dict[int, Watch]:
    watches = {printable(os.fsencode(watch.path)): watch for watch in settings.watch}
    return {
        row["id"]: watches.get(row["path"]) or Watch(path=row["path"]) for row in rows("SELECT id, path FROM roots")
    }


class _Key(dict[str, Any]):
    """A job's row; named by its path in progress lines."""

    def __str__(self) -> str:
        return str(self["path"])


def _file(engine: _Engine, job_id: int) -> Iterator[File]:
    for row in engine.queue.db.rows(
        "SELECT id, root_id, path, path_raw, content_hash FROM jobs WHERE id = ?", (job_id,)
    ):
        watch = engine.folders[row["root_id"]]
        yield pipeline.File(
            _Key(dict(row)), row["path_raw"], pipeline.request_for(watch.language, watch.context, engine.model)
        )


def _note_batch(engine: _Engine, claim_id: str, began: datetime, timing: BatchTiming, wall: float) -> int:
    """The batch as a fact, open for no instant that another process could see."""
    plan, model, db = engine.plan, engine.model, engine.queue.db
    with transaction(db):
        batch_id = Queue(db, now=lambda: began).open_batch(
            claim_id, decoder=plan.decoder, slots=plan.slots, model=model.name, device=model.device
        )
        names = ("rows", "audio_seconds", "feature_s", "encode_s", "prefill_s", "decode_s", "steps", "syncs",
                 "prompt_tokens", "generated_tokens", "peak_memory_bytes")  # fmt: skip
        figures = {name: getattr(timing, name) for name in names}
        engine.queue.close_batch(batch_id, "done", {**figures, "wall_s": wall})
    return batch_id


def _settle(engine: _Engine, file: File, claim_id: str, batch_id: int) -> Rerun:
    row, record = file.key, pipeline.timing_record(file)
    try:
        if file.media is not None:
            engine.queue.add_timing(row["id"], batch_id, record)
        path = _replace(engine, file, claim_id, batch_id, record)
    except DropscribeError as error:
        return Rerun(row["id"], row["path"], error_kind=error.error_kind, error=str(error))
    except Exception as error:  # a file's own trouble, whatever it is, must not end the others
        return Rerun(row["id"], row["path"], error_kind="internal", error=repr(error))
    _run_after(engine, row["id"])
    return Rerun(row["id"], row["path"], transcript_path=path)


def _replace(engine: _Engine, file: File, claim_id: str, batch_id: int, record: Mapping[str, Any]) -> str:
    row, queue, media, settings = file.key, engine.queue, file.media, engine.settings
    if file.error is not None or media is None:
        raise file.error or SourceChanged(f"{row['path']} was not read")
    if row["content_hash"] is not None and media.content_hash != row["content_hash"]:
        raise SourceChanged(f"{row['path']} holds other bytes than this job is about; the daemon takes it as a new job")
    watch = engine.folders[row["root_id"]]
    transcript = pipeline.assemble(file.rows, file.drained.seconds if file.drained else 0.0, file.warnings)
    document = pipeline.document(file, transcript, engine.model, plan=engine.plan, settings=settings, timing=record)
    taken = queue.take(row["id"], claim_id)
    if taken is None:
        raise SourceChanged(f"job {row['id']} is queued, running, or there is a newer one for {row['path']}")
    job, before = taken
    try:
        queue.note_media(job, content_hash=media.content_hash)
        queue.save_segments(job, document.params_key, transcript.rows)
        paths = publish(
            queue.db, queue, job, target_for(job.path_raw, watch.path, watch.output_dir),
            render(document, watch.formats),
            finish={
                "text": transcript.text, "language": transcript.language, "model": engine.model.name,
                "revision": engine.model.revision, "params_key": document.params_key,
                "audio_seconds": transcript.seconds, "batch_id": batch_id, "warnings": transcript.warnings,
                "reused_from": None,
            },
            check_source=lambda: _check_source(file),
        )  # fmt: skip
    except BaseException:
        queue.put_back(job, before, document.params_key)
        raise
    return printable(next(iter(paths.values())))


def _check_source(file: File) -> None:
    media = file.media
    assert media is not None  # noqa: S101
    try:
        now = os.stat(file.path)  # noqa: PTH116 - bytes
    except OSError as error:
        raise reading_error(error, str(file.key)) from None
    if (now.st_size, now.st_mtime_ns, now.st_ino) != (media.size_bytes, media.mtime_ns, media.inode):
        raise SourceChanged(f"{file.key} changed while it was transcribed")


def _run_after(engine: _Engine, job_id: int) -> None:
    if engine.settings.after.command is None:
        return
    conn = connect_readonly(engine.settings.database)
    try:
        job, outputs = log.get_job(conn, job_id), log.outputs(conn, job_id)
    finally:
        conn.close()
    if job is not None:
        run_after(engine.settings.after, job, outputs)
