"""The daemon under fire: SIGKILL to worker, reader, supervisor or all of them, again and again, while files come in.

    python tools/kill_run.py --kills 300                 kills of anything, nothing is ever quarantined
    python tools/kill_run.py --kills 100 --killer        kills that cost nothing, and one file that kills its worker
    python tools/kill_run.py --kills 20 --decoder fake   a decoder that takes no time; everything else is real

Rounds of 60 short files (some of them long, some with equal content, some copied in pieces) until all kills are spent.
After each round every file must be done exactly once, with one whole transcript, the text of an undisturbed run, and a
sound job log. Half of the kills come at a random time, half just after a random commit. A failing run prints its seed
(times are the machine's, so the same seed gives the same files and choices, not the same instants) and stays on disk.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TESTS = Path(__file__).resolve().parents[1] / "tests"
TARGETS = ("worker", "reader", "supervisor", "all")
KILLER = "killer.wav"
DECODER_ENV, KILLER_ENV = "KILL_RUN_DECODER", "KILL_RUN_KILLER"  # read by the worker process only
RATE = 16_000
COMES_SECONDS = 15.0  # a worker or a reader that is to be killed has this long to come up
ROUND_SECONDS = 600.0  # from the last kill until everything must be done


@dataclass
class Plan:
    """What a run does."""

    kills: int = 300
    files: int = 60
    seed: int = 0
    decoder: str = "real"
    killer: bool = False  # with the default crash cap, one file that kills its worker, and no other kills of workers
    base: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="kill-run-")))
    say: Callable[[str], None] = print

    @property
    def targets(self) -> tuple[str, ...]:
        return tuple(name for name in TARGETS if not (self.killer and name == "worker"))


def run(plan: Plan) -> Counter[str]:
    """All rounds; how often each target was killed. Raises ``AssertionError`` with the seed in its message."""
    dice = random.Random(plan.seed)
    hits: Counter[str] = Counter()
    number = 0
    while hits.total() < plan.kills:
        number += 1
        folder = plan.base / f"round{number}"
        folder.mkdir(parents=True)
        try:
            hits += _Round(plan, folder, dice, plan.kills - hits.total()).run()
        except AssertionError as error:
            raise AssertionError(f"seed {plan.seed}, round {number}, see {folder}: {error}") from error
        shutil.rmtree(folder)
    return hits


class _Round:
    def __init__(self, plan: Plan, folder: Path, dice: random.Random, kills: int) -> None:
        sys.path.insert(0, str(TESTS))
        import real_daemon

        self._daemon = real_daemon
        self._plan, self._dice, self._kills = plan, dice, kills
        self._sources = folder / "sources"
        self._names = _make_files(self._sources, plan.files, dice)
        # MLX compiles for the CPU into a cache that a kill would leave half-written
        decode: dict[str, Any] = {"batch_size": 3, "max_segment_seconds": 5}
        if plan.decoder == "fake":
            decode["decoder"] = "bulk-sync"  # there is no model that could be checked for the true batch
        settings: dict[str, Any] = {"quiet": 0.2, "decode": decode}
        for place in ("calm", "fire"):
            (folder / place).mkdir()
        self._calm = real_daemon.Place(folder / "calm", **settings)
        self._fire = real_daemon.Place(folder / "fire", **settings)
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._left = list(self._names)

    def run(self) -> Counter[str]:
        hits: Counter[str] = Counter()
        with self._calm, self._fire:
            expected = self._undisturbed()
            try:
                while hits.total() < self._kills and not self._finished():
                    self._drop_some()
                    self._wait_for_an_instant()
                    if (target := self._strike()) is not None:
                        hits[target] += 1
                self._let_it_finish()
            finally:
                self._end()
            self._check(expected)
        said = ", ".join(f"{name} {count}" for name, count in sorted(hits.items()))
        self._plan.say(f"{len(self._names)} files, {hits.total()} kills ({said}): every file done once")
        return hits

    # -- the daemon ------------------------------------------------------------------------------------------------

    def _start(self, place: Any, *, killer: bool) -> subprocess.Popen[bytes]:
        cap = "default" if self._plan.killer else "lifted"
        env = {
            **place.env, "MLX_DISABLE_COMPILE": "1", DECODER_ENV: self._plan.decoder,
            KILLER_ENV: KILLER if killer else "",
        }  # fmt: skip
        with place.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, __file__, "supervise", place.settings.model_dump_json(), cap], stderr=log, env=env
            )

    def _undisturbed(self) -> dict[str, str]:
        """Text by content hash."""
        for name in self._names:
            _copy(self._sources / name, self._calm.folder / name)
        process = self._start(self._calm, killer=False)
        try:
            self._calm.until(lambda: _all_in(self._calm, self._names, "done"), ROUND_SECONDS)
        finally:
            process.terminate()
            process.wait()
        return {row["content_hash"]: row["text"] for row in self._calm.rows("SELECT content_hash, text FROM jobs")}

    def _drop_some(self) -> None:
        for _ in range(self._dice.randint(0, max(2, 2 * len(self._names) // max(self._kills, 12)))):
            if self._left:
                name = self._left.pop()
                _copy(self._sources / name, self._fire.folder / name, in_pieces=self._dice.random() < 0.2)

    def _wait_for_an_instant(self) -> None:
        if self._supervisor is None or self._supervisor.poll() is not None:
            self._supervisor = self._start(self._fire, killer=self._plan.killer)
        deadline = time.monotonic() + self._dice.expovariate(1 / (3.0 if self._plan.decoder == "real" else 1.0))
        commits = self._dice.randint(1, 12) if self._dice.random() < 0.5 else None
        if commits is not None:
            deadline += 10.0
        for seen in self._commits():
            if (commits is not None and seen >= commits) or time.monotonic() >= deadline or self._finished_dropping():
                break
            time.sleep(0.001)
        time.sleep(self._dice.uniform(0, 0.01))

    def _commits(self) -> Iterator[int]:
        """How many commits others made to the job log since the first look."""
        while not self._fire.settings.database.exists():
            yield 0
        with closing(sqlite3.connect(f"file:{self._fire.settings.database}?mode=ro", uri=True, timeout=10)) as conn:
            seen, last = 0, None
            while True:
                version = conn.execute("PRAGMA data_version").fetchone()[0]
                seen += version != last
                last = version
                yield seen

    def _strike(self) -> str | None:
        """Kill one of them, waiting for it if need be; its name, or None if it did not come."""
        assert self._supervisor is not None
        target = self._dice.choice(self._plan.targets)
        needed = {"worker": 2, "reader": 3}.get(target, 1)
        deadline = time.monotonic() + COMES_SECONDS
        while len(family := self._daemon.tree(self._supervisor.pid)) < needed:
            if time.monotonic() > deadline or self._finished():
                return None
            time.sleep(self._dice.uniform(0, 0.05))
        victims = {"worker": family[1:2], "reader": family[2:3], "supervisor": family[:1], "all": family}[target]
        self._daemon.kill(victims)
        if target in ("supervisor", "all"):
            self._supervisor.wait()
        return target

    def _finished_dropping(self) -> bool:
        """Nothing is left to happen: all is dropped and done."""
        return not self._left and self._finished()

    def _finished(self) -> bool:
        return not self._left and _all_ended(self._fire, self._names)

    def _let_it_finish(self) -> None:
        while self._left:
            self._drop_some()
        if self._supervisor is None or self._supervisor.poll() is not None:
            self._supervisor = self._start(self._fire, killer=self._plan.killer)
        self._fire.until(self._finished, ROUND_SECONDS)
        self._fire.until(lambda: not self._fire.rows("SELECT 1 FROM batches WHERE finished_at IS NULL"), 60)
        self._fire.until(lambda: not list(self._fire.folder.rglob("*.tmp")), 60)  # swept after a worker's death

    def _end(self) -> None:
        if self._supervisor is not None and self._supervisor.poll() is None:
            self._supervisor.terminate()
            self._supervisor.wait(15)

    # -- afterwards ------------------------------------------------------------------------------------------------

    def _check(self, expected: dict[str, str]) -> None:
        fire = self._fire
        self._daemon.check_outputs(fire)
        self._daemon.check_sums(fire)
        rows = fire.rows("SELECT * FROM jobs WHERE error_kind IS NOT 'superseded'")
        assert sorted(_name(fire, row) for row in rows) == sorted(self._names), "a file has no job, or more than one"
        for row in rows:
            name = _name(fire, row)
            if self._plan.killer and name == KILLER:
                assert (row["state"], row["crashes"]) == ("quarantined", 3), dict(row)
                continue
            assert row["state"] == "done", f"{name} is {row['state']}: {row['error_kind']}: {row['error']}"
            assert row["content_hash"] == hashlib.sha256((self._sources / name).read_bytes()).hexdigest()
            assert row["text"] == expected[row["content_hash"]], f"{name} has another text than in an undisturbed run"
            self._check_segments(row)

    def _check_segments(self, row: dict[str, Any]) -> None:
        owner = row["reused_from"] or row["id"]
        rows = self._fire.rows(
            "SELECT start_ms, end_ms FROM segments WHERE job_id = ? AND params_key = ? ORDER BY start_ms",
            owner, row["params_key"],
        )  # fmt: skip
        edges = [(segment["start_ms"], segment["end_ms"]) for segment in rows]
        gaps = [1 for a, b in pairwise(edges) if a[1] != b[0]]
        whole = edges and edges[0][0] == 0 and abs(edges[-1][1] / 1000 - row["audio_seconds"]) < 0.002 and not gaps
        assert whole, f"segments of job {row['id']} do not cover it: {edges}"


def _name(place: Any, row: dict[str, Any]) -> str:
    return str(Path(os.fsdecode(row["path_raw"])).relative_to(place.folder))


def _all_in(place: Any, names: list[str], state: str) -> bool:
    return (place.value("SELECT count(*) FROM jobs WHERE state = ?", state) or 0) >= len(names)


def _all_ended(place: Any, names: list[str]) -> bool:
    return (place.value("SELECT count(*) FROM jobs WHERE finished_at IS NOT NULL") or 0) >= len(names)


def _make_files(folder: Path, count: int, dice: random.Random) -> list[str]:
    """Short pieces of the held-out clips, in no order. Every tenth is long; every twelfth has another's content."""
    import soundfile

    clips = [soundfile.read(path, dtype="int16")[0] for path in sorted((TESTS / "data" / "heldout").glob("*.flac"))]
    names = []
    for number in range(count):
        name = KILLER if number == 1 else f"{'deep/' * (number % 4 == 3)}{number:03}.wav"
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if number % 12 == 11:
            shutil.copyfile(folder / names[number - 2], path)
        else:
            clip = clips[number % len(clips)]
            seconds = 11 if number % 10 == 5 else dice.uniform(1.0, 1.5)
            start = dice.randrange(max(1, len(clip) - int(seconds * RATE)))
            soundfile.write(path, clip[start : start + int(seconds * RATE)], RATE)
        names.append(name)
    return dice.sample(names, len(names))


def _copy(source: Path, target: Path, *, in_pieces: bool = False) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    content = source.read_bytes()
    with target.open("wb") as file:
        if in_pieces:  # longer than it takes to become whole: what was taken for the whole is superseded
            file.write(content[: len(content) // 2])
            file.flush()
            time.sleep(0.1)
            file.write(content[len(content) // 2 :])
        else:
            file.write(content)


# -- the processes of the daemon -----------------------------------------------------------------------------------


def supervise(settings: str, cap: str) -> int:
    """``dropscribe run`` with this file's worker, short waits after a crash, and maybe no crash cap."""
    from dropscribe import logs, supervisor
    from dropscribe.jobs.queue import Queue
    from dropscribe.settings import Settings

    if cap == "lifted":
        supervisor.Queue = functools.partial(Queue, crash_cap=None)  # type: ignore[misc, assignment]
    logs.configure("info")
    command = (sys.executable, __file__, "work")
    return supervisor.Supervisor(
        Settings.model_validate_json(settings), worker_command=command, crash_delays=(0.05, 0.5)
    ).run()


def work() -> None:
    """The worker; with a fake decoder if so asked, and dying of one file if so asked."""
    from dropscribe import worker
    from dropscribe.batch_job import Batch

    if os.environ.get(DECODER_ENV) == "fake":
        from dropscribe.asr import model, recognizer

        model.load = lambda name, **_options: _fake_model(name)  # type: ignore[assignment]
        recognizer.Recognizer = _FakeRecognizer  # type: ignore[misc, assignment]
    if killer := os.environ.get(KILLER_ENV):
        wanted = Batch._wanted  # noqa: SLF001 - where a file's content first meets the worker

        def die(batch: Batch, file: Any) -> Any:
            if os.path.basename(file.path) == os.fsencode(killer):
                os.kill(os.getpid(), signal.SIGKILL)
            return wanted(batch, file)

        Batch._wanted = die  # type: ignore[method-assign]  # noqa: SLF001
    worker.main()


def _fake_model(name: str) -> Any:
    return SimpleNamespace(
        name=name,
        revision="fake",
        device="none",
        dtype="none",
        languages=("English",),
        max_segment_seconds=30.0,
        longest_seconds=30.0,
        positions_for=lambda _seconds: 1000,
    )


class _FakeRecognizer:
    """Hears the digest of the samples in every segment."""

    def __init__(self, _model: Any) -> None:
        pass

    def transcribe(self, segments: Any, *, timing: Any, pulse: Callable[[], None], **_options: Any) -> Iterator[Any]:
        from dropscribe.asr.recognizer import Part, Result
        from dropscribe.asr.timing import RowTiming

        for segment in segments:
            for _ in range(4):
                pulse()
                time.sleep(0.003)
            text = hashlib.sha256(segment.samples.tobytes()).hexdigest()
            spent = RowTiming(decode_s=0.012, prompt_tokens=1, generated_tokens=2)
            timing.add(spent)
            timing.rows += 1
            timing.audio_seconds += segment.seconds
            part = Part(segment.start_ms, segment.end_ms, text, "English", "eos", (1, 2))
            yield Result(segment, (part,), spent)


def main() -> int:
    """The command line."""
    if sys.argv[1:2] == ["supervise"]:
        return supervise(*sys.argv[2:])
    if sys.argv[1:2] == ["work"]:
        work()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--files", type=int, default=60, help="of each round")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--decoder", choices=("real", "fake"), default="real")
    parser.add_argument("--killer", action="store_true", help="default crash cap and one file that kills its worker")
    options = vars(parser.parse_args())
    options["seed"] = random.SystemRandom().randrange(2**31) if options["seed"] is None else options["seed"]
    plan = Plan(**options, say=lambda line: print(line, flush=True))
    print(f"seed {plan.seed}, in {plan.base}", flush=True)
    try:
        hits = run(plan)
    except AssertionError as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    shutil.rmtree(plan.base)
    print(json.dumps(hits))
    return 0


if __name__ == "__main__":
    sys.exit(main())
