"""What a decoder keeps between steps, so that each token is computed once.

Letters: B batch, S source length, t target tokens seen so far, H heads, K d_k, V d_v.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class LayerCache:
    """Keys and values of one decoder layer.

    Attributes
    ----------
    cross_key, cross_value
        (B, H, S, K) and (B, H, S, V) of the memory, computed once a sentence.
    self_key, self_value
        (B, H, t, K) and (B, H, t, V) of the target tokens seen so far (None before the first).
    """

    cross_key: Tensor
    cross_value: Tensor
    self_key: Tensor | None = None
    self_value: Tensor | None = None

    def extend(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, "LayerCache"]:
        """Append the newest tokens' (B, H, n, K) and (B, H, n, V): all keys, all values, the grown cache."""
        if self.self_key is not None and self.self_value is not None:
            key = torch.cat((self.self_key, key), dim=2)
            value = torch.cat((self.self_value, value), dim=2)
        return key, value, replace(self, self_key=key, self_value=value)

    def select(self, rows: Tensor) -> "LayerCache":
        """Rows of the batch, reordered, repeated or left out."""
        return LayerCache(
            self.cross_key.index_select(0, rows),
            self.cross_value.index_select(0, rows),
            None if self.self_key is None else self.self_key.index_select(0, rows),
            None if self.self_value is None else self.self_value.index_select(0, rows),
        )


@dataclass(frozen=True)
class Cache:
    """The state of a batch of translations under way. A step returns a new one and leaves the old as it is.

    Attributes
    ----------
    layers
        One entry for each decoder layer.
    src_mask
        (B, 1, S) bool.
    length
        Target tokens seen so far.
    """

    layers: tuple[LayerCache, ...]
    src_mask: Tensor
    length: int = 0

    def select(self, rows: Tensor) -> "Cache":
        """Reorder, repeat or leave out rows of the batch.

        Parameters
        ----------
        rows
            (B',) long: the row of this cache that each row of the new one continues.
        """
        layers = tuple(layer.select(rows) for layer in self.layers)
        return Cache(layers, self.src_mask.index_select(0, rows), self.length)
