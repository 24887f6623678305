"""A decoder whose weights are laid out for search: the fast twin of a step of the Transformer's decoder.

A step of search is some dozens of small products, each with all of a matrix and a few rows. Three things cost
as much as the products themselves, and are saved here:

* oneDNN copies a matrix into the order in which its program reads it, at every product. A packed matrix
  lies in that order already.
* Query, key and value are three products with one input; here their matrices are one. The activation and the
  residual sum are done by the product that comes before them.
* Rows are filled up (:mod:`minitrans.model.fast.rows`) once a step, not once a product.

The weights are copied: train the model on, and it has to be packed again. (One core, width 256, 3 layers, 100
sentences, bf16: a step of the plain decoder took 7.4 ms, of this one 3.3.)

Letters: B sentences, W hypotheses of each, R = B*W rows, R' = R filled up, S source length, t target tokens
so far, H heads, D d_model, F d_ff, K d_k, V d_v, N vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitrans.model.attention import MultiHeadAttention, ScaledDotProductAttention
from minitrans.model.cache import Cache, LayerCache
from minitrans.model.encoder_decoder import EncoderDecoder
from minitrans.model.fast.attention import folded_attention
from minitrans.model.fast.rows import filled
from minitrans.model.feedforward import FeedForward, GatedFeedForward
from minitrans.model.layers import DecoderLayer, Residual
from minitrans.model.positions import PositionEncoding
from minitrans.model.transformer import Decoder

M = TypeVar("M")

USUAL_ROWS = 128  # the order of a matrix depends a little on the rows that it will meet


def packed(model: M) -> "M | PackedTransformer":
    """The twin of a Transformer in bf16 on a processor. All else, and a model without ``fast``, as it is."""
    if not isinstance(model, EncoderDecoder) or not isinstance(model.decoder, Decoder) or not model.fast:
        return model
    weight, cores = model.output.weight, [_core(layer.self_attention) for layer in _layers(model.decoder)]
    if weight.device.type != "cpu" or weight.dtype != torch.bfloat16 or not _has_packed_products():
        return model
    ours_to_choose = all(core.backend == "auto" for core in cores)
    return PackedTransformer(model, model.decoder) if ours_to_choose else model


def _has_packed_products() -> bool:
    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


class PackedLinear:
    """y = x [W_1; W_2; ...]ᵀ + [b_1; b_2; ...]: the products of several linear maps with one input, as one.

    Rows must be filled up: a program is written for each new number of them.
    """

    def __init__(self, *linears: nn.Linear) -> None:
        weights: list[Tensor] = [linear.weight for linear in linears]
        biases: list[Tensor] = [linear.bias for linear in linears if linear.bias is not None]
        self.bias = torch.cat(biases) if biases else None
        self.weight = torch.ops.mkldnn._reorder_linear_weight(torch.cat(weights), USUAL_ROWS)

    def __call__(self, x: Tensor) -> Tensor:
        """(R', D) -> (R', outputs)."""
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")

    def rectified(self, x: Tensor) -> Tensor:
        """ReLU(y): (R', D) -> (R', outputs)."""
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "relu", [], "")

    def added(self, residual: Tensor, x: Tensor) -> Tensor:
        """residual + y: (R', outputs), (R', D) -> (R', outputs)."""
        return torch.ops.mkldnn._linear_pointwise.binary(x, residual, self.weight, self.bias, "add")


class PackedTransformer:
    """A model with the face that search asks for; its steps are the packed ones.

    Parameters
    ----------
    model
        In evaluation mode, in half precision.
    decoder
        Its decoder.
    """

    def __init__(self, model: EncoderDecoder, decoder: Decoder) -> None:
        self.model = model
        self.decoder = decoder
        with torch.no_grad():
            self.layers = [_PackedLayer(layer, decoder.position) for layer in _layers(decoder)]
            self.output = PackedLinear(model.output)

    @property
    def tgt_limit(self) -> int | None:
        """The model's."""
        return self.model.tgt_limit

    def encode(self, src: Tensor, src_mask: Tensor) -> Tensor:
        """(B, S) ids, (B, 1, S) -> memory (B, S, D), by the model itself."""
        return self.model.encode(src, src_mask)

    def start_cache(self, memory: Tensor, src_mask: Tensor) -> Cache[LayerCache]:
        """(B, S, D), (B, 1, S) -> the cache before the first token, by the model itself."""
        return self.model.start_cache(memory, src_mask)

    def attending_step(self, tgt: Tensor, cache: Cache[Any]) -> tuple[Tensor, Tensor, Cache[Any]]:
        """A step that tells where it looked, by the model itself."""
        return self.model.attending_step(tgt, cache)

    def step(self, tgt: Tensor, cache: Cache[LayerCache]) -> tuple[Tensor, Cache[LayerCache]]:
        """The newest tokens (R, 1) -> their states (R, 1, D), and the grown cache."""
        start = cache.length
        mask = None if bool(cache.src_mask.all()) else cache.src_mask.unsqueeze(1)  # (B, 1, 1, S)
        x = self.decoder.position.add(self.decoder.embedding(tgt), start)  # (R, 1) -> (R, 1, D)
        x = filled(x.squeeze(1))  # (R, 1, D) -> (R', D)
        grown = []
        for layer, layer_cache in zip(self.layers, cache.layers, strict=True):
            x, layer_cache = layer(x, layer_cache, mask, start, len(tgt))
            grown.append(layer_cache)
        states = self.decoder.final_norm(x)[: len(tgt)].unsqueeze(1)  # (R', D) -> (R, 1, D)
        return states, replace(cache, layers=tuple(grown), length=start + 1)

    def logits(self, states: Tensor) -> Tensor:
        """(R, 1, D) -> (R, 1, N)."""
        return self.output(filled(states.squeeze(1)))[: len(states)].unsqueeze(1)


class _PackedLayer:
    """One layer of the decoder; for the steps see :class:`minitrans.model.layers.DecoderLayer`."""

    def __init__(self, layer: DecoderLayer, position: PositionEncoding) -> None:
        own, cross = layer.self_attention, layer.cross_attention
        self.position = position
        self.residuals = layer.self_residual, layer.cross_residual, layer.ffn_residual
        self.num_heads = own.num_heads
        self.self_core, self.cross_core = _core(own), _core(cross)
        self.query_key_value = PackedLinear(own.w_query, own.w_key, own.w_value)
        self.widths = [linear.out_features for linear in (own.w_query, own.w_key, own.w_value)]
        self.self_output = PackedLinear(own.w_output)
        self.cross_query = PackedLinear(cross.w_query)
        self.cross_output = PackedLinear(cross.w_output)
        self.feed_forward = None if layer.feed_forward is None else _packed_network(layer.feed_forward)

    def __call__(
        self, x: Tensor, cache: LayerCache, mask: Tensor | None, start: int, num_rows: int
    ) -> tuple[Tensor, LayerCache]:
        """(R', D), of which R = ``num_rows`` rows count, and (B, 1, 1, S) -> (R', D) and the grown cache."""
        self_residual, cross_residual, ffn_residual = self.residuals
        together = self.query_key_value(self_residual.open(x))[:num_rows]  # (R, 2*H*K + H*V)
        query, key, value = (
            part.unflatten(-1, (self.num_heads, 1, -1)) for part in together.split(self.widths, -1)
        )
        query, key = self.position.rotate(query, start), self.position.rotate(key, start)  # (R, H, 1, K)
        key, value, cache = cache.extend(key, value)  # (R, H, t, K), (R, H, t, V)
        heads, _ = self.self_core(query, key, value, need_weights=False)  # (R, H, 1, V)
        x = _close(self_residual, self.self_output.added(x, filled(heads.flatten(1))))  # (R', D)

        h = self.cross_query(cross_residual.open(x))[:num_rows]  # (R, H*K)
        query = h.view(len(cache.cross_key), -1, self.num_heads, self.cross_core.d_k).transpose(
            1, 2
        )  # (B, H, W, K)
        cache = _widened(cache) if query.size(2) > 1 else cache
        heads = self._look_at_source(query, cache, mask)  # (B, H, W, V)
        joined = heads.transpose(1, 2).reshape(num_rows, -1)  # (B, W, H, V) -> (R, H*V)
        x = _close(cross_residual, self.cross_output.added(x, filled(joined)))  # (R', D)

        if self.feed_forward is None or ffn_residual is None:
            return x, cache
        return _close(ffn_residual, self.feed_forward(x, ffn_residual.open(x))), cache

    def _look_at_source(self, query: Tensor, cache: LayerCache, mask: Tensor | None) -> Tensor:
        """(B, H, W, K), (B, 1, 1, S) -> (B, H, W, V). Every source has a token, so no query has no key."""
        key, value, scale = cache.cross_key, cache.cross_value, self.cross_core.scale
        if query.size(2) > 1:
            return folded_attention(query.float(), key, value, mask, scale=scale).to(query.dtype)
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)


def _widened(cache: LayerCache) -> LayerCache:
    """With the source's keys and values in float32, as several queries need them: once, not every step."""
    return replace(cache, cross_key=_wide(cache.cross_key), cross_value=_wide(cache.cross_value))


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.float32, memory_format=torch.contiguous_format)


def _packed_network(network: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    """The twin of a feed-forward network with its residual: (R', D), (R', D) -> (R', D)."""
    assert isinstance(network, (FeedForward, GatedFeedForward))
    w_2 = PackedLinear(network.w_2)
    activation = network.activation
    if isinstance(network, GatedFeedForward):
        both = PackedLinear(network.w_1, network.w_gate)

        def gated(residual: Tensor, x: Tensor) -> Tensor:
            inner, gate = both(x).chunk(2, dim=-1)  # (R', 2*F) -> two of (R', F)
            return w_2.added(residual, activation(inner) * gate)

        return gated
    w_1 = PackedLinear(network.w_1)
    if activation is F.relu:
        return lambda residual, x: w_2.added(residual, w_1.rectified(x))
    return lambda residual, x: w_2.added(residual, activation(w_1(x)))


def _close(residual: Residual, y: Tensor) -> Tensor:
    """What :meth:`Residual.close` does after the sum."""
    return y if residual.pre_norm else residual.norm(y)


def _core(attention: MultiHeadAttention) -> ScaledDotProductAttention:
    assert isinstance(attention.core, ScaledDotProductAttention)
    return attention.core


def _layers(decoder: Decoder) -> Sequence[DecoderLayer]:
    return [layer for layer in decoder.layers if isinstance(layer, DecoderLayer)]
