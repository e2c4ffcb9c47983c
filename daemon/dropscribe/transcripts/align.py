"""Which pause belongs to which place in a text, when nothing but the pauses and the text is known.

The recognizer says what was said in a segment, not when. What is measured are its pauses. A text is taken to be spoken
at an even pace wherever there is no pause, so that every place between two words has an expected time; a pause near it
may be that place. How likely each such pair is follows from three things: how far the stretch of speech between two
pairs is from what its text should take, how long the pause is, and what punctuation stands there. Of all ways to pair
them in order, weighted by that (forward-backward over a hidden chain), a pair counts when it is in most of them.

DO call a time measured only when the pair is all but certain: it says that this word begins where this pause ends.
DON'T give up on the others: between two pairs, times are interpolated, and are marked so.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from dropscribe.transcripts.layout import CLAUSE, SENTENCE, WORD

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dropscribe.transcripts.layout import Atom

# These figures were tried on clips of many voices joined with gaps (tools/measure_cues.py); docs/TRANSCRIPTS.md.
SHORTEST = 100  # ms; shorter pauses are as often inside a word
LONG = 500  # ms; such a pause is somewhere in the text for sure
CERTAIN = 0.92  # from this probability on a time counts as measured
BOND = {SENTENCE: 7.0, CLAUSE: 2.0, WORD: -1.5}  # what a pair is worth by its punctuation …
PAUSE_BOND = 3.0  # … and by its pause, at 800 ms and more
HESITATION = 5.0  # what a place without punctuation loses in a pause of 1.5 s and more: few stop so long there
JITTER, DRIFT = 0.015, 0.06  # variance of a stretch of speech: s² at once, and s² for every second of it
REACH = 30.0  # seconds of speech between two pairs that are looked at together


@dataclass(frozen=True)
class Border:
    """A place between two words."""

    end_ms: int  # when the word before it ends
    start_ms: int  # when the word after it begins
    measured: bool = False

    @property
    def gap_ms(self) -> int:
        """The pause there; 0 where none was found."""
        return self.start_ms - self.end_ms


@dataclass(frozen=True)
class _Pause:
    at: float  # seconds of speech before it
    start_ms: int
    end_ms: int

    def worth(self, strength: int) -> float:
        """What it is worth to have a place of this strength here."""
        length = self.end_ms - self.start_ms
        hesitation = HESITATION * min(max(length - 500, 0), 1000) / 1000 if strength == WORD else 0.0
        return BOND[strength] + PAUSE_BOND * min(length, 800) / 800 - hesitation


@dataclass(frozen=True)
class _Pair:
    """A state of the chain: this border of the text at this pause."""

    border: int
    pause: int
    text: float  # seconds the text before it should take
    speech: float  # seconds of speech before it
    worth: float


def align(parts: Sequence[Atom], start_ms: int, end_ms: int, pauses: Sequence[tuple[int, int]]) -> list[Border]:
    """The borders of ``parts``, one more than there are atoms, in the time of the file; never decreasing."""
    track = _Track(start_ms, end_ms, pauses)
    weights = [0.0, *accumulate(part.weight for part in parts)]
    pace = track.seconds / weights[-1] if weights[-1] else 0.0
    expected = [weight * pace for weight in weights]
    anchors = {0: Border(start_ms, track.start_ms, True), len(parts): Border(track.end_ms, end_ms, True)}
    if track.pauses and len(parts) > 1:
        anchors |= _anchors(parts, expected, track)
    return _between(anchors, expected, track)


class _Track:
    """The audio of a segment as stretches of speech with pauses between; its edges without their silence."""

    def __init__(self, start_ms: int, end_ms: int, pauses: Sequence[tuple[int, int]]) -> None:
        inner: list[tuple[int, int]] = []
        at = start_ms
        for start, end in sorted(pauses):
            first, last = max(start, at), min(end, end_ms)
            if last > first:
                inner.append((first, last))
                at = last
        if inner and inner[0] == (start_ms, end_ms):
            inner = []  # nothing but a pause, and yet something was said
        lead = inner.pop(0)[1] if inner and inner[0][0] <= start_ms else start_ms
        trail = inner.pop()[0] if inner and inner[-1][1] >= end_ms else end_ms
        self.start_ms, self.end_ms = lead, trail
        edges = [lead, *(edge for pause in inner for edge in pause), trail]
        self._spans = list(zip(edges[::2], edges[1::2], strict=True))
        self._before = [0, *accumulate(end - start for start, end in self._spans)]  # ms of speech before each span
        self.seconds = self._before[-1] / 1000
        self.pauses = [
            _Pause(before / 1000, start, end)
            for (start, end), before in zip(inner, self._before[1:], strict=False)
            if end - start >= SHORTEST
        ]

    def time(self, speech: float) -> int:
        """The time at which so many seconds of speech are over."""
        ms = round(speech * 1000)
        at = min(bisect_right(self._before, ms) - 1, len(self._spans) - 1)
        return min(self._spans[at][0] + ms - self._before[at], self._spans[at][1])

    def speech(self, time_ms: int) -> float:
        """Seconds of speech before a time."""
        at = max(bisect_right([start for start, _ in self._spans], time_ms) - 1, 0)
        start, end = self._spans[at]
        return (self._before[at] + min(max(time_ms - start, 0), end - start)) / 1000


def _anchors(parts: Sequence[Atom], expected: Sequence[float], track: _Track) -> dict[int, Border]:
    pairs = _pairs(parts, expected, track)
    likely = _likelihoods(pairs, track.seconds)
    found: dict[int, Border] = {}
    by_pause: dict[int, list[tuple[float, _Pair]]] = {}
    for pair, likelihood in zip(pairs, likely, strict=True):
        by_pause.setdefault(pair.pause, []).append((likelihood, pair))
    taken: list[tuple[int, int]] = []  # pause, border: both in order, whatever is added
    for number, candidates in sorted(by_pause.items(), key=lambda item: -max(one[0] for one in item[1])):
        likelihood, best = max(candidates, key=lambda one: one[0])
        pause = track.pauses[number]
        # of a long pause it is certain that it is somewhere; the place may be a word off
        somewhere = pause.end_ms - pause.start_ms >= LONG and sum(one[0] for one in candidates) > 0.5
        if (likelihood > 0.5 or somewhere) and _in_order(taken, number, best.border):
            taken.append((number, best.border))
            found[best.border] = Border(pause.start_ms, pause.end_ms, likelihood >= CERTAIN)
    return found


def _in_order(taken: Sequence[tuple[int, int]], pause: int, border: int) -> bool:
    return all((pause < other) == (border < place) and border != place for other, place in taken)


def _pairs(parts: Sequence[Atom], expected: Sequence[float], track: _Track) -> list[_Pair]:
    """Every pair worth a thought: borders with punctuation in reach of a pause, and for a long one those near it."""
    marked = [at for at in range(1, len(parts)) if parts[at - 1].strength > WORD]
    marked_at = [expected[at] for at in marked]
    pairs = []
    for number, pause in enumerate(track.pauses):
        reach = 2.0 + 0.12 * min(pause.at, track.seconds - pause.at)
        first, last = bisect_left(marked_at, pause.at - reach), bisect_right(marked_at, pause.at + reach)
        places = marked[first:last]
        if pause.end_ms - pause.start_ms >= 250:
            nearest = bisect_left(expected, pause.at)
            near = range(max(1, nearest - 3), min(len(parts), nearest + 3))
            places = sorted({*places, *near})
        pairs += [_Pair(at, number, expected[at], pause.at, pause.worth(parts[at - 1].strength)) for at in places]
    return pairs


def _likelihoods(pairs: Sequence[_Pair], seconds: float) -> list[float]:
    """Of each pair, the share of all ways through that go through it."""
    first, last = _Pair(-1, -1, 0.0, 0.0, 0.0), _Pair(1 << 60, 1 << 60, seconds, seconds, 0.0)
    ahead: list[float] = []
    open_ways = [[_step(pair, last)] for pair in pairs]
    steps: list[list[tuple[int, float]]] = []
    at = 0  # the first pair within reach
    for number, pair in enumerate(pairs):
        while pair.speech - pairs[at].speech > REACH:
            at += 1
        into = [
            (other, _step(pairs[other], pair))
            for other in range(at, number)
            if pairs[other].pause < pair.pause and pairs[other].border < pair.border
        ]
        steps.append(into)
        ahead.append(_sum([_step(first, pair), *(ahead[other] + step for other, step in into)]))
    behind = [0.0] * len(pairs)
    for number in range(len(pairs) - 1, -1, -1):
        behind[number] = _sum(open_ways[number])
        for other, step in steps[number]:
            open_ways[other].append(step + behind[number])
    whole = _sum([_step(first, last), *(a + _step(pair, last) for pair, a in zip(pairs, ahead, strict=True))])
    return [math.exp(min(0.0, a + b - whole)) for a, b in zip(ahead, behind, strict=True)]


def _step(earlier: _Pair, later: _Pair) -> float:
    """What it is worth (a log-likelihood) to go from one pair to a later one."""
    text, speech = later.text - earlier.text, later.speech - earlier.speech
    return later.worth - (text - speech) ** 2 / (2 * JITTER + 2 * DRIFT * max(text, speech))


def _sum(logs: Sequence[float]) -> float:
    top = max(logs)
    return top + math.log(sum(math.exp(one - top) for one in logs))


def _between(anchors: dict[int, Border], expected: Sequence[float], track: _Track) -> list[Border]:
    """All borders: the anchors, and between two of them the times at an even pace."""
    borders: list[Border] = []
    places = sorted(anchors)
    for left, right in pairwise(places):
        borders.append(anchors[left])
        start, end = track.speech(anchors[left].start_ms), track.speech(anchors[right].end_ms)
        whole = expected[right] - expected[left]
        for at in range(left + 1, right):
            share = (expected[at] - expected[left]) / whole if whole else 0.0
            time = min(max(track.time(start + share * (end - start)), anchors[left].start_ms), anchors[right].end_ms)
            borders.append(Border(time, time))
    borders.append(anchors[places[-1]])
    return borders
