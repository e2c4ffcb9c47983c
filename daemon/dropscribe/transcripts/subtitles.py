"""Cues as SubRip (srt) and WebVTT (vtt).

On the screen a cue stays a little longer than it is spoken where nothing follows at once: long enough to be read at 17
columns a second, and a second at least. What both formats take for markup is taken out of the text: WebVTT has escapes
for it; SubRip has none, so look-alikes stand in, as narrow as what they stand for: two lines stay two.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from dropscribe.transcripts.cues import SHORTEST_MS, Cue
from dropscribe.transcripts.layout import clean, lines, width

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

READING = 17  # columns a second
NOTICE_MS = 2000


def srt(cues: Sequence[Cue], total_ms: int, notices: Sequence[str] = ()) -> str:
    """SubRip. ``notices`` are shown in the last seconds, one a line."""
    blocks = []
    shown = on_screen([replace(cue, text=srt_text(cue.text)) for cue in cues], total_ms)
    for number, (start, end, text) in enumerate(with_notices(shown, total_ms, notices), 1):
        blocks.append(f"{number}\n{_time(start, ',')} --> {_time(end, ',')}\n{text}\n")
    return "\n".join(blocks) or "\n"


def vtt(cues: Sequence[Cue], total_ms: int, notices: Sequence[str] = (), notes: Iterable[str] = ()) -> str:
    """WebVTT. ``notes`` become comments at the top, which players do not show."""
    blocks = ["WEBVTT\n"]
    blocks += [f"NOTE\n{vtt_text(clean(note))}\n" for note in notes if clean(note)]
    for start, end, text in with_notices(on_screen(cues, total_ms), total_ms, notices):
        blocks.append(f"{_time(start, '.')} --> {_time(end, '.')}\n{vtt_text(text)}\n")
    return "\n".join(blocks)


def on_screen(cues: Sequence[Cue], total_ms: int) -> list[tuple[int, int, str]]:
    """Start, end and lines of each cue, with the time it takes to read it where that is free."""
    shown = []
    for at, cue in enumerate(cues):
        free = cues[at + 1].start_ms if at + 1 < len(cues) else total_ms
        wanted = cue.start_ms + max(SHORTEST_MS, width(cue.text) * 1000 // READING)
        shown.append((cue.start_ms, min(max(cue.end_ms, wanted), max(free, cue.end_ms)), "\n".join(lines(cue.text))))
    return shown


def with_notices(
    shown: list[tuple[int, int, str]], total_ms: int, notices: Sequence[str]
) -> list[tuple[int, int, str]]:
    """``notices`` as one more cue at the end of the audio, for which the last one makes room."""
    if not notices:
        return shown
    start = max(0, total_ms - NOTICE_MS)
    if shown and shown[-1][1] > start:
        begin, end, text = shown[-1]
        start = max(start, begin + (min(end, total_ms) - begin) // 2)
        if start <= begin or start >= total_ms:  # no room at all: it is said in the last cue
            return [*shown[:-1], (begin, end, "\n".join([text, *notices]))]
        shown = [*shown[:-1], (begin, min(end, start), text)]
    return [*shown, (start, total_ms, "\n".join(notices))]


def srt_text(text: str) -> str:
    """``text`` without what a player may take for markup or for the next cue, and never wider."""
    text = text.replace("-->", "→")
    text = re.sub(r"<(?=[A-Za-z/!?]|[^<>]*>)", "‹", text)
    return re.sub(r"\{(?=[\\A-Za-z])", "❴", text)


def vtt_text(text: str) -> str:
    """``text`` with everything escaped that WebVTT gives a meaning."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _time(ms: int, point: str) -> str:
    seconds, ms = divmod(ms, 1000)
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{point}{ms:03}"
