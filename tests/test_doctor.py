"""The doctor on set-ups that are broken on purpose: each is named, with what to do about it."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import real_daemon
from dropscribe.errors import ConfigError
from dropscribe.instance import InstanceLock
from dropscribe.jobs.database import open_database, transaction
from dropscribe.jobs.queue import Queue
from dropscribe.service import check_files, check_model, check_service, check_system, clip, doctor
from dropscribe.service.manager import State
from dropscribe.service.starts import Starts
from dropscribe.settings import Settings, to_toml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from dropscribe.service.doctor import Finding


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in list(os.environ):
        if name.startswith("DROPSCRIBE_"):
            monkeypatch.delenv(name)
    for name, value in {
        "HOME": "",
        "XDG_CONFIG_HOME": "config",
        "XDG_DATA_HOME": "data",
        "XDG_STATE_HOME": "state",
    }.items():
        monkeypatch.setenv(name, str(tmp_path / value))
    return tmp_path


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "in").mkdir()
    watch = [{"path": str(tmp_path / "in")}]
    return Settings.model_validate({
        "database": str(tmp_path / "jobs.db"), "watch": watch, "model": str(real_daemon.MODEL)
    })  # fmt: skip


class FakeManager:
    name = "launchd"

    def __init__(self, unit: Path, state: State) -> None:
        self.unit, self._state = unit, state

    def state(self) -> State:
        return self._state


def manager(state: State | None = None, unit: Path = Path("/nowhere.plist")) -> Any:
    return lambda: FakeManager(unit, state or State(installed=False))


def only(found: Iterable[Finding], status: str) -> Finding:
    """The one finding of that status; it must name a remedy."""
    [finding] = [finding for finding in found if finding.status == status]
    assert finding.remedy
    assert finding.message
    return finding


def examine(path: Path, **options: Any) -> list[Finding]:
    return list(doctor.examine(path, path, None, options.pop("manager", manager()), quick=True, **options))


def test_a_sound_set_up_has_no_problem(settings: Settings, home: Path) -> None:
    path = home / "c.toml"
    path.write_text(to_toml(settings))
    found = examine(path)
    assert not [finding for finding in found if finding.status == "problem"]
    checks = [finding.check for finding in found]
    assert checks == [
        "python", "sqlite", "settings", "job log", "folders", "disk", "events", "lock", "service", "model"
    ]  # fmt: skip
    assert not settings.database.exists()  # a doctor changes nothing


# -- ten broken set-ups ------------------------------------------------------------------------------------------------


def test_1_a_missing_model(settings: Settings, home: Path) -> None:
    finding = only(check_model.model(settings.model_copy(update={"model": str(home / "no-model")})), "problem")
    assert finding.check == "model"
    assert "no such directory" in finding.message
    assert "connect to the network" in str(finding.remedy)


def refuse(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def scandir(path: object) -> None:
        raise PermissionError(number, os.strerror(number), str(path))

    monkeypatch.setattr(check_files.os, "scandir", scandir)


def test_2_an_unreadable_folder(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, errno.EACCES)
    for system in ("darwin", "linux"):
        finding = only(check_files.folders(settings, system=system), "problem")
        assert "Permission denied" in finding.message
        assert "chmod u+rx" in str(finding.remedy)


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        ("Operation not permitted; allow reading it", r"Privacy & Security .*Files & Folders"),
        ("Permission denied; allow reading it", r"chmod u\+rx"),
    ],
)
def test_2_a_folder_that_only_the_service_cannot_read(settings: Settings, error: str, remedy: str) -> None:
    db = open_database(settings.database)
    queue = Queue(db)
    queue.root_scanned(queue.ensure_root(settings.watch[0].path), state="unreadable", error=error)
    db.close()
    finding = only(check_files.folders(settings, system="darwin"), "problem")
    assert "the service could not" in finding.message
    assert re.search(remedy, str(finding.remedy))


def test_2_macos_privacy_is_told_from_permissions_in_this_shell_too(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch, errno.EPERM)
    finding = only(check_files.folders(settings, system="darwin"), "problem")
    assert "System Settings" in str(finding.remedy)
    assert str(Path(sys.executable).resolve()) in str(finding.remedy)
    assert "System Settings" not in str(only(check_files.folders(settings, system="linux"), "problem").remedy)


def test_2_a_folder_that_is_not_there(settings: Settings) -> None:
    settings.watch[0].path.rmdir()
    finding = only(check_files.folders(settings), "problem")
    assert "not there" in finding.message
    assert "mkdir -p" in str(finding.remedy)


def test_2_a_file_where_a_folder_should_be(settings: Settings, home: Path) -> None:
    (home / "in").rmdir()
    (home / "in").touch()
    finding = only(check_files.folders(settings), "problem")
    assert ("not a folder" in finding.message, finding.remedy) == (True, "name a folder under [[watch]]")


def test_3_a_full_disk(settings: Settings) -> None:
    finding = only(check_files.disk(settings, free=lambda _path: 5 * 2**20), "problem")
    assert "the disk is full" in finding.message
    assert only(check_files.disk(settings, free=lambda _path: 2**30), "warning").check == "disk"


@pytest.mark.parametrize(("number", "name"), [(errno.ENOSPC, "max_user_watches"), (errno.EMFILE, "max_user_instances")])
def test_4_no_inotify_watches(settings: Settings, number: int, name: str) -> None:
    def factory() -> Any:
        raise OSError(number, os.strerror(number))

    finding = only(check_system.events(settings, factory=factory), "warning")
    assert "scanned every 30 s" in finding.message
    assert f"fs.inotify.{name} = " in str(finding.remedy)


def test_5_a_stale_lock(settings: Settings) -> None:
    Path(f"{settings.database}.lock").write_text("4711\n")
    finding = only(check_service.lock(settings.database), "warning")
    assert "process 4711 ended without saying so" in finding.message
    assert "nothing is to be removed" in str(finding.remedy)
    with InstanceLock(settings.database):
        [held] = check_service.lock(settings.database)
        assert (held.status, str(os.getpid()) in held.message) == ("ok", True)
    [free] = check_service.lock(settings.database)
    assert free.status == "ok"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_5_a_lock_that_sudo_left(settings: Settings) -> None:
    path = Path(f"{settings.database}.lock")
    path.touch(0o000)
    assert "chown" in str(only(check_service.lock(settings.database), "problem").remedy)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"version": (3, 10, 14), "system": "linux"}, "Python 3.10.14"),
        ({"version": (3, 15, 0), "system": "linux"}, "Python 3.15.0"),
        ({"version": (3, 12, 0), "system": "darwin", "machine": "x86_64", "macos": "15.1"}, "x86_64"),
        ({"version": (3, 12, 0), "system": "darwin", "machine": "arm64", "macos": "13.6"}, "macOS 13.6"),
    ],
)
def test_6_a_wrong_python(options: dict[str, Any], words: str) -> None:
    assert words in only(check_system.python(**options), "problem").message


def test_7_a_broken_config(home: Path) -> None:
    path = home / "c.toml"
    path.write_text("[decode]\nbatch_sise = 2\n")
    found = examine(path)
    finding = only(found, "problem")
    assert finding.message == f"{path}: `decode.batch_sise` is not a setting; did you mean `batch_size`?"
    assert str(path) in str(finding.remedy)
    path.write_text("model = 'x'\n")
    assert "no folder to watch" in only(examine(path), "problem").message


def test_8_a_newer_schema(settings: Settings) -> None:
    db = open_database(settings.database)
    with transaction(db):
        db.execute(
            "INSERT INTO _sqlite_migrations (migration_set, name, applied_at) VALUES ('dropscribe', 'm999', '2030')"
        )
    db.close()
    finding = only(check_files.job_log(settings.database), "problem")
    assert "newer dropscribe" in finding.message
    assert "upgrade" in str(finding.remedy)


def test_8_somebody_elses_database(settings: Settings) -> None:
    settings.database.write_text("not a database, certainly not one of ours" * 100)
    assert "move it away" in str(only(check_files.job_log(settings.database), "problem").remedy)


def dead_services(home: Path) -> Iterator[tuple[State, str, str]]:
    yield State(installed=True, loaded=True, last_exit="78: EX_CONFIG"), "not running (last exit: 78", "service start"
    yield State(installed=True), "not running", "service start"
    Starts(home / "state" / "dropscribe" / "service.json").fault("config", "no folder to watch", gave_up=True)
    yield State(installed=True, loaded=True), "it gave up: no folder to watch (config", "mend that"


def test_8_a_folder_where_the_job_log_should_be(settings: Settings) -> None:
    settings.database.mkdir()
    finding = only(check_files.job_log(settings.database), "problem")
    assert "is a folder" in finding.message
    with pytest.raises(ConfigError, match="set `database` to a file"):
        open_database(settings.database)


def test_9_a_dead_service(settings: Settings, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dropscribe.service.status.starts_file", lambda: home / "state/dropscribe/service.json")
    unit = home / "dropscribe.service"
    unit.write_text(f"[Service]\nExecStart={sys.executable} -m dropscribe run\n")
    for state, words, remedy in dead_services(home):
        finding = only(check_service.service(manager(state, unit), home / "c.toml", settings), "problem")
        assert words in finding.message
        assert remedy in str(finding.remedy)


def test_where_no_service_manager_can_be_asked_the_foreground_is_named(settings: Settings, home: Path) -> None:
    state = State(installed=False, reachable=False, detail="no user manager runs here")
    finding = only(check_service.service(manager(state, home / "unit"), home / "c.toml", settings), "warning")
    assert "no user manager" in finding.message
    assert "foreground" in str(finding.remedy)


def test_9_a_service_whose_python_is_gone(settings: Settings, home: Path) -> None:
    unit = home / "dropscribe.service"
    running = State(installed=True, loaded=True, running=True, pid=1)
    unit.write_text('[Service]\nExecStart="/gone for $$5/bin/python" -m dropscribe run\n')
    finding = only(check_service.service(manager(running, unit), home / "c.toml", settings), "problem")
    assert "/gone for $5/bin/python" in finding.message
    assert "service install" in str(finding.remedy)
    plist = home / "dropscribe.plist"
    plist.write_bytes(b"<plist><dict><key>ProgramArguments</key><array><string>/gone</string></array></dict></plist>")
    assert "/gone" in only(check_service.service(manager(running, plist), home / "c.toml", settings), "problem").message


@pytest.mark.parametrize("version", [(3, 40, 1), (3, 44, 5), (3, 50, 6), (3, 51, 2)])
def test_10_a_sqlite_in_the_range_of_the_wal_fault(version: tuple[int, int, int]) -> None:
    finding = only(check_system.sqlite(version), "warning")
    assert "3.7.0 to 3.51.2" in finding.message
    assert "3.51.3" in str(finding.remedy)


@pytest.mark.parametrize("version", [(3, 44, 6), (3, 50, 7), (3, 51, 3), (3, 53, 0)])
def test_10_one_that_has_the_fix(version: tuple[int, int, int]) -> None:
    assert [finding.status for finding in check_system.sqlite(version)] == ["ok"]
    assert only(check_system.sqlite((3, 36, 0)), "problem").check == "sqlite"


# -- the model ---------------------------------------------------------------------------------------------------------


def probe_that(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_a_model_that_nobody_has_fetched_yet_is_no_fault_and_no_request(
    settings: Settings, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(home / "hub"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # asking it would be another finding
    found = list(check_model.model(settings.model_copy(update={"model": "somebody/qwen3-asr-that-is-not-here"})))
    assert [(finding.check, finding.status) for finding in found] == [
        ("mlx", "ok"), ("model", "warning"), ("transcription", "skipped")
    ]  # fmt: skip
    assert "is not on this machine yet" in found[1].message
    assert "transcribe-batch" in str(found[1].remedy)


def test_a_crash_of_mlx_is_a_finding_that_names_its_step(settings: Settings) -> None:
    code = """
import os, signal
os.write(1, b'{"step": "mlx", "state": "begun"}\\n')
os.write(2, b'Illegal instruction, says the library\\n')
os.kill(os.getpid(), signal.SIGILL)
"""
    finding = only(check_model.model(settings, command=probe_that(code)), "problem")
    assert (finding.check, "died of SIGILL" in finding.message) == ("mlx", True)
    assert "Illegal instruction" in finding.message


def test_a_decoder_that_differs_from_serial_must_be_changed(settings: Settings) -> None:
    said = {
        "step": "transcription", "state": "ok", "text": clip.SAID, "time": 0.5, "rtf": 0.1, "decoder": "bulk-sync",
        "exactness": "serial", "same_as_serial": False,
    }  # fmt: skip
    finding = only(check_model.model(settings, command=probe_that(f"print({json.dumps(said)!r})")), "problem")
    assert finding.check == "decoder"
    assert 'decode.decoder = "serial"' in str(finding.remedy)


def test_the_clip_is_five_seconds_with_a_new_hash_every_time() -> None:
    import io
    import wave

    first, second = clip.clip(), clip.clip()
    assert first != second
    with wave.open(io.BytesIO(first)) as file:
        assert file.getnframes() / file.getframerate() == pytest.approx(5.0, abs=0.001)
    assert clip.heard("the MEETING about the office move is on saturday, at four 10") > 0.9
    assert clip.heard("something else") == clip.heard(None) == 0.0


@pytest.mark.slow
def test_five_seconds_are_really_transcribed(settings: Settings, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the decoder that is the default: the self-check and what it comes to, then the audio."""
    monkeypatch.setenv("TMPDIR", real_daemon.environment(home / "tmp")["TMPDIR"])  # a GPU lock of our own
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "cache"))
    found = list(check_model.model(settings))
    assert [(finding.check, finding.status) for finding in found] == [
        ("mlx", "ok"), ("model", "ok"), ("decoder", "ok"), ("transcription", "ok"), ("decoder", "ok")
    ]  # fmt: skip
    assert "the bits of one row alone" in found[2].message
    assert "The meeting about the office move" in found[3].message


@pytest.mark.slow
def test_a_running_service_is_asked_and_nothing_is_left_behind(tmp_path: Path) -> None:
    with real_daemon.Place(tmp_path) as place:
        process = place.start()
        place.until(lambda: place.value("SELECT pid FROM service") == process.pid)
        before = sorted(path.name for path in tmp_path.iterdir())
        [finding] = check_model.ask_the_daemon(place.settings)
        assert finding.status == "ok", finding
        assert "by the running service" in finding.message
        assert place.value("SELECT count(*) FROM batches WHERE outcome = 'done'") == 1
        assert not place.rows("SELECT 1 FROM jobs")
        assert len(place.rows("SELECT 1 FROM roots")) == 1
        assert sorted(path.name for path in tmp_path.iterdir()) == before
        Queue(open_database(place.settings.database)).set_service(paused=1)
        [finding] = check_model.ask_the_daemon(place.settings)
        assert finding.status == "skipped"


def test_ctrl_c_while_the_service_is_asked_leaves_nothing_behind(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_database(settings.database).close()

    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(check_model, "time", SimpleNamespace(monotonic=time.monotonic, time=time.time, sleep=interrupt))
    with pytest.raises(KeyboardInterrupt):
        list(check_model.ask_the_daemon(settings))
    assert left_behind(settings) == (0, 0, [])


def left_behind(settings: Settings) -> tuple[int, int, list[str]]:
    """Jobs, roots, and folders of the doctor's."""
    with closing(open_database(settings.database)) as db:
        [(jobs, roots)] = db.rows("SELECT (SELECT count(*) FROM jobs), (SELECT count(*) FROM roots)")
    folders = [path.name for path in settings.database.parent.iterdir() if "doctor" in path.name]
    return jobs, roots, folders


def test_what_a_killed_doctor_left_goes_with_the_next_one_and_nothing_else_does(settings: Settings) -> None:
    within = settings.database.parent
    old, new, mine = (within / name for name in (".dropscribe-doctor-aaaaaaaa", ".dropscribe-doctor-bbbbbbbb",
                                                 "doctor-of-mine"))  # fmt: skip
    with closing(open_database(settings.database)) as db:
        for folder in (old, new, mine):
            folder.mkdir()
            (folder / "doctor.wav").write_bytes(b"x")
            queue = Queue(db)
            queue.enqueue(queue.ensure_root(folder), os.fsencode(folder / "doctor.wav"), 1, 1)
    for folder in (old, mine):
        os.utime(folder, (1, 1))
    list(check_model.ask_the_daemon(settings, seconds=0.0))
    jobs, roots, folders = left_behind(settings)
    assert (jobs, roots, set(folders)) == (2, 2, {new.name, mine.name})


def test_a_service_that_does_not_answer_is_a_problem(settings: Settings) -> None:
    open_database(settings.database).close()
    [finding] = check_model.ask_the_daemon(settings, seconds=0.3, look_every=0.05)
    assert (finding.status, "nothing else to do" in finding.message) == ("problem", True)


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_command_says_it_as_json_and_by_its_exit_status(home: Path, settings: Settings) -> None:
    path = home / "c.toml"
    path.write_text(to_toml(settings))
    command = [sys.executable, "-m", "dropscribe", "doctor", "--quick", "--config", str(path)]
    good = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False, timeout=60)
    said = json.loads(good.stdout)
    assert (good.returncode, said["ok"]) == (0, True)
    assert {"check", "status", "message", "remedy"} == set(said["findings"][0])
    path.write_text("watch = 1\n")
    bad = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert bad.returncode == 1
    assert "PROBLEM  settings" in bad.stdout
    assert "→" in bad.stdout


def test_a_check_that_fails_itself_is_a_finding(settings: Settings) -> None:
    def broken() -> Iterable[Finding]:
        raise ZeroDivisionError("oh")

    look: Callable[[], Iterable[Finding]] = broken
    [finding] = doctor.guarded("disk", look)
    assert (finding.status, "ZeroDivisionError: oh" in finding.message) == ("warning", True)
