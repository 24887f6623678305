"""Randomness is a function of where in the run we are."""

import itertools

import torch
from hypothesis import given
from hypothesis import strategies as st

from minitrans.training.seeding import derived_seed, seed_micro_batch


def test_the_seeds_are_the_ones_that_runs_of_the_past_had() -> None:
    """A changed value would make every old checkpoint go on differently."""
    assert derived_seed(1, 2, 3) == 1479714026269226309
    assert derived_seed(1, 2, 3) != derived_seed(1, 3, 2)
    assert derived_seed(1, 23) != derived_seed(12, 3)


@given(st.lists(st.integers(min_value=0), min_size=1, max_size=4))
def test_every_seed_is_one_that_torch_takes(numbers: list[int]) -> None:
    assert 0 <= derived_seed(*numbers) < 2**63
    torch.Generator().manual_seed(derived_seed(*numbers))


def test_places_of_a_run_have_draws_of_their_own() -> None:
    draws = {}
    for place in itertools.product(range(3), range(3), range(3)):
        seed_micro_batch(*place)
        draws[place] = tuple(torch.rand(4).tolist())
    assert len(set(draws.values())) == 27
    seed_micro_batch(2, 1, 0)
    assert tuple(torch.rand(4).tolist()) == draws[2, 1, 0]
