"""``run --service``: what ends it for good, what makes it try again, and what can be seen of it from outside."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import real_daemon
from dropscribe.errors import AlreadyRunning, ConfigError, DiskFull, SchemaTooNew
from dropscribe.service import daemon, program
from dropscribe.service import status as service_status
from dropscribe.service.daemon import run_as_service
from dropscribe.service.manager import State
from dropscribe.service.starts import MOST, WITHIN, Starts
from dropscribe.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from real_daemon import Place


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def starts(tmp_path: Path) -> Starts:
    return Starts(tmp_path / "state" / "service.json", clock=Clock())


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.model_validate({"database": str(tmp_path / "jobs.db"), "watch": [{"path": str(tmp_path / "in")}]})


def serve(starts: Starts, run: Any, settings: Settings | Exception, **options: Any) -> tuple[int, str]:
    """Exit code and log of one start. In a thread, so that no handler of this process's signals is touched."""

    def load() -> Settings:
        if isinstance(settings, Exception):
            raise settings
        return settings

    codes: list[int] = []
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stderr", said)  # while pytest captures, it is not descriptor 2
        log = starts.path.parent.with_name("log") / "dropscribe.log"
        thread = threading.Thread(
            target=lambda: codes.append(run_as_service(load, log_path=log, starts=starts, run=run, **options))
        )
        thread.start()
        thread.join()
    assert log.exists()
    return codes[0], said.getvalue()


def raising(*errors: Exception) -> Any:
    left = list(errors)

    def run(_settings: Settings, *, service: bool) -> int:
        assert service
        if left:
            raise left.pop(0)
        return 0

    return run


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ConfigError("c.toml: `decode.batch_sise` is not a setting"), "config"),
        (SchemaTooNew("jobs.db was written by a newer dropscribe"), "schema_too_new"),
        (AlreadyRunning("dropscribe already runs on jobs.db (process 4711)"), "already_running"),
    ],
)
def test_what_no_start_can_mend_ends_it_for_good(starts: Starts, settings: Settings, error: Any, kind: str) -> None:
    code, log = serve(starts, raising(error), settings if kind != "config" else error)
    assert code == 0  # launchd and systemd leave it alone after that
    record = starts.read()
    assert (record.error_kind, record.error, record.gave_up_at) == (kind, str(error), 1000.0)
    assert "event=gave_up" in log
    assert "Traceback" not in log


def test_a_crash_is_started_again_five_times_in_ten_minutes_and_no_more(starts: Starts, settings: Settings) -> None:
    for _ in range(MOST):
        assert serve(starts, raising(RuntimeError("boom")), settings)[0] == 1
    code, log = serve(starts, raising(), settings)
    assert code == 0
    assert starts.read().gave_up_at == 1000.0
    assert starts.read().error == "started 5 times within 10 minutes; the last one ended with: RuntimeError: boom"
    assert "event=gave_up" in log
    assert serve(starts, raising(), settings)[0] == 0  # by hand, or at the next login
    assert starts.read().gave_up_at is None


def test_starts_that_ended_in_order_or_long_ago_do_not_count(starts: Starts, settings: Settings) -> None:
    for _ in range(3 * MOST):
        assert serve(starts, raising(), settings)[0] == 0
    assert starts.read().starts == []
    for _ in range(3 * MOST):
        assert starts.begin()
        starts._clock.now += WITHIN / (MOST - 1)  # type: ignore[attr-defined]


def test_a_passing_trouble_is_waited_out(starts: Starts, settings: Settings) -> None:
    run = raising(DiskFull("no space left"), DiskFull("no space left"))
    code, log = serve(starts, run, settings, again_seconds=0.01)
    assert code == 0
    assert log.count("event=cannot_start_yet") == 2
    assert starts.read().error is None


def test_a_damaged_or_unwritable_record_costs_nothing(tmp_path: Path, settings: Settings) -> None:
    for text in ("", "[]", '{"starts": "x"}', '{"unknown": 1}', "null"):
        starts = Starts(tmp_path / "service.json")
        starts.path.write_text(text)
        assert starts.begin()
    nowhere = Starts(Path("/dev/null/service.json"))
    assert nowhere.begin()
    nowhere.fault("config", "x", gave_up=True)
    nowhere.ended_in_order()
    nowhere.clear()


def test_the_managers_file_of_stderr_does_not_grow(tmp_path: Path) -> None:
    path = tmp_path / "service.err"
    path.write_bytes(b"x" * 1000)
    with path.open("ab") as file:
        daemon.cut_stderr(file.fileno())
        assert path.stat().st_size == 1000
        file.write(b"x" * daemon.STDERR_BYTES)
        file.flush()
        daemon.cut_stderr(file.fileno())
        assert path.stat().st_size == 0


# -- what a service may be made of -------------------------------------------------------------------------------------


class Distribution:
    def __init__(self, origin: object) -> None:
        self.origin = origin

    def read_text(self, _name: str) -> str | None:
        return None if self.origin is None else json.dumps(self.origin)


def installed(monkeypatch: pytest.MonkeyPatch, origin: object) -> None:
    monkeypatch.setattr(program.metadata, "distribution", lambda _name: Distribution(origin))


def test_an_editable_installation_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, {"url": "file:///home/me/dropscribe", "dir_info": {"editable": True}})
    with pytest.raises(program.ServiceError, match=r"editable.*uv tool install"):
        program.check_installation("/home/me/.venv/bin/python")
    installed(monkeypatch, {"url": "file:///home/me/dropscribe", "dir_info": {}})
    program.check_installation("/home/me/.venv/bin/python")
    installed(monkeypatch, None)
    program.check_installation("/home/me/.venv/bin/python")


def test_a_checkout_and_a_throw_away_environment_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, None)
    for python in ("/home/me/.cache/uv/archive-v0/xyz/bin/python", "/Users/me/.cache/pipx/ab/bin/python"):
        with pytest.raises(program.ServiceError, match="throw-away"):
            program.check_installation(python)

    with pytest.raises(program.ServiceError, match="folder for temporary files"):
        program.check_installation(str(Path(tempfile.gettempdir()) / "venv/bin/python"))

    def missing(_name: str) -> None:
        raise program.metadata.PackageNotFoundError

    monkeypatch.setattr(program.metadata, "distribution", missing)
    with pytest.raises(program.ServiceError, match="without being installed"):
        program.check_installation("/usr/bin/python3")


def test_the_interpreter_is_named_by_a_path_that_outlives_an_upgrade(tmp_path: Path) -> None:
    versioned = tmp_path / "Cellar/python@3.12/3.12.3/bin/python3.12"
    stays = tmp_path / "opt/python@3.12/bin/python3.12"
    assert program.stable_python(str(versioned)) == versioned
    stays.parent.mkdir(parents=True)
    stays.touch()
    assert program.stable_python(str(versioned)) == stays
    link = tmp_path / "venv/bin/python"
    link.parent.mkdir(parents=True)
    link.symlink_to(stays)
    assert program.stable_python(str(link)) == link  # not what it leads to


def test_the_service_gets_a_path_and_what_says_where_models_are_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, None)
    monkeypatch.setattr(program, "check_installation", lambda: None)
    made = program.program_of(
        Path("c.toml"), {"HF_HOME": "/big/hf", "HF_TOKEN": "secret", "PATH": "/mine", "LANG": "de"}
    )
    assert made.environment["HF_HOME"] == "/big/hf"
    assert made.environment["PYTHONSAFEPATH"] == "1"
    assert {"/usr/local/bin", "/usr/bin", "/bin"} <= set(made.environment["PATH"].split(":"))
    monkeypatch.setattr(program.sys, "platform", "darwin")
    assert program.program_of(Path("c.toml"), {}).environment["PATH"].startswith("/opt/homebrew/bin:")
    assert not {"HF_TOKEN", "LANG"} & set(made.environment)
    assert made.config == Path.cwd() / "c.toml"


# -- status ------------------------------------------------------------------------------------------------------------


class FakeManager:
    name = "launchd"

    def __init__(self, unit: Path, state: State) -> None:
        self.unit, self._state = unit, state

    def state(self) -> State:
        return self._state


def status_with(state: State, settings: Settings, starts: Starts) -> service_status.Status:
    manager: Any = FakeManager(Path("/x.plist"), state)
    return service_status.status_of(manager, settings.database.with_name("c.toml"), settings, starts=starts)


def test_status_says_why_it_gave_up(starts: Starts, settings: Settings) -> None:
    starts.begin()
    starts.fault("config", "c.toml: `watch` is missing", gave_up=True)
    status = status_with(State(installed=True, loaded=True), settings, starts)
    text = "\n".join(service_status.lines(status))
    assert "not running" in text
    assert "it gave up: c.toml: `watch` is missing (config, 1970-01-01 00:16 UTC)" in text
    assert "dropscribe service start" in text
    running = status_with(State(installed=True, loaded=True, running=True, pid=1), settings, starts)
    assert running.gave_up is None


def test_status_claims_nothing_about_a_job_log_it_cannot_find(starts: Starts) -> None:
    manager: Any = FakeManager(Path("/x.plist"), State(installed=True, loaded=True, running=True, pid=1))
    status = service_status.status_of(manager, Path("/x.toml"), None, starts=starts)
    text = "\n".join(service_status.lines(status))
    assert "running (by launchd, process 1)" in text
    assert "cannot be told" in text
    assert "idle" not in text
    assert status.record()["queued"] is None


def test_status_of_nothing_and_of_a_crash(starts: Starts, settings: Settings) -> None:
    assert "service install" in service_status.lines(status_with(State(installed=False), settings, starts))[0]
    ended = status_with(State(installed=True, loaded=True, last_exit="78: EX_CONFIG"), settings, starts)
    assert "  last exit: 78: EX_CONFIG" in service_status.lines(ended)
    json.dumps(ended.record())


# -- the real program --------------------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with real_daemon.Place(tmp_path) as made:
        home = tmp_path / "home"
        home.mkdir()
        made.env |= {"HOME": str(home), "XDG_STATE_HOME": str(home / "state"), "XDG_CONFIG_HOME": str(home / "config")}
        yield made


def seen(place: Place) -> service_status.Status:
    manager: Any = FakeManager(Path("/x.plist"), State(installed=False))
    return service_status.status_of(manager, place.config, place.settings, starts=Starts(place.base / "none"))


def test_a_service_logs_to_its_own_file_and_can_be_paused_and_asked(place: Place) -> None:
    process = place.start("--service")
    place.until(lambda: place.value("SELECT pid FROM service") == process.pid)
    status = seen(place)
    assert (status.running, status.by_hand, status.pid) == (True, True, process.pid)
    assert (status.paused, status.config_newer) == (False, False)
    second = place.start("--service")  # stays down while the first one runs, and says who is there

    assert place.command("service", "pause").returncode == 0
    place.drop(real_daemon.clips(1)[0])
    place.until(lambda: place.value("SELECT count(*) FROM jobs"))
    newer = place.config.stat().st_mtime + 60
    os.utime(place.config, (newer, newer))
    status = seen(place)
    assert (status.paused, status.queued, status.working, status.config_newer) == (True, 1, False, True)
    assert second.wait(60) == 0

    assert place.command("service", "resume").returncode == 0
    place.until(lambda: "done" in place.states().values(), 120)
    place.until(lambda: not place.value("SELECT count(*) FROM jobs WHERE state IN ('queued', 'running')"))
    assert place.value("SELECT worker_pid FROM service") is not None, "it keeps the model for the next file"
    assert not seen(place).working
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0
    assert not seen(place).running
    shown = [sys.executable, "-m", "dropscribe", "service", "logs", "-n", "1000"]
    log = subprocess.run(shown, capture_output=True, text=True, check=True, timeout=60, env=place.env).stdout
    assert "event=started" in log
    assert f"(process {process.pid})" in log
    assert "event=stopping" in log
    text = place.job("clip001.flac")["text"]
    assert text
    assert text not in log
    assert place.log.read_text() == ""  # nothing for the manager's own file
    place.check()


def test_a_bad_setting_ends_the_service_with_0_and_status_says_why(place: Place) -> None:
    place.config.write_text("[decode]\nbatch_sise = 2\n")
    assert place.start("--service").wait(60) == 0
    done = place.command("service", "status")
    assert "is not a setting; did you mean `batch_size`?" in done.stderr
    assert "it gave up" in done.stdout
    assert "batch_sise" in done.stdout
