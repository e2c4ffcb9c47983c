"""``bench eval`` and ``bench knobs``: how right the texts are, and what is fastest without making them worse."""

from __future__ import annotations

import json
from collections.abc import Mapping  # noqa: TC003 - typer reads annotations
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dropscribe import tables
from dropscribe.cli_common import (
    INTERRUPTED,
    ConfigOption,
    JsonOption,
    ModelOption,
    OutputOption,
    ctrl_c,
    load,
    print_line,
    say,
    say_checking,
    status_line,
)
from dropscribe.settings import MAX_BATCH_SIZE, load_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dropscribe.bench.evalset import EvalSet
    from dropscribe.bench.report import Report
    from dropscribe.settings import Settings

QUICK_VARY = (
    "decode.decoder=serial",
    "decode.batch_size=1,2",
    "decode.max_segment_seconds=5",
    "prefill.step=64",
)
PAIRS, QUICK_PAIRS = 16, 12
LONGEST_SECONDS = 86_400.0  # of a built file
QUICK_CLIPS = {"ladder": 3, "ab": 2}  # of the bundled ones, by mode

eval_app = typer.Typer(help="Error rates over an evaluation set.", no_args_is_help=True)

SetArgument = Annotated[
    Path | None, typer.Argument(metavar="DIR", help="A set that `eval build` made; without: the bundled clips.")
]
QuickOption = Annotated[
    bool, typer.Option("--quick", help="The bundled model if none is named; without a set under two minutes.")
]


def register(bench_app: typer.Typer) -> None:
    """Put the commands of this module under ``bench``."""
    bench_app.add_typer(eval_app, name="eval")
    bench_app.command()(knobs)


@eval_app.command()
def build(
    source: Annotated[
        Path, typer.Argument(metavar="SOURCE", help="Audio with texts: a folder, a LibriSpeech tree, or parquet.")
    ],
    *,
    output: Annotated[Path, typer.Option("--output", metavar="DIR", help="The set's folder, made new.")],
    limit: Annotated[int | None, typer.Option(min=1, help="At most this many clips, drawn by --seed.")] = None,
    long: Annotated[
        list[float] | None,
        typer.Option(
            "--long", min=0, metavar="SECONDS", help="Build files of this length; 0: none. Without: 64 and 158."
        ),
    ] = None,
    long_files: Annotated[int, typer.Option(min=1, help="At most this many of each length.")] = 10,
    seed: Annotated[int, typer.Option(help="The same seed gives the same set.")] = 0,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make an evaluation set: FLAC clips with their texts, and long files put together from them."""
    from dropscribe.bench import evalset

    settings = load(config)
    lengths = evalset.LONG_SECONDS if long is None else tuple(seconds for seconds in long if seconds)
    if not all(seconds <= LONGEST_SECONDS for seconds in lengths):
        raise typer.BadParameter(f"{LONGEST_SECONDS:g} seconds is the most", param_hint="--long")
    with ctrl_c(), status_line() as show:
        made, skipped = evalset.build(
            source, output, settings, say, limit=limit, long_seconds=lengths, long_files=long_files, seed=seed,
            on_progress=_counted(show, "read"),
        )  # fmt: skip
    kinds: dict[str, list[float]] = {}
    for entry in made.entries:
        kinds.setdefault(entry.group, []).append(entry.seconds)
    rows = [{"kind": kind, "files": len(seconds), "audio_s": sum(seconds)} for kind, seconds in kinds.items()]
    if as_json:
        document = {"folder": str(output), "set": made.digest, "kinds": rows, "left_out": skipped}
        print_line(json.dumps(document, indent=2, ensure_ascii=False))
        return
    columns = ("kind", "files", "audio_s")
    tables.show(columns, [(row["kind"], row["files"], f"{row['audio_s']:.1f}") for row in rows])
    for reason, count in skipped.items():
        print_line(f"left out: {count} ({reason})")
    print_line(f"set: {made.digest}")
    say(f"made: {output}; `dropscribe bench eval run {output}` transcribes it")


@eval_app.command()
def run(
    folder: SetArgument = None,
    *,
    config: ConfigOption = None,
    model: ModelOption = None,
    decoder: Annotated[str | None, typer.Option(metavar="NAME", help="auto, batched, bulk-sync or serial.")] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, max=MAX_BATCH_SIZE, help="Rows decoded side by side.")
    ] = None,
    compare: Annotated[
        Path | None, typer.Option(metavar="EARLIER.json", help="Say what changed since the run that wrote this.")
    ] = None,
    files: Annotated[bool, typer.Option("--files", help="Show every file too.")] = False,
    quick: QuickOption = False,
    as_json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """Transcribe a set and give word and character error rates with their intervals."""
    from dropscribe.bench import evaluate, running
    from dropscribe.bench.report import Report, check_writable, deliver

    settings = load(config, running.wanted(model, quick=quick), decode={"decoder": decoder, "batch_size": batch_size})
    check_writable(output)
    before = None if compare is None else evaluate.earlier(compare)
    with ctrl_c(), _set(folder, settings, long_seconds=None) as chosen:
        report = Report("eval", evaluate.COLUMNS, options={"set": _named(folder), "compare": _text(compare)})
        if before is not None:
            evaluate.check_same_set(before, chosen.digest)
        _evaluated(report, chosen, settings)
        if before is not None:
            evaluate.compare(before, report)
        if files and not as_json:
            names = evaluate.FILE_COLUMNS
            tables.show(names, [[_short(row[name]) for name in names] for row in report.summary.get("files", ())])
            print_line()
        deliver(report, settings, say, as_json=as_json, output=output)
    failed = report.summary.get("failed", {})
    for name, why in failed.items():
        say(f"dropscribe: {why if name in why else f'{name}: {why}'}")
    _leave(report, failed=bool(failed))


def knobs(
    folder: SetArgument = None,
    *,
    config: ConfigOption = None,
    model: ModelOption = None,
    models: Annotated[
        list[str] | None, typer.Option(metavar="A,B,…", help="Other checkpoints than the base's; may be repeated.")
    ] = None,
    vary: Annotated[
        list[str] | None, typer.Option(metavar="KEY=A,B,…", help="Turn this knob alone; may be repeated.")
    ] = None,
    mode: Annotated[str, typer.Option(metavar="NAME", help="ladder, or ab: two configurations in pairs.")] = "ladder",
    a: Annotated[list[str] | None, typer.Option("--a", metavar="KEY=VALUE", help="A's knobs; may be repeated.")] = None,
    b: Annotated[list[str] | None, typer.Option("--b", metavar="KEY=VALUE", help="B's knobs; may be repeated.")] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Times each is measured; without: 3, with --quick 2.")
    ] = None,
    pairs: Annotated[
        int | None, typer.Option(min=6, help="Pairs of --mode ab, even; without: 16, with --quick 12.")
    ] = None,
    guard: Annotated[
        float, typer.Option(min=0, help="A word error rate higher by more than this is rejected.")
    ] = 0.005,
    quick: QuickOption = False,
    as_json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """Measure configurations against a base over a set: time, memory, error rates.

    Keys: model, decode.* as in the settings, prefill.step; for --mode ab also delay, a share of a run's own time.
    """  # fmt: skip
    from dropscribe.bench import running
    from dropscribe.bench.report import check_writable, deliver

    _check_mode(mode, ladder=bool(models or vary or rounds), pairs=bool(a or b or pairs))
    if pairs and pairs % 2:
        raise typer.BadParameter("an even number lets each go first equally often", param_hint="--pairs")
    check_writable(output)
    chosen_model = running.wanted(model, quick=quick)
    settings = load(config, chosen_model)

    def with_flags(flags: Mapping[str, Any]) -> Settings:
        return load_settings(config, {"model": settings.model, **flags})

    # long files make a run long, and what is timed is the same path
    with ctrl_c(), _set(folder, settings, long_seconds=()) as whole:
        chosen = _few(whole, QUICK_CLIPS[mode]) if quick and folder is None else whole
        if mode == "ab":
            pairs = pairs or (QUICK_PAIRS if quick else PAIRS)
            report = _pairs(chosen, with_flags, a or [], b or [], pairs=pairs, guard=guard)
        else:
            varied = vary or (list(QUICK_VARY) if quick and not models else [])
            rounds = rounds or (2 if quick else 3)
            report = _ladder(chosen, with_flags, models or [], varied, rounds=rounds, guard=guard)
        report.options["set"] = _named(folder)
        deliver(report, settings, say, as_json=as_json, output=output)
    _leave(report, failed=any(row.get("state") == "failed" for row in report.rows))


def _check_mode(mode: str, *, ladder: bool, pairs: bool) -> None:
    if mode not in ("ladder", "ab"):
        raise typer.BadParameter(f"{mode!r} is no mode; choose ladder or ab", param_hint="--mode")
    if mode == "ab" and ladder:
        raise typer.BadParameter("--models, --vary and --rounds are for --mode ladder; use --a and --b")
    if mode == "ladder" and pairs:
        raise typer.BadParameter("--a, --b and --pairs are for --mode ab; add that")


def _evaluated(report: Report, chosen: EvalSet, settings: Settings) -> None:
    from dropscribe import pipeline
    from dropscribe.audio.client import Reader
    from dropscribe.bench import evaluate, running
    from dropscribe.bench.report import measured

    with running.loaded(settings, say) as held, Reader(settings.reader) as reader, status_line() as show:
        report.machine = held.machine
        report.summary["model_load_s"] = held.load_s
        plan = pipeline.plan_for(settings, held.model, checking=say_checking)
        if plan.fallback:
            say(plan.fallback)
        parts = evaluate.evaluate(
            report,
            chosen,
            settings=settings,
            model=held.model,
            plan=plan,
            reader=reader,
            on_progress=_counted(show, "transcribed"),
        )
        measured(report, parts, say)


def _ladder(
    chosen: EvalSet,
    with_flags: Callable[[Mapping[str, Any]], Settings],
    models: list[str],
    vary: list[str],
    *,
    rounds: int,
    guard: float,
) -> Report:
    from dropscribe.audio.client import Reader
    from dropscribe.bench import configuration, running
    from dropscribe.bench import knobs as bench
    from dropscribe.bench.report import Report, measured

    names = [name.strip() for given in models for name in given.split(",") if name.strip()]
    configurations = configuration.one_at_a_time(names, vary, with_flags)
    options = {"mode": "ladder", "models": names, "vary": vary, "rounds": rounds, "guard": guard}
    report = Report("knobs", bench.COLUMNS, options=options)
    if len(configurations) == 1:
        say("nothing is varied: only the base is measured; see --models and --vary")
    configuration.check_models(configurations)
    with running.holding_gpu(say), Reader(configurations[0].settings.reader) as reader, status_line() as show:
        parts = bench.ladder(report, configurations, chosen, reader, rounds=rounds, guard=guard, say=show)
        measured(report, parts, say)
    if (fastest := report.summary.get("fastest_seen", "base")) != "base":
        say(f"confirm it in pairs: dropscribe bench knobs --mode ab --b {fastest}")
    return report


def _pairs(
    chosen: EvalSet,
    with_flags: Callable[[Mapping[str, Any]], Settings],
    a: list[str],
    b: list[str],
    *,
    pairs: int,
    guard: float,
) -> Report:
    from dropscribe.audio.client import Reader
    from dropscribe.bench import configuration, running
    from dropscribe.bench import knobs as bench
    from dropscribe.bench.report import Report, measured

    first, second = configuration.configured("A", a, with_flags), configuration.configured("B", b, with_flags)
    options = {"mode": "ab", "a": a, "b": b, "pairs": pairs, "guard": guard}
    report = Report("knobs", bench.PAIR_COLUMNS, options=options)
    if first == configuration.configured("A", b, with_flags):
        say("A and B are the same: this shows how often chance alone finds a winner")
    configuration.check_models([first, second])
    with running.holding_gpu(say), Reader(first.settings.reader) as reader, status_line() as show:
        parts = bench.side_by_side(report, first, second, chosen, reader, pairs=pairs, guard=guard, say=show)
        measured(report, parts, say)
    return report


@contextmanager
def _set(folder: Path | None, settings: Settings, *, long_seconds: tuple[float, ...] | None) -> Iterator[EvalSet]:
    """A set that was made, or the bundled one for as long as it is used."""
    from dropscribe.bench import evalset

    if folder is not None:
        yield evalset.read(folder)
        return
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="dropscribe-") as made:
        yield evalset.bundled(Path(made), settings, long_seconds=evalset.LONG_SECONDS if long_seconds is None else ())


def _few(whole: EvalSet, count: int) -> EvalSet:
    """The shortest clips: many short runs say more than few long ones."""
    shortest = sorted(whole.entries, key=lambda entry: (entry.seconds, entry.file))[:count]
    return type(whole)(whole.folder, tuple(shortest))


def _named(folder: Path | None) -> str:
    return "bundled" if folder is None else str(folder)


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _short(value: object) -> object:
    return f"{value:.4g}" if isinstance(value, float) else value


def _leave(report: Report, *, failed: bool) -> None:
    if report.interrupted:
        raise typer.Exit(INTERRUPTED)
    raise typer.Exit(1 if failed else 0)


def _counted(show: Callable[[str], None], done: str) -> Callable[[str, float], None]:
    """Progress by seconds of audio."""
    total = 0.0

    def on_progress(name: str, seconds: float) -> None:
        nonlocal total
        total += seconds
        show(f"{total:.0f} s of audio {done}, at {name}")

    return on_progress
