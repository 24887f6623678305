"""Rows of ids to padded tensors.

Letters: B batch, S source length, T target length, n pairs.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from minitrans.data.encoded import EncodedCorpus
from minitrans.data.tokenizer import END_ID, PAD_ID, START_ID


@dataclass(frozen=True)
class Batch:
    """Sentence pairs as tensors. Padding (0) is at the right."""

    src: Tensor  # (B, S) tokens + </s>
    tgt_in: Tensor  # (B, T) <s> + tokens
    tgt_out: Tensor  # (B, T) tokens + </s>
    lines: tuple[int, ...]  # rows of the split, from 0
    weight: float = 1.0  # 0.0: computed for the sake of the other processes alone
    number: int = 0  # among the micro-batches of its update, over all processes
    counted: int | None = None  # real target tokens, so that no GPU has to be asked

    @property
    def src_mask(self) -> Tensor:
        """(B, 1, S) True where a source token may be attended."""
        return (self.src != PAD_ID)[:, None, :]

    @property
    def num_target_tokens(self) -> int:
        """Target tokens of this batch, end tokens counted."""
        return int((self.tgt_out != PAD_ID).sum())

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "Batch":
        """The same batch on another device (Lightning calls this)."""
        moved = [part.to(device, non_blocking=non_blocking) for part in (self.src, self.tgt_in, self.tgt_out)]
        return dataclasses.replace(self, src=moved[0], tgt_in=moved[1], tgt_out=moved[2])


def padded(rows: Sequence[Sequence[int] | np.ndarray], *, start: bool = False, end: bool = False) -> Tensor:
    """Rows of ids as one tensor, padded at the right.

    Parameters
    ----------
    rows
        Ids without start and end.
    start, end
        Put ``<s>`` before, ``</s>`` behind each row.

    Returns
    -------
    (B, longest row) long.
    """
    first = int(start)
    longest = max(len(row) for row in rows) + first + int(end)
    ids = np.full((len(rows), longest), PAD_ID, dtype=np.int64)
    for i, row in enumerate(rows):
        ids[i, first : first + len(row)] = row
        if end:
            ids[i, first + len(row)] = END_ID
    if start:
        ids[:, 0] = START_ID
    return torch.from_numpy(ids)


def collate(encoded: EncodedCorpus, rows: np.ndarray, *, weight: float = 1.0, number: int = 0) -> Batch:
    """The pairs ``rows`` of an encoded corpus as one batch; see :class:`Batch`."""
    tgt = [encoded.tgt[row] for row in rows]
    tgt_out = padded(tgt, end=True)
    return Batch(
        src=padded([encoded.src[row] for row in rows], end=True),
        tgt_in=padded(tgt, start=True),
        tgt_out=tgt_out,
        lines=tuple(encoded.lines[rows].tolist()),
        weight=weight,
        number=number,
        counted=int((tgt_out != PAD_ID).sum()),
    )


def evaluation_batches(lengths: np.ndarray, batch_tokens: int) -> list[np.ndarray]:
    """Divide sentences into batches of like length, for evaluation and translation.

    Parameters
    ----------
    lengths
        (n,) or (n, 2) tokens of each sentence or pair, end tokens counted; the longer side counts.
    batch_tokens
        Most padded tokens (rows x longest) of a batch. A sentence that is longer is a batch of its own.

    Returns
    -------
    Row numbers of each batch, the longest first, so that memory runs out at once or never. Each row is in
    exactly one batch; a result goes back to its place by its row number.
    """
    cost = lengths.reshape(len(lengths), -1).max(axis=1)  # (n,)
    order = np.argsort(-cost, kind="stable")
    batches = []
    start = 0
    while start < len(order):
        rows = max(1, batch_tokens // int(cost[order[start]]))
        batches.append(order[start : start + rows])
        start += rows
    return batches
