"""Dropout (Srivastava et al. 2014): zero each element with a given probability, scale up the others."""

import torch.nn.functional as F
from torch import Tensor, nn

from minitrans.model.fast.dropout import byte_dropout, byte_dropout_sum


class Dropout(nn.Module):
    """y = x * m / (1 - rate), each m independently 1 with probability 1 - rate, else 0.

    Does nothing in evaluation mode or at rate 0.

    Parameters
    ----------
    rate
        Probability that an element is zeroed, 0 <= rate < 1.
    fast
        On a processor, draw the mask as :func:`minitrans.model.fast.dropout.byte_dropout` does (eight
        elements from one random number); elsewhere torch's own kernel is the fast one and is used.

    Raises
    ------
    ValueError
        If the rate is outside [0, 1).
    """

    def __init__(self, rate: float, *, fast: bool = False) -> None:
        super().__init__()
        if not 0 <= rate < 1:
            raise ValueError(f"a dropout rate must be at least 0 and below 1, but it is {rate}")
        self.rate = rate
        self.fast = fast

    @property
    def active(self) -> bool:
        """Whether the next call changes anything."""
        return self.training and self.rate > 0

    def forward(self, x: Tensor) -> Tensor:
        if not self.active:
            return x
        if self.fast and x.device.type == "cpu":
            return byte_dropout(x, self.rate)
        return F.dropout(x, self.rate, training=True)

    def add(self, x: Tensor, change: Tensor) -> Tensor:
        """x + Dropout(change)."""
        alike = x.shape == change.shape and x.dtype == change.dtype
        if self.active and self.fast and x.device.type == "cpu" and alike:
            return byte_dropout_sum(x, change, self.rate)
        return x + self(change)

    def extra_repr(self) -> str:
        return f"{self.rate}, fast={self.fast}"
