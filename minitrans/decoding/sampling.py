"""Sampling: each token drawn from the model's distribution, sharpened or cut off at its tail.

A sentence's draws follow from the seed and the sentence alone, so that its translation does not depend on
the batch that it is in: uniform numbers are made beforehand, and a number u picks the token in whose part
of the cumulative distribution it lies.

Letters: B sentences, R rows, n draws of each sentence, t steps, N vocabulary.
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

NEAR_EDGE = 1e-5
"""A draw closer than this to the edge of its token's part may go to the neighbour by rounding in fp32."""


def uniforms(sentences: Iterable[Sequence[int]], seed: int, num_draws: int, num_steps: int) -> Tensor:
    """(B, n, t) numbers in [0, 1), each row from (seed, draw, the sentence's own ids)."""
    rows = [
        [np.random.default_rng([seed, draw, *ids]).random(num_steps) for draw in range(num_draws)]
        for ids in sentences
    ]
    return torch.from_numpy(np.array(rows))


def truncate(logits: Tensor, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> Tensor:
    """Divide by the temperature, then keep the likeliest tokens alone.

    Sources: Fan et al. 2018 (top-k), Holtzman et al. 2020 (top-p).

    Parameters
    ----------
    logits
        (R, N), -inf where a token is not allowed.
    temperature
        Below 1 the likely become likelier.
    top_k
        Tokens kept (0: all), and any that are exactly as likely as the last of them.
    top_p
        The fewest likeliest tokens that hold this probability are kept, at least one.

    Returns
    -------
    (R, N), -inf for the others.
    """
    logits = logits / temperature
    if 0 < top_k < logits.size(-1):
        least = logits.topk(top_k).values[:, -1:]  # (R, 1)
        logits = logits.masked_fill(logits < least, -math.inf)
    if top_p < 1:
        ordered, index = logits.sort(dim=-1, descending=True, stable=True)  # (R, N)
        probs = ordered.softmax(dim=-1, dtype=torch.float64)
        beyond = probs.cumsum(dim=-1) - probs >= top_p  # what came before is enough
        logits = logits.masked_fill(beyond.gather(-1, index.argsort(dim=-1)), -math.inf)
    return logits


def draw(logits: Tensor, uniform: Tensor, edge: float = NEAR_EDGE) -> tuple[Tensor, Tensor]:
    """One token a row: the first whose cumulative probability is above u.

    Parameters
    ----------
    logits
        (R, N), at least one of each row finite, else its token means nothing.
    uniform
        (R,) in [0, 1).
    edge
        How far rounding may move the edges of a token's part.

    Returns
    -------
    (R,) tokens, and (R,) bool: u lay within ``edge`` of a neighbour's part.
    """
    cumulative = logits.softmax(dim=-1, dtype=torch.float64).cumsum(dim=-1)  # (R, N)
    cumulative = cumulative / cumulative[:, -1:]  # so that the last is 1, and u below it
    u = uniform.unsqueeze(-1)  # (R, 1)
    token = torch.searchsorted(cumulative, u, right=True).clamp(max=logits.size(-1) - 1)  # (R, 1)
    upper = cumulative.gather(-1, token)
    lower = torch.where(token > 0, cumulative.gather(-1, (token - 1).clamp(min=0)), 0)
    near = ((upper - u < edge) & (upper < 1)) | ((u - lower < edge) & (lower > 0))
    return token.squeeze(-1), near.squeeze(-1)
