"""``dropscribe jobs …``: what is in the job log, and what is done to it by hand.

Reading loads nothing but sqlite3, so that it answers at once; retry, cancel and prune open the log for writing.
"""

from __future__ import annotations

import os
import re
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from dropscribe import tables
from dropscribe.cli_common import (
    ConfigOption,
    JsonLinesOption,
    JsonOption,
    job_log,
    job_named,
    like_a_filter,
    load,
    print_csv,
    print_line,
    print_records,
    progress,
    record,
    say,
    say_checking,
    say_waiting,
    to_json,
)

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Mapping, Sequence

    from dropscribe.jobs.database import Database

COLUMNS = ("id", "state", "since", "audio", "file", "note")  # what `jobs list` shows when nothing else is asked for

jobs_app = typer.Typer(help="The job log: every file, what became of it and what it cost.", no_args_is_help=True)
JobsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="JOB…", help="Jobs by number, or by path or name of a file.")
]


def register(app: typer.Typer) -> None:
    """Put ``jobs`` under ``app``."""
    app.add_typer(jobs_app, name="jobs")


@jobs_app.callback()
def _filter() -> None:
    like_a_filter()


@jobs_app.command("list")
def jobs_list(
    state: Annotated[list[str] | None, typer.Option(metavar="STATE", help="Only this state; may be repeated.")] = None,
    *,
    kind: Annotated[str | None, typer.Option(metavar="ERROR_KIND", help="Only this kind of error.")] = None,
    folder: Annotated[Path | None, typer.Option(metavar="DIR", help="Only this watched folder.")] = None,
    name: Annotated[str | None, typer.Option(metavar="PART", help="Only paths that hold this.")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="WHEN", help="Ended, or taken in, since 36h, 7d, 2w or 2026-01-31.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="At most this many, newest first; 0: all.")] = 50,
    columns: Annotated[
        str | None, typer.Option(metavar="A,B,…", help="These columns of the jobs table instead, in this order.")
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    jsonl: JsonLinesOption = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Comma-separated values with a heading.")] = False,
) -> None:
    """List jobs, newest first."""
    from dropscribe.jobs import log

    states = tuple(state or ())
    for unknown in set(states) - set(log.STATES):
        raise typer.BadParameter(f"{unknown} is no state; choose from {', '.join(log.STATES)}", param_hint="--state")
    earliest = None if since is None else _moment(since)
    root = None if folder is None else folder.expanduser().absolute()
    with job_log(config) as conn:
        found = [] if conn is None else log.list_jobs(
            conn, states=states, limit=limit or None, root=root, error_kind=kind, contains=name, since=earliest
        )  # fmt: skip
    chosen = None if columns is None else _columns(columns)
    rows = [record(row) for row in found]
    if chosen is not None:
        rows = [{column: row[column] for column in chosen} for row in rows]
    if as_json or jsonl:
        print_records(rows, lines=jsonl)
    elif as_csv:
        names = chosen or [column for column in log.LISTED if column != "path_raw"]
        print_csv(names, ([_flat(row[column]) for column in names] for row in rows))
    elif rows:
        shown = [_job_row(row) for row in rows] if chosen is None else [list(map(_flat, row.values())) for row in rows]
        tables.show(COLUMNS if chosen is None else chosen, shown)
    elif conn:
        filtered = any(option is not None for option in (kind, folder, name, since)) or states
        say("no such job in the log" if filtered else "the job log is empty: drop a file into a watched folder")


def _columns(text: str) -> list[str]:
    from dropscribe.jobs import log

    names = [name.strip() for name in text.split(",") if name.strip()]
    known = [column for column in log.LISTED if column != "path_raw"]
    for unknown in [name for name in names if name not in known] or ([] if names else [text]):
        raise typer.BadParameter(f"{unknown!r} is no column; choose from {', '.join(known)}", param_hint="--columns")
    return names


def _flat(value: object) -> object:
    return ", ".join(map(str, value)) if isinstance(value, list) else value


def _job_row(row: Mapping[str, Any]) -> tuple[object, ...]:
    since = row["finished_at"] or row["started_at"] or row["queued_at"]
    note = f"{row['error_kind']}: {row['error']}" if row["error_kind"] else row["language"]
    return (row["id"], row["state"], tables.local_time(since), tables.seconds(row["audio_seconds"]), row["path"], note)


@jobs_app.command("show")
def jobs_show(
    job: Annotated[str, typer.Argument(metavar="JOB", help="A job's number, or path or name of its file.")],
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one job with its segments and what it cost."""
    from dropscribe.jobs import log

    with job_log(config) as conn:
        if conn is None:
            raise typer.Exit(1)
        row = job_named(conn, job)
        segments = [record(segment) for segment in log.segments(conn, row["id"])]
        timings = [record(timing) for timing in log.timings(conn, row["id"])]
        outputs = [record(output) for output in log.outputs(conn, row["id"])]
    whole = record(row)
    if as_json:
        print_line(to_json({**whole, "segments": segments, "timings": timings, "outputs": outputs}))
        return
    text = whole.pop("text", None)
    for key, value in whole.items():
        if value not in (None, [], ""):
            print_line(f"{key:16} {value}")
    for output in outputs:
        print_line(f"{output['format']:16} {output['path']}")
    if timings:
        print_line()
        figures = [key for key in timings[0] if key not in ("job_id", "path", "state", "language")]
        tables.show(("timing", *(f"batch {timing.get('batch_id')}" for timing in timings)),
                    [(key, *(_figure(timing[key]) for timing in timings)) for key in figures])  # fmt: skip
    if segments:
        print_line()
        columns = ("from", "to", "tokens", "end", "text")
        tables.show(columns, [
            (tables.seconds(row["start_ms"] / 1000), tables.seconds(row["end_ms"] / 1000), row["tokens"],
             row["finish_reason"], row["text"]) for row in segments
        ])  # fmt: skip
    if text:
        print_line(f"\n{text}")


def _figure(value: Any) -> Any:
    return f"{value:.3f}" if isinstance(value, float) else value


@jobs_app.command("retry")
def jobs_retry(
    jobs: JobsArgument = None,
    *,
    failed: Annotated[bool, typer.Option("--failed", help="Every failed or quarantined job.")] = False,
    kind: Annotated[str | None, typer.Option(metavar="ERROR_KIND", help="Every job that ended in this.")] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="NAME_OR_DIR", help="Transcribe them here and now with this model instead."),
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Queue jobs again as if new; a waiting one starts at once. A done one gets its transcript written again.

    The earlier transcript stays until the new one is whole. With --model the daemon is not asked: the files are
    transcribed by this command, the daemon may go on with others, and a job that fails stays as it was.
    """
    from dropscribe.jobs import log

    if not (jobs or failed or kind):
        raise typer.BadParameter("name jobs by number or path, or use --failed or --kind", param_hint="JOB")
    with job_log(config) as conn:
        if conn is None:
            raise typer.Exit(1)
        chosen = _named(conn, jobs or ())
        if failed:
            chosen += log.list_jobs(conn, states=("failed", "quarantined"), limit=None)
        if kind:
            chosen += log.list_jobs(conn, states=log.FINISHED, error_kind=kind, limit=None)
    if model is not None:
        _with_model(config, model, chosen, as_json=as_json)
    _by_hand(config, chosen, "retry", as_json=as_json, said="queued again", strict=bool(jobs))


@jobs_app.command("cancel")
def jobs_cancel(
    jobs: JobsArgument = None,
    *,
    queued: Annotated[bool, typer.Option("--queued", help="Everything that waits for its turn.")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """End waiting or running jobs; the files stay, and `jobs retry` undoes it.

    One that was done before it was queued again is done as before, with its earlier transcript.
    """
    from dropscribe.jobs import log

    if not (jobs or queued):
        raise typer.BadParameter("name jobs by number or path, or use --queued", param_hint="JOB")
    with job_log(config) as conn:
        if conn is None:
            raise typer.Exit(1)
        chosen = _named(conn, jobs or ())
        if queued:
            chosen += log.list_jobs(conn, states=("queued",), limit=None)
    _by_hand(config, chosen, "cancel", as_json=as_json, said="cancelled", strict=bool(jobs))


def _with_model(config: Path | None, model: str, chosen: Sequence[Mapping[str, Any]], *, as_json: bool) -> NoReturn:
    """Transcribe again in this process; exit 1 if one of them is as it was."""
    from dropscribe import logs
    from dropscribe.rerun import rerun

    loaded = load(config, model)
    logs.configure(loaded.log.level)
    done = []
    with progress(len(chosen)) as on_progress:
        for result in rerun(
            loaded,
            [row["id"] for row in chosen],
            on_progress=on_progress,
            waiting_for=say_waiting,
            checking=say_checking,
        ):
            done.append(result)
            if result.error_kind:
                say(f"left as it was: {result.job}  {result.path} ({result.error_kind}: {result.error})")
            elif not as_json:
                print_line(f"transcribed again: {result.job}  {result.transcript_path}")
    if as_json:
        print_records([asdict(result) for result in done], lines=False)
    raise typer.Exit(1 if any(result.error_kind for result in done) else 0)


def _named(conn: sqlite3.Connection, names: Sequence[str]) -> list[dict[str, Any]]:
    """The jobs that were named on the command line; one that is not there ends the command before it did anything."""
    return [job_named(conn, name) for name in names]


def _by_hand(
    config: Path | None, chosen: Sequence[Mapping[str, Any]], action: str, *, as_json: bool, said: str, strict: bool
) -> None:
    """Retry or cancel, and say of each job whether that was possible; ``strict``: exit 1 if it was not."""
    from dropscribe.jobs.database import open_database
    from dropscribe.jobs.queue import Queue

    jobs = {row["id"]: row for row in chosen}
    db = open_database(load(config).database)
    try:
        queue = Queue(db)
        changed = set(queue.retry(jobs) if action == "retry" else queue.cancel(jobs))
        as_before = _done(db, changed) if action == "cancel" else set()
    finally:
        db.close()
    if as_json:
        print_records([{"id": job, "path": row["path"], "changed": job in changed} for job, row in jobs.items()],
                      lines=False)  # fmt: skip
    else:
        for job in changed:
            kept = " (done as before, with its earlier transcript)" if job in as_before else ""
            print_line(f"{said}: {job}  {jobs[job]['path']}{kept}")
        for job in jobs.keys() - changed:
            say(f"left as it is: {job}  {jobs[job]['path']} ({_why_left(jobs[job], action)})")
        if not jobs:
            say("no such job in the log")
    raise typer.Exit(1 if strict and len(changed) < len(jobs) else 0)


def _done(db: Database, ids: Iterable[int]) -> set[int]:
    return {job for job in ids if db.rows("SELECT 1 FROM jobs WHERE id = ? AND state = 'done'", (job,))}


def _why_left(row: Mapping[str, Any], action: str) -> str:
    if action == "cancel":
        return f"it is {row['state']}"
    return "it is being worked on" if row["state"] == "running" else "there is a newer job for this file"


@jobs_app.command("prune")
def jobs_prune(
    older_than: Annotated[str, typer.Option(metavar="AGE", help="Jobs that ended longer ago: 90d, 12w, 36h.")],
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Drop text, segments and timings of old jobs. Their rows stay while the files do, so nothing is done twice."""
    from dropscribe.jobs.database import open_database
    from dropscribe.jobs.queue import Queue
    from dropscribe.jobs.records import utcnow

    age = _age(older_than)
    path = load(config).database
    with job_log(config) as conn:
        if conn is None:
            raise typer.Exit
    db = open_database(path)
    try:
        pruned = Queue(db).prune(utcnow() - age, dry_run=dry_run, reachable=_reachable)
    finally:
        db.close()
    if as_json:
        print_line(to_json({"dry_run": dry_run, "stripped": pruned.stripped, "removed": pruned.removed}))
        return
    would = "would drop" if dry_run else "dropped"
    print_line(f"{would} text, segments and timings of {len(pruned.stripped)} jobs whose files are still there")
    print_line(f"{would} {len(pruned.removed)} jobs whose files are gone")


def _reachable(folder: str, was_mounted: bool) -> bool:
    """Whether a watched folder is there, so that a file missing in it is really gone."""
    from dropscribe.watch.health import examine

    health = examine(os.fsencode(folder), was_mounted=was_mounted)
    return health.state == "ok" and not health.empty


def _age(text: str) -> timedelta:
    found = re.fullmatch(r"(\d{1,5})\s*([hdw])", text.strip().lower())
    if not found:
        raise typer.BadParameter(f"{text!r} is no age; write 36h, 90d or 12w", param_hint="--older-than")
    return timedelta(hours=int(found[1]) * {"h": 1, "d": 24, "w": 168}[found[2]])


def _moment(text: str) -> str:
    """A moment as the log spells it: an age, or a local date or time."""
    from datetime import datetime

    from dropscribe.jobs.records import iso, utcnow

    try:
        return iso(datetime.fromisoformat(text))  # without an offset it is local time
    except ValueError:
        pass
    try:
        return iso(utcnow() - _age(text))
    except typer.BadParameter:
        message = f"{text!r} is no time; write 36h, 7d, 2w, 2026-01-31 or 2026-01-31T18:00"
        raise typer.BadParameter(message, param_hint="--since") from None
