"""Where an evaluation set comes from: a folder of audio and text, a LibriSpeech tree, or Hugging Face's parquet.

A source lists its ``Item``s without opening any audio, so that a choice can be made first, and then hands out one media
file after another.
"""

from __future__ import annotations

import csv
import io
import json
import os
import tempfile
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dropscribe.bench import score
from dropscribe.errors import ConfigError
from dropscribe.watch.eligibility import has_media_suffix, why_not_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

TABLES = ("transcripts.tsv", "transcripts.csv", "metadata.csv")
FILE_COLUMNS = ("file", "file_name", "path")
TEXT_COLUMNS = ("text", "sentence", "transcription", "transcript")
ROWS_AT_ONCE = 16  # of a parquet file, whose audio comes with them


@dataclass(frozen=True)
class Item:
    """A recording of a source and what is said in it."""

    name: str  # unique within its source
    text: str
    path: Path  # the recording, or the parquet file that holds it
    row: int | None = None  # in the parquet file
    about: dict[str, str] = field(default_factory=dict)  # speaker and chapter, where the source says


@dataclass(frozen=True)
class Source:
    """What was found. ``skipped`` counts what cannot be used, by reason."""

    layout: str  # table, folder, librispeech, parquet
    items: list[Item]
    skipped: Counter[str]

    def open(self, chosen: Sequence[Item]) -> Iterator[tuple[Item, Path]]:
        """A media file for each of ``chosen``, one after another; it may be gone once the next is asked for."""
        if self.layout == "parquet":
            yield from _unpacked(chosen)
        else:
            yield from ((item, item.path) for item in chosen)


def find(place: Path, say: Callable[[str], None]) -> Source:
    """Look at ``place`` and list its items in order of their names. Raises ``ConfigError`` when there is none."""
    if not place.exists():
        raise ConfigError(f"{place} is not there; name a folder of audio and text, or a parquet file")
    if place.is_file():
        if place.suffix != ".parquet":
            raise ConfigError(f"{place} is neither a folder nor a parquet file; name one of these")
        source = _parquet(place.parent, [place], say)
    else:
        source = _in_folder(place, say)
    if not source.items:
        why = "; ".join(f"{count} × {reason}" for reason, count in sorted(source.skipped.items()))
        raise ConfigError(
            f"{place}: no recording with a text in it{f' ({why})' if why else ''}; put NAME.txt beside each NAME.wav, "
            "or a transcripts.tsv with the columns file and text"
        )
    source.items.sort(key=lambda item: item.name)
    return source


def _in_folder(folder: Path, say: Callable[[str], None]) -> Source:
    files = list(_walk(folder))
    if listed := [path for path in files if path.name.endswith(".trans.txt")]:
        return _librispeech(folder, listed, say)
    if table := next((folder / name for name in TABLES if (folder / name).is_file()), None):
        return _table(table, say)
    audio = [path for path in files if has_media_suffix(os.fsencode(path.name))]
    parquet = [path for path in files if path.suffix == ".parquet"]
    return _parquet(folder, parquet, say) if parquet and not audio else _pairs(folder, audio, say)


def _walk(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if why_not_name(os.fsencode(name)) is None)
        yield from (Path(parent, name) for name in sorted(names) if why_not_name(os.fsencode(name)) is None)


def _pairs(folder: Path, audio: Sequence[Path], say: Callable[[str], None]) -> Source:
    """NAME.txt beside NAME.wav."""
    found = _Found("folder", say)
    for path in audio:
        name = os.fspath(path.relative_to(folder))
        beside = path.with_suffix(".txt")
        if not beside.is_file():
            found.skip("no text beside it", name)
        elif _is_transcript(beside):
            found.skip("the text beside it is a transcript of dropscribe's own", name)
        else:
            text = _text(beside)
            found.add(Item(name, text, path)) if text is not None else found.skip("the text is not UTF-8", name)
    return found.source


def _is_transcript(text: Path) -> bool:
    """Whether dropscribe wrote it: measured against itself, a model makes no errors."""
    try:
        said = json.loads(text.with_suffix(".json").read_text("utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(said, dict) and {"content_hash", "params_key"} <= said.keys()


def _table(path: Path, say: Callable[[str], None]) -> Source:
    """A table beside or above the audio; names are relative to it."""
    found = _Found("table", say)
    tabs: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if path.suffix == ".tsv" else {}
    content = _text(path)
    if content is None:
        raise ConfigError(f"{path} is not UTF-8; save it as UTF-8")
    rows = csv.DictReader(io.StringIO(content, newline=""), **tabs)
    try:
        file, text = (_column(path, rows.fieldnames or (), wanted) for wanted in (FILE_COLUMNS, TEXT_COLUMNS))
        listed = list(rows)
    except csv.Error as error:
        raise ConfigError(f"{path}, line {rows.line_num}: {error}; repair the table") from None
    seen: set[str] = set()
    for row in listed:
        name = (row[file] or "").strip()
        if not name or not (path.parent / name).is_file():
            found.skip("the table names a file that is not there", name or "(no name)")
        elif name in seen:
            found.skip("named twice in the table", name)
        else:
            seen.add(name)
            found.add(Item(name, row[text] or "", path.parent / name))
    return found.source


def _librispeech(folder: Path, listed: Sequence[Path], say: Callable[[str], None]) -> Source:
    """SPEAKER-CHAPTER.trans.txt with a line for each SPEAKER-CHAPTER-NUMBER.flac beside it."""
    found = _Found("librispeech", say)
    for path in listed:
        content = _text(path)
        if content is None:
            found.skip("the list is not UTF-8", path.name)
        for line in (content or "").split("\n"):
            name, _, text = line.strip().partition(" ")
            if not name:
                continue
            speaker, _, rest = name.partition("-")
            about = {"speaker": speaker, "chapter": rest.partition("-")[0]}
            audio = next((p for s in (".flac", ".wav") if (p := path.parent / f"{name}{s}").is_file()), None)
            if audio is None:
                found.skip("no audio of that name", name)
            else:
                found.add(Item(os.fspath(audio.relative_to(folder)), text, audio, about=about))
    return found.source


def _parquet(folder: Path, files: Sequence[Path], say: Callable[[str], None]) -> Source:
    """Column audio = struct{bytes, path}, and a text column."""
    found = _Found("parquet", say)
    for path in files:
        with _opened(path) as file:
            names = file.schema_arrow.names
            if "audio" not in names:
                raise ConfigError(f"{path} has no column audio, only {', '.join(names)}; choose another file")
            text = _column(path, names, TEXT_COLUMNS)
            at = 0
            for batch in file.iter_batches(columns=[text]):
                for said in batch.column(0).to_pylist():
                    name = f"{os.fspath(path.relative_to(folder))}:{at:06}"
                    found.add(Item(name, said if isinstance(said, str) else "", path, at))
                    at += 1
    return found.source


def _unpacked(chosen: Sequence[Item]) -> Iterator[tuple[Item, Path]]:
    """Each row's audio as a file of its own, for a moment."""
    with tempfile.TemporaryDirectory(prefix="dropscribe-") as folder:
        for path in dict.fromkeys(item.path for item in chosen):
            wanted = {item.row: item for item in chosen if item.path == path}
            with _opened(path) as file:
                at = 0
                for batch in file.iter_batches(batch_size=ROWS_AT_ONCE, columns=["audio"]):
                    for offset in range(len(batch)):
                        if (item := wanted.get(at + offset)) is not None:
                            yield item, _as_file(batch.column(0)[offset].as_py(), path.parent, Path(folder, "audio"))
                    at += len(batch)


def _as_file(value: Any, beside: Path, target: Path) -> Path:
    """``struct{bytes, path}``, ``path`` alone, or the bytes alone."""
    inside = {"bytes": value} if isinstance(value, bytes) else value if isinstance(value, dict) else {}
    if inside.get("bytes") is None and inside.get("path"):
        return beside / str(inside["path"])
    target.write_bytes(inside.get("bytes") or b"")
    return target


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise ConfigError('parquet needs pyarrow: pip install "dropscribe[bench]"') from None
    try:
        with parquet.ParquetFile(path) as file:
            yield file
    except ArrowException as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(f"{path} cannot be read as parquet ({first}); fetch it again") from None


def _column(path: Path, names: Sequence[str], wanted: Sequence[str]) -> str:
    found = next((name for name in wanted if name in names), None)
    if found is None:
        raise ConfigError(f"{path} has no column {' or '.join(wanted)}, only {', '.join(names)}; rename one")
    return found


def _text(path: Path) -> str | None:
    """A file's text; ``None`` when it is not UTF-8. Raises ``ConfigError`` when it cannot be read."""
    try:
        return path.read_text("utf-8-sig")
    except UnicodeDecodeError:
        return None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; check its permissions") from None


class _Found:
    """Collects items and says what is left out: the first few by name, all of them by number."""

    MOST_SAID = 5

    def __init__(self, layout: str, say: Callable[[str], None]) -> None:
        self.source = Source(layout, [], Counter())
        self._say = say

    def add(self, item: Item) -> None:
        if score.words(item.text):
            self.source.items.append(item)
        else:
            self.skip("no words in its text", item.name)

    def skip(self, reason: str, name: str) -> None:
        self.source.skipped[reason] += 1
        if self.source.skipped[reason] <= self.MOST_SAID:
            self._say(f"left out: {name}: {reason}")
