"""The systemd user unit: what it says, and installing it against a systemctl that records its calls."""

from __future__ import annotations

import configparser
import dataclasses
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dropscribe.errors import ServiceError
from dropscribe.service.manager import Ran, run
from dropscribe.service.program import Program
from dropscribe.service.systemd import Systemd, quoted

if TYPE_CHECKING:
    from collections.abc import Sequence

NO_BUS = Ran(1, stderr="Failed to connect to bus: No medium found\n")
NEWER_NO_BUS = Ran(
    1,
    stderr="Failed to connect to user scope bus via local transport: $DBUS_SESSION_BUS_ADDRESS and $XDG_RUNTIME_DIR "
    "not defined (consider using --machine=<user>@.host --user to connect to bus of other user)\n",
)


PROPERTIES = ("LoadState", "ActiveState", "SubState", "MainPID", "ExecMainCode", "ExecMainStatus", "Result")


def shown(*values: object) -> str:
    return "".join(f"{name}={value}\n" for name, value in zip(PROPERTIES, values, strict=True))


ACTIVE = shown("loaded", "active", "running", 4711, 0, 0, "success")
FAILED = shown("loaded", "failed", "failed", 0, 1, 1, "exit-code")
MISSING = shown("not-found", "inactive", "dead", 0, 0, 0, "success")


class FakeSystemctl:
    """Records every call."""

    def __init__(self, *, linger: str = "Linger=no\n", bus: Ran | None = None) -> None:
        self.calls: list[list[str]] = []
        self.linger, self.bus = linger, bus
        self.shows = ACTIVE

    def __call__(self, command: Sequence[str]) -> Ran:
        if command[0] == "loginctl":
            return Ran(0, self.linger)
        assert command[:2] == ["systemctl", "--user"]
        self.calls.append(list(command[2:]))
        if self.bus is not None:
            return self.bus
        return Ran(0, self.shows if command[2] == "show" else "")

    @property
    def verbs(self) -> list[str]:
        return [call[0] for call in self.calls]


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(
        python=Path(sys.executable),
        config=tmp_path / "50% of $me" / 'a "b".toml',
        home=tmp_path,
        stderr=tmp_path / "log" / "service.err",
        environment={"PATH": "/usr/bin:/bin", "PYTHONSAFEPATH": "1", "HF_HOME": "/big disk/hf"},
    )


def unit_of(program: Program, tmp_path: Path) -> configparser.RawConfigParser:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(Systemd(run=FakeSystemctl(), config_home=tmp_path).render(program))
    return unit


def test_the_unit_gives_up_survives_a_poison_file_and_stops_in_order(program: Program, tmp_path: Path) -> None:
    unit = unit_of(program, tmp_path)
    assert (unit["Unit"]["StartLimitIntervalSec"], unit["Unit"]["StartLimitBurst"]) == ("600", "10")
    assert "StartLimitBurst" not in unit["Service"]  # where systemd would ignore it
    service = unit["Service"]
    assert (service["OOMPolicy"], service["Restart"], service["KillMode"]) == ("continue", "on-failure", "mixed")
    assert int(service["TimeoutStopSec"]) >= 15
    assert unit["Install"]["WantedBy"] == "default.target"
    assert service["ExecStart"].endswith("--service")


def test_words_are_written_as_systemd_reads_them() -> None:
    assert quoted("/usr/bin/python3") == "/usr/bin/python3"
    assert quoted("/a b/c") == '"/a b/c"'
    assert quoted('50% of $me "x" \\') == '"50%% of $$me \\"x\\" \\\\"'
    assert quoted("HF_HOME=/a b$", dollars=False) == '"HF_HOME=/a b$"'


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not on this machine")
def test_systemd_itself_accepts_the_unit(program: Program, tmp_path: Path) -> None:
    unit = tmp_path / "dropscribe.service"
    unit.write_text(Systemd(run=FakeSystemctl(), config_home=tmp_path).render(program))
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    done = subprocess.run(
        ["systemd-analyze", "--user", "verify", str(unit)], capture_output=True, text=True, check=False,
        env={**os.environ, "XDG_RUNTIME_DIR": str(runtime)}, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_installing_writes_enables_and_starts_and_hints_at_lingering(program: Program, tmp_path: Path) -> None:
    fake = FakeSystemctl()
    systemd = Systemd(run=fake, config_home=tmp_path)
    done = systemd.install(program)
    assert (done.what, "enable-linger" in " ".join(done.hints)) == ("installed", True)
    assert fake.verbs == ["show-environment", "daemon-reload", "reset-failed", "enable", "start"]
    assert systemd.unit == tmp_path / "systemd/user/dropscribe.service"
    fake.calls, fake.linger = [], "Linger=yes\n"
    again = systemd.install(program)
    assert (again.what, again.hints, fake.verbs[-1]) == ("was installed already", [], "start")
    fake.calls = []
    newer = Program(Path("/new/python"), program.config, program.home, program.stderr, program.environment)
    assert systemd.install(newer).what == "installed anew"
    assert fake.verbs[-1] == "restart"
    fake.calls = []
    assert systemd.install(dataclasses.replace(newer, version="99.0")).what == "installed anew"  # at the same place
    assert fake.verbs[-1] == "restart"


def test_uninstalling_leaves_data(program: Program, tmp_path: Path) -> None:
    fake = FakeSystemctl()
    systemd = Systemd(run=fake, config_home=tmp_path)
    assert systemd.uninstall().what == "was not installed"
    systemd.install(program)
    fake.calls = []
    assert systemd.uninstall().what == "uninstalled"
    assert fake.calls[0] == ["disable", "--now", "dropscribe.service"]
    assert not systemd.unit.exists()
    assert program.stderr.parent.is_dir()


@pytest.mark.parametrize("bus", [NO_BUS, NEWER_NO_BUS])
def test_without_a_user_manager_nothing_is_written_and_the_other_way_is_named(
    program: Program, tmp_path: Path, bus: Ran
) -> None:
    systemd = Systemd(run=FakeSystemctl(bus=bus), config_home=tmp_path)
    with pytest.raises(ServiceError, match=r"user manager cannot be reached.*`dropscribe run` in the foreground"):
        systemd.install(program)
    assert not systemd.unit.exists()
    state = systemd.state()
    assert (state.installed, state.reachable) == (False, False)


def test_a_missing_systemctl_is_no_traceback(tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match="no-such-program is not there"):
        run(["no-such-program"])


def test_the_state_is_what_systemctl_shows(tmp_path: Path) -> None:
    fake = FakeSystemctl()
    systemd = Systemd(run=fake, config_home=tmp_path)
    state = systemd.state()
    assert (state.loaded, state.running, state.pid, state.last_exit) == (True, True, 4711, None)
    fake.shows = FAILED
    state = systemd.state()
    assert (state.running, state.pid, state.last_exit) == (False, None, "1 (exit-code)")
    fake.shows = MISSING
    assert not systemd.state().loaded


def test_starting_needs_an_installed_unit_and_forgets_its_limit(program: Program, tmp_path: Path) -> None:
    fake = FakeSystemctl()
    systemd = Systemd(run=fake, config_home=tmp_path)
    with pytest.raises(ServiceError, match="service install"):
        systemd.start()
    systemd.install(program)
    fake.calls = []
    systemd.start()
    systemd.stop()
    assert fake.verbs == ["reset-failed", "start", "stop"]
