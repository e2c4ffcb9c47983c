"""Which schedule runs, with how many slots: what was asked for, as far as this device allows it."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from dropscribe.asr import selfcheck
from dropscribe.asr.step import KV_BUDGET

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from dropscribe.asr.model import Model
    from dropscribe.asr.selfcheck import Verdict

DEFAULT_ROWS = 6  # side by side in bulk-sync: the plateau seen elsewhere, until a benchmark on this machine
NONE_APPLIED: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True)
class Plan:
    """A schedule and its shape."""

    decoder: str  # serial · bulk-sync · batched
    slots: int
    block_classes: tuple[int, ...] = (0,)
    as_serial: bool = True  # the bits are those of one slot: a text does not depend on ``slots``
    fallback: str | None = None  # why it is not what was asked for, if so


def make_plan(
    model: Model,
    *,
    decoder: str = "auto",
    batch_size: int | None = None,
    applied: Mapping[str, int] = NONE_APPLIED,
    exactness: str = "serial",
    greedy: bool = True,
    longest: int | None = None,
    kv_budget: int = KV_BUDGET,
    cache: Path | None = None,
    pulse: Callable[[], None] = lambda: None,
    checker: Callable[..., Verdict] = selfcheck.check,
) -> Plan:
    """``decoder``: auto, batched, bulk-sync or serial; ``batch_size``: the most rows side by side, ``None``: as suits.

    ``applied``: where it is ``None``, the most rows a benchmark on this machine found best, by decoder; a cap like
    ``batch_size``, so that the true batch still gets no number of slots that the self-check did not pass.
    ``exactness``: "serial" allows the true batch only as many slots as give the bits of one, "row" any number at which
    rows do not depend on one another. ``longest``: positions a row may come to need, by default with the model's own
    longest segments; ``kv_budget``: as for ``batched``. The self-check runs only when the true batch is in question,
    once for a model, device and library version. Sampled tokens always go serial.
    """
    if not greedy or decoder == "serial":
        return Plan("serial", 1)
    bulk = Plan("bulk-sync", batch_size or applied.get("bulk-sync", DEFAULT_ROWS))
    if decoder == "bulk-sync" or batch_size == 1:
        return bulk
    verdict = selfcheck.verdict_of(model, cache, longest=longest, kv_budget=kv_budget, pulse=pulse, checker=checker)
    if verdict.failure is not None:
        reason = f"the true batch is not row-exact on this device ({verdict.failure}); bulk-sync runs instead"
        return Plan("bulk-sync", bulk.slots, fallback=reason)
    slots = verdict.fastest(exactness, batch_size or applied.get("batched"))
    faster = verdict.tokens_per_second.get(slots, 0.0) > verdict.tokens_per_second.get(1, 0.0)
    if slots > 1 and (faster or decoder == "batched"):
        return Plan("batched", slots, verdict.block_classes, as_serial=slots <= verdict.serial_equal_slots)
    if decoder == "batched":
        reason = 'no number of slots gives the bits of one here; bulk-sync runs, or set decode.exactness = "row"'
        return Plan("bulk-sync", bulk.slots, fallback=reason)
    return bulk
