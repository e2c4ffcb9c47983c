"""The reader process: what it does when things go wrong around it.

``DROPSCRIBE_TEST__READER=WHAT:NAME`` in the child's environment makes it misbehave on the file called NAME; WHAT is
``crash``, ``crash-late``, ``hang``, ``hang-late`` or ``memory`` (see ``audio/child.py``).
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import soundfile

from audio_making import clip, encode, wav_bytes
from dropscribe import errors
from dropscribe.audio import client, source
from dropscribe.audio.client import Reader
from dropscribe.settings import Reader as Limits


@pytest.fixture
def long_wav(tmp_path) -> Path:
    """Ten minutes: more than any pipe holds."""
    path = tmp_path / "long.wav"
    soundfile.write(path, np.tile(clip(), 180), 16_000)
    return path


@pytest.fixture
def short_wav(tmp_path) -> Path:
    path = tmp_path / "short.wav"
    soundfile.write(path, clip(), 16_000)
    return path


def seconds(reader: Reader, path: Path) -> float:
    stream = reader.open(os.fsencode(path))
    for _ in stream.blocks():
        pass
    assert stream.drained is not None
    return stream.drained.seconds


def wait_gone(pid: int, limit: float = 5.0) -> bool:
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            if not Path("/proc").exists():
                try:
                    os.kill(pid, 0)
                except ProcessLookupError:
                    return True
                time.sleep(0.02)
                continue
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


def test_the_hash_is_that_of_the_whole_file(short_wav):
    with Reader(Limits()) as reader:
        found = reader.hash(os.fsencode(short_wav))
        media = reader.open(os.fsencode(short_wav)).media
    status = short_wav.stat()
    assert found.content_hash == media.content_hash == hashlib.sha256(short_wav.read_bytes()).hexdigest()
    assert (found.size_bytes, found.mtime_ns, found.inode) == (status.st_size, status.st_mtime_ns, status.st_ino)
    assert (media.size_bytes, media.mtime_ns, media.inode) == (status.st_size, status.st_mtime_ns, status.st_ino)


def test_one_child_serves_many_files(short_wav):
    with Reader(Limits()) as reader:
        pids = set()
        for _ in range(20):
            assert seconds(reader, short_wav) == len(clip()) / 16_000
            pids.add(reader.child_pid)
        assert len(pids) == 1


def test_a_child_is_replaced_after_its_share_of_files(short_wav, monkeypatch):
    monkeypatch.setattr(client, "FILES_PER_CHILD", 2)
    with Reader(Limits()) as reader:
        pids = []
        for _ in range(4):
            seconds(reader, short_wav)
            pids.append(reader.child_pid)
    assert pids[0] == pids[1] != pids[2] == pids[3]


def test_errors_leave_the_child_alive(short_wav, tmp_path):
    with Reader(Limits()) as reader:
        seconds(reader, short_wav)
        pid = reader.child_pid
        with pytest.raises(errors.SourceMissing):
            reader.open(os.fsencode(tmp_path / "nope.wav"))
        with pytest.raises(errors.SourceMissing):
            reader.hash(os.fsencode(short_wav / "below-a-file.wav"))
        with pytest.raises(errors.NotMedia):
            reader.open(os.fsencode(__file__))
        with pytest.raises(errors.NotMedia):
            reader.open(b"a\0b")
        assert seconds(reader, short_wav) > 3
        assert reader.child_pid == pid


NAMES = [
    b"caf\xe9.wav",
    b"new\nline.wav",
    b"'\"$(x).wav",
    "🎙️ ночь.wav".encode(),
    b"trailing .wav. ",
    b"-flag",
    b"x" * 255,
]


@pytest.mark.parametrize("name", NAMES)
def test_any_name_the_system_allows_is_opened(short_wav, tmp_path, name):
    path = os.fsencode(tmp_path) + b"/" + name
    try:
        os.link(short_wav, path)
    except OSError:
        pytest.skip("this file system refuses the name")
    with Reader(Limits()) as reader:
        assert reader.open(path).media.size_bytes == short_wav.stat().st_size


def test_a_name_like_a_url_is_just_a_name(short_wav, tmp_path):
    path = os.fsencode(tmp_path) + b"/concat:a.wav|b.wav"
    os.link(short_wav, path)
    with Reader(Limits()) as reader:
        assert reader.open(path).media.channels == 1


def test_what_is_no_regular_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "fifo.wav")
    (tmp_path / "folder.wav").mkdir()
    (tmp_path / "loop.wav").symlink_to("loop.wav")
    with Reader(Limits(stall_seconds=5)) as reader:
        for path in (tmp_path / "fifo.wav", tmp_path / "folder.wav", Path("/dev/null")):
            for attempt in (reader.open, reader.hash):
                with pytest.raises(errors.NotMedia):
                    attempt(os.fsencode(path))
        with pytest.raises(errors.SourceBusy):
            reader.open(os.fsencode(tmp_path / "loop.wav"))


def test_a_file_that_becomes_a_fifo_while_it_is_opened_does_not_block(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "a.wav")
    looked_like = Path(__file__).stat()
    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", lambda *_, **__: looked_like)
        with pytest.raises(errors.NotMedia):
            source.Source(os.fsencode(tmp_path / "a.wav"), lambda: None)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_we_may_not_read_is_busy(short_wav):
    short_wav.chmod(0)
    with Reader(Limits()) as reader, pytest.raises(errors.SourceBusy):
        reader.open(os.fsencode(short_wav))


def test_a_child_killed_in_mid_file_fails_that_file_alone(long_wav, short_wav):
    with Reader(Limits()) as reader:
        blocks = reader.open(os.fsencode(long_wav)).blocks()
        next(blocks)
        os.kill(reader.child_pid, signal.SIGKILL)
        with pytest.raises(errors.ReaderCrashed, match="SIGKILL"):
            list(blocks)
        assert seconds(reader, short_wav) > 3


def test_a_child_that_died_idle_is_replaced_without_blame(short_wav):
    with Reader(Limits()) as reader:
        seconds(reader, short_wav)
        os.kill(reader.child_pid, signal.SIGKILL)
        assert wait_gone(reader.child_pid)
        assert seconds(reader, short_wav) > 3


def test_a_child_that_dies_while_it_is_given_a_file_is_replaced_without_blame(short_wav):
    with Reader(Limits()) as reader:
        seconds(reader, short_wav)
        os.kill(reader.child_pid, signal.SIGSTOP)
        killer = threading.Timer(0.3, os.kill, (reader.child_pid, signal.SIGKILL))
        killer.start()
        assert seconds(reader, short_wav) > 3
        killer.join()


def test_a_stopped_child_is_hung_and_killed(long_wav, short_wav):
    with Reader(Limits(stall_seconds=3)) as reader:
        blocks = reader.open(os.fsencode(long_wav)).blocks()
        next(blocks)
        pid = reader.child_pid
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(errors.ReaderHung):
            list(blocks)
        assert wait_gone(pid)
    with Reader(Limits()) as reader:
        assert seconds(reader, short_wav) > 3


@pytest.mark.parametrize("what", ["crash", "crash-late"])
def test_a_crash_names_its_signal(short_wav, tmp_path, monkeypatch, what):
    monkeypatch.setenv("DROPSCRIBE_TEST__READER", f"{what}:bad.wav")
    bad = tmp_path / "bad.wav"
    os.link(short_wav, bad)
    with Reader(Limits()) as reader:
        for _ in range(2):
            with pytest.raises(errors.ReaderCrashed, match="SIGSEGV"):
                seconds(reader, bad)
            assert seconds(reader, short_wav) > 3


@pytest.mark.parametrize("what", ["hang", "hang-late"])
def test_a_hang_ends_at_the_limit(short_wav, tmp_path, monkeypatch, what):
    monkeypatch.setenv("DROPSCRIBE_TEST__READER", f"{what}:bad.wav")
    bad = tmp_path / "bad.wav"
    os.link(short_wav, bad)
    with Reader(Limits(stall_seconds=3)) as reader, pytest.raises(errors.ReaderHung):
        seconds(reader, bad)
    with Reader(Limits()) as reader:
        assert seconds(reader, short_wav) > 3


def test_a_memory_bomb_is_a_limit(short_wav, tmp_path, monkeypatch):
    monkeypatch.setenv("DROPSCRIBE_TEST__READER", "memory:bad.wav")
    bad = tmp_path / "bad.wav"
    os.link(short_wav, bad)
    with Reader(Limits(memory_mb=512)) as reader:
        with pytest.raises(errors.MediaLimit):
            seconds(reader, bad)
        assert seconds(reader, short_wav) > 3


@pytest.mark.parametrize(
    ("script", "cause"),
    [
        ("exit 1", "exit status 1"),
        ("echo no interpreter >&2; exit 1", "no interpreter"),
        ("kill -9 $$", "killed by SIGKILL"),
        ("sleep 60", "silent for 1 s"),
    ],
)
def test_a_child_that_cannot_start_blames_no_file(short_wav, tmp_path, monkeypatch, script, cause):
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(client.sys, "executable", str(program))
    monkeypatch.setattr(client, "START_SECONDS", 1.0)
    with Reader(Limits()) as reader, pytest.raises(errors.TransientError) as caught:
        reader.open(os.fsencode(short_wav))
    assert not isinstance(caught.value, errors.MediaError)
    assert f"does not start: {cause};" in str(caught.value)


def test_signals_to_the_whole_group_are_left_to_the_parent(short_wav):
    with Reader(Limits()) as reader:
        seconds(reader, short_wav)
        os.kill(reader.child_pid, signal.SIGTERM)
        os.kill(reader.child_pid, signal.SIGINT)
        pid = reader.child_pid
        assert seconds(reader, short_wav) > 3
        assert reader.child_pid == pid


def test_abandoning_is_quick_and_keeps_the_child(long_wav, short_wav):
    with Reader(Limits()) as reader:
        stream = reader.open(os.fsencode(long_wav))
        next(stream.blocks())
        pid = reader.child_pid
        started = time.monotonic()
        stream.abandon()
        stream.abandon()
        assert time.monotonic() - started < 1.0
        assert list(stream.blocks()) == []
        assert stream.drained is None
        assert seconds(reader, short_wav) > 3
        assert reader.child_pid == pid


def test_abandoning_a_child_that_does_not_answer_is_quick_too(long_wav, short_wav):
    with Reader(Limits()) as reader:
        stream = reader.open(os.fsencode(long_wav))
        pid = reader.child_pid
        os.kill(pid, signal.SIGSTOP)
        started = time.monotonic()
        stream.abandon()
        assert time.monotonic() - started < 1.5
        assert wait_gone(pid)
        assert seconds(reader, short_wav) > 3


def test_opening_the_next_file_abandons_the_one_before(long_wav, short_wav):
    with Reader(Limits()) as reader:
        first = reader.open(os.fsencode(long_wav))
        assert seconds(reader, short_wav) == len(clip()) / 16_000
        assert list(first.blocks()) == []


def test_a_file_that_changes_while_it_is_read_is_reported(long_wav):
    with Reader(Limits()) as reader:
        blocks = reader.open(os.fsencode(long_wav)).blocks()
        next(blocks)
        with long_wav.open("ab") as more:
            more.write(b"more")
        with pytest.raises(errors.SourceChanged):
            list(blocks)


def test_the_child_waits_for_a_slow_parent_without_hanging(long_wav):
    with Reader(Limits(stall_seconds=3)) as reader:
        stream = reader.open(os.fsencode(long_wav))
        blocks = stream.blocks()
        next(blocks)
        time.sleep(3.3)  # longer than the limit: only waiting for the child counts
        assert sum(len(block) for block in blocks) > 0
        assert stream.drained is not None
        assert stream.drained.read_s < 3.3


PARENT = """
import os, sys, time
from dropscribe.audio.client import Reader
from dropscribe.settings import Reader as Limits
reader = Reader(Limits())
blocks = reader.open(os.fsencode(sys.argv[1])).blocks()
next(blocks)
print(reader.child_pid, flush=True)
time.sleep(600)
"""


def test_the_child_dies_with_its_parent_in_mid_file(long_wav):
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(long_wav)], stdout=subprocess.PIPE, text=True)
    with parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
        assert wait_gone(pid, 3.0)


def test_the_parent_side_imports_no_decoder():
    code = (
        "import sys, dropscribe.audio.client; print(sorted({'av','soundfile','soxr','numpy','mlx'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_noise_on_stdout_cannot_get_into_the_frames(tmp_path):
    # mpg123 and ffmpeg complain about damage as they please
    whole = bytearray(encode(tmp_path / "a.mp3", clip(), codec="libmp3lame", container="mp3").read_bytes())
    for place in range(2000, len(whole), 97):
        whole[place] ^= 0x55
    (tmp_path / "a.mp3").write_bytes(whole)
    with Reader(Limits()) as reader:
        assert seconds(reader, tmp_path / "a.mp3") > 1


def test_memory_stays_flat_over_many_files_of_many_lengths(tmp_path):
    if not Path("/proc/self/statm").exists():
        pytest.skip("reads /proc")
    paths = []
    for number, length in enumerate((1_000, 30_000, 300_000, 1_000_000)):
        paths.append(tmp_path / f"{number}.wav")
        paths[-1].write_bytes(wav_bytes(np.resize(clip(), length), rate=44_100))
    with Reader(Limits()) as reader:
        used = []
        for number in range(80):
            seconds(reader, paths[number % 4])
            used.append(int(Path(f"/proc/{reader.child_pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE"))
    assert used[-1] - used[7] < 20 << 20
