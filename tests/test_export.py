"""``dropscribe export``: any format from the job log alone, and nobody's file overwritten."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sqlite3
from typing import TYPE_CHECKING, Any

import pytest
import srt

from dropscribe.cli import main
from dropscribe.jobs.database import connect_readonly, open_database
from dropscribe.jobs.log import get_job
from dropscribe.jobs.queue import Queue
from dropscribe.jobs.records import SegmentRow
from dropscribe.transcripts.formats import FORMATS, render
from dropscribe.transcripts.rebuild import document_of
from test_transcripts_formats import strict

if TYPE_CHECKING:
    from pathlib import Path

ROWS = [
    SegmentRow(0, 5000, "One is here. Two is there.", "English", 7, "eos", ((0, 200), (2200, 2900))),
    SegmentRow(5000, 9000, "It goes on and", "English", 4, "length", ()),
]


class Home:
    """A job log with one done job, and the command."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.config = base / "dropscribe.toml"
        self.config.write_text(f'database = "{base / "jobs.db"}"\n')
        self.db = open_database(base / "jobs.db")
        self.queue = Queue(self.db)
        self.root = self.queue.ensure_root(base / "in")
        self.job = self.done("talk.m4a", "a")

    def done(self, name: str, letter: str, **finish: Any) -> int:
        path = os.fsencode(self.base / "in" / name)
        job_id = self.queue.enqueue(self.root, path, 1, 1)
        assert job_id is not None
        (job,) = self.queue.claim(f"claim{job_id}", 1)
        batch = self.queue.open_batch(f"claim{job_id}", decoder="bulk-sync", slots=6, model="tiny", device="cpu")
        self.queue.note_media(job, content_hash=letter * 64)
        if "reused_from" not in finish:
            self.queue.save_segments(job, "key", ROWS)
        self.queue.add_timing(job_id, batch, {"generated_tokens": 11, "time": 0.9, "duration": 9.0, "rtf": 0.1})
        self.queue.finish_fields(
            job, text="One is here. Two is there. It goes on and", language="English", model="tiny", revision="r1",
            params_key="key", audio_seconds=8.9995, batch_id=batch, warnings=["segment_length"], **finish,
        )  # fmt: skip
        return job_id

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        """Exit status, stdout, stderr."""
        out, err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), io.StringIO()
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            patch.setattr("sys.argv", ["dropscribe", "export", *arguments, "--config", str(self.config)])
            patch.setattr("dropscribe.cli_export.like_a_filter", lambda: None)
            with pytest.raises(SystemExit) as left:
                main()
        out.flush()
        return int(left.value.code or 0), out.buffer.getvalue().decode(), err.getvalue()  # type: ignore[attr-defined]


@pytest.fixture
def export(tmp_path: Path) -> Home:
    return Home(tmp_path)


@pytest.mark.parametrize("suffix", FORMATS)
def test_every_format_goes_to_stdout(export: Home, suffix: str) -> None:
    code, out, err = export(str(export.job), "--format", suffix)
    assert (code, err) == (0, "")
    conn = connect_readonly(export.base / "jobs.db")
    job = get_job(conn, export.job)
    assert job is not None
    document = document_of(conn, job)
    assert document is not None
    assert out.encode() == render(document, (suffix,))[0].content
    conn.close()


def test_what_was_measured_and_what_was_cut_off_is_in_it(export: Home) -> None:
    cues = list(srt.parse(export(str(export.job), "--format", "srt")[1]))
    assert [round(cue.start.total_seconds(), 3) for cue in cues] == [0.2, 2.9, 5.0]
    assert cues[-1].content == "It goes on and […]"
    value = strict(export(str(export.job), "--format", "json")[1].encode())
    assert value["segments"][0]["pauses"] == [[0.0, 0.2], [2.2, 2.9]]
    assert value["model"] == {"name": "tiny", "revision": "r1"}
    assert (value["decoder"], value["timing"]["rtf"]) == ("bulk-sync", 0.1)
    assert value["warnings"] == ["segment_length"]


def test_the_audio_and_the_earlier_transcript_are_not_needed(export: Home) -> None:
    assert not (export.base / "in").exists()
    assert "One is here." in export(str(export.base / "in" / "talk.m4a"))[1]


def test_a_file_is_written_whole_and_one_that_is_there_is_left_alone(export: Home) -> None:
    target = export.base / "out.srt"
    assert export(str(export.job), "--format", "srt", "-o", str(target))[0] == 0
    first = target.read_text()
    target.write_text("mine")
    code, _, err = export(str(export.job), "--format", "srt", "-o", str(target))
    assert code == 2
    assert "--force" in err
    assert target.read_text() == "mine"
    assert export(str(export.job), "--format", "srt", "-o", str(target), "--force")[0] == 0
    assert target.read_text() == first
    assert not list(export.base.glob(".dropscribe*"))


def test_a_folder_gets_every_format_under_one_free_name(export: Home) -> None:
    folder = export.base / "out"
    folder.mkdir()
    (folder / "talk.vtt").write_text("mine")
    code, out, _ = export(str(export.job), "--format", "srt,vtt", "-o", str(folder))
    assert code == 0
    assert sorted(path.name for path in folder.iterdir()) == ["talk.m4a.srt", "talk.m4a.vtt", "talk.vtt"]
    assert out.splitlines() == [str(folder / "talk.m4a.srt"), str(folder / "talk.m4a.vtt")]


def test_several_transcripts_need_a_folder(export: Home) -> None:
    assert export(str(export.job), "--format", "srt", "--format", "txt")[0] == 2
    assert export(str(export.job), "--format", "doc")[0] == 2


def test_a_folder_that_cannot_be_written_is_said_so(export: Home) -> None:
    code, _, err = export(str(export.job), "-o", str(export.base / "nowhere" / "x.txt"))
    assert code == 1
    assert "cannot write" in err


def test_a_job_without_a_transcript_is_said_so(export: Home) -> None:
    queued = export.queue.enqueue(export.root, b"/in/new.wav", 1, 1)
    code, out, err = export(str(queued))
    assert (code, out) == (1, "")
    assert "has no transcript: it is queued" in err
    assert export("99")[0] == 1


def test_a_job_queued_again_still_has_what_it_said(export: Home) -> None:
    assert export.queue.retry([export.job]) == [export.job]
    code, out, err = export(str(export.job))
    assert (code, out.splitlines()[0]) == (0, "One is here. Two is there. It goes on and")
    assert "is queued; this is the transcript it had before" in err
    (job,) = export.queue.claim("again", 1)
    export.queue.save_segments(job, "other", [SegmentRow(0, 9000, "Something else.", "English", 3, "eos")])
    assert export(str(export.job))[1] == out
    with contextlib.closing(sqlite3.connect(export.base / "jobs.db")) as conn:
        assert json.loads(conn.execute("SELECT warnings FROM jobs").fetchone()[0]) == ["segment_length"]


def test_a_reuse_of_other_segments_is_the_same_text_and_stays_so_when_queued_again(export: Home) -> None:
    twin = export.done("copy.m4a", "a", reused_from=export.job)
    before = export(str(twin), "--format", "srt")[1]
    assert before == export(str(export.job), "--format", "srt")[1]
    export.queue.retry([twin])
    assert export(str(twin), "--format", "srt")[1] == before
