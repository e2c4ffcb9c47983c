"""Makes media files of every kind for the reader's tests, with PyAV, soundfile and bytes alone."""

from __future__ import annotations

import struct
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import soundfile

HELDOUT = Path(__file__).parent / "data" / "heldout"


def clip(name: str = "clip001") -> np.ndarray:
    """A held-out clip: float32 [n] at 16 kHz."""
    return soundfile.read(HELDOUT / f"{name}.flac", dtype="float32")[0]


def at_rate(samples: np.ndarray, rate: int) -> np.ndarray:
    import soxr

    return soxr.resample(samples, 16_000, rate) if rate != 16_000 else samples


def encode(
    path: Path,
    samples: np.ndarray,
    *,
    codec: str,
    container: str,
    rate: int = 16_000,
    layout: str = "mono",
    video: bool = False,
    audio_tracks: int = 1,
) -> Path:
    """Write float32 [n] (16 kHz) through ffmpeg, copied to every channel; ``video`` adds a moving picture."""
    values = at_rate(samples, rate)
    options = {"strict": "experimental"}
    with av.open(str(path), "w", format=container) as out:
        picture = None
        if video:
            picture = out.add_stream("libvpx" if container in {"webm", "matroska"} else "mpeg4", rate=10)
            picture.width, picture.height, picture.pix_fmt = 64, 48, "yuv420p"
        streams = []
        for _ in range(audio_tracks):
            stream = out.add_stream(codec, rate=rate, options=options)
            stream.layout, stream.bit_rate = layout, 64_000 * (1 + len(av.AudioLayout(layout).channels))
            streams.append(stream)
        if picture is not None:
            for number in range(max(int(len(samples) / 1600), 10)):
                image = np.full((48, 64, 3), number % 256, np.uint8)
                frame = av.VideoFrame.from_ndarray(image, format="rgb24")
                frame.pts, frame.time_base = number, Fraction(1, 10)
                out.mux(picture.encode(frame))
            out.mux(picture.encode(None))
        for stream in streams:
            resampler = av.AudioResampler(format=stream.format.name, layout=layout, rate=rate)
            size = stream.codec_context.frame_size or 1024
            fifo = av.AudioFifo()
            channels = len(stream.layout.channels)
            for start in range(0, len(values), 4096):
                part = np.repeat(values[None, start : start + 4096], channels, axis=0)
                frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(part), format="fltp", layout=layout)
                frame.sample_rate, frame.pts = rate, start
                for converted in resampler.resample(frame):
                    fifo.write(converted)
                while (ready := fifo.read(size)) is not None:
                    out.mux(stream.encode(ready))
            if (ready := fifo.read(0, partial=True)) is not None:
                out.mux(stream.encode(ready))
            out.mux(stream.encode(None))
    return path


def wav_bytes(
    samples: np.ndarray, *, claimed: int | None = None, rate: int = 16_000, channels: int = 1, tail: bytes = b""
) -> bytes:
    """A 16-bit WAV whose ``data`` chunk claims ``claimed`` bytes instead of the truth."""
    data = (np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes()
    size = len(data) if claimed is None else claimed
    head = struct.pack("<IHHIIHH", 16, 1, channels, rate, rate * 2 * channels & 0xFFFFFFFF, 2 * channels & 0xFFFF, 16)
    riff = min(36 + size, 0xFFFFFFFF)
    return b"RIFF" + struct.pack("<I", riff) + b"WAVEfmt " + head + b"data" + struct.pack("<I", size) + data + tail


def likeness(a: np.ndarray, b: np.ndarray) -> float:
    """Largest normalised cross-correlation within ±0.2 s: 1.0 for the same waveform, sign and level aside."""
    size = 1 << (len(a) + len(b)).bit_length()
    cross = np.fft.irfft(np.fft.rfft(a, size) * np.conj(np.fft.rfft(b, size)), size)
    near = np.abs(np.concatenate((cross[:3200], cross[-3200:])))
    return float(near.max() / (np.sqrt(np.square(a).sum() * np.square(b).sum()) + 1e-12))
