"""Segments in, texts out: ties features, encoder, prefill and a decoder together.

The thread that calls ``Recognizer.transcribe`` is the only one that touches MLX. Reading and log-mel happen in a thread
of their own, a few segments ahead.
"""

from __future__ import annotations

import collections
import queue
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import mlx.core as mx
import numpy as np

from dropscribe.asr import decoders, guards
from dropscribe.asr.batched import batched
from dropscribe.asr.encoder import audio_tokens
from dropscribe.asr.features import SAMPLE_RATE, log_mel
from dropscribe.asr.plan import DEFAULT_ROWS, Plan
from dropscribe.asr.prefill import PREFILL_STEP, Prefiller
from dropscribe.asr.prompt import PLAIN, Request
from dropscribe.asr.sampling import Options, make_sampler
from dropscribe.asr.step import KV_BUDGET, most_likely
from dropscribe.asr.timing import BatchTiming, RowTiming
from dropscribe.audio.cuts import Piece, recut

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    from dropscribe.asr.model import Model

FinishReason = Literal["eos", "length", "loop", "silence"]
# Of MLX's buffer cache, which otherwise grows with every new length. On the CPU it is ordinary memory and saves little.
CACHE_LIMIT_BYTES = {"cpu": 128 * 1024 * 1024, "gpu": 512 * 1024 * 1024}


@dataclass(frozen=True, eq=False)
class Segment:
    """A piece of audio to be recognized by itself."""

    key: Any  # the caller's; comes back with the result
    samples: np.ndarray  # float32 [n], 16 kHz mono
    start_ms: int = 0
    silent: bool = False  # settled by the cutter: nothing to decode
    request: Request = PLAIN

    @property
    def end_ms(self) -> int:
        """Where it ends, rounded up to a whole millisecond."""
        return self.start_ms - (-len(self.samples) * 1000 // SAMPLE_RATE)

    @property
    def seconds(self) -> float:
        """True duration, before any padding."""
        return len(self.samples) / SAMPLE_RATE


@dataclass(frozen=True)
class Part:
    """What was said in one stretch of a segment."""

    start_ms: int
    end_ms: int
    text: str
    language: str | None
    finish_reason: FinishReason
    token_ids: tuple[int, ...]  # as generated, end token included


@dataclass(frozen=True, eq=False)
class Result:
    """A recognized segment: one part, or more if it had to be cut again."""

    segment: Segment
    parts: tuple[Part, ...]
    timing: RowTiming
    warnings: tuple[str, ...] = ()


@dataclass(eq=False)
class _Pending:
    """A segment on its way: the parts it was cut into and what has come back of them."""

    segment: Segment
    open_parts: int = 1
    parts: list[Part] = field(default_factory=list)
    rows: list[RowTiming] = field(default_factory=list)  # of every row it became, ended or not
    warnings: set[str] = field(default_factory=set)
    second_try: bool = False
    looped: bool = False  # its first try did

    @property
    def timing(self) -> RowTiming:
        total = RowTiming()
        for row in self.rows:
            total.add(row)
        return total


@dataclass(frozen=True, eq=False)
class _Ready:
    """One row's features, waiting for a place."""

    pending: _Pending
    start_ms: int
    samples: np.ndarray
    request: Request
    mel: np.ndarray | None  # None: silent
    feature_s: float


class Recognizer:
    """One loaded model and the schedules to run it."""

    def __init__(self, model: Model, *, prefill_step: int = PREFILL_STEP) -> None:
        """``prefill_step``: positions a prefill pass; for measurements, since it may change a text's last bits."""
        self.model, self._prefiller = model, Prefiller(model.decoder, prefill_step)
        mx.set_cache_limit(CACHE_LIMIT_BYTES["cpu" if mx.default_device().type == mx.DeviceType.cpu else "gpu"])

    def transcribe(
        self,
        segments: Iterable[Segment],
        *,
        decoder: str = "bulk-sync",
        slots: int = DEFAULT_ROWS,
        block_classes: Sequence[int] = (0,),
        may_narrow: bool = False,
        kv_budget: int = KV_BUDGET,
        options: Options | None = None,
        timing: BatchTiming | None = None,
        pulse: Callable[[], None] = lambda: None,
    ) -> Generator[Result, None, None]:
        """Recognize ``segments`` and yield each as it is finished, in no particular order.

        ``segments`` is read from another thread, a few ahead; an exception it raises comes out here. ``timing``, if
        given, is filled while this runs. Non-greedy ``options`` always take the serial schedule.
        ``block_classes`` and ``may_narrow`` are for the true batch (see ``batched``). ``pulse`` is called
        at every decode step and encoder pass; an exception it raises ends the run. Whichever way the run ends, what
        was spent on segments that gave no result is in ``timing.unfinished``.
        """
        timing = BatchTiming() if timing is None else timing
        options = options or Options()
        line = _Line(self.model, segments, timing, ahead=slots + 2, pulse=pulse, prefiller=self._prefiller)
        mx.reset_peak_memory()
        try:
            rows = self._rows(line, timing, Plan(decoder, slots, tuple(block_classes), may_narrow), kv_budget, options)
            yield from self._results(rows, line, timing)
        finally:
            line.close()
            timing.unfinished = [(pending.segment.key, pending.timing) for pending in line.open.values()]
            timing.peak_memory_bytes = max(timing.peak_memory_bytes, mx.get_peak_memory())
            mx.clear_cache()

    def _rows(
        self, line: _Line, timing: BatchTiming, plan: Plan, kv_budget: int, options: Options
    ) -> Iterator[decoders.Row]:
        text, sampler = self.model.decoder, make_sampler(options)
        if plan.decoder == "serial" or sampler is not None:
            return decoders.serial(text, line, timing, sampler=sampler, pulse=line.pulse)
        if plan.decoder == "bulk-sync":
            return decoders.bulk_sync(text, line, timing, slots=plan.slots, kv_budget=kv_budget, pulse=line.pulse)
        if plan.decoder != "batched":
            raise ValueError(f"no such decoder: {plan.decoder!r}; choose 'batched', 'bulk-sync' or 'serial'")
        return batched(
            text,
            line,
            timing,
            slots=plan.slots,
            kv_budget=kv_budget,
            block_classes=plan.block_classes,
            may_narrow=plan.as_serial,
            pulse=line.pulse,
        )

    def _results(self, rows: Iterator[decoders.Row], line: _Line, timing: BatchTiming) -> Iterator[Result]:
        for row in rows:
            timing.rows += 1
            finished = self._finish(row, line)
            yield from line.settled()
            if finished is not None:
                yield finished
        yield from line.settled()

    def _finish(self, row: decoders.Row, line: _Line) -> Result | None:
        """Turn an ended row into a part; ``None`` while other parts of its segment are open or it is tried again."""
        ready: _Ready = row.key
        pending = ready.pending
        text, language = self._read(row.tokens, ready.request)
        if not pending.second_try and self._again(ready, row, text, line):
            return None
        reason: FinishReason = row.finish_reason  # type: ignore[assignment]  # set: the row has ended
        if reason == "loop":
            # a second try failed too: what was said before the loop, and its first round, is all there is
            text, language = self._read(guards.without_loop(row.tokens), ready.request)
        if guards.echoes_context(text, ready.request.context):
            text = ""
        end_ms = ready.start_ms - (-len(ready.samples) * 1000 // SAMPLE_RATE)
        pending.parts.append(Part(ready.start_ms, end_ms, text, language, reason, tuple(row.tokens)))
        pending.open_parts -= 1
        if pending.open_parts:
            return None
        del line.open[id(pending)]
        if pending.looped and not any(part.text for part in pending.parts):
            pending.warnings.add("segment_loop")  # it said something, then lost it: not the same as silence
        return _result(pending)

    def _again(self, ready: _Ready, row: decoders.Row, text: str, line: _Line) -> bool:
        """One second try for a row that looped (in two halves) or repeated its context (without it)."""
        pending, request = ready.pending, ready.request
        if guards.echoes_context(text, request.context):
            pending.warnings.add("context_echo")
            pieces, request = [(ready.start_ms, ready.samples)], Request(language=request.language)
        elif row.finish_reason == "loop":
            halves = _halves(ready)
            pieces = [(half.start_ms, half.samples) for half in halves if not half.silent]
            pending.looped = True
            if len(halves) < 2 or not pieces:
                return False  # the same samples would loop again
            pending.parts += [Part(h.start_ms, h.end_ms, "", None, "silence", ()) for h in halves if h.silent]
        else:
            return False
        pending.second_try = True
        pending.open_parts = len(pieces)
        line.push_front([_features(pending, at, samples, request, self.model.mel_bins) for at, samples in pieces])
        return True

    def _read(self, tokens: list[int], request: Request) -> tuple[str, str | None]:
        """Text and language of generated tokens (``language X<asr_text>…``, or the text alone when X was forced)."""
        model = self.model
        said = [t for t in tokens if t not in model.eos]
        language = request.language
        if language is None and model.asr_text_id in said:
            border = said.index(model.asr_text_id)
            head = model.tokenizer.decode(said[:border], skip_special_tokens=True).strip()
            language = head.removeprefix("language").strip() or None
            said = said[border + 1 :]
        if language in (None, "None"):
            # "language None": the model heard no speech. Without a language head it said nothing we may pass on.
            return "", None
        text = model.tokenizer.decode(said, skip_special_tokens=True).replace("<asr_text>", " ").strip()
        return text, language


def _halves(ready: _Ready) -> list[Piece]:
    end_ms = ready.start_ms - (-len(ready.samples) * 1000 // SAMPLE_RATE)
    return recut(Piece(ready.start_ms, end_ms, ready.samples, silent=False, pauses=()))


def _result(pending: _Pending) -> Result:
    return Result(
        segment=pending.segment,
        parts=tuple(sorted(pending.parts, key=lambda part: part.start_ms)),
        timing=pending.timing,
        warnings=tuple(sorted(pending.warnings)),
    )


def _features(pending: _Pending, start_ms: int, samples: np.ndarray, request: Request, bins: int) -> _Ready:
    started = time.thread_time()
    if not np.isfinite(samples).all():
        raise ValueError("samples hold NaN or Inf; the reader must have refused them")
    mel = log_mel(samples, bins)
    return _Ready(pending, start_ms, samples, request, mel, time.thread_time() - started)


class _Line:
    """The waiting line: features made ahead in a thread, encoded and prefilled when a place is free."""

    def __init__(
        self,
        model: Model,
        segments: Iterable[Segment],
        timing: BatchTiming,
        *,
        ahead: int,
        pulse: Callable[[], None],
        prefiller: Prefiller,
    ) -> None:
        self._model, self._timing, self.pulse, self._prefiller = model, timing, pulse, prefiller
        self.open: dict[int, _Pending] = {}  # whose rows have been started and which have given no result
        self._made: queue.Queue[_Ready | BaseException | None] = queue.Queue(maxsize=ahead)
        self._front: collections.deque[_Ready] = collections.deque()
        self._silent: list[Result] = []
        self._exhausted = False
        self._closed = threading.Event()
        self._maker = threading.Thread(target=self._make, args=(segments,), name="features", daemon=True)
        self._maker.start()

    def peek(self, *, wait: bool) -> int | None:
        while not self._front:
            if self._exhausted:
                return None
            try:
                item = self._made.get(block=wait)
            except queue.Empty:
                return None
            if isinstance(item, BaseException):
                self._exhausted = True
                raise item
            if item is None:
                self._exhausted = True
            elif item.mel is None:
                self._settle_silent(item)
            else:
                self._front.append(item)
        ready = self._front[0]
        assert ready.mel is not None  # noqa: S101 - silent ones were settled above
        prefix, suffix = self._model.prompts.parts(ready.request)
        length = len(prefix) + audio_tokens(ready.mel.shape[1]) + len(suffix)
        return length + guards.token_budget(len(ready.samples) / SAMPLE_RATE)

    def next(self) -> decoders.Row:
        ready = self._front.popleft()
        assert ready.mel is not None  # noqa: S101
        model, timing = self._model, RowTiming(feature_s=ready.feature_s)
        self.open[id(ready.pending)] = ready.pending
        ready.pending.rows.append(timing)
        total = self._timing
        total.feature_s += timing.feature_s
        started = time.perf_counter()
        try:
            audio = model.encoder.encode(ready.mel, self.pulse)
        finally:
            timing.encode_s = time.perf_counter() - started
            total.encode_s += timing.encode_s
        started = time.perf_counter()
        prefix, suffix = model.prompts.parts(ready.request)
        logits, state = self._prefiller.run(prefix, audio, suffix)
        token = most_likely(logits)
        mx.eval(token, state.keys, state.values)
        timing.prefill_s, timing.prompt_tokens = time.perf_counter() - started, state.length
        total.prefill_s += timing.prefill_s
        total.prompt_tokens += timing.prompt_tokens
        total.audio_seconds += len(ready.samples) / SAMPLE_RATE
        return decoders.Row(ready, len(ready.samples) / SAMPLE_RATE, token, state, model.eos, timing)

    def push_front(self, rows: list[_Ready]) -> None:
        """Put second tries before everything that waits."""
        self._front.extendleft(reversed(rows))

    def settled(self) -> Iterator[Result]:
        """Results that needed no decoding, as they come up."""
        while self._silent:
            yield self._silent.pop(0)

    def close(self) -> None:
        """Stop reading ahead; what was made is dropped."""
        self._closed.set()
        # A moment is enough unless it waits for its source; it is a daemon thread and looks at the flag then.
        self._maker.join(1.0)

    def _settle_silent(self, ready: _Ready) -> None:
        segment = ready.pending.segment
        ready.pending.parts.append(Part(segment.start_ms, segment.end_ms, "", None, "silence", ()))
        self._timing.audio_seconds += segment.seconds
        self._silent.append(_result(ready.pending))

    def _make(self, segments: Iterable[Segment]) -> None:
        try:
            for segment in segments:
                if self._closed.is_set():
                    return
                pending = _Pending(segment)
                if segment.silent or not len(segment.samples):
                    made = _Ready(pending, segment.start_ms, segment.samples, segment.request, None, 0.0)
                else:
                    made = _features(pending, segment.start_ms, segment.samples, segment.request, self._model.mel_bins)
                self._put(made)
            self._put(None)
        except BaseException as error:
            self._put(error)  # to the thread that waits for us

    def _put(self, item: _Ready | BaseException | None) -> None:
        while not self._closed.is_set():
            try:
                self._made.put(item, timeout=0.1)
            except queue.Full:
                continue
            return
