"""Which of two ways is faster, on a machine that is never quite the same twice.

Runs are interleaved A B B A A B B A …: each pair lies close together in time, and each way goes first in half of the
pairs, so that neither a machine that slows down nor an advantage of going second favours one. What counts of a pair is
who was faster (its ratio); an exact sign test over the pairs says whether that may be chance. Takes two callables and a
clock, and knows no model.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

ALPHA = 0.05
FEWEST_PAIRS = 6  # below, not even all pairs of one mind give p < 0.05
SAME_WITHIN = 0.05  # of the probe's time before and after: the machine stayed what it was
STEADY_WITHIN = 0.10  # middle half of the probe's runs, over their median


class Pair(NamedTuple):
    """Seconds of one run of each."""

    first: Literal["A", "B"]
    a: float
    b: float

    @property
    def ratio(self) -> float:
        """``b / a``: above 1, A was faster."""
        return self.b / self.a


@dataclass(frozen=True)
class Outcome:
    """What the pairs say."""

    pairs: int
    a_faster: int
    b_faster: int  # the rest are ties, which the test leaves out
    median_ratio: float | None  # b / a
    low: float | None  # where the true median ratio lies by the same test, 1 − ALPHA or surer
    high: float | None
    p: float
    false_winner: float  # how often a way would win against itself with so many pairs

    @property
    def verdict(self) -> str:
        """Who is faster, if anyone."""
        if self.p >= ALPHA:
            return "no winner"
        return "A faster" if self.a_faster > self.b_faster else "B faster"

    def as_dict(self) -> dict[str, Any]:
        """For a report."""
        return {
            "verdict": self.verdict, "p": self.p, "b_over_a": self.median_ratio, "b_over_a_low": self.low,
            "b_over_a_high": self.high, "a_faster": self.a_faster, "b_faster": self.b_faster, "pairs": self.pairs,
            "false_winner_chance": self.false_winner,
        }  # fmt: skip


def interleaved(
    run_a: Callable[[], object],
    run_b: Callable[[], object],
    *,
    pairs: int,
    clock: Callable[[], float],
    synchronize: Callable[[], object] = lambda: None,
) -> Iterator[Pair]:
    """Run both ``pairs`` times and give each pair as it is finished.

    ``synchronize`` is called before and after each run: work that was only queued must not be counted as the other's.
    """
    for at in range(pairs):
        order = ("A", "B") if at % 2 == 0 else ("B", "A")
        took = {}
        for name in order:
            synchronize()
            started = clock()
            (run_a if name == "A" else run_b)()
            synchronize()
            took[name] = clock() - started
        yield Pair("A" if at % 2 == 0 else "B", took["A"], took["B"])


def judge(pairs: Sequence[Pair]) -> Outcome:
    """The exact two-sided sign test over pairs."""
    ratios = sorted(pair.ratio for pair in pairs)
    a_faster, b_faster = sum(ratio > 1 for ratio in ratios), sum(ratio < 1 for ratio in ratios)
    low, high = _median_within(ratios)
    return Outcome(
        pairs=len(pairs),
        a_faster=a_faster,
        b_faster=b_faster,
        median_ratio=statistics.median(ratios) if ratios else None,
        low=low,
        high=high,
        p=sign_test(a_faster, b_faster),
        false_winner=false_winner_chance(len(pairs)),
    )


def sign_test(one: int, other: int) -> float:
    """How likely a division at least as uneven is, were both equally likely; exact, two-sided."""
    count = one + other
    tail = sum(math.comb(count, at) for at in range(min(one, other) + 1))
    return min(1.0, tail / 2.0 ** (count - 1))


def false_winner_chance(pairs: int, alpha: float = ALPHA) -> float:
    """The chance that the test names a winner although both are the same; at most ``alpha``."""
    return sum(math.comb(pairs, at) for at in range(pairs + 1) if sign_test(at, pairs - at) < alpha) / 2.0**pairs


def _median_within(ratios: Sequence[float]) -> tuple[float | None, float | None]:
    """The order statistics that the same test would not reject; none where there are too few."""
    count = len(ratios)
    rejected = sum(sign_test(at, count - at) < ALPHA for at in range(count // 2 + 1))
    return (ratios[rejected - 1], ratios[count - rejected]) if rejected else (None, None)


def delayed(
    run: Callable[[], object], share: float, *, clock: Callable[[], float], sleep: Callable[[float], object]
) -> Callable[[], None]:
    """``run`` made slower by ``share`` of its own time: shows what a test can see on this machine."""

    def slower() -> None:
        started = clock()
        run()
        sleep(share * (clock() - started))

    return slower


@dataclass
class Probe:
    """The same piece of work before and after: whether the machine was left alone meanwhile."""

    work: Callable[[], object]
    clock: Callable[[], float]
    runs: int = 15
    before: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)

    def measure(self, into: list[float]) -> None:
        """Time the work ``runs`` times."""
        for _ in range(self.runs):
            started = self.clock()
            self.work()
            into.append(self.clock() - started)

    def as_dict(self) -> dict[str, Any]:
        """For a report; ``machine`` is the verdict."""
        if len(self.before) < 2 or len(self.after) < 2:
            return {"machine": "not known: the probe did not run before and after"}
        medians = [statistics.median(times) for times in (self.before, self.after)]
        spreads = [
            _middle_half(times) / median for times, median in zip((self.before, self.after), medians, strict=True)
        ]
        change = medians[1] / medians[0] - 1
        reasons = []
        if abs(change) > SAME_WITHIN:
            reasons.append(f"the probe took {change:+.0%} at the end")
        if max(spreads) > STEADY_WITHIN:
            reasons.append(f"its runs spread by {max(spreads):.0%}")
        return {
            "machine": f"not quiet: {', '.join(reasons)}" if reasons else "quiet",
            "probe_before_ms": 1000 * medians[0],
            "probe_after_ms": 1000 * medians[1],
            "probe_spread": max(spreads),
        }


def _middle_half(times: Sequence[float]) -> float:
    quarters = statistics.quantiles(times, n=4)
    return quarters[2] - quarters[0]


def matmul(clock: Callable[[], float], *, seconds: float = 0.02) -> Callable[[], None]:
    """Multiplications of square matrices on MLX's device that take about ``seconds`` here."""
    import mlx.core as mx

    size = 256 if mx.default_device().type == mx.DeviceType.cpu else 2048
    matrix = mx.random.normal((size, size)) / math.sqrt(size)

    def times(count: int) -> None:
        product = matrix
        for _ in range(count):
            product = product @ matrix
        mx.eval(product)
        mx.synchronize()

    times(1)
    started = clock()
    times(4)
    count = max(1, min(10_000, round(4 * seconds / max(clock() - started, 1e-6))))
    return lambda: times(count)
