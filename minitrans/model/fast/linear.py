"""Linear maps with what stands around them: the fast twin of the projections and the network in training.

In a small model, what lies between two products takes as long as the products. Here, on a processor:

* Query, key and value are one product with the three matrices side by side, and so is each of its gradients.
* A product adds its bias while the result is at hand. (torch copies the bias over the whole result first.)
* What the network's ReLU and its dropout set to zero is seen from the hidden layer itself: no mask is kept.
* Heads are cut out and put together in the one copy that changes their type and order, in both directions;
  where rows are filled up (:mod:`minitrans.model.fast.rows`), that copy leaves room for it.

(One core, bf16, 4,032 rows of width 128, forward and backward: 3.5 ms for query, key and value as three
maps, 2.0 as one; 2.0 ms for their gradients' way from heads to rows, 1.0 in one copy.)

Letters: B batch, T length, R = B*T rows, R' = rows filled up, H heads, D d_model, F d_ff, K width of a head,
N outputs of all maps.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.flop_counter import register_flop_formula

from minitrans.model.fast.dropout import drop_level, random_keep, scale_of, scaled_product
from minitrans.model.fast.rows import filled, full, has_onednn, onednn_writes_by_shape, type_of_products

Gradients = tuple[Tensor | None, ...]


def trains_on_processor(x: Tensor, *maps: nn.Linear) -> bool:
    """Whether the maps of this file are the fast ones for ``x``, and these maps such as they can stand for.

    They read weights and call no module: one that has hooks or a forward pass of its own is not for them.
    (A step of search has its own, :mod:`minitrans.model.fast.packed`; a compiler sees plain maps best.)
    """
    trains = torch.is_grad_enabled() and not torch.compiler.is_compiling()
    return trains and x.device.type == "cpu" and x.dim() > 1 and x.numel() > 0 and all(map(_is_plain, maps))


def _is_plain(linear: nn.Linear) -> bool:
    hooks = (
        linear._forward_hooks,
        linear._forward_pre_hooks,
        linear._backward_hooks,
        linear._backward_pre_hooks,
    )
    return type(linear) is nn.Linear and not any(hooks)


def heads_of(x: Tensor, maps: Sequence[nn.Linear], num_heads: int) -> tuple[Tensor, ...]:
    """Each map of x, cut into heads.

    Parameters
    ----------
    x
        (B, T, D).
    maps
        D -> H*K, K of each map its own. All with biases, or none.
    num_heads
        H.

    Returns
    -------
    (B, H, T, K) of each map, in the weights' type: under autocast float32, in which attention computes.
    """
    weights, biases = [linear.weight for linear in maps], [linear.bias for linear in maps]
    return _Heads.apply(x, type_of_products(weights[0]), num_heads, *weights, *biases)


def joined_heads(heads: Tensor, linear: nn.Linear) -> Tensor:
    """The map H*K -> D of heads (B, H, T, K) put side by side -> (B, T, D)."""
    return _Joined.apply(heads, type_of_products(linear.weight), linear.weight, linear.bias)


def rectified_network(x: Tensor, w_1: nn.Linear, w_2: nn.Linear, rate: float) -> Tensor:
    """max(0, x W_1 + b_1) W_2 + b_2, the hidden layer dropped as :func:`.dropout.byte_dropout` does it.

    Parameters
    ----------
    x
        (..., D).
    w_1, w_2
        D -> F and F -> D.
    rate
        Probability of a zero in the hidden layer; 0: nothing is dropped.

    Returns
    -------
    (..., D).
    """
    level = drop_level(rate) if rate else 0
    parameters = w_1.weight, w_1.bias, w_2.weight, w_2.bias
    return _Rectified.apply(x, type_of_products(w_1.weight), level, *parameters)


class _Heads(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, dtype: torch.dtype, num_heads: int, *parameters: Tensor | None
    ) -> tuple[Tensor, ...]:
        half = len(parameters) // 2
        weights = [weight for weight in parameters[:half] if weight is not None]
        biases = [bias for bias in parameters[half:] if bias is not None]
        ctx.widths = [len(weight) for weight in weights]
        with torch.autocast("cpu", enabled=False):
            rows = _rows(x, dtype)  # (R', D)
            weight = torch.cat(weights).to(dtype)  # (N, D)
            y = product(rows, weight, torch.cat(biases).to(dtype) if biases else None)  # (R', N)
        ctx.save_for_backward(rows, weight)
        ctx.x, ctx.weight_type, ctx.has_bias = (x.shape, x.dtype), weights[0].dtype, bool(biases)
        ctx.num_heads = num_heads
        return tuple(_new_heads(part, ctx.weight_type) for part in _cut(y, ctx))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Gradients:
        rows, weight = ctx.saved_tensors
        upstream = rows.new_empty(len(rows), len(weight))  # (R', N)
        upstream[ctx.x[0][:-1].numel() :] = 0
        for part, grad in zip(_cut(upstream, ctx), grads, strict=True):
            part.copy_(grad)  # (B, H, T, K)
        grad_x, grad_weight, grad_bias = _gradients(upstream, rows, weight, ctx.has_bias)
        grad_weights = grad_weight.to(ctx.weight_type).split(ctx.widths)
        none = [None] * len(ctx.widths)
        grad_biases = none if grad_bias is None else grad_bias.to(ctx.weight_type).split(ctx.widths)
        return _as(grad_x, *ctx.x), None, None, *grad_weights, *grad_biases


class _Joined(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, heads: Tensor, dtype: torch.dtype, weight: Tensor, bias: Tensor | None) -> Tensor:
        b, h, t, k = heads.shape
        ctx.heads, ctx.weight_type, ctx.has_bias = (heads.shape, heads.dtype), weight.dtype, bias is not None
        with torch.autocast("cpu", enabled=False):
            rows = heads.new_empty(_full(b * t, dtype), h * k, dtype=dtype)  # (R', H*K)
            rows[: b * t].view(b, t, h, k).copy_(heads.transpose(1, 2))
            rows[b * t :] = 0
            weight = weight.to(dtype)
            y = product(rows, weight, _typed(bias, dtype))  # (R', D)
        ctx.save_for_backward(rows, weight)
        return y[: b * t].view(b, t, -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        rows, weight = ctx.saved_tensors
        (b, h, t, k), dtype = ctx.heads
        upstream = _rows(grad, rows.dtype)  # (B, T, D) -> (R', D)
        grad_rows, grad_weight, grad_bias = _gradients(upstream, rows, weight, ctx.has_bias)
        grad_heads = grad.new_empty(b, h, t, k, dtype=dtype)
        grad_heads.copy_(grad_rows[: b * t].view(b, t, h, k).transpose(1, 2))
        return grad_heads, None, grad_weight.to(ctx.weight_type), _typed(grad_bias, ctx.weight_type)


class _Rectified(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        dtype: torch.dtype,
        level: int,
        w_1: Tensor,
        b_1: Tensor | None,
        w_2: Tensor,
        b_2: Tensor | None,
    ) -> Tensor:
        ctx.x, ctx.weight_type, ctx.scale = (x.shape, x.dtype), w_1.dtype, scale_of(level)
        ctx.has_bias = b_1 is not None, b_2 is not None
        with torch.autocast("cpu", enabled=False):
            rows = _rows(x, dtype)  # (..., D) -> (R', D)
            w_1, w_2 = w_1.to(dtype), w_2.to(dtype)
            # (The product could do the ReLU, but oneDNN's makes 0 of NaN: a divergence would pass unseen.)
            hidden = product(rows, w_1, _typed(b_1, dtype)).relu_()  # (R', F)
            if level:
                hidden = scaled_product(hidden, random_keep(hidden, level), ctx.scale)
            y = product(hidden, w_2, _typed(b_2, dtype))  # (R', D)
        ctx.save_for_backward(rows, hidden, w_1, w_2)
        return y[: x.shape[:-1].numel()].view(*x.shape[:-1], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        rows, hidden, w_1, w_2 = ctx.saved_tensors
        upstream = _rows(grad, rows.dtype)  # (..., D) -> (R', D)
        inner, grad_w_2, grad_b_2 = _gradients(upstream, hidden, w_2, ctx.has_bias[1])  # (R', F), ...
        # What was dropped and what the ReLU cut off are zeros of the hidden layer, one like the other.
        inner = torch.ops.aten.threshold_backward(inner, hidden, 0).mul_(ctx.scale)
        grad_rows, grad_w_1, grad_b_1 = _gradients(inner, rows, w_1, ctx.has_bias[0])
        kind = ctx.weight_type
        matrices = grad_w_1.to(kind), _typed(grad_b_1, kind), grad_w_2.to(kind), _typed(grad_b_2, kind)
        return _as(grad_rows, *ctx.x), None, None, *matrices


def _cut(rows: Tensor, ctx: Any) -> list[Tensor]:
    """Views of rows (R', N), one of each map: (B, H, T, K)."""
    b, t, _ = ctx.x[0]
    parts = rows[: b * t].view(b, t, -1).split(ctx.widths, dim=-1)  # (B, T, H*K) each
    return [part.unflatten(-1, (ctx.num_heads, -1)).transpose(1, 2) for part in parts]


def _new_heads(part: Tensor, dtype: torch.dtype) -> Tensor:
    """A copy of (B, H, T, K), head by head."""
    return part.new_empty(part.shape, dtype=dtype).copy_(part)


def _rows(x: Tensor, dtype: torch.dtype) -> Tensor:
    """(..., D) -> (R', D)."""
    rows = x.flatten(0, -2).to(dtype)
    return filled(rows) if onednn_writes_by_shape(dtype) else rows


def _full(rows: int, dtype: torch.dtype) -> int:
    """R' for R rows."""
    return full(rows) if onednn_writes_by_shape(dtype) else rows


def product(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + b, on a processor by oneDNN where it can: (R, D), (N, D), (N,) -> (R, N).

    (One core of an AMD EPYC, float32, 3,904 rows, 1,024 -> 256: 18.9 ms, by ``@`` 24.1; in bf16 9.8 both.)
    """
    if rows.device.type == "cpu" and has_onednn(rows.dtype):
        bias = None if bias is None else bias.contiguous()  # it is read as if it were
        return torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")
    return F.linear(rows, weight, bias)


def _flops(
    rows: torch.Size,
    weight: torch.Size,
    bias: torch.Size | None,
    activation: str,
    scalars: list[float],
    algorithm: str,
    *,
    out_shape: torch.Size | None = None,
) -> int:
    """Operations of a product, from the shapes of its arguments, for torch's ``FlopCounterMode``."""
    return 2 * rows.numel() * weight[0]


if torch.backends.mkldnn.is_available():
    register_flop_formula(torch.ops.mkldnn._linear_pointwise)(_flops)


def _gradients(
    upstream: Tensor, rows: Tensor, weight: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """From the gradient (R', N) of y = x Wᵀ + b to those of x (R', D), W (N, D) and b (N,)."""
    grad_rows = product(upstream, weight.t())  # (R', N) @ (N, D) -> (R', D)
    return grad_rows, upstream.t() @ rows, upstream.sum(dim=0) if has_bias else None


def _as(rows: Tensor, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """(R', D) -> (..., D)."""
    return rows[: shape[:-1].numel()].view(shape).to(dtype)


def _typed(bias: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if bias is None else bias.to(dtype)
