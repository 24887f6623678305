"""What is counted of the pairs that a training went through, and the operations that were useful.

Letters: n pairs of a corpus, B pairs of a batch, S source length, T target length; the real ones, end
tokens counted.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields

import numpy as np

from minitrans.analysis.flops import Cost


@dataclass(frozen=True)
class Counts:
    """Sums over the pairs of some updates."""

    updates: int = 0
    pairs: int = 0
    src_tokens: int = 0  # sum of S
    tgt_tokens: int = 0  # sum of T
    src_squares: int = 0  # sum of S²
    tgt_squares: int = 0  # sum of T²
    products: int = 0  # sum of S·T
    positions: int = 0  # of source and target, padding included

    @classmethod
    def of(cls, lengths: np.ndarray, batches: Iterable[np.ndarray]) -> "Counts":
        """One update: (n, 2) lengths of a corpus, and the rows of each of the update's batches."""
        total = cls(updates=1)
        for rows in batches:
            src, tgt = lengths[rows].astype(np.int64).T  # (B,), (B,)
            total += cls(
                pairs=len(rows),
                src_tokens=int(src.sum()),
                tgt_tokens=int(tgt.sum()),
                src_squares=int((src * src).sum()),
                tgt_squares=int((tgt * tgt).sum()),
                products=int((src * tgt).sum()),
                positions=len(rows) * int(src.max() + tgt.max()),
            )
        return total

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    @property
    def padding_fraction(self) -> float:
        """Share of padding among the positions of both sides."""
        return 1 - (self.src_tokens + self.tgt_tokens) / self.positions

    def useful_flops(self, cost: Cost) -> int:
        """Operations of forward and backward passes in which each pair is a batch of its own.

        So padding counts for nothing, and neither do softmax, norms, dropout and the optimizer; the half of
        self-attention that a decoder masks counts.
        """
        s, t = self.src_tokens, self.tgt_tokens
        terms = (self.pairs, s, t, self.src_squares, self.tgt_squares, self.products, s, t)
        return sum(c * term for c, term in zip(cost.coefficients, terms, strict=True))
