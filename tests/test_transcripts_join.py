"""Joining segment texts."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dropscribe.transcripts.join import join

latin = st.text(st.characters(codec="ascii", categories=("L", "N", "P")), min_size=1, max_size=12)
chinese = st.text(st.characters(min_codepoint=0x4E00, max_codepoint=0x9FFF), min_size=1, max_size=12)
space = st.text(" \t\n\u3000", max_size=3)


@pytest.mark.parametrize(
    ("texts", "joined"),
    [
        (["Hello there.", "How are you?"], "Hello there. How are you?"),
        ([" one ", "\ttwo\n"], "one two"),
        (["", "one", "   ", "two", ""], "one two"),
        (["今天天气很好。", "我们去公园。"], "今天天气很好。我们去公园。"),
        (["今天天气", "很好"], "今天天气很好"),
        (["カタカナ", "ひらがな"], "カタカナひらがな"),
        (["안녕하세요.", "반갑습니다."], "안녕하세요. 반갑습니다."),
        (["He said", "你好"], "He said 你好"),
        (["他说。", "Hello"], "他说。Hello"),
        (["Hello", "（笑）"], "Hello（笑）"),
        (["他说“好”", "我走了"], "他说“好”我走了"),
        (["She said “yes”", "and left"], "She said “yes” and left"),
        (["か\u3099", "か"], "か\u3099か"),  # a combining mark is part of the letter before it
        (["葛\U000e0100", "城"], "葛\U000e0100城"),  # so is a variation selector
        (["שלום", "עולם"], "שלום עולם"),
        (["👍🏽", "👩‍👩‍👧"], "👍🏽 👩‍👩‍👧"),
        (["\u200d", "\u0301"], "\u200d \u0301"),
        ([], ""),
    ],
)
def test_scripts_decide_about_the_space(texts: list[str], joined: str) -> None:
    assert join(texts) == joined


@given(st.lists(st.text()))
def test_nothing_but_space_is_added_or_lost(texts: list[str]) -> None:
    assert re.sub(r"\s", "", join(texts)) == re.sub(r"\s", "", "".join(texts))


@given(st.lists(st.tuples(space, latin, space)))
def test_latin_texts_are_one_space_apart(texts: list[tuple[str, str, str]]) -> None:
    assert join("".join(parts) for parts in texts) == " ".join(text for _, text, _ in texts)


@given(st.lists(st.tuples(space, chinese, space)))
def test_chinese_texts_touch(texts: list[tuple[str, str, str]]) -> None:
    assert join("".join(parts) for parts in texts) == "".join(text for _, text, _ in texts)


@given(st.lists(st.text(st.characters(exclude_categories=("Z", "C")), max_size=6)), st.integers(0, 20))
def test_joining_in_two_steps_changes_nothing(texts: list[str], at: int) -> None:
    assert join([join(texts[:at]), join(texts[at:])]) == join(texts)


@given(st.lists(st.sampled_from(["", " ", "word", "two words", "字", "。", "字 word", "(x)"])))
def test_no_doubled_no_outer_space(texts: list[str]) -> None:
    joined = join(texts)
    assert "  " not in joined
    assert joined == joined.strip()
