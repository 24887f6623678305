"""Scaled dot-product and multi-head attention (Vaswani et al. 2017, section 3.2).

Letters: B batch, T number of queries, S number of keys, H heads, D d_model, K d_k, V d_v.

Read :func:`scaled_dot_product_attention` first: it is the whole idea in four matrix steps. A backend is
another way to the same numbers; a test holds the two equal over a grid of shapes, masks and types.
"""

import functools
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitrans.model.dropout import Dropout
from minitrans.model.fast.attention import folded_attention
from minitrans.model.fast.linear import heads_of, joined_heads, trains_on_processor
from minitrans.model.fast.rows import HALF, over_full_rows, type_of_products
from minitrans.model.masks import as_boolean_mask, causal_mask

BACKENDS = ("auto", "reference", "folded", "fused")

# Longest keys for which steps of products train faster than torch's processor kernel, whose backward pass
# is slow in half precision. One core, forward and backward, 4 heads of 32: at 32, 128, 512 keys the
# plain steps took 8, 17, 90 ms and the kernel 44, 52, 49 ms.
HALF_PRECISION_FOLDED_KEYS = 256
# The same in float32 where the processor's registers hold 8 values. One core, as above: at 15, 27, 64, 128
# keys the folded steps took 9, 17, 21, 40 ms and the kernel 22, 24, 24, 39.
NARROW_FOLDED_KEYS = 64
HAS_NARROW_REGISTERS = torch.backends.cpu.get_cpu_capability() == "AVX2"


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    scale: float | None = None,
    dropout: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention(Q, K, V) = softmax(Q Kᵀ · scale) V (Vaswani et al. 2017, equation 1).

    Parameters
    ----------
    query
        (..., T, K): single-head (B, T, K) or many heads at once (B, H, T, K).
    key
        (..., S, K).
    value
        (..., S, V); V may differ from K.
    mask
        Broadcastable to (..., T, S), such as (B, 1, S) or (B, T, S) for single-head input;
        True or 1 = may attend (other forms: :func:`minitrans.model.masks.as_boolean_mask`).
    scale
        Factor of the dot products; None is 1/√K, which keeps their variance at 1 when the components
        of query and key are independent with variance 1. 1.0 leaves them unscaled.
    dropout
        Applied to the weights, such as a :class:`minitrans.model.dropout.Dropout`.

    Returns
    -------
    output
        (..., T, V). A query that may attend to no key at all gives zeros, and zero gradients.
    weights
        (..., T, S), each row summing to 1 (to 0 for a query with no key).

    Raises
    ------
    ValueError
        For a mask whose values read two ways.
    """
    if scale is None:
        scale = 1 / math.sqrt(query.size(-1))
    # 1. logits
    logits = query @ key.transpose(-2, -1)  # (..., T, K) @ (..., K, S) -> (..., T, S)
    # 2. scale and mask
    logits = logits * scale
    if mask is not None:
        mask = as_boolean_mask(mask)
        logits = logits.masked_fill(~_open_empty_rows(mask), float("-inf"))
    # 3. softmax
    weights = logits.softmax(dim=-1)
    if mask is not None:
        weights = weights.masked_fill(~mask, 0.0)
    # 4. weighted sum of the values
    dropped = weights if dropout is None else dropout(weights)
    return dropped @ value, weights  # (..., T, S) @ (..., S, V) -> (..., T, V)


def _open_empty_rows(mask: Tensor) -> Tensor:
    """Unmask the rows in which every key is masked.

    A softmax over -inf alone is NaN, forward and backward; such rows are computed as if unmasked and
    multiplied by zero afterwards. No other fill is safe: a finite one can be beaten by large logits.
    """
    return mask | ~mask.any(dim=-1, keepdim=True)


def fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    scale: float | None = None,
    causal: bool = False,
    dropout_rate: float = 0.0,
) -> Tensor:
    """The output of :func:`scaled_dot_product_attention` from torch's own kernels, without the weights.

    Parameters are those of :func:`scaled_dot_product_attention`, except:

    causal
        Each query sees the keys up to its own position, counted from the end of the keys.
    dropout_rate
        Probability of a zero among the weights.
    """
    num_queries, num_keys = query.size(-2), key.size(-2)
    attend = functools.partial(
        F.scaled_dot_product_attention, query, key, value, dropout_p=dropout_rate, scale=scale
    )
    if causal and mask is None and num_queries == num_keys:
        return attend(is_causal=True)  # torch anchors its flag at the first key: right for squares alone
    mask = _combine(mask, causal, num_queries, num_keys, query.device)
    output = attend(attn_mask=None if mask is None else _open_empty_rows(mask))
    if mask is not None:
        output = output.masked_fill(~mask.any(dim=-1, keepdim=True), 0.0)
    return output


def _combine(
    mask: Tensor | None, causal: bool, num_queries: int, num_keys: int, device: torch.device
) -> Tensor | None:
    """Join a mask of any form and the causal one into booleans (None: everything is allowed)."""
    mask = None if mask is None else as_boolean_mask(mask)
    if not causal or num_queries == 1:  # the last position sees every key
        return mask
    past = causal_mask(num_queries, num_keys, device)  # (T, S)
    return past if mask is None else mask & past


def choose_backend(
    device: str, dtype: torch.dtype, num_queries: int, num_keys: int, *, trains: bool, drops: bool
) -> str:
    """What ``backend="auto"`` means, fixed here and never measured while running, so that runs repeat.

    Parameters
    ----------
    device
        ``cpu``, ``cuda``, ...
    dtype
        Type of the queries.
    num_queries, num_keys
        Lengths of the queries and the keys.
    trains
        Whether a backward pass will follow.
    drops
        Whether attention weights are dropped: no processor kernel does, torch falls back to slow steps.
    """
    if device != "cpu":
        return "fused"
    if drops:
        return "folded"
    if dtype in HALF:
        many = trains or num_queries > 1  # a step of search has one query, for which the kernel is faster
        return "folded" if many and num_keys <= HALF_PRECISION_FOLDED_KEYS else "fused"
    short = dtype == torch.float32 and num_keys <= NARROW_FOLDED_KEYS
    return "folded" if trains and short and HAS_NARROW_REGISTERS else "fused"


class ScaledDotProductAttention(nn.Module):
    """:func:`scaled_dot_product_attention` as a layer, with a choice of backend and no parameters.

    The projections Q = X W^Q, K = X W^K, V = X W^V are outside of it.

    Parameters
    ----------
    d_k
        Width of queries and keys.
    scale
        Factor of the dot products (None: 1/√d_k; 1.0: the unscaled ablation).
    backend
        ``reference`` (the four steps), ``folded`` (:func:`minitrans.model.fast.attention.folded_attention`),
        ``fused`` (torch's kernels) or ``auto`` (:func:`choose_backend`).
        Where the weights are asked for, the reference is used.
    dropout
        Applied to the weights.

    Raises
    ------
    ValueError
        For an unknown backend or a scale that is not a positive number.
    """

    def __init__(
        self, d_k: int, *, scale: float | None = None, backend: str = "auto", dropout: Dropout | None = None
    ) -> None:
        super().__init__()
        if backend not in BACKENDS:
            raise ValueError(f'attention.backend is "{backend}"; choose one of {", ".join(BACKENDS)}')
        if scale is not None and not scale > 0:
            raise ValueError(f"attention.scale must be above 0 (or null for 1/√d_k), but it is {scale}")
        self.d_k = d_k
        self.scale = 1 / math.sqrt(d_k) if scale is None else scale
        self.backend = backend
        self.dropout = dropout if dropout is not None else Dropout(0.0)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
        *,
        causal: bool = False,
        need_weights: bool = True,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend; see :func:`scaled_dot_product_attention` for the shapes.

        Parameters
        ----------
        causal
            Each query sees the keys up to its own position, counted from the end of the keys
            (on top of the mask).
        need_weights
            Return the weights too; without them a faster backend may be used.

        Raises
        ------
        ValueError
            If queries and keys are not ``d_k`` wide.
        """
        if query.size(-1) != self.d_k or key.size(-1) != self.d_k:
            raise ValueError(
                f"queries and keys must be {self.d_k} wide, but they are {query.size(-1)} and {key.size(-1)}"
            )
        backend = self.backend
        if backend == "auto":
            backend = choose_backend(
                query.device.type,
                type_of_products(query),
                query.size(-2),
                key.size(-2),
                trains=query.requires_grad,
                drops=self.dropout.active,
            )
        if need_weights or backend != "fused":
            mask = _combine(mask, causal, query.size(-2), key.size(-2), query.device)
            if not need_weights and backend == "folded" and query.dim() == 4:
                return folded_attention(query, key, value, mask, scale=self.scale, dropout=self.dropout), None
            output, weights = scaled_dot_product_attention(
                query, key, value, mask, scale=self.scale, dropout=self.dropout
            )
            return output, weights if need_weights else None
        rate = self.dropout.rate if self.dropout.active else 0.0
        output = fused_attention(query, key, value, mask, scale=self.scale, causal=causal, dropout_rate=rate)
        return output, None

    def extra_repr(self) -> str:
        return f"d_k={self.d_k}, scale={self.scale:.6g}, backend={self.backend}"


ATTENTION: dict[str, type[ScaledDotProductAttention]] = {"scaled_dot_product": ScaledDotProductAttention}
"""The family's table: a name of conf/attention -> its class; constructor arguments are its settings."""


class MultiHeadAttention(nn.Module):
    """MultiHead(X, Y) = [head_1; ...; head_H] W^O, head_i = Attention(X W_i^Q, Y W_i^K, Y W_i^V).

    Vaswani et al. 2017, section 3.2.2. The H maps of one kind are stored as one matrix.

    Parameters
    ----------
    d_model
        Width of the input and the output.
    num_heads
        Heads H.
    d_k
        Width of one head's queries and keys.
    d_v
        Width of one head's values.
    core
        Attention of each head, such as :class:`ScaledDotProductAttention`.
    bias
        Whether the four linear maps have biases.
    fast
        Compute them with what stands around them (:mod:`minitrans.model.fast.linear`) or, where nothing is
        trained, on few numbers of rows (:mod:`minitrans.model.fast.rows`).
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_k: int,
        d_v: int,
        core: nn.Module,
        *,
        bias: bool = True,
        fast: bool = False,
    ) -> None:
        super().__init__()
        self.fast = fast
        self.num_heads = num_heads
        self.core = core
        self.w_query = nn.Linear(d_model, num_heads * d_k, bias=bias)
        self.w_key = nn.Linear(d_model, num_heads * d_k, bias=bias)
        self.w_value = nn.Linear(d_model, num_heads * d_v, bias=bias)
        self.w_output = nn.Linear(num_heads * d_v, d_model, bias=bias)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """All three of one sequence, (B, T, D): queries and keys (B, H, T, K), and values (B, H, T, V)."""
        query, key, value = self._heads(x, self.w_query, self.w_key, self.w_value)
        return query, key, value

    def project_query(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, H, T, K)."""
        return self._heads(x, self.w_query)[0]

    def project_key_value(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """(B, S, D) -> keys (B, H, S, K) and values (B, H, S, V)."""
        key, value = self._heads(y, self.w_key, self.w_value)
        return key, value

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
        *,
        causal: bool = False,
        maps: list[Tensor] | None = None,
    ) -> Tensor:
        """Attend with projected queries, keys and values, and join the heads.

        Parameters
        ----------
        query, key, value
            (B, H, T, K), (B, H, S, K), (B, H, S, V).
        mask
            (B, 1, S) or (B, T, S), the same for every head; or (T, S); or (B, H or 1, T or 1, S).
        causal
            Each query sees the keys up to its own position, counted from the end of the keys.
        maps
            Where given, the weights (B, H, T, S) are appended to it.

        Returns
        -------
        (B, T, D).
        """
        if mask is not None and mask.dim() == 3:
            mask = mask.unsqueeze(1)  # (B, T, S) -> (B, 1, T, S)
        heads, weights = self.core(query, key, value, mask, causal=causal, need_weights=maps is not None)
        if maps is not None:
            maps.append(weights)
        return self._join(heads)

    def _join(self, heads: Tensor) -> Tensor:
        """[head_1; ...; head_H] W^O: (B, H, T, V) -> (B, T, D)."""
        if self.fast and trains_on_processor(heads, self.w_output):
            return joined_heads(heads, self.w_output)
        joined = heads.transpose(1, 2).flatten(2)  # (B, H, T, V) -> (B, T, H, V) -> (B, T, H*V)
        return self._map(self.w_output, joined)  # (B, T, H*V) -> (B, T, D)

    def _heads(self, x: Tensor, *maps: nn.Linear) -> tuple[Tensor, ...]:
        """x W_i^Q for all heads i, and so for each of the maps: (B, T, D) -> (B, H, T, K)."""
        biases = sum(linear.bias is not None for linear in maps)
        if self.fast and biases in (0, len(maps)) and trains_on_processor(x, *maps):
            return heads_of(x, maps, self.num_heads)
        return tuple(self._split(self._map(linear, x)) for linear in maps)

    def forward(self, x: Tensor, y: Tensor, mask: Tensor | None = None, *, causal: bool = False) -> Tensor:
        """Queries from ``x`` (B, T, D), keys and values from ``y`` (B, S, D) -> (B, T, D)."""
        key, value = self.project_key_value(y)
        return self.attend(self.project_query(x), key, value, mask, causal=causal)

    def _map(self, linear: nn.Linear, x: Tensor) -> Tensor:
        return over_full_rows(linear, x) if self.fast else linear(x)

    def _split(self, x: Tensor) -> Tensor:
        """Cut the last axis into heads: (B, T, H*K) -> (B, T, H, K) -> (B, H, T, K)."""
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
