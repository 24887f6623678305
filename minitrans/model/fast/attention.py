"""Attention with scale and mask folded into the first product: the fast twin of the four plain steps.

The plain steps walk over the (T, S) tables of all heads once for each of: product, scale, mask, softmax,
and the zeros of empty rows. Here one call makes the product, scales it and adds the mask; rows without a
key are looked for beforehand, and only where there are some they are taken care of. On a processor, half
precision is computed in float32: its products are programs for one shape (see
:mod:`minitrans.model.fast.rows`), while the heads have to be copied out of their rows in any case.

Letters: B batch, T number of queries, S number of keys, H heads, K d_k, V d_v.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from minitrans.model.fast.rows import written_by_shape

LANES = 16  # float32 values in a register of the widest processors


def folded_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    scale: float,
    dropout: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """The output of :func:`minitrans.model.attention.scaled_dot_product_attention`, without the weights.

    Parameters
    ----------
    query, key, value
        (B, H, T, K), (B, H, S, K), (B, H, S, V).
    mask
        bool, broadcastable to (B, H, T, S); True = may attend.
    scale
        Factor of the dot products.
    dropout
        Applied to the weights.

    Returns
    -------
    (B, H, T, V).
    """
    if written_by_shape(query):
        with torch.autocast("cpu", enabled=False):
            output = folded_attention(wide(query), wide(key), wide(value), mask, scale=scale, dropout=dropout)
        return output.to(value.dtype)
    b, h, t, _ = query.shape
    empty = None if mask is None else ~mask.any(dim=-1, keepdim=True)
    if mask is not None and empty is not None and bool(empty.any()):
        mask = mask | empty  # as in the plain steps: computed as if unmasked, then zeroed
    else:
        empty = None
    addend = _addend(mask, b, h, query.dtype, query.device)
    logits = _Logits.apply(_joined(query), _joined(key), addend, scale)  # (B*H, T, S)
    weights = _softmax(logits)
    if dropout is not None:
        weights = dropout(weights)
    output = torch.bmm(weights, _joined(value)).view(b, h, t, value.size(-1))  # (B*H, T, V) -> (B, H, T, V)
    return output if empty is None else output.masked_fill(empty, 0.0)


class _Logits(torch.autograd.Function):
    """Q Kᵀ · scale + addend. (Going back, torch itself walks over its products again for the scale.)"""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, addend: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(query, key)
        ctx.scale = scale
        return torch.baddbmm(addend, query, key.mT, alpha=scale)  # (B*H, T, K) @ (B*H, K, S) -> (B*H, T, S)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        query, key = ctx.saved_tensors
        nothing = grad.new_zeros(1, 1, 1)
        grad_query = torch.baddbmm(nothing, grad, key, beta=0, alpha=ctx.scale)  # (B*H, T, K)
        grad_key = torch.baddbmm(nothing, grad.mT, query, beta=0, alpha=ctx.scale)  # (B*H, S, K)
        return grad_query, grad_key, None, None


def _softmax(logits: Tensor) -> Tensor:
    """softmax(logits) over the keys, (B*H, T, S).

    torch's processor kernel works on LANES values at once, and one by one where a row has fewer. (One core,
    (400, 15, S): 1.3 ms for S = 15, 0.1 ms for S = 16.)
    """
    num_keys = logits.size(-1)
    if logits.device.type != "cpu" or num_keys >= LANES:
        return logits.softmax(dim=-1)
    return F.pad(logits, (0, LANES - num_keys), value=float("-inf")).softmax(dim=-1)[..., :num_keys]


def wide(x: Tensor) -> Tensor:
    """A float32 copy, head by head."""
    return x.to(torch.float32, memory_format=torch.contiguous_format)


def _joined(x: Tensor) -> Tensor:
    """(B, H, T, K) -> (B*H, T, K)."""
    return x.reshape(x.size(0) * x.size(1), *x.shape[2:])


def _addend(mask: Tensor | None, b: int, h: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """What is added to the logits: 0 where a query may attend, -inf where not; (B*H or 1, T or 1, S or 1)."""
    if mask is None:
        return torch.zeros(1, 1, 1, dtype=dtype, device=device)
    addend = torch.zeros(mask.shape, dtype=dtype, device=device).masked_fill_(~mask, float("-inf"))
    if addend.dim() == 2 or addend.shape[:-2].numel() == 1:
        return addend.view(1, *addend.shape[-2:])  # the same for every sentence and head
    return _joined(addend.expand(b, h, -1, -1))
