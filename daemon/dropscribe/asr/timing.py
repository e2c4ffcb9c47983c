"""What a batch and each of its rows cost; seconds are wall time of the thread that runs MLX unless said otherwise."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any


@dataclass
class RowTiming:
    """One row's share. A decode step's seconds are divided equally among the rows that were live in it."""

    feature_s: float = 0.0  # CPU seconds of the feature thread, overlapped with decoding
    encode_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    prompt_tokens: int = 0
    generated_tokens: int = 0  # the end token included

    @property
    def compute_s(self) -> float:
        """All four together: what the row kept the machine busy for."""
        return self.feature_s + self.encode_s + self.prefill_s + self.decode_s

    def add(self, other: RowTiming) -> None:
        """Add another row's figures to this one."""
        for name in (f.name for f in fields(RowTiming)):
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass
class BatchTiming(RowTiming):
    """A batch's totals, added up where they are measured and not from its rows."""

    rows: int = 0  # segments decoded
    audio_seconds: float = 0.0
    steps: int = 0  # decode steps: rounds in which every live row moved on by one token
    syncs: int = 0  # times the host waited for tokens; never more than one a step
    forwards: int = 0  # single-row forwards in those steps
    wasted_forwards: int = 0  # staged ahead for a row that turned out to have ended
    peak_memory_bytes: int = 0
    unfinished: list[tuple[Any, RowTiming]] = field(default_factory=list)  # segment key, what was spent in vain
