"""Others' searches on the same sources, with models of the same shape.

Letters: B batch, S source length.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from minitrans.config import SearchConfig
from minitrans.model.encoder_decoder import EncoderDecoder

Decode = Callable[[Sequence[Sequence[int]]], list[Sequence[int]]]


@dataclass(frozen=True)
class RivalDecoder:
    """A search to measure.

    Attributes
    ----------
    name, module, dtype
        For the table, what it needs installed, and the type of its weights.
    build
        A model whose shape is copied, the search settings and the threads, to a function from a batch of ids
        to its translations.
    """

    name: str
    module: str
    dtype: str
    build: Callable[[EncoderDecoder, SearchConfig, int], Decode]


def rival_decoders(types: Sequence[str]) -> list[RivalDecoder]:
    """Those that are installed, each in each type that it has."""
    return []


def absent() -> list[str]:
    """A sentence for each that is not installed."""
    return []
