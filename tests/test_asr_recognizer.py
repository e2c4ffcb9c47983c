"""Segments in, texts out: second tries, languages, books that add up, and trouble that comes out where it is seen."""

from __future__ import annotations

import threading
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
import pytest

from asr_support import RATE, golden_rows, on_cpu, prefilled, quick, random_model, source
from dropscribe.asr import decoders
from dropscribe.asr import prefill as prefill_module
from dropscribe.asr.features import log_mel
from dropscribe.asr.layers import TextDecoder
from dropscribe.asr.prefill import Prefiller, embed, prefill
from dropscribe.asr.prompt import PLAIN, Request
from dropscribe.asr.recognizer import Recognizer, Result, Segment, _Line
from dropscribe.asr.sampling import Options
from dropscribe.asr.timing import BatchTiming, RowTiming

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

on_cpu()
BOOKED = [f.name for f in fields(RowTiming)]
SCHEDULES = ["serial", "bulk-sync", "batched"]


def tokens_of(text: str) -> list[int]:
    return list(quick().tokenizer.encode(text))


def said(text: str) -> list[int]:
    """What the model generates for an English sentence."""
    return [*tokens_of(f"language English<asr_text>{text}"), min(quick().eos)]


@dataclass
class Script:
    """Stands in for the decoder: ``answer(start_ms, seconds, request)`` gives tokens and why they end."""

    answer: Callable[[int, float, Request], tuple[list[int], str]]
    asked: list[tuple[int, float, Request]]

    def __call__(self, _decoder: Any, line: Any, _timing: BatchTiming, **_places: Any) -> Iterator[decoders.Row]:
        while line.peek(wait=True) is not None:
            row = line.next()
            ready = row.key
            self.asked.append((ready.start_ms, row.seconds, ready.request))
            row.tokens, row.finish_reason = self.answer(*self.asked[-1])
            yield row


def scripted(
    monkeypatch: pytest.MonkeyPatch,
    answer: Callable[[int, float, Request], tuple[list[int], str]],
    segments: list[Segment],
) -> tuple[list[Result], Script]:
    script = Script(answer, [])
    monkeypatch.setattr(decoders, "bulk_sync", script)
    return list(Recognizer(quick()).transcribe(segments)), script


def two_sentences() -> np.ndarray:
    """clip003 (3.2 s), 0.6 s of faint noise, clip018 (3.1 s)."""
    noise = 1e-4 * np.random.default_rng(1).standard_normal(int(0.6 * RATE)).astype(np.float32)
    return np.concatenate([source("clip003"), noise, source("clip018")])


LOOP = [*tokens_of("language English<asr_text>The poster"), *[77] * 60]

# --- second tries ---------------------------------------------------------------------------------------------------


def test_a_loop_is_tried_again_in_two_halves_cut_at_the_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(start_ms: int, seconds: float, _request: Request) -> tuple[list[int], str]:
        return (LOOP, "loop") if seconds > 6 else (said(f"from {start_ms}."), "eos")

    segment = Segment("a", two_sentences(), start_ms=5000)
    (result,), script = scripted(monkeypatch, answer, [segment])
    first, second = result.parts
    assert (first.start_ms, first.end_ms, second.end_ms) == (5000, second.start_ms, segment.end_ms)
    assert 7900 < second.start_ms < 8900  # inside the pause, which begins before the clip's end
    assert [p.text for p in result.parts] == ["from 5000.", f"from {second.start_ms}."]
    assert [p.finish_reason for p in result.parts] == ["eos", "eos"]
    assert len(script.asked) == 3


def test_a_loop_whose_second_try_says_nothing_is_not_passed_off_as_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(_start: int, seconds: float, _request: Request) -> tuple[list[int], str]:
        return (LOOP, "loop") if seconds > 6 else ([], "eos")

    (result,), _ = scripted(monkeypatch, answer, [Segment("a", two_sentences())])
    assert [p.text for p in result.parts] == ["", ""]
    assert result.warnings == ("segment_loop",)


def test_second_tries_go_before_everything_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(_start: int, seconds: float, _request: Request) -> tuple[list[int], str]:
        return (LOOP, "loop") if seconds > 6 else (said("Yes."), "eos")

    segments = [Segment("a", two_sentences()), Segment("b", source("clip018"), 50_000)]
    results, script = scripted(monkeypatch, answer, segments)
    assert [start for start, *_ in script.asked] == [0, 0, results[0].parts[1].start_ms, 50_000]
    assert [r.segment.key for r in results] == ["a", "b"]


def test_a_second_loop_is_recorded_and_cut_to_its_first_round(monkeypatch: pytest.MonkeyPatch) -> None:
    (result,), script = scripted(monkeypatch, lambda *_: (LOOP, "loop"), [Segment("a", two_sentences())])
    assert len(script.asked) == 3, "one second try, no third"
    assert [p.finish_reason for p in result.parts] == ["loop", "loop"]
    once = quick().tokenizer.decode([*tokens_of("The poster"), 77]).strip()
    assert [p.text for p in result.parts] == [once, once]
    assert result.parts[0].token_ids == tuple(LOOP), "what was generated stays on record"


def test_a_loop_too_short_to_be_cut_is_not_decoded_again_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    short = Segment("a", source("clip003")[: RATE + 100])
    (result,), script = scripted(monkeypatch, lambda *_: (LOOP, "loop"), [short])
    assert len(script.asked) == 1
    assert result.parts[0].finish_reason == "loop"
    assert result.parts[0].end_ms == short.end_ms


def test_a_silent_half_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(_start: int, seconds: float, _request: Request) -> tuple[list[int], str]:
        return (LOOP, "loop") if seconds > 6 else (said("Yes."), "eos")

    samples = np.concatenate([source("clip003"), np.zeros(5 * RATE, np.float32)])
    (result,), script = scripted(monkeypatch, answer, [Segment("a", samples)])
    ends = [(p.text, p.finish_reason) for p in result.parts]
    assert ends == [("Yes.", "eos"), ("", "silence")]
    assert result.parts[0].end_ms == result.parts[1].start_ms
    assert result.parts[1].end_ms == result.segment.end_ms
    assert len(script.asked) == 2


def test_an_echoed_context_is_tried_again_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    context = "Names: Kate, Janet"

    def answer(_start: int, _seconds: float, request: Request) -> tuple[list[int], str]:
        return said(context if request.context else "I saw Kate."), "eos"

    (result,), script = scripted(monkeypatch, answer, [Segment("a", source("clip003"), request=Request(None, context))])
    assert result.parts[0].text == "I saw Kate."
    assert result.warnings == ("context_echo",)
    assert [request.context for *_, request in script.asked] == [context, None]


def test_an_echo_on_near_silence_ends_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    context = "Kate, Janet"

    def answer(_start: int, _seconds: float, request: Request) -> tuple[list[int], str]:
        return (said(context), "eos") if request.context else ([*tokens_of("language None<asr_text>")], "eos")

    (result,), _ = scripted(monkeypatch, answer, [Segment("a", source("clip003"), request=Request(None, context))])
    assert (result.parts[0].text, result.parts[0].language) == ("", None)


# --- languages and ends ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("generated", "forced", "text", "language"),
    [
        ("language English<asr_text>Hello there.", None, "Hello there.", "English"),
        ("language None<asr_text>", None, "", None),
        ("language None<asr_text>But it said something", None, "", None),
        ("Hello, no head at all", None, "", None),
        ("language English", None, "", None),
        ("", None, "", None),
        ("Hello there.", "English", "Hello there.", "English"),
        ("Hello<asr_text>there.", "English", "Hello there.", "English"),
        ("", "English", "", "English"),
    ],
)
def test_text_and_language_are_read_from_the_tokens(
    monkeypatch: pytest.MonkeyPatch, generated: str, forced: str | None, text: str, language: str | None
) -> None:
    tokens = [*(tokens_of(generated) if generated else []), min(quick().eos)]
    segment = Segment("a", source("clip003"), request=Request(forced))
    (result,), _ = scripted(monkeypatch, lambda *_: (tokens, "eos"), [segment])
    assert (result.parts[0].text, result.parts[0].language) == (text, language)


def test_each_segment_has_its_own_language_and_request() -> None:
    rows = golden_rows("free", "english", "context_english", sources=["clip003"])
    segments = [Segment(row.variant, source(row.source), request=row.request) for row in rows]
    results = {r.segment.key: r.parts[0] for r in Recognizer(quick()).transcribe(segments, slots=3)}
    for row in rows:
        assert results[row.variant].token_ids == row.tokens
        assert (results[row.variant].text, results[row.variant].language) == (row.text, "English")


def test_a_cut_off_is_recorded() -> None:
    model = random_model("fp32")
    (result,) = Recognizer(model).transcribe([Segment("a", source("clip003"), 700, request=Request("English"))])
    (part,) = result.parts
    assert (part.finish_reason, len(part.token_ids)) == ("length", 48 + int(16 * result.segment.seconds))
    assert (part.start_ms, part.end_ms) == (700, result.segment.end_ms)


def test_the_true_duration_is_kept_and_rounded_up() -> None:
    segment = Segment("a", source("clip003")[:161], 20)
    (result,) = Recognizer(random_model("fp32")).transcribe([segment])
    assert (segment.end_ms, result.parts[0].end_ms, segment.seconds) == (31, 31, 161 / RATE)


# --- schedules ------------------------------------------------------------------------------------------------------


def segments_of(count: int = 6) -> list[Segment]:
    names = ["clip003", "clip018", "clip001", "clip017", "clip016", "clip006"]
    return [Segment(at, source(names[at % 6])[: RATE * (1 + at % 3)], at * 10_000) for at in range(count)]


WAYS: tuple[dict[str, Any], ...] = (
    {"slots": 1},
    {"slots": 4},
    {"slots": 6, "kv_budget": 300},
    {"decoder": "batched", "slots": 4},
    {"decoder": "batched", "slots": 8, "may_narrow": True},
)


@pytest.mark.parametrize("how", WAYS)
def test_every_schedule_gives_serials_results_end_to_end(how: dict[str, Any]) -> None:
    told = [
        {r.segment.key: r.parts for r in Recognizer(quick()).transcribe(segments_of(), **way)}
        for way in ({"decoder": "serial"}, how)
    ]
    assert told[1] == told[0]
    assert sorted(told[0]) == list(range(6))


@pytest.mark.parametrize("how", WAYS)
def test_segments_of_one_file_have_one_key_and_may_be_alike_in_everything(how: dict[str, Any]) -> None:
    """The same jingle twice, an object for a key as the daemon has it: every one of them comes back, and no other."""
    file = object()
    segments = [replace(one, key=file, start_ms=0) for one in [*segments_of(), *segments_of()]]
    told = [list(Recognizer(quick()).transcribe(segments, **way)) for way in ({"decoder": "serial"}, how)]
    assert {id(r.segment) for r in told[1]} == {id(one) for one in segments}
    said = [{id(r.segment): r.parts for r in results} for results in told]
    assert said[1] == said[0]


def test_a_row_has_the_same_features_alone_and_beside_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A minute beside half a second: what reaches the prompt is what the encoder makes of the row alone."""
    model = random_model("fp32")
    seen: dict[int, np.ndarray] = {}
    plain = model.encoder.encoder.encode  # type: ignore[attr-defined]

    def recorded(mel: np.ndarray, pulse: Callable[[], None] = lambda: None) -> mx.array:
        made = plain(mel, pulse)
        seen[mel.shape[1]] = np.array(made)
        return made

    minute = np.tile(source("clip003"), 20)[: 60 * RATE]
    rows = [minute, source("clip018")[:8000], source("clip001"), source("clip017")[:9000]]
    monkeypatch.setattr(model.encoder, "encode", recorded)
    results = Recognizer(model).transcribe([Segment(at, s) for at, s in enumerate(rows)], slots=4)
    # results of the short ones are enough; all four were encoded side by side by then
    next(results)
    results.close()
    for samples in rows:
        mel = log_mel(samples)
        assert np.array_equal(seen[mel.shape[1]], np.array(plain(mel))) or mel.shape[1] == 100  # two rows of 1.0 s


def test_other_than_greedy_goes_serial_and_repeats_with_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[str] = []
    serial = decoders.serial
    monkeypatch.setattr(decoders, "serial", lambda *a, **k: used.append("serial") or serial(*a, **k))
    monkeypatch.setattr(decoders, "bulk_sync", lambda *a, **k: used.append("bulk-sync"))

    def drawn(seed: int) -> list[tuple[int, ...]]:
        options = Options(temperature=1.5, top_k=50, seed=seed)
        results = Recognizer(random_model("fp32")).transcribe(segments_of(2), decoder="bulk-sync", options=options)
        return [r.parts[0].token_ids for r in results]

    first = drawn(1)
    assert used == ["serial"]
    assert drawn(1) == first
    assert drawn(2) != first


def test_an_unknown_decoder_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"'fast'.*bulk-sync.*serial"):
        list(Recognizer(quick()).transcribe([], decoder="fast"))


def test_nothing_to_do_gives_nothing() -> None:
    timing = BatchTiming()
    assert list(Recognizer(quick()).transcribe([], timing=timing)) == []
    assert (timing.rows, timing.steps, timing.audio_seconds) == (0, 0, 0)


def test_silent_and_empty_segments_are_settled_without_decoding() -> None:
    timing = BatchTiming()
    segments = [
        Segment("quiet", np.zeros(RATE * 3, np.float32), silent=True),
        Segment("empty", np.zeros(0, np.float32), 40),
    ]
    results = {r.segment.key: r.parts for r in Recognizer(quick()).transcribe(segments, timing=timing)}
    assert {
        key: [(p.start_ms, p.end_ms, p.text, p.finish_reason) for p in parts] for key, parts in results.items()
    } == {
        "quiet": [(0, 3000, "", "silence")],
        "empty": [(40, 40, "", "silence")],
    }
    assert (timing.steps, timing.rows, timing.audio_seconds) == (0, 0, 3.0)


# --- books ----------------------------------------------------------------------------------------------------------


def assert_books_add_up(results: list[Result], timing: BatchTiming) -> None:
    rows = [r.timing for r in results] + [spent for _key, spent in timing.unfinished]
    for name in BOOKED:
        assert sum(getattr(row, name) for row in rows) == pytest.approx(getattr(timing, name), rel=0.01, abs=1e-9), name


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_what_the_rows_cost_adds_up_to_the_batch(schedule: str) -> None:
    timing = BatchTiming()
    results = list(Recognizer(quick()).transcribe(segments_of(), decoder=schedule, slots=3, timing=timing))
    assert_books_add_up(results, timing)
    assert timing.rows == 6
    assert timing.unfinished == []
    assert timing.audio_seconds == pytest.approx(sum(s.seconds for s in segments_of()))
    assert timing.peak_memory_bytes > 0
    assert timing.syncs <= timing.steps


def test_second_tries_are_in_the_books(monkeypatch: pytest.MonkeyPatch) -> None:
    timing = BatchTiming()
    monkeypatch.setattr(decoders, "bulk_sync", Script(lambda *_: (LOOP, "loop"), []))
    results = list(Recognizer(quick()).transcribe([Segment("a", two_sentences())], timing=timing))
    assert_books_add_up(results, timing)
    assert timing.prompt_tokens > 2 * len(quick().prompts.build(0, Request()))


class Stop(Exception):  # noqa: N818 - not an error
    pass


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("beat", [1, 5, 30, 60])
def test_a_pulse_that_raises_ends_the_run_and_the_open_rows_are_booked(schedule: str, beat: int) -> None:
    beats, timing, results = 0, BatchTiming(), []

    def pulse() -> None:
        nonlocal beats
        beats += 1
        if beats == beat:
            raise Stop

    running = Recognizer(random_model("fp32")).transcribe(
        segments_of(), decoder=schedule, slots=3, timing=timing, pulse=pulse
    )
    with pytest.raises(Stop):
        results.extend(running)
    assert_books_add_up(results, timing)
    assert not {key for key, _ in timing.unfinished} & {r.segment.key for r in results}
    if beat > 1:
        assert timing.unfinished


def test_leaving_early_books_what_was_not_finished() -> None:
    timing = BatchTiming()
    running = Recognizer(quick()).transcribe(segments_of(), slots=3, timing=timing)
    first = next(running)
    running.close()
    assert_books_add_up([first], timing)
    assert len(timing.unfinished) == 2


@pytest.mark.parametrize("after", [0, 1, 4])
def test_an_exception_of_the_source_comes_out_and_the_books_add_up(after: int) -> None:
    def broken() -> Iterator[Segment]:
        yield from segments_of(after)
        raise OSError("the disk went away")

    timing, results = BatchTiming(), []
    with pytest.raises(OSError, match="the disk went away"):
        results.extend(Recognizer(quick()).transcribe(broken(), slots=3, timing=timing))
    assert_books_add_up(results, timing)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_samples_that_are_no_numbers_are_rejected(value: float) -> None:
    bad = source("clip003").copy()
    bad[5000] = value
    with pytest.raises(ValueError, match="NaN or Inf"):
        list(Recognizer(quick()).transcribe([Segment("a", bad)]))


def test_an_encoder_that_fails_is_booked(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_mel: np.ndarray, _pulse: Callable[[], None]) -> mx.array:
        raise RuntimeError("out of memory")

    timing = BatchTiming()
    monkeypatch.setattr(quick().encoder, "encode", fails)
    with pytest.raises(RuntimeError, match="out of memory"):
        list(Recognizer(quick()).transcribe(segments_of(1), timing=timing))
    assert [key for key, _ in timing.unfinished] == [0]
    assert_books_add_up([], timing)


# --- reading ahead --------------------------------------------------------------------------------------------------


def test_the_source_is_read_in_another_thread_a_few_segments_ahead_and_left_when_done() -> None:
    threads: set[int] = set()
    ahead: list[int] = []
    finished = 0

    def source_of_segments() -> Iterator[Segment]:
        for at, segment in enumerate(segments_of(14)):
            threads.add(threading.get_ident())
            ahead.append(at - finished)
            yield segment

    for _ in Recognizer(quick()).transcribe(source_of_segments(), slots=2):
        finished += 1
    assert len(threads) == 1
    assert threading.get_ident() not in threads
    assert max(ahead) <= 2 + (2 + 2) + 2  # live, made, and one on its way on either side
    assert not [t for t in threading.enumerate() if t.name == "features"]


def test_leaving_early_leaves_no_thread() -> None:
    def endless() -> Iterator[Segment]:
        while True:
            yield segments_of(1)[0]

    running = Recognizer(quick()).transcribe(endless(), slots=2)
    next(running)
    running.close()
    assert not [t for t in threading.enumerate() if t.name == "features"]


def test_a_row_needs_the_memory_its_place_was_promised() -> None:
    line = _Line(
        quick(), segments_of(2), BatchTiming(), ahead=2, pulse=lambda: None, prefiller=Prefiller(quick().decoder)
    )
    for _ in range(2):
        promised = line.peek(wait=True)
        assert promised == line.next().kv_tokens
    assert line.peek(wait=True) is None
    line.close()


# --- prefill --------------------------------------------------------------------------------------------------------


def test_the_vocabulary_head_sees_the_last_position_only(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: list[tuple[int, ...]] = []
    logits = TextDecoder.logits
    monkeypatch.setattr(TextDecoder, "logits", lambda self, x: shapes.append(x.shape) or logits(self, x))
    prefilled(quick(), source("clip003"))
    assert shapes == [(1, quick().decoder.shape.hidden)]


def test_a_long_prompt_in_passes_says_the_same_as_in_one() -> None:
    model = quick()
    prefix, suffix = model.prompts.parts(Request())
    embeddings = embed(model.decoder, prefix, model.encoder.encode(log_mel(source("clip011"))), suffix)
    whole, state = prefill(model.decoder, embeddings)
    parts, state2 = prefill(model.decoder, embeddings, step=50)
    assert np.allclose(np.array(whole), np.array(parts), atol=1e-3)
    assert np.array(whole).argmax() == np.array(parts).argmax()
    assert (state.length, state.block) == (state2.length, state2.block) == (embeddings.shape[1], 256)
    assert all(np.allclose(np.array(a), np.array(b), atol=1e-3) for a, b in zip(state.keys, state2.keys, strict=True))


def test_a_long_beginning_is_run_once_and_whatever_came_before_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    model, passes = quick(), []
    forward = prefill_module._forward

    def counted(decoder: Any, x: mx.array, blocks: Any, start: int, end: int) -> mx.array:
        passes.append((start, end))
        return forward(decoder, x, blocks, start, end)

    monkeypatch.setattr(prefill_module, "_forward", counted)
    monkeypatch.setattr(prefill_module, "KEPT_PREFIXES", 2)
    audio = model.encoder.encode(log_mel(source("clip003")))
    asked = [Request(context=f"{word} " * 60) for word in ("Zwolle", "Ghent", "Bruges")]
    alone = {}
    for request in [*asked, PLAIN]:
        prefix, suffix = model.prompts.parts(request)
        alone[request] = prefill(model.decoder, embed(model.decoder, prefix, audio, suffix))
        mx.eval(alone[request][0], alone[request][1].keys, alone[request][1].values)
    passes.clear()
    prefiller = Prefiller(model.decoder)
    for request in (asked[0], PLAIN, asked[0], asked[1], asked[0], asked[2], asked[0], asked[1]):
        prefix, suffix = model.prompts.parts(request)
        logits, state = prefiller.run(prefix, audio, suffix)
        mx.eval(logits, state.keys, state.values)
        whole, theirs = alone[request]
        assert np.array_equal(np.array(logits), np.array(whole))
        assert (state.length, state.block) == (theirs.length, theirs.block)
        used = slice(0, state.length)
        for mine, other in zip(state.keys + state.values, theirs.keys + theirs.values, strict=True):
            assert np.array_equal(np.array(mine)[:, :, used], np.array(other)[:, :, used])
    long = [len(model.prompts.parts(request)[0]) for request in asked]
    assert min(long) >= prefill_module.REUSED_FROM > len(model.prompts.parts(PLAIN)[0])
    begun = [end for start, end in passes if start == 0]
    assert begun[0] == long[0]
    assert begun[1] == alone[PLAIN][1].length, "a short beginning is part of its row"
    assert begun[2:] == [long[1], long[2], long[1]], "the one that was used longest ago makes room"
    assert sum(start in long for start, _ in passes) == 7, "every row with a long beginning starts behind it"


def test_files_with_names_to_expect_say_the_same_in_every_schedule_and_order() -> None:
    requests = [Request(context="Zwolle Ghent Bruges Delft " * 12), PLAIN, Request(context="budget office " * 20)]
    segments = [
        Segment(at, source(name), request=requests[at % 3])
        for at, name in enumerate(("clip003", "clip000", "clip011", "clip005", "clip003", "clip001"))
    ]
    said: list[dict[int, tuple[int, ...]]] = []
    for how in ({"decoder": "serial"}, {"slots": 4}, {"decoder": "batched", "slots": 3}):
        for order in (segments, segments[::-1]):
            results = Recognizer(quick()).transcribe(order, **how)
            said.append({result.segment.key: result.parts[0].token_ids for result in results})
    assert all(tokens == said[0] for tokens in said)
    assert all(said[0].values())


def test_audio_embeddings_stand_between_the_words() -> None:
    model = quick()
    audio = mx.ones((5, model.decoder.shape.hidden))
    merged = np.array(embed(model.decoder, np.array([3, 4], np.int32), audio, np.array([7], np.int32)))
    words = np.array(model.decoder.embedding(mx.array([3, 4, 7])))
    assert np.array_equal(merged[0], np.concatenate([words[:2], np.ones((5, words.shape[1]), np.float32), words[2:]]))
