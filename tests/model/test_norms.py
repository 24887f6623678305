import pytest
import torch

from minitrans.model.norms import LayerNorm, RMSNorm


def test_layer_norm_by_hand() -> None:
    # mean 2, variance 1: (-1, 1) · (2, 3) + (1, 0)
    norm = LayerNorm(2, epsilon=0.0)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([2.0, 3.0]))
        norm.bias.copy_(torch.tensor([1.0, 0.0]))
    assert norm(torch.tensor([[1.0, 3.0]]))[0].tolist() == pytest.approx([-1.0, 3.0])


def test_rms_norm_by_hand() -> None:
    # mean of squares (9 + 16) / 2 = 12.5
    norm = RMSNorm(2, epsilon=0.0)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([1.0, 2.0]))
    assert norm(torch.tensor([[3.0, 4.0]]))[0].tolist() == pytest.approx([3 / 12.5**0.5, 8 / 12.5**0.5])


@pytest.mark.parametrize("norm", [LayerNorm(4), RMSNorm(4)])
def test_zeros_stay_finite(norm: torch.nn.Module) -> None:
    assert torch.equal(norm(torch.zeros(1, 4)), torch.zeros(1, 4))
