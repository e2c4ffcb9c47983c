"""Soak the real daemon: thousands of short files, and what it costs in memory, descriptors, log and write-ahead log.

    python tools/soak.py --files 2000

Starts ``dropscribe run --service`` on a temporary folder with the bundled model, drops files in waves, and looks at the
processes every second (Linux: /proc). Every file has content of its own, so that nothing is answered from memory. Exit
status 1 when a file was not done or something grew: the median of the last quarter against that of the second.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import shutil
import signal
import sqlite3
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import wave
from pathlib import Path

import dropscribe
from dropscribe.settings import Settings, to_toml

PACKAGE = Path(dropscribe.__file__).parent
WAVE = 100  # files that may wait at once
MIB = 2**20
GROWTH = {"rss": (1.10, 24 * MIB), "fds": (1.0, 4)}  # factor and allowance between second and last quarter


def short_clips(count: int, seconds: tuple[float, float]):
    """WAV files of bundled speech, cut at random; a chunk that readers skip makes each one unique."""
    with wave.open(str(PACKAGE / "demo" / "samples" / "meeting.wav")) as sample:
        parameters = sample.getparams()
        frames = sample.readframes(sample.getnframes())
    rng = random.Random(1)
    rate, width = parameters.framerate, parameters.sampwidth
    for number in range(count):
        length = int(rng.uniform(*seconds) * rate)
        at = rng.randrange(max(1, len(frames) // width - length))
        made = io.BytesIO()
        with wave.open(made, "wb") as out:
            out.setparams(parameters)
            out.writeframes(frames[at * width : (at + length) * width])
        content = made.getvalue() + b"junk" + struct.pack("<II", 8, number) + b"soak"
        yield f"soak{number:05}.wav", content[:4] + struct.pack("<I", len(content) - 8) + content[8:]


def below(pid: int) -> list[int]:
    found = [pid]
    for parent in found:
        try:
            children = Path(f"/proc/{parent}/task/{parent}/children").read_text()
        except OSError:
            continue
        found += map(int, children.split())
    return found


def role(pid: int) -> str | None:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return None
    for name, mark in (
        ("worker", b"dropscribe.worker"),
        ("reader", b"dropscribe.audio.child"),
        ("supervisor", b"run\0"),
    ):
        if mark in command:
            return name
    return None


def look(pid: int) -> tuple[int, int] | None:
    """Resident bytes and open descriptors."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return None


class Soak:
    def __init__(self, base: Path, files: int, seconds: tuple[float, float]) -> None:
        self.base, self.files, self.seconds = base, files, seconds
        self.folder, self.database, self.log = base / "in", base / "jobs.db", base / "state/dropscribe/log"
        self.folder.mkdir()
        self.samples: list[dict[str, float]] = []
        self.wal_most = 0

    def start(self) -> subprocess.Popen[bytes]:
        settings = Settings.model_validate({
            "model": str(PACKAGE / "demo" / "model"), "database": str(self.database),
            "watch": [{"path": str(self.folder)}], "settle": {"quiet_seconds": 0.5},
        })  # fmt: skip
        config = self.base / "dropscribe.toml"
        config.write_text(to_toml(settings), "utf-8")
        env = {name: value for name, value in os.environ.items() if not name.startswith("DROPSCRIBE_")}
        env |= {"XDG_STATE_HOME": str(self.base / "state"), "TMPDIR": str(self.base / "tmp")}
        (self.base / "tmp").mkdir()
        compiled = Path(tempfile.gettempdir()) / "mlx"
        compiled.mkdir(exist_ok=True)
        (self.base / "tmp" / "mlx").symlink_to(compiled)
        return subprocess.Popen(
            [sys.executable, "-m", "dropscribe", "run", "--service", "--config", str(config)], env=env
        )

    def done(self) -> int:
        if not self.database.exists():
            return 0
        conn = sqlite3.connect(f"file:{self.database}?mode=ro", uri=True, timeout=10)
        try:
            return conn.execute("SELECT count(*) FROM jobs WHERE finished_at IS NOT NULL").fetchone()[0]
        except sqlite3.OperationalError:
            return 0
        finally:
            conn.close()

    def sample(self, pid: int, done: int) -> None:
        found: dict[str, float] = {"done": done}
        for process in below(pid):
            name, figures = role(process), look(process)
            if name and figures:
                found[f"{name} rss"], found[f"{name} fds"] = figures
        try:
            found["wal"] = Path(f"{self.database}-wal").stat().st_size
        except OSError:
            found["wal"] = 0
        self.wal_most = max(self.wal_most, int(found["wal"]))
        self.samples.append(found)

    def run(self) -> None:
        process = self.start()
        clips = short_clips(self.files, self.seconds)
        dropped, shown, began = 0, 0, time.monotonic()
        try:
            while process.poll() is None:
                done = self.done()
                self.sample(process.pid, done)
                while dropped < self.files and dropped - done < WAVE:
                    name, content = next(clips)
                    (self.folder / f".{name}.part").write_bytes(content)
                    (self.folder / f".{name}.part").rename(self.folder / name)
                    dropped += 1
                if done >= shown + max(1, self.files // 10):
                    shown = done
                    print(f"{done:5} done after {time.monotonic() - began:6.0f} s", file=sys.stderr)
                if done >= self.files:
                    break
                time.sleep(1.0)
        finally:
            self.wall = time.monotonic() - began
            process.send_signal(signal.SIGTERM)
            self.code = process.wait(15)

    def report(self) -> tuple[dict[str, object], list[str]]:
        conn = sqlite3.connect(self.database)
        states = dict(conn.execute("SELECT state, count(*) FROM jobs GROUP BY state"))
        workers = conn.execute("SELECT count(*) FROM batches").fetchone()[0]
        conn.close()
        grown, figures = [], {}
        for name in ("supervisor", "worker", "reader"):
            for kind, (factor, allowance) in GROWTH.items():
                key = f"{name} {kind}"
                # after the first quarter: imports, compiled kernels and caches are there by then
                quarter = [[s[key] for s in self.samples if key in s and low <= s["done"] / self.files < high]
                           for low, high in ((0.25, 0.5), (0.75, 1.01))]  # fmt: skip
                if not all(quarter):
                    grown.append(f"{key}: not seen")
                    continue
                before, after = map(statistics.median, quarter)
                scale = MIB if kind == "rss" else 1
                most = max(s[key] for s in self.samples if key in s)
                figures[key] = [round(value / scale, 1) for value in (before, after, most)]
                if after > before * factor + allowance:
                    grown.append(f"{key}: {figures[key]}")
        if states != {"done": self.files}:
            grown.append(f"states: {states}")
        if self.code != 0:
            grown.append(f"exit code {self.code}")
        log = sum(part.stat().st_size for part in self.log.iterdir())
        lines = sum(part.read_bytes().count(b"\n") for part in self.log.iterdir())
        if self.wal_most > 64 * MIB:
            grown.append(f"write-ahead log: {self.wal_most} bytes")
        record: dict[str, object] = {
            "files": self.files, "states": states, "wall_s": round(self.wall), "batches": workers,
            "second_quarter, last_quarter, most (MiB or descriptors)": figures,
            "wal_most_mib": round(self.wal_most / MIB, 2), "log_bytes": log, "log_lines": lines,
            "database_mib": round(self.database.stat().st_size / MIB, 2),
        }  # fmt: skip
        return record, grown


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--seconds", type=float, nargs=2, default=(1.0, 3.0), metavar=("FROM", "TO"))
    parser.add_argument("--keep", action="store_true", help="keep the folder")
    arguments = parser.parse_args()
    if not Path("/proc/self/statm").exists():
        sys.exit("this looks at processes through /proc; run it on Linux")
    base = Path(tempfile.mkdtemp(prefix="dropscribe-soak-"))
    try:
        soak = Soak(base, arguments.files, tuple(arguments.seconds))
        soak.run()
        record, grown = soak.report()
    finally:
        if arguments.keep:
            print(base, file=sys.stderr)
        else:
            shutil.rmtree(base, ignore_errors=True)
    print(json.dumps(record, indent=2))
    for line in grown:
        print(f"not flat: {line}", file=sys.stderr)
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main())
