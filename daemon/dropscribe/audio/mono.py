"""Frames of any rate and channel count to 16 kHz mono float32 blocks. Runs in the reader child only.

**The downmix rule.** A plain mean loses anti-phase stereo altogether and halves a voice that sits on one live channel
beside a dead one. So, per second of source audio (a fixed grid from the first frame on, whatever the decoder's frames):

- a channel counts once its peak has passed 2⁻¹⁴ (2 steps of 16 bit) in this or an earlier second; others are left out;
- from the first counted channel on, each further one is added with the sign that does not cancel: its sign turns when
  it correlates with the mix so far by less than −0.3, and turns back only beyond +0.3;
- the mix is the sum over the counted channels, divided by their number.

A change of weights is faded over 20 ms. Everything looks backwards only, so the result is a pure function of the
content and streams in flat memory. In-phase stereo is the mean, as everywhere; a surround file is the mean of its live
channels (the low-frequency channel does no harm to speech).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import soxr

from dropscribe.audio.protocol import BLOCK_SAMPLES, RATE
from dropscribe.errors import BadSamples, MediaLimit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

LIVE_PEAK = 2.0**-14
TURN = 0.3
FADE_SECONDS = 0.02


class Downmix:
    """The rule above for one run of equal rate and channel count."""

    def __init__(self, rate: int, channels: int) -> None:
        self._fade = max(int(rate * FADE_SECONDS), 1)
        self._live = np.zeros(channels, bool)
        self._signs = np.ones(channels)
        self._weights: np.ndarray | None = None  # [channels] of the second before

    def mix(self, frames: np.ndarray) -> np.ndarray:
        """One second (the last may be shorter): float32 [n, channels] to float32 [n]."""
        if frames.shape[1] == 1:
            return np.ascontiguousarray(frames[:, 0])
        self._live |= np.abs(frames).max(axis=0) > LIVE_PEAK
        weights = self._choose(frames)
        before = self._weights if self._weights is not None else weights
        self._weights = weights
        # column by column: the sum's order is ours, not a matrix library's
        mixed = np.zeros(len(frames), np.float32)
        for channel in np.flatnonzero(weights):
            mixed += frames[:, channel] * np.float32(weights[channel])
        if not np.array_equal(before, weights):
            n = min(self._fade, len(frames))
            old = np.zeros(n, np.float32)
            for channel in np.flatnonzero(before):
                old += frames[:n, channel] * np.float32(before[channel])
            ramp = (np.arange(n, dtype=np.float32) + 0.5) / np.float32(self._fade)
            mixed[:n] = old * (1 - ramp) + mixed[:n] * ramp
        return mixed

    def _choose(self, frames: np.ndarray) -> np.ndarray:
        counted = np.flatnonzero(self._live)
        if not len(counted):
            return np.full(len(self._live), 1.0 / len(self._live))
        mix = frames[:, counted[0]].astype(np.float64)
        for channel in counted[1:]:
            column = frames[:, channel].astype(np.float64)
            scale = np.sqrt(np.square(mix).sum() * np.square(column).sum())
            if scale > 0 and (mix * column).sum() / scale * self._signs[channel] < -TURN:
                self._signs[channel] = -self._signs[channel]
            mix += self._signs[channel] * column
        weights = np.zeros(len(self._live))
        weights[counted] = self._signs[counted] / len(counted)
        return weights


def mono_16k(frames: Iterable[tuple[int, np.ndarray]], max_seconds: float, name: str) -> Iterator[np.ndarray]:
    """``(rate, float32 [n, channels])`` runs to float32 [16000] blocks at 16 kHz mono, the last one shorter.

    Raises ``BadSamples`` on NaN or Inf, ``MediaLimit`` beyond ``max_seconds``. A change of rate or channels inside the
    file (chained streams) starts a new run; its audio follows on.
    """
    waiting: list[np.ndarray] = []
    held = total = 0
    for piece in _resampled(_seconds(frames), name):
        total += len(piece)
        if total > max_seconds * RATE:
            raise MediaLimit(f"{name} is longer than {max_seconds / 3600:g} h; split it, or raise reader.max_hours")
        waiting.append(piece)
        held += len(piece)
        if held >= BLOCK_SAMPLES:
            joined = np.concatenate(waiting)
            whole = held - held % BLOCK_SAMPLES
            for start in range(0, whole, BLOCK_SAMPLES):
                yield joined[start : start + BLOCK_SAMPLES]
            waiting, held = [joined[whole:]], held - whole
    if held:
        yield np.concatenate(waiting)


def _seconds(frames: Iterable[tuple[int, np.ndarray]]) -> Iterator[tuple[int, np.ndarray, bool]]:
    """Regroup into exact seconds of source audio: ``(rate, float32 [rate, channels], last of its run)``."""
    waiting: list[np.ndarray] = []
    held, shape = 0, (0, 0)
    for rate, values in frames:
        if (rate, values.shape[1]) != shape:
            if shape[0]:
                yield shape[0], _join(waiting, shape[1]), True
            waiting, held, shape = [], 0, (rate, values.shape[1])
        waiting.append(values)
        held += len(values)
        # one frame more than the second, so that the last part of a run is known to be the last
        if held > rate:
            joined = _join(waiting, shape[1])
            while len(joined) > rate:
                yield rate, joined[:rate], False
                joined = joined[rate:]
            waiting, held = [joined.copy()], len(joined)
    if shape[0]:
        yield shape[0], _join(waiting, shape[1]), True


def _join(parts: list[np.ndarray], channels: int) -> np.ndarray:
    return np.concatenate(parts) if parts else np.zeros((0, channels), np.float32)


def _resampled(seconds: Iterable[tuple[int, np.ndarray, bool]], name: str) -> Iterator[np.ndarray]:
    downmix: Downmix | None = None
    resampler: soxr.ResampleStream | None = None
    for rate, values, last in seconds:
        if downmix is None:
            downmix = Downmix(rate, values.shape[1])
            resampler = soxr.ResampleStream(rate, RATE, 1, dtype="float32") if rate != RATE else None
        _check(values, name)
        mixed = downmix.mix(values)
        if resampler is not None:
            mixed = resampler.resample_chunk(mixed, last=last)
        _check(mixed, name)  # huge finite samples can still overflow on the way
        if len(mixed):
            yield mixed
        if last:
            downmix = None


def _check(values: np.ndarray, name: str) -> None:
    if not np.isfinite(values).all():
        raise BadSamples(f"{name} holds samples that are no numbers (NaN or Inf); export it again")
