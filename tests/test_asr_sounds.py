"""Sounds that make recognizers run away, long recordings, and memory that stays where it is."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from asr_long import error_rate, rss_bytes
from asr_support import RATE, model_named, on_cpu, quick, random_model, source, texts
from dropscribe.asr.guards import token_budget
from dropscribe.asr.prompt import PLAIN, Request
from dropscribe.asr.recognizer import Recognizer, Result, Segment
from dropscribe.asr.timing import BatchTiming
from dropscribe.audio.cuts import cut

on_cpu()


def tones(seconds: float) -> np.ndarray:
    """Chords with an envelope: music-like."""
    t = np.arange(int(seconds * RATE)) / RATE
    chord = sum(
        np.sin(2 * np.pi * f * t * (1 + (t % 2 > 1) * 0.125)) / (k + 1) for k, f in enumerate((220, 277, 330, 440))
    )
    return (0.1 * chord * (1 - t % 0.5)).astype(np.float32)


def noise(seconds: float, level: float) -> np.ndarray:
    return (level * np.random.default_rng(4).standard_normal(int(seconds * RATE))).astype(np.float32)


NO_SPEECH = {
    "white noise": noise(6, 0.1),
    "loud white noise": noise(2, 0.5),
    "faint noise": noise(3, 1e-3),
    "tones": tones(5),
    "10 ms of a clip": source("clip003")[8000:8160],
    "two samples": np.array([0.3, -0.2], np.float32),
}
SILENCE = {
    "silence": np.zeros(5 * RATE, np.float32),
    "a constant": np.full(3 * RATE, 0.1, np.float32),
    "one sample": np.full(1, 0.3, np.float32),
    "no frames": np.zeros(0, np.float32),
}


def recognized(name: str, samples: np.ndarray, request: Request = PLAIN) -> tuple[list[Result], BatchTiming]:
    """As a file would be: cut first."""
    model, timing = model_named(name), BatchTiming()
    pieces = list(cut([samples], model.max_segment_seconds))
    segments = [Segment(at, p.samples, p.start_ms, p.silent, request) for at, p in enumerate(pieces)]
    return list(Recognizer(model).transcribe(segments or [Segment(0, samples, request=request)], timing=timing)), timing


@pytest.mark.parametrize("sound", NO_SPEECH)
def test_what_holds_no_speech_gives_no_text(sound: str) -> None:
    results, timing = recognized("tiny", NO_SPEECH[sound])
    for result in results:
        for part in result.parts:
            assert (part.text, part.language, part.finish_reason) == ("", None, "eos")
    assert timing.steps <= 8


@pytest.mark.parametrize("name", ["tiny", "fp32", "bf16", "4-bit"])
@pytest.mark.parametrize("sound", SILENCE)
def test_silence_is_settled_before_decoding_by_any_model(name: str, sound: str) -> None:
    (result,), timing = recognized(name, SILENCE[sound])
    assert [(p.text, p.language, p.finish_reason) for p in result.parts] == [("", None, "silence")]
    assert timing.steps == timing.forwards == timing.prompt_tokens == 0


@pytest.mark.parametrize("request_", [PLAIN, Request("English")], ids=["free", "english"])
@pytest.mark.parametrize("sound", NO_SPEECH)
@pytest.mark.parametrize("kind", ["fp32", "bf16", "4-bit"])
def test_a_model_that_never_ends_by_itself_is_ended(kind: str, sound: str, request_: Request) -> None:
    results, timing = recognized(kind, NO_SPEECH[sound], request_)
    allowed = sum(3 * token_budget(result.segment.seconds) for result in results)  # a loop is tried again in two halves
    assert timing.steps <= allowed
    for result in results:
        for part in result.parts:
            assert part.finish_reason in ("length", "loop", "eos")
            budget = token_budget((part.end_ms - part.start_ms) / 1000)
            assert len(part.token_ids) <= budget
            assert part.finish_reason != "length" or len(part.token_ids) >= budget - 1  # times are rounded up


PHRASE, LOOPED = "clip018", 50  # 3.06 s, two and a half minutes of it


@pytest.mark.slow
def test_a_clip_looped_fifty_times_is_written_down_fifty_times() -> None:
    """Real repetition is not taken for a loop; a tiny model may miscount the rounds of a piece by one."""
    results, timing = recognized("tiny", np.tile(source(PHRASE), LOOPED))
    parts = sorted((part for result in results for part in result.parts), key=lambda part: part.start_ms)
    assert {part.finish_reason for part in parts} == {"eos"}
    said = error_rate(" ".join([texts()[PHRASE]] * LOOPED), " ".join(part.text for part in parts))
    assert said < 0.2
    assert timing.generated_tokens <= token_budget(3.06 * LOOPED)


@pytest.mark.slow
def test_a_looped_clip_ends_within_its_budget_on_random_weights() -> None:
    (result,), timing = recognized("fp32", np.tile(source(PHRASE)[:RATE], LOOPED))
    assert {part.finish_reason for part in result.parts} <= {"length", "loop"}
    assert timing.steps <= 2 * token_budget(1.0 * LOOPED) + 200


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["serial", "bulk-sync", "batched"])
def test_a_model_stuck_on_one_token_is_stopped_twice_and_called_a_loop(
    schedule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights that always say the same: the guards alone must end it, long before the budget of 30 s is spent."""
    from dropscribe.asr import decoders

    take = decoders.Row.take
    monkeypatch.setattr(decoders.Row, "take", lambda self, _token: take(self, 77))
    samples = np.tile(source("clip003"), 8)[: 24 * RATE]
    segment = Segment("a", samples, request=Request("English"))
    timing = BatchTiming()
    (result,) = Recognizer(quick()).transcribe([segment], decoder=schedule, timing=timing)
    assert [part.finish_reason for part in result.parts] == ["loop", "loop"]
    assert all(part.text == quick().tokenizer.decode([77]).strip() for part in result.parts)
    assert timing.steps < 0.4 * token_budget(24.0)


# --- memory ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_memory_stays_flat_over_rows_of_many_lengths() -> None:
    """60 different lengths in ten batches; ``tools/check_decoders.py --files 500`` does more."""
    model, rng = random_model("fp32"), np.random.default_rng(6)
    model.encoder.kept.clear()  # type: ignore[attr-defined]
    lengths = rng.permutation(np.linspace(0.2, 4.0, 60) * RATE).astype(int)
    audio = np.concatenate([source("clip001"), source("clip018")])
    active: list[int] = []
    resident: list[int] = []
    for at in range(0, 60, 6):
        segments = [Segment(n, audio[: int(n)]) for n in lengths[at : at + 6]]
        assert len(list(Recognizer(model).transcribe(segments, slots=6))) == 6
        model.encoder.kept.clear()  # type: ignore[attr-defined]
        active.append(mx.get_active_memory())
        resident.append(rss_bytes())
        assert mx.get_cache_memory() < 1e6
    assert max(active) - active[0] < 1e6, "arrays were left behind"
    assert max(resident[3:]) - resident[2] < 60e6
