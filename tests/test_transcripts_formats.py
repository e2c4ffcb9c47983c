"""What a transcript says, format by format."""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dropscribe.jobs.records import FINISH_REASONS, SegmentRow
from dropscribe.transcripts.formats import VERSION, Document, render, render_json, render_txt

SCHEMA = Path(__file__).parents[1] / "docs" / "transcript.schema.json"
TYPES = {"object": dict, "array": list, "string": str, "number": (int, float), "integer": int, "null": type(None)}
KEYWORDS = {
    "$schema", "title", "description", "type", "const", "enum", "required", "properties", "additionalProperties",
    "items", "minimum", "minLength", "pattern",
}  # fmt: skip

DOCUMENT = Document(
    source_name="Tom & Jerry – “1”.m4a".encode(),
    text="Hello there. 你好。",
    language="English",
    duration=12.3456,
    segments=(
        SegmentRow(0, 5123, "Hello there.", "English", 4, "eos"),
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


def check(value: Any, schema: dict[str, Any], at: str = "$") -> None:
    """The part of JSON Schema that our schema uses, as plain assertions."""
    assert not set(schema) - KEYWORDS, f"{at}: this test does not know {set(schema) - KEYWORDS}"
    if "type" in schema:
        kinds = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
        assert any(isinstance(value, TYPES[kind]) for kind in kinds), f"{at}: {value!r} is not {kinds}"
        assert not isinstance(value, bool), at
    assert value == schema.get("const", value), at
    assert value in schema.get("enum", [value]), at
    if isinstance(value, str):
        assert len(value) >= schema.get("minLength", 0), at
        assert re.search(schema.get("pattern", ""), value), f"{at}: {value!r}"
    elif isinstance(value, int | float):
        assert value >= schema.get("minimum", -math.inf), at
    elif isinstance(value, list):
        for number, item in enumerate(value):
            check(item, schema["items"], f"{at}[{number}]")
    elif isinstance(value, dict):
        assert not set(schema.get("required", ())) - set(value), at
        for key, item in value.items():
            known = schema.get("properties", {}).get(key, schema.get("additionalProperties"))
            assert known is not None, f"{at}: {key} is not in the schema"
            check(item, known, f"{at}.{key}")


def strict(content: bytes) -> Any:
    """JSON as a strict parser takes it."""

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    value = json.loads(content.decode("utf-8", "strict"), parse_constant=refuse)
    json.dumps(value, ensure_ascii=False).encode("utf-8", "strict")  # no lone surrogate came out of an escape either
    check(value, json.loads(SCHEMA.read_text("utf-8")))
    return value


def test_txt_is_the_text_and_a_newline() -> None:
    assert render_txt(DOCUMENT) == "Hello there. 你好。\n".encode()
    assert render_txt(replace(DOCUMENT, text="  padded \n\n")) == b"padded\n"


def test_an_empty_transcript_is_not_an_empty_file() -> None:
    assert all(rendered.content for rendered in render(replace(DOCUMENT, text="", segments=()), ("txt", "json")))


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
            },
            {"start": 5.123, "end": 9.0, "text": "", "language": None, "tokens": 0, "finish_reason": "silence"},
            {
                "start": 9.0,
                "end": 12.346,
                "text": "你好。",
                "language": "Chinese",
                "tokens": 3,
                "finish_reason": "length",
            },
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
    schema = json.loads(SCHEMA.read_text("utf-8"))
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
        with pytest.raises(AssertionError):
            check(bad, schema)


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
    txt, as_json = render(document, ("txt", "json"))
    assert txt.content.decode("utf-8", "strict").endswith("\n")
    value = strict(as_json.content)
    assert as_json.content.endswith(b"}\n")
    exact = value["source"]["name_hex"]
    assert document.source_name == (value["source"]["name"].encode() if exact is None else bytes.fromhex(exact))
    assert value["text"] == txt.content.decode()[:-1]
