"""What a transcript says, format by format."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dropscribe.jobs.records import FINISH_REASONS, SegmentRow
from dropscribe.transcripts.formats import FORMATS, VERSION, Document, render, render_json, render_txt

SCHEMA = Path(__file__).parents[1] / "docs" / "transcript.schema.json"

DOCUMENT = Document(
    source_name="Tom & Jerry – “1”.m4a".encode(),
    text="Hello there. 你好。",
    language="English",
    duration=12.3456,
    segments=(
        SegmentRow(0, 5123, "Hello there.", "English", 4, "eos", ((0, 300), (4500, 5123))),
        SegmentRow(5123, 9000, "", None, 0, "silence"),
        SegmentRow(9000, 12346, "你好。", "Chinese", 3, "length"),
    ),
    model="mlx-community/Qwen3-ASR-0.6B-4bit",
    revision="abc",
    decoder="bulk-sync",
    content_hash="0" * 64,
    params_key="p",
    created_at="2025-01-02T03:04:05.678Z",
    timing={"decode_s": 0.5, "prompt_tokens": 120, "rtf": None},
    warnings=("cut_off",),
)
WHOLE = replace(DOCUMENT, segments=[replace(segment, finish_reason="eos") for segment in DOCUMENT.segments])


def closed(schema: Any) -> Any:
    """The schema with every object closed: what it does not describe we must not write."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: closed(value) for key, value in schema.items()}
    return {"additionalProperties": False, **inner} if "properties" in inner and "type" in inner else inner


VALIDATOR = jsonschema.Draft202012Validator(closed(json.loads(SCHEMA.read_text("utf-8"))))


def strict(content: bytes) -> Any:
    """JSON as a strict parser takes it."""

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    value = json.loads(content.decode("utf-8", "strict"), parse_constant=refuse)
    json.dumps(value, ensure_ascii=False).encode("utf-8", "strict")  # no lone surrogate came out of an escape either
    VALIDATOR.validate(value)
    return value


def test_txt_is_the_text_and_a_newline() -> None:
    assert render_txt(WHOLE) == "Hello there. 你好。\n".encode()
    assert render_txt(replace(WHOLE, text="  padded \n\n")) == b"padded\n"


def test_an_empty_transcript_is_not_an_empty_file() -> None:
    assert all(rendered.content for rendered in render(replace(DOCUMENT, text="", segments=()), FORMATS))


def test_json_says_everything() -> None:
    value = strict(render_json(DOCUMENT, {"txt": "f" * 64}))
    assert value == {
        "version": VERSION,
        "source": {"name": "Tom & Jerry – “1”.m4a", "name_hex": None},
        "text": "Hello there. 你好。",
        "language": "English",
        "duration": 12.3456,
        "segments": [
            {
                "start": 0.0,
                "end": 5.123,
                "text": "Hello there.",
                "language": "English",
                "tokens": 4,
                "finish_reason": "eos",
                "pauses": [[0.0, 0.3], [4.5, 5.123]],
            },
            {
                "start": 5.123,
                "end": 9.0,
                "text": "",
                "language": None,
                "tokens": 0,
                "finish_reason": "silence",
                "pauses": None,
            },
            {
                "start": 9.0,
                "end": 12.346,
                "text": "你好。",
                "language": "Chinese",
                "tokens": 3,
                "finish_reason": "length",
                "pauses": None,
            },
        ],
        "cues": [
            {"start": 0.3, "end": 4.5, "text": "Hello there.", "estimated": {"start": False, "end": False}},
            {"start": 9.0, "end": 12.346, "text": "你好。 […]", "estimated": {"start": False, "end": False}},
        ],
        "model": {"name": "mlx-community/Qwen3-ASR-0.6B-4bit", "revision": "abc"},
        "decoder": "bulk-sync",
        "timing": {"decode_s": 0.5, "prompt_tokens": 120, "rtf": None},
        "content_hash": "0" * 64,
        "params_key": "p",
        "warnings": ["cut_off"],
        "created_at": "2025-01-02T03:04:05.678Z",
        "outputs": {"txt": {"sha256": "f" * 64}},
    }


@pytest.mark.parametrize("formats", [("txt", "json"), ("json", "txt")])
def test_json_knows_the_hash_of_what_is_published_with_it(formats: tuple[str, ...]) -> None:
    rendered = render(DOCUMENT, formats)
    assert tuple(one.format for one in rendered) == formats
    by_format = {one.format: one.content for one in rendered}
    assert strict(by_format["json"])["outputs"] == {"txt": {"sha256": hashlib.sha256(by_format["txt"]).hexdigest()}}
    assert all(one.sha256 == hashlib.sha256(one.content).hexdigest() for one in rendered)


def test_json_alone_names_no_other_file() -> None:
    (only,) = render(DOCUMENT, ("json",))
    assert strict(only.content)["outputs"] == {}


def test_a_name_that_is_not_utf8_is_readable_and_exact() -> None:
    source = strict(render_json(replace(DOCUMENT, source_name=b"caf\xe9\n.wav")))["source"]
    assert source == {"name": "caf\\xe9\n.wav", "name_hex": b"caf\xe9\n.wav".hex()}


def test_figures_that_json_has_no_word_for_become_null() -> None:
    timing = strict(render_json(replace(DOCUMENT, timing={"rtf": math.nan, "time": math.inf})))["timing"]
    assert timing == {"rtf": None, "time": None}


def test_the_schema_check_refuses_what_the_schema_does_not_know() -> None:
    good = json.loads(render_json(DOCUMENT))
    for bad in (
        {**good, "version": 2},
        {**good, "extra": 1},
        {**good, "text": None},
        {**good, "duration": -1},
        {**good, "content_hash": "xyz"},
        {**good, "segments": [{**good["segments"][0], "finish_reason": "tired"}]},
        {key: item for key, item in good.items() if key != "warnings"},
    ):
        assert not VALIDATOR.is_valid(bad)


def test_the_schema_has_the_finish_reasons_of_the_job_log() -> None:
    segment = json.loads(SCHEMA.read_text("utf-8"))["properties"]["segments"]["items"]
    assert tuple(segment["properties"]["finish_reason"]["enum"]) == FINISH_REASONS


any_text = st.text(st.characters())  # lone surrogates too


@given(
    st.builds(
        Document,
        source_name=st.binary(min_size=1, max_size=40),
        text=any_text,
        language=st.none() | any_text,
        duration=st.floats(0, 1e6),
        segments=st.lists(
            st.builds(
                SegmentRow,
                st.integers(0, 10**8),
                st.integers(0, 10**8),
                any_text,
                st.none() | any_text,
                st.integers(0, 10**5),
                st.sampled_from(FINISH_REASONS),
                st.none() | st.lists(st.tuples(st.integers(0, 10**8), st.integers(0, 10**8)), max_size=4).map(tuple),
            ),
            max_size=3,
        ),
        model=any_text,
        revision=st.none() | any_text,
        decoder=st.none() | any_text,
        content_hash=st.just("0" * 64),
        params_key=st.just("p"),
        created_at=st.just("2025-01-02T03:04:05.678Z"),
        timing=st.dictionaries(any_text, st.none() | st.integers() | st.floats(), max_size=3),
        warnings=st.lists(any_text, max_size=3),
    )
)
def test_whatever_comes_out_of_a_model_makes_valid_files(document: Document) -> None:
    txt, as_json, *others = render(document, ("txt", "json", "srt", "vtt", "md"))
    for one in (txt, *others):
        assert one.content.decode("utf-8", "strict").endswith("\n")
    value = strict(as_json.content)
    assert as_json.content.endswith(b"}\n")
    exact = value["source"]["name_hex"]
    assert document.source_name == (value["source"]["name"].encode() if exact is None else bytes.fromhex(exact))
    if all(segment.finish_reason in ("eos", "silence") for segment in document.segments):
        assert value["text"] == txt.content.decode()[:-1]
