"""Speech to measure with: any media file through the reader, or the clips that come with the package."""

from __future__ import annotations

import csv
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dropscribe import resources
from dropscribe.audio.client import Reader

if TYPE_CHECKING:
    from pathlib import Path

    from dropscribe.settings import Settings

RATE = 16_000


@dataclass(frozen=True, eq=False)
class Clip:
    """A recording and what is said in it."""

    name: str
    samples: np.ndarray  # float32 [n], 16 kHz mono
    text: str


def read_with(reader: Reader, path: Path) -> np.ndarray:
    """All of a media file's samples, float32 ``[n]`` at 16 kHz. Raises ``MediaError`` and its kin."""
    blocks = list(reader.open(os.fsencode(path)).blocks())
    return np.concatenate(blocks) if blocks else np.zeros(0, np.float32)


def bundled(settings: Settings) -> list[Clip]:
    """The sample clips of the demo; synthetic voices."""
    with resources.demo_samples() as folder, Reader(settings.reader) as reader:
        lines = (folder / "transcripts.tsv").read_text("utf-8").splitlines()
        rows = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [Clip(row["file"], read_with(reader, folder / row["file"]), row["text"]) for row in rows]
