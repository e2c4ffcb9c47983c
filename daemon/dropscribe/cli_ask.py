"""Questions to the job log: ``search``, ``stats`` and ``ui``. The first two load nothing but sqlite3."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dropscribe import tables
from dropscribe.cli_common import (
    ConfigOption,
    JsonLinesOption,
    JsonOption,
    job_log,
    like_a_filter,
    load,
    print_line,
    print_records,
    say,
    to_json,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

WORDS_SHOWN = {True: ("\x1b[1;33m", "\x1b[0m"), False: ("[", "]")}  # around a hit: on a terminal, in a pipe


def register(app: typer.Typer) -> None:
    """Put the commands of this module under ``app``."""
    app.command("search")(search)
    app.command("stats")(stats)
    app.command("ui")(ui)


def search(
    words: Annotated[
        list[str], typer.Argument(metavar="WORDS…", help="All of them must be there; case does not matter.")
    ],
    *,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most this many places, newest first.")] = 20,
    exact: Annotated[
        bool, typer.Option("--exact", help='WORDS are an FTS5 query: a OR b, pre*, NEAR(a b, 5), "a phrase".')
    ] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    jsonl: JsonLinesOption = False,
) -> None:
    """Search what was said; every hit has its file and its time."""
    from dropscribe.jobs import log

    like_a_filter()
    with job_log(config) as conn:
        try:
            hits = [] if conn is None else log.search(conn, " ".join(words), limit=limit, exact=exact)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="WORDS") from None
    if as_json or jsonl:
        print_records([_hit_record(hit) for hit in hits], lines=jsonl)
        return
    start, end = WORDS_SHOWN[sys.stdout.isatty()]
    shown = None
    for hit in hits:
        if hit["job_id"] != shown:
            print_line(("\n" if shown is not None else "") + f"{hit['path']}  (job {hit['job_id']})")
            for path in hit["same_content"]:
                print_line(f"{path}  (the same content)")
            shown = hit["job_id"]
        snippet = " ".join(hit["snippet"].split()).replace(log.MARK_START, start).replace(log.MARK_END, end)
        print_line(f"  {tables.clock(hit['start_ms'] / 1000):>9}  {snippet}")
    if conn and not hits:
        say("nothing found; all words must be in one stretch of a transcript")


def _hit_record(hit: Mapping[str, Any]) -> dict[str, Any]:
    """A hit with its snippet as plain text, and where in it the words are."""
    from dropscribe.jobs import log

    parts = re.split(f"[{log.MARK_START}{log.MARK_END}]", hit["snippet"])  # every other part is a hit
    hits, at = [], 0
    for number, part in enumerate(parts):
        if number % 2:
            hits.append([at, at + len(part)])
        at += len(part)
    return {**hit, "snippet": "".join(parts), "hits": hits}


def stats(
    days: Annotated[int, typer.Option(min=1, help="So many days, up to the newest result.")] = 14,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Throughput, real-time factors by day and model, the backlog and how long it may take, failures by kind."""
    from dropscribe.jobs.statistics import statistics

    like_a_filter()
    with job_log(config) as conn:
        found = None if conn is None else statistics(conn, days=days)
    if as_json:
        print_line(to_json(found))
    elif found is not None:
        _show_stats(found)


def ui(
    port: Annotated[int, typer.Option(min=0, max=65535, help="On 127.0.0.1; 0: any that is free.")] = 8001,
    *,
    open_browser: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
    config: ConfigOption = None,
) -> None:
    """Show the job log in a browser, read-only, on this machine only, until Ctrl-C. Needs the extra `ui`."""
    from dropscribe.ui import serve

    def said(address: str) -> None:
        print_line(address)
        if open_browser:
            import webbrowser

            webbrowser.open(address)

    serve(load(config).database, port, said)


def _show_stats(found: Mapping[str, Any]) -> None:
    print_line("  ".join(f"{count} {state}" for state, count in found["states"].items() if count) or "no job yet")
    print_line(_backlog_line(found["backlog"]))
    spans = ("audio_seconds", "decoded_seconds", "busy_s", "time", "wall_s")

    def shown(rows: Sequence[Mapping[str, Any]], *names: str) -> list[list[object]]:
        cell = {**dict.fromkeys(spans, tables.span), "rtf": tables.ratio}
        return [[cell[name](row[name]) if name in cell else row[name] for name in names] for row in rows]

    throughput = [row for row in found["throughput"] if row["files"] or row["busy_s"]]
    for title, columns, rows in (
        ("Throughput", ("last", "files", "audio", "decoded", "busy", "RTF"),
         shown(throughput, "period", "files", "audio_seconds", "decoded_seconds", "busy_s", "rtf")),
        ("By day (UTC) and model", ("day", "model", "done", "failed", "skipped", "audio", "decoded", "time", "RTF"),
         shown(found["days"], "day", "model", "done", "failed", "skipped", "audio_seconds", "decoded_seconds", "time",
               "rtf")),
        ("By model", ("model", "decoder", "batch size", "batches", "decoded", "busy", "RTF"),
         shown(found["models"], "model", "decoder", "slots", "batches", "audio_seconds", "wall_s", "rtf")),
        ("Failures", ("kind", "files"), shown(found["failures"], "error_kind", "files")),
    ):  # fmt: skip
        if rows:
            print_line()
            tables.show(columns, rows, title=title)


def _backlog_line(backlog: Mapping[str, Any]) -> str:
    """The backlog in one line that says what it is built on."""
    if not backlog["files"]:
        return "backlog: nothing"
    parts = [f"backlog: {backlog['files']} files"]
    if backlog["audio_seconds"] is not None:
        parts.append(f"{tables.span(backlog['audio_seconds'])} of audio")
    if backlog["unread"]:
        parts.append(f"{backlog['unread']} of them not opened yet, so guessed by size")
    if backlog["due_later"]:
        parts.append(f"{backlog['due_later']} waiting to be tried again")
    if backlog["eta_seconds"] is None:
        parts.append("no estimate before a batch is done")
    else:
        spread = backlog["eta_range"]
        between = f" ({tables.span(spread[0])} to {tables.span(spread[1])})" if spread else ""
        parts.append(f"about {tables.span(backlog['eta_seconds'])}{between} at the pace of the last batches")
    if backlog["blocked"]:
        parts.append(f"but nothing moves: {backlog['blocked']}")
    return ", ".join(parts)
