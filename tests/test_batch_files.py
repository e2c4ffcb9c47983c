"""``--output-dir``: two files an input, nobody else's touched, a second run replaces the first's."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from dropscribe.batch_files import OutputFolder
from dropscribe.errors import OutputUnwritable

if TYPE_CHECKING:
    from pathlib import Path


def record(file: str, text: str = "Hello.") -> dict[str, object]:
    return {"file": file, "text": text, "time": 0.5}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_pair_for_every_input_whatever_they_are_called(tmp_path: Path) -> None:
    folder = OutputFolder(tmp_path / "new" / "out")
    for file in ("/one/a.wav", "/two/a.wav", "/one/a.mp3", "/one/.hidden"):
        folder.write(record(file, file))
    pairs = ["a", "a.wav", "a.mp3", ".hidden"]
    assert names(tmp_path / "new" / "out") == sorted(f"{name}.{kind}" for name in pairs for kind in ("txt", "json"))
    assert (tmp_path / "new" / "out" / "a.wav.txt").read_text() == "/two/a.wav\n"


def test_a_second_run_replaces_what_the_first_wrote(tmp_path: Path) -> None:
    OutputFolder(tmp_path).write(record("/in/a.wav", "first"))
    written = OutputFolder(tmp_path).write(record("/in/a.wav", "second"))
    assert names(tmp_path) == ["a.json", "a.txt"]
    assert written.read_text() == "second\n"
    assert json.loads((tmp_path / "a.json").read_text())["text"] == "second"


@pytest.mark.parametrize("name", ["a.txt", "a.json"])
def test_a_foreign_file_is_never_overwritten(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("my notes")
    assert OutputFolder(tmp_path).write(record("/in/a.wav")).name == "a.wav.txt"
    assert (tmp_path / name).read_text() == "my notes"


def test_a_transcript_its_owner_edited_is_theirs(tmp_path: Path) -> None:
    OutputFolder(tmp_path).write(record("/in/a.wav")).write_text("Hello, corrected.")
    assert OutputFolder(tmp_path).write(record("/in/a.wav")).name == "a.wav.txt"
    assert (tmp_path / "a.txt").read_text() == "Hello, corrected."


def test_the_same_name_from_another_folder_is_another_file(tmp_path: Path) -> None:
    OutputFolder(tmp_path).write(record("/one/a.wav"))
    assert OutputFolder(tmp_path).write(record("/two/a.wav")).name == "a.wav.txt"


def test_a_folder_that_cannot_be_written_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputUnwritable, match="cannot write"):
        OutputFolder(tmp_path / "file" / "out").write(record("/in/a.wav"))
    assert not [name for name in names(tmp_path) if name.startswith(".dropscribe")]
