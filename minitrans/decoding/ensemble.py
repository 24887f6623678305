"""Several models as one: P(y_t | y_<t, x) is the mean of the members' probabilities.

Letters: M members, B batch, W hypotheses of a sentence, S source length, T target length, N vocabulary.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from minitrans.decoding.model import TranslationModel


@dataclass(frozen=True)
class EnsembleCache:
    """Each member's cache."""

    members: tuple[Any, ...]

    def select(self, rows: Tensor) -> "EnsembleCache":
        """Reorder, repeat or leave out rows in all of them."""
        return EnsembleCache(tuple(cache.select(rows) for cache in self.members))


class Ensemble(nn.Module):
    """Members of one vocabulary, with the face of a single model. Memory and states are one a member.

    Parameters
    ----------
    members
        At least one :class:`TranslationModel`; they may differ in everything but the vocabulary.
    """

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    @property
    def _models(self) -> list[TranslationModel]:
        return [cast(TranslationModel, member) for member in self.members]

    @property
    def src_limit(self) -> int | None:
        """The shortest of the members' limits."""
        return _least([model.src_limit for model in self._models])

    @property
    def tgt_limit(self) -> int | None:
        """The shortest of the members' limits."""
        return _least([model.tgt_limit for model in self._models])

    def encode(self, src: Tensor, src_mask: Tensor) -> tuple[Any, ...]:
        """(B, S) ids and (B, 1, S) -> each member's memory."""
        return tuple(model.encode(src, src_mask) for model in self._models)

    def decode(self, tgt: Tensor, memory: tuple[Any, ...], src_mask: Tensor) -> tuple[Any, ...]:
        """(B, T) ids -> each member's states."""
        return tuple(
            model.decode(tgt, own, src_mask) for model, own in zip(self._models, memory, strict=True)
        )

    def start_cache(self, memory: tuple[Any, ...], src_mask: Tensor) -> EnsembleCache:
        """Each member's cache before the first token."""
        pairs = zip(self._models, memory, strict=True)
        return EnsembleCache(tuple(model.start_cache(own, src_mask) for model, own in pairs))

    def step(self, tgt: Tensor, cache: EnsembleCache) -> tuple[tuple[Any, ...], EnsembleCache]:
        """The newest tokens (B*W, n) -> each member's states, and the caches."""
        pairs = zip(self._models, cache.members, strict=True)
        states, caches = zip(*(model.step(tgt, own) for model, own in pairs), strict=True)
        return states, EnsembleCache(caches)

    def attending_step(
        self, tgt: Tensor, cache: EnsembleCache
    ) -> tuple[tuple[Any, ...], Tensor, EnsembleCache]:
        """A :meth:`step` with the members' mean attention (B*W, n, S)."""
        pairs = zip(self._models, cache.members, strict=True)
        states, attention, caches = zip(*(m.attending_step(tgt, own) for m, own in pairs), strict=True)
        return states, torch.stack(attention).mean(dim=0), EnsembleCache(caches)

    def source_attention(self, src: Tensor, src_mask: Tensor, tgt: Tensor, layer: int | None) -> Tensor:
        """The members' mean attention to the source, (B, T, S)."""
        own = [model.source_attention(src, src_mask, tgt, layer) for model in self._models]
        return torch.stack(own).mean(dim=0)  # (M, B, T, S) -> (B, T, S)

    def logits(self, states: tuple[Any, ...]) -> Tensor:
        """log of the members' mean probability, (..., N): its softmax is that mean."""
        pairs = zip(self._models, states, strict=True)
        log_probs = torch.stack([model.logits(own).float().log_softmax(dim=-1) for model, own in pairs])
        return log_probs.logsumexp(dim=0) - math.log(len(self.members))  # (M, ..., N) -> (..., N)

    def nll(
        self, states: tuple[Any, ...], targets: Tensor, label_smoothing: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """Cross-entropy of the mean probability, summed over the real tokens of (B, T) ``targets``.

        See :func:`minitrans.model.loss.cross_entropy_sums`.
        """
        log_probs = self.logits(states)  # (B, T, N)
        real = targets != 0  # (B, T)
        plain = -log_probs.gather(-1, targets.unsqueeze(-1)).squeeze(-1)[real].sum()
        spread = -log_probs.mean(dim=-1)[real].sum()
        return (1 - label_smoothing) * plain + label_smoothing * spread, plain.detach()


def _least(limits: Sequence[int | None]) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)
