"""The files of ``transcribe-batch --output-dir``: a .txt and a .json for every input.

There is no job log to say what is ours, so the .json says it: a pair is ours to replace when the .json names the same
source and holds the hash of the .txt beside it. Everything else is left alone, and the next free name is taken.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dropscribe.errors import writing_error
from dropscribe.transcripts.names import bases

if TYPE_CHECKING:
    from collections.abc import Mapping


class OutputFolder:
    """A folder for one run's transcripts; two inputs of the same name get two names."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._taken: set[bytes] = set()

    def write(self, record: Mapping[str, Any]) -> Path:
        """Write the pair of one result and return the .txt.

        ``record`` is the result as JSON can hold it; its ``file`` is the source.
        Raises ``DiskFull``, ``OutputUnwritable``.
        """
        source = os.path.abspath(record["file"])  # noqa: PTH100 - links stay as they are
        text = (str(record["text"] or "").strip() + "\n").encode("utf-8", "backslashreplace")
        outputs = {"txt": {"sha256": hashlib.sha256(text).hexdigest()}}
        content = json.dumps({**record, "source": source, "outputs": outputs}, ensure_ascii=False, indent=2) + "\n"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            base = self._base(source)
            _replace(base.with_name(base.name + ".txt"), text)
            _replace(base.with_name(base.name + ".json"), content.encode("utf-8", "backslashreplace"))
        except OSError as error:
            raise writing_error(error, str(self.folder)) from None
        return base.with_name(base.name + ".txt")

    def _base(self, source: str) -> Path:
        for name in bases(os.fsencode(os.path.basename(source))):  # noqa: PTH119 - any bytes
            if name not in self._taken:
                base = self.folder / os.fsdecode(name)
                if self._free_or_ours(base, source):
                    self._taken.add(name)
                    return base
        raise AssertionError("names never end")

    @staticmethod
    def _free_or_ours(base: Path, source: str) -> bool:
        txt, described = base.with_name(base.name + ".txt"), base.with_name(base.name + ".json")
        if not os.path.lexists(txt) and not os.path.lexists(described):
            return True
        try:
            written = json.loads(described.read_bytes())
            ours = written["outputs"]["txt"]["sha256"] == hashlib.sha256(txt.read_bytes()).hexdigest()
        except (OSError, ValueError, KeyError, TypeError):
            return False
        return bool(ours and written["source"] == source)


def _replace(path: Path, content: bytes) -> None:
    """Write all or nothing."""
    descriptor, name = tempfile.mkstemp(prefix=".dropscribe-", suffix=".tmp", dir=path.parent)
    temp = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            os.fchmod(file.fileno(), 0o666 & ~_umask())
        temp.replace(path)
    except BaseException:
        temp.unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
