"""A translation as ids, and the best ones of each sentence.

Letters: B sentences of the batch.
"""

from dataclasses import dataclass, replace
from itertools import pairwise

import torch

NEAR_TIE = 1e-4
"""Two scores or log-probabilities closer than this (nats) may change places by rounding in fp32."""

NEAR_TIE_HALF = 0.1
"""The same where the logits have half precision: a bf16 logit of 16 to 32 is a multiple of 1/8."""


def near_tie(number_type: torch.dtype) -> float:
    """How close two scores are that rounding may turn, for logits of this type."""
    return NEAR_TIE_HALF if number_type in (torch.bfloat16, torch.float16) else NEAR_TIE


@dataclass(frozen=True)
class Hypothesis:
    """A translation.

    Attributes
    ----------
    tokens
        Vocabulary ids, without start and end.
    log_prob
        log P(tokens, end | source), natural logarithm; without the end where its probability is 0.
    score
        ``log_prob`` divided by the length penalty, plus the coverage penalty.
    finished
        The search chose to end here. False: the length limit did.
    token_log_probs
        log P of each token given those before it, the end's last; they add up to ``log_prob``.
    near_tie
        Somewhere this sentence's search chose between two that were closer than :func:`near_tie`, so that
        rounding (another batch, machine or version of a library) may turn the result.
    """

    tokens: tuple[int, ...]
    log_prob: float
    score: float
    finished: bool
    token_log_probs: tuple[float, ...] = ()
    near_tie: bool = False

    @classmethod
    def of(cls, tokens: list[int], totals: list[float], score: float, finished: bool) -> "Hypothesis":
        """From log P up to each token, 0 at the start; the last one is that of the whole."""
        steps = tuple(after - before for before, after in pairwise(totals))
        return cls(tuple(tokens), totals[-1], score, finished, steps)


class Finished:
    """The ``n`` best finished hypotheses of each sentence, and one more, to tell a near-tie by.

    Parameters
    ----------
    num_sentences
        B.
    n
        Wanted of each sentence.

    Attributes
    ----------
    tolerance
        How close two scores are that rounding may turn.
    """

    def __init__(self, num_sentences: int, n: int) -> None:
        self.n = n
        self.tolerance = NEAR_TIE
        self._best: list[list[Hypothesis]] = [[] for _ in range(num_sentences)]

    def add(self, sentence: int, hypothesis: Hypothesis) -> None:
        """Put a hypothesis in its place; of equal scores, the first to come is the better."""
        best = self._best[sentence]
        best.append(hypothesis)
        best.sort(key=lambda one: -one.score)
        del best[self.n + 1 :]

    def is_empty(self, sentence: int) -> bool:
        """Nothing of this sentence has been finished."""
        return not self._best[sentence]

    def results(self, near_tie: list[bool], ranked: bool) -> list[tuple[Hypothesis, ...]]:
        """At most ``n`` hypotheses of each sentence, best first.

        Parameters
        ----------
        near_tie
            Which sentences met one on their way.
        ranked
            The scores decide what comes out: two that are close are a near-tie too.
        """
        return [
            tuple(replace(one, near_tie=met or (ranked and self._is_close(best))) for one in best[: self.n])
            for best, met in zip(self._best, near_tie, strict=True)
        ]

    def _is_close(self, best: list[Hypothesis]) -> bool:
        return any(better.score - worse.score < self.tolerance for better, worse in pairwise(best))
