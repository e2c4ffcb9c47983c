"""The commands about the job log: what is in it, what it says, and what is done to it by hand.

Reading loads nothing but sqlite3, so that it answers at once; retry, cancel and prune open the log for writing.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dropscribe import tables
from dropscribe.cli_common import (
    ConfigOption,
    JsonLinesOption,
    JsonOption,
    job_log,
    print_line,
    print_records,
    record,
    say,
    to_json,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

jobs_app = typer.Typer(help="Look into the job log.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Put the commands of this module under ``app``."""
    app.add_typer(jobs_app, name="jobs")


@jobs_app.callback()
def _filter() -> None:
    """Commands that print lists end like any Unix filter when `head` has seen enough."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)


@jobs_app.command("list")
def jobs_list(
    state: Annotated[list[str] | None, typer.Option(metavar="STATE", help="Only this state; may be repeated.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most this many, newest first.")] = 50,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    jsonl: JsonLinesOption = False,
) -> None:
    """List jobs, newest first."""
    from dropscribe.jobs import log

    states = tuple(state or ())
    unknown = [name for name in states if name not in log.STATES]
    if unknown:
        raise typer.BadParameter(f"{unknown[0]} is no state; choose from {', '.join(log.STATES)}", param_hint="--state")
    with job_log(config) as conn:
        rows = log.list_jobs(conn, states=states, limit=limit) if conn else []
    if as_json or jsonl:
        print_records([record(row) for row in rows], lines=jsonl)
    elif rows:
        columns = ("id", "state", "since", "audio", "file", "note")
        tables.show(columns, [_job_row(row) for row in rows])
    elif conn:
        say("no such job in the log" if states else "the job log is empty: drop a file into a watched folder")


def _job_row(row: Mapping[str, Any]) -> tuple[object, ...]:
    since = row["finished_at"] or row["started_at"] or row["queued_at"]
    note = f"{row['error_kind']}: {row['error']}" if row["error_kind"] else row["language"]
    return (row["id"], row["state"], tables.local_time(since), tables.seconds(row["audio_seconds"]), row["path"], note)


@jobs_app.command("show")
def jobs_show(
    job: Annotated[str, typer.Argument(metavar="JOB", help="A job's number, or the path of its file.")],
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one job with its segments and what it cost."""
    from dropscribe.jobs import log

    with job_log(config) as conn:
        row = log.get_job(conn, Path(job).expanduser() if job.startswith("~") else job) if conn else None
        if conn is None or row is None:
            say(f"no job {job} in the log; `dropscribe jobs list` shows them")
            raise typer.Exit(1)
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
