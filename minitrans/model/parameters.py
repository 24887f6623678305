"""Where a model's parameters are."""

from dataclasses import dataclass

from torch import nn

# The component of a parameter's name -> the part that it is counted in.
_PARTS = {
    "embedding": "embeddings",
    "output": "embeddings",
    "position": "positions",
    "self_attention": "self-attention",
    "cross_attention": "cross-attention",
    "feed_forward": "feed-forward",
    "rightwards": "recurrence",
    "leftwards": "recurrence",
    "cells": "recurrence",
    "convolution": "convolutions",
    "w_query": "cross-attention",
    "w_key": "cross-attention",
    "w_context": "cross-attention",
    "norm": "norms",
    "final_norm": "norms",
}


@dataclass(frozen=True)
class ParameterRow:
    """One row of the table.

    Attributes
    ----------
    side
        ``encoder``, ``decoder``, ``shared`` (tied across both), or ``output``.
    part
        ``self-attention``, ``cross-attention``, ``feed-forward``, ``recurrence``, ``convolutions``,
        ``norms``, ``embeddings``, ``positions``, or ``other``.
    count
        Numbers that are trained.
    share
        ``count`` over the whole model's.
    """

    side: str
    part: str
    count: int
    share: float


def parameter_table(model: nn.Module) -> list[ParameterRow]:
    """Count the parameters of each side and part, tied tensors once; counts sum to the model's total.

    A tensor that the encoder and another side use is counted as ``shared``.
    """
    names: dict[int, list[str]] = {}
    sizes: dict[int, int] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
        sizes[id(parameter)] = parameter.numel()
    counts: dict[tuple[str, str], int] = {}
    for key, aliases in names.items():
        place = _side(aliases), _part(aliases[0])
        counts[place] = counts.get(place, 0) + sizes[key]
    total = sum(counts.values())
    return [ParameterRow(side, part, count, count / total) for (side, part), count in counts.items()]


def _side(aliases: list[str]) -> str:
    sides = {name.split(".")[0] for name in aliases}
    if "encoder" in sides and len(sides) > 1:
        return "shared"
    return "decoder" if "decoder" in sides else sides.pop()


def _part(name: str) -> str:
    return next((_PARTS[word] for word in name.split(".") if word in _PARTS), "other")
