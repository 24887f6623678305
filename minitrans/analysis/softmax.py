"""What a softmax does to its logits, in figures: entropy, saturation, and how much gradient it lets through.

Letters: T queries, S keys.
"""

import torch
from torch import Tensor

SATURATED = 0.99  # a row whose largest weight is above this one is saturated


def visible_softmax(logits: Tensor, visible: Tensor) -> Tensor:
    """softmax over the visible keys alone.

    Parameters
    ----------
    logits
        (..., T, S).
    visible
        Broadcastable to (..., T, S), True where a query may attend.

    Returns
    -------
    (..., T, S), each row summing to 1 (to 0 for a query that sees no key).
    """
    hidden = logits.masked_fill(~visible, float("-inf"))
    return hidden.softmax(dim=-1).masked_fill(~visible, 0.0)


def row_entropy(weights: Tensor) -> Tensor:
    """-Σ_s a_s ln a_s in nats: (..., S) -> (...); 0 for one key alone, ln S for an even row."""
    return torch.special.entr(weights).sum(dim=-1)


def is_saturated(weights: Tensor) -> Tensor:
    """Whether the largest weight of a row is above :data:`SATURATED`: (..., S) -> (...) bool."""
    return weights.amax(dim=-1) > SATURATED


def jacobian_norm(weights: Tensor) -> Tensor:
    r"""The Frobenius norm of a softmax's Jacobian, from its output alone.

    With a = softmax(z) the Jacobian is :math:`J = \partial a / \partial z = \mathrm{diag}(a) - a a^\top`,
    and multiplied out

    .. math:: \|J\|_F^2 = \sum_i a_i^2 (1 - a_i)^2 + \sum_{i \ne j} a_i^2 a_j^2
                        = \sum_i a_i^2 - 2 \sum_i a_i^3 + \Big(\sum_i a_i^2\Big)^2

    It is at most 1/2 (two keys, half of the weight each), :math:`\sqrt{S - 1} / S` for an even row, and
    falls to 0 as one key takes all the weight: "regions where it has extremely small gradients" (Vaswani et
    al. 2017, section 3.2.1). A factor s before the softmax multiplies the derivative: with a = softmax(s z)
    it is :math:`\partial a / \partial z = s J`.

    Parameters
    ----------
    weights
        (..., S), rows summing to 1. In float64 the norm is right to 1e-8; in float32 to 1e-3 alone.

    Returns
    -------
    (...).
    """
    square = weights.square().sum(dim=-1)  # (..., S) -> (...)
    cube = weights.pow(3).sum(dim=-1)
    return (square - 2 * cube + square.square()).clamp(min=0.0).sqrt()
