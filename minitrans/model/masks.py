"""Masks: which query may attend to which key.

One polarity everywhere: ``True`` means "may attend".

Letters: B batch, S source length, T target length.
"""

import torch
from torch import Tensor


def padding_mask(ids: Tensor, pad_id: int = 0) -> Tensor:
    """Mark the real tokens of each row, for every query alike.

    Parameters
    ----------
    ids
        (B, S) token ids.
    pad_id
        The id that fills rows up.

    Returns
    -------
    (B, 1, S) bool; the middle axis is spread over the queries.
    """
    return (ids != pad_id).unsqueeze(-2)  # (B, S) -> (B, 1, S)


def causal_mask(num_queries: int, num_keys: int, device: torch.device | str | None = None) -> Tensor:
    """Let each query see the keys up to its own position (Vaswani et al. 2017, section 3.2.3).

    The queries are the *last* positions of the keys, so that a step with cached keys sees all of them:
    query i stands at position ``num_keys - num_queries + i`` and may attend to every key j at or before it.

    Returns
    -------
    (num_queries, num_keys) bool.
    """
    allowed = torch.ones(num_queries, num_keys, dtype=torch.bool, device=device)
    return allowed.tril(num_keys - num_queries)


def as_boolean_mask(mask: Tensor) -> Tensor:
    """Read a mask of any accepted form as booleans of the same shape.

    Accepted are booleans, integers 0 and 1 (1 = may attend), and additive floating-point masks, which
    are added to the logits (0 = may attend, -inf = may not).

    Raises
    ------
    ValueError
        For any other value. A floating-point mask of ones and zeros is refused because it reads both ways:
        as an additive mask it would hide nothing, as a truth table it would hide its zeros.
    """
    if mask.dtype == torch.bool:
        return mask
    if mask.is_floating_point():
        allowed = mask == 0
        if not bool((allowed | torch.isneginf(mask)).all()):
            raise ValueError(
                "a floating-point mask is added to the logits and may hold 0 (may attend) and -inf (may not) "
                f"only, but this one holds {_first_other(mask, allowed | torch.isneginf(mask))}; "
                "give a boolean mask (True = may attend) instead"
            )
        return allowed
    allowed = mask == 1
    if not bool((allowed | (mask == 0)).all()):
        raise ValueError(
            "an integer mask may hold 1 (may attend) and 0 (may not) only, "
            f"but this one holds {_first_other(mask, allowed | (mask == 0))}"
        )
    return allowed


def _first_other(mask: Tensor, known: Tensor) -> float:
    """The first value of ``mask`` that is not ``known``, for an error message."""
    return mask[~known].flatten()[0].item()
