"""Samples to log-mel frames, and the thread that does it ahead of the decoder. numpy only: MLX stays on its one thread.

The same formula as transformers' ``WhisperFeatureExtractor`` (its numpy path), without the per-frame Python loop and
whatever else is installed: that class switches to other arithmetic when PyTorch is there.
"""

from __future__ import annotations

import functools

import numpy as np

SAMPLE_RATE = 16_000
N_FFT = 400
HOP = 160
MIN_SAMPLES = SAMPLE_RATE  # shorter rows came out with other features beside longer ones; and clips under 0.5 s empty
_FRAMES_AT_ONCE = 4096  # bounds the spectrum's memory: about 13 MB

Array = np.ndarray


@functools.cache
def mel_filters(bins: int) -> Array:
    """Slaney-scale triangular filters ``[201, bins]``, 0–8 kHz, as Whisper uses them (float64)."""
    from transformers.audio_utils import mel_filter_bank

    filters: Array = mel_filter_bank(
        num_frequency_bins=N_FFT // 2 + 1,
        num_mel_filters=bins,
        min_frequency=0.0,
        max_frequency=SAMPLE_RATE / 2,
        sampling_rate=SAMPLE_RATE,
        norm="slaney",
        mel_scale="slaney",
    )
    return filters


@functools.cache
def _window() -> Array:
    return np.hanning(N_FFT + 1)[:-1]  # periodic Hann, float64


def pad_to_minimum(samples: Array) -> Array:
    """``samples [n]`` filled up with silence to one second."""
    missing = MIN_SAMPLES - len(samples)
    return np.pad(samples, (0, missing)) if missing > 0 else samples


def log_mel(samples: Array, bins: int = 128) -> Array:
    """Log-mel frames of one row.

    ``samples``: float32 ``[n]``, 16 kHz mono, n ≥ 1; padded to one second first. Returns float32 ``[bins, n // 160]``.
    A row is never padded to the length of another: the reflected edge and the row's own maximum enter every frame.
    """
    samples = pad_to_minimum(samples)
    padded = np.pad(samples.astype(np.float64), N_FFT // 2, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(padded, N_FFT)[::HOP][: len(samples) // HOP]  # [T, 400]
    filters = mel_filters(bins)
    mel = np.empty((bins, len(frames)), np.float32)
    for at in range(0, len(frames), _FRAMES_AT_ONCE):
        block = frames[at : at + _FRAMES_AT_ONCE]
        spectrum = np.fft.rfft(block * _window()).astype(np.complex64)  # [t, 201]; rounded as the reference does
        power = np.abs(spectrum, dtype=np.float64) ** 2
        energy = filters.T @ power.T  # [bins, t]
        mel[:, at : at + len(block)] = np.log10(np.maximum(energy, 1e-10))
    np.maximum(mel, mel.max() - np.float32(8.0), out=mel)
    return (mel + np.float32(4.0)) / np.float32(4.0)
