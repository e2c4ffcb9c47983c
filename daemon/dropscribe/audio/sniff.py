"""What a file is, by its first bytes, and what a WAV really holds, whatever its header says.

The suffix is never looked at. The sniff does two things: it picks the containers that libsndfile reads (uncompressed
audio), and it tells a broken container (``DecodeFailed``) from something that never was one (``NotMedia``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

# Uncompressed containers: libsndfile. FLAC, Ogg and MP3 could be read by it too, but on damage or a missing duration it
# stops early where ffmpeg resynchronises (a VBR MP3 without a Xing header: 26 % of it lost without a word).
SNDFILE = frozenset({"wav", "rf64", "w64", "aiff", "au", "caf", "sphere"})
W64_GUID = bytes.fromhex("726966662e91cf11a5d628db04c10000")
ASF_GUID = bytes.fromhex("3026b2758e66cf11a6d900aa0062ce6c")

# (offset, bytes, name), the first match wins
_MAGIC: tuple[tuple[int, bytes, str], ...] = (
    (8, b"AVI ", "avi"), (0, b"RF64", "rf64"), (0, b"BW64", "rf64"), (0, W64_GUID, "w64"), (0, b".snd", "au"),
    (0, b"dns.", "au"), (0, b"caff", "caf"), (0, b"NIST_1A", "sphere"), (0, b"fLaC", "flac"), (0, b"OggS", "ogg"),
    (4, b"ftyp", "mov"), (4, b"moov", "mov"), (4, b"mdat", "mov"), (4, b"wide", "mov"), (4, b"free", "mov"),
    (4, b"skip", "mov"), (0, b"\x1aE\xdf\xa3", "matroska"), (0, ASF_GUID, "asf"), (0, b"FLV\x01", "flv"),
    (0, b"ID3", "mp3"), (0, b"#!AMR", "amr"), (0, b"MAC ", "ape"), (0, b"wvpk", "wavpack"), (0, b"TTA", "tta"),
    (0, b"MPCK", "mpc"), (0, b"MP+", "mpc"), (0, b".RMF", "rm"), (0, b"DSD ", "dsf"), (0, b"FRM8", "dff"),
    (0, b"\0\0\x01\xba", "mpeg"), (0, b"Creative Voice File", "voc"),
)  # fmt: skip


def sniff(head: bytes) -> str | None:
    """The kind of container ``head`` (the first 16 bytes or more) starts, or None."""
    if head[:4] in (b"RIFF", b"RIFX") and head[8:12] == b"WAVE":
        return "wav"
    if head[:4] == b"FORM" and head[8:12] in (b"AIFF", b"AIFC"):
        return "aiff"
    for offset, magic, name in _MAGIC:
        if head[offset : offset + len(magic)] == magic:
            return name
    return None


@dataclass(frozen=True)
class WavData:
    """Where a WAV's samples lie. ``trusted``: the claimed size fits the file; ``placeholder``: it claims nothing."""

    offset: int
    claimed: int
    present: int
    trusted: bool
    placeholder: bool


def wav_data(pread: Callable[[int, int], bytes], size: int) -> WavData | None:
    """Find the ``data`` chunk of a RIFF, RIFX, RF64 or BW64 WAVE of ``size`` bytes and judge its claimed length.

    A recorder that was killed leaves 0, 0xFFFFFFFF or the size of its last update there. The claim is trusted when the
    file ends with the data, or goes on with something that looks like further chunks; a claim beyond the end of the
    file is a truncated file and trusted as a claim. None when there is no data chunk within the first 1,000 chunks.
    """
    form = pread(12, 0)
    order: Literal["big", "little"] = "big" if form[:4] == b"RIFX" else "little"
    offset = 12
    long_size: int | None = None
    for _ in range(1000):
        header = pread(8, offset)
        if len(header) < 8:
            return None
        name, length = header[:4], int.from_bytes(header[4:], order)
        offset += 8
        if name == b"ds64":
            ds64 = pread(16, offset)
            long_size = int.from_bytes(ds64[8:16], "little") if len(ds64) == 16 else None
        if name == b"data":
            claimed = long_size if long_size is not None and length == 0xFFFFFFFF else length
            return _judge(pread, size, offset, claimed)
        offset += length + (length & 1)
    return None


def _judge(pread: Callable[[int, int], bytes], size: int, offset: int, claimed: int) -> WavData:
    present = max(size - offset, 0)
    # ffmpeg and sox write these when they cannot seek back; 0xFFFFFFxx: less the header
    placeholder = claimed >= 0xFFFFFF00 or 0x7FFFF000 <= claimed <= 0x80000000 or claimed == 0
    if placeholder and claimed > present:
        return WavData(offset, claimed, present, trusted=False, placeholder=True)
    end = offset + claimed
    # a last chunk follows at the next even byte, or, with writers that forgot the pad byte, at once
    whole = claimed >= present or (claimed > 0 and present - claimed <= 8)
    if whole or _chunk_at(pread, size, end + (claimed & 1)) or _chunk_at(pread, size, end):
        return WavData(offset, claimed, present, trusted=True, placeholder=False)
    return WavData(offset, claimed, present, trusted=False, placeholder=claimed == 0)


def _chunk_at(pread: Callable[[int, int], bytes], size: int, offset: int) -> bool:
    """Whether a chunk header with a printable name, that fits into the file, stands at ``offset``."""
    header = pread(8, offset)
    if len(header) < 8 or not all(0x20 <= byte < 0x7F for byte in header[:4]):
        return False
    return offset + 8 + min(int.from_bytes(header[4:], "little"), int.from_bytes(header[4:], "big")) <= size
