"""Label-smoothed cross-entropy in chunks: the fast twin of :func:`minitrans.model.loss.cross_entropy_sums`.

Three savings: rows of padding are left out before the output matrix; the logits are made for
CHUNK_ROWS rows at a time, so that the whole batch's never exist; and the gradient is written over the
logits while they are at hand, so that the backward pass is a multiplication by one number.

Letters: B batch, T target length, R rows (real target tokens), C rows of a chunk, D d_model, N vocabulary.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from minitrans.model.fast.linear import product
from minitrans.model.fast.rows import filled, onednn_writes_by_shape, type_of_products

CHUNK_ROWS = 512
BLOCK_ROWS = 16


def chunked_cross_entropy_sums(
    states: Tensor,
    weight: Tensor,
    targets: Tensor,
    label_smoothing: float = 0.0,
    pad_id: int = 0,
    *,
    num_real: int | None = None,
) -> tuple[Tensor, Tensor]:
    """The same values and gradients as :func:`minitrans.model.loss.cross_entropy_sums`.

    Parameters
    ----------
    num_real
        R, where it is known: to find out, one waits until a GPU has come so far.
    """
    is_real = targets.flatten() != pad_id  # (B*T,)
    found = is_real.nonzero() if num_real is None else torch.nonzero_static(is_real, size=num_real)
    real = found.squeeze(-1)  # (R,)
    rows = states.flatten(0, -2).index_select(0, real)  # (B, T, D) -> (B*T, D) -> (R, D)
    labels = targets.flatten().index_select(0, real)  # (R,)
    smoothed, nll = _ChunkedCrossEntropy.apply(rows, weight, labels, label_smoothing)
    return smoothed, nll


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, weight: Tensor, labels: Tensor, label_smoothing: float
    ) -> tuple[Tensor, Tensor]:
        device = rows.device.type
        dtype = type_of_products(rows)
        with torch.autocast(device, enabled=False):
            sums, grads = _sums_and_gradients(
                rows.to(dtype), weight.to(dtype), labels, label_smoothing, any(ctx.needs_input_grad)
            )
        ctx.dtypes = rows.dtype, weight.dtype
        ctx.save_for_backward(*grads)
        ctx.mark_non_differentiable(sums[1])
        return sums

    @staticmethod
    @once_differentiable  # the saved gradients are constants: a second derivative would be wrong
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, Tensor, None, None]:
        grad_rows, grad_weight = ctx.saved_tensors
        rows_dtype, weight_dtype = ctx.dtypes
        return (grad_rows * grad).to(rows_dtype), (grad_weight * grad).to(weight_dtype), None, None


def _sums_and_gradients(
    rows: Tensor, weight: Tensor, labels: Tensor, label_smoothing: float, need_grad: bool
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, ...]]:
    """Both sums, and where wanted the smoothed one's gradients in (R, D) and (N, D); float32 or wider.

    d smoothed / d logits = p - (1 - ε) · [the gold entry] - ε/N. The last term is the same in every entry, so
    that its part of the gradients comes from a sum over rows of weight or states, not one over all logits.
    """
    dtype = torch.promote_types(rows.dtype, torch.float32)
    even = label_smoothing / weight.size(0)  # ε/N
    weight_sum = weight.sum(dim=0, dtype=dtype)  # (N, D) -> (D,)
    smoothed, nll = rows.new_zeros((), dtype=dtype), rows.new_zeros((), dtype=dtype)
    grad_rows = rows.new_empty(rows.shape, dtype=dtype) if need_grad else None
    grad_weight = weight.new_zeros(weight.shape, dtype=dtype) if need_grad else None
    for begin in range(0, rows.size(0), CHUNK_ROWS):
        chunk = rows[begin : begin + CHUNK_ROWS]  # (C, D)
        label = labels[begin : begin + CHUNK_ROWS].unsqueeze(-1)  # (C, 1)
        real = len(chunk)
        if chunk.device.type == "cpu" and onednn_writes_by_shape(chunk.dtype):
            chunk, label = filled(chunk), filled(label)  # C is a multiple of 64 from here on
        logits = product(chunk, weight)  # (C, D) @ (D, N) -> (C, N)
        at_gold = logits.gather(-1, label).to(dtype)  # (C, 1)
        if need_grad:
            log_p_gold = _slopes_over(logits, label, label_smoothing)  # (C, 1)
        else:
            log_p_gold = _wide(logits).log_softmax(dim=-1).gather(-1, label)  # (C, 1)
        mean = (chunk.to(dtype) @ weight_sum / weight.size(0)).unsqueeze(-1)  # of each row's logits, (C, 1)
        gold, spread = -log_p_gold, at_gold - log_p_gold - mean  # the log of the norm less either logit
        nll += gold[:real].sum()
        smoothed += ((1 - label_smoothing) * gold + label_smoothing * spread)[:real].sum()
        if grad_rows is None or grad_weight is None:
            continue
        slopes = logits  # (C, N), d smoothed / d logits + ε/N
        slopes[real:] = 0
        grad_rows[begin : begin + real] = product(slopes, weight.t())[:real]  # (C, N) @ (N, D) -> (C, D)
        grad_weight += slopes.t() @ chunk  # (N, C) @ (C, D) -> (N, D)
        del logits, slopes  # the next chunk's are written where these were, which the cache still holds
    if grad_rows is None or grad_weight is None:
        return (smoothed, nll), ()
    grad_rows -= even * weight_sum
    grad_weight -= even * rows.sum(dim=0, dtype=dtype)
    return (smoothed, nll), (grad_rows, grad_weight)


def _slopes_over(logits: Tensor, label: Tensor, label_smoothing: float) -> Tensor:
    """Write p - (1 - ε) · [the gold entry] over the logits (C, N); returns log p of the gold entries, (C, 1).

    A few rows at a time, which a processor's cache next to the core holds from the first step to the last.
    """
    size = BLOCK_ROWS if logits.device.type == "cpu" else len(logits)
    log_p_gold = []
    for block, gold in zip(logits.split(size), label.split(size), strict=True):
        x = _wide(block)  # in float32 the block itself
        x -= x.amax(dim=-1, keepdim=True)  # at most 0, so that no exponential overflows
        at_gold = x.gather(-1, gold)
        slopes = x.exp_()  # p, but for the norm
        norm = slopes.sum(dim=-1, keepdim=True)
        log_p_gold.append(at_gold - norm.log())
        slopes.mul_(norm.reciprocal())  # p
        slopes.scatter_add_(-1, gold, torch.full_like(norm, label_smoothing - 1))
        block.copy_(slopes)
    return torch.cat(log_p_gold)


def _wide(logits: Tensor) -> Tensor:
    """In float32 or wider."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
