"""The real program on real audio: kills, a missing model, bad files, changes under it."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from audio_making import clip, encode, wav_bytes
from dropscribe.demo.score import word_error_rate
from real_daemon import Place, alive, clips, kill, references, tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.slow
# A process that is killed while MLX compiles would leave half a library in the cache that all tests share.
UNCOMPILED = {"MLX_DISABLE_COMPILE": "1"}


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Place]]:
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(Place(tmp_path, **settings))


def check_texts(place: Place) -> None:
    """Every clip has its own text."""
    for row in place.rows("SELECT path, text FROM jobs WHERE state = 'done'"):
        assert word_error_rate(references()[Path(row["path"]).stem], row["text"]) <= 0.1, row


# -- kills -------------------------------------------------------------------------------------------------------------


def test_after_the_whole_tree_was_killed_in_mid_batch_every_file_is_done_once(make: Callable[..., Place]) -> None:
    place = make(decode={"batch_size": 2})
    for source in clips(1, 3, 4, 6, 10, 18):
        place.drop(source)
    daemon = place.start(**UNCOMPILED)
    place.until(lambda: {"done", "running"} <= set(place.states().values()))
    kill(tree(daemon.pid))
    daemon.wait()
    assert place.value("SELECT count(*) FROM batches WHERE finished_at IS NULL") == 1
    assert place.once(**UNCOMPILED) == 0
    assert place.states() == {path.name: "done" for path in clips(1, 3, 4, 6, 10, 18)}
    assert place.rows("SELECT DISTINCT attempts, crashes FROM jobs") == [{"attempts": 1, "crashes": 0}]
    assert place.value("SELECT outcome FROM batches WHERE id = 1") == "supervisor_died"
    check_texts(place)
    place.check()


def test_a_killed_supervisor_leaves_neither_worker_nor_reader(make: Callable[..., Place]) -> None:
    place = make()
    for source in clips(11, 0):
        place.drop(source)
    daemon = place.start(**UNCOMPILED)
    # it reads while it decodes: at this moment all three are at work
    place.until(lambda: "running" in place.states().values() and len(tree(daemon.pid)) >= 3)
    below = tree(daemon.pid)[1:]
    kill([daemon.pid])
    daemon.wait()
    place.until(lambda: not alive(below), 5)


def test_stopped_in_mid_batch_it_is_gone_in_ten_seconds_and_goes_on_later(make: Callable[..., Place]) -> None:
    place = make(decode={"max_segment_seconds": 5})
    talk = place.folder / "talk.wav"
    talk.write_bytes(wav_bytes(np.tile(clip("clip011"), 4)))  # too long to be done before the signal arrives
    daemon = place.start(**UNCOMPILED)
    place.until(lambda: place.value("SELECT count(*) FROM segments"))
    family = tree(daemon.pid)
    began = time.monotonic()
    daemon.terminate()
    assert daemon.wait(10) == 0
    assert time.monotonic() - began < 10
    assert not alive(family)
    assert place.rows("SELECT state, attempts, crashes, suspect FROM jobs") == [
        {"state": "queued", "attempts": 0, "crashes": 0, "suspect": 0}
    ]
    assert place.value("SELECT outcome FROM batches") == "told"
    assert place.once(**UNCOMPILED) == 0
    job = place.job("talk.wav")
    assert place.value("SELECT sum(duration) FROM timings") == pytest.approx(job["audio_seconds"], abs=0.01)
    place.check()


# -- the model ---------------------------------------------------------------------------------------------------------

REMEDIES = ("mlx-community/Qwen3-ASR-0.6B-4bit", "not on this machine", "connect to the network", "local directory")


@pytest.mark.parametrize("offline", ["1", "0"])
def test_without_model_and_network_it_says_what_to_do_and_keeps_the_jobs(
    make: Callable[..., Place], offline: str, tmp_path: Path
) -> None:
    place = make(model="mlx-community/Qwen3-ASR-0.6B-4bit")
    place.drop(clips(3)[0])
    # nobody listens there: a machine without a network, on any machine
    env = {"HF_HOME": str(tmp_path / "hub"), "HF_HUB_OFFLINE": offline, "HF_ENDPOINT": "http://127.0.0.1:9"}

    assert place.once(**env) == 1
    said = place.log.read_text()
    assert all(words in said for words in REMEDIES)
    assert "Traceback" not in said
    assert place.rows("SELECT state, attempts FROM jobs") == [{"state": "queued", "attempts": 0}]

    done = place.command("transcribe-batch", str(clips(3)[0]), **env)
    assert (done.returncode, done.stdout) == (1, "")
    [line] = done.stderr.splitlines()
    assert all(words in line for words in REMEDIES)

    if offline == "1":
        daemon = place.start(**env)
        problem = place.until(lambda: place.value("SELECT problem FROM service"))
        assert all(words in problem for words in REMEDIES)
        assert daemon.poll() is None
        assert place.states() == {"clip003.flac": "queued"}
        daemon.terminate()
        assert daemon.wait(10) == 0


# -- files -------------------------------------------------------------------------------------------------------------


def test_bad_files_have_clear_rows_and_the_rest_goes_on(make: Callable[..., Place]) -> None:
    place = make()
    (place.folder / "text.wav").write_text("this is no sound\n" * 50)
    (place.folder / "empty.wav").touch()
    encode(place.folder / "mute.mp4", clip()[:16_000], codec="aac", container="mp4", video=True, audio_tracks=0)
    (place.folder / "x.wav").mkdir()
    place.drop(clips(3)[0], "x.wav/inside.flac")
    place.drop(clips(1)[0])
    assert place.once() == 1
    rows = place.rows("SELECT path, state, error_kind, error FROM jobs ORDER BY path")
    assert {str(Path(row["path"]).relative_to(place.folder)): (row["state"], row["error_kind"]) for row in rows} == {
        "text.wav": ("failed", "not_media"), "empty.wav": ("failed", "empty_file"), "mute.mp4": ("skipped", "no_audio"),
        "x.wav/inside.flac": ("done", None), "clip001.flac": ("done", None),
    }  # fmt: skip
    assert all(row["error"] for row in rows if row["state"] != "done")
    named = [line for line in place.log.read_text().splitlines() if "event=failed" in line]
    assert sum("text.wav" in line or "empty.wav" in line for line in named) == len(named) == 2
    assert (place.folder / "x.wav" / "inside.txt").exists()
    place.check()
    assert place.once() == 0, "what failed stays failed until it changes"
    assert place.value("SELECT count(*) FROM jobs") == 5


def test_a_file_that_changes_while_it_is_transcribed_ends_with_the_new_text_alone(make: Callable[..., Place]) -> None:
    place = make()
    place.drop(clips(11)[0], "talk.flac")
    daemon = place.start()
    place.until(lambda: place.states() == {"talk.flac": "running"})
    new = place.folder / "talk.tmp"
    new.write_bytes(clips(3)[0].read_bytes())
    new.replace(place.folder / "talk.flac")
    place.until(lambda: place.states() == {"talk.flac": "done"})
    daemon.terminate()
    assert daemon.wait(10) == 0
    assert place.rows("SELECT state, error_kind FROM jobs ORDER BY id") == [
        {"state": "skipped", "error_kind": "superseded"}, {"state": "done", "error_kind": None}
    ]  # fmt: skip
    assert word_error_rate(references()["clip003"], (place.folder / "talk.txt").read_text()) <= 0.1
    place.check()
