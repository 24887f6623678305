"""Encoder and decoder layers (Vaswani et al. 2017, section 3.1).

Letters: B batch, W hypotheses of a sentence (1 outside of search), S source length, T target length,
H heads, D d_model, K d_k, V d_v.
"""

from torch import Tensor, nn

from minitrans.model.attention import MultiHeadAttention
from minitrans.model.cache import LayerCache
from minitrans.model.dropout import Dropout
from minitrans.model.positions import PositionEncoding


class Residual(nn.Module):
    """The path around a sub-layer F.

    post-norm: y = Norm(x + Dropout(F(x)))   (Vaswani et al. 2017, section 3.1)
    pre-norm:  y = x + Dropout(F(Norm(x)))   (Xiong et al. 2020, section 3)

    Used as ``h = r.open(x)``, the sub-layer on ``h``, ``y = r.close(x, h)``.
    """

    def __init__(self, norm: nn.Module, dropout: Dropout, *, pre_norm: bool) -> None:
        super().__init__()
        self.norm = norm
        self.dropout = dropout
        self.pre_norm = pre_norm

    def open(self, x: Tensor) -> Tensor:
        """The sub-layer's input: x, normalised in pre-norm."""
        return self.norm(x) if self.pre_norm else x

    def close(self, x: Tensor, change: Tensor) -> Tensor:
        """Add the sub-layer's output to x; normalised in post-norm."""
        y = self.dropout.add(x, change)
        return y if self.pre_norm else self.norm(y)


class EncoderLayer(nn.Module):
    """Self-attention, then the feed-forward network, each with its residual.

    Parameters
    ----------
    feed_forward, ffn_residual
        None, both: the layer ends after attention (the ablation).
    """

    def __init__(
        self,
        self_attention: MultiHeadAttention,
        feed_forward: nn.Module | None,
        self_residual: Residual,
        ffn_residual: Residual | None,
    ) -> None:
        super().__init__()
        self.self_attention = self_attention
        self.feed_forward = feed_forward
        self.self_residual = self_residual
        self.ffn_residual = ffn_residual

    def forward(
        self, x: Tensor, src_mask: Tensor, position: PositionEncoding, maps: list[Tensor] | None = None
    ) -> Tensor:
        """One layer.

        Parameters
        ----------
        x
            (B, S, D).
        src_mask
            (B, 1, S) bool.
        position
            Acts on queries and keys.
        maps
            Where given, the attention weights (B, H, S, S) are appended to it.

        Returns
        -------
        (B, S, D).
        """
        h = self.self_residual.open(x)
        query, key, value = self.self_attention.project(h)  # (B, H, S, K), (B, H, S, K), (B, H, S, V)
        query, key = position.rotate(query), position.rotate(key)
        h = self.self_attention.attend(query, key, value, src_mask, maps=maps)
        x = self.self_residual.close(x, h)
        return _feed_forward(x, self.feed_forward, self.ffn_residual)


class DecoderLayer(nn.Module):
    """Causal self-attention, attention to the memory, then the feed-forward network.

    Parameters
    ----------
    feed_forward, ffn_residual
        None, both: the layer ends after attention (the ablation).
    """

    def __init__(
        self,
        self_attention: MultiHeadAttention,
        cross_attention: MultiHeadAttention,
        feed_forward: nn.Module | None,
        self_residual: Residual,
        cross_residual: Residual,
        ffn_residual: Residual | None,
    ) -> None:
        super().__init__()
        self.self_attention = self_attention
        self.cross_attention = cross_attention
        self.feed_forward = feed_forward
        self.self_residual = self_residual
        self.cross_residual = cross_residual
        self.ffn_residual = ffn_residual

    def start_cache(self, memory: Tensor) -> LayerCache:
        """Keys and values of the memory (B, S, D)."""
        return LayerCache(*self.cross_attention.project_key_value(memory))

    def forward(
        self,
        x: Tensor,
        cache: LayerCache,
        src_mask: Tensor,
        position: PositionEncoding,
        start: int,
        self_maps: list[Tensor] | None = None,
        cross_maps: list[Tensor] | None = None,
        tgt_mask: Tensor | None = None,
    ) -> tuple[Tensor, LayerCache]:
        """One layer, on the newest T tokens.

        Parameters
        ----------
        x
            (B*W, T, D), the W hypotheses of a sentence side by side.
        cache
            Keys and values of the memory and of the ``start`` tokens before.
        src_mask
            (B, 1, S) bool.
        position
            Acts on queries and keys.
        start
            Position of the first of the T tokens.
        self_maps, cross_maps
            Where given, the attention weights (B*W, H, T, start + T) and (B, H, W*T, S) are appended.
        tgt_mask
            (B*W, 1, start + T) bool: the target tokens that all T may attend to. None: the causal mask, for
            each itself and those before.

        Returns
        -------
        (B*W, T, D) and the grown cache.
        """
        h = self.self_residual.open(x)
        query, key, value = self.self_attention.project(h)  # (B*W, H, T, K) twice, (B*W, H, T, V)
        query = position.rotate(query, start)
        key, value, cache = cache.extend(position.rotate(key, start), value)
        causal = tgt_mask is None
        h = self.self_attention.attend(query, key, value, tgt_mask, causal=causal, maps=self_maps)
        x = self.self_residual.close(x, h)

        # Hypotheses of one sentence read one source: their queries stand side by side, its keys once.
        h = self.cross_residual.open(x).reshape(len(cache.cross_key), -1, x.size(-1))  # (B, W*T, D)
        query = self.cross_attention.project_query(h)  # (B, H, W*T, K)
        h = self.cross_attention.attend(query, cache.cross_key, cache.cross_value, src_mask, maps=cross_maps)
        x = self.cross_residual.close(x, h.reshape(x.shape))  # (B, W*T, D) -> (B*W, T, D)

        return _feed_forward(x, self.feed_forward, self.ffn_residual), cache


def _feed_forward(x: Tensor, network: nn.Module | None, residual: Residual | None) -> Tensor:
    """The last sub-layer, where there is one: (B, T, D) -> (B, T, D)."""
    if network is None or residual is None:
        return x
    return residual.close(x, network(residual.open(x)))
