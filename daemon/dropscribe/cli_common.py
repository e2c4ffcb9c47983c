"""What the command modules share: options, settings, the job log for reading, and how results are printed."""

from __future__ import annotations

import json
import signal
import sys
import threading
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dropscribe import settings

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

NAMES_SHOWN = 10

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config", envvar=settings.CONFIG_ENV, show_envvar=True, metavar="FILE", help="Read this file instead."
    ),
]
ModelOption = Annotated[
    str | None, typer.Option("--model", metavar="NAME_OR_DIR", help="Hugging Face id or local directory.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document.")]
OutputOption = Annotated[
    Path | None, typer.Option("--output", metavar="FILE", help="Write the JSON document there too.")
]
JsonLinesOption = Annotated[bool, typer.Option("--jsonl", help="One JSON object a line.")]

INTERRUPTED = 130  # as a shell says of a program that SIGINT ended

FormatOption = Annotated[
    list[str] | None,
    typer.Option("--format", metavar="NAME", help="txt, json, srt, vtt or md; may be repeated, or a,b."),
]


def formats_of(given: Sequence[str] | None, default: Sequence[str]) -> tuple[str, ...]:
    """The formats named on the command line, each once."""
    names = [name.strip() for value in given or () for name in value.split(",") if name.strip()]
    for unknown in set(names) - set(settings.FORMATS):
        raise typer.BadParameter(f"{unknown!r} is no format; choose from {', '.join(settings.FORMATS)}",
                                 param_hint="--format")  # fmt: skip
    return tuple(dict.fromkeys(names or default))


def config_path(config: Path | None) -> Path:
    """Where the settings are read from."""
    return config if config is not None else settings.default_config_path()


def load(config: Path | None, model: str | None = None, **tables: dict[str, Any]) -> settings.Settings:
    """The settings in force; flags that were not given (``None``) set nothing. Raises ``ConfigError``."""
    flags: dict[str, Any] = {} if model is None else {"model": model}
    for name, values in tables.items():
        flags[name] = {key: value for key, value in values.items() if value is not None}
    return settings.load_settings(config, flags)


@contextmanager
def job_log(config: Path | None) -> Iterator[sqlite3.Connection | None]:
    """The job log for reading; None, and a word about it, when there is none yet."""
    from dropscribe.jobs.database import connect_readonly

    path = load(config).database
    if not path.exists():
        say(f"no job log yet ({path}): `dropscribe run` starts one")
        yield None
        return
    with closing(connect_readonly(path)) as conn:
        yield conn


def job_named(conn: sqlite3.Connection | None, name: str) -> dict[str, Any]:
    """The job that was named on the command line; exit status 1 when there is none, or several files have the name."""
    from dropscribe.jobs.naming import find

    row, several = (None, []) if conn is None else find(conn, name)
    if row is not None:
        return row
    if several:
        say(f"{len(several)} files are called {name}; name one by its number or its path:")
        for one in several[:NAMES_SHOWN]:
            say(f"  {one['id']}  {one['path']}")
        if len(several) > NAMES_SHOWN:
            say(f"  … `dropscribe jobs list --name {name}` shows all")
    else:
        say(f"no job {name} in the log; `dropscribe jobs list` shows them")
    raise typer.Exit(1)


def like_a_filter() -> None:
    """End quietly, as any Unix filter does, when `head` has seen enough; for commands that only print."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def record(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as JSON can hold it: names as printed, not as bytes."""
    return {key: value for key, value in row.items() if not isinstance(value, bytes)}


def print_records(records: Sequence[Mapping[str, Any]], *, lines: bool) -> None:
    """Records as one JSON array, or as one object a line."""
    if lines:
        for one in records:
            print_line(to_json(one))
    else:
        print_line(json.dumps(records, ensure_ascii=False, indent=2))


def print_csv(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Rows as CSV under their column names; None is an empty field."""
    import csv

    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    sys.stdout.flush()


def to_json(value: object) -> str:
    """One line."""
    return json.dumps(value, ensure_ascii=False)


def print_line(text: str = "") -> None:
    """A result. Flushed, so that whoever reads the pipe has it at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def say(text: str) -> None:
    """Anything that is not a result. A stderr that is full or gone costs the words only."""
    with suppress(OSError):
        sys.stderr.write(text + "\n")


@contextmanager
def progress(files: int) -> Iterator[Callable[[str, float], None] | None]:
    """A line on stderr that says how far it is, if that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False))
    # rich would send our results to its own console; right on a terminal, where they must not meet the spinner's line
    to_terminal = sys.stdout.isatty()
    with Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=to_terminal) as shown:
        task = shown.add_task(f"loading the model for {files} files")
        done = 0.0

        def on_progress(file: str, seconds: float) -> None:
            nonlocal done
            done += seconds
            shown.update(task, description=f"{done:.0f} s of audio transcribed, at {Path(file).name}")

        yield on_progress


@contextmanager
def ctrl_c() -> Iterator[None]:
    """Ctrl-C before there is anything to keep: leave with the usual status. Being told to end is the same to us."""
    here = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, signal.default_int_handler) if here else None
    try:
        yield
    except KeyboardInterrupt:
        say("interrupted")
        raise typer.Exit(INTERRUPTED) from None
    finally:
        if here:
            signal.signal(signal.SIGTERM, before)


@contextmanager
def status_line() -> Iterator[Callable[[str], None]]:
    """A line on stderr that says what is being done, if that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _text: None
        return
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status("") as status:
        yield lambda text: status.update(escape(text))


def say_checking() -> None:
    """The first start with a model takes longer."""
    say("checking which decoder is exact and fastest here; kept for this model, device and MLX version")


def say_waiting(holder: str) -> None:
    """Somebody else has the GPU."""
    say(f"waiting for the GPU, which is held by {holder}")
