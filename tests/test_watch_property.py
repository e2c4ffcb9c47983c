"""Whatever happens to the files, the table ends as the final tree demands. ``DROPSCRIBE_TEST=500`` means 500 runs."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

import watching

NAMES = st.sampled_from(["a.wav", "b.wav", "c.mp3", "sub/a.wav", "sub/d.flac", "x.wav/e.ogg", "t.wav.part", "n.txt"])
CONTENT = st.sampled_from([b"one", b"two", b"three", b""])
NS = 1_700_000_000_000_000_000
OPERATIONS = st.one_of(
    st.tuples(st.just("create"), NAMES, CONTENT),
    st.tuples(st.just("append"), NAMES, CONTENT),
    st.tuples(st.just("rename"), NAMES, NAMES),
    st.tuples(st.just("replace"), NAMES, CONTENT),
    st.tuples(st.just("move_in"), NAMES, CONTENT),
    st.tuples(st.just("move_out"), NAMES),
    st.tuples(st.just("delete"), NAMES),
    st.tuples(st.just("touch"), NAMES),
    st.tuples(st.just("old_time"), NAMES),
    st.tuples(st.just("remove_folder"), st.just("sub")),
    st.tuples(st.just("pass_time"), st.sampled_from([0.5, 2.0, 4.0, 40.0])),
    st.tuples(st.just("hint"), NAMES),
    st.tuples(st.just("lose_events")),
    st.tuples(st.just("work")),
    st.tuples(st.just("restart")),
)


class Story(watching.World):
    """A world to which anything may happen. Hints are given only when the story says so."""

    def do(self, operation: tuple[Any, ...]) -> None:
        name, *arguments = operation
        with contextlib.suppress(FileNotFoundError, IsADirectoryError, NotADirectoryError, FileExistsError):
            getattr(self, name)(*arguments)

    def path(self, name: str) -> Path:
        return self.folder / name

    def create(self, name: str, content: bytes) -> None:
        self.drop(name, content)

    def append(self, name: str, content: bytes) -> None:
        with self.path(name).open("ab") as file:
            file.write(content)

    def rename(self, old: str, new: str) -> None:
        self.path(new).parent.mkdir(exist_ok=True)
        self.path(old).rename(self.path(new))

    def replace(self, name: str, content: bytes) -> None:
        (self.folder / ".new").write_bytes(content)
        (self.folder / ".new").replace(self.path(name))

    def move_in(self, name: str, content: bytes) -> None:
        self.path(name).parent.mkdir(exist_ok=True)
        (self.base / "outside").write_bytes(content)
        (self.base / "outside").replace(self.path(name))

    def move_out(self, name: str) -> None:
        self.path(name).replace(self.base / "outside")

    def delete(self, name: str) -> None:
        self.path(name).unlink()

    def touch(self, name: str) -> None:
        os.utime(self.path(name))

    def old_time(self, name: str) -> None:
        os.utime(self.path(name), ns=(NS, NS))

    def remove_folder(self, name: str) -> None:
        shutil.rmtree(self.path(name))

    def pass_time(self, seconds: float) -> None:
        self.advance(seconds)

    def lose_events(self) -> None:
        self.reconciler.mailbox.take()

    def work(self) -> None:
        """The worker does the first queued job, as it finds the file."""
        jobs = self.queue.claim("c", 1)
        if not jobs:
            return
        try:
            seen = watching.Fingerprint(jobs[0].path_raw)
        except OSError:
            self.queue.mark_missing([])
            self.db.execute(
                "UPDATE jobs SET state = 'missing', claim_id = NULL, error_kind = 'source_missing', "
                "finished_at = '2026-01-01T00:00:00.000Z' WHERE claim_id = 'c'"
            )
            return
        if (seen.size_bytes, seen.mtime_ns) != (jobs[0].size_bytes, jobs[0].mtime_ns):
            self.queue.hand_back("c")
            return
        self.queue.note_media(jobs[0], content_hash=seen.content_hash)
        self.queue.finish_fields(
            jobs[0], text=seen.content_hash, language=None, model="m", params_key="k", audio_seconds=1.0
        )

    def restart(self) -> None:
        self.reconciler.close()
        self.start()

    def come_to_rest(self) -> None:
        for _ in range(40):
            self.settle()
            self.advance(15)
            if not self.db.rows("SELECT 1 FROM jobs WHERE state = 'queued' LIMIT 1"):
                return
            self.work()
        raise AssertionError("it does not come to rest")


@settings(
    max_examples=int(os.environ.get("DROPSCRIBE_TEST") or 50), deadline=None, print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip
@given(st.lists(OPERATIONS, min_size=3, max_size=25))
def test_any_interleaving_ends_with_what_the_final_tree_demands(story: list[tuple[Any, ...]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = Story(Path(folder))
        try:
            world.step()
            for operation in story:
                world.do(operation)
            world.come_to_rest()
            note(str(world.jobs()))
            check(world)
        finally:
            world.close()


def check(world: Story) -> None:
    """Each eligible file has a newest row that is done with its content; no other path has one that is live."""
    eligible = {
        os.fsencode(path) for path in world.folder.rglob("*")
        if path.is_file() and path.suffix in {".wav", ".mp3", ".flac", ".ogg"} and not path.name.startswith(".")
    }  # fmt: skip
    newest = {}
    for row in world.db.rows("SELECT path_raw, state, text, size_bytes, mtime_ns, error_kind FROM jobs ORDER BY id"):
        newest[row["path_raw"]] = row
        assert row["state"] in ("done", "missing", "skipped")
    assert eligible <= set(newest)
    for path in eligible:
        row, seen = newest[path], watching.Fingerprint(path)
        assert row["state"] == "done", path
        assert row["text"] == seen.content_hash
        assert (row["size_bytes"], row["mtime_ns"]) == (seen.size_bytes, seen.mtime_ns)
