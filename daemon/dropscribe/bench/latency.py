"""When a listener sees the first token and the next ones: the real schedules over whole recordings, clocked by row."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import mlx.core as mx

from dropscribe.asr import decoders
from dropscribe.asr.batched import batched
from dropscribe.asr.features import SAMPLE_RATE, log_mel
from dropscribe.asr.prefill import embed, prefill
from dropscribe.asr.prompt import PLAIN
from dropscribe.asr.step import most_likely
from dropscribe.asr.timing import BatchTiming

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np

    from dropscribe.asr.model import Model

KV_BUDGET = 2**31  # memory is not what is measured here


@dataclass(frozen=True, eq=False)
class Recording:
    """Samples, and how long they took to read; ``None``: they were not read from a file."""

    name: str
    samples: np.ndarray  # float32 [n], 16 kHz mono
    read_s: float | None = None


def shortened(recordings: Sequence[Recording], seconds: float, say: Callable[[str], None]) -> list[Recording]:
    """Recordings of at most ``seconds``; what is cut off is said."""
    most, kept = int(seconds * SAMPLE_RATE), []
    for one in recordings:
        if len(one.samples) > most:
            say(f"{one.name}: only the first {seconds:g} s are used")
        kept.append(Recording(one.name, one.samples[:most], one.read_s))
    return kept


@dataclass(eq=False)
class Clocked(decoders.Row):
    """A row that notes when the host sees each of its tokens."""

    recording: Recording | None = None
    started: float = 0.0  # when its mel began
    mel_s: float = 0.0
    encode_s: float = 0.0
    prefill_s: float = 0.0
    seen: list[float] = field(default_factory=list)

    def take(self, token: int) -> None:
        """Append a token and note the time."""
        self.seen.append(time.perf_counter())
        super().take(token)

    @property
    def read_s(self) -> float:
        """Seconds from file to samples."""
        return (self.recording.read_s if self.recording else None) or 0.0

    @property
    def ttft(self) -> float:
        """Time to first token: reading, mel, encoder, prefill, and waiting for whoever is in front."""
        return self.read_s + self.seen[0] - self.started

    @property
    def wait_s(self) -> float:
        """The rest of it: for the host to look, and for rows that are admitted in between."""
        return self.ttft - self.read_s - self.mel_s - self.encode_s - self.prefill_s

    @property
    def gaps(self) -> list[float]:
        """Inter-token latencies."""
        return [after - before for before, after in pairwise(self.seen)]

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first; ``None`` if there was no other."""
        return sum(self.gaps) / len(self.gaps) if self.gaps else None


class ClockedLine:
    """A waiting line (``decoders.Line``) that makes every row from its samples when its turn comes."""

    def __init__(self, model: Model, recordings: Sequence[Recording]) -> None:
        self._model, self._waiting = model, list(recordings)

    def peek(self, *, wait: bool) -> int | None:  # noqa: ARG002 - nothing is ever late here
        """Room for the next one; all are taken."""
        return 1 if self._waiting else None

    def next(self) -> decoders.Row:
        """Mel, encoder and prefill, each waited for."""
        model, recording = self._model, self._waiting.pop(0)
        mx.synchronize()
        marks = [time.perf_counter()]
        mel = log_mel(recording.samples, model.mel_bins)
        marks.append(time.perf_counter())
        audio = model.encoder.encode(mel)
        mx.eval(audio)
        marks.append(time.perf_counter())
        prefix, suffix = model.prompts.parts(PLAIN)
        logits, state = prefill(model.decoder, embed(model.decoder, prefix, audio, suffix))
        token = most_likely(logits)
        mx.eval(token, state.keys, state.values)
        marks.append(time.perf_counter())
        mel_s, encode_s, prefill_s = (end - start for start, end in pairwise(marks))
        return Clocked(
            recording.name, len(recording.samples) / SAMPLE_RATE, token, state, model.eos,
            recording=recording, started=marks[0], mel_s=mel_s, encode_s=encode_s, prefill_s=prefill_s,
        )  # fmt: skip


def clocked(model: Model, recordings: Sequence[Recording], decoder: str, slots: int) -> Iterator[Clocked]:
    """Rows of ``recordings`` through a schedule, as they end. ``decoder``: serial, bulk-sync or batched."""
    line, timing = ClockedLine(model, recordings), BatchTiming()
    if decoder == "serial":
        rows = decoders.serial(model.decoder, line, timing)
    else:
        run = decoders.bulk_sync if decoder == "bulk-sync" else batched
        rows = run(model.decoder, line, timing, slots=slots, kv_budget=KV_BUDGET)
    for row in rows:
        assert isinstance(row, Clocked)  # noqa: S101 - the line makes no others
        yield row
