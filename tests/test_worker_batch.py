"""One claim after another in this process, with the bundled model: what becomes of each job, and what it cost."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import soundfile

from audio_making import clip
from dropscribe import batch_job, pipeline
from dropscribe.asr import model as models
from dropscribe.asr.recognizer import Recognizer
from dropscribe.audio.client import Reader
from dropscribe.batch_job import Batch, Engine
from dropscribe.demo.score import word_error_rate
from dropscribe.errors import DatabaseBusy
from dropscribe.jobs.database import open_database
from dropscribe.jobs.queue import Queue
from dropscribe.worker import Told
from real_daemon import Place, check_sums, references

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dropscribe.asr.model import Model


@pytest.fixture(scope="module")
def model() -> Model:
    return models.load(str(Path(models.__file__).parents[1] / "demo" / "model"))


class Shop(Place):
    """A place whose worker is this process: ``batch`` claims and runs once."""

    def __init__(self, base: Path, model: Model, **settings: Any) -> None:
        super().__init__(base, model=model.name, **settings)
        self._model = model
        self._stack = ExitStack()
        self.db = open_database(self.settings.database)
        self._stack.callback(self.db.close)
        self.queue = Queue(self.db)
        self.root = self.queue.ensure_root(self.folder)
        self.reader = self._stack.enter_context(Reader(self.settings.reader))
        self.on_event: Callable[[str, dict[str, Any]], None] = lambda _name, _fields: None
        self.told = False
        self.claims = 0

    def __exit__(self, *error: object) -> None:
        self._stack.close()
        super().__exit__(*error)

    def _pulse(self) -> None:
        if self.told:
            raise Told

    def engine(self) -> Engine:
        folders = dict.fromkeys([self.root], self.settings.watch[0])
        return Engine(
            self.settings, self.queue, Recognizer(self._model), self._model,
            pipeline.plan_for(self.settings, self._model), self.reader, folders,
            emit=lambda name, **fields: self.on_event(name, fields), pulse=self._pulse,
        )  # fmt: skip

    def queue_file(self, path: Path) -> int:
        status = path.stat()
        job = self.queue.enqueue(self.root, os.fsencode(path), status.st_size, status.st_mtime_ns)
        assert job is not None
        return job

    def speak(self, name: str, *numbers: int, seconds: float | None = None) -> int:
        """Queue a file in which held-out clips follow one another, half a second apart."""
        gap = np.zeros(8000, np.float32)
        samples = np.concatenate([part for number in numbers for part in (clip(f"clip{number:03}"), gap)])
        path = self.folder / name
        soundfile.write(path, samples[: int(seconds * 16_000)] if seconds else samples, 16_000)
        return self.queue_file(path)

    def batch(self, limit: int = 24) -> Batch:
        """One claim to its end."""
        self.claims += 1
        claim_id = f"claim{self.claims}"
        batch = Batch(self.engine(), claim_id, self.queue.claim(claim_id, limit))
        batch.run()
        return batch

    def kinds(self) -> dict[str, tuple[str, str | None]]:
        """State and error kind by name."""
        rows = self.rows("SELECT path, state, error_kind FROM jobs ORDER BY id")
        return {Path(row["path"]).name: (row["state"], row["error_kind"]) for row in rows}

    def at(self, event: str, action: Callable[[], None], job: int | None = None) -> None:
        """Do something the first time the batch says ``event`` (of ``job``)."""
        done: list[str] = []

        def hear(name: str, fields: dict[str, Any]) -> None:
            if name == event and job in (None, fields.get("job")) and not done:
                done.append(name)
                action()

        self.on_event = hear

    def tell(self) -> None:
        self.told = True


@pytest.fixture
def make(tmp_path: Path, model: Model) -> Iterator[Callable[..., Shop]]:
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(Shop(tmp_path, model, **settings))


SHORT_SEGMENTS = {"batch_size": 2, "max_segment_seconds": 5}


# -- every end a job can have ------------------------------------------------------------------------------------------


def test_bad_files_end_by_themselves_and_every_second_is_booked(make: Callable[..., Shop]) -> None:
    shop = make(decode={"batch_size": 2})
    good = [shop.speak(f"{number}.wav", number, seconds=2) for number in (1, 3, 6)]
    soundfile.write(shop.folder / "silence.wav", np.zeros(16_000), 16_000)
    (shop.folder / "text.wav").write_text("no sound at all\n" * 20)
    (shop.folder / "empty.wav").touch()
    for name in ("silence.wav", "text.wav", "empty.wav"):
        shop.queue_file(shop.folder / name)
    batch = shop.batch()
    assert shop.kinds() == {
        "1.wav": ("done", None), "3.wav": ("done", None), "6.wav": ("done", None), "silence.wav": ("done", None),
        "text.wav": ("failed", "not_media"), "empty.wav": ("failed", "empty_file"),
    }  # fmt: skip
    assert shop.job("silence.wav")["text"] == ""
    shop.check()
    row = shop.rows("SELECT * FROM batches")[0]
    assert (row["outcome"], row["rows"], row["slots"]) == ("done", 3, 2)
    assert 0 < row["syncs"] <= row["steps"]
    assert row["finished_at"]
    assert row["wall_s"] > row["decode_s"] > 0
    timings = shop.rows("SELECT * FROM timings WHERE job_id IN (?, ?, ?)", *good)
    assert [timing["duration"] for timing in timings] == [2, 2, 2]
    assert all(t["prompt_tokens"] > 0 and t["generated_tokens"] > 0 and t["read_s"] > 0 for t in timings)
    assert row["generated_tokens"] == sum(timing["generated_tokens"] for timing in timings)
    assert row["prompt_tokens"] == sum(timing["prompt_tokens"] for timing in timings)
    assert row["audio_seconds"] == pytest.approx(7)
    assert batch.batch_id == row["id"]


def test_a_cancelled_job_leaves_no_transcript_and_its_seconds_are_booked(make: Callable[..., Shop]) -> None:
    shop = make(decode=SHORT_SEGMENTS)
    long = shop.speak("long.wav", 1, 2, 3)
    shop.speak("short.wav", 6, seconds=2)
    shop.at("progress", lambda: shop.queue.cancel([long]), job=long)
    shop.batch()
    assert shop.kinds() == {"long.wav": ("skipped", "cancelled"), "short.wav": ("done", None)}
    assert shop.transcripts() == {"short.txt"}
    assert shop.rows("SELECT time FROM timings WHERE job_id = ?", long)[0]["time"] > 0
    shop.check()


def test_told_in_mid_batch_it_hands_back_untouched_and_goes_on_where_it_was(make: Callable[..., Shop]) -> None:
    shop = make(decode=SHORT_SEGMENTS)
    long = shop.speak("long.wav", 1, 2, 3)
    shop.speak("short.wav", 6)
    shop.at("progress", shop.tell, job=long)
    with pytest.raises(Told):
        shop.batch()
    assert shop.rows("SELECT state, attempts, crashes, suspect, claim_id, not_before FROM jobs WHERE id = ?", long) == [
        {"state": "queued", "attempts": 0, "crashes": 0, "suspect": 0, "claim_id": None, "not_before": None}
    ]
    assert shop.value("SELECT outcome FROM batches") == "told"
    kept = shop.value("SELECT max(end_ms) / 1000.0 FROM segments WHERE job_id = ?", long)
    assert kept
    check_sums(shop)

    shop.told = False
    shop.batch()
    shop.check()
    first, second = [row["duration"] for row in shop.rows("SELECT duration FROM timings WHERE job_id = ?", long)]
    whole = shop.job("long.wav")["audio_seconds"]
    assert first >= kept
    assert first + second == pytest.approx(whole, abs=0.01), "nothing is decoded twice"
    spoken = " ".join(references()[f"clip00{number}"] for number in (1, 2, 3))
    assert word_error_rate(spoken, shop.job("long.wav")["text"]) <= 0.25  # it is cut every five seconds
    ends = shop.rows("SELECT start_ms, end_ms FROM segments WHERE job_id = ? ORDER BY start_ms", long)
    assert [a["end_ms"] for a in ends[:-1]] == [b["start_ms"] for b in ends[1:]]


def test_a_busy_job_log_ends_the_batch_and_costs_no_file(make: Callable[..., Shop], monkeypatch: Any) -> None:
    shop = make()
    shop.speak("a.wav", 1, seconds=1.5)
    with monkeypatch.context() as patch:

        def busy(*_: object) -> None:
            raise DatabaseBusy("somebody else")

        patch.setattr(Queue, "save_segments", busy)
        with pytest.raises(DatabaseBusy):
            shop.batch()
    assert shop.rows("SELECT state, attempts FROM jobs") == [{"state": "queued", "attempts": 0}]
    assert shop.value("SELECT outcome FROM batches") == "database_busy"
    shop.batch()
    shop.check()


def test_an_unforeseen_error_leaves_the_claim_to_whoever_buries_the_worker(
    make: Callable[..., Shop], monkeypatch: Any
) -> None:
    shop = make()
    shop.speak("a.wav", 1, seconds=1.5)

    def broken(*_: object) -> None:
        raise RuntimeError("out of device memory")

    monkeypatch.setattr(Queue, "save_segments", broken)
    with pytest.raises(RuntimeError):
        shop.batch()
    assert shop.states() == {"a.wav": "running"}
    assert shop.queue.recover(None, cause="crash").requeued == (1,)
    assert shop.rows("SELECT outcome, suspect FROM batches, jobs") == [{"outcome": "crash", "suspect": 1}]


def test_a_folder_that_cannot_be_written_costs_its_own_file_a_wait(make: Callable[..., Shop], tmp_path: Path) -> None:
    (tmp_path / "occupied").touch()
    shop = make(watch={"output_dir": str(tmp_path / "occupied" / "out")})
    shop.speak("a.wav", 1, seconds=1.5)
    shop.batch()
    assert shop.kinds() == {"a.wav": ("queued", "output_unwritable")}
    (tmp_path / "occupied").unlink()
    shop.queue.retry([1])
    shop.batch()
    assert shop.kinds() == {"a.wav": ("done", None)}
    assert {path.name for path in (tmp_path / "occupied" / "out").iterdir()} == {"a.txt", "a.json"}
    assert [t["generated_tokens"] > 0 for t in shop.rows("SELECT * FROM timings ORDER BY batch_id")] == [True, False]


# -- the source under us -----------------------------------------------------------------------------------------------


def test_content_that_changes_while_it_is_decoded_is_not_published(make: Callable[..., Shop]) -> None:
    shop = make()
    job = shop.speak("a.wav", 1)
    later = shop.folder / "later"
    soundfile.write(later, clip("clip003"), 16_000, format="WAV")
    shop.at("progress", lambda: later.replace(shop.folder / "a.wav") and None, job=job)
    shop.batch()
    assert shop.kinds() == {"a.wav": ("queued", "source_changed")}
    assert shop.transcripts() == set()
    new = shop.queue_file(shop.folder / "a.wav")
    assert shop.rows("SELECT state, error_kind FROM jobs WHERE id = ?", job) == [
        {"state": "skipped", "error_kind": "superseded"}
    ]
    shop.batch()
    assert shop.job("a.wav")["id"] == new
    assert word_error_rate(references()["clip003"], (shop.folder / "a.txt").read_text()) <= 0.1
    shop.check()


def test_a_file_that_goes_while_it_is_decoded_is_missing(make: Callable[..., Shop]) -> None:
    shop = make()
    job = shop.speak("a.wav", 1, seconds=1.5)
    shop.speak("b.wav", 3, seconds=1.5)
    shop.at("progress", (shop.folder / "a.wav").unlink, job=job)
    shop.batch()
    assert shop.kinds() == {"a.wav": ("missing", "source_missing"), "b.wav": ("done", None)}
    shop.check()


def test_a_file_that_goes_with_its_whole_folder_is_waited_for(make: Callable[..., Shop]) -> None:
    shop = make()
    shop.speak("a.wav", 1, seconds=1)
    shop.folder.rename(shop.base / "unplugged")
    shop.batch()
    assert shop.kinds() == {"a.wav": ("queued", "source_busy")}
    (shop.base / "unplugged").rename(shop.folder)
    shop.db.execute("UPDATE jobs SET not_before = NULL")
    shop.batch()
    assert shop.kinds()["a.wav"][0] == "done"


# -- equal content -----------------------------------------------------------------------------------------------------


def test_content_that_was_done_before_is_not_decoded_again(make: Callable[..., Shop]) -> None:
    shop = make()
    first = shop.speak("first.wav", 1)
    shop.batch()
    shop.queue_file(shop.drop(shop.folder / "first.wav", "again.mp3"))
    shop.batch()
    again = shop.job("again.mp3")
    assert (again["state"], again["reused_from"]) == ("done", first)
    assert again["text"] == shop.job("first.wav")["text"] == (shop.folder / "again.txt").read_text().strip()
    assert again["audio_seconds"] == shop.job("first.wav")["audio_seconds"]
    assert shop.rows("SELECT rows, generated_tokens FROM batches WHERE id = 2") == [{"rows": 0, "generated_tokens": 0}]
    shop.check()


def test_twins_in_one_claim_are_decoded_once(make: Callable[..., Shop]) -> None:
    shop = make()
    first = shop.speak("a.wav", 1, seconds=2)
    for name in ("b.wav", "c.wav"):
        shop.queue_file(shop.drop(shop.folder / "a.wav", name))
    shop.batch()
    assert {name: shop.job(name)["reused_from"] for name in ("a.wav", "b.wav", "c.wav")} == {
        "a.wav": None, "b.wav": first, "c.wav": first
    }  # fmt: skip
    assert shop.value("SELECT rows FROM batches") == 1
    assert shop.transcripts() == {"a.txt", "b.txt", "c.txt"}
    shop.check()


def test_when_the_first_of_twins_is_cancelled_the_second_has_its_own_turn(
    make: Callable[..., Shop], monkeypatch: Any
) -> None:
    shop = make()
    first = shop.speak("a.wav", 1, seconds=2)
    shop.queue_file(shop.drop(shop.folder / "a.wav", "b.wav"))
    monkeypatch.setattr(shop, "_pulse", lambda: shop.queue.cancel([first]))
    shop.batch()
    assert shop.kinds() == {"a.wav": ("skipped", "cancelled"), "b.wav": ("queued", None)}
    assert shop.job("b.wav")["attempts"] == 0
    shop.batch()
    assert shop.job("b.wav")["reused_from"] is None
    assert shop.kinds()["b.wav"] == ("done", None)
    shop.check()


def test_a_twin_whose_text_was_pruned_meanwhile_is_not_reused(make: Callable[..., Shop], monkeypatch: Any) -> None:
    shop = make()
    first = shop.speak("first.wav", 1, seconds=2)
    shop.batch()
    shop.queue_file(shop.drop(shop.folder / "first.wav", "again.wav"))

    def prune() -> None:
        shop.db.execute("DELETE FROM segments WHERE job_id = ?", (first,))
        shop.db.execute("UPDATE jobs SET text = NULL WHERE id = ?", (first,))

    looked_up = Queue.done_twin

    def done_twin(queue: Queue, *content: str) -> int | None:
        found = looked_up(queue, *content)
        if found == first:
            prune()
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Queue, "done_twin", done_twin)
        shop.batch()
    assert shop.kinds()["again.wav"] == ("queued", None)
    shop.batch()
    assert shop.job("again.wav")["text"] == (shop.folder / "first.txt").read_text().strip()


@pytest.mark.parametrize(("duplicates", "ends"), [("transcribe", ("done", None)), ("skip", ("skipped", "duplicate"))])
def test_content_done_under_another_name_is_done_again_or_skipped_by_setting(
    tmp_path: Path, model: Model, duplicates: str, ends: tuple[str, str | None]
) -> None:
    with Shop(tmp_path, model, duplicates=duplicates) as shop:
        shop.speak("a.wav", 1, seconds=1.5)
        shop.batch()
        shop.speak("b.wav", 1, seconds=1.5)
        shop.speak("c.wav", 1, seconds=1.5)
        shop.batch()
        assert shop.kinds() == {"a.wav": ("done", None), "b.wav": ends, "c.wav": ends}
        assert shop.value("SELECT count(reused_from) FROM jobs") == 0
        assert shop.transcripts() == ({"a.txt", "b.txt", "c.txt"} if duplicates == "transcribe" else {"a.txt"})


def test_other_options_do_not_reuse_a_text(tmp_path: Path, model: Model) -> None:
    with Shop(tmp_path, model) as shop:
        shop.speak("a.wav", 1, seconds=2)
        shop.batch()
        shop.queue_file(shop.drop(shop.folder / "a.wav", "b.wav"))
        shop.settings = shop.settings.model_copy(
            update={"watch": (shop.settings.watch[0].model_copy(update={"language": "English"}),)}
        )
        shop.batch()
        assert shop.job("b.wav")["reused_from"] is None
        assert shop.job("b.wav")["params_key"] != shop.job("a.wav")["params_key"]


# -- enough audio for one batch ----------------------------------------------------------------------------------------


def test_files_beyond_enough_audio_go_back_untouched(make: Callable[..., Shop], monkeypatch: Any) -> None:
    monkeypatch.setattr(batch_job, "ENOUGH_AUDIO", 3.0)
    shop = make()
    for number in (1, 3, 6, 10):
        shop.speak(f"{number}.wav", number, seconds=2)
    shop.batch()
    assert list(shop.states().values()) == ["done", "done", "queued", "queued"]
    assert shop.rows("SELECT attempts, claim_id, started_at FROM jobs WHERE id > 2") == 2 * [
        {"attempts": 0, "claim_id": None, "started_at": None}
    ]
    assert shop.value("SELECT count(*) FROM timings") == 2
    shop.batch()
    assert set(shop.states().values()) == {"done"}
    shop.check()


def test_a_long_file_gives_way_at_a_segments_end_and_always_moves_on(
    make: Callable[..., Shop], monkeypatch: Any
) -> None:
    monkeypatch.setattr(batch_job, "ENOUGH_AUDIO", 1.0)
    shop = make(decode=SHORT_SEGMENTS)
    long = shop.speak("long.wav", 1, 2, 3)
    short = shop.speak("1.wav", 10, seconds=1.5)
    queued_at = shop.job("long.wav")["queued_at"]
    shop.batch(limit=1)
    assert shop.kinds() == {"long.wav": ("queued", None), "1.wav": ("queued", None)}
    assert shop.job("long.wav")["queued_at"] > queued_at
    assert shop.job("long.wav")["attempts"] == 0
    assert shop.value("SELECT count(*) FROM segments WHERE job_id = ?", long) == 1
    shop.batch(limit=1)
    assert shop.states() == {"long.wav": "queued", "1.wav": "done"}, "the other one had its turn"
    assert short

    for more in range(2, 9):  # there is always somebody else waiting, and it comes on all the same
        shop.speak(f"{more}.wav", 10, seconds=1.5 + more / 10)
        shop.db.execute("UPDATE jobs SET priority = 1 WHERE id = ?", (long,))
        shop.batch(limit=1)
        if shop.states()["long.wav"] == "done":
            break
        assert shop.value("SELECT count(*) FROM segments WHERE job_id = ?", long) == more
    assert shop.states()["long.wav"] == "done"
    assert shop.value("SELECT sum(duration) FROM timings WHERE job_id = ?", long) == pytest.approx(
        shop.job("long.wav")["audio_seconds"], abs=0.01
    )
    check_sums(shop)


def test_a_long_file_does_not_give_way_to_nobody(make: Callable[..., Shop], monkeypatch: Any) -> None:
    monkeypatch.setattr(batch_job, "ENOUGH_AUDIO", 1.0)
    shop = make(decode=SHORT_SEGMENTS)
    shop.speak("long.wav", 1, 2, seconds=8)
    shop.batch()
    assert shop.states() == {"long.wav": "done"}


# -- the reader --------------------------------------------------------------------------------------------------------


def all_batches(shop: Shop) -> None:
    while shop.queue.due():
        shop.batch()


@pytest.mark.parametrize(("what", "kind"), [("crash-late", "reader_crashed"), ("hang", "reader_hung")])
def test_a_file_that_breaks_the_reader_fails_alone(
    make: Callable[..., Shop], monkeypatch: Any, what: str, kind: str
) -> None:
    monkeypatch.setenv("DROPSCRIBE_TEST__READER", f"{what}:bad.wav")
    shop = make(reader={"stall_seconds": 4})
    shop.speak("a.wav", 1, seconds=1.5)
    shop.speak("bad.wav", 2)
    shop.speak("c.wav", 3, seconds=1.5)
    all_batches(shop)
    assert shop.kinds() == {"a.wav": ("done", None), "bad.wav": ("failed", kind), "c.wav": ("done", None)}
    assert shop.value("SELECT count(*) FROM batches") <= 3, "never in a tight loop"
    shop.check()


def test_a_reader_that_was_killed_from_outside_costs_no_file_and_no_segment(make: Callable[..., Shop]) -> None:
    shop = make(decode={"batch_size": 1, "max_segment_seconds": 5})
    path = shop.folder / "long.wav"  # longer than what is read ahead of the first result
    soundfile.write(path, np.concatenate((clip("clip001"), np.zeros(100 * 16_000), clip("clip003"))), 16_000)
    job = shop.queue_file(path)
    killed: list[int] = []

    def kill_reader() -> None:
        assert shop.reader.child_pid is not None
        killed.append(shop.reader.child_pid)
        os.kill(killed[0], 9)

    shop.at("progress", kill_reader, job=job)
    all_batches(shop)
    assert killed
    assert shop.kinds() == {"long.wav": ("done", None)}
    assert shop.rows("SELECT attempts, crashes FROM jobs") == [{"attempts": 2, "crashes": 0}]
    seconds = shop.job("long.wav")["audio_seconds"]
    assert shop.value("SELECT sum(duration) FROM timings") == pytest.approx(seconds, abs=0.01)
    shop.check()
