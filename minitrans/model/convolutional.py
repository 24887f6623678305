"""The convolutional rival: gated, dilated convolutions with attention (Gehring et al. 2017).

A layer mixes each position with its neighbours alone, so that two positions meet only after the layers that
it takes to span their distance: O(log n) where the dilation doubles (Vaswani et al. 2017, table 1).

Gates and attention are those of Gehring et al. 2017, dilations those of Kalchbrenner et al. 2016 (ByteNet,
section 3.4); and in place of weight normalisation each block has the residual and norm of the
Transformer's layers, as Kaiser et al. 2017 (SliceNet, section 2.1) normalise layers too.

Letters: B batch, W hypotheses of a sentence (1 outside of search), S source length, T target length,
D d_model, C d_hidden (channels), k kernel size, R reach: the positions that a convolution reads besides one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitrans.model.attention import ScaledDotProductAttention
from minitrans.model.cache import Cache
from minitrans.model.embeddings import TokenEmbedding
from minitrans.model.encoder_decoder import AttentionMaps, DecoderFace, EncoderDecoder, EncoderFace
from minitrans.model.layers import Residual
from minitrans.model.positions import PositionEncoding

DILATIONS = (1, 2, 4, 8, 16)
"""Distance between the neighbours that a layer reads, first layer first, then again from the first."""

HALF = math.sqrt(0.5)  # keeps the variance of a sum of two at that of one (Gehring et al. 2017, section 3.5)


class GatedConvolution(nn.Module):
    """y = a ⊙ σ(b), (a_t, b_t) = W [x_t; x_{t+d}; ...; x_{t+(k-1)d}] + b, with d the dilation.

    A convolution with a gated linear unit (Dauphin et al. 2017; Gehring et al. 2017, section 3.2). It is one
    matrix product on the neighbours side by side, the fastest form for short sequences on a processor.
    """

    def __init__(self, d_hidden: int, kernel_size: int, dilation: int) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.dilation = dilation
        self.linear = nn.Linear(kernel_size * d_hidden, 2 * d_hidden)

    @property
    def reach(self) -> int:
        """R = (k - 1) · d."""
        return (self.kernel_size - 1) * self.dilation

    def forward(self, x: Tensor) -> Tensor:
        """(B, R + T, C) -> (B, T, C): output t is of inputs t to t + R."""
        length = x.size(1) - self.reach
        starts = range(0, self.reach + 1, self.dilation)
        neighbours = torch.cat([x[:, start : start + length] for start in starts], dim=-1)  # (B, T, k*C)
        return F.glu(self.linear(neighbours), dim=-1)  # (B, T, k*C) -> (B, T, 2C) -> (B, T, C)


class ConvolutionalEncoderLayer(nn.Module):
    """A convolution that looks to both sides, with its residual.

    Raises
    ------
    ValueError
        If the kernel has no middle.
    """

    def __init__(self, convolution: GatedConvolution, residual: Residual) -> None:
        super().__init__()
        if convolution.kernel_size % 2 == 0:
            raise ValueError(
                f"model.kernel_size={convolution.kernel_size} is even, but the encoder's convolution looks "
                "equally far to both sides; take an odd number"
            )
        self.convolution = convolution
        self.residual = residual

    def forward(self, x: Tensor, src_mask: Tensor) -> Tensor:
        """(B, S, C), (B, 1, S) -> (B, S, C). Padding counts as zero, as does what is outside of the row."""
        h = self.residual.open(x).masked_fill(~src_mask.transpose(1, 2), 0.0)
        side = self.convolution.reach // 2
        h = self.convolution(F.pad(h, (0, 0, side, side)))  # (B, S + R, C) -> (B, S, C)
        return self.residual.close(x, h)


class ConvolutionalEncoder(EncoderFace):
    """Embeddings e with positions, mapped to channels, then the layers, then mapped back: z.

    The memory is both what attention compares, z, and what it sums, z + e, side by side (Gehring et al. 2017,
    section 3.3: z tells of the context, e of the token itself).

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
        d_hidden: int,
        layers: Sequence[ConvolutionalEncoderLayer],
        final_norm: nn.Module,
        dropout: nn.Module,
    ) -> None:
        super().__init__()
        d_model = embedding.weight.size(1)
        self.embedding = embedding
        self.position = position
        self.w_input = nn.Linear(d_model, d_hidden)
        self.layers = nn.ModuleList(layers)
        self.final_norm = final_norm
        self.w_output = nn.Linear(d_hidden, d_model)
        self.dropout = dropout

    @property
    def limit(self) -> int | None:
        return self.position.limit

    def forward(self, src: Tensor, src_mask: Tensor, maps: AttentionMaps | None = None) -> Tensor:
        """(B, S) ids and (B, 1, S) bool -> memory (B, S, 2D)."""
        embedded = self.dropout(self.position.add(self.embedding(src)))  # (B, S) -> (B, S, D)
        x = self.w_input(embedded)  # (B, S, D) -> (B, S, C)
        for layer in self.layers:
            x = layer(x, src_mask)
        z = self.w_output(self.final_norm(x))  # (B, S, C) -> (B, S, D)
        return torch.cat((z, (z + embedded) * HALF), dim=-1)


class ConvolutionalDecoderLayer(nn.Module):
    """A convolution over the past, then attention to the source, each with its residual.

    h = GLU(Conv(x_{t-R}, ..., x_t))
    q = (W_q h + g) · √½         g the embedding of the token itself
    c = W_c Attention(q, z, z + e)

    Gehring et al. 2017, section 3.3: each layer attends by itself. Their dot products are not scaled
    (``attention=unscaled``), but their z is not normalised either.
    """

    def __init__(
        self,
        convolution: GatedConvolution,
        residual: Residual,
        d_model: int,
        d_hidden: int,
        attention: ScaledDotProductAttention,
        attention_residual: Residual,
    ) -> None:
        super().__init__()
        self.convolution = convolution
        self.residual = residual
        self.w_query = nn.Linear(d_hidden, d_model)
        self.attention = attention
        self.w_context = nn.Linear(d_model, d_hidden)
        self.attention_residual = attention_residual

    def convolve(self, x: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        """The newest T positions (B*W, T, C) and the R before (B*W, R, C) -> (B*W, T, C), the newest R."""
        seen = torch.cat((past, self.residual.open(x)), dim=1)  # (B*W, R + T, C)
        return self.residual.close(x, self.convolution(seen)), seen[:, x.size(1) :]

    def attend(
        self, x: Tensor, embedded: Tensor, key: Tensor, value: Tensor, src_mask: Tensor, *, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Look at the source.

        Parameters
        ----------
        x, embedded
            (B*W, T, C) and (B*W, T, D), the W hypotheses of a sentence side by side.
        key, value
            (B, S, D).
        src_mask
            (B, 1, S).
        need_weights
            Return the weights too.

        Returns
        -------
        (B*W, T, C), and the weights (B, W*T, S) where asked for.
        """
        query = (self.w_query(self.attention_residual.open(x)) + embedded) * HALF  # (B*W, T, D)
        # Hypotheses of one sentence read one source: their queries stand side by side, its keys once.
        query = query.reshape(len(key), -1, query.size(-1))  # (B, W*T, D)
        context, weights = self.attention(query, key, value, src_mask, need_weights=need_weights)
        context = self.w_context(context.reshape(embedded.shape))  # (B, W*T, D) -> (B*W, T, C)
        return self.attention_residual.close(x, context), weights


@dataclass(frozen=True)
class ConvolutionalCache:
    """What the decoder keeps: of each sentence its keys and values, of each hypothesis its latest inputs.

    Attributes
    ----------
    key, value
        (B, S, D), the same for every layer.
    past
        For each layer its last R inputs, (B*W, R, C); zeros before the first token.
    """

    key: Tensor
    value: Tensor
    past: tuple[Tensor, ...]

    def select_sentences(self, sentences: Tensor) -> "ConvolutionalCache":
        """The sources of the given sentences, (B',) long."""
        key, value = (part.index_select(0, sentences) for part in (self.key, self.value))
        return replace(self, key=key, value=value)

    def select_hypotheses(self, rows: Tensor) -> "ConvolutionalCache":
        """The past of the given rows, (B'*W',) long."""
        return replace(self, past=tuple(past.index_select(0, rows) for past in self.past))


class ConvolutionalDecoder(DecoderFace):
    """Embeddings with positions, mapped to channels, then the layers, then mapped back.

    Parameters are those of :class:`ConvolutionalEncoder`.
    """

    def __init__(
        self,
        embedding: TokenEmbedding,
        position: PositionEncoding,
        d_hidden: int,
        layers: Sequence[ConvolutionalDecoderLayer],
        final_norm: nn.Module,
        dropout: nn.Module,
    ) -> None:
        super().__init__()
        d_model = embedding.weight.size(1)
        self.embedding = embedding
        self.position = position
        self.w_input = nn.Linear(d_model, d_hidden)
        self.layers = nn.ModuleList(layers)
        self.final_norm = final_norm
        self.w_output = nn.Linear(d_hidden, d_model)
        self.dropout = dropout
        self.num_attentions = len(self.layers)
        self.reaches = [layer.convolution.reach for layer in layers]

    @property
    def limit(self) -> int | None:
        return self.position.limit

    def start_cache(self, memory: Tensor, src_mask: Tensor) -> Cache[ConvolutionalCache]:
        """(B, S, 2D) and (B, 1, S) -> the cache before the first token."""
        key, value = memory.chunk(2, dim=-1)  # (B, S, D) each
        d_hidden = self.w_input.out_features
        past = tuple(memory.new_zeros(len(memory), reach, d_hidden) for reach in self.reaches)
        return Cache((ConvolutionalCache(key, value, past),), src_mask)

    def forward(
        self, tgt: Tensor, cache: Cache[ConvolutionalCache], maps: AttentionMaps | None = None
    ) -> tuple[Tensor, Cache[ConvolutionalCache]]:
        """The newest tokens (B*W, T) -> their states (B*W, T, D), and the grown cache."""
        (kept,) = cache.layers
        embedded = self.dropout(self.position.add(self.embedding(tgt), cache.length))  # (B*W, T, D)
        x = self.w_input(embedded)  # (B*W, T, D) -> (B*W, T, C)
        pasts = []
        layers = (cast(ConvolutionalDecoderLayer, layer) for layer in self.layers)
        for layer, past in zip(layers, kept.past, strict=True):
            x, past = layer.convolve(x, past)
            x, weights = layer.attend(
                x, embedded, kept.key, kept.value, cache.src_mask, need_weights=maps is not None
            )
            pasts.append(past)
            if maps is not None and weights is not None:
                maps.cross.append(weights.unsqueeze(1))  # (B, W*T, S) -> (B, 1, W*T, S)
        states = self.w_output(self.final_norm(x))  # (B*W, T, C) -> (B*W, T, D)
        kept = replace(kept, past=tuple(pasts))
        return states, replace(cache, layers=(kept,), length=cache.length + tgt.size(1))


class ConvolutionalModel(EncoderDecoder):
    """Encoder and decoder of gated convolutions, with an output matrix."""

    encoder: ConvolutionalEncoder
    decoder: ConvolutionalDecoder
