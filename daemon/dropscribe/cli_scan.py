"""``scan --dry-run``: what the watcher would make of every file there now."""

from __future__ import annotations

from collections import Counter
from contextlib import closing, nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from dropscribe.cli_common import (
    ConfigOption,
    JsonLinesOption,
    JsonOption,
    like_a_filter,
    load,
    print_line,
    print_records,
    say,
    to_json,
)
from dropscribe.errors import ConfigError

if TYPE_CHECKING:
    from dropscribe.watch.preview import Preview


def register(app: typer.Typer) -> None:
    """Put the command under ``app``."""
    app.command("scan")(scan)


def scan(
    *,
    config: ConfigOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be queued, and why not.")] = False,
    all_files: Annotated[
        bool, typer.Option("--all", "-a", help="Also name what is no audio or video by its name, or hidden.")
    ] = False,
    as_json: JsonOption = False,
    jsonl: JsonLinesOption = False,
) -> None:
    """Say for every file in the watched folders whether it would be queued, and if not, why not."""
    if not dry_run:
        raise ConfigError("`dropscribe run` scans by itself; `dropscribe scan --dry-run` says what it would do")
    loaded = load(config).for_watching()
    from dropscribe.jobs.database import connect_readonly
    from dropscribe.watch.preview import preview

    like_a_filter()
    log = closing(connect_readonly(loaded.database)) if loaded.database.exists() else nullcontext()
    found: list[dict[str, object]] = []
    count: Counter[str] = Counter()
    with log as conn:
        for one in preview(loaded, conn):
            count[one.reason] += 1
            if not all_files and one.reason in ("not_media", "own_output", "hidden", "temporary", "system"):
                continue
            if as_json:
                found.append(one._asdict())
            elif jsonl:
                print_line(to_json(one._asdict()))
            else:
                _show(one)
    if as_json:
        print_records(found, lines=False)
    say("; ".join(f"{number} {reason}" for reason, number in count.most_common()) or "nothing there")


def _show(one: Preview) -> None:
    job = "" if one.job is None else f"  (job {one.job})"
    print_line(f"{'queue' if one.takes else 'leave'}  {one.reason:<15}  {one.path}{job}")
