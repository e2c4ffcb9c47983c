"""Any container to runs of float32 frames: libsndfile for uncompressed audio, ffmpeg (PyAV) for everything else.

Runs in the reader child only. Nothing is allocated by a size that a header claims: blocks are as long as they are
because we say so, and end when the data does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import av
import numpy as np
import soundfile

from dropscribe.audio.sniff import SNDFILE, sniff, wav_data
from dropscribe.errors import DecodeFailed, MediaLimit, NoAudioTrack, NotMedia, reading_error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dropscribe.audio.source import Source

MAX_CHANNELS = 64
MIN_RATE, MAX_RATE = 1_000, 768_000
MAX_BROKEN_IN_A_ROW = 500  # packets or reads that fail one after another: the rest of the file is lost
BLOCK_VALUES = 1 << 18  # values (frames x channels) taken from libsndfile at a time

# Demuxers that ffmpeg may use. What is missing opens other files or addresses (concat, hls, dash, sdp), takes any bytes
# (raw formats), or holds no sound (pictures, subtitles: plain text passes for them).
DEMUXERS = (
    "aac,aax,ac3,ac4,adx,aiff,amr,amrnb,amrwb,ape,asf,au,avi,avr,bonk,caf,dsf,dts,dtshd,dv,eac3,flac,flv,gsm,gxf,iamf,"
    "iff,ilbc,ircam,live_flv,latm,lc3,loas,matroska,webm,mlp,mov,mp4,m4a,3gp,3g2,mj2,mp3,mpc,mpc8,mpeg,mpegts,mxf,"
    "nistsphere,nsv,nut,ogg,oma,osq,paf,pvf,qcp,qoa,rka,rm,rso,sds,shn,sox,swf,tak,truehd,tta,voc,w64,wady,wav,wavarc,"
    "wsd,wtv,wv,xwma"
)
OPTIONS = {"format_whitelist": DEMUXERS, "protocol_whitelist": "none"}  # no file or address named inside is opened

# Containers whose claimed length is a count of samples, not an estimate or a rounded time
EXACT = frozenset({"wav", "rf64", "w64", "aiff", "au", "caf", "flac"})
# ... and raw streams without any index, where ffmpeg guesses it from the bit rate
GUESSED = frozenset(
    {"aac", "ac3", "eac3", "amr", "mp3", "loas", "latm", "dts", "mpeg", "mpegts", "gsm", "mlp", "truehd"}
)


@dataclass(eq=False)
class Decoded:
    """An opened file. ``frames`` yields ``(sample_rate, float32 [n, channels])`` in file order; read it once.

    ``warnings`` fills while ``frames`` is read.
    """

    container: str
    codec: str
    sample_rate: int
    channels: int
    claimed_seconds: float | None
    tolerance: float  # seconds by which the decoded audio may be shorter than claimed without a word
    frames: Iterator[tuple[int, np.ndarray]]
    warnings: set[str] = field(default_factory=set)


def open_media(source: Source) -> Decoded:
    """Open by content. Raises ``NotMedia``, ``NoAudioTrack``, ``DecodeFailed``, ``MediaLimit``."""
    kind = sniff(source.pread(64, 0))
    ignore_length = False
    if kind in {"wav", "rf64"}:
        data = wav_data(source.pread, source.size)
        ignore_length = data is not None and not data.trusted
    if kind in SNDFILE and not ignore_length:
        decoded = _open_sndfile(source, kind)
        if decoded is not None:
            return decoded
    decoded = _open_av(source, kind, ignore_length=ignore_length)
    if ignore_length:
        decoded.claimed_seconds = None
        decoded.warnings.add("header_length_ignored")
    return decoded


def check_shape(rate: int, channels: int, name: str) -> None:
    """Raise ``DecodeFailed`` for no audio parameters at all, ``MediaLimit`` for absurd ones."""
    if rate <= 0 or channels <= 0:
        raise DecodeFailed(f"{name}: the header gives no sample rate or channels; export it again")
    if not MIN_RATE <= rate <= MAX_RATE:
        raise MediaLimit(f"{name}: {rate} Hz is outside {MIN_RATE} to {MAX_RATE} Hz; resample it")
    if channels > MAX_CHANNELS:
        raise MediaLimit(f"{name}: {channels} channels, at most {MAX_CHANNELS} are read; mix it down first")


# --- libsndfile ---


def _open_sndfile(source: Source, kind: str | None) -> Decoded | None:
    """None when libsndfile does not take it (an exotic codec inside, a broken header): ffmpeg may."""
    try:
        # libsndfile reads through our file object, so what it takes counts as work going on
        sound = soundfile.SoundFile(source.file_object())
    except (soundfile.LibsndfileError, OSError, DecodeFailed, TypeError):
        if source.failure is not None:
            raise reading_error(source.failure, source.name_for_people) from None
        return None
    rate, channels, frames = sound.samplerate, sound.channels, sound.frames
    try:
        check_shape(rate, channels, source.name_for_people)
    except BaseException:
        sound.close()
        raise
    return Decoded(
        container=sound.format.lower(),
        codec=sound.subtype.lower(),
        sample_rate=rate,
        channels=channels,
        claimed_seconds=_claimed_by_header(source, kind, frames, rate, channels),
        tolerance=0.05,
        frames=_sndfile_frames(sound, source),
    )


def _claimed_by_header(source: Source, kind: str | None, frames: int, rate: int, channels: int) -> float | None:
    """Seconds the header claims; libsndfile itself only reports what is there."""
    data = wav_data(source.pread, source.size) if kind in {"wav", "rf64"} else None
    if data is not None and 0 < data.present < data.claimed:
        return frames / rate * (data.claimed / data.present)
    if data is not None and data.present == 0 < data.claimed and not data.placeholder:
        return data.claimed / (rate * channels * 4)  # cut off right behind the header: at least this much is missing
    claimed = 0
    if kind == "aiff":
        claimed = int.from_bytes(source.pread(4, 4), "big") + 8
    elif kind == "w64":
        claimed = int.from_bytes(source.pread(8, 16), "little")
    elif kind == "au":
        offset, length = (int.from_bytes(source.pread(4, at), "big") for at in (4, 8))
        claimed = offset + length if length < 0xFFFFFF00 else 0
    if source.size < claimed < 1 << 50:
        return frames / rate * (claimed / source.size)
    return frames / rate if 0 <= frames < 1 << 50 else None


def _sndfile_frames(sound: Any, source: Source) -> Iterator[tuple[int, np.ndarray]]:
    rate, channels = int(sound.samplerate), int(sound.channels)
    count = max(min(rate, BLOCK_VALUES // channels), 1)
    with sound:
        while True:
            out = np.empty((count, channels), np.float32)
            try:
                # `out` is given: without it soundfile cuts the read to what the header claims
                block = sound.read(out=out)
            except soundfile.LibsndfileError as error:
                raise DecodeFailed(f"{source.name_for_people}: {error}; export it again") from error
            if source.failure is not None:
                raise reading_error(source.failure, source.name_for_people)
            if not len(block):
                return
            source.audio_came_out()
            yield rate, block


# --- ffmpeg ---


def _open_av(source: Source, kind: str | None, *, ignore_length: bool) -> Decoded:
    options = dict(OPTIONS, ignore_length="1") if ignore_length else OPTIONS
    try:
        container = av.open(source.file_object(), "r", options=options, metadata_errors="replace")
    except (av.FFmpegError, DecodeFailed, OSError, ValueError) as error:
        raise _cannot_open(source, kind, error) from error
    try:
        return _describe(container, source, kind)
    except BaseException:
        container.close()
        raise


def _cannot_open(source: Source, kind: str | None, error: BaseException) -> Exception:
    if source.failure is not None:
        return reading_error(source.failure, source.name_for_people)
    if isinstance(error, MemoryError):
        return MediaLimit(f"{source.name_for_people}: opening it takes more memory than reader.memory_mb allows")
    if kind is None:
        return NotMedia(
            f"{source.name_for_people} holds no audio or video that can be recognised, whatever its name says"
        )
    return DecodeFailed(f"{source.name_for_people}: the {kind} container is broken or cut off; copy or export it again")


def _describe(container: Any, source: Source, kind: str | None) -> Decoded:
    name = source.name_for_people
    stream = container.streams.best("audio")
    if stream is None and container.streams.audio:
        stream = container.streams.audio[0]
    if stream is None:
        raise NoAudioTrack(f"{name} has no audio track; there is nothing to transcribe")
    context = stream.codec_context
    if context is None:
        raise DecodeFailed(f"{name}: no decoder for its audio; export it as AAC, FLAC or WAV")
    if hasattr(av.stream, "Discard"):  # newer PyAV: pictures need not even be read
        for other in container.streams:
            if other is not stream:
                other.discard = av.stream.Discard.all
    context.thread_count = 1
    demuxer = container.format.name
    claimed, tolerance = _claimed(container, stream, source, demuxer)
    decoded = Decoded(
        container=kind if kind is not None else demuxer.partition(",")[0],
        codec=context.name,
        sample_rate=context.sample_rate or 0,
        channels=context.channels or 0,
        claimed_seconds=claimed,
        tolerance=tolerance,
        frames=iter(()),
    )
    if decoded.sample_rate and decoded.channels:
        check_shape(decoded.sample_rate, decoded.channels, name)
    if len(container.streams.audio) > 1:
        decoded.warnings.add("several_audio_tracks")
    decoded.frames = _av_frames(container, stream, source, decoded.warnings)
    return decoded


def _claimed(container: Any, stream: Any, source: Source, demuxer: str) -> tuple[float | None, float]:
    """(seconds the container says this audio lasts, or None; tolerance for "shorter than claimed")."""
    if demuxer == "mp3" and not _mp3_counts_its_frames(source):
        return None, 0.0
    if demuxer in GUESSED - {"mp3"}:
        return None, 0.0
    seconds: float | None = None
    if stream.duration is not None and stream.time_base is not None:
        seconds = float(stream.duration * stream.time_base)
    elif tag := next((value for key, value in stream.metadata.items() if key.upper().startswith("DURATION")), None):
        seconds = _clock(tag)  # Matroska keeps a track's length as a tag
    elif container.duration is not None and len(container.streams) == 1:
        seconds = container.duration / 1_000_000
    if seconds is None or not 0 <= seconds < 1e8:
        return None, 0.0
    return seconds, 0.05 if demuxer in EXACT else 0.5 + 0.002 * seconds


def _clock(text: str) -> float | None:
    try:
        hours, minutes, seconds = text.split(":")
        return int(hours) * 3600 + int(minutes) * 60 + float(seconds)
    except ValueError:
        return None


def _mp3_counts_its_frames(source: Source) -> bool:
    """Whether a Xing, Info or VBRI header gives the number of frames; else the duration is a guess by bit rate."""
    start = 0
    head = source.pread(10, 0)
    if head[:3] == b"ID3" and len(head) == 10:
        start = 10 + (head[6] << 21 | head[7] << 14 | head[8] << 7 | head[9])
    first = source.pread(4096, start)
    return any(tag in first for tag in (b"Xing", b"Info", b"VBRI"))


def _av_frames(container: Any, stream: Any, source: Source, warnings: set[str]) -> Iterator[tuple[int, np.ndarray]]:
    """Decode packet by packet; a broken one is skipped with a warning, as players do."""
    broken = came_out = 0
    with container:
        for packet in _packets(container, stream, source, warnings):
            try:
                frames = packet.decode()
            except (av.FFmpegError, ValueError) as error:
                if isinstance(error, MemoryError):
                    raise _cannot_open(source, "audio", error) from error
                if isinstance(error, av.EOFError):
                    break
                warnings.add("recovered_decode_errors")
                broken += 1
                if broken > MAX_BROKEN_IN_A_ROW:
                    break
                continue
            for frame in frames:
                if frame.is_corrupt:
                    warnings.add("recovered_decode_errors")
                rate, samples = frame.sample_rate, _float_frames(frame)
                check_shape(rate, samples.shape[1], source.name_for_people)
                if len(samples):
                    broken = 0
                    came_out += 1
                    source.audio_came_out()
                    yield rate, samples
    if source.failure is not None:
        raise reading_error(source.failure, source.name_for_people)
    if not came_out and broken:
        raise DecodeFailed(f"{source.name_for_people}: none of its audio could be decoded; export it again")


def _packets(container: Any, stream: Any, source: Source, warnings: set[str]) -> Iterator[Any]:
    """Packets of one stream, the flushing one last; reading goes on behind a broken place."""
    for _ in range(MAX_BROKEN_IN_A_ROW):
        try:
            yield from container.demux(stream)
        except av.EOFError:
            return
        except (av.FFmpegError, OSError, DecodeFailed) as error:
            if source.failure is not None:
                raise reading_error(source.failure, source.name_for_people) from error
            if isinstance(error, MemoryError):
                raise _cannot_open(source, "audio", error) from error
            warnings.add("recovered_decode_errors")
        else:
            return


def _float_frames(frame: Any) -> np.ndarray:
    """One PyAV frame as float32 [n, channels], full scale ±1."""
    values: np.ndarray = frame.to_ndarray()
    channels = len(frame.layout.channels)
    # a planar frame comes as channels by n, a packed one as 1 by n * channels
    values = values.T if frame.format.is_planar else values.reshape(-1, max(channels, 1))
    if values.dtype == np.uint8:
        return (values.astype(np.float32) - np.float32(128)) * np.float32(2.0**-7)
    if values.dtype.kind == "i":
        return values.astype(np.float32) * np.float32(2.0 ** (1 - 8 * values.dtype.itemsize))
    with np.errstate(over="ignore"):  # a double beyond float32 becomes Inf and is caught as such
        return np.ascontiguousarray(values, np.float32)
