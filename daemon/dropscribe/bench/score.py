"""Word and character error rates, and how sure one can be of them.

Both texts are normalised first, so that only what is heard counts: see ``words``. Rates are the edits of jiwer's
alignment over the length of the reference: substitutions + deletions + insertions by words or characters. A corpus
rate is all edits over all lengths; a mean is over the rates of files. Intervals are bootstrapped over files.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

RESAMPLES = 5000
SEED = 20_261
CONFIDENCE = 0.95
_AT_ONCE = 2_000_000  # drawn files held in memory together
_APOSTROPHES = str.maketrans("’‘ʼ´＇", "'''''")  # before NFKC, which takes the acute apart
_INNER = re.compile(r"(?<=[^\W_])'(?=[^\W_])")
# Scripts written without spaces: Thai, Lao, Myanmar, Khmer, kana, Han
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # fmt: skip  # noqa: E501
_ONE = re.compile(f"([{_UNSPACED}])")
_BESIDE = re.compile(f"(?<=[{_UNSPACED}]) | (?=[{_UNSPACED}])")


def words(text: str) -> list[str]:
    """The words that are compared.

    Unicode NFKC, lower case; everything but letters, their marks, digits and apostrophes inside a word becomes a
    space (hyphens too). Numbers are not rewritten: ``12`` and ``twelve`` differ. In scripts that are written without
    spaces each character is a word.
    """
    text = unicodedata.normalize("NFKC", text.translate(_APOSTROPHES)).lower()
    text = unicodedata.normalize("NFKC", text)
    inner = {found.start() for found in _INNER.finditer(text)}
    kept = (c if at in inner or unicodedata.category(c)[0] in "LMN" else " " for at, c in enumerate(text))
    return _ONE.sub(r" \1 ", "".join(kept)).split()


def characters(text: str) -> str:
    """The characters that are compared: the words with one space between, none beside scripts without spaces."""
    return _BESIDE.sub("", " ".join(words(text)))


class Edits(NamedTuple):
    """What turns a reference into what was heard."""

    substitutions: int
    deletions: int
    insertions: int
    length: int  # of the reference

    @property
    def total(self) -> int:
        """All together."""
        return self.substitutions + self.deletions + self.insertions

    @property
    def rate(self) -> float | None:
        """Edits over the reference's length; may exceed 1, ``None`` where nothing should have been heard."""
        return self.total / self.length if self.length else None


def word_edits(reference: str, heard: str) -> Edits:
    """Of a transcript against its reference, by words."""
    import jiwer

    wanted = words(reference)
    found = jiwer.process_words(" ".join(wanted), " ".join(words(heard)))
    return Edits(found.substitutions, found.deletions, found.insertions, len(wanted))


def character_edits(reference: str, heard: str) -> Edits:
    """The same by characters."""
    import jiwer

    wanted = characters(reference)
    found = jiwer.process_characters(wanted, characters(heard))
    return Edits(found.substitutions, found.deletions, found.insertions, len(wanted))


@dataclass(frozen=True)
class Rate:
    """A figure and its interval; no interval where there are too few files to say."""

    value: float | None
    low: float | None = None
    high: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"value": self.value, "low": self.low, "high": self.high}


def corpus_rate(edits: Sequence[Edits], **options: Any) -> Rate:
    """All edits over all lengths. ``options``: of ``interval``."""
    counts, lengths = _columns(edits)
    if not lengths.sum():
        return Rate(None)
    return _unless_alike(_rate(_ratio, [counts, lengths], **options))


def mean_rate(edits: Sequence[Edits], **options: Any) -> Rate:
    """The mean of the files' rates; files without a reference text are left out."""
    rates = np.array([one.rate for one in edits if one.length], float)
    return _unless_alike(_rate(_mean, [rates], **options)) if len(rates) else Rate(None)


def difference(before: Sequence[Edits], after: Sequence[Edits], **options: Any) -> Rate:
    """``after`` − ``before`` of the corpus rates of the same files in the same order; files are drawn in pairs."""
    (counts, lengths), (then, then_lengths) = _columns(after), _columns(before)
    if not lengths.sum() or not np.array_equal(lengths, then_lengths):
        return Rate(None)
    return _rate(_ratio, [counts - then, lengths], **options)


def verdict(change: Rate) -> str:
    """What a difference of error rates says: worse, better, or nothing."""
    if change.low is None or change.high is None:
        return "too few files to say"
    if change.low > 0:
        return "worse"
    return "better" if change.high < 0 else "no difference found"


def interval(
    statistic: Callable[..., np.ndarray],
    columns: Sequence[np.ndarray],
    *,
    resamples: int = RESAMPLES,
    seed: int = SEED,
    confidence: float = CONFIDENCE,
) -> tuple[float, float] | None:
    """A bootstrap interval of ``statistic(*columns)``; ``None`` for fewer than three files.

    ``columns``: each ``[files]``, drawn together; ``statistic`` takes them as ``[resamples, files]`` and gives
    ``[resamples]``. The percentiles are widened for few files (the "expanded percentile" interval of Hesterberg 2015):
    the plain ones are those of a normal distribution with the variance divided by n, too narrow for small n.
    """
    files = len(columns[0])
    if files < 3:
        return None
    rng = np.random.default_rng(seed)
    at_once = max(1, _AT_ONCE // files)
    drawn = []
    for start in range(0, resamples, at_once):
        rows = rng.integers(0, files, (min(at_once, resamples - start), files))
        drawn.append(statistic(*(column[rows] for column in columns)))
    tail = NormalDist().cdf(-((files / (files - 1)) ** 0.5) * _student(1 - (1 - confidence) / 2, files - 1))
    low, high = np.nanquantile(np.concatenate(drawn), [tail, 1 - tail])
    return float(low), float(high)


def _student(level: float, freedom: int) -> float:
    """A quantile of Student's t by the expansion of Cornish and Fisher; good to 1 % from 4 degrees of freedom on."""
    z = NormalDist().inv_cdf(level)
    first = z**3 + z
    second = 5 * z**5 + 16 * z**3 + 3 * z
    third = 3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z
    return z + first / (4 * freedom) + second / (96 * freedom**2) + third / (384 * freedom**3)


def _rate(statistic: Callable[..., np.ndarray], columns: list[np.ndarray], **options: Any) -> Rate:
    value = float(statistic(*(column[None] for column in columns))[0])
    found = interval(statistic, columns, **options)
    return Rate(value) if found is None else Rate(value, *found)


def _unless_alike(rate: Rate) -> Rate:
    """Files that are all alike, such as none with an error, cannot say how far others would be off."""
    return Rate(rate.value) if rate.low == rate.high else rate


def _columns(edits: Sequence[Edits]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([one.total for one in edits], float), np.array([one.length for one in edits], float)


def _ratio(counts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    total = lengths.sum(axis=-1)
    return np.asarray(np.divide(counts.sum(axis=-1), total, out=np.full(total.shape, np.nan), where=total > 0))


def _mean(rates: np.ndarray) -> np.ndarray:
    return np.asarray(rates.mean(axis=-1))
