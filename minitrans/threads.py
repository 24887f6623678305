"""How many processor threads torch uses."""

import os

import torch

from minitrans.errors import UserError

# Far more than the processors would take all memory of the machine, and end the process without a word.
THREADS_A_PROCESSOR = 4


def use_threads(threads: int) -> None:
    """Let torch use so many threads (0: its own choice); too many are refused."""
    refuse_threads(threads)
    if threads:
        torch.set_num_threads(threads)


def refuse_threads(threads: int, key: str = "threads") -> None:
    """Refuse more threads than this machine's processors can bear.

    Raises
    ------
    UserError
        Names the key and the largest number.
    """
    most = THREADS_A_PROCESSOR * (os.cpu_count() or 1)
    if threads > most:
        raise UserError(
            f"{key}={threads} is more than this machine's processors can bear; use {key}={most} or fewer"
        )
