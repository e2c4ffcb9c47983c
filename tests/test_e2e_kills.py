"""Kills at random instants; all is real but the decoder, and ``tools/kill_run.py`` also runs with that, for long."""

from __future__ import annotations

import random
import runpy
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections import Counter

KILL_RUN = runpy.run_path(str(Path(__file__).resolve().parents[1] / "tools" / "kill_run.py"))


def strike(base: Path, **plan: object) -> Counter[str]:
    """A run of its own luck; a failure names the seed."""
    seed = random.SystemRandom().randrange(2**31)
    hits: Counter[str] = KILL_RUN["run"](KILL_RUN["Plan"](seed=seed, base=base, decoder="fake", **plan))
    return hits


@pytest.mark.slow
def test_sixty_files_are_done_once_however_often_anything_is_killed(tmp_path: Path) -> None:
    assert strike(tmp_path, kills=20, files=60).total() == 20


@pytest.mark.slow
def test_a_file_that_kills_its_worker_is_quarantined_and_no_other(tmp_path: Path) -> None:
    assert strike(tmp_path, kills=5, files=20, killer=True).total() == 5
