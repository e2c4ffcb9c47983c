"""The files of ``transcribe-batch``: those it takes, and with ``--output-dir`` those it writes.

There is no job log to say what is ours, so the .json says it: a pair is ours to replace when the .json names the same
content and holds the hash of the .txt beside it. Everything else is left alone, and the next free name is taken.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from dropscribe.errors import writing_error
from dropscribe.transcripts.names import bases
from dropscribe.watch.eligibility import has_media_suffix, why_not_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from dropscribe.transcripts.formats import Rendered


def files_of(paths: Iterable[Path]) -> list[Path]:
    """``paths``, each once, every folder replaced by what a watched folder would take from it, in order of names."""
    found = (file for path in paths for file in (_below(path) if path.is_dir() else (path,)))
    return list(dict.fromkeys(found))


def _below(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if why_not_name(os.fsencode(name)) is None)
        for name in sorted(names):
            raw = os.fsencode(name)
            if has_media_suffix(raw) and why_not_name(raw) is None:
                yield Path(parent, name)


class OutputFolder:
    """A folder for one run's transcripts; two inputs of the same name get two names."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._taken: set[bytes] = set()

    def write(self, source: str, rendered: Sequence[Rendered]) -> None:
        """Write the .txt and the .json of ``source``. Raises ``DiskFull``, ``OutputUnwritable``."""
        contents = {f".{file.format}": file.content for file in rendered}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            base = self._base(source, content_hash=json.loads(contents[".json"])["content_hash"])
            for suffix, content in contents.items():
                _replace(Path(f"{base}{suffix}"), content)
        except OSError as error:
            raise writing_error(error, str(self.folder)) from None

    def _base(self, source: str, content_hash: str) -> Path:
        for name in bases(os.path.basename(os.fsencode(source))):  # noqa: PTH119 - any bytes
            if name not in self._taken:
                base = self.folder / os.fsdecode(name)
                if _is_free_or_ours(Path(f"{base}.txt"), Path(f"{base}.json"), content_hash):
                    self._taken.add(name)
                    return base
        raise AssertionError("names never end")


def _is_free_or_ours(txt: Path, described: Path, content_hash: str) -> bool:
    if not os.path.lexists(txt) and not os.path.lexists(described):
        return True
    try:
        written = json.loads(described.read_bytes())
        unedited = written["outputs"]["txt"]["sha256"] == hashlib.sha256(txt.read_bytes()).hexdigest()
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return bool(unedited and written.get("content_hash") == content_hash)


def _replace(path: Path, content: bytes) -> None:
    """Write all or nothing."""
    descriptor, name = tempfile.mkstemp(prefix=".dropscribe-", suffix=".tmp", dir=path.parent)
    temp = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(file.fileno(), 0o666 & ~_umask())
            os.fsync(file.fileno())
        temp.replace(path)
    except BaseException:
        temp.unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
