"""Length penalties: what the log-probability of a hypothesis is divided by.

A log-probability falls with every token, so sums favour short translations; the quotient

    score(y) = log P(y | x) / penalty(|y|)

gives length its due. |y| is the number of scored tokens. The end token is one of them, so |y| of a
finished hypothesis is at least 1, also when it says nothing.

Every penalty is positive and monotone in the length: the search's optimistic bound rests on that.
"""

from collections.abc import Callable

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
