"""Threads: bounded by what the machine's processors can bear. Never asked for in large numbers here."""

import os

import pytest
import torch

from minitrans.errors import UserError
from minitrans.processors import MOST_A_PROCESSOR, use_threads


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What torch is asked for, and does not get."""
    numbers: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", numbers.append)
    return numbers


def test_more_threads_than_the_machine_can_bear_are_refused(asked: list[int]) -> None:
    most = MOST_A_PROCESSOR * (os.cpu_count() or 1)
    use_threads(most)
    with pytest.raises(UserError) as refused:
        use_threads(most + 1)
    assert str(refused.value) == (
        f"threads={most + 1} is more than this machine's processors can bear; use threads={most} or fewer"
    )
    assert asked == [most]


def test_no_number_is_torchs_own_choice(asked: list[int]) -> None:
    use_threads(0)
    assert asked == []
