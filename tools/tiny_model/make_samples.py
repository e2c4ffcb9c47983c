"""Speaks the demo's sample clips: held-out sentences, one clip a container (WAV, FLAC, MP3, M4A, Ogg/Opus).

  make_samples.py OUT_DIR        # writes the clips and transcripts.tsv

Each clip has its own synthesizer, sampling rate and channel count, as files from different devices have.
"""

import argparse
import random
import tempfile
from pathlib import Path

import av
import numpy as np
import soundfile as sf
from grammar import split_of
from make_speech import SR, make_clips
from scipy.signal import resample_poly

# file, engine, seed of the voice, sampling rate, channels, sentences
SAMPLES = [
    ("meeting.wav", "espeak", 3, 22050, 1, [
        "The meeting about the office move is on Saturday at four ten.",
        "Vincent is responsible for the holiday schedule.",
        "Paul gave an update on the history exam.",
    ]),
    ("reminder.flac", "flite", 5, 48000, 1, [
        "Don't forget to meet Michael by quarter past twelve.",
        "The deadline for the audit is December thirtieth.",
    ]),
    ("directions.mp3", "espeak", 11, 44100, 2, [
        "Turn left at the mall, then go straight for eighteen miles.",
        "Theo moved from New York to California last night.",
    ]),
    ("voice-memo.m4a", "festival", 2, 48000, 1, [
        "This is Oscar calling about the delivery delay.",
        "The meeting with Jack was moved to Saturday at five to six.",
    ]),
    ("shopping.ogg", "flite", 8, 48000, 1, [
        "I bought pineapple, oranges, and noodles last week.",
        "Add the mangoes and stir for seven minutes.",
    ]),
]  # fmt: skip
CODECS = {".mp3": ("mp3", 96_000), ".m4a": ("aac", 64_000), ".ogg": ("libopus", 32_000)}


def speak(texts, engine, seed):
    """int16 audio at 16 kHz, [n]: the sentences by one voice, with pauses."""
    r = random.Random(seed)
    state = r.getrandbits(32)
    parts = [np.zeros(int(0.3 * SR), np.int16)]
    with tempfile.TemporaryDirectory() as tmp:
        for text in texts:
            assert split_of(text) == "test", text
            [(_, voice, audio)] = make_clips(random.Random(state), [text], engine, tmp, main_only=True)
            parts += [audio, np.zeros(int(r.uniform(0.4, 0.7) * SR), np.int16)]
    return np.concatenate(parts), voice


def write(path, audio, rate, channels):
    """Write int16 audio ([n] at 16 kHz) in the container that the suffix names."""
    g = np.gcd(rate, SR)
    y = resample_poly(audio.astype(np.float32) / 32768 * 0.7, rate // g, SR // g).astype(np.float32)
    y = np.repeat(y[:, None], channels, axis=1)  # [n, channels]
    if path.suffix not in CODECS:
        sf.write(path, y, rate, subtype="PCM_16")
        return
    codec, bit_rate = CODECS[path.suffix]
    with av.open(str(path), "w") as out:
        layout = "stereo" if channels == 2 else "mono"
        stream = out.add_stream(codec, rate=rate, layout=layout)
        stream.bit_rate = bit_rate
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(y.reshape(1, -1)), format="flt", layout=layout)
        frame.sample_rate = rate
        resampler = av.AudioResampler(stream.format, layout, rate, frame_size=stream.frame_size or 0)
        for part in [*resampler.resample(frame), *resampler.resample(None), None]:
            out.mux(stream.encode(part))


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("out", type=Path)
    args = ap.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    rows = ["file\tvoice\ttext"]
    for name, engine, seed, rate, channels, texts in SAMPLES:
        audio, voice = speak(texts, engine, seed)
        write(args.out / name, audio, rate, channels)
        rows.append(f"{name}\t{voice}\t{' '.join(texts)}")
        print(f"{name}: {voice}, {len(audio) / SR:.1f} s, {(args.out / name).stat().st_size} bytes")
    (args.out / "transcripts.tsv").write_text("\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
