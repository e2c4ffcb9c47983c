from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING

import numpy as np
import pytest
import soundfile

from audio_making import at_rate, clip, encode, likeness, wav_bytes
from dropscribe import errors
from dropscribe.audio.client import Drained, Media, Reader
from dropscribe.settings import Reader as Limits

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def reader():
    with Reader(Limits(stall_seconds=20)) as made:
        yield made


def read(reader: Reader, path: Path) -> tuple[np.ndarray, Media, Drained]:
    stream = reader.open(os.fsencode(path))
    blocks = list(stream.blocks())
    assert stream.drained is not None
    assert all(block.dtype == np.float32 and block.ndim == 1 for block in blocks)
    assert all(len(block) == 16_000 for block in blocks[:-1])
    samples = np.concatenate([*blocks, np.zeros(0, np.float32)])
    assert stream.drained.seconds == len(samples) / 16_000
    return samples, stream.media, stream.drained


CASES = {
    "mp3": {"codec": "libmp3lame", "container": "mp3"},
    "mp3-44k-stereo": {"codec": "libmp3lame", "container": "mp3", "rate": 44_100, "layout": "stereo"},
    "opus": {"codec": "libopus", "container": "ogg", "rate": 48_000},
    "flac-44k-stereo": {"codec": "flac", "container": "flac", "rate": 44_100, "layout": "stereo"},
    "m4a-aac": {"codec": "aac", "container": "ipod", "rate": 44_100},
    "m4a-alac": {"codec": "alac", "container": "ipod", "rate": 44_100},
    "mp4-video": {"codec": "aac", "container": "mp4", "video": True},
    "mov-video": {"codec": "pcm_s16le", "container": "mov", "video": True},
    "webm": {"codec": "libopus", "container": "webm", "rate": 48_000},
    "webm-video": {"codec": "libopus", "container": "webm", "rate": 48_000, "video": True},
    "mkv-flac": {"codec": "flac", "container": "matroska", "video": True},
    "aac-adts": {"codec": "aac", "container": "adts"},
    "mpegts": {"codec": "aac", "container": "mpegts"},
    "avi": {"codec": "libmp3lame", "container": "avi", "video": True},
    "wma": {"codec": "wmav2", "container": "asf", "rate": 44_100, "layout": "stereo"},
    "caf-alac": {"codec": "alac", "container": "caf"},
    "wav-adpcm": {"codec": "adpcm_ima_wav", "container": "wav"},
    "aac-5.1": {"codec": "aac", "container": "ipod", "rate": 48_000, "layout": "5.1"},
}


@pytest.mark.parametrize("case", CASES)
def test_compressed_containers_give_the_clip_back(reader, tmp_path, case):
    path = encode(tmp_path / "misleading.txt", clip(), **CASES[case])
    samples, media, drained = read(reader, path)
    assert likeness(samples, clip()) > 0.96
    assert abs(drained.seconds - len(clip()) / 16_000) < 0.13  # a codec's frame or two of padding
    assert media.sample_rate == CASES[case].get("rate", 16_000)
    assert drained.warnings == ()


@pytest.mark.parametrize("rate", [8_000, 11_025, 22_050, 44_100, 48_000, 96_000, 192_000])
def test_any_rate_comes_out_at_16_khz(reader, tmp_path, rate):
    values = at_rate(clip(), rate)
    soundfile.write(tmp_path / "a.wav", values, rate, subtype="FLOAT")
    samples, media, drained = read(reader, tmp_path / "a.wav")
    assert (media.sample_rate, media.channels) == (rate, 1)
    assert abs(len(samples) - len(values) * 16_000 / rate) <= 1
    # at 8 kHz half of the band is gone
    assert likeness(samples, clip()) > (0.85 if rate < 16_000 else 0.99)
    assert drained.warnings == ()


@pytest.mark.parametrize(
    ("form", "subtype"),
    [
        ("WAV", "PCM_U8"), ("WAV", "PCM_16"), ("WAV", "PCM_24"), ("WAV", "PCM_32"), ("WAV", "FLOAT"),
        ("WAV", "DOUBLE"), ("WAV", "ULAW"), ("WAV", "ALAW"), ("WAVEX", "PCM_24"), ("RF64", "PCM_16"),
        ("W64", "PCM_16"), ("AIFF", "PCM_24"), ("AIFF", "FLOAT"), ("AU", "ULAW"), ("CAF", "PCM_16"),
        ("FLAC", "PCM_24"), ("OGG", "VORBIS"), ("VOC", "PCM_16"), ("NIST", "PCM_16"),
    ],
)  # fmt: skip
def test_any_sample_type_keeps_its_scale(reader, tmp_path, form, subtype):
    path = tmp_path / "a.bin"
    soundfile.write(path, clip(), 16_000, format=form, subtype=subtype)
    samples, _, drained = read(reader, path)
    assert abs(len(samples) - len(clip())) <= 16
    n = min(len(samples), len(clip()))
    assert np.abs(samples[:n] - clip()[:n]).max() < (0.15 if subtype == "VORBIS" else 0.03)
    assert drained.warnings == ()


def test_mu_law_at_8_khz_is_read(reader, tmp_path):
    soundfile.write(tmp_path / "phone.wav", at_rate(clip(), 8_000), 8_000, subtype="ULAW")
    samples, media, _ = read(reader, tmp_path / "phone.wav")
    assert media.sample_rate == 8_000
    assert likeness(samples, clip()) > 0.85


def write_channels(path: Path, *channels: np.ndarray, rate: int = 16_000) -> Path:
    soundfile.write(path, np.stack(channels, axis=1), rate, subtype="PCM_16", format="WAV")
    return path


def rms(samples: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(samples))))


def test_anti_phase_stereo_survives(reader, tmp_path):
    samples, _, _ = read(reader, write_channels(tmp_path / "a.wav", clip(), -clip()))
    assert likeness(samples, clip()) > 0.999
    assert rms(samples) == pytest.approx(rms(clip()), rel=0.01)


def test_anti_phase_stereo_with_noise_of_its_own_on_each_side_survives(reader, tmp_path):
    rng = np.random.default_rng(1)
    left, right = (rng.normal(0, 0.02, len(clip())).astype(np.float32) for _ in "LR")
    samples, _, _ = read(reader, write_channels(tmp_path / "a.wav", clip() + left, right - clip()))
    assert likeness(samples, clip()) > 0.9


@pytest.mark.parametrize("dead", [0, 1])
def test_a_dead_channel_neither_silences_nor_halves_the_live_one(reader, tmp_path, dead):
    pair = [clip(), clip()]
    pair[dead] = np.zeros_like(clip())
    samples, _, _ = read(reader, write_channels(tmp_path / "a.wav", *pair))
    assert likeness(samples, clip()) > 0.999
    assert rms(samples) == pytest.approx(rms(clip()), rel=0.01)


def test_two_speakers_on_two_channels_are_both_heard(reader, tmp_path):
    other = np.resize(clip("clip003"), len(clip()))
    samples, _, _ = read(reader, write_channels(tmp_path / "a.wav", clip(), other))
    assert likeness(samples, clip()) > 0.4
    assert likeness(samples, other) > 0.4


def test_a_voice_on_the_centre_of_5_1_survives(reader, tmp_path):
    nothing = np.zeros_like(clip())
    samples, media, _ = read(reader, write_channels(tmp_path / "a.wav", nothing, nothing, clip(), *[nothing] * 3))
    assert media.channels == 6
    assert rms(samples) == pytest.approx(rms(clip()), rel=0.01)


def test_the_downmix_does_not_depend_on_how_the_decoder_cuts_its_frames(reader, tmp_path):
    from dropscribe.audio.mono import mono_16k

    rng = np.random.default_rng(2)
    frames = np.stack((clip(), np.where(np.arange(len(clip())) < 30_000, -clip(), clip())), axis=1)
    whole = np.concatenate(list(mono_16k([(44_100, frames)], 3600, "a")))
    borders = np.sort(rng.integers(0, len(frames), 50))
    split = [(44_100, part) for part in np.split(frames, borders) if len(part)]
    assert np.array_equal(whole, np.concatenate(list(mono_16k(split, 3600, "a"))))


@pytest.mark.parametrize("claimed", [0, 0xFFFFFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFDB, 32_000])
def test_a_wav_whose_header_lies_yields_all_its_audio(reader, tmp_path, claimed):
    (tmp_path / "killed.wav").write_bytes(wav_bytes(clip(), claimed=claimed))
    samples, media, drained = read(reader, tmp_path / "killed.wav")
    assert len(samples) == len(clip())
    assert media.claimed_seconds is None
    assert drained.warnings == ("header_length_ignored",)


def test_chunks_behind_the_data_are_no_audio(reader, tmp_path):
    tail = b"LIST" + struct.pack("<I", 26) + b"INFOISFT" + struct.pack("<I", 14) + b"some recorder "
    (tmp_path / "a.wav").write_bytes(wav_bytes(clip(), tail=tail))
    samples, media, drained = read(reader, tmp_path / "a.wav")
    assert len(samples) == len(clip())
    assert media.claimed_seconds == len(clip()) / 16_000
    assert drained.warnings == ()


@pytest.mark.parametrize("form", ["WAV", "AIFF", "AU", "W64", "FLAC"])
def test_a_truncated_file_yields_what_is_there_and_a_warning(reader, tmp_path, form):
    path = tmp_path / "a"
    soundfile.write(path, clip(), 16_000, format=form, subtype="PCM_16")
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    samples, media, drained = read(reader, path)
    assert 0.5 < len(samples) / len(clip()) < 0.75
    assert media.claimed_seconds == pytest.approx(len(clip()) / 16_000, rel=0.01)
    assert "shorter_than_claimed" in drained.warnings


def test_a_wav_cut_right_behind_its_header_is_empty_and_says_so(reader, tmp_path):
    path = tmp_path / "a.wav"
    soundfile.write(path, clip(), 16_000, subtype="PCM_16")
    path.write_bytes(path.read_bytes()[:44])
    samples, _, drained = read(reader, path)
    assert len(samples) == 0
    assert "shorter_than_claimed" in drained.warnings


def test_a_wav_that_claims_no_samples_and_has_none_is_whole(reader, tmp_path):
    path = tmp_path / "a.wav"
    soundfile.write(path, clip()[:0], 16_000, subtype="PCM_16")
    assert read(reader, path)[2].warnings == ()


def test_a_variable_rate_mp3_without_a_duration_is_read_to_the_end(reader, tmp_path):
    loud = np.concatenate([clip(), np.zeros(16_000 * 20, np.float32), clip()])
    path = encode(tmp_path / "a.mp3", loud, codec="libmp3lame", container="mp3")
    data = path.read_bytes()
    for tag in (b"Xing", b"Info"):
        data = data.replace(tag, b"\0\0\0\0")
    path.write_bytes(data)
    samples, media, drained = read(reader, path)
    assert media.claimed_seconds is None
    assert abs(len(samples) - len(loud)) < 4_000
    assert drained.warnings == ()


def test_a_file_without_any_frames_is_zero_seconds_long(reader, tmp_path):
    (tmp_path / "a.wav").write_bytes(wav_bytes(np.zeros(0, np.float32)))
    samples, media, drained = read(reader, tmp_path / "a.wav")
    assert (len(samples), drained.seconds, media.claimed_seconds, drained.warnings) == (0, 0.0, 0.0, ())
    soundfile.write(tmp_path / "whole.flac", clip(), 16_000)
    head = bytearray((tmp_path / "whole.flac").read_bytes()[:42])  # the marker and STREAMINFO
    head[4] |= 0x80  # the last block of metadata
    head[21:26] = bytes([head[21] & 0xF0, 0, 0, 0, 0])  # no samples
    (tmp_path / "a.flac").write_bytes(head)
    samples, _, drained = read(reader, tmp_path / "a.flac")
    assert (len(samples), drained.seconds, drained.warnings) == (0, 0.0, ())


def test_ten_milliseconds_stay_ten_milliseconds(reader, tmp_path):
    soundfile.write(tmp_path / "a.wav", clip()[:480], 48_000)
    assert read(reader, tmp_path / "a.wav")[2].seconds == 0.01


def test_several_audio_tracks_are_said_so(reader, tmp_path):
    path = encode(tmp_path / "a.mkv", clip(), codec="flac", container="matroska", audio_tracks=2)
    samples, _, drained = read(reader, path)
    assert likeness(samples, clip()) > 0.99
    assert drained.warnings == ("several_audio_tracks",)


def test_audio_shorter_than_its_picture_is_no_warning(reader, tmp_path):
    path = encode(tmp_path / "a.mp4", clip()[:8_000], codec="aac", container="mp4", video=True)
    assert read(reader, path)[2].warnings == ()


def fails(reader: Reader, path: Path) -> errors.DropscribeError:
    with pytest.raises(errors.DropscribeError) as caught:
        read(reader, path)
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("channels", [1, 2])
def test_samples_that_are_no_numbers_are_refused(reader, tmp_path, value, channels):
    samples = np.stack([clip()] * channels, axis=1)
    samples[-5, channels - 1] = value
    soundfile.write(tmp_path / "a.wav", samples, 16_000, subtype="FLOAT")
    assert fails(reader, tmp_path / "a.wav").error_kind == "bad_samples"


def test_doubles_beyond_float32_are_refused(reader, tmp_path):
    soundfile.write(tmp_path / "a.wav", np.full(1000, 1e300), 16_000, subtype="DOUBLE")
    assert fails(reader, tmp_path / "a.wav").error_kind == "bad_samples"


TEXTS = {
    "prose": b"Dear all,\nplease find the recording attached.\n" * 50,
    "toml": b"[project]\nname = 'x'\n[tool]\n" * 50,
    "playlist": b"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n",
    "concat": b"ffconcat version 1.0\nfile 'other.wav'\n",
    "sdp": b"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=audio 9 RTP/AVP 0\n",
    "subtitles": b"1\n00:00:01,000 --> 00:00:02,000\nHello\n\n" * 20,
    "png": b"\x89PNG\r\n\x1a\n" + bytes(200),
    "pdf": b"%PDF-1.7\n" + bytes(range(256)) * 8,
    "zip": b"PK\x03\x04" + bytes(range(256)) * 8,
    "zeros": bytes(5000),
    "one byte": b"R",
}


@pytest.mark.parametrize("text", TEXTS)
def test_what_only_calls_itself_wav_is_not_media(reader, tmp_path, text):
    (tmp_path / "other.wav").write_bytes(wav_bytes(clip()))
    (tmp_path / "a.wav").write_bytes(TEXTS[text])
    assert fails(reader, tmp_path / "a.wav").error_kind == "not_media"


def test_zero_bytes_are_an_empty_file(reader, tmp_path):
    (tmp_path / "a.wav").write_bytes(b"")
    assert fails(reader, tmp_path / "a.wav").error_kind == "empty_file"
    with pytest.raises(errors.EmptyFile):
        reader.hash(os.fsencode(tmp_path / "a.wav"))


def test_a_video_without_sound_has_no_audio_track(reader, tmp_path):
    path = encode(tmp_path / "a.mp4", clip(), codec="aac", container="mp4", video=True, audio_tracks=0)
    assert fails(reader, path).error_kind == "no_audio"


def test_a_broken_container_is_a_decode_failure(reader, tmp_path):
    whole = encode(tmp_path / "a.m4a", clip(), codec="aac", container="ipod").read_bytes()
    (tmp_path / "a.m4a").write_bytes(whole[: len(whole) // 2])  # the index stands at the end
    assert fails(reader, tmp_path / "a.m4a").error_kind == "decode_failed"


@pytest.mark.parametrize(("channels", "rate"), [(1000, 16_000), (65_535, 16_000), (2, 2**31 - 1), (1, 1)])
def test_absurd_headers_fail_without_being_believed(reader, tmp_path, channels, rate):
    (tmp_path / "a.wav").write_bytes(wav_bytes(clip(), channels=channels, rate=rate))
    assert fails(reader, tmp_path / "a.wav").error_kind in {"media_limit", "decode_failed"}


def test_longer_than_allowed_is_a_limit_found_while_decoding(tmp_path):
    soundfile.write(tmp_path / "a.wav", clip(), 16_000)
    with Reader(Limits(max_hours=3 / 3600)) as reader:
        assert fails(reader, tmp_path / "a.wav").error_kind == "media_limit"
        soundfile.write(tmp_path / "b.wav", clip()[:16_000], 16_000)
        assert read(reader, tmp_path / "b.wav")[2].seconds == 1.0
