from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audio_making import HELDOUT, clip
from dropscribe.audio.cuts import Piece, cut, is_silent, recut

NAMES = sorted(path.stem for path in HELDOUT.glob("*.flac"))


def noise(count: int, db: float, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 10 ** (db / 20), count).astype(np.float32)


def speech(gap_ms: int, floor_db: float, clips: int = 24) -> tuple[np.ndarray, np.ndarray]:
    """Clips with gaps between them over a noise floor, and the same without the floor."""
    gap = np.zeros(gap_ms * 16, np.float32)
    clean = np.concatenate([part for name in (NAMES * 9)[:clips] for part in (clip(name), gap)])
    return clean + noise(len(clean), floor_db), clean


def check_tiling(pieces: list[Piece], samples: np.ndarray, max_seconds: float) -> None:
    assert np.array_equal(np.concatenate([piece.samples for piece in pieces]), samples)
    assert pieces[0].start_ms == 0
    assert pieces[-1].end_ms == -(-len(samples) // 16)
    for before, after in pairwise(pieces):
        assert before.end_ms == after.start_ms
        assert len(before.samples) == (before.end_ms - before.start_ms) * 16
    for piece in pieces:
        assert 0 < len(piece.samples) <= max_seconds * 16_000
        assert all(piece.start_ms <= a < b <= piece.end_ms for a, b in piece.pauses)


def test_no_audio_gives_no_piece():
    assert list(cut([], 30)) == []
    assert list(cut([np.zeros(0, np.float32)], 30)) == []


def test_audio_up_to_the_longest_piece_stays_whole():
    samples = noise(30 * 16_000, -20)
    (piece,) = cut([samples], 30)
    assert (piece.start_ms, piece.end_ms, piece.silent) == (0, 30_000, False)
    assert len(list(cut([np.append(samples, np.float32(0))], 30))) == 2


def test_a_last_part_of_a_millisecond_is_rounded_up():
    (piece,) = cut([np.ones(17, np.float32)], 30)
    assert (piece.end_ms, len(piece.samples)) == (2, 17)


@pytest.mark.parametrize("floor_db", [-120, -60, -45])
@pytest.mark.parametrize("max_seconds", [10, 30])
def test_cuts_fall_into_pauses_only(floor_db, max_seconds):
    samples, clean = speech(150, floor_db)
    pieces = list(cut([samples], max_seconds))
    check_tiling(pieces, samples, max_seconds)
    for piece in pieces[:-1]:
        at = piece.end_ms * 16
        around = clean[at - 400 : at + 400]
        assert 10 * np.log10(np.mean(np.square(around)) + 1e-12) < -50, piece.end_ms


def test_a_gap_of_150_ms_between_tones_is_found_and_cut_in():
    # nothing but loud tone, once broken off for 150 ms over a noise floor
    tone = 0.3 * np.sin(2 * np.pi * 220 * np.arange(12 * 16_000) / 16_000).astype(np.float32)
    tone *= 1 + 0.5 * np.sin(2 * np.pi * 4 * np.arange(len(tone)) / 16_000).astype(np.float32)
    tone[7 * 16_000 : 7 * 16_000 + 2_400] = 0
    samples = tone + noise(len(tone), -50)
    first, _ = cut([samples], 10)
    assert 7_000 < first.end_ms < 7_150
    (whole,) = cut([samples], 20)
    assert any(a >= 7_000 and b <= 7_160 for a, b in whole.pauses)


def test_the_longest_pause_wins_over_the_latest():
    loud = noise(10 * 16_000, -20)
    loud[6 * 16_000 : 6 * 16_000 + 6_400] *= 0.001  # 400 ms
    loud[9 * 16_000 : 9 * 16_000 + 1_920] *= 0.001  # 120 ms
    first, *_ = cut([loud, loud], 10)
    assert 6_000 < first.end_ms < 6_400


def test_without_any_pause_the_quietest_place_is_taken():
    # swinging too little for a pause, with one dip
    loud = 0.5 * np.sin(2 * np.pi * 200 * np.arange(24 * 16_000) / 16_000).astype(np.float32)
    swing = np.where(np.arange(len(loud)) // 640 % 2 == 0, 1.0, 0.2).astype(np.float32)  # 40 ms loud, 40 ms soft
    loud *= swing
    pieces = list(cut([loud], 10))
    check_tiling(pieces, loud, 10)
    assert all(5_000 <= piece.end_ms - piece.start_ms <= 10_000 for piece in pieces[:-1])


def test_an_offset_does_not_hide_the_pauses():
    samples, _ = speech(300, -60, clips=10)
    plain = [piece.end_ms for piece in cut([samples], 10)]
    assert [piece.end_ms for piece in cut([samples + np.float32(0.1)], 10)] == plain


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 40 * 16_000), max_size=30), st.sampled_from([5.0, 7.3, 12.0]), st.integers(0, 5))
def test_the_plan_does_not_depend_on_the_blocks(borders, max_seconds, seed):
    samples = np.concatenate([clip(NAMES[(seed + k) % 24]) for k in range(5)])[: 40 * 16_000]
    reference = list(cut([samples], max_seconds))
    check_tiling(reference, samples, max_seconds)
    pieces = list(cut(np.split(samples, sorted(min(border, len(samples)) for border in borders)), max_seconds))
    assert [(p.start_ms, p.end_ms, p.silent, p.pauses) for p in pieces] == [
        (p.start_ms, p.end_ms, p.silent, p.pauses) for p in reference
    ]
    check_tiling(pieces, samples, max_seconds)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 200_000), st.integers(0, 1000), st.sampled_from([-100.0, -40.0, -6.0]))
def test_any_signal_is_tiled(count, seed, db):
    rng = np.random.default_rng(seed)
    samples = noise(count, db, seed) * np.repeat(rng.random(count // 1000 + 1), 1000)[:count].astype(np.float32)
    check_tiling(list(cut([samples], 2.0)), samples, 2.0)


def test_hours_are_cut_holding_no_more_than_the_longest_piece():
    import tracemalloc

    second = noise(16_000, -30)
    tracemalloc.start()
    pieces = sum(1 for _ in cut((second for _ in range(1800)), 60))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert pieces >= 30
    assert peak < 40 << 20  # a minute is 3.8 MB


# --- silence ---


@pytest.mark.parametrize("seconds", [0.01, 1, 12.3])
def test_digital_silence_an_offset_and_dither_are_silent(seconds):
    count = int(seconds * 16_000)
    rng = np.random.default_rng(3)
    assert is_silent(np.zeros(count, np.float32))
    assert is_silent(np.full(count, 0.01, np.float32))
    assert is_silent((rng.integers(-1, 2, count) / 32768).astype(np.float32))
    assert is_silent((np.round(rng.normal(0, 0.5, count)).clip(-2, 2) / 32768).astype(np.float32))
    assert is_silent(((rng.random(count) > 0.999) / 32768).astype(np.float32))


@pytest.mark.parametrize("peak_db", [-20, -60, -80, -90, -120])
@pytest.mark.parametrize("name", NAMES[::6])
def test_speech_is_never_silent_however_quiet(name, peak_db):
    samples = clip(name)
    assert not is_silent(samples * np.float32(10 ** (peak_db / 20) / np.abs(samples).max()))


@pytest.mark.parametrize("steps", [1.2, 2.0, 3.0])
@pytest.mark.parametrize("name", NAMES[::6])
def test_speech_of_a_step_or_two_of_16_bit_is_not_silent(name, steps):
    samples = clip(name)
    assert not is_silent((np.round(samples / np.abs(samples).max() * steps) / 32768).astype(np.float32))


def test_one_word_in_minutes_of_silence_is_not_silent():
    samples = np.zeros(120 * 16_000, np.float32)
    samples[60 * 16_000 : 60 * 16_000 + 8_000] = clip()[8_000:16_000] * 1e-3
    (piece,) = cut([samples], 300)
    assert not piece.silent


def test_room_noise_is_left_to_the_recognizer():
    assert not is_silent(noise(160_000, -70))


# --- recut ---


def test_a_recut_splits_at_a_pause_and_tiles():
    samples, clean = speech(200, -60, clips=4)
    (piece,) = cut([samples], 60)
    shifted = Piece(5_000, 5_000 + piece.end_ms, samples, silent=False, pauses=())
    first, second = recut(shifted)
    assert (first.start_ms, first.end_ms, second.end_ms) == (5_000, second.start_ms, shifted.end_ms)
    assert np.array_equal(np.concatenate((first.samples, second.samples)), samples)
    assert 0.2 < len(first.samples) / len(samples) < 0.8
    at = len(first.samples)
    assert 10 * np.log10(np.mean(np.square(clean[at - 400 : at + 400])) + 1e-12) < -50


def test_a_recut_without_a_pause_still_splits_and_a_short_piece_stays():
    (piece,) = cut([noise(80_000, -10)], 30)
    assert len(recut(piece)) == 2
    (short,) = cut([noise(20_000, -10)], 30)
    assert recut(short) == [short]
