"""``bench sweep`` and ``bench anatomy``: how fast the recognizer is here, and what a decode step is made of."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dropscribe.cli_common import (
    INTERRUPTED,
    ConfigOption,
    JsonOption,
    ModelOption,
    OutputOption,
    ctrl_c,
    load,
    say,
    say_checking,
    status_line,
)
from dropscribe.settings import MAX_BATCH_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dropscribe.asr.model import Model
    from dropscribe.asr.selfcheck import Verdict
    from dropscribe.bench.latency import Recording
    from dropscribe.bench.report import Report
    from dropscribe.bench.sweep import Chunks
    from dropscribe.settings import Settings

QUICK_SECONDS = 4.0  # of each recording, for latencies

QuickOption = Annotated[
    bool, typer.Option("--quick", help="Under two minutes, with the bundled model and clips unless you name others.")
]
AudioOption = Annotated[
    list[Path] | None, typer.Option("--audio", metavar="FILE", help="Speech to measure with; may be repeated.")
]
PlotOption = Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Draw it: .png, .svg or .pdf.")]


def register(bench_app: typer.Typer) -> None:
    """Put the commands of this module under ``bench``."""
    bench_app.command()(sweep)
    bench_app.command()(anatomy)


def sweep(
    *,
    config: ConfigOption = None,
    model: ModelOption = None,
    audio: AudioOption = None,
    batch_sizes: Annotated[
        str | None, typer.Option(metavar="LIST", help="Rows side by side to compare; 1,2,4,6,8 if not given.")
    ] = None,
    chunk_seconds: Annotated[
        float | None, typer.Option(min=1, max=1200, help="Length of every chunk; 10 if not given.")
    ] = None,
    stride_seconds: Annotated[float, typer.Option(min=0, help="From chunk to chunk; 0 is the chunk's length.")] = 0.0,
    num_chunks: Annotated[int | None, typer.Option(min=1, max=10_000, help="How many chunks; 24 if not given.")] = None,
    decoder: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="bulk-sync, batched or serial; what your settings run if not given."),
    ] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Times each size is measured; 3 if not given.")] = None,
    require_identical_output: Annotated[
        bool, typer.Option("--require-identical-output", help="Exit with 1 unless all sizes say the same.")
    ] = False,
    apply: Annotated[
        bool, typer.Option("--apply", help='Let batch_size = "auto" use the best size from now on.')
    ] = False,
    quick: QuickOption = False,
    as_json: JsonOption = False,
    output: OutputOption = None,
    plot: PlotOption = None,
) -> None:
    """Measure how many rows side by side are fastest here, and that the text stays the same."""
    usual = "1,2,4" if quick else "1,2,4,6,8"
    sizes = _numbers(usual if batch_sizes is None else batch_sizes, "--batch-sizes", most=MAX_BATCH_SIZE)
    if decoder not in (None, "bulk-sync", "batched", "serial"):
        raise typer.BadParameter("choose bulk-sync, batched or serial", param_hint="--decoder")
    if decoder == "serial" and apply:
        raise typer.BadParameter("serial has one row and no best size; leave it out", param_hint="--apply")
    options = {
        "decoder": decoder,
        "batch_sizes": sizes,
        "chunk_seconds": chunk_seconds or (5.0 if quick else 10.0),
        "stride_seconds": stride_seconds,
        "num_chunks": num_chunks or (6 if quick else 24),
        "rounds": rounds or (2 if quick else 3),
    }
    with ctrl_c():
        settings, recordings = _prepared(config, model, audio, output, plot, quick=quick)
        report, applied = _sweep(settings, recordings, options, apply=apply)
        from dropscribe.bench.report import deliver

        kept = deliver(report, settings, say, as_json=as_json, output=output, plot=plot)
    if applied and kept:
        say(applied)
    elif applied:
        say("so nothing is applied")
    if report.interrupted:
        raise typer.Exit(INTERRUPTED)
    if not report.summary["identical"]:
        from dropscribe.bench.sweep import in_words

        who = "dropscribe" if require_identical_output else "warning"
        say(f"{who}: the output is not identical: {in_words(report)}")
        raise typer.Exit(1 if require_identical_output else 0)


def anatomy(
    *,
    config: ConfigOption = None,
    model: ModelOption = None,
    audio: AudioOption = None,
    slots: Annotated[str, typer.Option(metavar="LIST", help="Rows in one step.")] = "1,7",
    contexts: Annotated[
        str | None, typer.Option(metavar="LIST", help="Positions of keys and values; 64,256,1024,4096 if not given.")
    ] = None,
    repeats: Annotated[int | None, typer.Option(min=3, help="Times every part is run; 30 if not given.")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Times the audio is decoded; 3 if not given.")] = None,
    quick: QuickOption = False,
    as_json: JsonOption = False,
    output: OutputOption = None,
    plot: PlotOption = None,
) -> None:
    """Take one decode step apart: parts, memory floor, time to the first and the next tokens."""
    options = {
        "slots": _numbers(slots, "--slots", most=MAX_BATCH_SIZE),
        "contexts": _numbers(contexts or ("64,256,1024" if quick else "64,256,1024,4096"), "--contexts", most=65_536),
        "repeats": repeats or (10 if quick else 30),
        "rounds": rounds or (1 if quick else 3),
    }
    with ctrl_c():
        settings, recordings = _prepared(config, model, audio, output, plot, quick=quick)
        report = _anatomy(settings, recordings, options, quick=quick)
        from dropscribe.bench.report import deliver

        deliver(report, settings, say, as_json=as_json, output=output, plot=plot)
    if report.interrupted:
        raise typer.Exit(INTERRUPTED)


def _sweep(
    settings: Settings, recordings: Sequence[Recording], options: dict[str, Any], *, apply: bool
) -> tuple[Report, str | None]:
    """The report, and what to say once it is kept if a best size is applied with it."""
    from dropscribe.bench import running
    from dropscribe.bench import sweep as bench
    from dropscribe.bench.report import Report, measured

    chunks = bench.cut_chunks(
        [recording.samples for recording in recordings],
        chunk_seconds=options["chunk_seconds"],
        stride_seconds=options["stride_seconds"],
        count=options["num_chunks"],
    )
    report = Report("sweep", bench.COLUMNS, options={"audio": [one.name for one in recordings], **options})
    with running.loaded(settings, say) as held, status_line() as progress:
        report.machine = held.machine
        decoder = report.options["decoder"] = options["decoder"] or _the_one_that_runs(settings, held.model)
        if decoder == "serial":
            options["batch_sizes"] = report.options["batch_sizes"] = [1]
            say("serial decodes one row after another: the only batch size is 1")
        sizes = options["batch_sizes"]
        _check_chunks(chunks, options, held.model, settings)
        verdict = _verdict(settings, held.model, progress) if decoder == "batched" else None
        parts = bench.sweep(
            report,
            held.model,
            chunks,
            sizes,
            decoder=decoder,
            rounds=options["rounds"],
            kv_budget=settings.decode.kv_budget,
            verdict=verdict,
            load_s=held.load_s,
            progress=progress,
        )
        measured(report, parts, say)
        if report.rows and report.summary["chunks_without_words"] == len(chunks.samples):
            say("no chunk came out with words: output_digest is that of nothing; token_digest tells outputs apart")
        best = bench.best_size(report, verdict, settings.decode.exactness)
        report.summary["best"] = best
        return report, _apply(report, held.model, decoder, best) if apply else None


def _anatomy(settings: Settings, recordings: Sequence[Recording], options: dict[str, Any], *, quick: bool) -> Report:
    from dropscribe.bench import anatomy as bench
    from dropscribe.bench import running
    from dropscribe.bench.latency import shortened
    from dropscribe.bench.report import Report, measured
    from dropscribe.pipeline import longest_segment

    report = Report("anatomy", bench.COLUMNS, options={"audio": [one.name for one in recordings], **options})
    with running.loaded(settings, say) as held, status_line() as progress:
        report.machine = held.machine
        most = longest_segment(settings, held.model)
        if quick:
            most = min(most, QUICK_SECONDS)
        parts = bench.anatomy(
            report,
            held.model,
            shortened(recordings, most, say),
            **options,
            probe_megabytes=64 if quick else 256,
            kv_budget=settings.decode.kv_budget,
            progress=progress,
        )
        return measured(report, parts, say)


def _the_one_that_runs(settings: Settings, model: Model) -> str:
    """The schedule that the settings come to on this device."""
    from dropscribe import pipeline

    plan = pipeline.plan_for(settings, model, checking=say_checking)
    if plan.fallback:
        say(plan.fallback)
    say(f"measuring {plan.decoder}, which is what runs here with these settings")
    return plan.decoder


def _apply(report: Report, model: Model, decoder: str, best: int | None) -> str | None:
    """Put what ``batch_size = "auto"`` shall use into the report; what to say of it."""
    from dropscribe.asr.selfcheck import key_of

    if decoder == "serial":
        say("nothing is applied: serial has one row and no best size")
        return None
    if best is None:
        if not report.interrupted:
            why = (
                "no size above 1 that the self-check allows is faster"
                if report.summary["identical"]
                else "the output is not identical"
            )
            say(f"nothing is applied: {why}")
        return None
    report.summary["applied"] = {"key": key_of(model), "decoder": decoder, "batch_size": best}
    return (
        f'applied: batch_size = "auto" is {best} from the next start on, for {decoder} with this model, device and '
        "MLX version; undo it by a number for decode.batch_size, or measure again with --apply"
    )


def _check_chunks(chunks: Chunks, options: dict[str, Any], model: Model, settings: Settings) -> None:
    from dropscribe.bench.sweep import room_needed
    from dropscribe.errors import ConfigError
    from dropscribe.pipeline import longest_segment

    seconds, longest = options["chunk_seconds"], longest_segment(settings, model)
    if seconds > longest:
        raise ConfigError(f"--chunk-seconds {seconds:g} is longer than this model's segments; {longest:g} is the most")
    if chunks.repeated:
        say(
            f"{len(chunks.samples)} chunks of {seconds:g} s reach beyond the {chunks.audio_seconds:.1f} s of audio: "
            f"it is looped, {chunks.repeated} of them hold audio used before"
        )
    fit = settings.decode.kv_budget // room_needed(model, seconds)
    if max(options["batch_sizes"]) > fit:
        say(
            f"decode.kv_budget = {settings.decode.kv_budget} holds {fit} such chunks at once: "
            "more are never side by side"
        )


def _verdict(settings: Settings, model: Model, progress: Callable[[str], None]) -> Verdict:
    """The self-check's verdict, as the decoder would ask for it. Raises ``ConfigError`` where it failed."""
    from dropscribe.asr import selfcheck
    from dropscribe.errors import ConfigError
    from dropscribe.pipeline import longest_segment

    progress("self-check of the batched decoder, unless it is kept")
    longest = model.positions_for(longest_segment(settings, model))
    verdict = selfcheck.verdict_of(model, longest=longest, kv_budget=settings.decode.kv_budget)
    if verdict.failure is not None:
        raise ConfigError(f"batched is not row-exact on this device ({verdict.failure}); measure bulk-sync")
    return verdict


def _prepared(
    config: Path | None,
    model: str | None,
    audio: Sequence[Path] | None,
    output: Path | None,
    plot: Path | None,
    *,
    quick: bool,
) -> tuple[Settings, list[Recording]]:
    """Settings and audio; whatever can be wrong with the command line is found out before that is read."""
    from dropscribe import logs, resources
    from dropscribe.bench import plot as plots
    from dropscribe.bench import report, running
    from dropscribe.errors import ConfigError

    logs.configure("warning")
    plots.check(plot)
    report.check_writable(output, plot)
    settings = load(config, running.wanted(model, quick=quick))
    if missing := next((path for path in audio or () if not path.is_file()), None):
        raise ConfigError(f"--audio {missing}: there is no such file")
    if audio:
        return settings, _read(settings, audio)
    if not quick:
        raise ConfigError("nothing to measure with: name a recording with --audio, or use --quick")
    with resources.demo_samples() as folder:
        return settings, _read(settings, sorted(path for path in folder.iterdir() if path.suffix != ".tsv"))


def _read(settings: Settings, paths: Sequence[Path]) -> list[Recording]:
    """Each file's samples and the seconds that took; read twice, because the first time loads the codec too."""
    import time

    from dropscribe.audio.client import Reader
    from dropscribe.bench.latency import Recording
    from dropscribe.bench.speech import read_with

    recordings = []
    with Reader(settings.reader) as reader:
        for path in paths:
            read_with(reader, path)
            started = time.perf_counter()
            samples = read_with(reader, path)
            recordings.append(Recording(path.name, samples, time.perf_counter() - started))
    return recordings


def _numbers(text: str, option: str, *, most: int) -> list[int]:
    """``1,2,4`` as numbers from 1 to ``most``, each once, in the order given."""
    try:
        numbers = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        numbers = []
    if not numbers or not all(1 <= number <= most for number in numbers):
        raise typer.BadParameter(f"{text!r}: give numbers from 1 to {most}, such as 1,2,4", param_hint=option)
    return list(dict.fromkeys(numbers))
