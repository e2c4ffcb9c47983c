"""The decoder nobody asked for: the real program finds out what is exact and fast here, once, and says so."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from real_daemon import Place, clips, references

if TYPE_CHECKING:
    from pathlib import Path

ROWS = "select decoder, slots from batches where rows > 0"


@pytest.mark.slow
def test_without_a_word_about_decoders_the_fastest_that_is_exact_runs_and_is_found_once(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": str(tmp_path / "home" / ".cache")}
    with Place(tmp_path, decode={"decoder": "auto"}) as place:
        for clip in clips(0, 1, 2):
            place.drop(clip)
        assert place.once(300, **home) == 0
        [first] = place.rows(ROWS)
        assert (first["decoder"], first["slots"] > 1) == ("batched", True)
        assert [place.job(clip.name)["text"] for clip in clips(0, 1, 2)] == [
            references()[c.stem] for c in clips(0, 1, 2)
        ]
        [verdicts] = [json.loads(path.read_text()) for path in (tmp_path / "home").rglob("selfcheck.json")]
        assert place.log.read_text().count("self_check") == 1
        place.drop(clips(3)[0])
        assert place.once(120, **home) == 0
        assert place.log.read_text().count("self_check") == 1, "kept"
        assert len(verdicts) == 1
