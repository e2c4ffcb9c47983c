"""A process that publishes is killed at every instant; whoever comes next makes it whole.

The child is forked, does everything from opening the job log on by itself, and is killed by SIGKILL at one of the steps
``publish`` names, so that no cleanup of Python's runs. What a power cut would undo is not tried here.
"""

from __future__ import annotations

import errno
import os
import random
import signal
import traceback
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

from dropscribe.errors import DiskFull
from dropscribe.jobs.database import Database, open_database
from dropscribe.jobs.queue import Queue
from dropscribe.transcripts.files import look
from dropscribe.transcripts.formats import Rendered
from dropscribe.transcripts.names import target_for
from dropscribe.transcripts.publish import publish, sweep_temp_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.slow

FORMATS = ("txt", "json")
FINISH = {
    "text": "hello", "language": "English", "model": "tiny", "params_key": "p", "audio_seconds": 1.0, "batch_id": None,
    "warnings": (), "reused_from": None,
}  # fmt: skip


class World:
    """A folder with one source in it, its job log, and processes that publish for it."""

    def __init__(self, folder: Path) -> None:
        self.database = folder / "jobs.db"
        self.folder = folder / "in"
        self.folder.mkdir(parents=True)
        self.claims = 0

    def open(self) -> tuple[Database, Queue]:
        db = open_database(self.database)
        db.execute("PRAGMA synchronous = OFF")  # see no_power_cut
        return db, Queue(db)

    def drop(self, name: str = "a.wav", content: int = 1) -> None:
        db, queue = self.open()
        queue.enqueue(queue.ensure_root(str(self.folder)), os.fsencode(self.folder / name), 1, content)
        db.close()

    def attempt(self, text: str, checkpoint: Callable[[str], None] = lambda _step: None) -> None:
        """What a fresh worker does: recover, sweep, claim, publish. Each attempt's bytes are its own."""
        self.claims += 1
        db, queue = self.open()
        queue.recover(cause="supervisor_died")
        sweep_temp_files(db, [os.fsencode(self.folder)])
        for job in queue.claim(f"claim{self.claims}", 10):
            rendered = [Rendered(name, f"{name}: {text} {self.claims}\n".encode()) for name in FORMATS]
            target = target_for(job.path_raw, self.folder, None)
            publish(db, queue, job, target, rendered, finish=FINISH, check_source=lambda: None, checkpoint=checkpoint)
        db.close()

    def killed_attempt(self, text: str, instant: int | str, *, fail_at: str | None = None) -> str | None:
        """An attempt in a child process that dies at a step (by number or name); returns it, None at the end."""
        said, say = os.pipe()
        child = os.fork()
        if child == 0:
            steps = 0

            def checkpoint(step: str) -> None:
                nonlocal steps
                if instant in (steps, step):
                    os.write(say, step.encode())
                    os.kill(os.getpid(), signal.SIGKILL)
                steps += 1
                if step == fail_at:
                    raise OSError(errno.ENOSPC, "no space left")

            try:
                self.attempt(text, checkpoint)
            except (OSError, DiskFull):
                os._exit(7)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        self.claims += 1  # the child's claim was its copy's
        os.close(say)
        with os.fdopen(said, "rb") as pipe:
            step = pipe.read().decode()
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        assert code == (-signal.SIGKILL if step else 7 if fail_at else 0)
        return step or None

    def disk(self) -> dict[str, str]:
        return {path.name: path.read_text() for path in self.folder.iterdir()}

    def check_between(self, foreign: dict[str, str]) -> None:
        """After a death: every file but the foreign ones is a temp file or known as ours; none is torn."""
        db, _ = self.open()
        known = {bytes(row[0]): set(row[1:]) for row in db.rows("SELECT path_raw, sha256, next_sha256 FROM outputs")}
        for name, content in self.disk().items():
            if name in foreign:
                assert content == foreign[name]
            elif not name.startswith(".dropscribe-"):
                path = os.fsencode(self.folder / name)
                assert content == "" or content.endswith("\n")
                assert look(path) in known[path] or (content == "" and None in known[path])
        newest = db.rows("SELECT id FROM jobs WHERE state = 'done' ORDER BY id DESC LIMIT 1")  # older ones are history
        assert all(db.rows("SELECT 1 FROM outputs WHERE job_id = ?", [row[0]]) for row in newest)
        db.close()

    def check_end(self, base: str, foreign: dict[str, str]) -> None:
        """One whole set of the newest attempt, nothing else; rows and disk agree; the job is done."""
        disk = self.disk()
        ours = {f"{base}.{name}" for name in FORMATS}
        assert set(disk) == ours | set(foreign)
        assert {name: disk[name] for name in foreign} == foreign
        assert len({disk[name].partition(": ")[2] for name in ours}) == 1, "two attempts are mixed"
        db, _ = self.open()
        found = db.rows(
            """
            SELECT path_raw, sha256, next_sha256, (SELECT state FROM jobs WHERE id = job_id), written_at IS NOT NULL
            FROM outputs
            """
        )
        rows = {os.fsdecode(row[0]).rsplit("/", 1)[1]: tuple(row[1:]) for row in found}
        assert rows == {name: (look(os.fsencode(self.folder / name)), None, "done", 1) for name in ours}
        assert {row[0] for row in db.rows("SELECT state FROM jobs")} == {"done"}
        assert db.rows("PRAGMA integrity_check")[0][0] == "ok"
        db.close()


def first(world: World) -> tuple[str, dict[str, str]]:
    """Nothing there yet."""
    world.drop()
    return "a", {}


def beside_a_foreign_file(world: World) -> tuple[str, dict[str, str]]:
    """The best name is somebody's."""
    (world.folder / "a.json").write_text("mine")
    world.drop()
    return "a.wav", {"a.json": "mine"}


def again(world: World) -> tuple[str, dict[str, str]]:
    """A transcript of older content is there."""
    world.drop()
    world.attempt("old")
    world.drop(content=2)
    return "a", {}


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where the system has one: hundreds of job logs are made here."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with TemporaryDirectory(dir="/dev/shm") as name:
        yield Path(name)


SCENES = [first, beside_a_foreign_file, again]


@pytest.fixture(params=["links", "no links"], autouse=True)
def any_disk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With hard links, and without."""
    if request.param == "no links":

        def link(*_: object) -> None:
            raise OSError(errno.ENOTSUP, "Operation not supported")

        monkeypatch.setattr(os, "link", link)


@pytest.fixture(autouse=True)
def no_power_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed process loses nothing that was handed to the system, so syncing would only cost time here."""
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("fail_at", [None, "placed: txt", "committing"])
def test_a_kill_at_any_instant_is_made_good_by_the_next_attempt(
    memory: Path, scene: Callable[[World], tuple[str, dict[str, str]]], fail_at: str | None
) -> None:
    """With ``fail_at`` the attempt meets an error first, so that its taking back is killed too."""
    seen = []
    for instant in range(100):
        world = World(memory / str(instant))
        base, foreign = scene(world)
        step = world.killed_attempt("first", instant, fail_at=fail_at)
        world.check_between(foreign)
        world.attempt("second")
        world.check_end(base, foreign)
        if step is None:
            break
        seen.append(step)
    else:
        pytest.fail("it never got through")
    assert {"temp written: txt", "temps written", "names picked", "reserving", "reserved", "source checked"} <= set(
        seen
    )
    assert {"linked", "placeholder"} & set(seen) or scene is again
    assert fail_at or {"placed: txt", "placed: json", "folder synced", "committing", "committed"} <= set(seen)
    assert fail_at is None or "withdrawn" in seen


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("first_death", ["placeholder", "placed: txt"])
def test_a_second_kill_at_any_instant_is_made_good_too(
    memory: Path, scene: Callable[[World], tuple[str, dict[str, str]]], first_death: str
) -> None:
    """The files of the first death must still be known as ours after the second has announced its own."""
    for instant in range(100):
        world = World(memory / str(instant))
        base, foreign = scene(world)
        if world.killed_attempt("first", first_death) is None:
            return  # this kind of disk has no such step
        step = world.killed_attempt("second", instant)
        world.check_between(foreign)
        world.attempt("third")
        world.check_end(base, foreign)
        if step is None:
            return
    pytest.fail("it never got through")


@pytest.mark.parametrize("scene", SCENES)
def test_any_number_of_kills_is_made_good(memory: Path, scene: Callable[[World], tuple[str, dict[str, str]]]) -> None:
    seed = int.from_bytes(os.urandom(4))
    print(f"seed {seed}")  # noqa: T201 - shown when the test fails
    choose = random.Random(seed)  # noqa: S311 - not a secret
    for number in range(4):
        world = World(memory / str(number))
        base, foreign = scene(world)
        for _ in range(5):
            world.killed_attempt("first", choose.randrange(3, 18))
            world.check_between(foreign)
        world.attempt("last")
        world.check_end(base, foreign)
