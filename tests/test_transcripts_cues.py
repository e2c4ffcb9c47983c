"""Cues: where they are cut, what their times mean, and that whatever comes in makes subtitles that others can read."""

from __future__ import annotations

import html
import io
import re
from typing import Any

import pytest
import srt
import webvtt
from hypothesis import given, settings
from hypothesis import strategies as st

from dropscribe.jobs.records import FINISH_REASONS, SegmentRow
from dropscribe.transcripts import subtitles
from dropscribe.transcripts.cues import CUT_OFF, Cue, audio_ms, cues, text_of
from dropscribe.transcripts.layout import CLAUSE, LINE, SENTENCE, WORD, atoms, clean, fits, joined, lines, width

NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def row(text: str, start: int, end: int, *pauses: tuple[int, int], reason: str = "eos") -> SegmentRow:
    return SegmentRow(start, end, text, "English", 1, reason, pauses)


def spoken(*sentences: tuple[str, int], gap: int = 600, at: int = 300) -> tuple[SegmentRow, list[int]]:
    """A segment of sentences that take so many ms each, with gaps between; and when each begins."""
    begins, pauses = [], [(0, at)]
    for _, length in sentences:
        begins.append(at)
        pauses.append((at + length, at + length + gap))
        at += length + gap
    return row(" ".join(text for text, _ in sentences), 0, at, *pauses), begins


# -- layout ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("abc", 3),
        ("你好", 4),
        ("ｱ", 1),
        ("e\u0301", 1),
        ("👍🏽", 2),
        ("👨‍👩‍👧‍👦", 2),
        ("한국", 4),
        ("שלום", 4),
        ("", 0),
    ],
)
def test_width_is_what_a_terminal_shows(text: str, columns: int) -> None:
    assert width(text) == columns


@pytest.mark.parametrize(
    ("text", "strengths"),
    [
        ("Hello there, Mr. Smith. Yes.", [WORD, CLAUSE, WORD, SENTENCE, SENTENCE]),
        ("It costs 3.50 euros. no", [WORD, WORD, WORD, WORD, WORD]),  # a small letter follows
        ("He said “stop!” Then", [WORD, WORD, SENTENCE, WORD]),
        ("你好。走吧，", [WORD, SENTENCE, WORD, CLAUSE]),
        ("am 3. Mai, z.B. hier", [WORD, WORD, CLAUSE, WORD, WORD]),
    ],
)
def test_punctuation_says_how_good_a_break_is(text: str, strengths: list[int]) -> None:
    assert [atom.strength for atom in atoms(text)] == strengths


def test_wide_text_has_half_as_many_characters_a_line_and_no_line_begins_with_its_punctuation() -> None:
    text = "今天天气很好，我们去公园散步吧，然后一起吃饭，晚上再回家看电影。"
    found = lines(text)
    assert "".join(found) == text
    assert len(found) == 2
    assert all(width(line) <= LINE and line[0] not in "，。" for line in found)


def test_two_lines_are_about_equally_long() -> None:
    first, second = lines("This is a somewhat longer sentence that does not fit on one line.")
    assert abs(width(first) - width(second)) <= 12


any_text = st.text(st.characters(), max_size=300) | st.text(
    "aB .,!?-\u3042漢。、\u0301\u200d👍🇨\u202e\u05d0", max_size=300
)


@given(any_text)
def test_atoms_are_the_text_and_fit_on_a_line(text: str) -> None:
    whole = clean(text)
    parts = atoms(whole)
    assert joined(parts) == whole
    assert all(0 <= width(part.text) <= LINE for part in parts)
    found = lines(whole)
    assert all(width(line) <= LINE for line in found)
    assert "".join(found).replace(" ", "") == whole.replace(" ", "")
    assert fits(whole) == (len(found) <= 2) or len(found) <= 2


# -- times -------------------------------------------------------------------------------------------------------------


def test_sentences_begin_where_the_pauses_before_them_end() -> None:
    segment, begins = spoken(
        ("The meeting is on Monday.", 1800), ("Please bring the report.", 1600), ("Nobody else knows.", 1300)
    )
    found = cues([segment], segment.end_ms / 1000)
    assert [cue.start_ms for cue in found] == begins
    assert all(cue.start_measured and cue.end_measured for cue in found)


def test_a_sentence_without_a_pause_before_it_is_marked_as_estimated() -> None:
    segment = row("The meeting is on Monday. Please bring the report with you.", 0, 4000)
    first, second = cues([segment], 4.0)
    assert (first.start_measured, first.end_measured) == (True, False)
    assert (second.start_measured, second.end_measured) == (False, True)
    assert first.end_ms == second.start_ms
    assert 1200 < second.start_ms < 2200


def test_a_long_pause_in_mid_sentence_ends_a_cue() -> None:
    segment = row("We need to talk about the new plan for this summer", 0, 4200, (2000, 2900))
    first, second = cues([segment], 4.2)
    assert (first.end_ms, second.start_ms) == (2000, 2900)


def test_pauses_that_were_not_kept_leave_times_estimated() -> None:
    segment = SegmentRow(0, 4000, "One thing is sure. Another is not.", "English", 1, "eos")
    assert [cue.start_measured for cue in cues([segment], 4.0)] == [True, False]


def test_many_sentences_find_their_pauses_even_when_the_pace_changes() -> None:
    sentences = [(f"This is sentence number {word}, and it is here.", 1500 + 900 * (at % 3)) for at, word in
                 enumerate(NUMBERS)]  # fmt: skip
    segment, begins = spoken(*sentences, gap=450)
    found = {cue.start_ms for cue in cues([segment], segment.end_ms / 1000) if cue.start_measured}
    assert len(found & set(begins)) >= 11
    assert not found - set(begins)


def test_very_short_sentences_share_a_cue() -> None:
    assert [cue.text for cue in cues([row("Yes. No. Of course.", 0, 1500)], 1.5)] == ["Yes. No. Of course."]


def test_a_segment_that_was_cut_off_says_so_even_without_a_text() -> None:
    found = cues([row("It goes on", 0, 2000, reason="length"), row("", 2000, 5000, reason="loop")], 5.0)
    assert [cue.text for cue in found] == [f"It goes on {CUT_OFF}", CUT_OFF]


def test_more_cues_than_milliseconds_are_put_together() -> None:
    found = cues([row("This one sentence is. " * 40, 0, 7)], 0.007)
    assert 0 < len(found) <= 7
    assert text_of(found) == ("This one sentence is. " * 40).strip()


def test_a_cue_stays_until_it_is_read_but_not_into_the_next_and_not_beyond_the_end() -> None:
    shown = subtitles.on_screen(
        [Cue(0, 300, "Yes.", True, True), Cue(600, 900, "No.", True, True), Cue(9000, 9500, "x" * 40, True, True)], 9800
    )
    assert [(start, end) for start, end, _ in shown] == [(0, 600), (600, 1600), (9000, 9800)]


times = st.integers(0, 40_000)
segments = st.lists(
    st.builds(
        SegmentRow, times, times, any_text, st.none(), st.just(0), st.sampled_from(FINISH_REASONS),
        st.none() | st.lists(st.tuples(times, times), max_size=8).map(tuple),
    ),
    max_size=4,
)  # fmt: skip
durations = st.floats(0, 60) | st.just(float("nan")) | st.just(float("inf"))


@settings(max_examples=60, deadline=None)
@given(segments, durations)
def test_any_text_and_any_times_make_cues_in_order_within_the_audio(rows: list[SegmentRow], seconds: float) -> None:
    found = cues(rows, seconds)
    total = audio_ms(rows, seconds)
    at = 0
    for cue in found:
        assert at <= cue.start_ms < cue.end_ms <= total
        at = cue.end_ms
    said = "".join(clean(one.text) for one in sorted(rows, key=lambda one: one.start_ms))
    assert "".join(cue.text for cue in found).replace(CUT_OFF, "").replace(" ", "") == (
        said.replace(CUT_OFF, "").replace(" ", "")
    )
    if total > 2000:
        assert all(len(lines(cue.text)) <= 2 for cue in found)


@pytest.mark.parametrize(
    "text", ["1<2 and 3>2", "a < b > c", "a <1> b", "a <_x> b", "a <b> c</b>", "{\\an8}a", "x <- y"]
)
def test_a_subrip_player_finds_no_markup_in_what_was_said(text: str) -> None:
    """The tag pattern of ffmpeg's reader, which drops what it matches."""
    written = subtitles.srt_text(text)
    assert not re.search(r"<[^<>]+>|\{\\", written)
    assert width(written) <= width(text)


def test_a_look_alike_makes_no_third_line() -> None:
    text = f"<{'a' * 41} <{'b' * 41}"
    written = subtitles.srt([Cue(0, 5000, text, True, True)], 5000)
    assert written.splitlines()[2:] == [f"‹{'a' * 41}", f"‹{'b' * 41}"]


notices = st.lists(st.sampled_from(["[audio shorter than its file says]", "[parts]"]), max_size=2, unique=True)


@settings(max_examples=60, deadline=None)
@given(segments, durations, notices)
def test_any_text_and_any_times_make_an_srt_that_reads_back_the_same(
    rows: list[SegmentRow], seconds: float, said: list[str]
) -> None:
    total = audio_ms(rows, seconds)
    written = subtitles.srt(cues(rows, seconds), total, said)
    read = list(srt.parse(written))
    assert srt.compose(read, reindex=False, strict=True).strip() == written.strip()
    assert [cue.index for cue in read] == list(range(1, len(read) + 1))
    check_read([(ms(cue.start), ms(cue.end), cue.content) for cue in read], rows, seconds, said, subtitles.srt_text)


@settings(max_examples=60, deadline=None)
@given(segments, durations, notices)
def test_any_text_and_any_times_make_a_vtt_that_reads_back_the_same(
    rows: list[SegmentRow], seconds: float, said: list[str]
) -> None:
    total = audio_ms(rows, seconds)
    written = subtitles.vtt(cues(rows, seconds), total, said, [*said, *(one.text for one in rows)])
    read = webvtt.from_buffer(io.StringIO(written))
    found = [(clock(cue.start), clock(cue.end), html.unescape(cue.raw_text)) for cue in read]
    check_read(found, rows, seconds, said, str)
    for block in written.split("\n\n"):
        timing = [line for line in block.split("\n") if "-->" in line]
        assert len(timing) == (not block.startswith(("WEBVTT", "NOTE")))


def ms(delta: Any) -> int:
    return round(delta.total_seconds() * 1000)


def clock(text: str) -> int:
    hours, minutes, seconds = text.split(":")
    return round((int(hours) * 3600 + int(minutes) * 60 + float(seconds)) * 1000)


def check_read(
    found: list[tuple[int, int, str]], rows: list[SegmentRow], seconds: float, said: list[str], plain: Any
) -> None:
    """What a reader found is what was meant: the cues in order, within the audio, and then the notices."""
    at = 0
    for start, end, _ in found:
        assert at <= start < end <= audio_ms(rows, seconds)
        at = end
    meant = "".join([*(plain(cue.text) for cue in cues(rows, seconds)), *said])
    assert "".join("".join(text.split()) for _, _, text in found) == "".join(meant.split())
