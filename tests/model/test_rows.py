"""Products over filled-up rows against those over the rows as they come."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from minitrans.model.fast.cross_entropy import CHUNK_ROWS, chunked_cross_entropy_sums
from minitrans.model.fast.rows import ROWS, filled, onednn_writes_by_shape, over_full_rows, written_by_shape
from minitrans.model.loss import cross_entropy_sums


@pytest.mark.parametrize("num_rows", [1, ROWS - 1, ROWS, ROWS + 1, 3 * ROWS])
def test_filled_rows_are_zeros_behind(num_rows: int) -> None:
    rows = torch.randn(num_rows, 3)
    found = filled(rows)
    assert len(found) == -(-num_rows // ROWS) * ROWS
    assert torch.equal(found[:num_rows], rows)
    assert not found[num_rows:].any()


def test_half_precision_alone_is_written_by_shape() -> None:
    x = torch.ones(2, 3)
    assert not written_by_shape(x)
    assert written_by_shape(x.bfloat16())
    with torch.autocast("cpu", torch.bfloat16):
        assert written_by_shape(x)


@pytest.mark.filterwarnings("ignore:TF32 acceleration")  # of a GPU that is not there
def test_onednn_writes_float32_s_products_by_shape_too() -> None:
    assert onednn_writes_by_shape(torch.float32) is torch.backends.mkldnn.is_available()
    assert onednn_writes_by_shape(torch.bfloat16)
    assert not onednn_writes_by_shape(torch.float64)
    with torch.backends.mkldnn.flags(enabled=False):
        assert not onednn_writes_by_shape(torch.float32)


@pytest.mark.parametrize("shape", [(1, 1), (2, 5), (4, 16), (3, 43)])
def test_values_and_gradients_are_those_of_the_rows_as_they_come(shape: tuple[int, int]) -> None:
    torch.manual_seed(1)
    network = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    x = torch.randn(*shape, 8, requires_grad=True)
    up = torch.randn(*shape, 4)
    results = []
    with torch.autocast("cpu", torch.bfloat16):
        for function in (network, lambda rows: over_full_rows(network, rows)):
            seen: list[int] = []
            hook = network[0].register_forward_pre_hook(
                lambda _, given, seen=seen: seen.append(given[0].shape)
            )
            output = function(x)
            hook.remove()
            gradients = torch.autograd.grad((output.float() * up).sum(), [x, *network.parameters()])
            results.append((seen, output, *gradients))
    (as_they_come, *plain), (full, *clever) = results
    assert as_they_come == [(*shape, 8)]
    assert full == [(-(-shape[0] * shape[1] // ROWS) * ROWS, 8)]
    for expected, found in zip(plain, clever, strict=True):
        torch.testing.assert_close(found, expected, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("shape", [(8,), (0, 8), (2, 0, 8), (1, 8)])
def test_a_row_alone_and_no_row_at_all(shape: tuple[int, ...]) -> None:
    linear = nn.Linear(8, 4).bfloat16()
    x = torch.randn(shape).bfloat16()
    torch.testing.assert_close(over_full_rows(linear, x), linear(x), atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("num_rows", [1, 60, CHUNK_ROWS, CHUNK_ROWS + 1, 2 * CHUNK_ROWS + 70])
def test_the_loss_in_half_precision_leaves_the_filling_out(num_rows: int) -> None:
    torch.manual_seed(2)
    states = torch.randn(1, num_rows, 8)
    weight, targets = torch.randn(30, 8), torch.randint(1, 30, (1, num_rows))
    plain, clever = (gradients_of(loss, states, weight, targets) for loss in LOSSES)
    for expected, found in zip(plain, clever, strict=True):
        assert (found - expected).norm() <= 2e-2 * expected.norm()


@pytest.mark.parametrize("num_rows", [1, ROWS, CHUNK_ROWS + 1, CHUNK_ROWS + ROWS + 3])
def test_the_loss_in_float32_over_full_rows(num_rows: int) -> None:
    torch.manual_seed(2)
    states, weight = torch.randn(1, num_rows, 8), torch.randn(30, 8)
    targets = torch.randint(1, 30, (1, num_rows))
    results = []
    for loss in LOSSES:
        leaves = [x.clone().requires_grad_() for x in (states, weight)]
        sums = loss(*leaves, targets, 0.1)
        results.append((*sums, *torch.autograd.grad(sums[0], leaves)))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-5)


Loss = Callable[..., tuple[Tensor, Tensor]]
LOSSES: tuple[Loss, Loss] = (cross_entropy_sums, chunked_cross_entropy_sums)


def gradients_of(loss: Loss, states: Tensor, weight: Tensor, targets: Tensor) -> list[Tensor]:
    """Both sums, and the smoothed one's gradients, from bf16 states; the plain twin in float32."""
    dtype = torch.float32 if loss is cross_entropy_sums else torch.bfloat16
    leaves = [x.to(dtype, copy=True).requires_grad_() for x in (states, weight)]
    sums = loss(*leaves, targets, 0.1)
    sums[0].backward()
    return [*(x.detach() for x in sums), *(leaf.grad.float() for leaf in leaves)]
