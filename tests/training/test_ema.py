"""The moving average, by hand."""

import pytest
import torch
from torch import nn

from minitrans.training.ema import MovingAverage


class Tied(nn.Module):
    """One number under two names."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.tensor([value]))
        self.second = self.first


def set_to(model: Tied, value: float) -> None:
    with torch.no_grad():
        model.first.fill_(value)


def test_the_average_by_hand() -> None:
    """decay min(0.5, (1+u)/(10+u)): 2/11, 3/12, and from update 8 on 0.5."""
    model = Tied(1.0)
    average = MovingAverage(model, decay=0.5)
    expected = 1.0
    for update, value, decay in (
        (1, 12.0, 2 / 11),
        (2, -3.0, 3 / 12),
        (7, 2.0, 8 / 17),
        (8, 4.0, 0.5),
        (100, 0.0, 0.5),
    ):
        set_to(model, value)
        average.follow(model, update)
        expected = decay * expected + (1 - decay) * value
        for name in ("first", "second"):
            assert average.weights[name].item() == pytest.approx(expected, rel=1e-6)


def test_the_first_steps_by_hand() -> None:
    model = Tied(1.0)
    average = MovingAverage(model, decay=0.999)
    set_to(model, 12.0)
    average.follow(model, 1)  # 2/11 * 1 + 9/11 * 12 = 10
    assert average.weights["first"].item() == pytest.approx(10.0, rel=1e-6)
    set_to(model, 2.0)
    average.follow(model, 2)  # 1/4 * 10 + 3/4 * 2 = 4
    assert average.weights["first"].item() == pytest.approx(4.0, rel=1e-6)


def test_it_is_in_place_inside_the_block_alone_even_after_an_error() -> None:
    model = Tied(1.0)
    average = MovingAverage(model, decay=0.9)
    set_to(model, 5.0)
    with average.in_place(model):
        assert model.second.item() == 1.0
    assert model.first.item() == 5.0
    with pytest.raises(RuntimeError, match="inside"), average.in_place(model):
        raise RuntimeError("inside")
    assert model.first.item() == 5.0
    assert average.weights["first"].item() == 1.0


def test_it_is_restored_to_the_bit_and_shares_nothing_with_what_it_came_from() -> None:
    model = Tied(1.0)
    average = MovingAverage(model, decay=0.9)
    stored = {"first": torch.tensor([0.1]), "second": torch.tensor([0.1])}
    average.restore(stored)
    assert torch.equal(average.weights["first"], torch.tensor([0.1]))
    average.follow(model, 1)
    assert stored["first"].item() == pytest.approx(0.1)
