"""``bench power``: watts and joules while a command runs."""

from __future__ import annotations

import sys
from contextlib import ExitStack, redirect_stdout
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import TYPE_CHECKING, Annotated

import typer

from dropscribe.cli_common import INTERRUPTED, ConfigOption, JsonOption, OutputOption, load, say
from dropscribe.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dropscribe.settings import Settings


def register(bench_app: typer.Typer) -> None:
    """Put the command under ``bench``."""
    # what follows the command's name belongs to the command, with or without --
    bench_app.command("power", context_settings={"allow_interspersed_args": False})(power)


def power(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="COMMAND", help="What to run, after -- if it has options.")
    ] = None,
    *,
    audio: Annotated[
        list[Path] | None,
        typer.Option(
            "--audio", metavar="PATH", help="What it transcribes, for joules per audio hour; may be repeated."
        ),
    ] = None,
    audio_seconds: Annotated[
        float | None, typer.Option(min=0.001, metavar="N", help="Or how many seconds of audio that is.")
    ] = None,
    interval_ms: Annotated[int, typer.Option(min=20, max=60_000, help="Time between two readings.")] = 200,
    quick: Annotated[
        bool, typer.Option("--quick", help="Measure the tiny model on the bundled clips; takes no COMMAND.")
    ] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    output: OutputOption = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw power over time: .png, .svg or .pdf.")] = None,
) -> None:
    """Measure the power of CPU and GPU while a command runs; its exit status is kept.

    The command has its streams to itself: the table goes to stderr, like that of `time`. Sources: powermetrics on macOS
    (needs sudo); NVML for NVIDIA GPUs (extra "bench"); RAPL for processors on Linux.
    """
    if bool(command) == quick:
        raise typer.BadParameter("name a command, or use --quick", param_hint="COMMAND")
    if audio and audio_seconds is not None:
        raise typer.BadParameter("--audio and --audio-seconds exclude each other")
    from dropscribe.bench import plot as plots
    from dropscribe.bench import power as powers
    from dropscribe.bench.report import check_writable, deliver

    plots.check(plot)
    check_writable(output, plot)
    settings = load(config)
    interval = interval_ms / 1000
    try:
        found, without = powers.meters(interval)
        for why in without:
            say(f"not measured: {why}")
        with ExitStack() as stack:
            what = _bundled(stack) if quick else list(command or ())
            paths = [what[-1]] if quick else [str(path) for path in audio or ()]
            seconds = _seconds(paths, settings) if paths else audio_seconds
            report, ran = powers.measure(what, found, interval=interval, audio_seconds=seconds, say=say)
    except KeyboardInterrupt:  # before there was a command to pass it on to
        raise typer.Exit(INTERRUPTED) from None
    if ran.error is not None:
        say(f"dropscribe: {what[0]}: {ran.error}")
        raise typer.Exit(ran.code)
    with redirect_stdout(sys.stdout if as_json else sys.stderr):
        try:
            deliver(report, settings, say, as_json=as_json, output=output, plot=plot)
        except ConfigError as error:
            say(f"dropscribe: {error}")
            raise typer.Exit(ran.code or 2) from None
    raise typer.Exit(ran.code)


def _bundled(stack: ExitStack) -> list[str]:
    from dropscribe import resources

    model = stack.enter_context(resources.demo_model())
    samples = stack.enter_context(resources.demo_samples())
    return [sys.executable, "-m", "dropscribe", "transcribe-batch", "--model", str(model), str(samples)]


def _seconds(paths: Sequence[str], settings: Settings) -> float:
    """How much audio is in files and folders, by decoding it."""
    from pathlib import Path

    from dropscribe.audio.client import Reader
    from dropscribe.batch_files import files_of
    from dropscribe.bench.speech import RATE, read_with

    files = files_of([Path(path) for path in paths])
    if not files:
        raise typer.BadParameter("no audio or video file there", param_hint="--audio")
    with Reader(settings.reader) as reader:
        return sum(len(read_with(reader, file)) for file in files) / RATE
