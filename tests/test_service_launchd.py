"""The launchd agent: its property list, and installing it with a launchctl that answers as the real one was seen to."""

from __future__ import annotations

import dataclasses
import plistlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dropscribe.errors import ServiceError
from dropscribe.service.launchd import DRAIN_SECONDS, Launchd
from dropscribe.service.manager import Ran
from dropscribe.service.program import Program

if TYPE_CHECKING:
    from collections.abc import Sequence

# launchd.plist(5): the keys in use here, with the types it gives them
DOCUMENTED = {
    "Label": str, "ProgramArguments": list, "EnvironmentVariables": dict, "WorkingDirectory": str, "RunAtLoad": bool,
    "KeepAlive": dict, "ThrottleInterval": int, "ProcessType": str, "SoftResourceLimits": dict, "ExitTimeOut": int,
    "StandardOutPath": str, "StandardErrorPath": str,
}  # fmt: skip

TRY_AS_ROOT = "Try re-running the command as root for richer errors.\n"
# recorded: what launchctl said on macOS 13 to 27, by public reports
BOOTSTRAP_5 = Ran(5, stderr="Bootstrap failed: 5: Input/output error\n" + TRY_AS_ROOT)
BOOTSTRAP_37 = Ran(37, stderr="Bootstrap failed: 37: Operation already in progress\n")
BOOTSTRAP_119 = Ran(119, stderr="dropscribe.plist: Service is disabled\nBootstrap failed: 119: Service is disabled\n")
BOOTSTRAP_125 = Ran(125, stderr="Bootstrap failed: 125: Domain does not support specified action\n")
BOOTSTRAP_133 = Ran(133, stderr="dropscribe.plist: Invalid property list\n")
BOOTOUT_3 = Ran(3, stderr="Boot-out failed: 3: No such process\n")
BOOTOUT_5 = Ran(5, stderr="Boot-out failed: 5: Input/output error\n" + TRY_AS_ROOT)
BOOTOUT_36 = Ran(36, stderr="Boot-out failed: 36: Operation now in progress\n")
PRINT_113 = Ran(113, stderr='Bad request.\nCould not find service "dropscribe" in domain for user gui: 501\n')
PRINT_112 = Ran(112, stderr="Bad request.\nCould not find domain for user gui: 501\n")
PRINT_125 = Ran(125, stderr="Could not print domain: 125: Domain does not support specified action\n")
KICK_113 = Ran(113, stderr='Could not find service "dropscribe" in domain for user gui: 501\n')
KICK_37 = Ran(37, stderr='Could not kickstart service "dropscribe": 37: Operation already in progress\n')
RUNNING = """gui/501/dropscribe = {
\tactive count = 1
\tpath = /Users/me/Library/LaunchAgents/dropscribe.plist
\ttype = LaunchAgent
\tstate = running

\tprogram = /Users/me/.local/bin/python
\targuments = {
\t\t/Users/me/.local/bin/python
\t}

\tspawn type = interactive (4)
\truns = 1
\tpid = 4711
\timmediate reason = speculative
\tlast exit code = (never exited)

\tevent channels = {
\t\t"com.apple.xpc.activity" = {
\t\t\tstate = active
\t\t}
\t}
}
"""
ENDED = (
    RUNNING.replace("state = running", "state = not running")
    .replace("\tpid = 4711\n", "")
    .replace("(never exited)", "78: EX_CONFIG")
)


class FakeLaunchctl:
    """Records every call; loads and unloads as launchd does, a bootout taking its time. ``say`` overrides an answer."""

    def __init__(self, *, loaded: bool = False, drain: float = 0.0, session: bool = True) -> None:
        self.calls: list[list[str]] = []
        self.now = 0.0
        self.loaded, self.session = loaded, session
        self.running = loaded
        self._drain, self._gone_at = drain, 0.0
        self.say: dict[str, list[Ran]] = {}

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    @property
    def verbs(self) -> list[str]:
        return [call[0] for call in self.calls]

    def __call__(self, command: Sequence[str]) -> Ran:
        assert command[0] == "launchctl"
        call = list(command[1:])
        self.calls.append(call)
        if self.say.get(call[0]):
            return self.say[call[0]].pop(0)
        return getattr(self, f"_{call[0]}")()

    def _there(self) -> bool:
        return self.loaded or self.now < self._gone_at

    def _print(self) -> Ran:
        if not self.session:
            return PRINT_112
        return Ran(0, RUNNING if self.running else ENDED) if self._there() else PRINT_113

    def _enable(self) -> Ran:
        return Ran(0)

    def _bootstrap(self) -> Ran:
        if not self.session:
            return BOOTSTRAP_125
        if self._there():
            return BOOTSTRAP_5
        self.loaded = self.running = True
        return Ran(0)

    def _bootout(self) -> Ran:
        if not self.loaded:
            return BOOTOUT_3
        self.loaded = self.running = False
        self._gone_at = self.now + self._drain
        return Ran(0) if not self._drain else BOOTOUT_36

    def _kickstart(self) -> Ran:
        if not self._there():
            return KICK_113
        self.running = True
        return Ran(0)


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(
        python=Path("/opt/my tools/bin/python"),
        config=tmp_path / "a & b" / "dropscribe.toml",
        home=tmp_path,
        stderr=tmp_path / "Library/Logs/dropscribe/service.err",
        environment={"PATH": "/opt/homebrew/bin:/usr/bin:/bin", "PYTHONSAFEPATH": "1"},
    )


def agent(fake: FakeLaunchctl, home: Path) -> Launchd:
    return Launchd(run=fake, home=home, uid=501, clock=lambda: fake.now, sleep=fake.sleep)


def test_the_property_list_has_documented_keys_of_documented_types_only(program: Program, tmp_path: Path) -> None:
    plist = plistlib.loads(agent(FakeLaunchctl(), tmp_path).render(program).encode())
    assert set(plist) == set(DOCUMENTED)
    assert {key: type(value) for key, value in plist.items()} == DOCUMENTED
    assert plist["KeepAlive"] == {"SuccessfulExit": False}
    assert plist["ProcessType"] in {"Background", "Standard", "Adaptive", "Interactive"}
    assert plist["SoftResourceLimits"] == {"NumberOfFiles": 4096}
    assert (plist["ThrottleInterval"], plist["ExitTimeOut"]) == (30, 20)
    assert all(type(value) is str for value in plist["EnvironmentVariables"].values())
    assert plist["ProgramArguments"] == [
        "/opt/my tools/bin/python", "-m", "dropscribe", "run", "--config", str(program.config), "--service"
    ]  # fmt: skip
    assert "@" not in "".join(plist["ProgramArguments"]) + plist["StandardErrorPath"] + plist["WorkingDirectory"]


def test_installing_enables_loads_and_starts(program: Program, tmp_path: Path) -> None:
    fake = FakeLaunchctl()
    launchd = agent(fake, tmp_path)
    assert launchd.install(program).what == "installed"
    plist = str(tmp_path / "Library/LaunchAgents/dropscribe.plist")
    target = "gui/501/dropscribe"
    assert fake.calls == [
        ["print", target], ["enable", target], ["bootstrap", "gui/501", plist], ["kickstart", target]
    ]  # fmt: skip
    assert (launchd.unit.stat().st_mode & 0o777, str(launchd.unit)) == (0o644, plist)
    assert program.stderr.parent.is_dir()  # launchd cannot make it
    assert launchd.state().running


def test_installing_twice_is_installing_once(program: Program, tmp_path: Path) -> None:
    fake = FakeLaunchctl()
    launchd = agent(fake, tmp_path)
    launchd.install(program)
    before, fake.calls = launchd.unit.stat().st_mtime_ns, []
    assert launchd.install(program).what == "was installed already"
    assert launchd.unit.stat().st_mtime_ns == before
    assert fake.verbs == ["print", "kickstart"]  # without -k: one that runs is left alone


def test_an_upgrade_waits_until_the_old_one_has_drained(program: Program, tmp_path: Path) -> None:
    fake = FakeLaunchctl(drain=6.0)
    launchd = agent(fake, tmp_path)
    launchd.install(program)
    fake.calls = []
    newer = Program(Path("/new/python"), program.config, program.home, program.stderr, program.environment)
    assert launchd.install(newer).what == "installed anew"
    assert fake.verbs[:2] == ["print", "bootout"]
    assert fake.verbs[-3:] == ["enable", "bootstrap", "kickstart"]
    assert 6.0 <= fake.now < DRAIN_SECONDS
    assert b"/new/python" in launchd.unit.read_bytes()
    assert fake.running


def test_a_new_version_at_the_same_place_is_started_anew(program: Program, tmp_path: Path) -> None:
    fake = FakeLaunchctl()
    launchd = agent(fake, tmp_path)
    launchd.install(program)
    fake.calls = []
    assert launchd.install(dataclasses.replace(program, version="99.0")).what == "installed anew"
    assert fake.verbs[:2] == ["print", "bootout"]
    assert b"<!-- dropscribe 99.0 -->" in launchd.unit.read_bytes()
    assert plistlib.loads(launchd.unit.read_bytes())["Label"] == "dropscribe"


def test_error_5_while_draining_is_tried_again_for_fifteen_seconds(program: Program, tmp_path: Path) -> None:
    fake = FakeLaunchctl()
    fake.say["bootstrap"] = [BOOTSTRAP_5] * 8 + [BOOTSTRAP_37] * 2
    agent(fake, tmp_path).install(program)
    assert fake.verbs.count("bootstrap") == 11
    assert fake.now == 5.0

    stuck = FakeLaunchctl()
    stuck.say["bootstrap"] = [BOOTSTRAP_5] * 1000
    with pytest.raises(ServiceError, match=r"within 15 s: Bootstrap failed: 5.*log out and in"):
        agent(stuck, tmp_path).start()
    assert stuck.now == DRAIN_SECONDS


def test_error_5_because_it_is_loaded_already_is_no_error(program: Program, tmp_path: Path) -> None:
    fake = FakeLaunchctl(loaded=True)
    fake.say["print"] = [PRINT_113]  # somebody loads it between our question and our answer
    launchd = agent(fake, tmp_path)
    launchd.install(program)
    assert fake.verbs == ["print", "enable", "bootstrap", "print", "kickstart"]
    assert fake.now == 0.0


def test_one_that_goes_between_the_question_and_the_kickstart_is_loaded_again(program: Program, tmp_path: Path) -> None:
    fake = FakeLaunchctl()
    launchd = agent(fake, tmp_path)
    launchd.install(program)
    fake.calls, fake.loaded = [], False
    fake.say["print"] = [Ran(0, RUNNING)]
    launchd.start()
    assert fake.verbs == ["print", "kickstart", "enable", "bootstrap", "kickstart"]
    assert fake.running


@pytest.mark.parametrize("answer", [PRINT_112, PRINT_125])
def test_over_ssh_without_a_graphical_session_it_says_where_the_service_lives(
    program: Program, tmp_path: Path, answer: Ran
) -> None:
    fake = FakeLaunchctl(session=False)
    fake.say["print"] = [answer] * 2
    launchd = agent(fake, tmp_path)
    with pytest.raises(ServiceError, match=r"graphical session.*Screen Sharing.*dropscribe run"):
        launchd.install(program)
    assert launchd.unit.exists()  # it is loaded at the next login
    state = launchd.state()
    assert (state.installed, state.reachable, state.running) == (True, False, False)
    assert launchd.uninstall().what == "uninstalled"
    assert not launchd.unit.exists()


def test_a_domain_error_of_bootstrap_alone_is_the_same(program: Program, tmp_path: Path) -> None:
    fake = FakeLaunchctl()
    fake.say["bootstrap"] = [BOOTSTRAP_125]
    with pytest.raises(ServiceError, match="graphical session"):
        agent(fake, tmp_path).install(program)


def test_a_disabled_label_is_enabled_and_a_refused_plist_is_said_so(program: Program, tmp_path: Path) -> None:
    fake = FakeLaunchctl()
    fake.say["bootstrap"] = [BOOTSTRAP_119]
    agent(fake, tmp_path).install(program)
    assert fake.running
    wrong = FakeLaunchctl()
    wrong.say["bootstrap"] = [BOOTSTRAP_133]
    with pytest.raises(ServiceError, match="Invalid property list"):
        agent(wrong, tmp_path).start()


@pytest.mark.parametrize("answer", [Ran(0), BOOTOUT_3, BOOTOUT_5, BOOTOUT_36])
def test_uninstalling_is_done_when_launchd_no_longer_knows_it(program: Program, tmp_path: Path, answer: Ran) -> None:
    fake = FakeLaunchctl()
    launchd = agent(fake, tmp_path)
    launchd.install(program)
    data = tmp_path / "jobs.db"
    data.write_text("mine")
    fake.say["bootout"] = [answer]
    fake.loaded = False
    fake.say["print"] = [Ran(0, RUNNING)]
    assert launchd.uninstall().what == "uninstalled"
    assert not launchd.unit.exists()
    assert data.read_text() == "mine"
    assert launchd.uninstall().what == "was not installed"


def test_one_that_does_not_go_is_said_so(program: Program, tmp_path: Path) -> None:
    fake = FakeLaunchctl(loaded=True)
    fake.say["bootout"] = [BOOTOUT_36]
    with pytest.raises(ServiceError, match="still being unloaded after 15 s"):
        agent(fake, tmp_path).stop()


def test_stopping_and_starting(program: Program, tmp_path: Path) -> None:
    fake = FakeLaunchctl(drain=2.0)
    launchd = agent(fake, tmp_path)
    with pytest.raises(ServiceError, match="dropscribe service install"):
        launchd.start()
    launchd.install(program)
    assert launchd.stop().what == "stopped"
    assert not launchd.state().loaded
    assert launchd.stop().what == "was not running"
    launchd.start()
    assert launchd.state().running
    fake.say["kickstart"] = [KICK_37]
    launchd.start()


def test_the_state_is_read_from_the_services_own_lines(tmp_path: Path) -> None:
    fake = FakeLaunchctl(loaded=True)
    state = agent(fake, tmp_path).state()
    assert (state.running, state.pid, state.last_exit, state.installed) == (True, 4711, None, False)
    fake.running = False
    state = agent(fake, tmp_path).state()
    assert (state.loaded, state.running, state.pid, state.last_exit) == (True, False, None, "78: EX_CONFIG")
    fake.loaded = False
    assert agent(fake, tmp_path).state().reachable


def test_what_launchctl_was_never_seen_to_say_is_passed_on(program: Program, tmp_path: Path) -> None:
    fake = FakeLaunchctl()
    fake.say["print"] = [Ran(1, stderr="Operation not permitted\n")] * 2
    with pytest.raises(ServiceError, match="Operation not permitted"):
        agent(fake, tmp_path).install(program)
    assert agent(fake, tmp_path).state().detail == "Operation not permitted"
