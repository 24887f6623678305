"""The penalties by hand-computed values."""

import pytest
import torch

from minitrans.decoding.penalties import PENALTIES


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
