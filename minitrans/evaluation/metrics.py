"""Scores of translations against references.

References are raw text, as their file holds it: they never go through a vocabulary, in which an unknown
sign of a hypothesis would match an unknown sign of a reference. An empty hypothesis counts like any other.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sacrebleu.metrics import BLEU, CHRF


@dataclass(frozen=True)
class Score:
    """One number and what it takes to get it again.

    Attributes
    ----------
    value
        Percent for BLEU, chrF and exact match, a quotient for the length ratio.
    signature
        sacreBLEU's signature: version and settings (empty where the name says all).
    """

    value: float
    signature: str = ""


Metric = Callable[[Sequence[str], Sequence[str], str], Score]


def bleu(hypotheses: Sequence[str], references: Sequence[str], tokenize: str = "13a") -> Score:
    """Cased corpus BLEU as sacreBLEU computes it (Papineni et al. 2002; Post 2018).

    Parameters
    ----------
    hypotheses, references
        One sentence each, in the same order.
    tokenize
        sacreBLEU's name: 13a, intl, zh, ja-mecab, char; none for text that is tokenised already.
    """
    metric = _bleu(tokenize)
    value = metric.corpus_score(hypotheses, [references]).score
    return Score(value, str(metric.get_signature()))


def _bleu(tokenize: str) -> BLEU:
    return BLEU(tokenize=tokenize, force=True)  # force: no warning where the text looks tokenised


def chrf(hypotheses: Sequence[str], references: Sequence[str], tokenize: str = "13a") -> Score:
    """chrF2++: character 6-grams and word 2-grams, F-score with beta 2 (Popović 2017). Needs no tokenizer."""
    metric = CHRF(word_order=2)
    value = metric.corpus_score(hypotheses, [references]).score
    return Score(value, str(metric.get_signature()))


def exact_match(hypotheses: Sequence[str], references: Sequence[str], tokenize: str = "13a") -> Score:
    """Share of hypotheses that are their reference, runs of white space taken as one space, in percent."""
    return Score(100 * sum(exact_matches(hypotheses, references)) / len(references))


def exact_matches(hypotheses: Sequence[str], references: Sequence[str]) -> list[bool]:
    """Which hypotheses are their reference, runs of white space taken as one space."""
    pairs = zip(hypotheses, references, strict=True)
    return [hypothesis.split() == reference.split() for hypothesis, reference in pairs]


def length_ratio(hypotheses: Sequence[str], references: Sequence[str], tokenize: str = "13a") -> Score:
    """Tokens of all hypotheses / tokens of all references, as BLEU counts them (below 1: too short)."""
    counted = _bleu(tokenize).corpus_score(hypotheses, [references])
    return Score(counted.sys_len / counted.ref_len if counted.ref_len else 0.0)


METRICS: dict[str, Metric] = {
    "bleu": bleu,
    "chrf": chrf,
    "exact_match": exact_match,
    "length_ratio": length_ratio,
}
"""Name in ``scores.json`` -> function of hypotheses, references and BLEU's tokenizer."""
