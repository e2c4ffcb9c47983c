"""Five seconds of bundled speech for the doctor, with content that no job log has seen before."""

from __future__ import annotations

import io
import os
import struct
import wave
from pathlib import Path

from dropscribe import resources
from dropscribe.demo.score import words

SAMPLE = "meeting.wav"
SAID = "The meeting about the office move is on Saturday at four ten."  # the first sentence; the cut may take its end
SECONDS = 5.0
ENOUGH = 0.5  # of the words: models differ, and the voice is a synthetic one


def clip() -> bytes:
    """A WAV file. A chunk that every reader skips makes its hash new, so that nothing answers from memory."""
    with resources.demo_samples() as folder, wave.open(str(Path(folder) / SAMPLE)) as sample:
        parameters = sample.getparams()
        frames = sample.readframes(int(SECONDS * parameters.framerate))
    made = io.BytesIO()
    with wave.open(made, "wb") as out:
        out.setparams(parameters)
        out.writeframes(frames)
    content = made.getvalue() + b"junk" + struct.pack("<I", 16) + os.urandom(16)
    return content[:4] + struct.pack("<I", len(content) - 8) + content[8:]


def heard(text: str | None) -> float:
    """The share of the words said that are in ``text``."""
    said, got = words(SAID), set(words(text or ""))
    return sum(word in got for word in said) / len(said)
