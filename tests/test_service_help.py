"""``--help`` is the manual: every command and every option says what it is for; shells can complete them."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import typer

from dropscribe.cli import app

if TYPE_CHECKING:
    from collections.abc import Iterator


def commands(command: Any, name: str = "dropscribe") -> Iterator[tuple[str, Any]]:
    yield name, command
    for below, child in getattr(command, "commands", {}).items():
        yield from commands(child, f"{name} {below}")


def test_every_command_and_every_option_explains_itself() -> None:
    found = dict(commands(typer.main.get_command(app)))
    assert {"dropscribe service install", "dropscribe doctor", "dropscribe config schema"} <= set(found)
    for name, command in found.items():
        assert command.help, name
        for parameter in command.params:
            assert getattr(parameter, "hidden", False) or parameter.help, f"{name}: {parameter.name}"


def complete(words: str) -> str:
    env = {**os.environ, "_DROPSCRIBE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": "2"}
    return subprocess.run(
        [sys.executable, "-c", "import sys; sys.argv[0] = 'dropscribe'; from dropscribe.cli import main; main()"],
        capture_output=True, text=True, check=False, timeout=60, env=env,
    ).stdout  # fmt: skip


def test_a_shell_completes_commands() -> None:
    assert complete("dropscribe service s").split() == ["start", "stop", "status"]
