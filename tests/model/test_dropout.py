import pytest
import torch

from minitrans.model.dropout import Dropout
from minitrans.model.fast.dropout import byte_dropout, byte_dropout_sum, drop_level


@pytest.mark.parametrize(
    ("rate", "level"), [(0.1, 26), (0.15, 38), (0.3, 77), (0.5, 128), (0.0001, 1), (0.9999, 255)]
)
def test_rates_move_in_steps_of_one_in_256(rate: float, level: int) -> None:
    assert drop_level(rate) == level


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_share_of_zeros_mean_and_scale(fast: bool, rate: float) -> None:
    y = Dropout(rate, fast=fast)(torch.ones(1000, 1001))
    real_rate = drop_level(rate) / 256 if fast else rate
    assert (y == 0).float().mean().item() == pytest.approx(real_rate, abs=0.002)  # its deviation is 0.0005
    assert y.mean().item() == pytest.approx(1.0, abs=0.003)
    assert y.var().item() == pytest.approx(real_rate / (1 - real_rate), rel=0.02)
    assert y.max().item() == pytest.approx(1 / (1 - real_rate))


def test_fast_zeros_are_independent_of_their_neighbours() -> None:
    """Eight elements come from one random number: no lag within or across them shows."""
    dropped = (Dropout(0.5, fast=True)(torch.ones(200_000)) == 0).float() - 0.5
    for lag in range(1, 17):
        assert abs((dropped[lag:] * dropped[:-lag]).mean().item()) < 0.003  # its deviation is 0.0006


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("shape", [(3, 5, 7), (1,), (8,), (0, 4)])
def test_fast_gradient_is_the_mask_times_the_scale(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = (torch.rand(shape) + 1).to(dtype).requires_grad_()
    y = byte_dropout(x, 0.25)
    upstream = torch.randn(shape).to(dtype)
    (grad,) = torch.autograd.grad(y, x, upstream)
    scale = 256 / 192
    kept = y != 0
    assert y.dtype == grad.dtype == dtype
    torch.testing.assert_close(y, x * kept * scale)
    torch.testing.assert_close(grad, upstream * kept * scale)


@pytest.mark.parametrize("fast", [True, False])
def test_the_seed_decides(fast: bool) -> None:
    dropout, x = Dropout(0.3, fast=fast), torch.ones(100)
    torch.manual_seed(5)
    first = dropout(x)
    second = dropout(x)
    torch.manual_seed(5)
    assert torch.equal(dropout(x), first)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("fast", [True, False])
def test_evaluation_and_rate_zero_do_nothing(fast: bool) -> None:
    x = torch.randn(10)
    assert Dropout(0.5, fast=fast).eval()(x) is x
    assert Dropout(0.0, fast=fast)(x) is x


@pytest.mark.parametrize("rate", [-0.1, 1.0, 1.5])
def test_rates_that_are_none(rate: float) -> None:
    with pytest.raises(ValueError, match=f"below 1, but it is {rate}"):
        Dropout(rate)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("shape", [(3, 5, 7), (1,), (0, 4)])
def test_the_sum_in_one_walk_is_the_sum_of_two(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, change = (torch.randn(shape).to(dtype).requires_grad_() for _ in range(2))
    upstream = torch.randn(shape).to(dtype)
    torch.manual_seed(5)
    found = byte_dropout_sum(x, change, 0.25)
    torch.manual_seed(5)
    plain = byte_dropout(change, 0.25)
    kept = plain.double() != 0
    torch.testing.assert_close(
        found, (x.double() + change.double() * kept * 256 / 192).to(dtype)
    )  # rounded once
    grads = (torch.autograd.grad(y, (x, change), upstream) for y in (found, x + plain))
    for one, other in zip(*grads, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("types", [(torch.float32, torch.float32), (torch.float32, torch.bfloat16)])
def test_add_is_the_sum_with_what_was_dropped(fast: bool, types: tuple[torch.dtype, torch.dtype]) -> None:
    dropout = Dropout(0.5, fast=fast)
    x, change = torch.randn(3, 40).to(types[0]), torch.randn(3, 40).to(types[1])
    torch.manual_seed(5)
    found = dropout.add(x, change)
    torch.manual_seed(5)
    torch.testing.assert_close(found, x + dropout(change))
    assert torch.equal(dropout.eval().add(x, change), x + change)
