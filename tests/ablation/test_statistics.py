"""The statistics of studies: by hand, by SciPy and sacreBLEU, and how often they raise a false alarm."""

import itertools
import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics import TER
from sacrebleu.significance import PairedTest as SacrePairedTest
from scipy import stats

from minitrans.ablation.statistics import (
    ALPHA,
    Bootstrap,
    PairedTest,
    SentenceCounts,
    Spread,
    holm,
    paired_bootstrap,
    paired_test,
    pooled_sd,
    resampled,
    sentence_counts,
    smallest_difference,
)
from minitrans.evaluation.metrics import METRICS, bleu_metric, chrf_metric


def test_mean_and_standard_deviation_by_hand() -> None:
    # squares of -2, 1, 1 are 4, 1, 1; 6 / 2 = 3
    assert Spread.of([8.0, 11.0, 11.0]) == Spread(10.0, pytest.approx(math.sqrt(3)), 3)
    assert Spread.of([8.0]) == Spread(8.0, None, 1)


def test_the_paired_test_by_hand() -> None:
    # mean 2, sd 1, error 1/sqrt(3); t = 3.4641; t(0.975, 2) = 4.3027; p of t = 3.4641 at 2 degrees is
    # 1 - t / sqrt(2 + t^2) = 1 - sqrt(12 / 14)
    found = paired_test([1.0, 2.0, 3.0])
    assert (found.mean, found.sd, found.n) == (2.0, 1.0, 3)
    assert found.p == pytest.approx(1 - math.sqrt(12 / 14))
    assert found.low == pytest.approx(2 - 4.302653 / math.sqrt(3), abs=1e-5)
    assert found.high == pytest.approx(2 + 4.302653 / math.sqrt(3), abs=1e-5)


@given(st.lists(st.floats(-50, 50).map(lambda x: round(x, 3)), min_size=2, max_size=9))
def test_the_paired_test_is_scipys(differences: list[float]) -> None:
    if np.std(differences) < 1e-9:
        return
    found, expected = paired_test(differences), stats.ttest_1samp(differences, 0.0)
    interval = expected.confidence_interval(0.95)
    assert found.p == pytest.approx(expected.pvalue, rel=1e-6, abs=1e-12)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), rel=1e-6, abs=1e-9)


def test_one_pair_says_nothing_of_chance() -> None:
    assert paired_test([3.0]) == PairedTest(3.0, None, None, None, None, 1)


def test_no_difference_at_all_has_p_1() -> None:
    assert paired_test([0.0, 0.0, 0.0]) == PairedTest(0.0, 0.0, 0.0, 0.0, 1.0, 3)


def test_equal_differences_of_a_score_that_moves_in_steps_do_not_prove_that_there_is_no_spread() -> None:
    # of a score without steps there is no spread to judge by
    assert paired_test([0.5, 0.5]) == PairedTest(0.5, 0.0, None, None, None, 2)
    found = paired_test([0.5, 0.5], step=0.25)
    # error 0.25 / sqrt(6) / sqrt(2), t = 4.898979; at 1 degree p = 1 - 2/pi atan(t)
    assert found.p == pytest.approx(1 - 2 / math.pi * math.atan(0.5 * math.sqrt(12) / 0.25))
    assert found.sd == 0.0
    assert paired_test([1.0, 3.0], step=0.25) == paired_test([1.0, 3.0])  # the spread found is larger


def test_holm_by_hand() -> None:
    # sorted 0.01 x 4, 0.02 x 3, 0.03 x 2 = 0.06 and not below 0.06, 0.04 x 1 raised to 0.06
    assert holm([0.03, 0.01, 0.04, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.9, 0.6]) == [1.0, 1.0]
    assert holm([0.2]) == [0.2]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6), st.floats(0.001, 0.5))
def test_holm_rejects_what_the_step_down_procedure_rejects(p_values: list[float], alpha: float) -> None:
    rejected: set[int] = set()
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        bound = alpha / (len(p_values) - rank)
        if abs(p_values[place] - bound) < 1e-12:
            return  # rounding decides
        if p_values[place] > bound:
            break
        rejected.add(place)
    assert {i for i, p in enumerate(holm(p_values)) if p <= alpha} == rejected


def test_the_pooled_deviation_by_hand() -> None:
    tests = [
        PairedTest(0, 1.0, 0, 0, 1, 3),
        PairedTest(0, 3.0, 0, 0, 1, 2),
        PairedTest(0, None, None, None, None, 1),
    ]
    assert pooled_sd(tests) == pytest.approx(math.sqrt((2 * 1 + 1 * 9) / 3))
    assert pooled_sd(tests[2:]) is None


def test_the_smallest_difference_is_that_of_the_textbooks() -> None:
    # two-sided at 0.05, power 0.8: an effect of 0.5 standard deviations needs 34 pairs, one of 0.8 needs 15
    assert smallest_difference(1.0, 34) < 0.5 < smallest_difference(1.0, 33)
    assert smallest_difference(1.0, 15) < 0.8 < smallest_difference(1.0, 14)
    assert smallest_difference(2.0, 15) == pytest.approx(2 * smallest_difference(1.0, 15))


@pytest.mark.parametrize(("n", "alpha"), [(2, 0.05), (3, 0.05), (3, 0.05 / 6), (5, 0.05)])
def test_the_smallest_difference_is_found_in_four_of_five_simulated_studies(n: int, alpha: float) -> None:
    draws = np.random.default_rng(0).normal(smallest_difference(1.0, n, alpha), 1.0, size=(20_000, n))
    found = stats.ttest_1samp(draws, 0.0, axis=1).pvalue < alpha
    assert found.mean() == pytest.approx(0.8, abs=0.012)  # four standard errors


def test_smallest_difference_of_two_seeds_and_many_comparisons_is_a_number() -> None:
    assert 100 < smallest_difference(1.0, 2, ALPHA / 12) < 1000


# Over sentences

SUBJECTS, VERBS = ["man", "woman", "dog", "child"], ["sees", "eats", "takes"]
OBJECTS = ["ball", "fish", "red car on the road", "book"]
REFERENCES = [f"the {a} {b} a {c} ." for a, b, c in itertools.product(SUBJECTS, VERBS, OBJECTS)]


def noisy(share: float, seed: int) -> list[str]:
    """The references with this share of their words lost."""
    draw = random.Random(seed)
    return [" ".join(w if draw.random() > share else "x" for w in line.split()) for line in REFERENCES]


@pytest.mark.parametrize("metric", ["bleu", "bleu_lowercase", "chrf", "ter", "exact_match"])
def test_the_counts_of_all_sentences_give_the_corpus_score(metric: str) -> None:
    hypotheses = noisy(0.1, 1)
    counts = sentence_counts(metric, hypotheses, REFERENCES, "13a")
    assert counts.whole == pytest.approx(METRICS[metric](hypotheses, REFERENCES, "13a", 0).value)


@pytest.mark.parametrize("metric", ["bleu", "chrf", "ter"])
def test_with_one_seed_the_bootstrap_is_sacrebleus_paired_test(metric: str) -> None:
    sacre = {"bleu": bleu_metric("13a"), "chrf": chrf_metric(), "ter": TER()}[metric]
    for share in (0.12, 0.14, 0.2):
        base, variant = noisy(0.1, 1), noisy(share, 2)
        _, results = SacrePairedTest([("a", base), ("b", variant)], {"m": sacre}, [REFERENCES], "bs", 1000)()
        (name,) = [title for title in results if title != "System"]
        of_base, of_variant = results[name]
        both = [sentence_counts(metric, text, REFERENCES, "13a") for text in (variant, base)]
        samples = [(resampled(both[0]), resampled(both[1]))]
        found = paired_bootstrap(both[0].whole - both[1].whole, samples)
        assert found.p == pytest.approx(of_variant.p_value)
        assert found.difference == pytest.approx(of_variant.score - of_base.score)


def test_the_bootstrap_of_several_seeds_by_hand() -> None:
    samples = [
        (np.array([3.0, 5.0, 4.0]), np.array([1.0, 1.0, 1.0])),
        (np.array([1.0, 1.0, 2.0]), np.zeros(3)),
    ]
    # means over seeds of 2, 4, 3 and 1, 1, 2: 1.5, 2.5, 2.5; their mean 13/6; none less 13/6 is above 2
    found = paired_bootstrap(2.0, samples)
    assert found == Bootstrap(2.0, pytest.approx(1.55), 2.5, 1 / 4)
    same = [(np.array([1.0, 2.0]), np.array([1.0, 2.0]))]
    assert paired_bootstrap(0.0, same) == Bootstrap(0.0, 0.0, 0.0, 1.0)


def test_all_models_are_scored_on_the_same_samples() -> None:
    numbers = SentenceCounts(np.arange(50.0)[:, None], lambda total: float(total[0]))
    doubled = SentenceCounts(2 * numbers.rows, numbers.score)
    assert np.array_equal(2 * resampled(numbers), resampled(doubled))
    assert len(set(resampled(numbers).tolist())) > 100


# False alarms


def simulated_scores(
    generator: np.random.Generator, variants: int, seeds: int, gains: float = 0.0
) -> np.ndarray:
    """BLEU of a base and of variants that differ from it by the luck of their seeds alone (and by ``gains``).

    A seed's data order helps or harms all variants alike; the rest of its luck is each model's own.
    """
    common, own = (
        generator.normal(0, 0.5, size=(1, seeds)),
        generator.normal(0, 0.4, size=(variants + 1, seeds)),
    )
    scores = 30 + common + own
    scores[1:] += gains
    return scores  # (1 + variants, seeds)


def alarms(
    generator: np.random.Generator, studies: int, variants: int, seeds: int, gains: float = 0.0
) -> int:
    """Studies that call any difference one."""
    found = 0
    for _ in range(studies):
        scores = simulated_scores(generator, variants, seeds, gains)
        p_values = [paired_test((row - scores[0]).tolist()).p for row in scores[1:]]
        found += min(holm([p for p in p_values if p is not None])) < ALPHA
    return found


@pytest.mark.parametrize(("variants", "seeds"), [(1, 2), (1, 3), (4, 3), (6, 5)])
def test_studies_without_a_difference_raise_no_more_alarms_than_stated(variants: int, seeds: int) -> None:
    rate = alarms(np.random.default_rng(7), 2000, variants, seeds) / 2000
    assert rate <= ALPHA + 3 * math.sqrt(ALPHA * (1 - ALPHA) / 2000)  # three standard errors of 5 %
    assert rate > 0.01  # a test that never speaks would keep the rate too


def test_one_hundred_studies_without_a_difference() -> None:
    assert alarms(np.random.default_rng(0), 100, variants=3, seeds=3) <= 5


def test_a_difference_of_three_bleu_is_found() -> None:
    assert alarms(np.random.default_rng(1), 100, variants=1, seeds=5, gains=-3.0) >= 98
