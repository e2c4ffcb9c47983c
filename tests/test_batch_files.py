"""``--output-dir``: two files an input, nobody else's touched, a second run replaces the first's."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import pytest

from dropscribe.batch_files import OutputFolder
from dropscribe.errors import OutputUnwritable
from dropscribe.transcripts.formats import Rendered

if TYPE_CHECKING:
    from pathlib import Path


def write(folder: Path, *files: str, text: str = "Hello.", content: str | None = None) -> None:
    """One run over ``files``; the content of each is its path unless given."""
    output = OutputFolder(folder)
    for file in files:
        txt = Rendered("txt", f"{text}\n".encode())
        described = {
            "text": text,
            "content_hash": hashlib.sha256((content or file).encode()).hexdigest(),
            "outputs": {"txt": {"sha256": txt.sha256}},
        }
        output.write(file, [txt, Rendered("json", json.dumps(described).encode())])


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_pair_for_every_input_whatever_they_are_called(tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    write(out, "/one/a.wav", "/two/a.wav", "/one/a.mp3", "/one/a.b")
    pairs = ["a", "a.wav", "a.mp3", "a.b"]
    assert names(out) == sorted(f"{name}.{kind}" for name in pairs for kind in ("txt", "json"))


def test_two_inputs_of_one_content_get_a_pair_each(tmp_path: Path) -> None:
    write(tmp_path, "/one/a.wav", "/two/a.wav", content="same")
    assert names(tmp_path) == ["a.json", "a.txt", "a.wav.json", "a.wav.txt"]


def test_a_second_run_replaces_what_the_first_wrote(tmp_path: Path) -> None:
    write(tmp_path, "/in/a.wav", text="first")
    write(tmp_path, "/in/a.wav", text="second")
    assert names(tmp_path) == ["a.json", "a.txt"]
    assert (tmp_path / "a.txt").read_text() == "second\n"
    assert json.loads((tmp_path / "a.json").read_text())["text"] == "second"


@pytest.mark.parametrize("name", ["a.txt", "a.json"])
def test_a_foreign_file_is_never_overwritten(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("my notes")
    write(tmp_path, "/in/a.wav")
    assert names(tmp_path) == sorted({name, "a.wav.json", "a.wav.txt"})
    assert (tmp_path / name).read_text() == "my notes"


def test_a_transcript_its_owner_edited_is_theirs(tmp_path: Path) -> None:
    write(tmp_path, "/in/a.wav")
    (tmp_path / "a.txt").write_text("Hello, corrected.")
    write(tmp_path, "/in/a.wav")
    assert (tmp_path / "a.txt").read_text() == "Hello, corrected."
    assert (tmp_path / "a.wav.txt").exists()


def test_another_file_of_the_same_name_in_a_later_run_is_another_file(tmp_path: Path) -> None:
    write(tmp_path, "/one/a.wav")
    write(tmp_path, "/two/a.wav")
    assert names(tmp_path) == ["a.json", "a.txt", "a.wav.json", "a.wav.txt"]


def test_a_folder_that_cannot_be_written_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputUnwritable, match="cannot write"):
        write(tmp_path / "file" / "out", "/in/a.wav")
    assert names(tmp_path) == ["file"]
