"""The files of ``transcribe-batch``: those it takes, and with ``--output-dir`` those it writes.

There is no job log to say what is ours, so the .json says it: a file is ours to replace when the .json beside it names
the same content and holds its hash. Everything else is left alone, and the next free name is taken; without a .json, so
is what an earlier run wrote, unless it is the same to the byte.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from dropscribe.errors import writing_error
from dropscribe.transcripts.files import name_max
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
        """Write the transcripts of ``source``, all under one base. Raises ``DiskFull``, ``OutputUnwritable``."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            base = self._base(source, rendered)
            for file in rendered:
                _replace(Path(f"{base}.{file.format}"), file.content)
        except OSError as error:
            raise writing_error(error, str(self.folder)) from None

    def _base(self, source: str, rendered: Sequence[Rendered]) -> Path:
        for name in bases(os.path.basename(os.fsencode(source)), name_max=name_max(os.fsencode(self.folder))):  # noqa: PTH119 - any bytes
            if name not in self._taken:
                base = self.folder / os.fsdecode(name)
                if _is_free_or_ours(base, rendered):
                    self._taken.add(name)
                    return base
        raise AssertionError("names never end")


def _is_free_or_ours(base: Path, rendered: Sequence[Rendered]) -> bool:
    before = _before(base, rendered)
    return all(_may_write(Path(f"{base}.{file.format}"), file, before) for file in rendered)


def _before(base: Path, rendered: Sequence[Rendered]) -> dict[str, str]:
    """What an earlier run of this content wrote there, hash by format: its .json says it, if this run replaces that."""
    ours = next((json.loads(file.content) for file in rendered if file.format == "json"), None)
    if ours is None:
        return {}
    try:
        path = Path(f"{base}.json")
        written = path.read_bytes()
        said = json.loads(written)
        if said["content_hash"] != ours["content_hash"]:
            return {}
        hashes = {str(name): str(entry["sha256"]) for name, entry in said["outputs"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    return {**hashes, "json": hashlib.sha256(written).hexdigest()}


def _may_write(path: Path, file: Rendered, before: dict[str, str]) -> bool:
    if not os.path.lexists(path):
        return True
    try:
        found = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return False
    return found in (file.sha256, before.get(file.format))


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
