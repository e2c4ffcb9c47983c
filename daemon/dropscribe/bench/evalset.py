"""Evaluation sets: FLAC clips of 16 kHz with their texts, short ones as they are and long ones put together.

On disk: ``set.jsonl``, a line for each file (file, text, seconds, kind, sources, sha256), ``clips/`` and ``made.json``,
which says from what and how it was made. The same source and seed give the same set.
"""

from __future__ import annotations

import glob
import hashlib
import io
import json
import math
import os
import random
import re
import shutil
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dropscribe.audio.client import Reader
from dropscribe.bench import evalsource, speech
from dropscribe.errors import ConfigError, DropscribeError, writing_error
from dropscribe.jobs.statistics import process_lives

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from dropscribe.settings import Settings

LONG_SECONDS = (64.0, 158.0)
LONG_FILES = 10  # of each length
GAP_SECONDS = 0.3  # of silence between the clips of a long file
FULL_ENOUGH = 0.8  # a long file shorter than this share of its length is not made
LIST = "set.jsonl"


@dataclass(frozen=True)
class Entry:
    """One file of a set."""

    file: str  # relative to the set's folder, with forward slashes
    text: str
    seconds: float
    kind: Literal["short", "long"]
    sources: tuple[str, ...]
    sha256: str
    target_seconds: float | None = None  # of a long file: what it was filled up to
    about: dict[str, str] = field(default_factory=dict)

    @property
    def group(self) -> str:
        """What its figures are put together with: ``short``, or the length."""
        return "short" if self.target_seconds is None else f"{self.target_seconds:g} s"


@dataclass(frozen=True)
class EvalSet:
    """A set that was read."""

    folder: Path
    entries: tuple[Entry, ...]

    @property
    def digest(self) -> str:
        """What is evaluated, as 16 hex digits: names, audio and texts."""
        parts = sorted((entry.file, entry.sha256, entry.text) for entry in self.entries)
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def read(folder: Path) -> EvalSet:
    """Read a set's list. Raises ``ConfigError`` when there is none or it is not one of ours."""
    path = folder / LIST
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        raise ConfigError(
            f"{folder} is no evaluation set: {LIST} cannot be read; make one with `dropscribe bench eval build`"
        ) from None
    entries = []
    for number, line in enumerate(lines, 1):
        try:
            fields = json.loads(line)
            entry = Entry(**{**fields, "sources": tuple(fields["sources"])})
            inside = PurePosixPath(entry.file)
            numbers = [entry.seconds, *([] if entry.target_seconds is None else [entry.target_seconds])]
            sound = all(isinstance(number, int | float) and 0 < number < math.inf for number in numbers)
            if inside.is_absolute() or ".." in inside.parts or not isinstance(entry.text, str) or not sound:
                raise ValueError  # noqa: TRY301 - one message for all of it
        except (ValueError, TypeError, KeyError):
            raise ConfigError(f"{path}, line {number}: not a line of an evaluation set; build the set again") from None
        entries.append(entry)
    if not entries:
        raise ConfigError(f"{path} is empty; build the set again")
    return EvalSet(folder, tuple(entries))


def build(
    place: Path,
    output: Path,
    settings: Settings,
    say: Callable[[str], None],
    *,
    limit: int | None = None,
    long_seconds: Sequence[float] = LONG_SECONDS,
    long_files: int = LONG_FILES,
    seed: int = 0,
    on_progress: Callable[[str, float], None] | None = None,
) -> tuple[EvalSet, dict[str, int]]:
    """Make a set in ``output`` from the recordings at ``place``; the set, and how many were left out, by reason.

    ``limit``: at most so many clips, drawn by ``seed`` from all that have a text. Raises ``ConfigError`` when nothing
    can be used, ``DiskFull`` and ``OutputUnwritable``; ``output`` then is as it was.
    """
    with _in_one_go(output) as folder:
        source = evalsource.find(place, say)
        chosen = source.items
        if limit is not None and limit < len(chosen):
            chosen = sorted(random.Random(f"{seed} limit").sample(chosen, limit), key=lambda item: item.name)  # noqa: S311
        with Reader(settings.reader) as reader:
            clips = _clips(source, chosen, reader, say, on_progress)
            made = write(clips, folder, long_seconds=long_seconds, long_files=long_files, seed=seed, say=say)
        if not made.entries:
            raise ConfigError(f"{place}: none of {len(chosen)} recordings could be decoded; see above")
        skipped = dict(sorted(source.skipped.items()))
        how = {"source": place.name, "layout": source.layout, "limit": limit, "seed": seed, "skipped": skipped}
        (folder / "made.json").write_text(
            json.dumps(how, indent=2, ensure_ascii=False) + "\n", "utf-8", "backslashreplace"
        )
    return EvalSet(output, made.entries), skipped


def bundled(folder: Path, settings: Settings, *, long_seconds: Sequence[float] = LONG_SECONDS) -> EvalSet:
    """Make the small set of the package's own synthetic clips in an empty folder."""
    named = [_Named(clip.name, clip.samples, clip.text, {}) for clip in speech.bundled(settings)]
    return write(named, folder, long_seconds=long_seconds, long_files=1, seed=0, say=lambda _text: None)


@dataclass(frozen=True, eq=False)
class _Named:
    name: str
    samples: np.ndarray
    text: str
    about: dict[str, str]


def _clips(
    source: evalsource.Source,
    chosen: Sequence[evalsource.Item],
    reader: Reader,
    say: Callable[[str], None],
    on_progress: Callable[[str, float], None] | None,
) -> Iterator[_Named]:
    for item, path in source.open(chosen):
        try:
            samples = speech.read_with(reader, path)
            if not len(samples):
                raise DropscribeError("there is no audio in it")  # noqa: TRY301 - said like the others
        except DropscribeError as error:
            source.skipped[f"cannot be decoded ({error.error_kind})"] += 1
            say(f"left out: {item.name}: {error}")
            continue
        if on_progress is not None:
            on_progress(item.name, len(samples) / speech.RATE)
        yield _Named(item.name, samples, " ".join(item.text.split()), item.about)


def write(
    clips: Iterable[_Named],
    folder: Path,
    *,
    long_seconds: Sequence[float],
    long_files: int,
    seed: int,
    say: Callable[[str], None],
) -> EvalSet:
    """Write clips, long files and the list into ``folder``."""
    (folder / "clips").mkdir()
    short = [
        _entry(folder, f"clips/{at:05}-{_plain(clip.name)}.flac", [clip], about=clip.about)
        for at, clip in enumerate(clips)
    ]
    entries = list(short)
    for target in dict.fromkeys(long_seconds) if short else ():
        plans = put_together([entry.seconds for entry in short], target, seed=seed, most=long_files)
        if not plans:
            say(f"no clip is short enough for files of {target:g} s")
        elif len(set(plans[0])) < len(plans[0]):
            say(f"there is less than {target:g} s of audio: clips come more than once in the file of {target:g} s")
        for number, plan in enumerate(plans):
            parts = [_read_back(folder, short[at]) for at in plan]
            entries.append(_entry(folder, f"clips/long-{target:g}s-{number:03}.flac", parts, target=target))
    lines = [json.dumps(_fields(entry), ensure_ascii=False) for entry in entries]
    # names that are not UTF-8: the escape is a valid one inside JSON
    (folder / LIST).write_text("".join(f"{line}\n" for line in lines), "utf-8", "backslashreplace")
    return EvalSet(folder, tuple(entries))


def put_together(seconds: Sequence[float], target: float, *, seed: int, most: int) -> list[list[int]]:
    """Which clips make up each long file: shuffled, each used once, filled up to ``target`` with whatever still fits.

    Where all clips together give no full file, one is made in which clips come again.
    """
    order = [at for at, length in enumerate(seconds) if length <= target]
    random.Random(f"{seed} {target:g}").shuffle(order)  # noqa: S311 - the same every time is the point
    plans: list[list[int]] = []
    left = order
    while len(plans) < most and left:
        plan, left = _filled(left, seconds, target)
        if _length(plan, seconds) >= FULL_ENOUGH * target:
            plans.append(plan)
    if not plans and order and most:
        shortest = min(seconds[at] for at in order)
        plan, _ = _filled(order * (int(target / (shortest + GAP_SECONDS)) + 1), seconds, target)
        plans.append(plan)
    return plans


def _filled(order: Sequence[int], seconds: Sequence[float], target: float) -> tuple[list[int], list[int]]:
    """First fit: what goes into one file, and what is left."""
    plan: list[int] = []
    left: list[int] = []
    total = -GAP_SECONDS  # a gap less than clips
    for at in order:
        longer = total + GAP_SECONDS + seconds[at]
        if longer <= target:
            plan.append(at)
            total = longer
        else:
            left.append(at)
    return plan, left


def _length(plan: Sequence[int], seconds: Sequence[float]) -> float:
    return sum(seconds[at] for at in plan) + GAP_SECONDS * max(len(plan) - 1, 0)


def _entry(
    folder: Path,
    file: str,
    parts: Sequence[_Named],
    *,
    about: dict[str, str] | None = None,
    target: float | None = None,
) -> Entry:
    gap = np.zeros(int(GAP_SECONDS * speech.RATE), np.float32)
    samples = np.concatenate([piece for part in parts for piece in (gap, part.samples)][1:])
    content = _flac(samples)
    (folder / file).write_bytes(content)
    text = " ".join(part.text for part in parts)
    seconds = len(samples) / speech.RATE
    names = tuple(part.name for part in parts)
    kind: Literal["short", "long"] = "short" if target is None else "long"
    return Entry(file, text, seconds, kind, names, hashlib.sha256(content).hexdigest(), target, about or {})


def _flac(samples: np.ndarray) -> bytes:
    import soundfile

    content = io.BytesIO()
    whole = np.clip(np.round(samples * 32768.0), -32768, 32767).astype(np.int16)
    soundfile.write(content, whole, speech.RATE, format="FLAC", subtype="PCM_16")
    return content.getvalue()


def _read_back(folder: Path, entry: Entry) -> _Named:
    """A clip from the set itself: all of a large set would not fit into memory."""
    import soundfile

    samples, _ = soundfile.read(folder / entry.file, dtype="float32")
    return _Named(entry.sources[0], samples, entry.text, {})


def _fields(entry: Entry) -> dict[str, Any]:
    return {name: value for name, value in asdict(entry).items() if value not in (None, {})}


def _plain(name: str) -> str:
    """Something every file system takes: the end of a name without its suffix."""
    stem = re.sub(r"\.(?=[^.:]*$)[A-Za-z0-9]{1,5}$", "", name)
    return re.sub(r"[^A-Za-z0-9_-]+", "_", stem)[-60:].strip("_") or "clip"


@contextmanager
def _in_one_go(output: Path) -> Iterator[Path]:
    """A folder to fill that becomes ``output`` at the end, or goes away; if we are killed, the next time."""
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ConfigError(f"{output} is there already; name another folder, or remove it")
    for left in output.parent.glob(f".{glob.escape(output.name)}.*.tmp"):
        pid = left.name.split(".")[-2]
        if pid.isdecimal() and not process_lives(int(pid)):
            shutil.rmtree(left, ignore_errors=True)
    folder = output.with_name(f".{output.name}.{os.getpid()}.tmp")
    try:
        try:
            folder.mkdir(parents=True)
            yield folder
            folder.rename(output)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        raise writing_error(error, str(output)) from None
