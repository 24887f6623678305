"""Dropout from random bytes: the fast twin of ``torch.nn.functional.dropout`` on a processor.

torch draws one floating-point number for each element. Here one 64-bit random number serves eight
elements, a byte each. The price: the rate moves in steps of 1/256.
"""

from typing import Any

import torch
from torch import Tensor

BYTES = 8  # of one 64-bit random number
LEVELS = 256  # values of a byte


def drop_level(rate: float) -> int:
    """How many of a byte's 256 values mean "drop": the nearest to ``rate``, and at least one, at most 255."""
    return min(max(round(rate * LEVELS), 1), LEVELS - 1)


def byte_dropout(x: Tensor, rate: float) -> Tensor:
    """y = x * m / P(m = 1), with m = [byte >= drop_level(rate)], a uniform random byte for each element.

    The kept elements are scaled by the rate that is really kept, so that the mean of y is x exactly:
    at rate 0.1 the level is 26, 26/256 = 0.1016 are dropped, and the rest is scaled by 256/230.

    Parameters
    ----------
    x
        Any shape and floating-point type.
    rate
        Wanted probability of a zero, 0 < rate < 1.

    Returns
    -------
    Same shape and type as ``x``. The same torch seed gives the same zeros.
    """
    return _ByteDropout.apply(x, drop_level(rate))


def byte_dropout_sum(x: Tensor, change: Tensor, rate: float) -> Tensor:
    """x + :func:`byte_dropout` (change), of one shape and type, in one walk over them."""
    return _ByteDropoutSum.apply(x, change, drop_level(rate))


def random_keep(x: Tensor, level: int) -> Tensor:
    """A mask m for x: ones and zeros in its shape and type."""
    numbers = torch.empty(-(-x.numel() // BYTES), dtype=torch.int64, device=x.device)
    numbers.random_(torch.iinfo(torch.int64).min, None)  # all 64 bits
    # Of x's own type: a product with booleans would convert them first, each time.
    keep = torch.empty_like(x, memory_format=torch.contiguous_format)
    return torch.ge(numbers.view(torch.uint8)[: x.numel()].view(x.shape), level, out=keep)


def scale_of(level: int) -> float:
    """1 / P(m = 1)."""
    return LEVELS / (LEVELS - level)


def scaled_product(x: Tensor, keep: Tensor, scale: float) -> Tensor:
    """x * keep * scale in one walk: added to a zero that is everywhere."""
    return torch.addcmul(x.new_zeros(()), x, keep, value=scale)


class _ByteDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, level: int) -> Tensor:
        keep = random_keep(x, level)
        ctx.save_for_backward(keep)
        ctx.scale = scale_of(level)
        return scaled_product(x, keep, ctx.scale)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (keep,) = ctx.saved_tensors
        return scaled_product(grad, keep, ctx.scale), None


class _ByteDropoutSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, change: Tensor, level: int) -> Tensor:
        keep = random_keep(change, level)
        ctx.save_for_backward(keep)
        ctx.scale = scale_of(level)
        return torch.addcmul(x, change, keep, value=ctx.scale)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        (keep,) = ctx.saved_tensors
        return grad, scaled_product(grad, keep, ctx.scale), None
