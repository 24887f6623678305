"""Scores of translations against references.

References are raw text, as their file holds it: they never go through a vocabulary, in which an unknown
sign of a hypothesis would match an unknown sign of a reference. An empty hypothesis counts like any other.
"""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.metrics.base import Metric as SacreMetric
from sacrebleu.significance import PairedTest

from minitrans.errors import UserError

logging.getLogger("sacrebleu").setLevel(logging.WARNING)  # it tells each step of a paired test

RESAMPLES = 1000
"""Bootstrap samples of a 95 % interval: sacreBLEU's own number."""
NORMAL_975 = 1.959963984540054  # 97.5 % of the standard normal distribution lie below


@dataclass(frozen=True)
class Score:
    """One number and what it takes to get it again.

    Attributes
    ----------
    value
        Percent for BLEU, chrF, TER and exact match, a quotient for the length ratio.
    signature
        sacreBLEU's signature: version and settings (empty where the name says all).
    low, high
        Ends of the 95 % interval (None: none was asked for). sacreBLEU's: mean -+ half the width of the
        bootstrap's central 95 %, as its command prints them (``μ = ... ± ...``), so an end may pass 0 or 100.
    """

    value: float
    signature: str = ""
    low: float | None = None
    high: float | None = None


Metric = Callable[[Sequence[str], Sequence[str], str, int], Score]


def bleu(
    hypotheses: Sequence[str], references: Sequence[str], tokenize: str = "13a", resamples: int = 0
) -> Score:
    """Cased corpus BLEU as sacreBLEU computes it (Papineni et al. 2002; Post 2018).

    Parameters
    ----------
    hypotheses, references
        One sentence each, in the same order.
    tokenize
        sacreBLEU's name: 13a, intl, zh, ja-mecab, char; none for text that is tokenised already.
    resamples
        Bootstrap samples for the interval (Koehn 2004), from sacreBLEU's fixed seed; 0: no interval.
    """
    return _score(bleu_metric(tokenize), hypotheses, references, resamples)


def bleu_lowercase(
    hypotheses: Sequence[str], references: Sequence[str], tokenize: str = "13a", resamples: int = 0
) -> Score:
    """BLEU of both sides in lower case: how much of what :func:`bleu` lacks is capital letters."""
    return _score(bleu_metric(tokenize, lowercase=True), hypotheses, references, resamples)


def chrf(
    hypotheses: Sequence[str], references: Sequence[str], tokenize: str = "13a", resamples: int = 0
) -> Score:
    """chrF2++: character 6-grams and word 2-grams, F-score with beta 2 (Popović 2017). Needs no tokenizer."""
    return _score(chrf_metric(), hypotheses, references, resamples)


def ter(
    hypotheses: Sequence[str], references: Sequence[str], tokenize: str = "13a", resamples: int = 0
) -> Score:
    """Translation edit rate (Snover et al. 2006): edits of words and shifts of phrases / reference words.

    The less the better. sacreBLEU's defaults: case does not count, words are what stands between white space.
    """
    return _score(TER(), hypotheses, references, resamples)


def bleu_metric(tokenize: str, *, lowercase: bool = False) -> BLEU:
    """sacreBLEU's BLEU as it is set everywhere here."""
    return BLEU(tokenize=tokenize, lowercase=lowercase, force=True)  # force: no warning on tokenised text


EXTRAS = {"ja-mecab": "sacrebleu[ja]", "ko-mecab": "sacrebleu[ko]"}
"""BLEU's tokenizers that need further packages -> what brings them."""


def require_tokenizer(tokenize: str) -> None:
    """Refuse a tokenizer of BLEU's that cannot be made here: before hours of work, not at the first score.

    Raises
    ------
    UserError
        It is a word segmenter whose packages are not installed, or not as sacreBLEU needs them.
    """
    if tokenize not in EXTRAS:
        return
    try:
        bleu_metric(tokenize)
    except (RuntimeError, AssertionError) as error:
        raise UserError(
            f"data.bleu_tokenize={tokenize} needs packages that are not installed; "
            f"pip install '{EXTRAS[tokenize]}', or use data.bleu_tokenize=char"
        ) from error


def chrf_metric() -> CHRF:
    """sacreBLEU's chrF2++."""
    return CHRF(word_order=2)


def _score(
    metric: SacreMetric, hypotheses: Sequence[str], references: Sequence[str], resamples: int
) -> Score:
    if not resamples:
        value = metric.corpus_score(hypotheses, [references]).score
        return Score(value, str(metric.get_signature()))
    # corpus_score(n_bootstrap=...) draws the same samples, but fails where some score exactly 0 or 100:
    # it cannot average the two types of number that sacreBLEU gives then. A paired test of one system can.
    test = PairedTest([("", hypotheses)], {"": metric}, [references], "bs", n_samples=resamples)
    signatures, results = test()
    ((name, signature),) = signatures.items()
    found: Any = results[name][0]  # untyped: the table holds the systems' names too
    mean, half_width = float(found.mean), float(found.ci)
    return Score(float(found.score), str(signature), mean - half_width, mean + half_width)


def exact_match(
    hypotheses: Sequence[str], references: Sequence[str], tokenize: str = "13a", resamples: int = 0
) -> Score:
    """Share of hypotheses that are their reference, runs of white space taken as one space, in percent.

    The interval is Wilson's: it needs no resampling, and ``resamples`` only says whether it is wanted.
    """
    matches = exact_matches(hypotheses, references)
    value = 100 * sum(matches) / len(matches)
    return Score(value, "", *wilson(sum(matches), len(matches))) if resamples else Score(value)


def exact_matches(hypotheses: Sequence[str], references: Sequence[str]) -> list[bool]:
    """Which hypotheses are their reference, runs of white space taken as one space."""
    pairs = zip(hypotheses, references, strict=True)
    return [hypothesis.split() == reference.split() for hypothesis, reference in pairs]


def wilson(successes: int, trials: int) -> tuple[float, float]:
    r"""The 95 % interval of a share, in percent.

    .. math:: \frac{p + z^2/2n \pm z\sqrt{p(1-p)/n + z^2/4n^2}}{1 + z^2/n}

    Source: Wilson 1927. It stays within 0 and 100, also where all or none succeed.
    """
    p, z = successes / trials, NORMAL_975
    centre = p + z**2 / (2 * trials)
    half_width = z * math.sqrt(p * (1 - p) / trials + z**2 / (4 * trials**2))
    whole = 1 + z**2 / trials
    low = 0.0 if successes == 0 else 100 * (centre - half_width) / whole  # exactly 0 and 100: no rounding
    high = 100.0 if successes == trials else 100 * (centre + half_width) / whole
    return low, high


def length_ratio(
    hypotheses: Sequence[str], references: Sequence[str], tokenize: str = "13a", resamples: int = 0
) -> Score:
    """Tokens of all hypotheses / tokens of all references, as BLEU counts them (below 1: too short)."""
    counted = bleu_metric(tokenize).corpus_score(hypotheses, [references])
    return Score(counted.sys_len / counted.ref_len if counted.ref_len else 0.0)


METRICS: dict[str, Metric] = {
    "bleu": bleu,
    "bleu_lowercase": bleu_lowercase,
    "chrf": chrf,
    "ter": ter,
    "exact_match": exact_match,
    "length_ratio": length_ratio,
}
"""Name in ``scores.json`` -> function of hypotheses, references, BLEU's tokenizer and bootstrap samples."""

TITLES: dict[str, str] = {
    "bleu": "BLEU",
    "bleu_lowercase": "BLEU, lower-cased",
    "chrf": "chrF2++",
    "ter": "TER (less is better)",
    "exact_match": "exact match, %",
    "length_ratio": "length ratio",
    "comet": "COMET",
}
"""Name in ``scores.json`` -> name on the screen."""
