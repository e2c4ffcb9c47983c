from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from dropscribe.settings import Watch
from dropscribe.watch.eligibility import Rules, plan

if TYPE_CHECKING:
    from pathlib import Path


def rules(**kw: Any) -> Rules:
    return Rules(b"/w", **kw)


@pytest.mark.parametrize(
    "name",
    ["a.wav", "A.WAV", "a.b.m4a", "-a.mp3", "a..flac", "a b.m4a", "a\nb.ogg", "🎤.opus", "a.wav.", "x.mKv", "'\".mov"],
)
def test_audio_and_video_containers_are_taken_in_any_case(name: str) -> None:
    assert rules().why_not(b"/w/" + os.fsencode(name)) is None


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("a.wav.part", "temporary"), ("a.mp3.crdownload", "temporary"), ("a.wav.download", "temporary"),
        ("a.tmp", "temporary"), ("a.wav.partial", "temporary"), ("a.wav~", "temporary"), ("._movie.mp4", "temporary"),
        (".dropscribe-ab-1.tmp", "temporary"), (".hidden.wav", "hidden"), ("a.txt", "not_media"),
        ("a.xls", "not_media"),
        ("a.json", "not_media"), ("wav", "not_media"), (".wav", "hidden"),
    ],
)  # fmt: skip
def test_other_names_are_left_with_a_reason(name: str, why: str) -> None:
    assert rules().why_not(b"/w/" + name.encode()) == why


@pytest.mark.parametrize(
    ("path", "why"),
    [
        (b"/w/.git/a.wav", "hidden"), (b"/w/@eaDir/a.wav", "system"), (b"/w/$Recycle.Bin/a.wav", "system"),
        (b"/w/x.wav.download/x.wav", "temporary"), (b"/w/x/__MACOSX/a.wav", "system"), (b"/elsewhere/a.wav", "outside"),
        (b"/ww/a.wav", "outside"),
    ],
)  # fmt: skip
def test_hidden_system_and_download_folders_are_not_entered(path: bytes, why: str) -> None:
    assert rules().why_not(path) == why


def test_names_that_are_not_utf8_are_judged_like_any_other() -> None:
    assert rules(exclude=("*.mp3",)).why_not(b"/w/\xff\xfe.wav") is None
    assert rules(exclude=("*.wav",)).why_not(b"/w/\xff\xfe.wav") == "excluded"


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("*.wav", b"/w/a.wav", True), ("*.wav", b"/w/deep/er/a.wav", True), ("drafts", b"/w/x/drafts/a.wav", True),
        ("drafts/", b"/w/drafts/a.wav", True), ("drafts/*.wav", b"/w/drafts/a.wav", True),
        ("drafts/*.wav", b"/w/x/drafts/a.wav", False), ("x/*/a.wav", b"/w/x/y/z/a.wav", False),
        ("x/**/a.wav", b"/w/x/y/z/a.wav", True), ("x/**/a.wav", b"/w/x/a.wav", True), ("**/b.wav", b"/w/b.wav", True),
        ("[ab]?.wav", b"/w/a1.wav", True), ("[!ab]?.wav", b"/w/a1.wav", False), ("a[.wav", b"/w/a[.wav", True),
        ("caf\u00e9.wav", "/w/cafe\u0301.wav".encode(), True), ("a.b", b"/w/aXb.wav", False),
        ("a\nb*", b"/w/a\nb.wav", True),
    ],
)  # fmt: skip
def test_patterns_match_names_anywhere_and_paths_from_the_root(pattern: str, path: bytes, matches: bool) -> None:
    assert (rules(exclude=(pattern,)).why_not(path) == "excluded") is matches


def test_exclude_wins_over_include_and_include_asks_of_files_alone() -> None:
    both = rules(include=("interview*",), exclude=("*draft*",))
    assert both.why_not(b"/w/sub/interview 1.wav") is None
    assert both.why_not(b"/w/sub/interview draft.wav") == "excluded"
    assert both.why_not(b"/w/sub/music.wav") == "not_included"


def test_without_recursive_only_the_folder_itself_counts() -> None:
    flat = rules(recursive=False)
    assert flat.why_not(b"/w/a.wav") is None
    assert flat.why_not(b"/w/sub/a.wav") == "not_recursive"


def test_a_file_belongs_to_the_most_deeply_nested_folder_alone(tmp_path: Path) -> None:
    outer, inner, link = tmp_path / "o", tmp_path / "o" / "i", tmp_path / "l"
    inner.mkdir(parents=True)
    link.symlink_to(outer)
    planned, twins = plan([Watch(path=outer), Watch(path=inner), Watch(path=link)])
    assert [watch.path for watch, _ in planned] == [outer, inner]
    assert [(twin.path, kept.path) for twin, kept in twins] == [(link, outer)]
    assert planned[0][1].why_not(os.fsencode(inner / "a.wav")) == "other_root"
    assert planned[1][1].why_not(os.fsencode(inner / "a.wav")) is None


def test_a_nested_folder_is_found_behind_a_linked_outer_one(tmp_path: Path) -> None:
    outer, inner, link = tmp_path / "o", tmp_path / "o" / "i", tmp_path / "l"
    inner.mkdir(parents=True)
    link.symlink_to(outer)
    planned, _ = plan([Watch(path=link), Watch(path=inner)])
    assert planned[0][1].why_not(os.fsencode(link / "i" / "a.wav")) == "other_root"
