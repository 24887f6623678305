"""Figures of a softmax's rows: by hand, and against autograd's Jacobian."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minitrans.analysis.softmax import is_saturated, jacobian_norm, row_entropy, visible_softmax


def rows(*values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_hidden_keys_get_no_weight_and_a_query_without_keys_none_at_all() -> None:
    logits = rows([math.log(1), math.log(3), 99.0], [5.0, 5.0, 5.0])
    visible = torch.tensor([[True, True, False], [False, False, False]])
    torch.testing.assert_close(visible_softmax(logits, visible), rows([0.25, 0.75, 0.0], [0.0, 0.0, 0.0]))


def test_entropy_by_hand() -> None:
    found = row_entropy(rows([0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.5, 0.25, 0.25]))
    assert found.tolist() == pytest.approx([math.log(2), 0.0, 1.5 * math.log(2)])


def test_a_row_is_saturated_above_99_percent_and_not_at_it() -> None:
    assert is_saturated(rows([0.99, 0.01], [0.9901, 0.0099], [0.5, 0.5])).tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("row", "norm"),
    [
        ([0.5, 0.5], 0.5),  # entries ±1/4, four of them
        ([1.0, 0.0, 0.0], 0.0),
        ([0.25] * 4, math.sqrt(3) / 4),
        ([0.75, 0.25], 0.375),  # entries ±3/16
    ],
)
def test_the_jacobians_norm_by_hand(row: list[float], norm: float) -> None:
    assert float(jacobian_norm(rows(row))) == pytest.approx(norm, abs=1e-12)


@given(st.lists(st.floats(-30, 30), min_size=1, max_size=8), st.floats(0.05, 2))
def test_the_jacobians_norm_is_autograds(logits: list[float], scale: float) -> None:
    z = torch.tensor(logits, dtype=torch.float64)
    exact = torch.autograd.functional.jacobian(lambda x: (scale * x).softmax(dim=-1), z)
    found = scale * jacobian_norm((scale * z).softmax(dim=-1))
    assert float(found) == pytest.approx(float(exact.norm()), abs=1e-7)


def test_the_most_is_that_of_two_even_keys() -> None:
    drawn = torch.randn(5000, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert float(jacobian_norm((4 * drawn).softmax(dim=-1)).max()) <= 0.5
