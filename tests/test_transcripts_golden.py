"""Every format of stored segments, byte for byte: a library update must not move them.

`python tests/test_transcripts_golden.py` writes the files anew after a change that was meant; look at the difference.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import av
import pytest
import srt
import webvtt
import yaml

from dropscribe.jobs.records import SegmentRow
from dropscribe.transcripts.formats import FORMATS, Document, render
from dropscribe.transcripts.layout import LINE, width
from test_transcripts_formats import strict

GOLDEN = Path(__file__).parent / "data" / "golden"
CASES = sorted(path.stem for path in GOLDEN.glob("*.segments"))


def document(case: str) -> Document:
    stored = json.loads((GOLDEN / f"{case}.segments").read_text("utf-8"))
    rows = [
        SegmentRow(**{**row, "pauses": None if row["pauses"] is None else tuple(map(tuple, row["pauses"]))})
        for row in stored.pop("segments")
    ]
    return Document(**{**stored, "source_name": stored["source_name"].encode(), "segments": rows})


def shown(case: str) -> list[tuple[int, int, str]]:
    """Start and end in ms and the text of every cue, as a library reads our srt."""
    return [
        (round(cue.start.total_seconds() * 1000), round(cue.end.total_seconds() * 1000), cue.content)
        for cue in srt.parse((GOLDEN / f"{case}.srt").read_text("utf-8"))
    ]


def test_there_are_cases() -> None:
    assert len(CASES) >= 3


@pytest.mark.parametrize("case", CASES)
def test_every_format_is_what_it_was(case: str) -> None:
    for rendered in render(document(case), FORMATS):
        assert rendered.content.decode() == (GOLDEN / f"{case}.{rendered.format}").read_text("utf-8"), rendered.format


@pytest.mark.parametrize("case", CASES)
def test_three_libraries_read_the_same_cues(case: str) -> None:
    cues = shown(case)
    assert cues
    as_vtt = webvtt.from_buffer(io.StringIO((GOLDEN / f"{case}.vtt").read_text("utf-8")))
    assert [(round(cue.start_in_seconds * 1000), round(cue.end_in_seconds * 1000)) for cue in as_vtt] == [
        cue[:2] for cue in cues
    ] or [cue.start for cue in as_vtt] == [f"{_clock(cue[0])}" for cue in cues]
    for suffix in ("srt", "vtt"):
        assert [cue[:2] for cue in read_by_ffmpeg(GOLDEN / f"{case}.{suffix}")] == [cue[:2] for cue in cues]


def _clock(ms: int) -> str:
    return f"{ms // 3600000:02}:{ms // 60000 % 60:02}:{ms // 1000 % 60:02}.{ms % 1000:03}"


def read_by_ffmpeg(path: Path) -> list[tuple[int, int, str]]:
    with av.open(str(path)) as container:
        found = []
        for packet in container.demux(subtitles=0):
            if packet.size and packet.pts is not None:
                (subtitle,) = packet.decode()
                found.append((packet.pts, packet.pts + packet.duration, subtitle.dialogue.decode()))
        return found


@pytest.mark.parametrize("case", CASES)
def test_cues_can_be_read(case: str) -> None:
    cues = shown(case)
    total = document(case).duration * 1000
    for (start, end, text), following in zip(cues, [*cues[1:], (total + 1, 0, "")], strict=True):
        assert 0 <= start < end <= min(following[0], total + 1)
        lines = text.split("\n")
        assert len(lines) <= 2
        assert all(width(line) <= LINE for line in lines)


@pytest.mark.parametrize("case", CASES)
def test_json_and_front_matter_are_read_by_others(case: str) -> None:
    value = strict((GOLDEN / f"{case}.json").read_bytes())
    assert set(value["outputs"]) == set(FORMATS) - {"json"}
    _, matter, body = (GOLDEN / f"{case}.md").read_text("utf-8").split("---\n", 2)
    front: dict[str, Any] = yaml.safe_load(matter)
    assert front["source"] == value["source"]["name"]
    assert front["duration"] == pytest.approx(value["duration"], abs=0.001)
    assert {"date", "language", "model"} <= set(front)
    assert body.strip()


def test_what_is_not_whole_says_so_in_every_format() -> None:
    text = {suffix: (GOLDEN / f"troubled.{suffix}").read_text("utf-8") for suffix in FORMATS}
    assert text["txt"].count("is not whole …]") == 2
    assert text["md"].count("is not whole …") == 2
    assert text["vtt"].count("NOTE\n[… ") == 2
    assert text["srt"].count("[…]") == text["vtt"].count("[…]") == 2
    for suffix in ("txt", "srt", "vtt", "md"):
        assert "audio shorter than its file says" in text[suffix]
    value = json.loads(text["json"])
    assert [one["finish_reason"] for one in value["segments"]].count("eos") == len(value["segments"]) - 3
    assert {"segment_length", "segment_loop", "shorter_than_claimed"} == set(value["warnings"])


def rewrite() -> None:
    for case in CASES:
        for rendered in render(document(case), FORMATS):
            (GOLDEN / f"{case}.{rendered.format}").write_bytes(rendered.content)


if __name__ == "__main__":
    rewrite()
