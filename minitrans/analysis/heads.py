"""What single heads do, and what is lost without them.

Letters: B batch, S source length, T target length, H heads, V d_v.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from minitrans.analysis.instruments import counted_pairs
from minitrans.analysis.operands import Operands, Place, operands, places
from minitrans.analysis.softmax import row_entropy, visible_softmax
from minitrans.data.batching import Batch
from minitrans.decoding.translator import Translator, evaluating
from minitrans.evaluation.metrics import bleu
from minitrans.model.encoder_decoder import EncoderDecoder

# --------------------------------------------------------------------------------------
# Where a head looks
# --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HeadPattern:
    """Mean share of a query's weight that goes to certain keys, over the queries that see such a key.

    Queries that see one key alone are left out, as in :mod:`minitrans.analysis.instruments`.

    Attributes
    ----------
    side, layer, head
        ``encoder``, ``decoder`` or ``cross``; from 1; from 1.
    diagonal, previous
        The key at the query's own position, and the one before it. Row t of ``cross`` predicts target token
        t, so that its own position is that of source token t.
    first, end
        The first key (in the decoder the start token), and the source's end token. The decoder reads no end
        token: not a number there.
    from_uniform
        Mean Kullback-Leibler divergence of the rows from even ones, ln S - entropy, in nats.
    """

    side: str
    layer: int
    head: int
    diagonal: float
    previous: float
    first: float
    end: float
    from_uniform: float


def patterns(model: EncoderDecoder, batches: Sequence[Batch]) -> list[HeadPattern]:
    """Summarise where each head looks, in evaluation mode.

    Raises
    ------
    minitrans.errors.UserError
        The model is no Transformer.
    """
    of = {(place.side, place.layer): _PatternSums(place) for place in places(model)}
    with evaluating(model):
        for batch in batches:
            for found in operands(model, batch):
                of[found.place.side, found.place.layer].add(found)
    return [pattern for sums in of.values() for pattern in sums.patterns()]


class _PatternSums:
    """Sums of one attention over batches: of each share (H,), and the queries that they are over."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.sums: dict[str, Tensor] = {}
        self.counts: dict[str, int] = {}

    def add(self, found: Operands) -> None:
        """Count one batch in."""
        counted = counted_pairs(found.visible)  # (B, 1, T, S)
        logits = found.query @ found.key.mT  # (B, H, T, S)
        weights = visible_softmax(self.place.core.scale * logits, counted)  # (B, H, T, S)
        for name, target in self._targets(counted).items():
            hit = target & counted  # (B, 1, T, S)
            self._count(name, (weights * hit).sum(dim=-1), hit.any(dim=-1))
        even = counted.sum(dim=-1).clamp(min=1).double().log()  # (B, 1, T)
        self._count("from_uniform", even - row_entropy(weights), counted.any(dim=-1))

    def _targets(self, counted: Tensor) -> dict[str, Tensor]:
        """The keys that each share is about, broadcastable to (B, 1, T, S)."""
        num_queries, num_keys = counted.shape[-2:]
        position = torch.arange(num_keys, device=counted.device)  # (S,)
        own = torch.arange(num_queries, device=counted.device)[:, None]  # (T, 1)
        targets = {"diagonal": position == own, "previous": position == own - 1, "first": position == 0}
        if self.place.side != "decoder":
            real = counted.any(dim=-2, keepdim=True)  # (B, 1, 1, S): the last real key is the end token
            targets["end"] = position == real.sum(dim=-1, keepdim=True) - 1
        return targets

    def _count(self, name: str, values: Tensor, queries: Tensor) -> None:
        """Add (B, H, T) values over the (B, 1, T) queries that have one."""
        part = values.masked_fill(~queries, 0.0).sum(dim=(0, 2))  # (B, H, T) -> (H,)
        self.sums[name] = self.sums.get(name, torch.zeros_like(part)) + part
        self.counts[name] = self.counts.get(name, 0) + int(queries.sum())

    def patterns(self) -> list[HeadPattern]:
        """Of each head."""
        return [
            HeadPattern(
                self.place.side,
                self.place.layer,
                head + 1,
                **{
                    name: self._mean(name, head)
                    for name in ("diagonal", "previous", "first", "end", "from_uniform")
                },
            )
            for head in range(self.place.attention.num_heads)
        ]

    def _mean(self, name: str, head: int) -> float:
        count = self.counts.get(name, 0)
        return float(self.sums[name][head]) / count if count else math.nan


# --------------------------------------------------------------------------------------
# What is lost without a head
# --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HeadImportance:
    """BLEU with one head masked, and how much that is below BLEU with all of them."""

    side: str
    layer: int
    head: int
    bleu: float
    loss: float


@contextmanager
def without_head(place: Place, head: int) -> Iterator[None]:
    """Inside, the output of head number ``head`` (from 0) is zero (Michel et al. 2019, section 3.1)."""

    def silence(module: Any, args: tuple[Any, ...], result: tuple[Tensor, Any]) -> tuple[Tensor, Any]:
        heads, weights = result  # (B, H, T, V)
        silenced = heads.clone()
        silenced[:, head] = 0.0
        return silenced, weights

    handle = place.core.register_forward_hook(silence)
    try:
        yield
    finally:
        handle.remove()


def head_importance(
    translator: Translator,
    model: EncoderDecoder,
    sources: Sequence[str],
    references: Sequence[str],
    tokenize: str,
    progress: Callable[[int], object] | None = None,
) -> tuple[float, list[HeadImportance]]:
    """Translate with each head masked in turn (Michel et al. 2019, section 3.2), and without any masked.

    Parameters
    ----------
    translator
        Searches with ``model``.
    sources, references
        One sentence each.
    tokenize
        sacreBLEU's name.
    progress
        Called with the number of sentences just translated.

    Returns
    -------
    BLEU with all heads, and each head's.
    """

    def score() -> float:
        translated = [one.text for one in translator.translate(sources, progress=progress)]
        return bleu(translated, references, tokenize).value

    whole, found = score(), []
    for place in places(model):
        for head in range(place.attention.num_heads):
            with without_head(place, head):
                value = score()
            found.append(HeadImportance(place.side, place.layer, head + 1, value, whole - value))
    return whole, found
