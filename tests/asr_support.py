"""What the recognizer's tests share: models, golden rows, rows prefilled once, and random batches over them.

Everything here is made once a process and never changed. ``tools/check_decoders.py`` runs the same batches by the
thousand.
"""

from __future__ import annotations

import atexit
import functools
import json
import shutil
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
import soundfile
from hypothesis import strategies as st

from dropscribe.asr import decoders
from dropscribe.asr.batched import batched
from dropscribe.asr.features import log_mel
from dropscribe.asr.model import Model, load
from dropscribe.asr.prefill import embed, prefill
from dropscribe.asr.prompt import PLAIN, Request
from dropscribe.asr.recognizer import Recognizer, Result, Segment
from dropscribe.asr.step import SlotState, logits_step, most_likely
from dropscribe.asr.timing import BatchTiming
from dropscribe.resources import demo_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

TESTS = Path(__file__).parent
DATA = TESTS / "data"
RATE = 16_000
RANDOM_MODELS = {  # name: arguments of tools/make_random_model.build
    "fp32": {"dtype": "float32"},
    "bf16": {"dtype": "bfloat16"},
    "4-bit": {"dtype": "float32", "bits": 4},
    "4-bit bf16": {"dtype": "bfloat16", "bits": 4},
}
SHORT_CLIPS = ("clip001", "clip002", "clip003", "clip006", "clip010", "clip016", "clip017", "clip018")

if str(TESTS.parent / "tools") not in sys.path:
    sys.path.append(str(TESTS.parent / "tools"))


def on_cpu() -> None:
    """Run what follows on the CPU: golden data and equal bits are statements about one kind of device."""
    mx.set_default_device(mx.cpu)


# --- models ---------------------------------------------------------------------------------------------------------


@functools.cache
def tiny_path() -> Path:
    """The bundled trained model as a directory."""
    kept = ExitStack()
    atexit.register(kept.close)
    return kept.enter_context(demo_model())


@functools.cache
def tiny() -> Model:
    """The bundled trained model."""
    return load(str(tiny_path()))


@functools.cache
def quick() -> Model:
    """The trained model with an encoder that never encodes the same features twice."""
    return replace(tiny(), encoder=Remembering(tiny().encoder))  # type: ignore[arg-type]


@functools.cache
def random_path(kind: str) -> Path:
    """A model directory with random weights, of the kind named in ``RANDOM_MODELS``."""
    from make_random_model import build

    folder = Path(tempfile.mkdtemp(prefix="dropscribe-random-model-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return build(folder / "model", seed=5, **RANDOM_MODELS[kind])


@functools.cache
def random_model(kind: str) -> Model:
    """Random weights in their own dtype: rows hardly ever end by themselves and near-ties are everywhere."""
    model = load(str(random_path(kind)), dtype="stored")
    return replace(model, encoder=Remembering(model.encoder))  # type: ignore[arg-type]


def model_named(name: str) -> Model:
    """``tiny`` or a kind of random model."""
    return quick() if name == "tiny" else random_model(name)


class Remembering:
    """An encoder that keeps what it made."""

    def __init__(self, encoder: Any) -> None:
        self.encoder = encoder
        self.kept: dict[bytes, mx.array] = {}

    def encode(self, mel: np.ndarray, pulse: Callable[[], None] = lambda: None) -> mx.array:
        key = mel.tobytes()
        if key not in self.kept:
            self.kept[key] = self.encoder.encode(mel, pulse)
        return self.kept[key]


# --- audio and golden rows ------------------------------------------------------------------------------------------


@functools.cache
def source(name: str) -> np.ndarray:
    """A row of the golden data by its name: float32 [n] at 16 kHz."""
    if name == "short":
        return source("clip003")[: RATE // 2]
    if name == "joined":
        return np.concatenate([source("clip000"), source("clip011")])
    if name == "silence":
        return np.zeros(2 * RATE, np.float32)
    samples, rate = soundfile.read(DATA / "heldout" / f"{name}.flac", dtype="float32")
    assert rate == RATE
    return samples  # type: ignore[no-any-return]


@functools.cache
def texts() -> dict[str, str]:
    """What is said in the held-out clips."""
    lines = (DATA / "heldout" / "transcripts.tsv").read_text("utf-8").splitlines()[1:]
    return {name.removesuffix(".flac"): text for name, _voice, _seconds, text in (line.split("\t") for line in lines)}


@dataclass(frozen=True)
class Golden:
    """One row of ``tests/data/oracle/tokens.json``."""

    source: str
    variant: str
    request: Request
    audio_tokens: int
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    text: str


@functools.cache
def golden() -> tuple[Golden, ...]:
    """All golden rows whose prompt we can build (Qwen's own chat template has no line break behind the context)."""
    rows = json.loads((DATA / "oracle" / "tokens.json").read_text("utf-8"))["rows"]
    return tuple(
        Golden(
            row["source"].removesuffix(".flac"),
            row["variant"],
            Request(row["language"], row["context"] or None),
            row["audio_tokens"],
            tuple(row["prompt"]),
            tuple(row["tokens"]),
            row["text"],
        )
        for row in rows
        if row["variant"] != "context_no_newline"
    )


def golden_rows(*variants: str, sources: Sequence[str] | None = None) -> list[Golden]:
    """Golden rows of these variants (none: all) and sources."""
    return [
        row
        for row in golden()
        if (not variants or row.variant in variants) and (sources is None or row.source in sources)
    ]


# --- rows that were prefilled once ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prefilled:
    """A row as it stands before its first step, and what it says when it is alone."""

    seconds: float
    token: mx.array
    state: SlotState
    reference: tuple[int, ...]  # from the oracle, or from serial
    ends: bool  # whether the reference ended by itself
    looped: bool = False

    def row(self, key: Any, eos: frozenset[int], budget: int | None = None) -> decoders.Row:
        """A fresh copy; arrays are shared, which is safe because MLX never writes into one that is still held."""
        state = SlotState(self.state.offsets, list(self.state.keys), list(self.state.values), self.state.length)
        row = decoders.Row(key, self.seconds, self.token, state, eos)
        if budget is not None:
            row.budget = budget
        return row


def prefilled(model: Model, samples: np.ndarray, request: Request = PLAIN) -> tuple[mx.array, SlotState]:
    """First token and state of a row."""
    prefix, suffix = model.prompts.parts(request)
    audio = model.encoder.encode(log_mel(samples, model.mel_bins))
    logits, state = prefill(model.decoder, embed(model.decoder, prefix, audio, suffix))
    token = most_likely(logits)
    mx.eval(token, state.keys, state.values)
    return token, state


@functools.cache
def golden_prefilled(row: Golden) -> Prefilled:
    """A golden row, ready to be decoded; its reference is the oracle's."""
    token, state = prefilled(quick(), source(row.source), row.request)
    return Prefilled(len(source(row.source)) / RATE, token, state, row.tokens, ends=True)


@functools.cache
def random_prefilled(kind: str, name: str, seconds: float, length: int) -> Prefilled:
    """The beginning of a clip on random weights; its reference is what serial makes of it, ``length`` tokens."""
    model = random_model(kind)
    samples = source(name)[: int(seconds * RATE)]
    token, state = prefilled(model, samples)
    start = Prefilled(len(samples) / RATE, token, state, (), ends=False)
    (row,) = decoders.serial(model.decoder, FakeLine([start.row(0, frozenset(), length)]), BatchTiming())
    return replace(start, reference=tuple(row.tokens), looped=row.finish_reason == "loop")


@functools.cache
def pool(name: str) -> tuple[Prefilled, ...]:
    """Rows to make batches of: short ones, ragged, prompts of 30 to 120 tokens that end on both sides of a block."""
    if name == "tiny":
        rows = golden_rows("free", "context_english", sources=SHORT_CLIPS) + golden_rows("free", sources=["short"])
        return tuple(golden_prefilled(row) for row in rows)
    cuts = zip(SHORT_CLIPS, (0.3, 1.0, 1.7, 2.2, 2.8, 3.1, 3.6, 2.5), strict=True)
    return tuple(random_prefilled(name, clip, seconds, 40) for clip, seconds in cuts)


@dataclass
class FakeLine:
    """A waiting line of rows that are ready, though it may say for a while that the next one is not."""

    rows: list[decoders.Row]
    late: Sequence[int] = ()  # for each row: how many times it is "not there yet" when asked without waiting
    taken: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._rows = list(self.rows)
        self._late = list(self.late) + [0] * (len(self.rows) - len(self.late))

    def peek(self, *, wait: bool) -> int | None:
        if not self._rows:
            return None
        if self._late[0] and not wait:
            self._late[0] -= 1
            return None
        return self._rows[0].kv_tokens

    def next(self) -> decoders.Row:
        self._late.pop(0)
        row = self._rows.pop(0)
        self.taken.append(row.key)
        return row


def transcribed(model: Model, rows: Sequence[np.ndarray], **how: Any) -> list[Result]:
    """Whole rows through the recognizer, each by itself; keys are their places."""
    return list(Recognizer(model).transcribe([Segment(at, samples) for at, samples in enumerate(rows)], **how))


# --- random batches -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """One row of a batch and where it is made to end."""

    member: int  # index into the pool
    end_after: int | None  # tokens after which one of them counts as an end token; None: as it comes
    budget: int
    late: int  # steps its features come late


@dataclass(frozen=True)
class Plan:
    """A whole batch."""

    places: tuple[Place, ...]
    slots: int
    kv_budget: int

    def __repr__(self) -> str:
        rows = ", ".join(f"{p.member}:{p.end_after}/{p.budget}+{p.late}" for p in self.places)
        return f"Plan({rows}; slots={self.slots}, kv_budget={self.kv_budget})"


def plans(members: int) -> st.SearchStrategy[Plan]:
    """Ragged mixes of 2 to 8 rows: members, order, neighbours, ends, places and memory all vary."""
    place = st.builds(
        Place,
        member=st.integers(0, members - 1),
        end_after=st.one_of(st.none(), st.integers(1, 30)),
        budget=st.one_of(st.just(10_000), st.integers(1, 36)),
        late=st.integers(0, 4),
    )
    return st.builds(
        Plan,
        places=st.lists(place, min_size=2, max_size=8).map(tuple),
        slots=st.integers(1, 8),
        kv_budget=st.one_of(st.just(32_768), st.integers(1, 600)),
    )


def run_plan(name: str, plan: Plan, schedule: str = "bulk-sync", **how: Any) -> BatchTiming:
    """Decode a batch and compare every row with what it says alone. Raises ``AssertionError``."""
    model, members = model_named(name), pool(name)
    rows, expected = [], []
    for key, place in enumerate(plan.places):
        member = members[place.member]
        eos = set(model.eos) if member.ends else set()
        if place.end_after is not None:
            eos.add(member.reference[min(place.end_after, len(member.reference)) - 1])
        budget = place.budget if member.ends else min(place.budget, len(member.reference))
        rows.append(member.row(key, frozenset(eos), budget))
        expected.append(ending(member, frozenset(eos), budget))
    line, timing = FakeLine(rows, [p.late for p in plan.places]), BatchTiming()
    run = decoders.bulk_sync if schedule == "bulk-sync" else batched
    ended = list(run(model.decoder, line, timing, slots=plan.slots, kv_budget=plan.kv_budget, **how))
    assert sorted(row.key for row in ended) == list(range(len(rows))), "a row was lost or came twice"
    assert line.taken == list(range(len(rows))), "places are given in the order of the line"
    for row in ended:
        assert (tuple(row.tokens), row.finish_reason) == expected[row.key], f"row {row.key} of {plan!r}"
    tokens = sum(len(row.tokens) for row in ended)
    assert timing.generated_tokens == tokens == sum(row.timing.generated_tokens for row in ended)
    assert timing.syncs == timing.steps
    if schedule == "bulk-sync":
        assert timing.forwards == tokens, "every token but a row's first costs a forward, and its last one is wasted"
    assert timing.wasted_forwards == len(rows)
    return timing


def ending(member: Prefilled, eos: frozenset[int], budget: int) -> tuple[tuple[int, ...], str]:
    """The part of a reference a row must give, and why it ends there."""
    for at, token in enumerate(member.reference, 1):
        if token in eos:
            return member.reference[:at], "eos"
        if at >= budget:
            return member.reference[:at], "length"
    assert member.looped
    return member.reference, "loop"


def lines_of(rows: Sequence[decoders.Row]) -> Iterator[tuple[Any, tuple[int, ...]]]:
    """Key and tokens of rows, for a dictionary."""
    return ((row.key, tuple(row.tokens)) for row in rows)


# --- a row's logits among random neighbours ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Company:
    """What sits beside a row in one step: ``others`` are (seed of what a slot holds, position)."""

    own: int  # the row's slot
    others: tuple[tuple[int, int], ...]
    block: int

    @property
    def slots(self) -> int:
        return len(self.others) + 1


def companies(most_slots: int = 16) -> st.SearchStrategy[Company]:
    """2 to ``most_slots`` slots; any of them holds the row, the others anything at any position of the block."""

    def of(block: int) -> st.SearchStrategy[Company]:
        other = st.tuples(st.integers(0, 2**32 - 1), st.integers(0, block - 1))
        others = st.lists(other, min_size=1, max_size=most_slots - 1).map(tuple)
        return others.flatmap(lambda o: st.builds(Company, st.integers(0, len(o)), st.just(o), st.just(block)))

    return st.sampled_from((64, 128, 256)).flatmap(of)


def check_company(name: str, company: Company) -> None:
    """The row's logits are those it has alone, bit for bit. Raises ``AssertionError``."""
    model = model_named(name)
    rows = list(company.others)
    rows.insert(company.own, OWN_ROW)
    logits = _step_logits(model, rows, company.block)[company.own]
    assert np.array_equal(logits, _own_logits(name, company.block)), company


OWN_ROW = (1, 50)  # its seed and position


@functools.cache
def _own_logits(name: str, block: int) -> np.ndarray:
    return _step_logits(model_named(name), [OWN_ROW], block)[0]


def _step_logits(model: Model, rows: Sequence[tuple[int, int]], block: int) -> np.ndarray:
    """Logits ``[S, V]`` of one step over rows that hold noise, each of its own."""
    shape = model.decoder.shape
    held = [_noise(shape.kv_heads, shape.head_dim, 2 * shape.layers, seed, block) for seed, _ in rows]
    blocks = [mx.array(np.stack([row[n] for row in held])).astype(model.dtype) for n in range(2 * shape.layers)]
    tokens = mx.array([[seed % shape.vocab] for seed, _ in rows], mx.int32)
    offsets = mx.array([position for _, position in rows], mx.int32)
    logits, *_ = logits_step(model.decoder)(tokens, offsets, blocks[: shape.layers], blocks[shape.layers :])
    return np.array(logits.astype(mx.float32))


def _noise(kv_heads: int, head_dim: int, arrays: int, seed: int, block: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((arrays, kv_heads, block, head_dim), np.float32)


# --- clips with noise -------------------------------------------------------------------------------------------------


@functools.cache
def noisy(name: str, decibels: int | None) -> np.ndarray:
    """A clip with white noise at that signal-to-noise ratio; ``None``: as it is."""
    clean = source(name)
    if decibels is None:
        return clean
    noise = np.random.default_rng(len(clean)).standard_normal(len(clean)).astype(np.float32)
    level = np.sqrt(np.mean(clean**2) / np.mean(noise**2)) * 10 ** (-decibels / 20)
    return np.clip(clean + level * noise, -1, 1).astype(np.float32)


@functools.cache
def noisy_prefilled(name: str, decibels: int | None) -> Prefilled:
    """A clip with noise, ready to be decoded; its reference is what serial says."""
    model, samples = quick(), noisy(name, decibels)
    token, state = prefilled(model, samples)
    start = Prefilled(len(samples) / RATE, token, state, (), ends=True)
    (row,) = decoders.serial(model.decoder, FakeLine([start.row(0, model.eos)]), BatchTiming())
    return replace(start, reference=tuple(row.tokens))


def check_slots(rows: Sequence[Prefilled], slots: int, **how: Any) -> BatchTiming:
    """Decode rows in ``slots`` slots, refilled as they fall free; every row says what it says alone."""
    model, timing = quick(), BatchTiming()
    line = FakeLine([row.row(at, model.eos) for at, row in enumerate(rows)])
    ended = batched(model.decoder, line, timing, slots=slots, kv_budget=1 << 20, **how)
    said = dict(lines_of(list(ended)))
    assert [at for at, row in enumerate(rows) if said[at] != row.reference] == [], f"{slots} slots"
    assert timing.syncs == timing.steps
    return timing
