r"""Learning-rate schedules: pure functions of the update's number.

A schedule has no state, so a resumed run cannot restart it. Updates are numbered from 1, so that the first
one has a rate above 0. In every schedule ``w`` is the warm-up in updates, during which the rate rises
linearly to the peak :math:`\eta` (the optimizer's ``lr``): :math:`\eta\,u/w` for :math:`u \le w`.
"""

import math
from collections.abc import Mapping
from typing import Protocol


class Schedule(Protocol):
    """What every schedule answers."""

    lr: float
    """The peak rate."""

    def rate(self, update: int) -> float:
        """The learning rate of update number ``update`` (from 1)."""


class _WarmUp:
    """The linear rise that all schedules share, and the peak that ends it."""

    def __init__(self, lr: float, warmup_updates: int):
        if warmup_updates < 0:
            raise ValueError(f"warmup_updates is {warmup_updates}, but cannot be negative")
        self.lr, self.warmup_updates = lr, warmup_updates

    def rate(self, update: int) -> float:
        """The learning rate of update number ``update`` (from 1)."""
        if update < 1:
            raise ValueError(f"updates are numbered from 1, not {update}")
        if update < self.warmup_updates:
            return self.lr * update / self.warmup_updates
        return self.lr * self.decay(update)

    def decay(self, update: int) -> float:
        """The share of the peak after the warm-up."""
        raise NotImplementedError


class InverseSqrt(_WarmUp):
    r""":math:`\eta\sqrt{w/u}` after the warm-up. Source: Vaswani et al. 2017, equation 3, with a free peak.

    Parameters
    ----------
    warmup_updates
        Updates until the peak (at least 1).
    """

    def __init__(self, lr: float, warmup_updates: int = 1000):
        super().__init__(lr, warmup_updates)
        if warmup_updates < 1:
            raise ValueError("warmup_updates must be at least 1: the rate falls from where the warm-up ends")

    def decay(self, update: int) -> float:
        """The share of the peak after the warm-up."""
        return math.sqrt(self.warmup_updates / update)


class Noam(InverseSqrt):
    r"""The paper's own rate, :math:`f\,d_{model}^{-0.5}\min(u^{-0.5}, u\,w^{-1.5})`.

    The peak follows from the width, :math:`f\,d_{model}^{-0.5}\,w^{-0.5}`, not from the optimizer's ``lr``.
    Source: Vaswani et al. 2017, equation 3.

    Parameters
    ----------
    warmup_updates
        Updates until the peak (at least 1).
    factor
        The f of the equation (the paper: 1).
    """

    def __init__(self, d_model: int, warmup_updates: int = 4000, factor: float = 1.0):
        super().__init__(factor * (d_model * max(warmup_updates, 1)) ** -0.5, warmup_updates)


class _Falling(_WarmUp):
    """What the schedules share that fall to ``floor`` times the peak at the last update."""

    def __init__(self, lr: float, max_updates: int, warmup_updates: int = 300, floor: float = 0.02):
        super().__init__(lr, warmup_updates)
        if not 0 <= floor <= 1:
            raise ValueError(f"floor is {floor}, but must be a share of the peak: at least 0 and at most 1")
        self.max_updates, self.floor = max_updates, floor

    def progress(self, update: int) -> float:
        """How far the fall has come, 0 at the end of the warm-up, 1 at the last update and past it."""
        span = max(1, self.max_updates - self.warmup_updates)
        return min(1.0, max(0.0, (update - self.warmup_updates) / span))


class Cosine(_Falling):
    r"""From the peak to ``floor`` times the peak along half a cosine, ending at the last update.

    :math:`\eta\,(f + (1-f)\,\frac{1+\cos\pi p}{2})` with :math:`p = (u-w)/(U-w)`.
    Source: Loshchilov & Hutter 2017.

    Parameters
    ----------
    warmup_updates
        Updates until the peak.
    floor
        Share of the peak at the last update.
    """

    def decay(self, update: int) -> float:
        """The share of the peak after the warm-up."""
        falling = (1 + math.cos(math.pi * self.progress(update))) / 2
        return self.floor + (1 - self.floor) * falling


class Linear(_Falling):
    r"""From the peak to ``floor`` times the peak along a line, ending at the last update.

    Parameters
    ----------
    warmup_updates
        Updates until the peak.
    floor
        Share of the peak at the last update.
    """

    def decay(self, update: int) -> float:
        """The share of the peak after the warm-up."""
        return 1 - (1 - self.floor) * self.progress(update)


class Constant(_WarmUp):
    """The peak, for ever.

    Parameters
    ----------
    warmup_updates
        Updates until the peak.
    """

    def __init__(self, lr: float, warmup_updates: int = 0):
        super().__init__(lr, warmup_updates)

    def decay(self, update: int) -> float:
        """The share of the peak after the warm-up."""
        return 1.0


SCHEDULES: Mapping[str, type] = {
    "inverse_sqrt": InverseSqrt,
    "noam": Noam,
    "cosine": Cosine,
    "linear": Linear,
    "constant": Constant,
}
