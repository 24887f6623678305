"""Stateless randomness: the generator is a function of where in the run we are.

No generator state is saved anywhere. Before micro-batch m of update u every generator is seeded from
(seed, u, m), so that a resumed run, or one that is split otherwise, draws the same dropout.
"""

import hashlib

import torch


def derived_seed(*numbers: int) -> int:
    """A 63-bit seed from whole numbers; unlike a sum, (1, 2) and (2, 1) give unlike seeds."""
    text = ",".join(str(number) for number in numbers)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def seed_micro_batch(seed: int, update: int, micro_batch: int) -> None:
    """Seed torch's generators for one micro-batch, numbered over all processes of the update."""
    torch.manual_seed(derived_seed(seed, update, micro_batch))
