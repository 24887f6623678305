"""Position encodings: how a model without recurrence knows the order of its tokens.

Letters: B batch, T length, H heads, D d_model, K d_k.

An encoding acts at one of two places and leaves the other as it is: ``add`` changes the embeddings
before the first layer, ``rotate`` changes queries and keys of self-attention in every layer. The
constructor arguments besides ``d_model`` and ``d_k`` are its settings in conf/position.
"""

import math

import torch
from torch import Tensor, nn

# Learned positions start as large as sinusoidal ones, whose mean square is 1/2: beside embeddings of variance
# 1, smaller ones are overheard at first. (300 updates of model=tiny on the bundled corpus: BLEU 51 with a
# variance of 1 / d_model, 59 with this one, 62 with sinusoidal positions.)
POSITION_STD = math.sqrt(0.5)


class PositionLimitError(ValueError):
    """A sequence is longer than the encoding has positions for.

    Attributes
    ----------
    length, limit
        Tokens of the sequence, and the most that the encoding can place.
    """

    def __init__(self, length: int, limit: int) -> None:
        super().__init__(
            f"a sequence of {length} tokens is longer than the {limit} positions that were learned; "
            "raise position.max_length or use position=sinusoidal"
        )
        self.length = length
        self.limit = limit


class PositionEncoding(nn.Module):
    """No position at all (the ablation), and the face that every encoding has."""

    limit: int | None = None
    """Longest sequence in tokens (None: any)."""

    def __init__(self) -> None:
        super().__init__()

    def add(self, x: Tensor, start: int = 0) -> Tensor:
        """Put positions into embeddings.

        Parameters
        ----------
        x
            (B, T, D) embeddings of the tokens at positions ``start``, ..., ``start + T - 1``.
        start
            Position of the first token given (not 0 where earlier ones are cached).

        Returns
        -------
        (B, T, D).
        """
        return x

    def rotate(self, x: Tensor, start: int = 0) -> Tensor:
        """Put positions into queries or keys (B, H, T, K) of the same positions -> (B, H, T, K)."""
        return x


def sinusoidal_table(length: int, d_model: int, base: float = 10_000.0) -> Tensor:
    """PE(p, 2i) = sin(p / base^(2i/D)), PE(p, 2i+1) = cos(p / base^(2i/D)).

    Vaswani et al. 2017, section 3.5. An odd width ends with a sine.

    Returns
    -------
    (length, d_model) float32, computed in float64.
    """
    angles = _angles(length, d_model, base)  # (length, ceil(D/2))
    table = torch.empty(length, d_model)
    table[:, 0::2] = angles.sin()
    table[:, 1::2] = angles.cos()[:, : d_model // 2]
    return table


def _angles(length: int, width: int, base: float) -> Tensor:
    """p / base^(2i/width) for each position p and pair i -> (length, ceil(width/2)) float64."""
    rates = torch.exp(torch.arange(0, width, 2, dtype=torch.float64) * (-math.log(base) / width))
    return torch.arange(length, dtype=torch.float64)[:, None] * rates


class SinusoidalPositions(PositionEncoding):
    """x + PE: fixed sines and cosines, added to the embeddings (:func:`sinusoidal_table`); no limit."""

    table: Tensor

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.d_model = d_model
        self.register_buffer("table", sinusoidal_table(256, d_model), persistent=False)

    def add(self, x: Tensor, start: int = 0) -> Tensor:
        end = start + x.size(-2)
        if end > self.table.size(0):
            with torch.inference_mode(False):  # a table that search makes longer must serve training too
                self.table = sinusoidal_table(2 * end, self.d_model).to(self.table.device)
        return x + self.table[start:end].to(x.dtype)  # (B, T, D) + (T, D)


class LearnedPositions(PositionEncoding):
    """x + P[p]: a trained vector for each position, added to the embeddings.

    Gehring et al. 2017, section 3.1.

    Parameters
    ----------
    max_length
        Positions that there are; a longer sequence raises :class:`PositionLimitError`.
    """

    def __init__(self, d_model: int, max_length: int = 512) -> None:
        super().__init__()
        if max_length < 1:
            raise ValueError(f"position.max_length must be at least 1, but it is {max_length}")
        self.limit = max_length
        self.weight = nn.Parameter(torch.empty(max_length, d_model))
        nn.init.normal_(self.weight, std=POSITION_STD)

    def add(self, x: Tensor, start: int = 0) -> Tensor:
        end = start + x.size(-2)
        if end > self.weight.size(0):
            raise PositionLimitError(end, self.weight.size(0))
        return x + self.weight[start:end].to(x.dtype)  # (B, T, D) + (T, D)


class RotaryPositions(PositionEncoding):
    """Turn each pair of components of queries and keys by an angle that grows with the position.

    (x_2i, x_2i+1) -> (x_2i cos a - x_2i+1 sin a, x_2i sin a + x_2i+1 cos a), a = p / base^(2i/K), so that
    the dot product of a query and a key depends on their distance (Su et al. 2021, RoFormer, equation 34).
    Acts in self-attention alone, where queries and keys stand in one sequence; no limit.

    Parameters
    ----------
    base
        Ratio of the slowest turn to the fastest.

    Raises
    ------
    ValueError
        If d_k is odd or the base is not above 0.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, d_k: int, base: float = 10_000.0) -> None:
        super().__init__()
        if d_k % 2:
            raise ValueError(
                f"pairs of components are turned, so d_k must be even, but it is {d_k}; change model.d_k"
            )
        if base <= 0:
            raise ValueError(f"position.base must be above 0, but it is {base}")
        self.d_k = d_k
        self.base = base
        angles = _angles(256, d_k, base)
        self.register_buffer("cos", angles.cos().float(), persistent=False)  # (length, K/2)
        self.register_buffer("sin", angles.sin().float(), persistent=False)  # (length, K/2)

    def rotate(self, x: Tensor, start: int = 0) -> Tensor:
        end = start + x.size(-2)
        if end > self.cos.size(0):
            with torch.inference_mode(False):  # a table that search makes longer must serve training too
                angles = _angles(2 * end, self.d_k, self.base)
                self.cos, self.sin = angles.cos().to(self.cos), angles.sin().to(self.sin)
        cos, sin = self.cos[start:end].to(x.dtype), self.sin[start:end].to(x.dtype)  # (T, K/2)
        even, odd = x[..., 0::2], x[..., 1::2]  # (B, H, T, K/2)
        turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)  # (B, H, T, K/2, 2)
        return turned.flatten(-2)  # (B, H, T, K)


POSITIONS: dict[str, type[PositionEncoding]] = {
    "sinusoidal": SinusoidalPositions,
    "learned": LearnedPositions,
    "rotary": RotaryPositions,
    "none": PositionEncoding,
}
"""The family's table: a name of conf/position -> its class; constructor arguments are its settings."""
