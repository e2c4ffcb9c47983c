"""The supervisor as a process of its own, with a worker that only pretends; nothing waits longer than a condition."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dropscribe.errors import AlreadyRunning
from dropscribe.instance import InstanceLock
from dropscribe.jobs.database import open_database
from dropscribe.jobs.queue import Queue
from dropscribe.worker_process import SILENT_SECONDS, Delays, silence_limit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WORKER = Path(__file__).with_name("fake_worker.py")
RUN = """
import json, sys
from dropscribe import logs
from dropscribe.settings import Settings
from dropscribe.supervisor import Supervisor
from dropscribe.errors import DropscribeError
options = json.loads(sys.argv[2])
limit = options.pop("limit", None)
extra = {} if limit is None else {"limit": lambda jobs, seconds: limit}
logs.configure("debug")
try:
    settings = Settings.model_validate_json(sys.argv[1])
    sys.exit(Supervisor(settings, worker_command=options.pop("worker"), **options, **extra).run())
except DropscribeError as error:
    sys.exit(f"{error.error_kind}: {error}")
"""


class House:
    """A watched folder, its job log, and the supervisors started on it."""

    def __init__(self, base: Path) -> None:
        self.folder = base / "in"
        self.folder.mkdir()
        self.database = base / "jobs.db"
        self.log = base / "log"
        self.running: list[subprocess.Popen[bytes]] = []

    def drop(self, name: str, content: bytes = b"hello") -> Path:
        path = self.folder / name
        path.write_bytes(content)
        return path

    def start(
        self, *, mode: str = "", quiet: float = 0.3, interval: float = 30, **options: Any
    ) -> subprocess.Popen[bytes]:
        settings = {
            "database": str(self.database), "watch": [{"path": str(self.folder)}], "settle": {"quiet_seconds": quiet},
            "scan": {"interval_seconds": interval},
        }  # fmt: skip
        options = {"worker": [sys.executable, str(WORKER)], "crash_delays": [0.05, 0.2], **options}
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", RUN, json.dumps(settings), json.dumps(options)],
                stderr=log, env={**os.environ, "FAKE_WORKER": mode},
            )  # fmt: skip
        self.running.append(process)
        return process

    def once(self, **options: Any) -> int:
        return self.start(once=True, **options).wait(60)

    def query(self, sql: str) -> list[Any]:
        conn = sqlite3.connect(f"file:{self.database}?mode=ro", uri=True, timeout=10)
        try:
            return conn.execute(sql).fetchall()
        except sqlite3.OperationalError:
            return []
        finally:
            conn.close()

    def states(self) -> dict[str, str]:
        if not self.database.exists():
            return {}
        return {Path(path).name: state for path, state in self.query("SELECT path, state FROM jobs ORDER BY id")}

    def service(self, column: str) -> Any:
        rows = self.query(f"SELECT {column} FROM service") if self.database.exists() else []  # noqa: S608
        return rows[0][0] if rows else None

    def until(self, condition: Callable[[], Any], seconds: float = 20) -> Any:
        deadline = time.monotonic() + seconds
        while not (value := condition()):
            assert time.monotonic() < deadline, f"not in {seconds} s; {self.states()}\n{self.log.read_text()}"
            time.sleep(0.02)
        return value

    def end(self) -> None:
        for process in self.running:
            if process.poll() is None:
                process.kill()
                process.wait()


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path)
    yield made
    made.end()


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return not Path("/proc/self").exists()


# -- --once ------------------------------------------------------------------------------------------------------------


def test_once_does_what_is_there_and_leaves(house: House) -> None:
    house.drop("a.wav")
    house.drop("b.mp3")
    house.drop("notes.txt")
    assert house.once() == 0
    assert house.states() == {"a.wav": "done", "b.mp3": "done"}
    assert house.service("pid") is None
    assert house.once() == 0


def test_once_with_nothing_to_do_needs_no_worker(house: House) -> None:
    assert house.once(worker=["/nonexistent"]) == 0


def test_once_exits_1_and_names_a_file_that_failed(house: House) -> None:
    house.drop("good.wav")
    house.drop("fail.wav")
    assert house.once() == 1
    assert house.states() == {"good.wav": "done", "fail.wav": "failed"}
    assert "fail.wav" in house.log.read_text().split("event=failed")[1]
    assert house.once() == 0, "a failure of an earlier run is none of this one"


def test_once_exits_1_and_names_a_file_that_backs_off(house: House) -> None:
    house.drop("busy.wav")
    house.drop("good.wav")
    assert house.once() == 1
    assert house.states() == {"busy.wav": "queued", "good.wav": "done"}
    assert "busy.wav" in house.log.read_text().split("event=backing_off")[1]


def test_once_with_a_model_problem_exits_1_at_once_and_keeps_the_jobs(house: House) -> None:
    house.drop("a.wav")
    assert house.once(mode="model") == 1
    assert house.states() == {"a.wav": "queued"}
    assert "model_missing: no such model" in house.log.read_text()


def test_once_exits_1_at_once_while_another_holds_the_lock(house: House) -> None:
    house.drop("a.wav")
    with InstanceLock(house.database):
        assert house.once() == 1
    assert (
        f"already_running: dropscribe already runs on {house.database} (process {os.getpid()})" in house.log.read_text()
    )
    assert house.states() == {}


# -- the daemon --------------------------------------------------------------------------------------------------------


def test_a_file_dropped_while_it_runs_is_done(house: House) -> None:
    process = house.start()
    house.until(lambda: house.service("pid") == process.pid)
    house.drop("a.wav")
    house.until(lambda: house.states() == {"a.wav": "done"})
    (house.folder / "b.wav.part").write_bytes(b"x")
    (house.folder / "b.wav.part").rename(house.folder / "b.wav")
    house.until(lambda: house.states().get("b.wav") == "done")
    assert house.service("worker_pid")
    process.terminate()
    assert process.wait(10) == 0
    assert house.service("pid") is None
    assert house.service("worker_pid") is None


@pytest.mark.parametrize("name", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_hands_back_what_is_running_within_ten_seconds(house: House, name: signal.Signals) -> None:
    house.drop("slow.wav")
    process = house.start()
    house.until(lambda: house.states() == {"slow.wav": "running"})
    worker = house.service("worker_pid")
    began = time.monotonic()
    process.send_signal(name)
    assert process.wait(10) == 0
    assert time.monotonic() - began < 10
    assert house.query("SELECT state, attempts, crashes, suspect FROM jobs") == [("queued", 0, 0, 0)]
    assert gone(worker)


def test_a_worker_that_does_not_listen_is_killed_in_time_and_its_job_handed_back(house: House) -> None:
    house.drop("slow.wav")
    process = house.start(mode="deaf")
    house.until(lambda: house.states() == {"slow.wav": "running"})
    process.terminate()
    house.until(lambda: "event=stopping" in house.log.read_text())
    process.terminate()  # said twice, it means at once
    assert process.wait(10) == 0
    assert house.query("SELECT state, crashes, suspect FROM jobs") == [("queued", 0, 0)]


def test_a_killed_supervisor_leaves_no_orphan_and_the_next_one_goes_on(house: House) -> None:
    house.drop("slow.wav")
    process = house.start()
    house.until(lambda: house.states() == {"slow.wav": "running"})
    worker = house.service("worker_pid")
    process.kill()
    process.wait()
    house.until(lambda: gone(worker), 5)
    (house.folder / "slow.wav").rename(house.folder / "quick.wav")
    assert house.once() == 0
    assert "quick.wav" in house.states()
    assert sorted(house.states().values()) in (["done"], ["done", "missing"])


def test_two_supervisors_on_one_job_log_are_one_too_many(house: House) -> None:
    process = house.start()
    house.until(lambda: house.service("pid"))
    assert house.start().wait(20) == 1
    assert f"(process {process.pid})" in house.log.read_text()


def test_a_file_that_kills_the_worker_is_quarantined_after_three_lone_crashes(house: House) -> None:
    for name in ("a.wav", "crash.wav", "z.wav"):
        house.drop(name)
    house.start()
    house.until(lambda: house.states() == {"a.wav": "done", "crash.wav": "quarantined", "z.wav": "done"})
    assert house.query("SELECT crashes, error_kind FROM jobs WHERE path LIKE '%crash%'") == [(3, "worker_crashed")]
    assert house.query("SELECT sum(crashes) FROM jobs WHERE path NOT LIKE '%crash%'") == [(0,)]
    assert "SIGSEGV" in house.log.read_text()
    house.drop("later.wav")
    house.until(lambda: house.states().get("later.wav") == "done")


def test_temp_files_of_a_dead_worker_are_gone_without_a_scan_and_without_a_restart(house: House) -> None:
    (house.folder / "deep").mkdir()
    house.drop("deep/crash1.wav")
    house.drop("crash2.wav")
    house.start(interval=3600)
    house.until(lambda: house.states() == {"crash1.wav": "quarantined", "crash2.wav": "quarantined"}, 60)
    house.until(lambda: not list(house.folder.rglob("*.tmp")))
    assert "event=swept" in house.log.read_text()


def test_a_temp_file_of_no_live_claim_is_gone_after_the_next_scan(house: House) -> None:
    house.start(interval=1)
    house.until(lambda: house.service("pid"))
    for name in ("one", "two"):
        left = house.folder / name / ".dropscribe-dead-0.tmp"
        left.parent.mkdir()
        left.touch()
        house.until(lambda left=left: not left.exists())


def test_a_worker_that_hangs_is_killed_and_the_file_pays(house: House) -> None:
    house.drop("hang.wav")
    house.start(limit=0.3)
    house.until(lambda: house.states() == {"hang.wav": "quarantined"}, 40)
    assert house.query("SELECT error_kind FROM jobs") == [("worker_hung",)]


def test_without_a_usable_model_it_stays_up_says_why_and_tries_again(house: House) -> None:
    house.drop("a.wav")
    process = house.start(mode="model", model_delays=[0.1, 0.2])
    house.until(lambda: (house.service("problem") or "").startswith("no such model"))
    house.until(lambda: house.log.read_text().count("event=model_problem") >= 2)
    assert house.states() == {"a.wav": "queued"}
    assert process.poll() is None


def test_a_worker_that_dies_again_and_again_is_told_of_and_never_started_in_a_tight_loop(house: House) -> None:
    house.drop("a.wav")
    house.start(mode="crash", crash_delays=[0.5, 60])
    house.until(lambda: "in a row" in (house.service("problem") or ""))
    starts = house.log.read_text().count("event=worker_started")
    assert 2 <= starts <= 3
    assert house.states() == {"a.wav": "queued"}


def test_a_worker_that_leaves_without_having_done_anything_is_not_started_in_a_tight_loop(house: House) -> None:
    house.drop("a.wav")
    house.start(mode="useless", crash_delays=[30, 60])
    house.until(lambda: "event=worker_left" in house.log.read_text())
    process = house.running[0]
    process.terminate()
    process.wait(10)
    assert house.log.read_text().count("event=worker_started") == 1


def test_pausing_sends_the_worker_away_and_resuming_brings_it_back(house: House) -> None:
    house.start()
    house.until(lambda: house.service("pid"))
    db = open_database(house.database)
    queue = Queue(db)
    queue.set_service(paused=1)
    house.drop("a.wav")
    house.until(lambda: house.states() == {"a.wav": "queued"})
    house.until(lambda: "event=queued" in house.log.read_text())
    assert house.service("worker_pid") is None
    queue.set_service(paused=0)
    house.until(lambda: house.states() == {"a.wav": "done"})
    db.close()


def test_a_job_log_that_is_deleted_is_noticed_and_built_anew_by_the_scan(house: House) -> None:
    house.drop("a.wav")
    house.start()
    house.until(lambda: house.states() == {"a.wav": "done"})
    for path in house.database.parent.glob("jobs.db*"):
        if path.suffix != ".lock":
            path.unlink()
    house.until(lambda: house.states() == {"a.wav": "done"})
    assert "event=job_log_replaced" in house.log.read_text()


# -- parts -------------------------------------------------------------------------------------------------------------


def test_the_lock_is_free_after_its_holder_and_says_who_holds_it(tmp_path: Path) -> None:
    database = tmp_path / "deep" / "jobs.db"
    for _ in range(2):
        with InstanceLock(database), pytest.raises(AlreadyRunning, match=str(os.getpid())), InstanceLock(database):
            pass


def test_who_only_asks_whether_somebody_runs_keeps_nobody_from_starting(tmp_path: Path) -> None:
    database = tmp_path / "jobs.db"
    Path(f"{database}.lock").touch()
    asking = os.open(f"{database}.lock", os.O_RDONLY)
    fcntl.flock(asking, fcntl.LOCK_SH)  # as `service status` does, for an instant
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            os.close(asking)

    with InstanceLock(database, sleep=sleep):
        assert len(waits) == 2


def test_delays_double_up_to_the_longest() -> None:
    delays = Delays(1, 8)
    assert [delays.next() for _ in range(6)] == [1, 2, 4, 8, 8, 8]
    delays.failures = 0
    assert delays.next() == 1


def test_the_time_allowed_for_silence_grows_with_the_audio() -> None:
    assert silence_limit(1, None) > SILENT_SECONDS
    assert silence_limit(1, 7200) > 7200 * 3
    assert silence_limit(4, 10) > silence_limit(1, 10)


def test_the_supervisor_loads_neither_models_nor_media_libraries() -> None:
    heavy = ("mlx", "mlx_audio", "transformers", "scipy", "av", "soundfile", "numpy", "sqlite_utils")
    code = f"import sys, dropscribe.supervisor; print(*[name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
