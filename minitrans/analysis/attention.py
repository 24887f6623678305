"""The attention maps of one sentence pair, and what each head does with them, in a number and a word.

Letters: L layers, H heads, T queries (target length), S keys (source length).
"""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from minitrans.data.tokenizer import END_ID, START_ID, Tokenizers
from minitrans.errors import UserError
from minitrans.model.encoder_decoder import EncoderDecoder

Array = npt.NDArray[np.float64]

MAIN_SHARE = 0.5  # a pattern is named when this much of the weight follows it
UNIFORM_SHARE = 0.9  # a head is uniform when it has this much of the highest possible entropy


@dataclass(frozen=True)
class SentenceMaps:
    """Attention weights of every layer and head; each row sums to 1.

    Attributes
    ----------
    src
        The S source tokens, the end token last: keys of ``encoder`` and ``cross``.
    tgt_in
        The T tokens that the decoder reads, the start token first: queries and keys of ``decoder``.
    tgt_out
        The T tokens that it predicts there, the end token last: what the rows of ``cross`` are for.
    encoder, decoder, cross
        (L, H, S, S), (L, H, T, T) and (L, H, T, S). L is 0 where an architecture does not attend so.
    """

    src: tuple[str, ...]
    tgt_in: tuple[str, ...]
    tgt_out: tuple[str, ...]
    encoder: Array
    decoder: Array
    cross: Array

    def save(self, path: Path) -> None:
        """Write an ``.npz`` file: the attributes by name, and each kind's ``_entropy``, (L, H) nats."""
        np.savez_compressed(
            path,
            src=np.array(self.src),
            tgt_in=np.array(self.tgt_in),
            tgt_out=np.array(self.tgt_out),
            encoder=self.encoder,
            decoder=self.decoder,
            cross=self.cross,
            encoder_entropy=entropy(self.encoder),
            decoder_entropy=entropy(self.decoder),
            cross_entropy=entropy(self.cross),
        )


@torch.no_grad()
def sentence_maps(model: EncoderDecoder, tokenizers: Tokenizers, text: str, target: str) -> SentenceMaps:
    """Read ``text``, feed ``target`` to the decoder, and keep every attention weight.

    The model is run as it is: in training mode, dropout would show in the maps of later layers.

    Raises
    ------
    UserError
        A blank text, or a side longer than the positions that the model has learned.
    """
    if not text.strip():
        raise UserError('the text is empty; give a source sentence, such as text="a dog runs"')
    (src,), (tgt,) = tokenizers.src.encode([text]), tokenizers.tgt.encode([target])
    src_ids, tgt_ids, labels = [*src, END_ID], [START_ID, *tgt], [*tgt, END_ID]
    _require_positions("text", len(src_ids), model.src_limit)
    _require_positions("target", len(tgt_ids), model.tgt_limit)
    device = next(model.parameters()).device
    src_row = torch.tensor([src_ids], device=device)  # (1, S)
    tgt_row = torch.tensor([tgt_ids], device=device)  # (1, T)
    maps = model.attention_maps(src_row, torch.ones_like(src_row, dtype=torch.bool).unsqueeze(1), tgt_row)
    return SentenceMaps(
        src=tuple(tokenizers.src.pieces(src_ids)),
        tgt_in=tuple(tokenizers.tgt.pieces(tgt_ids)),
        tgt_out=tuple(tokenizers.tgt.pieces(labels)),
        encoder=_stack(maps.encoder, len(src_ids), len(src_ids)),
        decoder=_stack(maps.decoder, len(tgt_ids), len(tgt_ids)),
        cross=_stack(maps.cross, len(tgt_ids), len(src_ids)),
    )


def _require_positions(side: str, length: int, limit: int | None) -> None:
    if limit is not None and length > limit:
        raise UserError(
            f"the {side} has {length} tokens, but the model has learned {limit} positions; give a shorter one"
        )


def _stack(layers: list[Tensor], num_queries: int, num_keys: int) -> Array:
    """A list of (1, H, T, S) -> (L, H, T, S)."""
    none = torch.empty(0, 1, num_queries, num_keys)
    return (torch.cat(layers) if layers else none).double().cpu().numpy()


def entropy(weights: Array) -> Array:
    """Mean over the queries of -Σ_s a_s ln a_s, in nats: 0 where each query looks at one key.

    Parameters
    ----------
    weights
        (..., T, S), rows summing to 1.

    Returns
    -------
    (...); at most ln S.
    """
    terms = np.where(weights > 0, weights * np.log(np.where(weights > 0, weights, 1.0)), 0.0)
    return 0.0 - terms.sum(axis=-1).mean(axis=-1)  # (..., T, S) -> (..., T) -> (...)


def pattern(weights: Array, *, causal: bool = False) -> str:
    """What one head mostly looks at.

    Parameters
    ----------
    weights
        (T, S), rows summing to 1.
    causal
        Query t sees the keys 0 to t alone, which bounds the entropy that it can have.

    Returns
    -------
    ``diagonal`` (the key at the query's own position), ``previous``, ``next`` (one before, one after),
    ``first`` or ``end`` (the first, the last key), where at least half of the weight lies there, counted
    over the queries that have such a key; the largest is named. Else ``uniform`` (at least 90 % of the
    highest possible entropy), else ``mixed``.
    """
    shares = {
        "diagonal": _share_on_diagonal(weights, 0),
        "previous": _share_on_diagonal(weights, -1),
        "next": _share_on_diagonal(weights, 1),
        "first": float(weights[:, 0].mean()),
        "end": float(weights[:, -1].mean()),
    }
    name = max(shares, key=lambda key: shares[key])
    if shares[name] >= MAIN_SHARE:
        return name
    return (
        "uniform" if entropy(weights) >= UNIFORM_SHARE * highest_entropy(weights.shape, causal) else "mixed"
    )


def _share_on_diagonal(weights: Array, offset: int) -> float:
    """Mean weight of the key ``offset`` after the query, over the queries that have one (0 without any)."""
    diagonal = weights.diagonal(offset)
    return float(diagonal.mean()) if diagonal.size else 0.0


def highest_entropy(shape: tuple[int, ...], causal: bool) -> float:
    """The entropy of a (T, S) map whose every query spreads its weight evenly over what it sees."""
    num_queries, num_keys = shape
    seen = range(1, num_queries + 1) if causal else [num_keys] * num_queries
    return sum(math.log(count) for count in seen) / num_queries


def describe(maps: SentenceMaps) -> str:
    """A table a kind, where there is any: a line a layer, a column a head; entropy in nats, and pattern."""
    kinds = [("encoder", maps.encoder, False), ("decoder", maps.decoder, True), ("cross", maps.cross, False)]
    return "\n\n".join(_table(name, weights, causal) for name, weights, causal in kinds if len(weights))


def _table(name: str, weights: Array, causal: bool) -> str:
    num_heads = weights.shape[1]
    most = highest_entropy(weights.shape[2:], causal)
    heading = f"{name} (entropy in nats, at most {most:.2f})"
    lines = [heading, "         " + "".join(f"{f'head {head + 1}':15}" for head in range(num_heads)).rstrip()]
    for number, layer in enumerate(weights, start=1):
        cells = (f"{entropy(head):.2f} {pattern(head, causal=causal)}" for head in layer)
        lines.append(f"layer {number:<3}" + "".join(f"{cell:15}" for cell in cells).rstrip())
    return "\n".join(lines)
