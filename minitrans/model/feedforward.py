"""The position-wise feed-forward network (Vaswani et al. 2017, section 3.3).

Letters: B batch, T length, D d_model, F d_ff.
"""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from minitrans.model.dropout import Dropout
from minitrans.model.fast.linear import rectified_network, trains_on_processor
from minitrans.model.fast.rows import over_full_rows

Activation = Callable[[Tensor], Tensor]


class FeedForward(nn.Module):
    """FFN(x) = f(x W_1 + b_1) W_2 + b_2 (Vaswani et al. 2017, equation 2, with f = ReLU).

    Parameters
    ----------
    d_model, d_ff
        Width outside and inside.
    activation
        f, element by element.
    dropout
        Applied to the hidden layer.
    bias
        Whether there are b_1 and b_2.
    fast
        Compute with what stands around the maps (:mod:`minitrans.model.fast.linear`) or, with another f than
        ReLU or where nothing is trained, on few numbers of rows (:mod:`minitrans.model.fast.rows`).
    """

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        activation: Activation,
        dropout: Dropout,
        *,
        bias: bool = True,
        fast: bool = False,
    ) -> None:
        super().__init__()
        self.fast = fast
        self.w_1 = nn.Linear(d_model, d_ff, bias=bias)
        self.w_2 = nn.Linear(d_ff, d_model, bias=bias)
        self.activation = activation
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        if self.fast and self.activation is F.relu and trains_on_processor(x, self.w_1, self.w_2):
            rate = self.dropout.rate if self.dropout.active else 0.0
            return rectified_network(x, self.w_1, self.w_2, rate)
        return over_full_rows(self._each, x) if self.fast else self._each(x)

    def _each(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        hidden = self.activation(self.w_1(x))  # (..., D) -> (..., F)
        return self.w_2(self.dropout(hidden))  # (..., F) -> (..., D)


class GatedFeedForward(nn.Module):
    """FFN(x) = (f(x W_1) ⊙ x W_gate) W_2, with f = Swish: SwiGLU (Shazeer 2020, equation 6).

    Parameters are those of :class:`FeedForward`. It has three matrices of D x F where the other has two;
    d_ff is used as it is given, so take two thirds of it for the same number of parameters.
    """

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        activation: Activation,
        dropout: Dropout,
        *,
        bias: bool = True,
        fast: bool = False,
    ) -> None:
        super().__init__()
        self.fast = fast
        self.w_1 = nn.Linear(d_model, d_ff, bias=bias)
        self.w_gate = nn.Linear(d_model, d_ff, bias=bias)
        self.w_2 = nn.Linear(d_ff, d_model, bias=bias)
        self.activation = activation
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        return over_full_rows(self._each, x) if self.fast else self._each(x)

    def _each(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        hidden = self.activation(self.w_1(x)) * self.w_gate(x)  # (..., D) -> (..., F)
        return self.w_2(self.dropout(hidden))  # (..., F) -> (..., D)


def identity(x: Tensor) -> Tensor:
    """f(x) = x: two linear maps with nothing between them (the ablation)."""
    return x


ACTIVATIONS: dict[str, tuple[type[FeedForward] | type[GatedFeedForward], Activation]] = {
    "relu": (FeedForward, F.relu),
    "gelu": (FeedForward, F.gelu),
    "swiglu": (GatedFeedForward, F.silu),
    "identity": (FeedForward, identity),
}
"""The choices of ``model.ffn.activation``: the network's form and its f. (``none``: there is no network.)"""
