"""The face of an encoder-decoder that can be searched, scored and asked where it looked."""

from collections.abc import Iterator
from typing import Any, Protocol

from torch import Tensor, nn

from minitrans.decoding.search import Searchable


class TranslationModel(Searchable, Protocol):
    """A ``torch.nn.Module`` with this face: the Transformer, its rivals, an ensemble of them.

    Memory and states are handed on as they are.
    """

    training: bool

    @property
    def src_limit(self) -> int | None:
        """The longest source that the model has positions for, the end token counted."""

    def decode(self, tgt: Tensor, memory: Any, src_mask: Tensor) -> Any:
        """All positions at once: (B, T), (B, S, D), (B, 1, S) -> states (B, T, D)."""

    def nll(self, states: Any, targets: Tensor, label_smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
        """Sums of the smoothed and of the plain cross-entropy over real target tokens."""

    def source_attention(self, src: Tensor, src_mask: Tensor, tgt: Tensor, layer: int | None) -> Tensor:
        """How much each decoder input looks at each source token, (B, T, S); ``layer`` from 1, None: last."""

    def train(self, mode: bool = True) -> nn.Module:
        """Switch between training and evaluation mode."""

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """The weights."""
