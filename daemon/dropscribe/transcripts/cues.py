"""A transcript in cues: short stretches of text with their times, as subtitles need them.

Cues are cut at the ends of sentences and at the pauses the reader measured, and further where two lines would not hold
them. A time is *measured* where it is the edge of a measured pause (or of the segment), else it is *estimated*: the
text between two measured times is taken to be spoken at an even pace. docs/TRANSCRIPTS.md says how far off that is.

Whatever the segments hold, cues come in order, never overlap, take at least 1 ms and end with the audio.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from dropscribe.transcripts.align import Border, align
from dropscribe.transcripts.join import join
from dropscribe.transcripts.layout import LINE, SENTENCE, Atom, atoms, clean, fits, joined, width

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

CUT_OFF = "[…]"  # follows what was said before a segment was cut off or began to repeat itself
LONGEST_MS = 7000  # on the screen at once, unless it is one line
SHORTEST_MS = 1000
PAUSE_MS = 400  # a pause as long as this ends a cue
CLOSE_MS = 300  # a very short cue joins its neighbour across a pause as short as this
_ROOM = LINE - 1 - len(CUT_OFF)


class Segment(Protocol):
    """What cues are made of; ``dropscribe.jobs.records.SegmentRow`` has it."""

    @property
    def start_ms(self) -> int: ...
    @property
    def end_ms(self) -> int: ...
    @property
    def text(self) -> str: ...
    @property
    def finish_reason(self) -> str: ...
    @property
    def pauses(self) -> tuple[tuple[int, int], ...] | None: ...


@dataclass(frozen=True)
class Cue:
    """One stretch of text, in one line, and when it is spoken."""

    start_ms: int
    end_ms: int
    text: str
    start_measured: bool
    end_measured: bool
    glue: str | None = None  # what stands in the text between this cue and the next; None at the end of a segment


def whole(segment: Segment) -> bool:
    """Whether the segment came to an end of its own."""
    return segment.finish_reason not in ("length", "loop")


def cues(segments: Iterable[Segment], seconds: float) -> list[Cue]:
    """The cues of a transcript of ``seconds`` of audio."""
    ordered = sorted(segments, key=lambda segment: segment.start_ms)
    total = audio_ms(ordered, seconds)
    found: list[Cue] = []
    at = 0
    for segment in ordered:
        start = min(max(segment.start_ms, at), total)
        at = max(start, min(segment.end_ms, total))
        found += _of_segment(segment, start, at)
    return _in_order(found, total)


def audio_ms(segments: Iterable[Segment], seconds: float) -> int:
    """The length of the audio, rounded up, at least 1 ms; where it is not known, the end of the last segment."""
    if math.isfinite(seconds) and seconds > 0:
        return max(1, math.ceil(round(seconds * 1000, 3)))
    return max(1, *(segment.end_ms for segment in segments), 1)


def _of_segment(segment: Segment, start_ms: int, end_ms: int) -> list[Cue]:
    parts = atoms(clean(segment.text), _ROOM)
    if not whole(segment):
        if parts:
            parts[-1] = replace(parts[-1], text=f"{parts[-1].text} {CUT_OFF}")
        else:
            parts = [Atom(CUT_OFF, "", 1.0, SENTENCE)]
    if not parts:
        return []
    borders = align(parts, start_ms, end_ms, segment.pauses or ())
    blocks = _merged(_blocks(parts, borders), parts, borders)
    pieces = [piece for block in blocks for piece in _small(block, parts, borders)]
    return [
        Cue(
            borders[a].start_ms, borders[b].end_ms, joined(parts[a:b]), borders[a].measured, borders[b].measured,
            glue=parts[b - 1].glue if b < len(parts) else None,
        )
        for a, b in pieces
    ]  # fmt: skip


def _blocks(parts: Sequence[Atom], borders: Sequence[Border]) -> list[tuple[int, int]]:
    """Cut at every end of a sentence and every pause that is long enough."""
    cuts = [at for at in range(1, len(parts)) if parts[at - 1].strength == SENTENCE or borders[at].gap_ms >= PAUSE_MS]
    return list(zip([0, *cuts], [*cuts, len(parts)], strict=True))


def _merged(
    blocks: Sequence[tuple[int, int]], parts: Sequence[Atom], borders: Sequence[Border]
) -> list[tuple[int, int]]:
    """A block too short to be read joins the one before it, where there is no pause and room."""
    merged: list[tuple[int, int]] = []
    for a, b in blocks:
        if merged and borders[a].gap_ms < CLOSE_MS:
            before = merged[-1][0]
            short = min(_ms(borders, before, a), _ms(borders, a, b)) < SHORTEST_MS
            if short and _ms(borders, before, b) <= LONGEST_MS and fits(joined(parts[before:b])):
                merged[-1] = (before, b)
                continue
        merged.append((a, b))
    return merged


def _small(block: tuple[int, int], parts: Sequence[Atom], borders: Sequence[Border]) -> list[tuple[int, int]]:
    """A block in pieces that fit on the screen."""
    done: list[tuple[int, int]] = []
    todo = [block]
    while todo:
        a, b = todo.pop()
        text = joined(parts[a:b])
        if b - a == 1 or (fits(text) and (_ms(borders, a, b) <= LONGEST_MS or width(text) <= LINE)):
            done.append((a, b))
            continue
        at = _best_cut(a, b, parts, borders)
        todo += [(at, b), (a, at)]
    return done


def _best_cut(a: int, b: int, parts: Sequence[Atom], borders: Sequence[Border]) -> int:
    """Near the middle, rather after punctuation, rather in a pause."""
    widths = [width(part.text) + len(part.glue) for part in parts[a:b]]
    # what is many screens long is cut one screen from its beginning, not in halves: each cut then is near its text
    whole_width, left = sum(widths), 0
    target = whole_width / 2 if whole_width <= 4 * LINE else 1.5 * LINE
    best: tuple[float, int] | None = None
    for at in range(a + 1, b):
        left += widths[at - 1 - a]
        off = abs(left - target) / target
        bonus = 0.25 * (parts[at - 1].strength - 1) + min(borders[at].gap_ms, 500) / 1000
        best = max(best or (bonus - 2 * off, at), (bonus - 2 * off, at))
        if left > 2 * LINE and whole_width > 4 * LINE:
            break
    assert best is not None  # noqa: S101 - there are two atoms at least
    return best[1]


def _ms(borders: Sequence[Border], a: int, b: int) -> int:
    return borders[b].end_ms - borders[a].start_ms


def _in_order(found: list[Cue], total: int) -> list[Cue]:
    """The same cues within ``total``, each at least 1 ms long and none before the one before it has ended."""
    while len(found) > total:  # more cues than milliseconds: nobody can read them anyway
        found = [_together(found[at : at + 2]) for at in range(0, len(found), 2)]
    fitted: list[Cue] = []
    at = 0
    for cue in found:
        start = max(cue.start_ms, at)
        at = max(cue.end_ms, start + 1)
        fitted.append(_moved(cue, start, at))
    limit = total
    for number in range(len(fitted) - 1, -1, -1):
        cue = fitted[number]
        end = min(cue.end_ms, limit)
        limit = min(cue.start_ms, end - 1)
        fitted[number] = _moved(cue, limit, end)
    return fitted


def _moved(cue: Cue, start_ms: int, end_ms: int) -> Cue:
    if (start_ms, end_ms) == (cue.start_ms, cue.end_ms):
        return cue
    return replace(
        cue,
        start_ms=start_ms,
        end_ms=end_ms,
        start_measured=cue.start_measured and start_ms == cue.start_ms,
        end_measured=cue.end_measured and end_ms == cue.end_ms,
    )


def _together(some: Sequence[Cue]) -> Cue:
    first, last = some[0], some[-1]
    return replace(last, start_ms=first.start_ms, start_measured=first.start_measured, text=text_of(some))


def text_of(some: Sequence[Cue]) -> str:
    """Cues that follow one another as the text they were cut from."""
    runs = [""]
    for cue in some:
        runs[-1] += cue.text + (cue.glue or "")
        if cue.glue is None:
            runs.append("")
    return join(runs)
