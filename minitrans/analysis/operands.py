"""What each attention of a Transformer computes with, taken while the model runs on a batch.

The model is not changed and knows nothing of it: hooks on the attention cores look at what passes, and are
gone afterwards.

Letters: B batch, S source length, T target length, H heads, K d_k.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from minitrans.data.batching import Batch
from minitrans.data.tokenizer import PAD_ID
from minitrans.errors import UserError
from minitrans.model.attention import MultiHeadAttention, ScaledDotProductAttention
from minitrans.model.encoder_decoder import EncoderDecoder
from minitrans.model.layers import DecoderLayer, EncoderLayer
from minitrans.model.masks import as_boolean_mask, causal_mask
from minitrans.model.transformer import Transformer

SIDES = ("encoder", "decoder", "cross")


@dataclass(frozen=True)
class Place:
    """One multi-head attention of a model.

    Attributes
    ----------
    side
        ``encoder`` or ``decoder`` (self-attention), or ``cross``.
    layer
        From 1.
    """

    side: str
    layer: int
    attention: MultiHeadAttention

    @property
    def core(self) -> ScaledDotProductAttention:
        """What compares queries and keys."""
        return cast(ScaledDotProductAttention, self.attention.core)


@dataclass(frozen=True)
class Operands:
    """What one attention met in one batch.

    Attributes
    ----------
    query, key
        (B, H, T, K) and (B, H, S, K), positions put in, float64, without a gradient.
    visible
        (B, 1, T, S) bool: a real query, a real key, and no mask between them.

    All are in main memory.
    """

    place: Place
    query: Tensor
    key: Tensor
    visible: Tensor


def places(model: EncoderDecoder) -> list[Place]:
    """Every attention of a Transformer: the encoder's, the decoder's, then those between them.

    Raises
    ------
    UserError
        The model is of another architecture.
    """
    if not isinstance(model, Transformer):
        raise UserError(
            "heads are measured in a transformer, and this model has none "
            f"(it is a {type(model).__name__}); give a checkpoint with model.architecture=transformer"
        )
    encoder = [layer for layer in model.encoder.layers if isinstance(layer, EncoderLayer)]
    decoder = [layer for layer in model.decoder.layers if isinstance(layer, DecoderLayer)]
    return [
        *(Place("encoder", number, layer.self_attention) for number, layer in enumerate(encoder, start=1)),
        *(Place("decoder", number, layer.self_attention) for number, layer in enumerate(decoder, start=1)),
        *(Place("cross", number, layer.cross_attention) for number, layer in enumerate(decoder, start=1)),
    ]


@contextmanager
def recorded(at: Sequence[Place], batch: Batch) -> Iterator[list[Operands]]:
    """Inside, one forward pass on ``batch`` fills the list, in the order in which the model attends."""
    real_src, real_tgt = batch.src != PAD_ID, batch.tgt_in != PAD_ID  # (B, S), (B, T)
    real = {"encoder": (real_src, real_src), "decoder": (real_tgt, real_tgt), "cross": (real_tgt, real_src)}
    found: list[Operands] = []

    def recorder(place: Place) -> Callable[[Any, tuple[Any, ...], dict[str, Any]], None]:
        def record(module: Any, args: tuple[Any, ...], options: dict[str, Any]) -> None:
            query, key, _, mask = args
            visible = _visible(*real[place.side], mask, options["causal"])
            found.append(Operands(place, _kept(query), _kept(key), visible.cpu()))

        return record

    handles = [place.core.register_forward_pre_hook(recorder(place), with_kwargs=True) for place in at]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def _kept(x: Tensor) -> Tensor:
    """In float64, on the processor: other devices may not have it."""
    return x.detach().cpu().double()


def _visible(real_queries: Tensor, real_keys: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    """(B, T) and (B, S) bool, with the mask that attention was given -> (B, 1, T, S) bool."""
    visible = real_queries[:, None, :, None] & real_keys[:, None, None, :]  # (B, 1, T, S)
    if mask is not None:
        visible = visible & as_boolean_mask(mask)
    if causal:
        visible = visible & causal_mask(visible.size(-2), visible.size(-1), visible.device)
    return visible


@torch.no_grad()
def operands(model: EncoderDecoder, batch: Batch) -> list[Operands]:
    """The operands of every attention of ``model``, as it stands, on one batch."""
    with recorded(places(model), batch) as found:
        model.decode(batch.tgt_in, model.encode(batch.src, batch.src_mask), batch.src_mask)
    return found
