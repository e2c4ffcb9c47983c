"""Files to segments to texts: what the worker and ``transcribe-batch`` share. Knows no job and no database.

``Feed.segments`` runs in the recognizer's feature thread: it opens files one after another in the reader child, cuts
them and hands out segments. What becomes of a file on the way stands in its ``File``; the thread that runs the
recognizer looks there, takes the results and puts the files together again.
"""

from __future__ import annotations

import hashlib
import json
import os
from bisect import bisect_left, bisect_right
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from dropscribe.asr import selfcheck
from dropscribe.asr.model import PROMPT_ROOM
from dropscribe.asr.plan import Plan, make_plan
from dropscribe.asr.prompt import Request, language_name
from dropscribe.asr.recognizer import Segment
from dropscribe.asr.sampling import Options
from dropscribe.asr.selfcheck import key_of
from dropscribe.asr.timing import RowTiming
from dropscribe.audio.cuts import cut
from dropscribe.errors import ConfigError
from dropscribe.jobs.benchmarks import applied_sizes
from dropscribe.jobs.records import SegmentRow, iso, utcnow
from dropscribe.transcripts.formats import Document
from dropscribe.transcripts.join import join

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from dropscribe.asr.model import Model
    from dropscribe.asr.recognizer import Result
    from dropscribe.asr.selfcheck import Verdict
    from dropscribe.audio.client import Drained, Media, Reader
    from dropscribe.audio.cuts import Piece
    from dropscribe.settings import Settings

CUT_PLAN = 1  # raised whenever the same audio would be cut or read differently, so that kept segments stop counting


@dataclass(eq=False)
class File:
    """One file on its way. The feed fills in what it learns of it; results are added by the consumer."""

    key: Any  # the caller's: a job, a path
    path: bytes
    request: Request
    media: Media | None = None
    drained: Drained | None = None
    pauses: list[tuple[int, int]] = field(default_factory=list)  # measured in what was handed out, in order
    planned: int = 0  # segments handed out
    finished: int = 0  # of those, how many have come back
    ended: bool = False  # nothing more will be handed out
    error: Exception | None = None
    dropped: bool = False  # set by the consumer: whatever still comes back is not wanted
    gave_way: bool = False  # stopped before its end to let others go first
    rows: list[SegmentRow] = field(default_factory=list)
    parts: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)  # start_ms, token ids; as they came back
    timing: RowTiming = field(default_factory=RowTiming)
    decoded_seconds: float = 0.0
    warnings: set[str] = field(default_factory=set)

    @property
    def complete(self) -> bool:
        """Everything that was handed out has come back, and nothing more will be."""
        return self.ended and self.finished == self.planned

    @property
    def tokens(self) -> tuple[int, ...]:
        """The token ids of the whole file in the order they are spoken, whatever order its segments came back in."""
        return tuple(token for _, part in sorted(self.parts) for token in part)

    def add(self, result: Result) -> list[SegmentRow]:
        """Take a result in; returns its rows."""
        rows = [
            SegmentRow(p.start_ms, p.end_ms, p.text, p.language, len(p.token_ids), p.finish_reason,
                       _inside(self.pauses, p.start_ms, p.end_ms))
            for p in result.parts
        ]  # fmt: skip
        self.finished += 1
        self.rows += rows
        for part in result.parts:
            self.parts.append((part.start_ms, part.token_ids))
        self.timing.add(result.timing)
        self.decoded_seconds += result.segment.seconds
        self.warnings |= set(result.warnings)
        return rows


class Feed:
    """Opens and cuts files, ahead of the recognizer. All hooks run in the thread that consumes ``segments()``."""

    def __init__(
        self,
        reader: Reader,
        files: Sequence[File],
        *,
        max_segment_seconds: float,
        wanted: Callable[[File], Sequence[SegmentRow] | None] = lambda _file: (),
        go_on: Callable[[float], bool] = lambda _seconds: True,
        give_way: Callable[[float], bool] = lambda _seconds: False,
    ) -> None:
        """``wanted(file)``, once it is open: segments it already has, or ``None`` to leave it unread.

        ``go_on(seconds)`` before each file and ``give_way(seconds)`` before each later segment are told how much audio
        was handed out so far.
        """
        self._reader, self._files = reader, files
        self._longest = max_segment_seconds
        self._wanted, self._go_on, self._give_way = wanted, go_on, give_way
        self._seconds = 0.0
        self.unread: list[File] = []  # those never opened, once segments() has ended

    def segments(self) -> Iterator[Segment]:
        """Every segment of every file, in order."""
        for at, file in enumerate(self._files):
            if not self._go_on(self._seconds):
                self.unread = list(self._files[at:])
                break
            try:
                yield from self._read(file)
            except Exception as error:  # a file's own trouble, whatever it is, is for the consumer to judge
                file.error = error
            file.ended = True

    def _read(self, file: File) -> Iterator[Segment]:
        stream = self._reader.open(file.path)
        file.media = stream.media
        have = self._wanted(file)
        if have is None:
            stream.abandon()
            return
        done = [(row.start_ms, row.end_ms) for row in have]
        first = True
        for piece in cut(stream.blocks(), self._longest):
            if file.dropped:
                stream.abandon()
                return
            if kept := _covered(piece, done):  # costs no turn: else a long file would give way again before any work
                file.rows += [row for row in have if (row.start_ms, row.end_ms) in kept]
                continue
            if not first and self._give_way(self._seconds):
                file.gave_way = True
                stream.abandon()
                return
            first = False
            self._seconds += len(piece.samples) / 16_000
            file.planned += 1
            file.pauses += piece.pauses
            yield Segment(file, piece.samples, piece.start_ms, silent=piece.silent, request=file.request)
        file.drained = stream.drained
        if stream.drained is not None:
            file.warnings |= set(stream.drained.warnings)


def _inside(pauses: Sequence[tuple[int, int]], start_ms: int, end_ms: int) -> tuple[tuple[int, int], ...]:
    """The pauses between two times; one that goes on beyond either ends there."""
    first = bisect_right(pauses, start_ms, key=lambda pause: pause[1])
    last = bisect_left(pauses, end_ms, key=lambda pause: pause[0])
    return tuple((max(a, start_ms), min(b, end_ms)) for a, b in pauses[first:last])


def _covered(piece: Piece, done: Iterable[tuple[int, int]]) -> set[tuple[int, int]]:
    """The stretches that make up ``piece`` without a gap, or none if some of it is not done."""
    inside = sorted(s for s in done if piece.start_ms <= s[0] and s[1] <= piece.end_ms)
    at = piece.start_ms
    for start, end in inside:
        if start != at:
            return set()
        at = end
    return set(inside) if inside and at == piece.end_ms else set()


@dataclass(frozen=True)
class Transcript:
    """A whole file's text."""

    text: str
    language: str | None  # the one most of the audio is in
    rows: tuple[SegmentRow, ...]
    seconds: float
    warnings: tuple[str, ...]


def assemble(rows: Iterable[SegmentRow], seconds: float, warnings: Iterable[str]) -> Transcript:
    """Put a whole file together. Segments that were cut off or looped are named in the warnings."""
    ordered = tuple(sorted(rows, key=lambda row: row.start_ms))
    heard: dict[str, int] = {}
    for row in ordered:
        if row.language:
            heard[row.language] = heard.get(row.language, 0) + row.end_ms - row.start_ms
    cut_off = {f"segment_{row.finish_reason}" for row in ordered if row.finish_reason in ("length", "loop")}
    return Transcript(
        text=join(row.text for row in ordered),
        language=max(heard, key=lambda name: heard[name]) if heard else None,
        rows=ordered,
        seconds=seconds,
        warnings=tuple(sorted(cut_off | set(warnings))),
    )


def words(stored: str) -> list[str]:
    """The warnings of a job as the log stores them (a JSON array)."""
    return [str(word) for word in json.loads(stored)]


def request_for(language: str | None, context: str | None, model: Model) -> Request:
    """What is asked of the recognizer.

    Raises ``ConfigError`` for a language the model does not know and for a context that leaves too little room: every
    segment pays for it again, and the positions that are kept for it would not hold it.
    """
    request = Request(language_name(language, model.languages), context)
    if context and (taken := sum(len(part) for part in model.prompts.parts(request))) > PROMPT_ROOM:
        raise ConfigError(f"`context` makes a prompt of {taken} tokens, {PROMPT_ROOM} are the most; name fewer terms")
    return request


def plan_for(
    settings: Settings,
    model: Model,
    *,
    decoder: str | None = None,
    batch_size: int | None = None,
    pulse: Callable[[], None] = lambda: None,
    checking: Callable[[], None] = lambda: None,
) -> Plan:
    """The schedule for these settings on this device; ``decoder`` and ``batch_size`` override them.

    ``batch_size = "auto"`` is what ``bench sweep --apply`` found on this machine, if the job log has it.
    ``QWEN3_ASR_EXPERIMENTAL_BATCH_DECODE=1`` asks for the true batch where the settings leave the choice open.
    ``checking`` is told when the self-check has to run first, which takes seconds to minutes, once.
    """

    def check(model: Model, **how: Any) -> Verdict:
        checking()
        return selfcheck.check(model, **how)

    decode = settings.decode
    wanted = decoder or decode.decoder
    if wanted == "auto" and os.environ.get("QWEN3_ASR_EXPERIMENTAL_BATCH_DECODE") == "1":
        wanted = "batched"
    most = batch_size or decode.most_rows
    return make_plan(
        model,
        decoder=wanted,
        batch_size=most,
        applied=applied_sizes(settings.database, key_of(model)) if most is None else {},
        exactness=decode.exactness,
        greedy=options_of(settings).greedy,
        longest=model.positions_for(longest_segment(settings, model)),
        kv_budget=decode.kv_budget,
        pulse=pulse,
        checker=check,
    )


def options_of(settings: Settings) -> Options:
    """How the next token is chosen."""
    decode = settings.decode
    return Options(decode.temperature, decode.top_p, decode.top_k, decode.seed)


def longest_segment(settings: Settings, model: Model) -> float:
    """Seconds: the setting, or what the model says; never more than its positions can hold."""
    return min(settings.decode.max_segment_seconds or model.max_segment_seconds, model.longest_seconds)


def params_key(settings: Settings, model: Model, request: Request, plan: Plan) -> str:
    """What a text depends on besides the audio, as 16 hex digits.

    Not on the schedule, as long as its bits are those of serial; beyond that the number of slots counts.
    """
    options = options_of(settings)
    parts = {
        "revision": model.revision,
        "request": asdict(request),
        "options": None if options.greedy else asdict(options),
        "slots": None if plan.as_serial else plan.slots,
        "max_segment_seconds": longest_segment(settings, model),
        "cut_plan": CUT_PLAN,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def document(
    file: File,
    transcript: Transcript,
    model: Model,
    *,
    plan: Plan,
    settings: Settings,
    timing: Mapping[str, float | int | None],
) -> Document:
    """All that a transcript file says. The decoder is left out where nothing had to be decoded."""
    assert file.media is not None  # noqa: S101 - only files that were opened have a transcript
    return Document(
        source_name=os.path.basename(file.path),  # noqa: PTH119 - bytes
        text=transcript.text,
        language=transcript.language,
        duration=transcript.seconds,
        segments=transcript.rows,
        model=model.name,
        revision=model.revision,
        decoder=plan.decoder if timing["generated_tokens"] else None,
        content_hash=file.media.content_hash,
        params_key=params_key(settings, model, file.request, plan),
        created_at=iso(utcnow()),
        timing=timing,
        warnings=transcript.warnings,
    )


def timing_record(file: File) -> dict[str, float | int | None]:
    """A file's row of the ``timings`` table."""
    t = file.timing
    return {
        "read_s": file.drained.read_s if file.drained else None,
        "feature_s": t.feature_s,
        "encode_s": t.encode_s,
        "prefill_s": t.prefill_s,
        "decode_s": t.decode_s,
        "prompt_tokens": t.prompt_tokens,
        "generated_tokens": t.generated_tokens,
        "duration": file.decoded_seconds,
        "time": t.compute_s,
        "rtf": t.compute_s / file.decoded_seconds if file.decoded_seconds else None,
    }
