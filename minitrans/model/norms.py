"""Normalisation over the features of one position.

Letters: D d_model.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class LayerNorm(nn.Module):
    """y = (x - mean(x)) / √(var(x) + ε) · g + b, over the last axis (Ba et al. 2016, equation 4)."""

    def __init__(self, d_model: int, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d_model))  # g
        self.bias = nn.Parameter(torch.zeros(d_model))  # b
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.epsilon)


class RMSNorm(nn.Module):
    """y = x / √(mean(x²) + ε) · g, over the last axis (Zhang and Sennrich 2019, equation 4)."""

    def __init__(self, d_model: int, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d_model))  # g
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.epsilon)


NORMS: dict[str, type[LayerNorm] | type[RMSNorm]] = {"layer_norm": LayerNorm, "rms_norm": RMSNorm}
"""The choices of ``model.norm``."""
