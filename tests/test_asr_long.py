"""Ten minutes of speech in one file: as good as its clips done singly, in flat memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from asr_long import error_rate, transcribe_recording, write_recording
from asr_support import texts

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("decoder", "slots", "minutes"), [("batched", 8, 10), ("bulk-sync", 6, 3)])
def test_minutes_are_as_good_as_their_clips_done_singly(decoder: str, slots: int, minutes: int, tmp_path: Path) -> None:
    """``tools/check_decoders.py --minutes 60`` does an hour."""
    recording = write_recording(tmp_path / "long.wav", minutes, seed=8)
    run = transcribe_recording(tmp_path / "long.wav", recording, decoder=decoder, slots=slots)
    assert run.seconds >= 60 * minutes
    assert run.segments >= 2 * minutes
    assert run.tiles
    assert run.reasons == {"eos"}
    assert run.wer <= run.single_wer + 0.01
    assert run.rss_growth < 300e6


def test_the_banded_word_error_rate_is_the_usual_one() -> None:
    from dropscribe.demo.score import word_error_rate

    said = "about nineteen percent of kate work is normal we need the toothpaste"
    reference = "About nineteen percent of Kate's work is normal. We need toothpaste."
    assert error_rate(reference, said) == pytest.approx(word_error_rate(reference, said))
    assert error_rate(" ".join(texts().values()), " ".join(texts().values())) == 0
