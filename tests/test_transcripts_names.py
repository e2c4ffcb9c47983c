"""What a transcript is called, and where it goes."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dropscribe.transcripts.names import NAME_MAX, SUFFIX_ROOM, Target, bases, shorten, target_for


def first(name: bytes, count: int = 4) -> list[bytes]:
    return list(islice(bases(name), count))


def test_the_stem_then_the_name_then_numbers() -> None:
    assert first(b"a.wav") == [b"a", b"a.wav", b"a.wav (2)", b"a.wav (3)"]


def test_a_name_without_suffix_is_tried_once() -> None:
    assert first(b"memo", 2) == [b"memo", b"memo (2)"]
    assert first(b".wav", 2) == [b".wav", b".wav (2)"]


@pytest.mark.parametrize(
    "name", [b"a b .wav", b"new\nline.wav", b"quo\"te'.wav", b"caf\xe9.wav", "🎙️.m4a".encode(), b"a...wav"]
)
def test_odd_names_keep_every_byte(name: bytes) -> None:
    stem = name.rsplit(b".", 1)[0]
    assert first(name, 2) == [stem, name]


@given(
    st.binary(min_size=1, max_size=NAME_MAX).filter(lambda name: b"/" not in name and b"\0" not in name),
    st.integers(40, 255),
)
def test_every_name_fits_with_its_suffix_and_none_comes_twice(name: bytes, name_max: int) -> None:
    found = list(islice(bases(name, name_max=name_max), 12))
    assert len(set(found)) == 12
    assert all(0 < len(base) + SUFFIX_ROOM <= name_max for base in found)


@given(st.text(st.characters(exclude_characters="/\0", exclude_categories=("Cs",)), min_size=1), st.integers(4, 60))
def test_no_character_is_cut_in_two(name: str, limit: int) -> None:
    short = shorten(name.encode(), limit)
    assert name.startswith(short.decode())
    assert len(short) <= limit
    assert len(name.encode()) <= limit or len(short) > limit - 4


@given(st.binary(min_size=1, max_size=80), st.integers(4, 60))
def test_bytes_that_are_not_utf8_are_cut_where_they_fall(name: bytes, limit: int) -> None:
    short = shorten(name, limit)
    assert name.startswith(short)
    assert min(len(name), limit - 3) <= len(short) <= limit


def test_two_long_names_with_one_beginning_are_told_apart_by_number() -> None:
    assert first(b"x" * 251 + b".wav", 2) == [b"x" * 250, b"x" * 246 + b" (2)"]


def test_beside_the_audio() -> None:
    assert target_for(b"/in/first/a.wav", Path("/in"), None) == Target(b"/in/first/a.wav", b"/in/first")


@pytest.mark.parametrize(
    ("source", "folder"),
    [
        (b"/in/a.wav", b"/out"),
        (b"/in/x/y/a.wav", b"/out/x/y"),
        (b"/in/\xff/a.wav", b"/out/\xff"),
        (b"/other/a.wav", b"/out"),
    ],
)
def test_an_output_tree_mirrors_the_watched_one(source: bytes, folder: bytes) -> None:
    assert target_for(source, Path("/in"), Path("/out")) == Target(source, folder, make_folder=True)


def test_the_same_name_in_two_folders_goes_to_two_folders() -> None:
    targets = [
        target_for(os.fsencode(f"/in/{name}/audio.wav"), Path("/in"), Path("/out")) for name in ("first", "second")
    ]
    assert targets[0].folder != targets[1].folder
