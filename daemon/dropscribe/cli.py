"""The commands: they parse, call and print. Results go to stdout, everything else to stderr.

Exit status: 0 done, 1 something failed, 2 wrong usage or a wrong setting. Imports are late throughout: a command that
reads the job log must answer at once, so it loads nothing that can transcribe.
"""

from __future__ import annotations

import json
import signal
import sys
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dropscribe import __version__, settings, tables
from dropscribe.errors import ConfigError, DropscribeError

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterator, Mapping

    from dropscribe.batch import FileResult

app = typer.Typer(
    help="Drop audio into a folder; find the transcript beside it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
jobs_app = typer.Typer(help="Look into the job log.", no_args_is_help=True)
config_app = typer.Typer(help="The configuration file.", no_args_is_help=True)
app.add_typer(jobs_app, name="jobs")
app.add_typer(config_app, name="config")

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
JsonLinesOption = Annotated[bool, typer.Option("--jsonl", help="One JSON object a line.")]


def main() -> None:
    """Run the command line; never returns."""
    # Names that are not UTF-8 must not stop the output; inside JSON the escape is a valid one.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except DropscribeError as error:
        for line in str(error).splitlines():
            _say(f"dropscribe: {line}")
        sys.exit(2 if isinstance(error, ConfigError) else 1)


@app.callback(invoke_without_command=True)
def _dropscribe(
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.", is_eager=True)] = False,
) -> None:
    if version:
        _print(f"dropscribe {__version__}")
        raise typer.Exit


@jobs_app.callback()
@config_app.callback()
def _reader() -> None:
    """Commands that only read end like any Unix filter when `head` has seen enough."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)


@app.command()
def run(
    config: ConfigOption = None,
    model: ModelOption = None,
    once: Annotated[bool, typer.Option("--once", help="Do what is there, then leave.")] = False,
) -> None:
    """Watch the folders and transcribe what is dropped into them, until stopped."""
    loaded = _load(config, model).for_watching()
    from dropscribe import supervisor

    raise typer.Exit(supervisor.run(loaded, once=once))


@app.command("transcribe-batch")
def transcribe_batch_command(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH…", help="Audio or video files, or folders of them.")],
    *,
    config: ConfigOption = None,
    model: ModelOption = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, max=settings.MAX_BATCH_SIZE, help="Rows decoded side by side.")
    ] = None,
    decoder: Annotated[str | None, typer.Option(metavar="NAME", help="bulk-sync or serial.")] = None,
    jsonl: JsonLinesOption = False,
    output_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write a .txt and a .json for every file there.")
    ] = None,
) -> None:
    """Transcribe files now and print the results; the job log is left alone."""
    loaded = _load(config, model, decode={"batch_size": batch_size, "decoder": decoder})
    from dropscribe.batch_files import OutputFolder, files_of

    files = files_of(paths)
    if not files:
        _say("no audio or video file there")
        raise typer.Exit
    from dropscribe.batch import transcribe_batch

    folder = None if output_dir is None else OutputFolder(output_dir)
    results: list[FileResult] = []
    with _progress(len(files)) as on_progress:
        for result in transcribe_batch(loaded, files, on_progress=on_progress, waiting_for=_say_waiting):
            if folder is not None and not result.error_kind:
                folder.write(result.file, result.rendered())
            if jsonl:
                record = asdict(replace(result, document=None))
                del record["document"]  # the files of --output-dir have it
                _print(_json(record))
            elif not result.error_kind:
                _print(f"{result.file}\n    {result.text}\n")
            results.append(result)
    if not jsonl:
        columns = ("file", "audio", "time", "RTF", "batch time", "batch RTF", "batch size")
        tables.show(columns, [_batch_row(result) for result in results])
    for result in results:
        if result.error_kind:
            where = "" if result.file in str(result.error) else f"{result.file}: "
            _say(f"dropscribe: {where}{result.error} ({result.error_kind})")
    raise typer.Exit(1 if any(result.error_kind for result in results) else 0)


def _batch_row(result: FileResult) -> tuple[object, ...]:
    return (
        result.file, tables.seconds(result.duration), tables.seconds(result.time), tables.ratio(result.rtf),
        tables.seconds(result.batch_time), tables.ratio(result.batch_rtf), result.batch_size,
    )  # fmt: skip


@app.command()
def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Keep the folder with transcripts and job log.")] = False,
) -> None:
    """Run the whole path on bundled samples with the bundled tiny model."""
    from dropscribe.demo.show import run_demo

    raise typer.Exit(run_demo(keep=keep))


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
    with _job_log(config) as conn:
        rows = log.list_jobs(conn, states=states, limit=limit) if conn else []
    if as_json or jsonl:
        _print_records([_record(row) for row in rows], lines=jsonl)
    elif rows:
        columns = ("id", "state", "since", "audio", "file", "note")
        tables.show(columns, [_job_row(row) for row in rows])
    elif conn:
        _say("no such job in the log" if states else "the job log is empty: drop a file into a watched folder")


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

    with _job_log(config) as conn:
        row = log.get_job(conn, Path(job).expanduser() if job.startswith("~") else job) if conn else None
        if conn is None or row is None:
            _say(f"no job {job} in the log; `dropscribe jobs list` shows them")
            raise typer.Exit(1)
        segments = [_record(segment) for segment in log.segments(conn, row["id"])]
        timings = [_record(timing) for timing in log.timings(conn, row["id"])]
        outputs = [_record(output) for output in log.outputs(conn, row["id"])]
    record = _record(row)
    if as_json:
        _print(_json({**record, "segments": segments, "timings": timings, "outputs": outputs}))
        return
    text = record.pop("text", None)
    for key, value in record.items():
        if value not in (None, [], ""):
            _print(f"{key:16} {value}")
    for output in outputs:
        _print(f"{output['format']:16} {output['path']}")
    if timings:
        _print()
        figures = [key for key in timings[0] if key not in ("job_id", "path", "state", "language")]
        tables.show(("timing", *(f"batch {timing.get('batch_id')}" for timing in timings)),
                    [(key, *(_figure(timing[key]) for timing in timings)) for key in figures])  # fmt: skip
    if segments:
        _print()
        columns = ("from", "to", "tokens", "end", "text")
        tables.show(columns, [
            (tables.seconds(row["start_ms"] / 1000), tables.seconds(row["end_ms"] / 1000), row["tokens"],
             row["finish_reason"], row["text"]) for row in segments
        ])  # fmt: skip
    if text:
        _print(f"\n{text}")


def _figure(value: Any) -> Any:
    return f"{value:.3f}" if isinstance(value, float) else value


@config_app.command("init")
def config_init(
    config: ConfigOption = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file that is there.")] = False,
) -> None:
    """Write a commented configuration file: the manual of all settings."""
    from dropscribe import resources

    path = _config_path(config)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(resources.template("config/dropscribe.toml"))
    except FileExistsError:
        raise ConfigError(f"{path} is there already; edit it, or overwrite it with --force") from None
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}; name another file with --config") from None
    _print(str(path))
    _say("written; set the folder to watch under [[watch]], then `dropscribe run`")


@config_app.command("show")
def config_show(config: ConfigOption = None, model: ModelOption = None, as_json: JsonOption = False) -> None:
    """Print the settings in force: file, environment and flags together."""
    loaded = _load(config, model)
    path = _config_path(config)
    _say(f"# from {path}" if path.exists() else f"# {path} is not there: defaults and environment")
    _print(loaded.model_dump_json(indent=2) if as_json else settings.to_toml(loaded).rstrip("\n"))


@config_app.command("path")
def config_path(config: ConfigOption = None) -> None:
    """Print where the configuration file is looked for."""
    _print(str(_config_path(config)))


def _config_path(config: Path | None) -> Path:
    return config if config is not None else settings.default_config_path()


def _load(config: Path | None, model: str | None = None, **tables: dict[str, Any]) -> settings.Settings:
    flags: dict[str, Any] = {} if model is None else {"model": model}
    for name, values in tables.items():
        flags[name] = {key: value for key, value in values.items() if value is not None}
    return settings.load_settings(config, flags)


@contextmanager
def _job_log(config: Path | None) -> Iterator[sqlite3.Connection | None]:
    """The job log for reading; None, and a word about it, when there is none yet."""
    from dropscribe.jobs.database import connect_readonly

    path = _load(config).database
    if not path.exists():
        _say(f"no job log yet ({path}): `dropscribe run` starts one")
        yield None
        return
    with closing(connect_readonly(path)) as conn:
        yield conn


@contextmanager
def _progress(files: int) -> Iterator[Callable[[str, float], None] | None]:
    """A line on stderr that says how far it is, if that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.markup import escape

    console, done = Console(stderr=True), 0.0
    with console.status(f"loading the model for {files} files") as status:

        def on_progress(file: str, seconds: float) -> None:
            nonlocal done
            done += seconds
            status.update(f"{done:.0f} s of audio transcribed, at {escape(Path(file).name)}")

        yield on_progress


def _say_waiting(holder: str) -> None:
    _say(f"waiting for the GPU, which is held by {holder}")


def _record(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as JSON can hold it: names as printed, not as bytes."""
    return {key: value for key, value in row.items() if not isinstance(value, bytes)}


def _print_records(records: list[dict[str, Any]], *, lines: bool) -> None:
    if lines:
        for record in records:
            _print(_json(record))
    else:
        _print(json.dumps(records, ensure_ascii=False, indent=2))


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _print(text: str = "") -> None:
    """A result. Flushed, so that whoever reads the pipe has it at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _say(text: str) -> None:
    """Anything that is not a result."""
    sys.stderr.write(text + "\n")


if __name__ == "__main__":
    main()
