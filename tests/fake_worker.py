"""A worker that speaks the protocol and transcribes nothing: what a file's *name* says decides what happens to it.

``crash``, ``hang``, ``fail`` and ``busy`` in a name; everything else is done. Environment: ``FAKE_WORKER`` may be
``model`` (no usable model), ``crash`` (dies at once), ``deaf`` (ignores SIGTERM), ``useless`` (leaves without a claim).
Never imported by a test; run as a script, with the package on its path.
"""

# ruff: noqa: T201, PTH118, PTH119, PTH120, PTH123 - it talks on stdout, and paths are bytes here

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import uuid

from dropscribe.errors import ClaimLost, DecodeFailed, SourceBusy, reading_error
from dropscribe.jobs.database import open_database
from dropscribe.jobs.queue import Queue

MODE = os.environ.get("FAKE_WORKER", "")
leaving = threading.Event()


def say(event: str, **fields: object) -> None:
    print(json.dumps({"event": event, **fields}), flush=True)


def lifeline() -> None:
    sys.stdin.read()
    if MODE == "deaf":
        return
    leaving.set()


def work(queue: Queue, job: object, batch: int) -> None:
    name = os.path.basename(job.path_raw)
    if b"crash" in name:
        with open(os.path.join(os.path.dirname(job.path_raw), f".dropscribe-{job.claim_id}-0.tmp".encode()), "wb"):
            pass  # it dies while it publishes
        os.kill(os.getpid(), signal.SIGSEGV)
    while b"hang" in name:
        time.sleep(1)
    try:
        with open(job.path_raw, "rb") as file:
            text = file.read().decode("latin-1")
    except OSError as error:
        queue.fail(job, reading_error(error, job.path))
        return
    if b"slow" in name:
        for _ in range(200):
            if leaving.is_set():
                return
            say("progress", job=job.id, at_ms=0)
            time.sleep(0.1)
    if b"fail" in name:
        queue.fail(job, DecodeFailed("the container is broken"))
    elif b"busy" in name:
        queue.fail(job, SourceBusy("cannot be opened"))
    else:
        queue.finish_fields(
            job, text=text, language="English", model="fake", params_key="k", audio_seconds=1.0, batch_id=batch
        )
        say("done", job=job.id)


def main() -> int:
    database = json.loads(sys.stdin.readline())["database"]
    threading.Thread(target=lifeline, daemon=True).start()
    signal.signal(signal.SIGTERM, (lambda *_: None) if MODE == "deaf" else (lambda *_: leaving.set()))
    if MODE == "model":
        say("problem", error_kind="model_missing", message="no such model: connect once, or give a local directory")
        return 3
    if MODE == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    say("ready")
    if MODE == "useless":
        return 0
    db = open_database(database)
    queue = Queue(db)
    print("this is not an event", flush=True)
    while not leaving.is_set():
        claim = uuid.uuid4().hex
        jobs = queue.claim(claim, 4)
        if not jobs:
            say("idle")
            leaving.wait(0.1)
            continue
        batch = queue.open_batch(claim)
        say("claimed", claim_id=claim, jobs=[job.id for job in jobs], seconds=1.0)
        for job in jobs:
            if leaving.is_set():
                break
            try:
                work(queue, job, batch)
            except ClaimLost:
                continue
        queue.hand_back(claim)
        queue.close_batch(batch, "done", {})
        say("batch", batch=batch)
    say("leaving", reason="told")
    return 0


sys.exit(main())
