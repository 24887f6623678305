"""The k largest of many: a fast twin of ``torch.topk`` on a processor.

``torch.topk`` moves every value with its index before it selects. Here the values are cut into blocks, and
only the k blocks with the largest maxima are looked into: no value of another block is among the k largest,
for each of the k maxima is at least as large.

Letters: R rows, N values in each, n blocks, L values of a block.
"""

import torch
from torch import Tensor

BLOCK = 64


def largest(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row, largest first, and where they stand: as ``values.topk(k)``.

    Where values are equal, which of them comes first may differ.

    Parameters
    ----------
    values
        (R, N) without NaN.
    k
        At most N.

    Returns
    -------
    (R, k) values, (R, k) columns.
    """
    few_blocks = values.size(-1) < 4 * k * BLOCK
    if few_blocks or values.device.type != "cpu":
        return torch.topk(values, k)
    return blockwise_topk(values, k)


def blockwise_topk(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """See :func:`largest`; N must be at least k blocks."""
    num_blocks = values.size(-1) // BLOCK
    whole = num_blocks * BLOCK
    blocks = values[:, :whole].unflatten(-1, (num_blocks, BLOCK))  # (R, N) -> (R, n, L)
    chosen = blocks.amax(dim=-1).topk(k).indices  # (R, k)
    inside = blocks.gather(1, chosen.unsqueeze(-1).expand(-1, -1, BLOCK)).flatten(1)  # (R, k*L)
    columns = (chosen.unsqueeze(-1) * BLOCK + torch.arange(BLOCK)).flatten(1)  # (R, k*L)
    if whole < values.size(-1):  # the columns behind the last whole block
        rest = torch.arange(whole, values.size(-1)).expand(len(values), -1)
        inside = torch.cat((inside, values[:, whole:]), dim=1)
        columns = torch.cat((columns, rest), dim=1)
    best, index = inside.topk(k)
    return best, columns.gather(1, index)
