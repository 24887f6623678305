"""Penalties: what makes a score of the log-probability of a hypothesis.

    score(y) = log P(y | x) / penalty(|y|) + coverage(x, y)

A log-probability falls with every token, so sums favour short translations; the quotient gives length its
due. Coverage takes away from a translation that left words of the source unread. |y| is the number of
scored tokens. The end token is one of them, so |y| of a finished hypothesis is at least 1, also when it says
nothing.

Every length penalty is positive and monotone in the length, and coverage never positive: the search's
optimistic bound rests on that.

Letters: B sentences, W hypotheses of each, S source length.
"""

from collections.abc import Callable

import torch
from torch import Tensor

Penalty = Callable[[Tensor, float], Tensor]


def no_penalty(length: Tensor, alpha: float) -> Tensor:
    """1: plain log-probabilities, whatever ``alpha`` is.

    Parameters
    ----------
    length
        Scored tokens, any shape, floating point.
    alpha
        Not used.
    """
    return length.new_ones(length.shape)


def exponent(length: Tensor, alpha: float) -> Tensor:
    """length^alpha: alpha 0 is no penalty, alpha 1 the mean log-probability of a token.

    Parameters
    ----------
    length
        Scored tokens, at least 1, any shape, floating point.
    alpha
        Strength; the larger, the longer the translations.
    """
    return length**alpha


def gnmt(length: Tensor, alpha: float) -> Tensor:
    """((5 + length) / 6)^alpha (Wu et al. 2016, equation 14): milder than :func:`exponent` on short output.

    Parameters
    ----------
    length
        Scored tokens, at least 1, any shape, floating point.
    alpha
        Strength; the larger, the longer the translations.
    """
    return ((5 + length) / 6) ** alpha


PENALTIES: dict[str, Penalty] = {"none": no_penalty, "exponent": exponent, "gnmt": gnmt}


def coverage_penalty(covered: Tensor, beta: float) -> Tensor:
    r"""beta * sum_i log(min(sum_j p_ij, 1)) (Wu et al. 2016, equation 14).

    p_ij is the attention that scored token j pays to source token i.

    Parameters
    ----------
    covered
        (B, W, S) sum_j p_ij, the attention that each source token has got from all scored tokens; 1 where
        a token does not count (padding and the end).
    beta
        Strength, at least 0.

    Returns
    -------
    (B, W), at most 0, and finite: a token that got no attention at all counts as one that got 1e-38.
    """
    return beta * covered.clamp(torch.finfo(covered.dtype).tiny, 1).log().sum(dim=-1)
