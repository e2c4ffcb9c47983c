"""Checks of mlx, the model and a real transcription: by the running daemon if there is one, else by a child of ours.

Asking the daemon means just that: a five-second clip is put into its queue, in a folder of its own, and the daemon
transcribes it like any other file, in the surroundings it has. The job and the folder are removed afterwards; the batch
stays in the log as a fact.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dropscribe.after import DOCTOR
from dropscribe.errors import DropscribeError, ModelNotFetched
from dropscribe.jobs.database import open_database, transaction
from dropscribe.jobs.queue import Queue
from dropscribe.jobs.records import FINISHED
from dropscribe.service import clip
from dropscribe.service import status as service_status
from dropscribe.service.doctor import Finding, ok, problem, skipped, warning
from dropscribe.worker_process import how_it_died

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dropscribe.jobs.database import Database
    from dropscribe.settings import Settings

PROBE = (sys.executable, "-m", "dropscribe.service.probe")
PROBE_SECONDS = 600.0
ANSWER_SECONDS = 120.0
PRIORITY = 1000  # before everything that waits
REMEDIES = {
    "mlx": "install dropscribe again with the right extra: on Linux `[cpu]` or `[cuda13]`; on macOS a native Python",
    "model": "connect to the network for the first run, which fetches it, or set `model` to a folder that has it",
    "decoder": 'set decode.decoder = "bulk-sync"',
    "transcription": "`dropscribe transcribe-batch FILE` shows more; `dropscribe demo` tries the bundled model",
}


def model(settings: Settings, *, command: Sequence[str] = PROBE) -> Iterator[Finding]:
    """mlx, the model's files, then the transcription."""
    running = service_status.is_held(settings.database)
    fine = True
    for finding in _probe(settings, command, transcribe=not running):
        fine = fine and finding.status not in ("problem", "skipped")
        yield finding
    if running and fine:
        yield from ask_the_daemon(settings)


def _probe(settings: Settings, command: Sequence[str], *, transcribe: bool) -> Iterator[Finding]:
    step = "mlx"
    with tempfile.TemporaryFile("w+") as said:
        try:
            done = subprocess.run(
                [*command, *([] if transcribe else ["--no-transcription"])],
                input=settings.model_dump_json() + "\n", stdout=subprocess.PIPE, stderr=said, text=True,
                timeout=PROBE_SECONDS, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            yield problem("model", f"no answer within {PROBE_SECONDS:.0f} s", REMEDIES["transcription"])
            return
        said.seek(0)
        last_words = (said.read().strip().splitlines() or [""])[-1]
    for line in done.stdout.splitlines():
        event = json.loads(line)
        step = event["step"]
        if event["state"] == "problem" and event["error_kind"] == ModelNotFetched.error_kind:
            yield warning(step, event["error"], "`dropscribe transcribe-batch FILE` fetches it now; then look again")
            yield skipped("transcription", "there is no model yet")
            return
        if event["state"] == "problem":
            yield problem(step, f"{event['error']} ({event['error_kind']})", REMEDIES[step])
            return
        if event["state"] == "ok":
            yield from _SAY[step](event)
    if done.returncode != 0:
        yield problem(step, f"the process that tried it {how_it_died(done.returncode)}: {last_words}", REMEDIES[step])


def _mlx(event: dict[str, Any]) -> Iterator[Finding]:
    yield ok("mlx", f"mlx {event['mlx']} on {event['device']}, mlx-audio {event['mlx_audio']}")


def _model(event: dict[str, Any]) -> Iterator[Finding]:
    yield ok("model", f"{event['name']} (revision {event['revision'][:12]}) at {event['path']}")


def _decoder(event: dict[str, Any]) -> Iterator[Finding]:
    """The self-check's verdict, where the true batch is in question."""
    if event["fallback"]:
        yield warning("decoder", event["fallback"], "nothing must be done: the texts are right, only slower to come")
    elif event["slots"] is not None:
        exact = "the bits of one row alone" if event["as_serial"] else "rows independent of one another"
        yield ok("decoder", f"self-check: {event['decoder']} with {event['slots']} rows, {exact}")


def _transcription(event: dict[str, Any]) -> Iterator[Finding]:
    yield _judge(event["text"], f"in {event['time']:.2f} s (RTF {event['rtf']:.3f})")
    if event["same_as_serial"]:
        yield ok("decoder", f"{event['decoder']}: the same tokens as one row after another")
    elif event["exactness"] == "row":
        yield warning("decoder", f"{event['decoder']}: a token differs from one row after another",
                      'decode.exactness = "row" allows that in near-ties; "serial" does not')  # fmt: skip
    else:
        yield problem(
            "decoder",
            f"{event['decoder']} gives other tokens than one row after another on this machine",
            'set decode.decoder = "serial", and report this with the mlx version above',
        )


_SAY = {"mlx": _mlx, "model": _model, "decoder": _decoder, "transcription": _transcription}


def _judge(text: str | None, how: str) -> Finding:
    share = clip.heard(text)
    told = f"five seconds of speech {how}: {text!r}"
    if share >= clip.ENOUGH:
        return ok("transcription", told)
    return warning(
        "transcription",
        f"{told}, where {clip.SAID!r} was said",
        "try another model, or a language under [[watch]]; the clip is English by a synthetic voice",
    )


# -- by the running daemon ---------------------------------------------------------------------------------------------


def ask_the_daemon(
    settings: Settings, *, seconds: float = ANSWER_SECONDS, look_every: float = 0.2
) -> Iterator[Finding]:
    """Put a clip into the queue and wait for its job to end."""
    try:
        with closing(open_database(settings.database)) as db:
            if Queue(db).service()["paused"]:
                yield skipped("transcription", "the service is paused; `dropscribe service resume`, then again")
                return
            _sweep(db, settings.database.parent)
            folder = Path(tempfile.mkdtemp(prefix=DOCTOR, dir=settings.database.parent))
            try:
                yield _ask(db, folder, seconds, look_every)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
    except DropscribeError as error:
        yield problem("transcription", f"the service could not be asked: {error}", "see the job log's own finding")


def _forget(db: Database, root: int) -> None:
    """A job that is being done loses its claim, and its result with it: nobody waits for it."""
    with transaction(db):
        db.execute("DELETE FROM jobs WHERE root_id = ?", (root,))
        db.execute("DELETE FROM roots WHERE id = ?", (root,))


def _sweep(db: Database, within: Path) -> None:
    """What doctors that were killed left behind; others may be at work now."""
    for row in db.rows("SELECT id, path FROM roots WHERE path GLOB ?", (f"*/{DOCTOR}????????",)):
        folder = Path(row["path"])
        if folder.parent == within and _age(folder) > 2 * ANSWER_SECONDS:
            _forget(db, row["id"])
            shutil.rmtree(folder, ignore_errors=True)


def _age(folder: Path) -> float:
    """Seconds since something was made in it; for ever, if it is gone."""
    try:
        return time.time() - folder.stat().st_mtime
    except OSError:
        return float("inf")


def _ask(db: Database, folder: Path, seconds: float, look_every: float) -> Finding:
    queue = Queue(db)
    file = folder / "doctor.wav"
    file.write_bytes(clip.clip())
    status = file.stat()
    root = queue.ensure_root(folder)
    try:
        job = queue.enqueue(root, os.fsencode(file), status.st_size, status.st_mtime_ns, priority=PRIORITY)
        started = time.monotonic()
        row = None
        while time.monotonic() - started < seconds:
            row = db.rows("SELECT state, text, error_kind, error FROM jobs WHERE id = ?", (job,))[0]
            if row["state"] in FINISHED:
                break
            time.sleep(look_every)
        waited = time.monotonic() - started
        busy = db.rows("SELECT count(*) AS n FROM jobs WHERE state = 'running' AND id <> ?", (job,))[0]["n"]
        service_problem = queue.service()["problem"]
    finally:  # Ctrl-C too
        _forget(db, root)
    if row is not None and row["state"] == "done":
        return _judge(row["text"], f"by the running service, {waited:.1f} s after it was asked")
    if row is not None and row["state"] in FINISHED:
        return problem(
            "transcription", f"the service could not: {row['error']} ({row['error_kind']})", REMEDIES["transcription"]
        )
    if service_problem:
        return problem("transcription", f"the service does not transcribe: {service_problem}", "do what that says")
    if busy:
        return warning("transcription", f"no answer in {seconds:.0f} s: the service is busy with {busy} files",
                       "ask again when it has less to do; `dropscribe stats` says when")  # fmt: skip
    return problem(
        "transcription",
        f"no answer in {seconds:.0f} s, though the service has nothing else to do",
        "`dropscribe service logs` may say why; `dropscribe service stop`, then `start`",
    )
