"""Word error rate of a transcript against its reference, heard rather than read: case and punctuation do not count."""

from __future__ import annotations

import re


def words(text: str) -> list[str]:
    """The words of ``text`` in lower case; hyphens separate, apostrophes belong to the word."""
    return re.sub(r"[^\w' ]+", " ", text.lower().replace("-", " ").replace("’", "'")).split()


def word_error_rate(reference: str, transcript: str) -> float:
    """Edits over the words of ``reference``; 0.0 is perfect, and it may exceed 1."""
    import jiwer

    return float(jiwer.wer(" ".join(words(reference)), " ".join(words(transcript)) or " "))
