"""A Transformer whose weights are laid out for search: the fast twin of its layers where nothing is trained.

A step of search is some dozens of small products, each with all of a matrix and a few rows. Other things cost
as much as the products themselves, and are saved here:

* oneDNN copies a matrix into the order in which its program reads it, at every product. A packed matrix
  lies in that order already.
* Query, key and value are three products with one input; here their matrices are one. The activation and the
  residual sum are done by the product that comes before them.
* Rows are filled up (:mod:`minitrans.model.fast.rows`) once a step, not once a product. The cache has room
  for some more tokens, so that its keys and values need not move for each.

The weights are copied: train the model on, and it has to be packed again. (One core, width 256, 3 layers, 100
sentences, bf16, greedy: 1.3 times as many sentences a second.)

Letters: B sentences, W hypotheses of each, R = B*W rows, R' = rows filled up, S source length, t target
tokens so far, H heads, D d_model, F d_ff, K d_k, V d_v, N vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitrans.model.attention import MultiHeadAttention, ScaledDotProductAttention
from minitrans.model.cache import Cache, LayerCache
from minitrans.model.encoder_decoder import EncoderDecoder
from minitrans.model.fast.attention import folded_attention, wide
from minitrans.model.fast.rows import filled, has_onednn
from minitrans.model.feedforward import FeedForward, GatedFeedForward
from minitrans.model.layers import DecoderLayer, EncoderLayer, Residual
from minitrans.model.positions import PositionEncoding
from minitrans.model.transformer import Decoder, Encoder

M = TypeVar("M")

SPARE_PLACES = 16
USUAL_ROWS = 128  # the order of a matrix depends a little on the rows that it will meet


def packed(model: M) -> "M | PackedTransformer":
    """The twin of a Transformer in bf16 on a processor. All else, and a model without ``fast``, as it is."""
    if not isinstance(model, EncoderDecoder) or not model.fast:
        return model
    encoder, decoder, weight = model.encoder, model.decoder, model.output.weight
    if not isinstance(encoder, Encoder) or not isinstance(decoder, Decoder):
        return model
    if weight.device.type != "cpu" or weight.dtype != torch.bfloat16 or not has_onednn(weight.dtype):
        return model
    cores = (part for part in model.modules() if isinstance(part, ScaledDotProductAttention))
    ours_to_choose = all(core.backend == "auto" for core in cores)
    return PackedTransformer(model, encoder, decoder) if ours_to_choose else model


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
    """A model with the face that search asks for, each layer of which is a packed one.

    Parameters
    ----------
    model
        In evaluation mode, in bf16.
    encoder, decoder
        Its own.
    """

    def __init__(self, model: EncoderDecoder, encoder: Encoder, decoder: Decoder) -> None:
        self.model, self.encoder, self.decoder = model, encoder, decoder
        with torch.no_grad():
            self.encoder_layers = [_PackedEncoderLayer(layer, encoder.position) for layer in encoder.layers]
            self.decoder_layers = [_PackedDecoderLayer(layer, decoder.position) for layer in decoder.layers]
            self.output = PackedLinear(model.output)

    @property
    def tgt_limit(self) -> int | None:
        """The model's."""
        return self.model.tgt_limit

    def encode(self, src: Tensor, src_mask: Tensor) -> Tensor:
        """(B, S) ids, (B, 1, S) -> memory (B, S, D)."""
        mask = None if bool(src_mask.all()) else src_mask.unsqueeze(1)  # (B, 1, 1, S)
        x = self.encoder.position.add(self.encoder.embedding(src))  # (B, S) -> (B, S, D)
        x = filled(x.flatten(0, 1))  # (B, S, D) -> (R', D)
        for layer in self.encoder_layers:
            x = layer(x, mask, (src.size(0), src.size(1)))
        return self.encoder.final_norm(x)[: src.numel()].view(*src.shape, -1)  # (R', D) -> (B, S, D)

    def start_cache(self, memory: Tensor, src_mask: Tensor) -> Cache[LayerCache]:
        """(B, S, D), (B, 1, S) -> the cache before the first token."""
        cache = self.model.start_cache(memory, src_mask)
        return replace(
            cache, layers=tuple(RoomyCache(own.cross_key, own.cross_value) for own in cache.layers)
        )

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
        for layer, layer_cache in zip(self.decoder_layers, cache.layers, strict=True):
            x, layer_cache = layer(x, layer_cache, mask, start, len(tgt))
            grown.append(layer_cache)
        states = self.decoder.final_norm(x)[: len(tgt)].unsqueeze(1)  # (R', D) -> (R, 1, D)
        return states, replace(cache, layers=tuple(grown), length=start + 1)

    def logits(self, states: Tensor) -> Tensor:
        """(R, 1, D) -> (R, 1, N)."""
        return self.output(filled(states.squeeze(1)))[: len(states)].unsqueeze(1)


class _Room:
    """Places for the keys and values of tokens to come.

    Attributes
    ----------
    key, value
        (R, H, places, K) and (R, H, places, V).
    used
        Places that are taken.
    """

    def __init__(self, key: Tensor, value: Tensor, places: int) -> None:
        self.key = key.new_empty(*key.shape[:2], places, key.size(3))
        self.value = value.new_empty(*value.shape[:2], places, value.size(3))
        self.used = 0

    def take(self, key: Tensor, value: Tensor) -> None:
        """Put (R, H, n, K) and (R, H, n, V) into the next n places."""
        end = self.used + key.size(2)
        self.key[:, :, self.used : end] = key
        self.value[:, :, self.used : end] = value
        self.used = end


@dataclass(frozen=True)
class RoomyCache(LayerCache):
    """A cache whose keys and values lie at the beginning of a room, so that most tokens move none of them.

    The room is shared by the caches of later steps. The first one to go on from a cache takes the next place;
    whoever goes on from the same cache after that finds it taken, and moves to a room of its own.
    """

    room: _Room | None = None

    def extend(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, "LayerCache"]:
        """See :meth:`minitrans.model.cache.LayerCache.extend`."""
        seen = 0 if self.self_key is None else self.self_key.size(2)
        room, end = self.room, seen + key.size(2)
        if room is None or room.used != seen or room.key.size(2) < end:
            room = _Room(key, value, end + SPARE_PLACES)
            if self.self_key is not None and self.self_value is not None:
                room.take(self.self_key, self.self_value)
        room.take(key, value)
        key, value = room.key[:, :, :end], room.value[:, :, :end]
        return key, value, replace(self, self_key=key, self_value=value, room=room)

    def select_hypotheses(self, rows: Tensor) -> "LayerCache":
        """See :meth:`minitrans.model.cache.LayerCache.select_hypotheses`."""
        chosen = super().select_hypotheses(rows)  # in tensors of their own
        return RoomyCache(chosen.cross_key, chosen.cross_value, chosen.self_key, chosen.self_value)


class _PackedEncoderLayer:
    """For the steps see :class:`minitrans.model.layers.EncoderLayer`."""

    def __init__(self, layer: nn.Module, position: PositionEncoding) -> None:
        assert isinstance(layer, EncoderLayer)
        self.own = _PackedSelfAttention(layer.self_attention, layer.self_residual, position)
        self.feed_forward = _packed_network(layer.feed_forward, layer.ffn_residual)

    def __call__(self, x: Tensor, mask: Tensor | None, shape: tuple[int, int]) -> Tensor:
        """(R', D), of which B*S rows of ``shape`` count, and (B, 1, 1, S) -> (R', D)."""
        query, key, value = self.own.project(x, shape)  # (B, H, S, K), (B, H, S, K), (B, H, S, V)
        heads, _ = self.own.core(query, key, value, mask, need_weights=False)  # (B, H, S, V)
        return self.feed_forward(self.own.close(x, heads))


class _PackedDecoderLayer:
    """For the steps see :class:`minitrans.model.layers.DecoderLayer`."""

    def __init__(self, layer: nn.Module, position: PositionEncoding) -> None:
        assert isinstance(layer, DecoderLayer)
        cross = layer.cross_attention
        self.own = _PackedSelfAttention(layer.self_attention, layer.self_residual, position)
        self.cross_residual, self.cross_core = layer.cross_residual, _core(cross)
        self.cross_query = PackedLinear(cross.w_query)
        self.cross_output = PackedLinear(cross.w_output)
        self.feed_forward = _packed_network(layer.feed_forward, layer.ffn_residual)

    def __call__(
        self, x: Tensor, cache: LayerCache, mask: Tensor | None, start: int, num_rows: int
    ) -> tuple[Tensor, LayerCache]:
        """(R', D), of which R = ``num_rows`` rows count, and (B, 1, 1, S) -> (R', D) and the grown cache."""
        query, key, value = self.own.project(x, (num_rows, 1), start)  # (R, H, 1, K), ..., (R, H, 1, V)
        key, value, cache = cache.extend(key, value)  # (R, H, t, K), (R, H, t, V)
        heads, _ = self.own.core(query, key, value, need_weights=False)  # (R, H, 1, V)
        x = self.own.close(x, heads)

        h = self.cross_query(self.cross_residual.open(x))[:num_rows]  # (R, H*K)
        b, num_heads = cache.cross_key.shape[:2]
        query = h.view(b, -1, num_heads, self.cross_core.d_k).transpose(1, 2)  # (R, H*K) -> (B, H, W, K)
        cache = _widened(cache) if query.size(2) > 1 else cache
        joined = _joined(self._look_at_source(query, cache, mask))  # (B, H, W, V) -> (R', H*V)
        x = _close(self.cross_residual, self.cross_output.added(x, joined))  # (R', D)
        return self.feed_forward(x), cache

    def _look_at_source(self, query: Tensor, cache: LayerCache, mask: Tensor | None) -> Tensor:
        """(B, H, W, K), (B, 1, 1, S) -> (B, H, W, V). Every source has a token, so no query has no key."""
        key, value, scale = cache.cross_key, cache.cross_value, self.cross_core.scale
        if query.size(2) > 1:
            return folded_attention(query.float(), key, value, mask, scale=scale).to(query.dtype)
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)


class _PackedSelfAttention:
    """Self-attention's maps and its residual."""

    def __init__(self, attention: MultiHeadAttention, residual: Residual, position: PositionEncoding) -> None:
        maps = attention.w_query, attention.w_key, attention.w_value
        self.core = _core(attention)
        self.residual, self.position, self.num_heads = residual, position, attention.num_heads
        self.together = PackedLinear(*maps)
        self.widths = [linear.out_features for linear in maps]
        self.output = PackedLinear(attention.w_output)

    def project(self, x: Tensor, shape: tuple[int, int], start: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """(R', D), of which n*T rows of ``shape`` count -> (n, H, T, K), (n, H, T, K), (n, H, T, V)."""
        rows = self.together(self.residual.open(x))[: shape[0] * shape[1]]  # (n*T, 2*H*K + H*V)
        parts = rows.view(*shape, -1).split(self.widths, dim=-1)  # (n, T, ...)
        query, key, value = (part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in parts)
        return self.position.rotate(query, start), self.position.rotate(key, start), value

    def close(self, x: Tensor, heads: Tensor) -> Tensor:
        """(R', D) and (n, H, T, V) -> (R', D)."""
        return _close(self.residual, self.output.added(x, _joined(heads)))


def _joined(heads: Tensor) -> Tensor:
    """(n, H, T, V) -> (n*T filled up, H*V)."""
    return filled(heads.transpose(1, 2).flatten(2).flatten(0, 1))


def _widened(cache: LayerCache) -> LayerCache:
    """With the source's keys and values in float32, as several queries need them: once, not every step."""
    return replace(cache, cross_key=wide(cache.cross_key), cross_value=wide(cache.cross_value))


def _packed_network(network: nn.Module | None, residual: Residual | None) -> Callable[[Tensor], Tensor]:
    """The twin of a feed-forward network, where there is one, with its residual: (R', D) -> (R', D)."""
    if network is None or residual is None:
        return lambda x: x
    assert isinstance(network, (FeedForward, GatedFeedForward))
    hidden, w_2 = _hidden(network), PackedLinear(network.w_2)
    return lambda x: _close(residual, w_2.added(x, hidden(residual.open(x))))


def _hidden(network: FeedForward | GatedFeedForward) -> Callable[[Tensor], Tensor]:
    """The twin of what comes before W_2: (R', D) -> (R', F)."""
    activation = network.activation
    if isinstance(network, GatedFeedForward):
        both = PackedLinear(network.w_1, network.w_gate)

        def gated(x: Tensor) -> Tensor:
            inner, gate = both(x).chunk(2, dim=-1)  # (R', 2*F) -> two of (R', F)
            return activation(inner) * gate

        return gated
    w_1 = PackedLinear(network.w_1)
    return w_1.rectified if activation is F.relu else lambda x: activation(w_1(x))


def _close(residual: Residual, y: Tensor) -> Tensor:
    """What :meth:`Residual.close` does after the sum."""
    return y if residual.pre_norm else residual.norm(y)


def _core(attention: MultiHeadAttention) -> ScaledDotProductAttention:
    assert isinstance(attention.core, ScaledDotProductAttention)
    return attention.core
