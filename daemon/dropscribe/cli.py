"""The commands: they parse, call and print. Results go to stdout, everything else to stderr.

Exit status: 0 done, 1 something failed, 2 wrong usage or a wrong setting. Imports are late throughout: a command that
reads the job log must answer at once, so it loads nothing that can transcribe.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dropscribe import (
    __version__,
    cli_ask,
    cli_bench,
    cli_bench_eval,
    cli_bench_power,
    cli_bench_speed,
    cli_export,
    cli_jobs,
    cli_scan,
    cli_service,
    settings,
    tables,
)
from dropscribe.cli_common import (
    ConfigOption,
    FormatOption,
    JsonLinesOption,
    JsonOption,
    ModelOption,
    config_path,
    formats_of,
    load,
    print_line,
    progress,
    say,
    say_checking,
    say_waiting,
    to_json,
)
from dropscribe.errors import ConfigError, DropscribeError

if TYPE_CHECKING:
    from dropscribe.batch import FileResult

CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

app = typer.Typer(
    help="Drop audio into a folder; find the transcript beside it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
config_app = typer.Typer(help="The configuration file.", no_args_is_help=True)
app.add_typer(config_app, name="config")
cli_jobs.register(app)
cli_ask.register(app)
cli_export.register(app)
cli_scan.register(app)
cli_bench.register(app)
cli_bench_eval.register(cli_bench.bench_app)
cli_bench_power.register(cli_bench.bench_app)
cli_bench_speed.register(cli_bench.bench_app)
cli_service.register(app, config_app)


def main() -> None:
    """Run the command line; never returns."""
    _open_closed_streams()
    # Names that are not UTF-8 must not stop the output; inside JSON the escape is a valid one.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except DropscribeError as error:
        for line in str(error).splitlines():
            say(f"dropscribe: {line}")
        sys.exit(2 if isinstance(error, ConfigError) else 1)
    except OSError as error:
        if error.errno not in CANNOT_WRITE or error.filename is not None:
            raise
        say(f"dropscribe: cannot write the output: {error.strerror}")
        with Path(os.devnull).open("wb") as nowhere:  # what is left in the buffer: the exit would try again
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        sys.exit(1)


def _open_closed_streams() -> None:
    """Stand-ins for standard streams that our caller closed: else the next file we open would get their number."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free: this one
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115 - a descriptor, for as long as we live
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


@app.callback(invoke_without_command=True)
def _dropscribe(
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.", is_eager=True)] = False,
) -> None:
    if version:
        print_line(f"dropscribe {__version__}")
        raise typer.Exit


@config_app.callback()
def _reader() -> None:
    """Commands that only read end like any Unix filter when `head` has seen enough."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)


@app.command()
def run(
    *,
    once: Annotated[bool, typer.Option("--once", help="Do what is there, then leave.")] = False,
    service: Annotated[
        bool, typer.Option("--service", help="As a service manager starts it: own log, gives up by itself.")
    ] = False,
    config: ConfigOption = None,
    model: ModelOption = None,
) -> None:
    """Watch the folders and transcribe what is dropped into them, until stopped."""
    if once and service:
        raise typer.BadParameter("--once and --service exclude each other")
    if service:
        from dropscribe.service.daemon import run_as_service

        raise typer.Exit(run_as_service(lambda: load(config, model)))
    loaded = load(config, model).for_watching()
    from dropscribe import supervisor

    raise typer.Exit(supervisor.run(loaded, once=once))


@app.command("transcribe-batch")
def transcribe_batch_command(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH…", help="Audio or video files, or folders of them.")],
    *,
    batch_size: Annotated[
        int | None, typer.Option(min=1, max=settings.MAX_BATCH_SIZE, help="Rows decoded side by side.")
    ] = None,
    decoder: Annotated[str | None, typer.Option(metavar="NAME", help="auto, batched, bulk-sync or serial.")] = None,
    jsonl: JsonLinesOption = False,
    output_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write transcripts there, by default a .txt and a .json each.")
    ] = None,
    formats: FormatOption = None,
    config: ConfigOption = None,
    model: ModelOption = None,
) -> None:
    """Transcribe files now and print the results; the job log is left alone."""
    if formats and output_dir is None:
        raise typer.BadParameter("it says what --output-dir gets; name that folder too", param_hint="--format")
    wanted = formats_of(formats, ("txt", "json"))
    loaded = load(config, model, decode={"batch_size": batch_size, "decoder": decoder})
    from dropscribe.batch_files import OutputFolder, files_of

    files = files_of(paths)
    if not files:
        say("no audio or video file there")
        raise typer.Exit
    from dropscribe.batch import transcribe_batch

    folder = None if output_dir is None else OutputFolder(output_dir)
    results: list[FileResult] = []
    with progress(len(files)) as on_progress:
        for result in transcribe_batch(
            loaded, files, on_progress=on_progress, waiting_for=say_waiting, checking=say_checking
        ):
            if folder is not None and not result.error_kind:
                folder.write(result.file, result.rendered(wanted))
            if jsonl:
                record = asdict(replace(result, document=None))
                del record["document"]  # the files of --output-dir have it
                print_line(to_json(record))
            elif not result.error_kind:
                print_line(f"{result.file}\n    {result.text}\n")
            results.append(result)
    if not jsonl:
        columns = ("file", "audio", "time", "RTF", "batch time", "batch RTF", "batch size")
        tables.show(columns, [_batch_row(result) for result in results])
    for result in results:
        if result.error_kind:
            where = "" if result.file in str(result.error) else f"{result.file}: "
            say(f"dropscribe: {where}{result.error} ({result.error_kind})")
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


@config_app.command("init")
def config_init(
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", envvar=settings.CONFIG_ENV, show_envvar=True, metavar="FILE", help="Write this file instead."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file that is there.")] = False,
) -> None:
    """Write a commented configuration file: the manual of all settings."""
    from dropscribe import resources

    path = config_path(config)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(resources.template("config/dropscribe.toml"))
    except FileExistsError:
        raise ConfigError(f"{path} is there already; edit it, or overwrite it with --force") from None
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}; name another file with --config") from None
    print_line(str(path))
    say("written; set the folder to watch under [[watch]], then `dropscribe run`")


@config_app.command("show")
def config_show(config: ConfigOption = None, model: ModelOption = None, as_json: JsonOption = False) -> None:
    """Print the settings in force: file, environment and flags together."""
    loaded = load(config, model)
    path = config_path(config)
    say(f"# from {path}" if path.exists() else f"# {path} is not there: defaults and environment")
    print_line(loaded.model_dump_json(indent=2) if as_json else settings.to_toml(loaded).rstrip("\n"))


@config_app.command("path")
def config_path_command(config: ConfigOption = None) -> None:
    """Print where the configuration file is looked for."""
    print_line(str(config_path(config)))


if __name__ == "__main__":
    main()
