"""``bench …``: measurements on this machine."""

from __future__ import annotations

import json
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import Annotated

import typer

from dropscribe import tables
from dropscribe.cli_common import JsonOption, print_line, say

bench_app = typer.Typer(help="Measure this machine.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Put the commands of this module under ``app``."""
    app.add_typer(bench_app, name="bench")


@bench_app.callback()
def _bench() -> None:
    """A group even while it has one command."""


@bench_app.command()
def intake(
    *,
    files: Annotated[int, typer.Option(min=1, help="Files in the tree.")] = 100_000,
    folders: Annotated[int, typer.Option(min=1, help="Folders they are spread over.")] = 1_000,
    burst: Annotated[int, typer.Option(min=1, help="Files dropped at once while it watches.")] = 10_000,
    idle_seconds: Annotated[float, typer.Option(min=1, help="How long idling is measured.")] = 600,
    within: Annotated[
        Path | None, typer.Option("--in", metavar="DIR", help="Make the tree there instead of the temporary folder.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure what watching a large tree costs: scans, memory, a burst, idling."""
    from dropscribe import logs
    from dropscribe.bench.intake import measure

    logs.configure("warning")
    figures = measure(files=files, folders=folders, burst=burst, idle_seconds=idle_seconds, say=say, within=within)
    if as_json:
        print_line(json.dumps(figures, indent=2))
    else:
        rows = [(name, round(value, 3) if isinstance(value, float) else value) for name, value in figures.items()]
        tables.show(("figure", "value"), rows)
