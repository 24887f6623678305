r"""Is a difference between two variants more than chance?

Chance enters twice, and the two are not to be mixed up:

* Another seed gives another model. The claim of a study is about the variants and not about a few trained
  models, so it rests on seeds alone: the t-test of the differences over paired seeds (the same seed in both
  variants: same data order, same initial weights where shapes agree), with Holm's correction over all
  comparisons of the study.
* Other sentences give other scores. The paired bootstrap over sentences (Koehn 2004, as sacreBLEU draws it)
  says how far the difference of *these very models* would carry over to other sentences. It knows nothing of
  other seeds: two models of one recipe, trained from two seeds, are often told apart by it.
  It stands beside the t-test and decides nothing.

The t-test needs no extra term for the sentences: all models translate the same ones, so what the choice of
sentences adds to the difference of each pair of seeds either varies from pair to pair and is part of their
spread, or is common to all and is part of what was asked: the difference on this test set.

Letters: n paired seeds, m comparisons, L sentences, R bootstrap samples, X numbers kept of a sentence.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sacrebleu.metrics import TER
from sacrebleu.metrics.base import Metric as SacreMetric
from scipy import optimize, stats

from minitrans.evaluation.metrics import RESAMPLES, bleu_metric, chrf_metric, exact_matches

ALPHA = 0.05
"""Rate of false alarms that is stated: of studies without any difference, so many report one."""
POWER = 0.8
"""Chance that the smallest difference told in the power note would be found."""
BOOTSTRAP_SEED = 12345
"""sacreBLEU's own, so that its paired test draws the same sentences."""

Array = npt.NDArray[np.float64]


# --------------------------------------------------------------------------------------
# Over seeds
# --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation (n - 1 below; None for one value) of a variant's scores over its seeds."""

    mean: float
    sd: float | None
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Of at least one value."""
        sd = float(np.std(values, ddof=1)) if len(values) > 1 else None
        return cls(float(np.mean(values)), sd, len(values))


@dataclass(frozen=True)
class PairedTest:
    """The t-test of differences over paired seeds.

    Attributes
    ----------
    mean
        Of the differences.
    sd
        Their standard deviation (None for one pair: nothing can be said of chance).
    low, high
        The 95 % interval of the mean.
    p
        Two-sided: the chance of a mean at least so far from 0 where the variants are equal.
    n
        Pairs.
    """

    mean: float
    sd: float | None
    low: float | None
    high: float | None
    p: float | None
    n: int


def paired_test(differences: Sequence[float], step: float = 0.0) -> PairedTest:
    r"""Test whether the mean of differences over paired seeds is 0 (Student 1908).

    .. math:: t = \bar d / (s / \sqrt n), \quad \bar d \pm t_{0.975, n-1} \, s / \sqrt n

    Parameters
    ----------
    differences
        A variant's score less that of the other one, for each seed that both have.
    step
        By which a score moves at least, such as 100 / L for the exact matches of L sentences. The spread s is
        taken to be no less than that of rounding both scores to such steps, step / sqrt(6): a few
        differences that happen to be the same number do not prove that there is no spread.

    Returns
    -------
    The test. Where all differences are 0, p is 1. Where all are one other number and a score moves in no
    steps, there is no test: no spread was seen to judge them by.
    """
    n, mean = len(differences), float(np.mean(differences))
    if n < 2:
        return PairedTest(mean, None, None, None, None, n)
    sd = float(np.std(differences, ddof=1))
    error = max(sd, step / math.sqrt(6)) / math.sqrt(n)
    if error == 0 and mean != 0:
        return PairedTest(mean, sd, None, None, None, n)
    half_width = float(stats.t.ppf(1 - ALPHA / 2, n - 1)) * error
    p = 2 * float(stats.t.sf(abs(mean) / error, n - 1)) if error else float(mean == 0)
    return PairedTest(mean, sd, mean - half_width, mean + half_width, p, n)


def holm(p_values: Sequence[float]) -> list[float]:
    r"""Holm's correction (Holm 1979): with the i-th smallest of m p-values,

    .. math:: \tilde p_{(i)} = \max_{j \le i} \min(1, (m - j + 1) \, p_{(j)})

    A study that calls everything below 0.05 a difference is wrong about any of its comparisons in at most
    5 % of studies, however the comparisons depend on each other.

    Returns
    -------
    Corrected p-values, in the order given.
    """
    m = len(p_values)
    corrected, largest = [0.0] * m, 0.0
    for rank, place in enumerate(sorted(range(m), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (m - rank) * p_values[place]))
        corrected[place] = largest
    return corrected


def pooled_sd(tests: Sequence[PairedTest]) -> float | None:
    """One standard deviation of differences from several tests, weighted by n - 1 (None: no test has one)."""
    known = [(test.sd, test.n - 1) for test in tests if test.sd is not None]
    if not known:
        return None
    return math.sqrt(sum(sd**2 * freedom for sd, freedom in known) / sum(freedom for _, freedom in known))


def smallest_difference(sd: float, n: int, alpha: float = ALPHA) -> float:
    """The smallest true difference that the t-test over n paired seeds finds with a power of 80 %.

    Parameters
    ----------
    sd
        Standard deviation of the differences.
    n
        Pairs, at least 2.
    alpha
        Level of the test, two-sided.

    Returns
    -------
    In the unit of ``sd``, by the non-central t distribution (Cohen 1988, section 2.2).
    """
    critical = float(stats.t.ppf(1 - alpha / 2, n - 1))
    # the spread that n pairs show, over the true one, at 2,000 equally likely places. SciPy's non-central t
    # is not a number for few pairs
    places = (np.arange(2000) + 0.5) / 2000
    seen = stats.chi.ppf(places, n - 1) / math.sqrt(n - 1)  # (2000,)

    def excess(shift: float) -> float:
        """Power less what is wanted, where the true mean is ``shift`` standard errors from 0."""
        found = stats.norm.cdf(shift - critical * seen) + stats.norm.cdf(-shift - critical * seen)
        return float(found.mean()) - POWER

    # the spread seen is less than 4 times the true one, and the error of the mean less than 4 more
    return float(optimize.brentq(excess, 0.0, 4 * critical + 4)) * sd / math.sqrt(n)


# --------------------------------------------------------------------------------------
# Over sentences
# --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SentenceCounts:
    """What a corpus score is made of, sentence by sentence.

    Attributes
    ----------
    rows
        (L, X), such as matching and possible n-grams.
    score
        The corpus score of a sum of rows (X,).
    """

    rows: Array
    score: Callable[[Array], float]

    @property
    def whole(self) -> float:
        """The score of all sentences."""
        return self.score(self.rows.sum(axis=0))


_SACREBLEU: dict[str, Callable[[str], SacreMetric]] = {
    "bleu": bleu_metric,
    "bleu_lowercase": lambda tokenize: bleu_metric(tokenize, lowercase=True),
    "chrf": lambda tokenize: chrf_metric(),
    "ter": lambda tokenize: TER(),
}
SENTENCE_METRICS = (*_SACREBLEU, "exact_match")
"""Scores that can be taken apart into sentences."""


def sentence_counts(
    metric: str, hypotheses: Sequence[str], references: Sequence[str], tokenize: str
) -> SentenceCounts:
    """Take a corpus score apart; ``metric`` is one of ``SENTENCE_METRICS``."""
    if metric == "exact_match":
        matches = exact_matches(hypotheses, references)
        return SentenceCounts(np.array([[match, 1] for match in matches], dtype=float), _percent)
    sacre = _SACREBLEU[metric](tokenize)
    # sacreBLEU's paired test is made of these two methods; it tests one pair of models, here are n
    rows = np.array(sacre._extract_corpus_statistics(hypotheses, [references]), dtype=float)  # (L, X)
    return SentenceCounts(rows, lambda total: float(sacre._compute_score_from_stats(list(total)).score))


def _percent(total: Array) -> float:
    return float(100 * total[0] / total[1])


@dataclass(frozen=True)
class Bootstrap:
    """A difference on other sentences of the same kind, for the very models that were trained.

    Attributes
    ----------
    difference
        The mean over paired seeds.
    low, high
        The central 95 % of the samples.
    p
        sacreBLEU's: the chance of a difference at least as large between equal systems.
    """

    difference: float
    low: float
    high: float
    p: float


def resampled(counts: SentenceCounts) -> Array:
    """(R,) scores of samples of the sentences; the same samples for all models that translate the same L."""
    length = len(counts.rows)
    generator = np.random.default_rng(BOOTSTRAP_SEED)
    draws = generator.choice(length, size=(RESAMPLES, length), replace=True)  # (R, L)
    return np.array([counts.score(counts.rows[draw].sum(axis=0)) for draw in draws])


def paired_bootstrap(difference: float, samples: Sequence[tuple[Array, Array]]) -> Bootstrap:
    """The paired bootstrap over sentences, of a mean over paired seeds.

    Parameters
    ----------
    difference
        Found on all sentences, the mean over seeds.
    samples
        For each seed the variant's and the other one's scores, (R,) each, of :func:`resampled`.

    Returns
    -------
    With one seed the p-value is that of sacreBLEU's own test, but 1 for no difference at all.
    """
    differences = np.mean([variant - other for variant, other in samples], axis=0)  # (R,)
    low, high = np.percentile(differences, [100 * ALPHA / 2, 100 * (1 - ALPHA / 2)])
    sizes = np.abs(differences)
    beyond = int(np.sum(sizes - sizes.mean() > abs(difference)))
    p: Any = 1.0 if difference == 0 else (beyond + 1) / (len(sizes) + 1)
    return Bootstrap(difference, float(low), float(high), float(p))
