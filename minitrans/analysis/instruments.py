r"""The instruments of the √d_k study: what the dot products of each head are like, and what becomes of them.

If the components of a query and a key are independent with mean 0 and variance 1, then their dot product has
mean 0 and variance d_k (Vaswani et al. 2017, section 3.2.1, footnote 4). Unscaled, a large d_k so makes a
softmax of large logits: rows of low entropy, saturated ones, a small Jacobian, and small gradients of W^Q and
W^K behind it. Each link of that chain is a figure here.

Padding, masked keys and the queries of padding are left out. So are queries that see one key alone (the
decoder's first): whatever the model does, their weight is 1.

Letters: B batch, S source length, T target length, H heads, D d_model, K d_k.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

import torch
from torch import Tensor

from minitrans.analysis.operands import SIDES, Operands, Place, places, recorded
from minitrans.analysis.softmax import is_saturated, jacobian_norm, row_entropy, visible_softmax
from minitrans.data.batching import Batch
from minitrans.decoding.translator import evaluating
from minitrans.model.encoder_decoder import EncoderDecoder

FEWEST_KEYS = 2  # that a query must see to be counted


@dataclass(frozen=True)
class HeadFigures:
    r"""The figures of one head; not a number where no query was counted.

    Attributes
    ----------
    side, layer, head
        ``encoder``, ``decoder`` or ``cross``; from 1; from 1.
    d_k, scale
        Width of queries and keys, and the factor of their dot products.
    variance
        Var[q·k] over all pairs of a query and a key that it sees, before the factor. Predicted: d_k.
    predicted_variance
        d_k · E[q_c²] · E[k_c²], over components c: what independent components as large as these would give.
    scaled_variance
        scale² · variance: of the logits that the softmax gets.
    entropy
        Mean of -Σ_s a_s ln a_s over the queries, nats.
    uniform_entropy
        Mean of ln(number of keys that the query sees), nats: the entropy of rows that are even.
    saturated
        Share of the queries whose largest weight is above 0.99.
    jacobian
        Mean over the queries of ‖diag(a) - a aᵀ‖_F, the softmax's Jacobian at the logits that it gets.
    slope_scaled, slope_unscaled
        Mean of ‖∂a/∂(q·k)‖_F for these same dot products with the factor s = 1/√d_k, and with s = 1:
        s · ‖diag(a) - a aᵀ‖_F at a = softmax(s q·k).
    query_gradient, key_gradient
        Frobenius norms of ∂loss/∂W^Q and ∂loss/∂W^K, the rows of this head; the loss is that of training
        (nats per target token, smoothed), without dropout.
    """

    side: str
    layer: int
    head: int
    d_k: int
    scale: float
    variance: float
    predicted_variance: float
    scaled_variance: float
    entropy: float
    uniform_entropy: float
    saturated: float
    jacobian: float
    slope_scaled: float
    slope_unscaled: float
    query_gradient: float
    key_gradient: float


COLUMNS = tuple(f.name for f in fields(HeadFigures))


@dataclass(frozen=True)
class Measurement:
    """What the instruments showed on some batches.

    Attributes
    ----------
    heads
        Side by side, layer by layer, head by head.
    key_counts
        Side -> number of keys that a query sees -> counted queries that see so many.
    """

    heads: tuple[HeadFigures, ...]
    key_counts: Mapping[str, Mapping[int, int]] = field(repr=False)


def measure(model: EncoderDecoder, batches: Sequence[Batch], label_smoothing: float = 0.0) -> Measurement:
    """Read all instruments, in evaluation mode; weights, their ``.grad`` and generators stay as they are.

    Parameters
    ----------
    model
        A Transformer.
    batches
        At least one, on the model's device.
    label_smoothing
        Of the loss whose gradient is measured.

    Raises
    ------
    UserError
        The model is of another architecture.
    """
    at = places(model)
    sums = [_Sums(place) for place in at]
    key_counts: dict[str, Counter[int]] = {side: Counter() for side in SIDES}
    weights = [w for place in at for w in (place.attention.w_query.weight, place.attention.w_key.weight)]
    gradients = [torch.zeros(weight.shape, dtype=torch.float64) for weight in weights]
    num_tokens = sum(batch.num_target_tokens for batch in batches)
    with evaluating(model), torch.enable_grad():
        for batch in batches:
            with recorded(at, batch) as found:
                loss = _loss(model, batch, label_smoothing) / num_tokens
            for total, part in zip(gradients, torch.autograd.grad(loss, weights), strict=True):
                total += part.cpu()
            _add(sums, key_counts, found)
    norms = [_head_norms(gradient, at[i // 2]) for i, gradient in enumerate(gradients)]
    rows = [
        figures
        for i, one in enumerate(sums)
        for figures in one.figures(query_gradients=norms[2 * i], key_gradients=norms[2 * i + 1])
    ]
    return Measurement(tuple(rows), key_counts)


def _loss(model: EncoderDecoder, batch: Batch, label_smoothing: float) -> Tensor:
    """The smoothed cross-entropy summed over the real target tokens, with a gradient."""
    states = model.decode(batch.tgt_in, model.encode(batch.src, batch.src_mask), batch.src_mask)
    return model.nll(states, batch.tgt_out, label_smoothing)[0]


def _add(sums: Sequence["_Sums"], key_counts: Mapping[str, Counter[int]], found: Sequence[Operands]) -> None:
    """Count one batch in: each attention's operands to its own sums."""
    of = {(one.place.side, one.place.layer): one for one in sums}
    for operands in found:
        counted = counted_pairs(operands.visible)  # (B, 1, T, S)
        of[operands.place.side, operands.place.layer].add(operands, counted)
        if operands.place.layer == 1:  # every layer of a side sees the same keys
            seen = counted.sum(dim=-1).flatten()  # (B, 1, T, S) -> (B*T,)
            key_counts[operands.place.side].update(seen[seen > 0].tolist())


def counted_pairs(visible: Tensor) -> Tensor:
    """Leave out the queries that see fewer than two keys: (B, 1, T, S) bool -> the same shape."""
    return visible & (visible.sum(dim=-1, keepdim=True) >= FEWEST_KEYS)


def _head_norms(gradient: Tensor, place: Place) -> list[float]:
    """The norm of each head's part: (H*K, D) -> H numbers."""
    return gradient.view(place.attention.num_heads, -1).norm(dim=1).tolist()  # (H*K, D) -> (H, K*D) -> (H,)


class _Sums:
    """Sums of one attention over batches, (H,) each, in float64; means are taken at the end."""

    def __init__(self, place: Place) -> None:
        self.place, self.d_k, self.scale = place, place.core.d_k, place.core.scale
        self.pairs = self.queries = self.keys = 0
        self.pair_sums: dict[str, Tensor] = {}
        self.row_sums: dict[str, Tensor] = {}
        self.component_sums: dict[str, Tensor] = {}

    def add(self, operands: Operands, counted: Tensor) -> None:
        """Count the pairs ``counted`` (B, 1, T, S) of one batch in."""
        query, key = operands.query, operands.key  # (B, H, T, K), (B, H, S, K)
        logits = query @ key.mT  # (B, H, T, K) @ (B, H, K, S) -> (B, H, T, S)
        rows, keys = counted.any(dim=-1), counted.any(dim=-2)  # (B, 1, T), (B, 1, S)
        self.pairs += int(counted.sum())
        self.queries += int(rows.sum())
        self.keys += int(keys.sum())
        _accumulate(self.pair_sums, {"first": logits, "second": logits.square()}, counted)
        _accumulate(self.component_sums, {"query": query.square().sum(dim=-1)}, rows)
        _accumulate(self.component_sums, {"key": key.square().sum(dim=-1)}, keys)
        _accumulate(self.row_sums, self._row_figures(logits, counted), rows)

    def _row_figures(self, logits: Tensor, counted: Tensor) -> dict[str, Tensor]:
        """Each (B, H, T)."""
        weights = visible_softmax(self.scale * logits, counted)  # (B, H, T, S)
        usual = 1 / math.sqrt(self.d_k)
        return {
            "entropy": row_entropy(weights),
            "uniform_entropy": counted.sum(dim=-1).clamp(min=1).double().log().expand(logits.shape[:-1]),
            "saturated": is_saturated(weights).double(),
            "jacobian": jacobian_norm(weights),
            "slope_scaled": usual * jacobian_norm(visible_softmax(usual * logits, counted)),
            "slope_unscaled": jacobian_norm(visible_softmax(logits, counted)),
        }

    def figures(self, query_gradients: list[float], key_gradients: list[float]) -> list[HeadFigures]:
        """The figures of each head."""
        mean = _over(self.pair_sums["first"], self.pairs)  # (H,)
        variance = _over(self.pair_sums["second"], self.pairs) - mean.square()
        components = _over(self.component_sums["query"], self.queries) / self.d_k
        components = components * _over(self.component_sums["key"], self.keys) / self.d_k
        columns = {
            "variance": variance,
            "predicted_variance": self.d_k * components,
            "scaled_variance": self.scale**2 * variance,
            **{name: _over(total, self.queries) for name, total in self.row_sums.items()},
        }
        return [
            HeadFigures(
                side=self.place.side,
                layer=self.place.layer,
                head=head + 1,
                d_k=self.d_k,
                scale=self.scale,
                **{name: float(values[head]) for name, values in columns.items()},
                query_gradient=query_gradients[head],
                key_gradient=key_gradients[head],
            )
            for head in range(self.place.attention.num_heads)
        ]


def _accumulate(sums: dict[str, Tensor], values: Mapping[str, Tensor], counted: Tensor) -> None:
    """Add to each sum (H,) the values (B, H, ...) at the places counted, (B, 1, ...)."""
    for name, value in values.items():
        part = value.masked_fill(~counted, 0.0).transpose(0, 1).flatten(1).sum(dim=1)  # (B, H, ...) -> (H,)
        sums[name] = sums[name] + part if name in sums else part


def _over(total: Tensor, count: int) -> Tensor:
    """The mean; not a number where nothing was counted."""
    return total / count if count else torch.full_like(total, math.nan)
