"""Dropscribe as a service: ``service …``, ``doctor`` and ``config schema``."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from dropscribe.cli_common import (
    ConfigOption,
    JsonOption,
    ModelOption,
    config_path,
    like_a_filter,
    load,
    print_line,
    say,
)
from dropscribe.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from dropscribe.service.manager import Done

service_app = typer.Typer(
    help="Run it in the background from login on: a launchd agent on macOS, a systemd user unit on Linux. No sudo.",
    no_args_is_help=True,
)


def register(app: typer.Typer, config_app: typer.Typer) -> None:
    """Put the commands of this module under ``app``, and the schema under ``config_app``."""
    app.add_typer(service_app, name="service")
    app.command("doctor")(doctor)
    config_app.command("schema")(config_schema)


@service_app.command("install")
def install(config: ConfigOption = None) -> None:
    """Install and start the service; installed already, it is brought up to date in place."""
    from dropscribe.service import manager
    from dropscribe.service.program import program_of

    path = config_path(config)
    if not path.exists():
        raise ConfigError(f"{path}: no such file; `dropscribe config init` writes a commented one")
    load(path).for_watching()
    _forget_starts()
    _report(manager.current().install(program_of(path)))
    _warn_of_environment()


@service_app.command("uninstall")
def uninstall() -> None:
    """Stop and remove the service. Settings, job log, transcripts and models stay."""
    from dropscribe.service import manager

    _report(manager.current().uninstall())
    _forget_starts()
    say("settings, job log, transcripts and models are where they were")


@service_app.command("start")
def start() -> None:
    """Start the installed service, also after it gave up."""
    from dropscribe.service import manager

    _forget_starts()
    _report(manager.current().start())


@service_app.command("stop")
def stop() -> None:
    """Stop it until the next start or login; what is being transcribed is handed back within ten seconds."""
    from dropscribe.service import manager

    _report(manager.current().stop())


@service_app.command("status")
def status(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Say whether it runs, what it does, and if not, why. Exit status 0: it runs, 1: it does not."""
    from dropscribe.service import manager
    from dropscribe.service import status as service_status

    like_a_filter()
    path = config_path(config)
    try:
        loaded = load(config)
    except ConfigError as error:
        loaded = None
        say(f"dropscribe: {error}")
    found = service_status.status_of(manager.current(), path, loaded)
    if as_json:
        print_line(json.dumps(found.record(), ensure_ascii=False, indent=2))
    else:
        for line in service_status.lines(found):
            print_line(line)
    raise typer.Exit(0 if found.running else 1)


@service_app.command("logs")
def logs(
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="So many of the last lines.")] = 50,
) -> None:
    """Print the service's log. Its older parts lie beside it as dropscribe.log.1 to .4."""
    from dropscribe import logfile
    from dropscribe.service.places import log_file

    like_a_filter()
    path = log_file()
    if not path.exists():
        early = path.with_name("service.err") if sys.platform == "darwin" else "`journalctl --user -u dropscribe`"
        say(f"no log yet ({path}): the service has not come so far; {early} may say why")
    for line in logfile.tail(path, lines):
        print_line(line)
    if follow:
        try:
            for line in logfile.follow(path):
                print_line(line)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


@service_app.command("pause")
def pause(config: ConfigOption = None) -> None:
    """Transcribe nothing until `resume`, over restarts too. Files are noticed and queued all the same."""
    _set_paused(config, paused=True)


@service_app.command("resume")
def resume(config: ConfigOption = None) -> None:
    """Go on after `pause`."""
    _set_paused(config, paused=False)


def _set_paused(config: Path | None, *, paused: bool) -> None:
    from contextlib import closing

    from dropscribe.jobs.database import open_database
    from dropscribe.jobs.queue import Queue

    with closing(open_database(load(config).database)) as db:
        Queue(db).set_service(paused=int(paused))
    print_line("paused: what runs is handed back, what comes is queued" if paused else "resumed")


def doctor(
    config: ConfigOption = None,
    model: ModelOption = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Leave out what loads the model: seconds instead of a minute.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Look at all that dropscribe needs; name what is wrong and its remedy. Exit status 1: something must be fixed."""
    from dropscribe.service import doctor as examine
    from dropscribe.service import manager

    findings = []
    for finding in examine.examine(config_path(config), config, model, manager.current, quick=quick):
        findings.append(finding)
        if not as_json:
            for line in examine.lines(finding):
                print_line(line)
    wrong = [finding for finding in findings if finding.status == "problem"]
    if as_json:
        print_line(
            json.dumps(
                {"ok": not wrong, "findings": [finding.record() for finding in findings]}, ensure_ascii=False, indent=2
            )
        )
    else:
        unsure = sum(finding.status == "warning" for finding in findings)
        say(f"{len(wrong)} to be fixed, {unsure} to know about")
    raise typer.Exit(1 if wrong else 0)


def config_schema() -> None:
    """Print the JSON Schema of the settings, for editors that complete and check TOML by one."""
    from dropscribe.settings import json_schema

    print_line(json.dumps(json_schema(), indent=2, ensure_ascii=False))


def _report(done: Done) -> None:
    print_line(done.what)
    for hint in done.hints:
        say(hint)


def _forget_starts() -> None:
    from dropscribe.service.places import starts_file
    from dropscribe.service.starts import Starts

    Starts(starts_file()).clear()


def _warn_of_environment() -> None:
    import os

    from dropscribe import settings

    mine = sorted(name for name in os.environ if name.startswith(settings.ENV_PREFIX) and name != settings.CONFIG_ENV)
    if mine:
        say(f"the service does not see {', '.join(mine)} of this shell; what they set belongs in the settings file")
