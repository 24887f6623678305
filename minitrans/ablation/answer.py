"""The answer to a study's question: one sentence computed from the figures, and whether it was foretold."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from minitrans.ablation.results import LESS_IS_BETTER, Results, Variant, alike, references_of
from minitrans.ablation.statistics import (
    ALPHA,
    SENTENCE_METRICS,
    Array,
    Bootstrap,
    PairedTest,
    SentenceCounts,
    holm,
    paired_bootstrap,
    paired_test,
    pooled_sd,
    resampled,
    sentence_counts,
    smallest_difference,
)
from minitrans.errors import UserError

UNITS = {
    "bleu": "BLEU",
    "bleu_lowercase": "lower-cased BLEU",
    "chrf": "chrF2++",
    "ter": "points of TER",
    "exact_match": "points of exact match",
    "loss": "nats a token",
    "perplexity": "of perplexity",
}
"""Metric -> what a difference is counted in."""

HELD, NOT_CONTRADICTED, OPEN, NOT_HELD = "held", "not contradicted", "undecided", "did not hold"

MORE_SEEDS = (3, 5, 10)
"""Numbers of seeds for which the power note says what they would show."""

NO_DIFFERENCE, WORSE, BETTER = "no difference", "worse", "better"
NOT_TESTED = "not tested"


@dataclass(frozen=True)
class Comparison:
    """A variant beside the one that it is compared with.

    Attributes
    ----------
    seeds
        Those that both have finished, scored on the same text: the pairs.
    unpaired
        Seeds of the study that are not among them.
    differences
        Variant less the other one, for each pair.
    test
        Over seeds: what the claim rests on (None: no pair).
    p_holm
        Its p-value after Holm's correction over all comparisons of the study.
    sentences
        The bootstrap over sentences, for these very models (None: not done).
    less_is_better
        A lower score is the better one.
    expect
        What the study predicts: no difference, worse, better, or nothing.
    """

    variant: str
    against: str
    seeds: tuple[int, ...]
    unpaired: tuple[int, ...]
    differences: tuple[float, ...]
    test: PairedTest | None
    p_holm: float | None
    sentences: Bootstrap | None
    less_is_better: bool
    expect: str | None

    @property
    def found(self) -> bool:
        """More than chance explains, at the stated rate of false alarms over the whole study."""
        return self.p_holm is not None and self.p_holm < ALPHA

    @property
    def direction(self) -> str:
        """``better`` or ``worse`` where a difference was found, else ``no difference``; or ``not tested``."""
        if self.p_holm is None:
            return NOT_TESTED
        if not self.found or self.test is None:
            return NO_DIFFERENCE
        return BETTER if (self.test.mean > 0) != self.less_is_better else WORSE

    @property
    def verdict(self) -> str | None:
        """Whether the prediction held (None: there is none).

        That none was found where a difference was predicted decides nothing: the seeds may be too few. That
        none was found where none was predicted does not contradict it, and no test can show more.
        """
        if self.expect is None:
            return None
        if self.test is None or self.p_holm is None:
            return OPEN
        if self.found:
            return HELD if self.expect == self.direction else NOT_HELD
        return NOT_CONTRADICTED if self.expect == NO_DIFFERENCE else OPEN


@dataclass(frozen=True)
class Power:
    """What the study could have found.

    Attributes
    ----------
    sd
        Of differences between paired seeds, pooled over all comparisons.
    seeds
        Pairs that most comparisons have.
    single, corrected
        The smallest true difference found in 80 % of such studies, by one comparison alone and where Holm's
        correction asks most of it.
    more
        Pairs -> the latter, with more seeds than the study has.
    """

    sd: float
    seeds: int
    single: float
    corrected: float
    more: Mapping[int, float]


@dataclass(frozen=True)
class Answer:
    """All that a study says.

    Attributes
    ----------
    sentence
        The answer.
    no_bootstrap
        Why the bootstrap over sentences was not done (empty: it was).
    """

    sentence: str
    comparisons: tuple[Comparison, ...]
    power: Power | None
    no_bootstrap: str

    @property
    def verdict(self) -> str | None:
        """Of all predictions together: the worst."""
        verdicts = [comparison.verdict for comparison in self.comparisons if comparison.verdict]
        if not verdicts:
            return None
        return next(v for v in (NOT_HELD, OPEN, NOT_CONTRADICTED, HELD) if v in verdicts)


def answer(results: Results) -> Answer:
    """Compare each variant with the one it is against, and say what that means."""
    samples = _Samples(results)
    pairs = [(v, v.against) for v in results.study.variants if v.against is not None]
    tests = [_test(results, variant, against) for variant, against in pairs]
    corrected = iter(holm([test.p for test in tests if test is not None and test.p is not None]))
    comparisons = tuple(
        _comparison(results, variant, test, next(corrected) if test and test.p is not None else None, samples)
        for (variant, _), test in zip(pairs, tests, strict=True)
    )
    power = _power(comparisons)
    return Answer(_sentence(results, comparisons, power), comparisons, power, samples.reason)


def _differences(results: Results, variant: Variant, against: str) -> dict[int, float]:
    """Seed -> difference, of seeds that both have finished and that were scored on the same text."""
    scores, others = results.scores(variant.name), results.scores(against)
    own, other = results.finished(variant.name), results.finished(against)
    return {
        seed: scores[seed] - others[seed] for seed in own if seed in other and alike(own[seed], other[seed])
    }


def _test(results: Results, variant: Variant, against: str) -> PairedTest | None:
    differences = list(_differences(results, variant, against).values())
    if not differences:
        return None
    sentences = results.all_outcomes[0].sentences
    return paired_test(differences, step=100 / sentences if results.study.metric == "exact_match" else 0.0)


def _comparison(
    results: Results, variant: Variant, test: PairedTest | None, p_holm: float | None, samples: "_Samples"
) -> Comparison:
    assert variant.against is not None
    differences = _differences(results, variant, variant.against)
    seeds = {cell.seed for cell in results.cells if cell.variant in (variant.name, variant.against)}
    return Comparison(
        variant=variant.name,
        against=variant.against,
        seeds=tuple(differences),
        unpaired=tuple(sorted(seeds - differences.keys())),
        differences=tuple(differences.values()),
        test=test,
        p_holm=p_holm,
        sentences=samples.bootstrap(variant.name, variant.against, tuple(differences)),
        less_is_better=results.study.metric in LESS_IS_BETTER,
        expect=variant.expect,
    )


class _Samples:
    """The scores of each cell on samples of the sentences, computed once; why there are none."""

    def __init__(self, results: Results) -> None:
        self._results = results
        self._known: dict[tuple[str, int], tuple[SentenceCounts, Array]] = {}
        self.reason = ""

    def bootstrap(self, variant: str, against: str, seeds: Sequence[int]) -> Bootstrap | None:
        """Of one comparison, over its paired seeds."""
        if not seeds or self.reason:
            return None
        try:
            pairs = [(self._of(variant, seed), self._of(against, seed)) for seed in seeds]
        except UserError as error:
            self.reason = str(error)
            return None
        whole = [own.whole - other.whole for (own, _), (other, _) in pairs]
        return paired_bootstrap(sum(whole) / len(whole), [(own, other) for (_, own), (_, other) in pairs])

    def _of(self, variant: str, seed: int) -> tuple[SentenceCounts, Array]:
        if (variant, seed) not in self._known:
            metric, cell = self._results.study.metric, self._results.finished(variant)[seed]
            if metric not in SENTENCE_METRICS:
                raise UserError(f"{metric} is not kept sentence by sentence")
            assert cell.outcome is not None
            expected, hypotheses = references_of(cell), cell.hypotheses
            if len(hypotheses) != len(expected):
                raise UserError(
                    f"{cell.folder} holds {len(hypotheses)} translations of {len(expected)} sentences"
                )
            counts = sentence_counts(metric, hypotheses, expected, cell.outcome.tokenize)
            self._known[variant, seed] = counts, resampled(counts)
        return self._known[variant, seed]


def _power(comparisons: Sequence[Comparison]) -> Power | None:
    tests = [c.test for c in comparisons if c.test is not None and c.test.n > 1]
    sd = pooled_sd(tests)
    if not sd:  # without a spread nothing can be said of it
        return None
    counts = Counter(test.n for test in tests)
    seeds = max(counts, key=lambda n: (counts[n], n))
    alpha = ALPHA / len(tests)
    return Power(
        sd=sd,
        seeds=seeds,
        single=smallest_difference(sd, seeds),
        corrected=smallest_difference(sd, seeds, alpha),
        more={n: smallest_difference(sd, n, alpha) for n in MORE_SEEDS if n > seeds},
    )


# --------------------------------------------------------------------------------------
# Words
# --------------------------------------------------------------------------------------


def _sentence(results: Results, comparisons: Sequence[Comparison], power: Power | None) -> str:
    unit = UNITS.get(results.study.metric, results.study.metric)
    if not comparisons:
        return "No variant is compared with another one, so there is nothing to answer."
    paired = [c for c in comparisons if c.test is not None]
    if not paired:
        return (
            "No answer yet: no variant has finished a seed that the one it is compared with has finished too."
        )
    tested = [c for c in paired if c.p_holm is not None]
    if not tested:
        seen = "; ".join(_seen(c, unit) for c in paired)
        unpaired = [c.variant for c in comparisons if c.test is None]
        rest = f", and {_list(unpaired)} has no paired seed" if unpaired else ""
        few = "one seed cannot tell a difference from the luck of that seed"
        if any(len(c.seeds) > 1 for c in paired):
            few = "differences without any spread over seeds cannot be judged"
        return f"No answer: {few} ({seen}){rest}."
    clauses = [_clause(c, unit) for c in tested if c.found]
    others = [c for c in tested if not c.found]
    if others:
        clauses.append(_no_difference(others, unit, power))
    for reason, untested in (
        ("paired seeds", [c for c in comparisons if len(c.seeds) < 2]),
        ("a spread between seeds", [c for c in comparisons if len(c.seeds) > 1 and c not in tested]),
    ):
        if untested:
            clauses.append(f"{_list([c.variant for c in untested])} cannot be judged for want of {reason}")
    return f"{_confidence(results, tested)}: {'; '.join(clauses)}."


def _confidence(results: Results, tested: Sequence[Comparison]) -> str:
    counts = sorted({len(c.seeds) for c in tested})
    seeds = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    updates = sorted({outcome.updates for outcome in results.all_outcomes})
    budget = f"{updates[0]:,}" if len(updates) == 1 else f"{updates[0]:,} to {updates[-1]:,}"
    holm_words = f", with Holm's correction for {len(tested)} comparisons" if len(tested) > 1 else ""
    return f"After {budget} updates, by {seeds} paired seeds and at 95 % confidence{holm_words}"


def _clause(comparison: Comparison, unit: str) -> str:
    test = comparison.test
    assert test is not None and test.low is not None and test.high is not None
    low, high = sorted((abs(test.low), abs(test.high)))  # both on one side of 0, or none would be found
    return (
        f"{comparison.variant} is {comparison.direction} than {comparison.against} by "
        f"{number(abs(test.mean))} {unit} (95 % interval {number(low)} to {number(high)}, "
        f"p {p_value(comparison.p_holm, equals='= ')})"
    )


def _no_difference(none: Sequence[Comparison], unit: str, power: Power | None) -> str:
    """One clause for all that show none, each with the difference that was seen."""
    pairs = [f"{c.variant} and {c.against} ({signed(c.test.mean)})" for c in none if c.test is not None]
    said = f"no detectable difference in {unit} at this budget between {_list(pairs, ' or between ')}"
    if all(difference == 0 for comparison in none for difference in comparison.differences):
        return f"{said}: every score is the same"
    if power is None:
        return said
    return f"{said}; one of {number(power.corrected)} would be found with a power of 80 %"


def _seen(comparison: Comparison, unit: str) -> str:
    assert comparison.test is not None
    return f"{comparison.variant} less {comparison.against}: {signed(comparison.test.mean)} {unit}"


def _list(names: Sequence[str], last: str = " and ") -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])}{last}{names[-1]}"


def number(value: float) -> str:
    """A score or a difference: two digits behind the point, or three significant ones where it is small."""
    return f"{value:.2f}" if abs(value) >= 0.1 or value == 0 else f"{value:.2g}"


def signed(value: float) -> str:
    """The same with a sign, and a minus as wide as a plus."""
    return ("+" if value > 0 else "−" if value < 0 else "±") + number(abs(value))


def p_value(p: float | None, equals: str = "") -> str:
    """Three digits, or that it is below the smallest of them; ``equals`` stands before the digits.

    What is below the threshold of a finding never rounds up to it.
    """
    if p is None:
        return ""
    digits = 4 if p < ALPHA and round(p, 3) == ALPHA else 3
    return "< 0.001" if p < 0.001 else f"{equals}{p:.{digits}f}"
