"""The Transformer: encoder, decoder, and the face that training and search use.

Letters: B batch, W hypotheses of a sentence (1 outside of search), S source length, T target length,
H heads, D d_model, N vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from torch import Tensor, nn

from minitrans.model.cache import Cache
from minitrans.model.embeddings import TokenEmbedding
from minitrans.model.fast.cross_entropy import chunked_cross_entropy_sums
from minitrans.model.layers import DecoderLayer, EncoderLayer
from minitrans.model.loss import cross_entropy_sums
from minitrans.model.positions import PositionEncoding


@dataclass(frozen=True)
class AttentionMaps:
    """Attention weights, one tensor a layer, first layer first.

    Attributes
    ----------
    encoder
        (B, H, S, S) each.
    decoder
        (B, H, T, T) each.
    cross
        (B, H, T, S) each.
    """

    encoder: list[Tensor] = field(default_factory=list)
    decoder: list[Tensor] = field(default_factory=list)
    cross: list[Tensor] = field(default_factory=list)


class Encoder(nn.Module):
    """Embeddings with positions, then the layers, then (pre-norm) the last norm.

    Parameters
    ----------
    final_norm
        A norm in pre-norm, whose layers' sum is not normalised yet; ``nn.Identity()`` in post-norm.
    dropout
        Applied to the embeddings.
    """

    def __init__(
        self,
        embedding: TokenEmbedding,
        position: PositionEncoding,
        layers: Sequence[EncoderLayer],
        final_norm: nn.Module,
        dropout: nn.Module,
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.position = position
        self.layers = nn.ModuleList(layers)
        self.final_norm = final_norm
        self.dropout = dropout

    def forward(self, src: Tensor, src_mask: Tensor, maps: AttentionMaps | None = None) -> Tensor:
        """(B, S) ids and (B, 1, S) bool -> memory (B, S, D)."""
        x = self.dropout(self.position.add(self.embedding(src)))  # (B, S) -> (B, S, D)
        for layer in self.layers:
            x = layer(x, src_mask, self.position, None if maps is None else maps.encoder)
        return self.final_norm(x)


class Decoder(nn.Module):
    """Embeddings with positions, then the layers, then (pre-norm) the last norm.

    Parameters are those of :class:`Encoder`.
    """

    def __init__(
        self,
        embedding: TokenEmbedding,
        position: PositionEncoding,
        layers: Sequence[DecoderLayer],
        final_norm: nn.Module,
        dropout: nn.Module,
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.position = position
        self.layers = nn.ModuleList(layers)
        self.final_norm = final_norm
        self.dropout = dropout

    def start_cache(self, memory: Tensor, src_mask: Tensor) -> Cache:
        """(B, S, D) and (B, 1, S) -> the cache before the first token."""
        layers = (cast(DecoderLayer, layer) for layer in self.layers)
        return Cache(tuple(layer.start_cache(memory) for layer in layers), src_mask)

    def forward(self, tgt: Tensor, cache: Cache, maps: AttentionMaps | None = None) -> tuple[Tensor, Cache]:
        """The newest tokens (B*W, T) -> their states (B*W, T, D), and the grown cache."""
        start = cache.length
        x = self.dropout(self.position.add(self.embedding(tgt), start))  # (B, T) -> (B, T, D)
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
            )
            grown.append(layer_cache)
        return self.final_norm(x), replace(cache, layers=tuple(grown), length=start + tgt.size(1))


class Transformer(nn.Module):
    """Encoder and decoder with an output matrix (Vaswani et al. 2017, figure 1).

    Parameters
    ----------
    encoder, decoder
        The stacks. One :class:`TokenEmbedding` given to both ties source and target.
    tie_output
        Use the target embedding as the output matrix (Press and Wolf 2017); else it has its own.
    fast
        Train with the chunked twin of the loss (:mod:`minitrans.model.fast`); the values are the same.
    """

    def __init__(self, encoder: Encoder, decoder: Decoder, *, tie_output: bool, fast: bool = True) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        vocab_size, d_model = decoder.embedding.weight.shape
        self.output = nn.Linear(d_model, vocab_size, bias=False)
        if tie_output:
            self.output.weight = decoder.embedding.weight
        self.fast = fast

    @property
    def src_limit(self) -> int | None:
        """Longest source in tokens, end token counted (None: any)."""
        return self.encoder.position.limit

    @property
    def tgt_limit(self) -> int | None:
        """Longest decoder input in tokens, start token counted (None: any)."""
        return self.decoder.position.limit

    def encode(self, src: Tensor, src_mask: Tensor) -> Tensor:
        """Read the source.

        Parameters
        ----------
        src
            (B, S) ids.
        src_mask
            (B, 1, S) bool, True at real tokens.

        Returns
        -------
        memory (B, S, D).

        Raises
        ------
        minitrans.model.positions.PositionLimitError
            If S is more than learned positions can place.
        """
        return self.encoder(src, src_mask)

    def decode(self, tgt: Tensor, memory: Tensor, src_mask: Tensor) -> Tensor:
        """All positions at once, each seeing itself and those before: a step from an empty cache.

        Parameters
        ----------
        tgt
            (B, T) ids, the start token first; padding at the right.
        memory, src_mask
            (B, S, D) and (B, 1, S).

        Returns
        -------
        states (B, T, D): position t's state predicts token t + 1.
        """
        states, _ = self.step(tgt, self.start_cache(memory, src_mask))
        return states

    def start_cache(self, memory: Tensor, src_mask: Tensor) -> Cache:
        """Compute the memory's keys and values: (B, S, D), (B, 1, S) -> the cache before the first token."""
        return self.decoder.start_cache(memory, src_mask)

    def step(self, tgt: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        """Go on from a cache.

        Parameters
        ----------
        tgt
            (B*W, n) the newest tokens, the W hypotheses of a sentence side by side.
        cache
            What came before them; left as it is.

        Returns
        -------
        states (B*W, n, D), and the cache with the n tokens in it.
        """
        return self.decoder(tgt, cache)

    def attending_step(self, tgt: Tensor, cache: Cache) -> tuple[Tensor, Tensor, Cache]:
        """A :meth:`step` that tells where it looked.

        Returns
        -------
        states (B*W, n, D), the last layer's attention to the source, the mean of its heads (B*W, n, S), and
        the cache.
        """
        maps = AttentionMaps()
        states, cache = self.decoder(tgt, cache, maps)
        attention = maps.cross[-1].mean(dim=1)  # (B, H, W*n, S) -> (B, W*n, S)
        return states, attention.reshape(*tgt.shape, -1), cache

    def logits(self, states: Tensor) -> Tensor:
        """(..., D) -> (..., N)."""
        return self.output(states)

    def nll(self, states: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
        """Cross-entropy summed over the real tokens of (B, T) ``targets``.

        See :func:`minitrans.model.loss.cross_entropy_sums`.

        Returns
        -------
        The smoothed sum (with a gradient) and the plain sum in nats (without), float32 scalars.
        """
        sums = chunked_cross_entropy_sums if self.fast else cross_entropy_sums
        return sums(states, self.output.weight, targets, label_smoothing)

    def forward(self, src: Tensor, src_mask: Tensor, tgt: Tensor) -> Tensor:
        """(B, S) ids, (B, 1, S) bool, (B, T) ids -> logits (B, T, N)."""
        return self.logits(self.decode(tgt, self.encode(src, src_mask), src_mask))

    def source_attention(
        self, src: Tensor, src_mask: Tensor, tgt: Tensor, layer: int | None = None
    ) -> Tensor:
        """How much each decoder input looks at each source token, the mean of one layer's heads.

        Parameters
        ----------
        src, src_mask
            (B, S) ids and (B, 1, S).
        tgt
            (B, T) decoder input, start first: row t is what predicts token t + 1.
        layer
            Decoder layer, from 1; None for the last.

        Returns
        -------
        (B, T, S), rows summing to 1.

        Raises
        ------
        ValueError
            There is no such layer.
        """
        num_layers = len(self.decoder.layers)
        if layer is not None and not 1 <= layer <= num_layers:
            raise ValueError(f"the model has {num_layers} decoder layers, but no layer {layer}")
        maps = AttentionMaps()
        self.decoder(tgt, self.start_cache(self.encode(src, src_mask), src_mask), maps)
        return maps.cross[(layer or num_layers) - 1].mean(dim=1)  # (B, H, T, S) -> (B, T, S)

    def attention_maps(self, src: Tensor, src_mask: Tensor, tgt: Tensor) -> AttentionMaps:
        """The weights of every layer and head for the given source (B, S) and decoder input (B, T)."""
        maps = AttentionMaps()
        memory = self.encoder(src, src_mask, maps)
        self.decoder(tgt, self.start_cache(memory, src_mask), maps)
        return maps
