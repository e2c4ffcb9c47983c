"""Features and encoder: WhisperFeatureExtractor's numbers, mlx-audio's dense encoder bit for bit, window by window."""

from __future__ import annotations

import functools
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_map
from transformers import WhisperFeatureExtractor

from asr_support import DATA, RATE, on_cpu, random_path, source, texts, tiny, tiny_path
from dropscribe.asr.encoder import Encoder, audio_tokens
from dropscribe.asr.features import log_mel, pad_to_minimum
from dropscribe.asr.model import _load_strictly, locate

on_cpu()


@functools.cache
def theirs(folder: str = "tiny") -> Any:
    """mlx-audio's own model, in float32 as ours is."""
    model = _load_strictly(locate(str(tiny_path() if folder == "tiny" else random_path("fp32"))))
    model.update(
        tree_map(lambda a: a.astype(mx.float32) if mx.issubdtype(a.dtype, mx.floating) else a, model.parameters())
    )
    return model


def dense(mel: np.ndarray, folder: str = "tiny") -> np.ndarray:
    frames = mel.shape[1]
    return np.array(theirs(folder).get_audio_features(mx.array(mel[None]), mx.ones((1, frames), mx.int32)))


@functools.cache
def speech() -> np.ndarray:
    """A minute and a bit: clips end to end."""
    return np.concatenate([source(name) for name in sorted(texts())[:12]])


@functools.cache
def speech_mel() -> np.ndarray:
    return log_mel(speech())


def ours(mel: np.ndarray) -> np.ndarray:
    return np.array(tiny().encoder.encode(mel))


# --- features -------------------------------------------------------------------------------------------------------


@functools.cache
def extractor() -> Any:
    return WhisperFeatureExtractor.from_pretrained(str(tiny_path()))


def reference_mel(samples: np.ndarray) -> np.ndarray:
    return np.asarray(extractor()._np_extract_fbank_features(samples[None], "cpu"))[0]


@pytest.mark.parametrize("samples", [16_000, 16_001, 16_159, 16_160, 51_523, 217_443])
def test_log_mel_is_the_feature_extractors_to_the_bit(samples: int) -> None:
    audio = np.concatenate([source("clip011"), source("clip000")])[:samples]
    mel = log_mel(audio)
    assert mel.dtype == np.float32
    assert mel.shape == (128, samples // 160)
    assert np.array_equal(mel, reference_mel(audio))


def test_log_mel_of_loud_quiet_and_silent_audio_is_the_feature_extractors() -> None:
    rng = np.random.default_rng(3)
    noise = rng.standard_normal(24_000).astype(np.float32)
    for audio in (noise, noise * 1e-6, np.zeros(20_000, np.float32), np.sign(noise), noise * 0 + 0.5):
        assert np.array_equal(log_mel(audio), reference_mel(audio))


def test_long_audio_in_blocks_is_the_feature_extractors_too() -> None:
    audio = speech()[: 60 * RATE + 77]
    assert audio.shape[0] > 4096 * 160  # more than one block of frames
    assert np.array_equal(log_mel(audio), reference_mel(audio))


def test_short_audio_is_padded_to_a_second_before_anything_else() -> None:
    audio = source("clip003")[4000:9000]
    assert np.array_equal(log_mel(audio), reference_mel(np.pad(audio, (0, 11_000))))
    assert len(pad_to_minimum(audio)) == RATE
    assert pad_to_minimum(speech()) is speech()


# --- encoder --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["clip003", "clip011", "clip018", "short", "joined"])
def test_encoder_outputs_are_the_oracles(name: str) -> None:
    with np.load(DATA / "oracle" / "encoder.npz") as golden:
        expected = golden[name]
    made = ours(log_mel(source(name)))
    assert made.shape == expected.shape
    assert np.abs(made - expected).max() < 2e-4


@pytest.mark.slow
def test_odd_lengths_from_1_to_3_seconds_is_the_dense_encoder_bit_for_bit() -> None:
    lengths = [*range(100, 117), *range(119, 301, 9), 199, 200, 201, 299, 300]
    wrong = [
        n
        for n in lengths
        if not np.array_equal(ours(speech_mel()[:, 40 : 40 + n]), dense(speech_mel()[:, 40 : 40 + n]))
    ]
    assert not wrong


@pytest.mark.slow
@pytest.mark.parametrize("frames", [503, 799, 800, 801, 1137, 1600, 6000])
def test_longer_rows_are_the_dense_encoder_bit_for_bit(frames: int) -> None:
    mel = speech_mel()[:, :frames]
    made = ours(mel)
    assert made.shape[0] == audio_tokens(frames)
    assert np.array_equal(made, dense(mel))


@pytest.mark.slow
def test_every_length_from_200_ms_to_a_second_gives_what_its_padded_version_gives_alone() -> None:
    """Shorter rows encoded beside longer ones came out otherwise in mlx-audio; padded ones see no neighbours."""
    audio = source("clip007")[8000:]
    wrong = []
    for ms in range(200, 1001, 10):
        samples = audio[: ms * 16]
        mel = reference_mel(np.pad(samples, (0, RATE - len(samples))))
        if not np.array_equal(ours(log_mel(samples)), dense(mel)):
            wrong.append(ms)
    assert not wrong


def test_a_window_is_the_same_bits_whatever_comes_before_and_after_it() -> None:
    """Windows share a pass on the CPU too: 8 s of a row, alone and between others."""
    window = speech_mel()[:, 800:1600]
    alone = ours(window)
    around = ours(np.concatenate([speech_mel()[:, 2000:3600], window, speech_mel()[:, :333]], axis=1))
    at = audio_tokens(1600)
    assert np.array_equal(around[at : at + len(alone)], alone)


@functools.cache
def fixed() -> Encoder:
    return Encoder(theirs("random").audio_tower, fixed_windows=True, rows_first=True)


def random_ours(mel: np.ndarray) -> np.ndarray:
    return np.array(fixed().encode(mel))


@pytest.mark.slow
@pytest.mark.parametrize("frames", [100, 101, 437, 800, 801, 1999])
def test_fixed_windows_give_the_dense_encoders_features(frames: int) -> None:
    """The form of GPUs: always 8 whole windows, dummies filling up, masked keys."""
    mel = speech_mel()[:, :frames]
    made, expected = random_ours(mel), dense(mel, "random")
    assert made.shape == expected.shape
    assert np.abs(made - expected).max() <= 1e-5 * np.abs(expected).max()


def test_fixed_windows_give_a_row_the_same_bits_in_any_place_among_any_neighbours() -> None:
    window = speech_mel()[:, 800:1600]
    alone = random_ours(window)
    seen = []
    for before, after in ((800, 0), (2400, 250), (5600, 0)):
        mel = np.concatenate([speech_mel()[:, :before], window, speech_mel()[:, 100 : 100 + after]], axis=1)
        at = audio_tokens(before)
        seen.append(random_ours(mel)[at : at + len(alone)])
    assert all(np.array_equal(alone, other) for other in seen)


def test_a_row_of_more_than_one_pass_keeps_its_windows_bits() -> None:
    """60 s and more are several passes of 8 windows; the ninth window is alone in its own."""
    mel = np.concatenate([speech_mel()[:, :6000], speech_mel()[:, :1200]], axis=1)
    whole = random_ours(mel)
    assert whole.shape[0] == audio_tokens(7200)
    assert np.array_equal(whole[audio_tokens(6400) :], random_ours(mel[:, 6400:]))


def test_both_forms_agree_on_the_cpu() -> None:
    plain = Encoder(theirs("random").audio_tower, fixed_windows=False, rows_first=True)
    mel = speech_mel()[:, :1730]
    a, b = np.array(plain.encode(mel)), random_ours(mel)
    assert np.abs(a - b).max() <= 1e-5 * np.abs(a).max()


def test_weights_laid_out_either_way_give_the_same_features() -> None:
    other = Encoder(theirs("random").audio_tower, fixed_windows=False, rows_first=False)
    mel = speech_mel()[:, :250]
    assert np.array_equal(np.array(other.encode(mel)), dense(mel, "random"))


def test_less_than_a_second_of_frames_is_refused() -> None:
    with pytest.raises(ValueError, match="pad"):
        tiny().encoder.encode(np.zeros((128, 99), np.float32))


def test_the_encoder_looks_at_the_pulse_before_every_pass() -> None:
    beats: list[int] = []
    fixed().encode(speech_mel()[:, :6500], lambda: beats.append(1))
    assert len(beats) == 2


def test_features_come_in_the_checkpoints_dtype() -> None:
    model = theirs("random")
    tower = _load_strictly(locate(str(random_path("bf16")))).audio_tower
    made = Encoder(tower, fixed_windows=False, rows_first=True).encode(speech_mel()[:, :150])
    assert made.dtype == mx.bfloat16
    assert fixed().encode(speech_mel()[:, :150]).dtype == model.model.norm.weight.dtype == mx.float32
