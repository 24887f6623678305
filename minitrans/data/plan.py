"""The batch plan: which rows make up each update, and how processes share an update.

``plan`` knows nothing of devices and ``split`` nothing of epochs. The loss of a micro-batch is its summed
nll over the target tokens of the *whole* update, so every split of an update gives the same gradient.

Words: a *chunk* is a group of rows of like length, a *piece* the part of a chunk that is one micro-batch.
The cost of a pair is max(source, target) tokens, end tokens counted; that of a group of pairs is
rows x longest, the padded tokens of its longer side.

Letters: n pairs.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from minitrans.errors import UserError


@dataclass(frozen=True)
class Update:
    """One optimizer step: its chunks of row numbers, and its size."""

    chunks: tuple[np.ndarray, ...]
    target_tokens: int  # end tokens counted

    @property
    def rows(self) -> np.ndarray:
        """All row numbers."""
        return np.concatenate(self.chunks)


@dataclass(frozen=True)
class MicroBatch:
    """One forward and backward on one process."""

    rows: np.ndarray
    weight: float  # 0.0: computed only so that every process does the same number; else 1.0
    number: int  # among all micro-batches of the update, over all processes


def plan(
    lengths: np.ndarray,
    *,
    update_tokens: int | None = None,
    update_sentences: int | None = None,
    chunk_tokens: int,
    seed: int,
    epoch: int,
    lines: np.ndarray | None = None,
    origin: str = "the training set",
) -> list[Update]:
    """Divide one epoch into updates.

    Pairs in descending order of cost, then of source - target, ties broken by the epoch's shuffle, are cut
    into chunks of at most ``chunk_tokens`` (and ``update_tokens``). Chunks are shuffled, and consecutive
    ones fill an update up to ``update_tokens``. With ``update_sentences`` an update is so many consecutive
    pairs of that order (the last one may be short), cut into chunks, and updates are shuffled.

    Parameters
    ----------
    lengths
        (n, 2) tokens of source and target, end tokens counted.
    update_tokens, update_sentences
        The size of an update: exactly one of them.
    chunk_tokens
        Largest cost of a chunk.
    seed, epoch
        The order follows from these two numbers alone.
    lines, origin
        For errors: (n,) row number of each pair in its files, and the files.

    Returns
    -------
    The epoch's updates in order. Each row is in exactly one of them.

    Raises
    ------
    UserError
        A pair that is longer than a chunk may be.
    """
    if (update_tokens is None) == (update_sentences is None):
        raise ValueError("exactly one of update_tokens and update_sentences must be given")
    budget = chunk_tokens if update_tokens is None else min(chunk_tokens, update_tokens)
    cost = lengths.max(axis=1)  # (n,)
    setting = "training.chunk_tokens" if budget == chunk_tokens else "training.update_tokens"
    if update_tokens == chunk_tokens:
        setting = "training.update_tokens and training.chunk_tokens"
    _require_fit(cost, budget, setting, lines, origin)

    generator = np.random.Generator(np.random.PCG64([seed, epoch]))
    order = _sorted_rows(lengths, cost, generator)
    if update_sentences is None:
        chunks = _cut(order, cost, budget)
        groups = _fill([chunks[i] for i in generator.permutation(len(chunks))], cost, update_tokens or 0)
    else:
        blocks = [order[i : i + update_sentences] for i in range(0, len(order), update_sentences)]
        groups = [_cut(blocks[i], cost, budget) for i in generator.permutation(len(blocks))]
    return [Update(tuple(group), sum(int(lengths[chunk, 1].sum()) for chunk in group)) for group in groups]


def _require_fit(cost: np.ndarray, budget: int, setting: str, lines: np.ndarray | None, origin: str) -> None:
    row = int(cost.argmax())
    if cost[row] <= budget:
        return
    line = row if lines is None else int(lines[row])
    raise UserError(
        f"the pair on line {line + 1} of {origin} has {cost[row]} tokens, "
        f"more than the {budget} of {setting}; "
        f"raise {setting} to {cost[row]}, or leave such pairs out with cleaning.max_tokens={budget}"
    )


def _sorted_rows(lengths: np.ndarray, cost: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """(n,) rows from the costliest down, then by source - target; equal ones in random order."""
    shuffled = generator.permutation(len(cost))
    difference = lengths[shuffled, 0] - lengths[shuffled, 1]
    # lexsort is stable and sorts by its last key first.
    return shuffled[np.lexsort((-difference, -cost[shuffled]))]


def _cut(order: np.ndarray, cost: np.ndarray, budget: int) -> list[np.ndarray]:
    """Cut rows into chunks of at most ``budget``. The first row of a chunk is its longest."""
    chunks = []
    start = 0
    while start < len(order):
        rows = budget // int(cost[order[start]])
        chunks.append(order[start : start + rows])
        start += rows
    return chunks


def _fill(chunks: list[np.ndarray], cost: np.ndarray, update_tokens: int) -> list[list[np.ndarray]]:
    """Put consecutive chunks together, as many as ``update_tokens`` holds."""
    groups: list[list[np.ndarray]] = []
    filled = update_tokens
    for chunk in chunks:
        size = len(chunk) * int(cost[chunk[0]])
        if filled + size > update_tokens:
            groups.append([])
            filled = 0
        groups[-1].append(chunk)
        filled += size
    return groups


def split(update: Update, lengths: np.ndarray, world_size: int, accumulate: int) -> list[list[MicroBatch]]:
    """Share one update among processes.

    The pieces depend on ``world_size * accumulate`` alone: their number is its smallest multiple that gives
    each chunk at least one. So ``devices=4`` computes the very micro-batches of ``accumulate=4``, under the
    same numbers. Where there are fewer rows than pieces, the first row is computed again with weight zero.

    Parameters
    ----------
    update
        What is shared.
    lengths
        (n, 2), as for :func:`plan`.
    world_size
        Processes.
    accumulate
        Least number of micro-batches of a process.

    Returns
    -------
    For each process its micro-batches, the same number for all, balanced in cost.
    """
    share = world_size * accumulate
    num_pieces = share * math.ceil(len(update.chunks) / share)
    pieces = _pieces(update.chunks, lengths, num_pieces)
    batches = [MicroBatch(rows, 1.0, number) for number, rows in enumerate(pieces)]
    for number in range(len(pieces), num_pieces):
        batches.append(MicroBatch(update.chunks[0][:1], 0.0, number))
    return _deal(batches, lengths, world_size)


def _group_cost(rows: np.ndarray, lengths: np.ndarray) -> int:
    return len(rows) * int(lengths[rows].max())


def _pieces(chunks: Sequence[np.ndarray], lengths: np.ndarray, num_pieces: int) -> list[np.ndarray]:
    """Cut chunks into ``num_pieces`` pieces, or one a row where there are fewer rows.

    Each further cut goes to the chunk whose pieces are the costliest.
    """
    parts = [1] * len(chunks)
    costs = [_group_cost(chunk, lengths) for chunk in chunks]
    heap = [(-float(costs[i]), i) for i in range(len(chunks)) if len(chunks[i]) > 1]
    heapq.heapify(heap)
    missing = num_pieces - len(chunks)
    while missing > 0 and heap:
        _, i = heapq.heappop(heap)
        parts[i] += 1
        missing -= 1
        if parts[i] < len(chunks[i]):
            heapq.heappush(heap, (-costs[i] / parts[i], i))
    return [piece for chunk, n in zip(chunks, parts, strict=True) for piece in np.array_split(chunk, n)]


def _deal(batches: list[MicroBatch], lengths: np.ndarray, world_size: int) -> list[list[MicroBatch]]:
    """Deal equally many to each process, the costliest first and always to the one with the least so far."""
    per_process = len(batches) // world_size
    hands: list[list[MicroBatch]] = [[] for _ in range(world_size)]
    totals = [0] * world_size
    for batch in sorted(batches, key=lambda batch: (-_group_cost(batch.rows, lengths), batch.number)):
        open_hands = [rank for rank in range(world_size) if len(hands[rank]) < per_process]
        rank = min(open_hands, key=lambda rank: totals[rank])
        hands[rank].append(batch)
        totals[rank] += _group_cost(batch.rows, lengths)
    return [sorted(hand, key=lambda batch: batch.number) for hand in hands]
