"""The Transformer: an encoder and a decoder of attention alone (Vaswani et al. 2017, section 3.1).

Letters: B batch, W hypotheses of a sentence (1 outside of search), S source length, T target length,
t target tokens so far, D d_model.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import torch.nn.functional as F
from torch import Tensor, nn

from minitrans.model.cache import Cache, LayerCache
from minitrans.model.embeddings import TokenEmbedding
from minitrans.model.encoder_decoder import AttentionMaps, DecoderFace, EncoderDecoder, EncoderFace
from minitrans.model.fast.stream import narrow
from minitrans.model.layers import DecoderLayer, EncoderLayer
from minitrans.model.masks import padding_mask
from minitrans.model.positions import PositionEncoding


class Encoder(EncoderFace):
    """Embeddings with positions, then the layers, then (pre-norm) the last norm.

    Parameters
    ----------
    final_norm
        A norm in pre-norm, whose layers' sum is not normalised yet; ``nn.Identity()`` in post-norm.
    dropout
        Applied to the embeddings.
    fast
        Under autocast, keep the residual stream in half precision too (:mod:`minitrans.model.fast.stream`).
    """

    def __init__(
        self,
        embedding: TokenEmbedding,
        position: PositionEncoding,
        layers: Sequence[EncoderLayer],
        final_norm: nn.Module,
        dropout: nn.Module,
        *,
        fast: bool = False,
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.position = position
        self.layers = nn.ModuleList(layers)
        self.final_norm = final_norm
        self.dropout = dropout
        self.fast = fast

    @property
    def limit(self) -> int | None:
        return self.position.limit

    def forward(self, src: Tensor, src_mask: Tensor, maps: AttentionMaps | None = None) -> Tensor:
        """(B, S) ids and (B, 1, S) bool -> memory (B, S, D)."""
        x = self.position.add(self.embedding(src))  # (B, S) -> (B, S, D)
        x = self.dropout(narrow(x) if self.fast else x)
        for layer in self.layers:
            x = layer(x, src_mask, self.position, None if maps is None else maps.encoder)
        return self.final_norm(x)


class Decoder(DecoderFace):
    """Embeddings with positions, then the layers, then (pre-norm) the last norm.

    Parameters
    ----------
    causal
        Each position attends to itself and those before. False is a leak on purpose: in training a position
        sees the later tokens too, the one that it predicts among them. Search has no later tokens to show:
        a step still sees the past alone, as always.

    The others are those of :class:`Encoder`.
    """

    def __init__(
        self,
        embedding: TokenEmbedding,
        position: PositionEncoding,
        layers: Sequence[DecoderLayer],
        final_norm: nn.Module,
        dropout: nn.Module,
        *,
        causal: bool = True,
        fast: bool = False,
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.position = position
        self.layers = nn.ModuleList(layers)
        self.final_norm = final_norm
        self.dropout = dropout
        self.causal = causal
        self.fast = fast
        self.num_attentions = len(self.layers)

    @property
    def limit(self) -> int | None:
        return self.position.limit

    def start_cache(self, memory: Tensor, src_mask: Tensor) -> Cache[LayerCache]:
        """(B, S, D) and (B, 1, S) -> the cache before the first token."""
        layers = (cast(DecoderLayer, layer) for layer in self.layers)
        return Cache(tuple(layer.start_cache(memory) for layer in layers), src_mask)

    def forward(
        self, tgt: Tensor, cache: Cache[LayerCache], maps: AttentionMaps | None = None
    ) -> tuple[Tensor, Cache[LayerCache]]:
        """The newest tokens (B*W, T) -> their states (B*W, T, D), and the grown cache."""
        start = cache.length
        # To a real token padding is future, so that only without the causal mask it has to be hidden.
        tgt_mask = None if self.causal else F.pad(padding_mask(tgt), (start, 0), value=True)  # (B*W, 1, t)
        x = self.position.add(self.embedding(tgt), start)  # (B*W, T) -> (B*W, T, D)
        x = self.dropout(narrow(x) if self.fast else x)
        grown = []
        for layer, layer_cache in zip(self.layers, cache.layers, strict=True):
            x, layer_cache = layer(
                x,
                layer_cache,
                cache.src_mask,
                self.position,
                start,
                None if maps is None else maps.decoder,
                None if maps is None else maps.cross,
                tgt_mask,
            )
            grown.append(layer_cache)
        return self.final_norm(x), replace(cache, layers=tuple(grown), length=start + tgt.size(1))


class Transformer(EncoderDecoder):
    """Encoder and decoder of attention alone, with an output matrix (Vaswani et al. 2017, figure 1)."""

    encoder: Encoder
    decoder: Decoder
