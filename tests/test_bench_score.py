"""Error rates: what is compared, counts made by hand, and intervals that hold what they promise."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from dropscribe.bench import score
from dropscribe.bench.score import Edits


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Hello,   World!\n", ["hello", "world"]),
        ("Don’t 'quote' me; the dogs' bowl", ["don't", "quote", "me", "the", "dogs", "bowl"]),
        ("DON´T", ["don't"]),
        ("twenty-one well—known_names", ["twenty", "one", "well", "known", "names"]),
        ("12 isn't twelve", ["12", "isn't", "twelve"]),
        ("3.5 %", ["3", "5"]),
        ("ﬁne Ｆｕｌｌ cafe\u0301", ["fine", "full", "café"]),
        ("हिन्दी में", ["हिन्दी", "में"]),
        ("你好，world 再见。", ["你", "好", "world", "再", "见"]),
        ("… ¿?", []),
    ],
)  # fmt: skip
def test_only_what_is_heard_is_compared(text: str, words: list[str]) -> None:
    assert score.words(text) == words


def test_characters_count_one_space_between_words_and_none_in_scripts_without() -> None:
    assert score.characters("  It's  a -- dog. ") == "it's a dog"
    assert score.characters("你好，世界 ok go") == "你好世界ok go"


def test_edits_are_those_counted_by_hand() -> None:
    # two → too, without four, and two words more
    found = score.word_edits("One two three; four five six!", "one too three five six and more")
    assert found == Edits(1, 1, 2, 6)
    assert found.rate == pytest.approx(4 / 6)
    assert score.character_edits("abc de", "abX d") == Edits(1, 1, 0, 6)
    assert score.character_edits("kitten", "sitting") == Edits(2, 0, 1, 6)


def test_nothing_heard_and_nothing_said() -> None:
    assert score.word_edits("one two", "") == Edits(0, 2, 0, 2)
    assert score.word_edits("one two", "").rate == 1.0
    assert score.word_edits("", "one") == Edits(0, 0, 1, 0)
    assert score.word_edits("...", "one").rate is None
    assert score.character_edits("", "") == Edits(0, 0, 0, 0)


def test_a_corpus_rate_weighs_by_length_and_a_mean_does_not() -> None:
    edits = [Edits(1, 0, 0, 2), Edits(0, 0, 0, 8), Edits(0, 0, 1, 0)]
    assert score.corpus_rate(edits).value == pytest.approx(2 / 10)
    assert score.mean_rate(edits).value == pytest.approx(0.25)
    assert score.corpus_rate([Edits(0, 0, 0, 0)]).value is None
    assert score.mean_rate([Edits(0, 0, 1, 0)]).value is None


def test_intervals_come_out_the_same_every_time_and_not_at_all_from_two_files() -> None:
    edits = [Edits(at % 3, 0, 0, 10 + at) for at in range(20)]
    assert score.corpus_rate(edits) == score.corpus_rate(edits)
    assert score.corpus_rate(edits) != score.corpus_rate(edits, seed=1)
    rate = score.corpus_rate(edits)
    assert rate.low is not None
    assert rate.high is not None
    assert rate.low < rate.value < rate.high
    assert score.corpus_rate(edits[:2]).low is None


def test_files_without_an_error_promise_nothing() -> None:
    assert score.corpus_rate([Edits(0, 0, 0, 10)] * 8) == score.Rate(0.0)
    assert score.mean_rate([Edits(0, 0, 0, 10)] * 8) == score.Rate(0.0)


def test_the_widening_is_that_of_students_distribution() -> None:
    for freedom in (4, 9, 29, 1000):
        assert score._student(0.975, freedom) == pytest.approx(scipy.stats.t.ppf(0.975, freedom), rel=0.01)


@pytest.mark.parametrize("files", [8, 40])
def test_intervals_cover_the_true_rate_as_often_as_they_say(files: int) -> None:
    """Files of 5 to 40 words, each with an error rate of its own: skewed, as real ones are. The true rate is 10 %."""
    rng = np.random.default_rng(7)
    covered = {"corpus": 0, "mean": 0}
    sets = 400
    for _ in range(sets):
        lengths = rng.integers(5, 41, files)
        counts = rng.binomial(lengths, rng.beta(2, 18, files))
        edits = [Edits(int(count), 0, 0, int(length)) for count, length in zip(counts, lengths, strict=True)]
        for name, rate in (("corpus", score.corpus_rate), ("mean", score.mean_rate)):
            found = rate(edits, resamples=1000)
            assert found.low is not None
            assert found.high is not None
            covered[name] += found.low <= 0.1 <= found.high
    for name, count in covered.items():
        assert 0.90 <= count / sets <= 0.99, name


def test_a_paired_difference_sees_what_two_intervals_would_not() -> None:
    rng = np.random.default_rng(3)
    lengths = rng.integers(20, 60, 30)
    before = [Edits(int(rng.binomial(length, rng.beta(1, 6))), 0, 0, int(length)) for length in lengths]
    after = [Edits(one.substitutions, 1, 0, one.length) for one in before]  # one word more is lost in every file
    change = score.difference(before, after)
    assert change.value == pytest.approx(30 / lengths.sum())
    assert score.verdict(change) == "worse"
    assert score.verdict(score.difference(after, before)) == "better"
    old, new = score.corpus_rate(before), score.corpus_rate(after)
    assert old.high is not None
    assert new.low is not None
    assert new.low < old.high, "the intervals of the two rates overlap"


def test_equal_runs_and_single_files_are_no_difference() -> None:
    edits = [Edits(at % 2, 0, 0, 10) for at in range(10)]
    assert score.verdict(score.difference(edits, edits)) == "no difference found"
    assert score.verdict(score.difference(edits[:1], edits[:1])) == "too few files to say"
    shuffled = [Edits(one.substitutions, 0, 0, 10) for one in reversed(edits)]
    assert score.verdict(score.difference(edits, shuffled)) == "no difference found"
