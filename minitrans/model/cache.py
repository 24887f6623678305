"""What a decoder keeps between steps, so that each token is computed once.

A sentence may have several hypotheses, all of them reading the same source. Its *cross* keys and values are
therefore kept once, however wide the beam is, and only the *self* keys and values once a hypothesis.

Letters: B sentences, W hypotheses in each one's beam (1 outside of search), S source length, t target tokens
seen so far, H heads, K d_k, V d_v.
"""

from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor


class Selectable(Protocol):
    """What one entry of a :class:`Cache` can do."""

    def select_sentences(self: "L", sentences: Tensor) -> "L":
        """What is kept once a sentence, of the given sentences, (B',) long."""

    def select_hypotheses(self: "L", rows: Tensor) -> "L":
        """What is kept once a hypothesis, of the given rows, (B'*W',) long."""


L = TypeVar("L", bound=Selectable)


@dataclass(frozen=True)
class LayerCache:
    """Keys and values of one layer of the Transformer's decoder.

    Attributes
    ----------
    cross_key, cross_value
        (B, H, S, K) and (B, H, S, V) of the memory, computed once a sentence.
    self_key, self_value
        (B*W, H, t, K) and (B*W, H, t, V) of the target tokens seen so far (None before the first). The W
        hypotheses of a sentence stand side by side.
    """

    cross_key: Tensor
    cross_value: Tensor
    self_key: Tensor | None = None
    self_value: Tensor | None = None

    def extend(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, "LayerCache"]:
        """Append the newest tokens' (B*W, H, n, K) and (B*W, H, n, V): all keys, values, the grown cache."""
        if self.self_key is not None and self.self_value is not None:
            key = torch.cat((self.self_key, key), dim=2)
            value = torch.cat((self.self_value, value), dim=2)
        return key, value, replace(self, self_key=key, self_value=value)

    def select_sentences(self, sentences: Tensor) -> "LayerCache":
        """The sources of the given sentences, (B',) long."""
        return replace(
            self,
            cross_key=self.cross_key.index_select(0, sentences),
            cross_value=self.cross_value.index_select(0, sentences),
        )

    def select_hypotheses(self, rows: Tensor) -> "LayerCache":
        """The target tokens of the given rows, (B'*W',) long."""
        if self.self_key is None or self.self_value is None:
            return self
        return replace(
            self,
            self_key=self.self_key.index_select(0, rows),
            self_value=self.self_value.index_select(0, rows),
        )


@dataclass(frozen=True)
class Cache(Generic[L]):
    """The state of a batch of translations under way. A step returns a new one and leaves the old as it is.

    Attributes
    ----------
    layers
        What the decoder keeps: one entry a layer, or one for all of them.
    src_mask
        (B, 1, S) bool.
    length
        Target tokens seen so far.
    width
        W, hypotheses of each sentence.
    """

    layers: tuple[L, ...]
    src_mask: Tensor
    length: int = 0
    width: int = 1

    def select(self, rows: Tensor) -> "Cache[L]":
        """Reorder, repeat or leave out rows of the batch.

        Parameters
        ----------
        rows
            The row, of the B*W of this cache, that each row of the new one continues. (B', W') long: each
            line holds rows of one sentence, which share that sentence's source. (B',) long: each row gets
            a source of its own.
        """
        if rows.dim() == 1:
            rows = rows.unsqueeze(1)  # (B',) -> (B', 1)
        layers, src_mask = self.layers, self.src_mask
        sentences = rows[:, 0] // self.width  # (B',)
        if not _is_everything(sentences, len(src_mask)):
            layers = tuple(layer.select_sentences(sentences) for layer in layers)
            src_mask = src_mask.index_select(0, sentences)
        if not _is_everything(rows.flatten(), len(self.src_mask) * self.width):
            layers = tuple(layer.select_hypotheses(rows.flatten()) for layer in layers)
        return Cache(layers, src_mask, self.length, rows.size(1))


def _is_everything(index: Tensor, size: int) -> bool:
    """Whether all ``size`` rows are wanted, each in its place, so that nothing has to be copied."""
    return torch.equal(index, torch.arange(size, device=index.device))
