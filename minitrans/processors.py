"""How many threads and processes this machine's processors can bear."""

import os

import torch

from minitrans.errors import UserError

# Each thread and each process takes memory of its own (a process holds torch and a model): a slip of the
# finger, such as devices=100, would take all of it and end the process without a word.
MOST_A_PROCESSOR = 4


def use_threads(threads: int) -> None:
    """Let torch use so many threads (0: its own choice); too many are refused."""
    refuse_unbearable(threads)
    if threads:
        torch.set_num_threads(threads)


def refuse_unbearable(number: int, key: str = "threads") -> None:
    """Refuse more threads or processes than this machine's processors can bear.

    Raises
    ------
    UserError
        Names the key and the largest number.
    """
    most = MOST_A_PROCESSOR * (os.cpu_count() or 1)
    if number > most:
        raise UserError(
            f"{key}={number} is more than this machine's processors can bear; use {key}={most} or fewer"
        )
