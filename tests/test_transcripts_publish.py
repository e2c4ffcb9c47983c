"""Publishing, step by step: names, fences, failures, file systems without links."""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dropscribe.errors import ClaimLost, DatabaseBusy, DiskFull, OutputUnwritable, SourceChanged, SourceMissing
from dropscribe.jobs import outputs
from dropscribe.jobs.database import open_database, transaction
from dropscribe.jobs.queue import Queue
from dropscribe.transcripts import files
from dropscribe.transcripts.names import Target, target_for
from dropscribe.transcripts.publish import Rendered, publish, sweep_temp_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dropscribe.jobs.records import Job

FINISH = {
    "text": "hello", "language": "English", "model": "tiny", "params_key": "p", "audio_seconds": 1.0, "batch_id": None,
    "warnings": (), "reused_from": None,
}  # fmt: skip


class Bench:
    """A job log, a folder, and a short way to publish something for a source in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "in"
        self.folder.mkdir()
        self.db = open_database(folder / "jobs.db")
        self.db.execute("PRAGMA synchronous = OFF")  # no power cut is tried here
        self.queue = Queue(self.db)
        self.root = self.queue.ensure_root(str(self.folder))
        self.claims = 0

    def claim(self, name: str = "a.wav") -> Job:
        """The source's next content, queued and claimed."""
        self.claims += 1
        self.queue.enqueue(self.root, os.fsencode(self.folder / name), 1, self.claims)
        (job,) = self.queue.claim(f"claim{self.claims}", 10)
        return job

    def publish(
        self, job: Job | None = None, text: str = "hello", formats: str = "txt json", **changed: Any
    ) -> list[str]:
        """The names it got, in the order of the formats."""
        job = job or self.claim()
        rendered = [Rendered(name, f"{name}: {text}\n".encode()) for name in formats.split()]
        arguments: dict[str, Any] = {"finish": FINISH, "check_source": lambda: None, **changed}
        target = arguments.pop("target", target_for(job.path_raw, self.folder, None))
        paths = publish(self.db, self.queue, job, target, rendered, **arguments)
        return [Path(os.fsdecode(path)).name for path in paths.values()]

    def disk(self) -> dict[str, str]:
        return {path.name: path.read_text() for path in self.folder.iterdir() if path.is_file()}

    def known(self) -> dict[str, tuple[str | None, str | None]]:
        found = self.db.rows("SELECT path_raw, sha256, next_sha256 FROM outputs")
        return {Path(os.fsdecode(path)).name: (sha256, following) for path, sha256, following in found}

    def state(self, job: Job) -> str:
        return str(self.db.rows("SELECT state FROM jobs WHERE id = ?", [job.id])[0][0])


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.db.close()


@pytest.fixture(params=["links", "no links"])
def any_disk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With hard links, and without."""
    if request.param == "no links":
        monkeypatch.setattr(os, "link", refuse(errno.EPERM))


def refuse(number: int) -> Callable[..., Any]:
    def refused(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    return refused


def at(step: str, action: Callable[[], Any]) -> Callable[[str], None]:
    """A checkpoint that does something once."""
    waiting = [step]

    def checkpoint(name: str) -> None:
        if waiting and name == waiting[0]:
            waiting.clear()
            action()

    return checkpoint


def boom() -> None:
    raise OSError(errno.EIO, "boom")


@pytest.mark.usefixtures("any_disk")
def test_a_transcript_is_whole_known_and_the_job_done(bench: Bench) -> None:
    job = bench.claim()
    assert bench.publish(job) == ["a.txt", "a.json"]
    assert bench.disk() == {"a.txt": "txt: hello\n", "a.json": "json: hello\n"}
    assert bench.known() == {name: (files.look(os.fsencode(bench.folder / name)), None) for name in bench.disk()}
    row = bench.db.rows("SELECT state, text, transcript_path, claim_id FROM jobs")[0]
    assert tuple(row) == ("done", "hello", str(bench.folder / "a.txt"), None)
    assert [(one.job_id, one.format) for one in outputs.of_job(bench.db, job.id)] == [(job.id, "txt"), (job.id, "json")]


@pytest.mark.usefixtures("any_disk")
def test_new_content_replaces_our_own_file_and_takes_its_row_over(bench: Bench) -> None:
    first = bench.claim()
    bench.publish(first)
    second = bench.claim()
    assert bench.publish(second, "again") == ["a.txt", "a.json"]
    assert bench.disk() == {"a.txt": "txt: again\n", "a.json": "json: again\n"}
    assert outputs.of_job(bench.db, first.id) == []
    assert len(outputs.of_job(bench.db, second.id)) == 2


@pytest.mark.usefixtures("any_disk")
def test_two_sources_with_one_stem_get_two_transcripts_and_keep_them(bench: Bench) -> None:
    for text in ("one", "two"):
        assert bench.publish(bench.claim("a.wav"), f"wav {text}") == ["a.txt", "a.json"]
        assert bench.publish(bench.claim("a.mp3"), f"mp3 {text}") == ["a.mp3.txt", "a.mp3.json"]
        assert bench.disk()["a.txt"] == f"txt: wav {text}\n"
        assert bench.disk()["a.mp3.txt"] == f"txt: mp3 {text}\n"


def test_the_second_of_a_stem_keeps_its_name_when_the_first_is_gone(bench: Bench) -> None:
    bench.publish(bench.claim("a.wav"))
    bench.publish(bench.claim("a.mp3"))
    (bench.folder / "a.txt").unlink()
    (bench.folder / "a.json").unlink()
    assert bench.publish(bench.claim("a.mp3"), "again") == ["a.mp3.txt", "a.mp3.json"]


@pytest.mark.usefixtures("any_disk")
@pytest.mark.parametrize("foreign", ["a.txt", "a.json"])
def test_a_foreign_file_is_never_overwritten_and_one_set_has_one_base(bench: Bench, foreign: str) -> None:
    (bench.folder / foreign).write_text("mine")
    assert bench.publish() == ["a.wav.txt", "a.wav.json"]
    assert bench.disk()[foreign] == "mine"


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: path.symlink_to("nowhere"), Path.touch, os.mkfifo])
def test_folders_links_empty_files_and_pipes_are_foreign_too(bench: Bench, make: Callable[[Path], None]) -> None:
    make(bench.folder / "a.txt")
    before = (bench.folder / "a.txt").lstat()
    assert bench.publish() == ["a.wav.txt", "a.wav.json"]
    assert (bench.folder / "a.txt").lstat() == before


def test_numbers_follow_when_stem_and_name_are_taken(bench: Bench) -> None:
    for taken in ("a.txt", "a.wav.json", "a.wav (2).txt"):
        (bench.folder / taken).write_text("mine")
    assert bench.publish() == ["a.wav (3).txt", "a.wav (3).json"]


@pytest.mark.usefixtures("any_disk")
def test_a_transcript_its_owner_edited_is_theirs_from_then_on(bench: Bench) -> None:
    bench.publish()
    (bench.folder / "a.txt").write_text("corrected by hand")
    assert bench.publish(text="again") == ["a.wav.txt", "a.json"]
    assert bench.disk()["a.txt"] == "corrected by hand"
    assert set(bench.known()) == {"a.wav.txt", "a.json"}
    assert bench.publish(text="third") == ["a.wav.txt", "a.json"]


def test_a_transcript_its_owner_emptied_is_edited_too(bench: Bench) -> None:
    bench.publish()
    (bench.folder / "a.txt").write_text("")
    assert bench.publish(text="again") == ["a.wav.txt", "a.json"]
    assert bench.disk()["a.txt"] == ""


def test_a_transcript_its_owner_deleted_comes_back_under_its_name(bench: Bench) -> None:
    bench.publish()
    (bench.folder / "a.txt").unlink()
    assert bench.publish(text="again") == ["a.txt", "a.json"]


def test_a_format_added_later_joins_the_name_the_others_have(bench: Bench) -> None:
    bench.publish(bench.claim("a.mp3"), formats="txt")
    bench.publish(bench.claim("a.wav"), formats="txt")
    assert bench.publish(bench.claim("a.wav"), formats="txt json") == ["a.wav.txt", "a.wav.json"]


EVERY = "txt json srt vtt md"


@pytest.mark.usefixtures("any_disk")
@pytest.mark.parametrize("foreign", EVERY.split())
def test_five_formats_have_one_base_whichever_of_them_is_taken(bench: Bench, foreign: str) -> None:
    (bench.folder / f"a.{foreign}").write_text("mine")
    assert bench.publish(formats=EVERY) == [f"a.wav.{suffix}" for suffix in EVERY.split()]
    assert bench.publish(bench.claim("a.mp3"), formats=EVERY) == [f"a.mp3.{suffix}" for suffix in EVERY.split()]
    assert bench.disk()[f"a.{foreign}"] == "mine"


@pytest.mark.parametrize("name", ["x" * 251 + ".wav", "ü" * 125 + "x.wav", "x" * 252 + ".ts"])
def test_the_longest_names_take_every_suffix(bench: Bench, name: str) -> None:
    names = bench.publish(bench.claim(name), formats=EVERY)
    assert len({Path(made).stem for made in names}) == 1
    assert all((bench.folder / made).exists() and len(os.fsencode(made)) <= 255 for made in names)
    assert bench.publish(bench.claim(name), "again", formats=EVERY) == names


@pytest.mark.parametrize("edited", ["srt", "md"])
def test_an_edited_subtitle_is_left_to_its_owner(bench: Bench, edited: str) -> None:
    bench.publish(formats=EVERY)
    (bench.folder / f"a.{edited}").write_text("corrected by hand")
    names = bench.publish(text="again", formats=EVERY)
    assert [name for name in names if not name.startswith("a.wav")] == [
        f"a.{suffix}" for suffix in EVERY.split() if suffix != edited
    ]
    assert bench.disk()[f"a.{edited}"] == "corrected by hand"
    assert bench.disk()[f"a.wav.{edited}"] == f"{edited}: again\n"


def test_a_source_is_never_its_own_transcript(bench: Bench) -> None:
    assert bench.publish(bench.claim("x.json"), formats="json") == ["x.json.json"]


@pytest.mark.parametrize(
    "name", ["x" * 251 + ".wav", "ü" * 125 + "x.wav", os.fsdecode(b"\xff" * 251 + b".wav"), "e\nvil\t'\".wav"]
)
def test_every_name_a_file_can_have_gets_a_transcript(bench: Bench, name: str) -> None:
    (bench.folder / name).write_bytes(b"audio")
    for suffix in ("txt", "json"):
        (bench.folder / f"{'x' * 250}.{suffix}").write_text("mine")
    names = bench.publish(bench.claim(name))
    assert all((bench.folder / made).exists() for made in names)
    assert (bench.folder / name).read_bytes() == b"audio"


def test_one_name_in_two_folders_of_an_output_tree(bench: Bench, tmp_path: Path) -> None:
    for folder in ("first", "second"):
        job = bench.claim(f"{folder}/audio.wav")
        bench.publish(job, folder, target=target_for(job.path_raw, bench.folder, tmp_path / "out" / "deep"))
    found = {str(path.relative_to(tmp_path)): path.read_text() for path in (tmp_path / "out").rglob("*.txt")}
    assert found == {"out/deep/first/audio.txt": "txt: first\n", "out/deep/second/audio.txt": "txt: second\n"}


@pytest.mark.usefixtures("any_disk")
@pytest.mark.parametrize("step", ["names picked", "reserved", "source checked"])
def test_a_name_taken_at_the_last_moment_is_left_alone(bench: Bench, step: str) -> None:
    taken = bench.folder / "a.txt"
    assert bench.publish(checkpoint=at(step, lambda: taken.write_text("mine"))) == ["a.wav.txt", "a.json"]
    assert bench.disk() == {"a.txt": "mine", "a.wav.txt": "txt: hello\n", "a.json": "json: hello\n"}
    assert set(bench.known()) == {"a.wav.txt", "a.json"}


def test_an_edit_at_the_last_moment_is_left_alone(bench: Bench) -> None:
    bench.publish()
    edited = bench.folder / "a.txt"
    assert bench.publish(text="again", checkpoint=at("reserved", lambda: edited.write_text("mine"))) == [
        "a.wav.txt",
        "a.json",
    ]
    assert bench.disk() == {"a.txt": "mine", "a.wav.txt": "txt: again\n", "a.json": "json: again\n"}


def test_somebody_who_writes_into_our_placeholder_keeps_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", refuse(errno.ENOTSUP))
    taken = bench.folder / "a.txt"
    assert bench.publish(checkpoint=at("placeholder", lambda: taken.write_text("mine"))) == ["a.wav.txt", "a.json"]
    assert bench.disk()["a.txt"] == "mine"


def test_a_row_that_changes_between_looking_and_reserving_is_looked_at_again(bench: Bench) -> None:
    other = bench.claim("a.mp3")
    job = bench.claim("a.wav")
    path = os.fsencode(bench.folder / "a.txt")

    def reserve() -> None:
        with transaction(bench.db):
            outputs.reserve(bench.db, other, "txt", path, on_disk=None, next_sha256="f" * 64)

    assert bench.publish(job, checkpoint=at("names picked", reserve)) == ["a.wav.txt", "a.wav.json"]


def test_a_name_reserved_by_a_job_that_ended_is_free_again(bench: Bench) -> None:
    other = bench.claim("a.mp3")
    with transaction(bench.db):
        outputs.reserve(bench.db, other, "txt", os.fsencode(bench.folder / "a.txt"), on_disk=None, next_sha256="f" * 64)
    assert bench.publish(bench.claim("a.wav")) == ["a.wav.txt", "a.wav.json"]
    bench.queue.fail(other, SourceMissing("gone"))
    assert bench.publish(bench.claim("a.ogg")) == ["a.txt", "a.json"]


def test_a_disk_on_which_every_name_is_taken_is_said_so(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "place_new", lambda *_: False)
    with pytest.raises(OutputUnwritable, match="taken by another program"):
        bench.publish()
    assert (bench.disk(), bench.known()) == ({}, {})


@pytest.mark.usefixtures("any_disk")
@pytest.mark.parametrize("error", [SourceChanged("changed"), SourceMissing("gone")])
def test_a_source_that_changed_gets_no_transcript(bench: Bench, error: Exception) -> None:
    def check() -> None:
        raise error

    job = bench.claim()
    with pytest.raises(type(error)):
        bench.publish(job, check_source=check)
    assert (bench.disk(), bench.known(), bench.state(job)) == ({}, {}, "running")


def test_a_folder_that_went_with_its_source_is_not_made_again(bench: Bench) -> None:
    def check() -> None:
        raise SourceMissing("gone")

    with pytest.raises(SourceMissing):
        bench.publish(bench.claim("away/a.wav"), check_source=check)
    with pytest.raises(OutputUnwritable):
        bench.publish(bench.claim("away/b.wav"))
    assert list(bench.folder.iterdir()) == []


@pytest.mark.usefixtures("any_disk")
@pytest.mark.parametrize("step", ["names picked", "reserved", "placed: txt", "placed: json", "folder synced"])
@pytest.mark.parametrize("wish", ["cancelled", "taken over"])
def test_nothing_stays_of_an_attempt_whose_claim_is_lost(bench: Bench, step: str, wish: str) -> None:
    job = bench.claim()

    def lose() -> None:
        if wish == "cancelled":
            bench.db.execute(
                """
                UPDATE jobs SET state = 'skipped', claim_id = NULL, error_kind = 'cancelled', finished_at = created_at
                WHERE id = ?
                """,
                [job.id],
            )
        else:
            bench.db.execute("UPDATE jobs SET claim_id = 'another' WHERE id = ?", [job.id])

    with pytest.raises(ClaimLost):
        bench.publish(job, checkpoint=at(step, lose))
    assert bench.disk() == {}
    if wish == "cancelled":  # the other claim's rows are the other claim's to write
        assert bench.known() == {}


def test_a_file_of_a_later_claim_is_not_withdrawn(bench: Bench) -> None:
    job = bench.claim()

    def lose() -> None:
        bench.db.execute("UPDATE jobs SET claim_id = 'later' WHERE id = ?", [job.id])
        (bench.folder / "later").write_text("txt: hello\n")  # equal content, another file
        (bench.folder / "later").replace(bench.folder / "a.txt")

    with pytest.raises(ClaimLost):
        bench.publish(job, checkpoint=at("folder synced", lose))
    assert bench.disk()["a.txt"] == "txt: hello\n"
    assert "a.txt" in bench.known()


@pytest.mark.usefixtures("any_disk")
def test_a_second_format_that_fails_takes_the_first_with_it(bench: Bench) -> None:
    job = bench.claim()
    with pytest.raises(OSError, match="boom"):
        bench.publish(job, checkpoint=at("placed: txt", boom))
    assert (bench.disk(), bench.known(), bench.state(job)) == ({}, {}, "running")
    assert bench.publish(job) == ["a.txt", "a.json"]


@pytest.mark.usefixtures("any_disk")
@pytest.mark.parametrize("step", ["linked", "placeholder"])
def test_a_failure_inside_placing_leaves_nothing(bench: Bench, step: str) -> None:
    try:
        bench.publish(checkpoint=at(step, boom))
    except OutputUnwritable:
        assert (bench.disk(), bench.known()) == ({}, {})
    else:
        assert len(bench.disk()) == 2  # this kind of disk has no such step


@pytest.mark.usefixtures("any_disk")
def test_new_names_go_first_so_that_our_old_file_outlives_their_failure(bench: Bench) -> None:
    bench.publish(formats="txt")
    with pytest.raises(OSError, match="boom"):
        bench.publish(text="again", formats="txt json", checkpoint=at("placed: json", boom))
    assert bench.disk() == {"a.txt": "txt: hello\n"}


@pytest.mark.usefixtures("any_disk")
def test_a_replaced_file_of_a_failed_attempt_is_still_known_as_ours(bench: Bench) -> None:
    bench.publish()
    job = bench.claim()
    with pytest.raises(OSError, match="boom"):
        bench.publish(job, "again", checkpoint=at("placed: json", boom))
    assert bench.disk() == {"a.txt": "txt: again\n", "a.json": "json: again\n"}
    assert bench.publish(job, "third") == ["a.txt", "a.json"]


@pytest.mark.parametrize(
    "error", [ClaimLost("lost"), DatabaseBusy("busy"), sqlite3.IntegrityError("broken"), KeyboardInterrupt()]
)
def test_an_error_before_the_commit_takes_the_names_back(bench: Bench, error: BaseException) -> None:
    job = bench.claim()

    def fail() -> None:
        raise error

    with pytest.raises(type(error)):
        bench.publish(job, in_commit=fail)
    assert (bench.disk(), bench.known(), bench.state(job)) == ({}, {}, "running")


def test_an_error_of_the_commit_itself_leaves_files_that_the_next_attempt_knows(bench: Bench) -> None:
    class Failing:
        """A connection whose next COMMIT fails."""

        def __init__(self, conn: sqlite3.Connection) -> None:
            self.conn = conn

        def __getattr__(self, name: str) -> Any:
            return getattr(self.conn, name)

        def execute(self, sql: str, *parameters: Any) -> Any:
            if sql == "COMMIT":
                raise sqlite3.OperationalError("disk I/O error")
            return self.conn.execute(sql, *parameters)

    job, conn = bench.claim(), bench.db.conn

    def break_commit() -> None:
        bench.db.conn = Failing(conn)  # type: ignore[assignment]

    with pytest.raises(sqlite3.OperationalError):
        bench.publish(job, in_commit=break_commit)
    bench.db.conn = conn
    assert bench.state(job) == "running"
    assert set(bench.disk()) == {"a.txt", "a.json"}
    assert bench.publish(job, "again") == ["a.txt", "a.json"]
    assert bench.disk() == {"a.txt": "txt: again\n", "a.json": "json: again\n"}


def test_what_must_land_with_the_transcript_is_written_in_its_transaction(bench: Bench) -> None:
    open_then = []
    bench.publish(in_commit=lambda: open_then.append(bench.db.conn.in_transaction))
    assert open_then == [True]


def test_no_transaction_is_open_during_file_work(bench: Bench) -> None:
    inside = []

    def note(step: str) -> None:
        if bench.db.conn.in_transaction:
            inside.append(step)

    bench.publish(checkpoint=note)
    assert inside == ["reserving", "committing"]


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.ENOSPC, DiskFull),
        (errno.EDQUOT, DiskFull),
        (errno.EROFS, OutputUnwritable),
        (errno.EACCES, OutputUnwritable),
    ],
)
@pytest.mark.parametrize("call", ["open", "link", "replace"])
def test_a_disk_that_refuses_is_named_by_its_kind(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, number: int, expected: type[Exception], call: str
) -> None:
    job = bench.claim()
    real = getattr(os, call)

    def refused(first: Any, *rest: Any, **named: Any) -> Any:
        if isinstance(first, bytes) and b".dropscribe-" in first:
            raise OSError(number, os.strerror(number))
        return real(first, *rest, **named)

    with monkeypatch.context() as patched:
        if call == "replace":
            patched.setattr(os, "link", refuse(errno.EPERM))
        patched.setattr(os, call, refused)
        with pytest.raises(expected):
            bench.publish(job)
    assert (bench.disk(), bench.known(), bench.state(job)) == ({}, {}, "running")
    assert bench.publish(job) == ["a.txt", "a.json"]


def test_a_temp_file_that_cannot_be_written_whole_does_not_stay(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "full_sync", refuse(errno.ENOSPC))
    with pytest.raises(DiskFull):
        bench.publish()
    assert bench.disk() == {}


def test_the_answer_that_nfs_lost_is_not_a_foreign_file(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.link

    def link(*arguments: Any) -> None:
        real(*arguments)
        raise FileExistsError(errno.EEXIST, "File exists")

    monkeypatch.setattr(os, "link", link)
    assert bench.publish() == ["a.txt", "a.json"]
    assert set(bench.disk()) == {"a.txt", "a.json"}


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.usefixtures("any_disk")
@pytest.mark.parametrize(("umask", "expected"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_the_umask_decides_who_may_read(bench: Bench, umask: int, expected: int) -> None:
    before = os.umask(umask)
    try:
        bench.publish()
    finally:
        os.umask(before)
    assert mode(bench.folder / "a.txt") == mode(bench.folder / "a.json") == expected


@pytest.mark.usefixtures("any_disk")
def test_in_a_folder_shared_by_a_group_the_group_may_write(bench: Bench) -> None:
    group = (os.getegid(), *os.getgroups())[-1]
    os.chown(bench.folder, -1, group)
    bench.folder.chmod(0o2775)
    before = os.umask(0o022)
    try:
        bench.publish()
    finally:
        os.umask(before)
    made = (bench.folder / "a.txt").stat()
    assert (stat.S_IMODE(made.st_mode), made.st_gid) == (0o664, group)


def test_a_mode_its_owner_chose_outlives_the_content(bench: Bench) -> None:
    bench.publish()
    (bench.folder / "a.txt").chmod(0o640)
    bench.publish(text="again")
    assert mode(bench.folder / "a.txt") == 0o640


def test_only_temp_files_of_dead_claims_are_swept(bench: Bench) -> None:
    deep = bench.folder / "deep"
    deep.mkdir()
    live = bench.claim()
    for folder in (bench.folder, deep):
        for name in (
            f".dropscribe-{live.claim_id}-0.tmp",
            ".dropscribe-dead-0.tmp",
            ".dropscribe-dead.tmp",
            "dead-0.tmp",
        ):
            (folder / name).write_text("x")
    here = os.fsencode(bench.folder)
    assert sweep_temp_files(bench.db, [here, b"/nowhere"]) == 1
    assert (deep / ".dropscribe-dead-0.tmp").exists()
    assert sweep_temp_files(bench.db, [], [here, b"/nowhere"]) == 1
    assert {path.name for path in deep.iterdir()} == {
        f".dropscribe-{live.claim_id}-0.tmp", ".dropscribe-dead.tmp", "dead-0.tmp",
    }  # fmt: skip
    assert sweep_temp_files(bench.db, [here], [here]) == 0


def test_a_temp_name_that_is_left_from_before_is_passed_over(bench: Bench) -> None:
    job = bench.claim()
    left = bench.folder / f".dropscribe-{job.claim_id}-0.tmp"
    left.write_text("left")
    assert bench.publish(job) == ["a.txt", "a.json"]
    assert left.read_text() == "left"


def test_a_target_is_a_source_and_a_folder() -> None:
    assert Target(b"/in/a.wav", b"/out").source_name == b"a.wav"
