from __future__ import annotations

import os
import socket
import sys
from typing import TYPE_CHECKING, Any

import pytest

from dropscribe.settings import Watch
from dropscribe.watch import scan
from dropscribe.watch.eligibility import Rules, plan
from dropscribe.watch.health import examine
from dropscribe.watch.scan import Pass, look, walk

if TYPE_CHECKING:
    from pathlib import Path


def names(root: Path, record: Pass | None = None, **kw: Any) -> list[str]:
    found = walk(Rules(os.fsencode(root), **kw), record if record is not None else Pass())
    return sorted(os.fsdecode(file.path)[len(str(root)) + 1 :] for file in found)


def put(path: Path, content: bytes = b"x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_a_walk_yields_eligible_files_with_their_signature(tmp_path: Path) -> None:
    wav = put(tmp_path / "deep" / "a.wav", b"abc")
    put(tmp_path / "a.txt")
    (found,) = walk(Rules(os.fsencode(tmp_path)), Pass())
    status = wav.stat()
    assert found == (os.fsencode(wav), 3, status.st_mtime_ns, status.st_ino, False)
    assert look(os.fsencode(wav)) == found


def test_a_folder_named_like_a_recording_is_a_folder_like_any_other(tmp_path: Path) -> None:
    put(tmp_path / "x.wav" / "inside.wav")
    assert names(tmp_path) == ["x.wav/inside.wav"]


def test_only_regular_files_count_and_nothing_is_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.wav")
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(tmp_path / "s.wav"))
        assert names(tmp_path) == []
    assert look(os.fsencode(tmp_path / "pipe.wav")) is None
    assert look(os.fsencode(tmp_path)) is None


def test_linked_files_count_under_the_links_name_and_dangling_ones_do_not(tmp_path: Path) -> None:
    target = put(tmp_path / "elsewhere" / "real.wav")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "link.wav").symlink_to(target)
    (tmp_path / "in" / "nowhere.wav").symlink_to(tmp_path / "gone.wav")
    assert names(tmp_path / "in") == ["link.wav"]


def test_linked_folders_are_entered_once_and_never_into_or_above_the_root(tmp_path: Path) -> None:
    root = tmp_path / "in"
    put(root / "sub" / "a.wav")
    put(tmp_path / "other" / "b.wav")
    (root / "loop").symlink_to(root)
    (root / "sub" / "up").symlink_to(tmp_path)
    (root / "twin").symlink_to(root / "sub")
    (root / "l1").symlink_to(tmp_path / "other")
    (root / "l2").symlink_to(tmp_path / "other")
    (tmp_path / "other" / "back").symlink_to(root)
    (tmp_path / "other" / "self").symlink_to(tmp_path / "other")
    record = Pass()
    assert names(root, record) == ["l1/b.wav", "sub/a.wav"]
    assert record.complete


def test_a_folder_behind_two_links_is_entered_once_whichever_leads_deeper(tmp_path: Path) -> None:
    put(tmp_path / "other" / "sub" / "a.wav")
    put(tmp_path / "other" / "b.wav")
    for first, second, expected in (("sub", "", ["l1/a.wav", "l2/b.wav"]), ("", "sub", ["l1/b.wav", "l1/sub/a.wav"])):
        root = tmp_path / f"in {first}"
        root.mkdir()
        (root / "l1").symlink_to(tmp_path / "other" / first)
        (root / "l2").symlink_to(tmp_path / "other" / second)
        assert names(root) == expected


def test_a_link_into_another_watched_folder_is_left_to_that_one(tmp_path: Path) -> None:
    put(tmp_path / "one" / "a.wav")
    put(tmp_path / "far" / "two" / "b.wav")
    put(tmp_path / "far" / "c.wav")
    put(tmp_path / "far" / "flat" / "d.wav")
    put(tmp_path / "far" / "flat" / "deep" / "e.wav")
    (tmp_path / "one" / "far").symlink_to(tmp_path / "far")
    (tmp_path / "one" / "two").symlink_to(tmp_path / "far" / "two")
    (tmp_path / "one" / "deep").symlink_to(tmp_path / "far" / "flat" / "deep")
    watches = [{"path": tmp_path / "one"}, {"path": tmp_path / "far" / "two"}]
    watches.append({"path": tmp_path / "far" / "flat", "recursive": False})
    planned, _ = plan([Watch.model_validate(watch) for watch in watches])
    seen = sorted(os.fsdecode(found.path) for _, rules in planned for found in walk(rules, Pass()))
    assert [path.removeprefix(f"{tmp_path}/") for path in seen] == [
        "far/flat/d.wav", "far/two/b.wav", "one/a.wav", "one/deep/e.wav", "one/far/c.wav",
    ]  # fmt: skip


def test_a_link_to_itself_ends(tmp_path: Path) -> None:
    (tmp_path / "a.wav").symlink_to(tmp_path / "a.wav")
    record = Pass()
    assert names(tmp_path, record) == []


@pytest.mark.parametrize("target", ["a.wav", "clip00.flac/x.wav", "z" * 300 + ".wav", "gone.wav"])
@pytest.mark.parametrize("name", ["a.wav", "a", "a.txt"])
def test_a_link_that_leads_nowhere_hides_no_other_file_whatever_the_order(
    tmp_path: Path, name: str, target: str
) -> None:
    for number in range(0, 20, 2):
        put(tmp_path / f"clip{number:02}.flac")
    (tmp_path / name).symlink_to(target if target != "a.wav" else name)
    for number in range(1, 20, 2):
        put(tmp_path / f"clip{number:02}.flac")
    record = Pass()
    assert sorted(names(tmp_path, record)) == [f"clip{number:02}.flac" for number in range(20)]
    assert record.complete
    assert not record.errors


def test_a_linked_root_is_walked_under_its_own_name(tmp_path: Path) -> None:
    put(tmp_path / "real" / "a.wav")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert names(tmp_path / "link") == ["a.wav"]


@pytest.mark.parametrize(
    "name",
    [b"new\nline.wav", b"quote'\".wav", "\N{MICROPHONE}.wav".encode(), b"\xff\xfe.wav", b"-dash.wav",
     b"a" * 251 + b".wav",
     b"caf\xc3\xa9.wav", b"cafe\xcc\x81.wav", b"dot..wav", b" .wav"],
)  # fmt: skip
def test_every_name_the_system_allows_is_found_as_it_is(tmp_path: Path, name: bytes) -> None:
    with open(os.path.join(os.fsencode(tmp_path), name), "wb"):  # noqa: PTH118, PTH123 - bytes
        pass
    (found,) = walk(Rules(os.fsencode(tmp_path)), Pass())
    assert found.path.endswith(b"/" + name)


def test_an_unreadable_folder_makes_the_pass_incomplete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "a.wav")
    put(tmp_path / "locked" / "b.wav")
    real = os.scandir

    def scandir(path: bytes) -> Any:
        if path.endswith(b"locked"):
            raise PermissionError(13, "denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    record = Pass()
    assert names(tmp_path, record) == ["a.wav"]
    assert not record.complete


def test_leftovers_of_publishing_are_reported_and_not_taken(tmp_path: Path) -> None:
    put(tmp_path / "sub" / ".dropscribe-abc-1.tmp")
    put(tmp_path / "sub" / ".dropscribe-abc-2.tmp")
    record = Pass()
    assert names(tmp_path, record) == []
    assert record.leftovers == [os.fsencode(tmp_path / "sub")]


def test_what_is_left_out_is_told_with_its_reason(tmp_path: Path) -> None:
    put(tmp_path / "a.txt")
    put(tmp_path / ".h" / "a.wav")
    told: dict[bytes, str] = {}
    assert list(walk(Rules(os.fsencode(tmp_path)), Pass(), rejected=told.__setitem__)) == []
    assert {os.path.basename(path): why for path, why in told.items()} == {b"a.txt": "not_media", b".h": "hidden"}  # noqa: PTH119


def test_a_walk_stops_when_told_and_says_so(tmp_path: Path) -> None:
    put(tmp_path / "a.wav")
    record = Pass()
    assert list(walk(Rules(os.fsencode(tmp_path)), record, stop=lambda: True)) == []
    assert not record.complete


def test_cloud_placeholders_are_counted_and_cloud_folders_not_entered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "cloud.wav")
    put(tmp_path / "far" / "b.wav")
    here = put(tmp_path / "here.wav")
    far = {(tmp_path / "cloud.wav").stat().st_ino, (tmp_path / "far").stat().st_ino}
    monkeypatch.setattr(scan, "is_placeholder", lambda status: status.st_ino in far)
    monkeypatch.setattr(scan, "_flags_exist", True)
    record = Pass()
    found = {file.path: file.placeholder for file in walk(Rules(os.fsencode(tmp_path)), record)}
    assert found == {os.fsencode(tmp_path / "cloud.wav"): True, os.fsencode(here): False}
    assert record.placeholders == 2
    assert record.is_unread(os.fsencode(tmp_path / "far" / "b.wav"))
    assert record.complete


def test_dataless_is_the_flag_that_macos_sets() -> None:
    class Status:
        st_flags = 0x40000000 | 0x20

    assert scan.is_placeholder(Status())  # type: ignore[arg-type]
    assert not scan.is_placeholder(os.stat("/"))  # noqa: PTH116


def test_health_tells_missing_from_forbidden_from_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = os.fsencode(tmp_path)
    assert examine(root).state == "ok"
    assert examine(root).empty
    assert examine(root + b"/gone").state == "away"
    assert examine(os.fsencode(put(tmp_path / "file"))).state == "unreadable"
    assert not examine(root).empty
    assert examine(root, was_mounted=True) == examine(root).__class__("away", "nothing is mounted there")

    def scandir(path: bytes) -> Any:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "scandir", scandir)
    assert examine(root).state == "unreadable"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is Linux's")
def test_a_mount_point_is_known_as_one() -> None:
    assert examine(b"/proc").mounted
