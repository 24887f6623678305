"""What the Transformer and its rivals share: two stacks, an output matrix, and the face of the whole.

An architecture is an encoder and a decoder of the two faces below. Training, search and analysis use
:class:`EncoderDecoder` alone, and so run unchanged on each.

Letters: B batch, W hypotheses of a sentence (1 outside of search), S source length, T target length,
H heads, D d_model, N vocabulary.
"""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from minitrans.model.cache import Cache
from minitrans.model.embeddings import TokenEmbedding
from minitrans.model.fast.cross_entropy import chunked_cross_entropy_sums
from minitrans.model.loss import cross_entropy_sums


@dataclass(frozen=True)
class AttentionMaps:
    """Attention weights, one tensor a layer that attends, first layer first.

    Attributes
    ----------
    encoder
        (B, H, S, S) each; none where the encoder does not attend to itself.
    decoder
        (B, H, T, T) each; none where the decoder does not attend to itself.
    cross
        (B, H, T, S) each.
    """

    encoder: list[Tensor] = field(default_factory=list)
    decoder: list[Tensor] = field(default_factory=list)
    cross: list[Tensor] = field(default_factory=list)


class EncoderFace(nn.Module):
    """What an encoder offers: :meth:`forward`, and the two attributes.

    Attributes
    ----------
    embedding
        Called once a pass, on the whole (B, S).
    limit
        Longest source in tokens, end token counted (None: any).
    """

    embedding: TokenEmbedding

    @property
    def limit(self) -> int | None:
        return None

    def forward(self, src: Tensor, src_mask: Tensor, maps: AttentionMaps | None = None) -> Tensor:
        """(B, S) ids and (B, 1, S) bool -> memory (B, S, D); padding changes nothing at real tokens."""
        raise NotImplementedError


class DecoderFace(nn.Module):
    """What a decoder offers: :meth:`start_cache`, :meth:`forward`, and the three attributes.

    Attributes
    ----------
    embedding
        Called once a pass, on all the newest tokens.
    limit
        Longest decoder input in tokens, start token counted (None: any).
    num_attentions
        Layers that attend to the memory.
    """

    embedding: TokenEmbedding
    num_attentions: int

    @property
    def limit(self) -> int | None:
        return None

    def start_cache(self, memory: Tensor, src_mask: Tensor) -> Cache[Any]:
        """(B, S, D) and (B, 1, S) -> the cache before the first token."""
        raise NotImplementedError

    def forward(
        self, tgt: Tensor, cache: Cache[Any], maps: AttentionMaps | None = None
    ) -> tuple[Tensor, Cache[Any]]:
        """The newest tokens (B*W, T) -> their states (B*W, T, D), and the grown cache."""
        raise NotImplementedError


class EncoderDecoder(nn.Module):
    """Encoder and decoder with an output matrix.

    Parameters
    ----------
    encoder, decoder
        The stacks. One :class:`TokenEmbedding` given to both ties source and target.
    tie_output
        Use the target embedding as the output matrix (Press and Wolf 2017); else it has its own.
    fast
        Train with the chunked twin of the loss (:mod:`minitrans.model.fast`); the values are the same.
    """

    def __init__(
        self, encoder: EncoderFace, decoder: DecoderFace, *, tie_output: bool, fast: bool = True
    ) -> None:
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
        return self.encoder.limit

    @property
    def tgt_limit(self) -> int | None:
        """Longest decoder input in tokens, start token counted (None: any)."""
        return self.decoder.limit

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
        """All positions, each seeing itself and those before: a step from an empty cache.

        (With ``model.causal=false`` each sees the later ones too, see :class:`.transformer.Decoder`.)

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

    def start_cache(self, memory: Tensor, src_mask: Tensor) -> Cache[Any]:
        """Compute what every step needs: (B, S, D), (B, 1, S) -> the cache before the first token."""
        return self.decoder.start_cache(memory, src_mask)

    def step(self, tgt: Tensor, cache: Cache[Any]) -> tuple[Tensor, Cache[Any]]:
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

    def attending_step(self, tgt: Tensor, cache: Cache[Any]) -> tuple[Tensor, Tensor, Cache[Any]]:
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

    def nll(
        self, states: Tensor, targets: Tensor, label_smoothing: float = 0.0, num_real: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Cross-entropy summed over the real tokens of (B, T) ``targets``.

        See :func:`minitrans.model.loss.cross_entropy_sums`.

        Parameters
        ----------
        num_real
            How many they are, where that is known: a GPU is then not waited for.

        Returns
        -------
        The smoothed sum (with a gradient) and the plain sum in nats (without), float32 scalars.
        """
        if not self.fast:
            return cross_entropy_sums(states, self.output.weight, targets, label_smoothing)
        return chunked_cross_entropy_sums(
            states, self.output.weight, targets, label_smoothing, num_real=num_real
        )

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
            Decoder layer that attends to the source, from 1; None for the last.

        Returns
        -------
        (B, T, S), rows summing to 1.

        Raises
        ------
        ValueError
            There is no such layer.
        """
        num_layers = self.decoder.num_attentions
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
