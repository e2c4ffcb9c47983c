"""Cut long audio at real pauses: streaming, in flat memory, a pure function of the samples and the longest piece.

How a pause is found. Energy (without its mean: recorders leave offsets) is taken in frames of 10 ms and smoothed
over 30 ms. The noise floor follows the audio: in every 5 s stretch the level of its quietest 80 ms, the lowest of
neighbouring stretches counting, so that a stretch without any pause borrows its neighbour's floor. A frame within 6 dB
of the floor is quiet; 80 ms of quiet frames are a pause. The smoothing eats 20 ms of each pause, so a gap of 150 ms
over a noise floor measures about 120 ms.

Where it cuts. Of the pauses in the second half of ``max_seconds`` the longest wins, counted up to 0.5 s, with up to
0.1 s of credit for being late; inside it, at the quietest 50 ms of its middle half. Without a pause there, the pauses
of the first half (from a tenth on) are tried; without any, the quietest 50 ms of the second half.

When a piece is silent. Only if nothing but digital or near-digital silence is in it: a constant, or dither. Dither
stays within 2 steps of 16 bit (−84 dBFS) around its mean *and* looks like noise second by second: either steady
(no 50 ms frame over twice the median energy) or white (neighbouring samples correlate by less than 0.3). Speech,
however quiet, is neither: its energy swings by far more than 3 dB, and neighbouring samples correlate by 0.7 and more.
No microphone records speech below −84 dBFS, so only what was scaled down comes near the second test, and it passes as
speech there. A noisy room is not silence: that is for the recognizer to judge.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PER_MS = 16  # samples
FRAME = 160  # 10 ms
FLOOR_STRETCH = 500  # frames
FLOOR_QUIETEST = 8  # frames: less than a gap of 150 ms leaves, should it be the only one
QUIET_DB = 6.0
LOWEST_DB = -90.0  # below this all is equally quiet: digital silence must not raise dither to speech
SHORTEST_PAUSE = 8  # frames
LONG_ENOUGH = 50  # frames; a longer pause is no better
LATE_CREDIT = 10.0  # frames
CUT_FRAMES = 5  # 50 ms
DITHER_PEAK = 2.5 * 2.0**-15
SHORTEST_RECUT = 2 * 16_000  # samples; below, two halves would not decode better


@dataclass(frozen=True, eq=False)
class Piece:
    """One stretch of audio to be decoded on its own. Pieces tile the file."""

    start_ms: int
    end_ms: int  # of the last piece: rounded up
    samples: np.ndarray  # float32 [n] at 16 kHz; exactly 16 a millisecond, the last piece may end short of one
    silent: bool  # nothing but digital or near-digital silence: must not be decoded
    pauses: tuple[tuple[int, int], ...]  # measured pauses inside: absolute (start_ms, end_ms)


def cut(blocks: Iterable[np.ndarray], max_seconds: float) -> Iterator[Piece]:
    """Cut a stream of float32 [n] blocks at 16 kHz into pieces of at most ``max_seconds``.

    How the samples are spread over the blocks changes nothing. Audio of at most ``max_seconds`` is one piece; no audio
    gives no piece. Holds at most ``max_seconds`` and one block.
    """
    longest = int(max_seconds * 1000) * PER_MS
    if longest < 100 * FRAME:
        raise ValueError("max_seconds must be at least 1")
    held: deque[np.ndarray] = deque()
    count = start_ms = 0
    for block in blocks:
        held.append(block)
        count += len(block)
        while count > longest:  # one sample more than fits: the audio goes on, so a cut is due
            buffer = _take(held, longest)
            at = cut_point(buffer)
            held.appendleft(buffer[at:].copy())
            count -= at
            piece = _piece(buffer[:at].copy(), start_ms)
            yield piece
            start_ms = piece.end_ms
    if count:
        yield _piece(_take(held, count), start_ms)


def recut(piece: Piece) -> list[Piece]:
    """Split a piece in two at its best inner pause near the middle, or at the quietest 50 ms of its middle half.

    A piece under 2 s comes back alone.
    """
    if len(piece.samples) < SHORTEST_RECUT:
        return [piece]
    level = _levels(piece.samples)
    pauses = [(a, b) for a, b in _pauses(level) if len(level) // 5 <= (a + b) // 2 <= len(level) * 4 // 5]
    if pauses:
        middle = len(level) / 2
        best = max(pauses, key=lambda p: min(p[1] - p[0], LONG_ENOUGH) - 50 * abs((p[0] + p[1]) / 2 - middle) / middle)
        at = _quietest_inside(level, best)
    else:
        at = _quietest(level, len(level) // 4, len(level) * 3 // 4)
    at *= FRAME
    first = _piece(piece.samples[:at], piece.start_ms)
    return [first, _piece(piece.samples[at:], first.end_ms)]


def cut_point(samples: np.ndarray) -> int:
    """Where to cut full-length ``samples`` (float32 [n]): a whole number of frames, between a tenth of n and n."""
    level = _levels(samples)
    frames = len(level)
    pauses = _pauses(level)
    for low, high in ((frames // 2, frames), (frames // 10, frames // 2)):
        clipped = [(max(a, low), min(b, high)) for a, b in pauses]
        inside = [(a, b) for a, b in clipped if b - a >= SHORTEST_PAUSE]
        if inside:
            best = max(inside, key=lambda p: (min(p[1] - p[0], LONG_ENOUGH) + LATE_CREDIT * p[1] / frames, p[1]))
            return _quietest_inside(level, best) * FRAME
    return _quietest(level, frames // 2, frames) * FRAME


def is_silent(samples: np.ndarray) -> bool:
    """Whether float32 [n] is digital or near-digital silence; see the module's text for the rule."""
    if not len(samples):
        return True
    mean = np.float32(samples.mean(dtype=np.float64))
    low, high = samples.min(), samples.max()
    if low == high:
        return True
    if max(high - mean, mean - low) > DITHER_PEAK:
        return False
    return all(_noise_like(samples[start : start + 16_000] - mean) for start in range(0, len(samples), 16_000))


def _noise_like(second: np.ndarray) -> bool:
    values = second.astype(np.float64)
    energy = np.square(values)
    total = energy.sum()
    if total == 0 or len(values) < 800:
        return True
    frames = energy[: len(values) // 800 * 800].reshape(-1, 800).mean(axis=1)
    steady = frames.max() <= 2 * np.median(frames)
    white = abs((values[1:] * values[:-1]).sum()) < 0.3 * total
    return bool(steady or white)


def _piece(samples: np.ndarray, start_ms: int) -> Piece:
    end_ms = start_ms + -(-len(samples) // PER_MS)
    pauses = tuple((start_ms + a * 10, min(start_ms + b * 10, end_ms)) for a, b in _pauses(_levels(samples)))
    return Piece(start_ms, end_ms, samples, is_silent(samples), pauses)


def _take(held: deque[np.ndarray], count: int) -> np.ndarray:
    """The first ``count`` samples as one array of their own; what is left of a block stays at the front."""
    parts = []
    while count:
        block = held.popleft()
        if len(block) > count:
            held.appendleft(block[count:])
            block = block[:count]
        parts.append(block)
        count -= len(block)
    return np.concatenate(parts) if parts else np.zeros(0, np.float32)


def _levels(samples: np.ndarray) -> np.ndarray:
    """Smoothed level of each 10 ms frame in dB, float64 [frames]; a last part frame counts as one."""
    frames = -(-len(samples) // FRAME)
    power = np.zeros(frames)
    for start in range(0, frames, 6000):  # a minute at a time keeps the float64 copies small
        part = samples[start * FRAME : (start + 6000) * FRAME].astype(np.float64)
        whole = len(part) // FRAME
        power[start : start + whole] = part[: whole * FRAME].reshape(-1, FRAME).var(axis=1)
        if len(part) % FRAME:
            power[start + whole] = part[whole * FRAME :].var()
    if frames >= 3:
        edged = np.concatenate((power[:1], power, power[-1:]))
        power = (edged[:-2] + edged[1:-1] + edged[2:]) / 3
    level: np.ndarray = 10 * np.log10(np.maximum(power, 10 ** (LOWEST_DB / 10)))
    return level


def _pauses(level: np.ndarray) -> list[tuple[int, int]]:
    """Frame ranges ``[a, b)`` that are quiet for 80 ms or more."""
    if not len(level):
        return []
    quiet = np.concatenate(([False], level <= _floor(level) + QUIET_DB, [False]))
    edges = np.flatnonzero(quiet[1:] != quiet[:-1])
    return [(int(a), int(b)) for a, b in edges.reshape(-1, 2) if b - a >= SHORTEST_PAUSE]


def _floor(level: np.ndarray) -> np.ndarray:
    """The noise floor under each frame, dB."""
    starts = range(0, max(len(level) - FLOOR_STRETCH // 2, 1), FLOOR_STRETCH)
    floors = []
    for start in starts:
        stop = len(level) if start == starts[-1] else start + FLOOR_STRETCH
        stretch = level[start:stop]
        rank = min(FLOOR_QUIETEST, len(stretch)) - 1
        floors.append(float(np.partition(stretch, rank)[rank]))
    edged = np.array([floors[0], *floors, floors[-1]])
    lowest: np.ndarray = np.minimum(np.minimum(edged[:-2], edged[1:-1]), edged[2:])
    # the last stretch reaches to the end
    under: np.ndarray = lowest[np.minimum(np.arange(len(level)) // FLOOR_STRETCH, len(lowest) - 1)]
    return under


def _quietest_inside(level: np.ndarray, pause: tuple[int, int]) -> int:
    """The frame to cut at: in the middle half of the pause, so that the speech around keeps its edges."""
    quarter = (pause[1] - pause[0]) // 4
    return _quietest(level, pause[0] + quarter, pause[1] - quarter)


def _quietest(level: np.ndarray, low: int, high: int) -> int:
    """Middle of the quietest 50 ms in frames ``[low, high)``; of equally quiet ones, the one nearest the centre."""
    width = min(CUT_FRAMES, high - low)
    power = 10 ** (level[low:high] / 10)
    sums = np.convolve(power, np.ones(width), "valid")
    equal = np.flatnonzero(sums <= sums.min() * (1 + 1e-9))
    centre = (len(sums) - 1) / 2
    best = int(equal[np.argmin(np.abs(equal - centre))])
    return low + best + (width + 1) // 2
