"""The penalties by hand-computed values."""

import pytest
import torch

from minitrans.decoding.penalties import PENALTIES, coverage_penalty


@pytest.mark.parametrize(
    ("name", "alpha", "expected"),
    [
        ("none", 0.6, [1.0, 1.0, 1.0]),
        ("exponent", 0.0, [1.0, 1.0, 1.0]),
        ("exponent", 1.0, [1.0, 4.0, 13.0]),
        ("exponent", 0.5, [1.0, 2.0, 3.605551]),
        ("gnmt", 0.0, [1.0, 1.0, 1.0]),
        ("gnmt", 1.0, [1.0, 1.5, 3.0]),
        ("gnmt", 0.6, [1.0, 1.275425, 1.933182]),  # 1.5^0.6, 3^0.6
    ],
)
def test_values_at_lengths_1_4_and_13(name: str, alpha: float, expected: list[float]) -> None:
    lengths = torch.tensor([1.0, 4.0, 13.0])
    assert PENALTIES[name](lengths, alpha).tolist() == pytest.approx(expected, abs=1e-5)


def test_coverage_is_the_log_of_what_each_source_token_lacks() -> None:
    covered = torch.tensor([[[0.5, 1.0, 1.7], [0.25, 0.5, 1.0]]])
    assert coverage_penalty(covered, 1.0).tolist() == [pytest.approx([-0.693147, -2.079442], abs=1e-5)]
    assert coverage_penalty(covered, 0.2).tolist() == [pytest.approx([-0.138629, -0.415888], abs=1e-5)]


def test_a_token_that_nothing_looked_at_costs_much_and_not_everything() -> None:
    (penalty,) = coverage_penalty(torch.tensor([[[0.0, 1.0]]]), 1.0).flatten().tolist()
    assert penalty == pytest.approx(-87.3365, abs=1e-3)  # log of the smallest normal float32
