"""The service's own log: it stays bounded, says a fault a few times and then how often, and can be followed."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from dropscribe.logfile import LINE_BYTES, SHOWN, WINDOW, Collapser, RotatingFile, follow, stderr_into, tail

if TYPE_CHECKING:
    from pathlib import Path

FAULT = 'timestamp=2026-12-02T01:00:{:02}.5Z level=error event=worker_died pid={} how="died of SIGSEGV" next_in_s={}'
NEWS = "timestamp=2026-12-02T01:00:00Z level=info event=done job={}"


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def collapse(lines: list[str], clock: Clock | None = None) -> list[str]:
    out: list[bytes] = []
    collapser = Collapser(out.append, clock=clock or Clock())
    for line in lines:
        collapser.line(line.encode())
    collapser.flush()
    return [line.decode() for line in out]


def test_the_file_is_rotated_and_the_oldest_part_goes(tmp_path: Path) -> None:
    path = tmp_path / "log" / "dropscribe.log"
    file = RotatingFile(path, max_bytes=1000, keep=3)
    for number in range(1000):
        file.write(b"line %04d" % number)
    file.close()
    parts = sorted(path.parent.iterdir())
    assert [part.name for part in parts] == ["dropscribe.log", *(f"dropscribe.log.{n}" for n in (1, 2, 3))]
    assert all(part.stat().st_size <= 1000 for part in parts)
    kept = [line for part in (3, 2, 1) for line in (path.parent / f"dropscribe.log.{part}").read_text().splitlines()]
    kept += path.read_text().splitlines()
    assert kept == [f"line {number:04}" for number in range(1000 - len(kept), 1000)]
    assert tail(path, 5) == kept[-5:]
    assert (path.stat().st_mode & 0o777) == 0o600


def test_it_goes_on_where_it_was_and_cuts_what_is_too_long(tmp_path: Path) -> None:
    path = tmp_path / "dropscribe.log"
    for _ in range(2):
        file = RotatingFile(path)
        file.write(b"x" * 100_000)
        file.close()
    assert path.stat().st_size == 2 * (LINE_BYTES + 1)


def test_a_full_disk_costs_lines_and_says_how_many(tmp_path: Path) -> None:
    file = RotatingFile(tmp_path / "dropscribe.log")
    real, file._file = file._file, os.open("/dev/full", os.O_WRONLY) if os.path.exists("/dev/full") else -1  # noqa: PTH110
    if file._file < 0:
        return
    file.write(b"one")
    file.write(b"two")
    assert file.lost == 2
    os.close(file._file)
    file._file = real
    file.write(b"three")
    assert file.path.read_text() == "event=log_lines_lost lines=2\nthree\n"


def test_a_fault_is_written_a_few_times_then_counted() -> None:
    lines = [FAULT.format(number % 60, 1000 + number, 2**number) for number in range(30)]
    out = collapse(lines)
    assert out[:SHOWN] == lines[:SHOWN]
    [summary] = out[SHOWN:]
    assert f"event=repeated times={30 - SHOWN}" in summary
    assert "worker_died" in summary


def test_a_window_that_is_over_is_summed_up_and_a_new_one_begins() -> None:
    clock = Clock()
    out: list[bytes] = []
    collapser = Collapser(out.append, clock=clock)
    for _ in range(10):
        collapser.line(FAULT.format(0, 1, 1).encode())
    clock.now += WINDOW
    collapser.line(FAULT.format(1, 2, 2).encode())
    assert len(out) == SHOWN + 2
    assert b"times=7" in out[SHOWN]


def test_different_jobs_and_what_is_no_fault_are_not_collapsed() -> None:
    lines = [f"timestamp=2026-12-02T01:00:00Z level=error event=failed job={number}" for number in range(20)]
    lines += [NEWS.format(1)] * 20
    assert collapse(lines) == lines


def test_what_libraries_print_over_and_over_is_collapsed_too() -> None:
    assert len(collapse(["[mp3 @ 0x55] Header missing"] * 1000)) == SHOWN + 1


def test_a_flood_is_cut_and_said_to_be() -> None:
    clock = Clock()
    out: list[bytes] = []
    collapser = Collapser(out.append, clock=clock)
    for number in range(30_000):
        collapser.line(b"noise %d" % number)
    assert len(out) < 5000
    clock.now += 61
    collapser.line(NEWS.format(1).encode())
    assert any(b"log_flood lines_left_out=" in line for line in out[-2:])


WRITER = """
import os, subprocess, sys
from pathlib import Path
from dropscribe import logfile
path = Path(sys.argv[1])
with logfile.stderr_into(path, max_bytes=int(sys.argv[3]), keep=2):
    sys.stderr.write("from python\\n")
    os.write(2, b"from below\\n")
    subprocess.run([sys.executable, "-c", "import sys; sys.stderr.write('from a child\\\\n'); sys.exit('at its end')"])
    for number in range(int(sys.argv[2])):
        sys.stderr.write(f"timestamp=x level=info event=done job={number}\\n")
    sys.stderr.write("no newline at the end")
sys.stderr.write("after\\n")
"""


def write_into(path: Path, lines: int, max_bytes: int) -> bytes:
    command = [sys.executable, "-c", WRITER, str(path), str(lines), str(max_bytes)]
    return subprocess.run(command, stderr=subprocess.PIPE, check=True, timeout=60).stderr


def test_all_of_stderr_goes_into_the_file_children_and_all(tmp_path: Path) -> None:
    path = tmp_path / "dropscribe.log"
    assert write_into(path, 500, 10**6) == b"after\n"
    lines = path.read_text().splitlines()
    assert lines[:4] == ["from python", "from below", "from a child", "at its end"]
    assert lines[4:-1] == [f"timestamp=x level=info event=done job={number}" for number in range(500)]
    assert lines[-1] == "no newline at the end"


def test_the_whole_of_it_stays_below_its_bound(tmp_path: Path) -> None:
    write_into(tmp_path / "dropscribe.log", 5000, 20_000)
    assert sum(part.stat().st_size for part in tmp_path.iterdir()) <= 3 * 20_000


def test_stderr_is_given_back(tmp_path: Path, capfd: object) -> None:
    before = os.fstat(2)
    with stderr_into(tmp_path / "dropscribe.log"):
        assert os.fstat(2).st_ino != before.st_ino
    assert os.fstat(2).st_ino == before.st_ino


def test_following_goes_over_a_rotation(tmp_path: Path) -> None:
    path = tmp_path / "dropscribe.log"
    file = RotatingFile(path, max_bytes=60, keep=3)
    file.write(b"old")
    rounds = iter(range(20))

    def pause() -> None:
        file.write(b"new line %02d" % next(rounds))

    lines = follow(path, pause=pause)
    assert [next(lines) for _ in range(15)] == [f"new line {number:02}" for number in range(15)]
    lines.close()
    file.close()
