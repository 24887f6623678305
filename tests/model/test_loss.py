import functools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from minitrans.model.fast import cross_entropy as fast
from minitrans.model.fast.cross_entropy import chunked_cross_entropy_sums
from minitrans.model.loss import cross_entropy_sums
from minitrans.model.masks import padding_mask
from tests.model.conftest import MakeModel

BOTH = pytest.mark.parametrize("sums", [cross_entropy_sums, chunked_cross_entropy_sums])


@BOTH
@pytest.mark.parametrize("padding", [0, 1, 2, 5])
def test_smoothing_does_not_spread_over_padding(sums, padding: int) -> None:
    """BR-09. The output matrix is the identity, so that the states are the logits."""
    logits = torch.tensor([[[0.0, 1.0, 2.0, 3.0]] + [[10.0, 0.0, 0.0, 0.0]] * padding])
    targets = torch.tensor([[3] + [0] * padding])
    smoothed, nll = sums(logits, torch.eye(4), targets, 0.1)
    assert smoothed.item() == pytest.approx(0.590190, abs=1e-6)
    assert nll.item() == pytest.approx(0.440190, abs=1e-6)


@BOTH
def test_padding_alone_costs_nothing(sums) -> None:
    """BR-05."""
    states, weight = torch.randn(2, 3, 4, requires_grad=True), torch.randn(7, 4, requires_grad=True)
    smoothed, nll = sums(states, weight, torch.zeros(2, 3, dtype=torch.long), 0.1)
    assert smoothed.item() == 0.0 and nll.item() == 0.0
    smoothed.backward()
    assert states.grad is not None and torch.equal(states.grad, torch.zeros(2, 3, 4))
    assert weight.grad is not None and torch.equal(weight.grad, torch.zeros(7, 4))


@pytest.mark.parametrize("fast_loss", [True, False])
def test_a_batch_of_padding_leaves_an_update_as_it_is(make_model: MakeModel, fast_loss: bool) -> None:
    """BR-05: X and Y accumulated give the weights of X alone."""
    src = torch.tensor([[5, 6, 2]])
    mask = padding_mask(src)
    ends = []
    for batches in ([[7, 8, 2]], [[7, 8, 2], [0, 0, 0]]):
        model = make_model(fast=fast_loss)
        for labels in batches:
            states = model.decode(torch.tensor([[1, 7, 8]]), model.encode(src, mask), mask)
            (model.nll(states, torch.tensor([labels]))[0] / 3).backward()
        torch.optim.SGD(model.parameters(), lr=1.0).step()
        ends.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    torch.testing.assert_close(ends[1], ends[0], atol=1e-5, rtol=0)
    assert torch.isfinite(ends[0]).all()


@BOTH
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1, 0.5])
def test_equals_torch(sums, label_smoothing: float) -> None:
    states, weight = torch.randn(3, 5, 8, requires_grad=True), torch.randn(11, 8, requires_grad=True)
    targets = torch.randint(0, 11, (3, 5))
    expected = F.cross_entropy(
        (states @ weight.T).flatten(0, 1),
        targets.flatten(),
        ignore_index=0,
        reduction="sum",
        label_smoothing=label_smoothing,
    )
    smoothed, nll = sums(states, weight, targets, label_smoothing)
    torch.testing.assert_close(smoothed, expected, atol=1e-5, rtol=1e-5)
    right = torch.autograd.grad(expected, (states, weight))
    for got, want in zip(torch.autograd.grad(smoothed, (states, weight)), right, strict=True):
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
    plain = F.cross_entropy(
        (states @ weight.T).flatten(0, 1), targets.flatten(), ignore_index=0, reduction="sum"
    )
    torch.testing.assert_close(nll, plain.detach(), atol=1e-5, rtol=1e-5)
    assert not nll.requires_grad


def values_and_gradients(
    sums, states: Tensor, weight: Tensor, targets: Tensor, label_smoothing: float, upstream: float
) -> list[Tensor]:
    leaves = states.clone().requires_grad_(), weight.clone().requires_grad_()
    smoothed, nll = sums(*leaves, targets, label_smoothing)
    return [smoothed, nll, *torch.autograd.grad(smoothed * upstream, leaves)]


@settings(deadline=None, max_examples=30)
@given(
    rows=st.integers(1, 4),
    length=st.integers(1, 6),
    chunk=st.integers(1, 9),
    block=st.integers(1, 4),
    label_smoothing=st.sampled_from([0.0, 0.1]),
    seed=st.integers(0, 1000),
)
def test_chunks_and_blocks_change_nothing(
    rows: int, length: int, chunk: int, block: int, label_smoothing: float, seed: int
) -> None:
    torch.manual_seed(seed)
    states, weight = torch.randn(rows, length, 4), torch.randn(6, 4)
    targets = torch.randint(0, 6, (rows, length))
    arguments = states, weight, targets, label_smoothing, 0.37
    plain = values_and_gradients(cross_entropy_sums, *arguments)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fast, "CHUNK_ROWS", chunk)
        patch.setattr(fast, "BLOCK_ROWS", block)
        chunked = values_and_gradients(chunked_cross_entropy_sums, *arguments)
    for got, want in zip(chunked, plain, strict=True):
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


def test_in_double_precision_the_twin_is_as_precise() -> None:
    torch.manual_seed(3)
    states, weight = 100 * torch.randn(2, 5, 4).double(), torch.randn(6, 4).double()
    arguments = states, weight, torch.randint(0, 6, (2, 5)), 0.1, 0.37
    plain = values_and_gradients(cross_entropy_sums, *arguments)
    chunked = values_and_gradients(chunked_cross_entropy_sums, *arguments)
    for got, want in zip(chunked, plain, strict=True):
        assert got.dtype == torch.float64
        torch.testing.assert_close(got, want, atol=1e-12, rtol=1e-12)


def test_a_second_derivative_is_refused_rather_than_wrong() -> None:
    states, weight = torch.randn(1, 2, 4, requires_grad=True), torch.randn(6, 4)
    smoothed, _ = chunked_cross_entropy_sums(states, weight, torch.tensor([[3, 5]]), 0.1)
    (gradient,) = torch.autograd.grad(smoothed**2, states, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@pytest.mark.parametrize("targets", [[[3, 0, 0], [0, 0, 5]], [[0, 0, 0], [0, 0, 0]], [[1, 2, 3], [4, 5, 1]]])
def test_a_number_of_real_targets_known_beforehand_changes_nothing(targets: list[list[int]]) -> None:
    torch.manual_seed(1)
    labels = torch.tensor(targets)
    arguments = torch.randn(2, 3, 4), torch.randn(6, 4), labels, 0.1, 1.0
    known = functools.partial(chunked_cross_entropy_sums, num_real=int((labels != 0).sum()))
    for got, want in zip(
        values_and_gradients(known, *arguments),
        values_and_gradients(chunked_cross_entropy_sums, *arguments),
        strict=True,
    ):
        assert torch.equal(got, want)


def test_twins_agree_under_autocast() -> None:
    states, weight = torch.randn(4, 300, 16), torch.randn(40, 16) / 4
    targets = torch.randint(0, 40, (4, 300))
    with torch.autocast("cpu", torch.bfloat16):
        plain = values_and_gradients(cross_entropy_sums, states, weight, targets, 0.1, 1.0)
        chunked = values_and_gradients(chunked_cross_entropy_sums, states, weight, targets, 0.1, 1.0)
    for got, want in zip(chunked, plain, strict=True):
        assert got.dtype == want.dtype == torch.float32
        assert (got - want).norm() <= 0.02 * want.norm()


def test_twins_agree_in_a_half_precision_model() -> None:
    states, weight = torch.randn(2, 9, 16).bfloat16(), (torch.randn(40, 16) / 4).bfloat16()
    targets = torch.randint(0, 40, (2, 9))
    plain = values_and_gradients(cross_entropy_sums, states, weight, targets, 0.1, 1.0)
    chunked = values_and_gradients(chunked_cross_entropy_sums, states, weight, targets, 0.1, 1.0)
    for got, want in zip(chunked, plain, strict=True):
        assert got.dtype == want.dtype
        assert (got.float() - want.float()).norm() <= 0.02 * want.float().norm()


def test_no_gradient_work_without_a_gradient() -> None:
    with torch.no_grad():
        smoothed, _ = chunked_cross_entropy_sums(
            torch.randn(1, 2, 4), torch.randn(5, 4), torch.tensor([[1, 2]])
        )
    assert not smoothed.requires_grad


@pytest.mark.parametrize("fast_loss", [True, False])
def test_states_at_padding_do_not_count(make_model: MakeModel, fast_loss: bool) -> None:
    model = make_model(fast=fast_loss)
    states = torch.randn(1, 4, 16)
    targets = torch.tensor([[5, 2, 0, 0]])
    other = states.clone()
    other[0, 2:] = 100.0
    for a, b in zip(model.nll(states, targets, 0.1), model.nll(other, targets, 0.1), strict=True):
        assert torch.equal(a, b)
    other[0, 1] = 0.0
    assert not torch.equal(model.nll(states, targets, 0.1)[0], model.nll(other, targets, 0.1)[0])


def test_the_switch_picks_the_twin(make_model: MakeModel) -> None:
    states, targets = torch.randn(1, 2, 16, requires_grad=True), torch.tensor([[5, 2]])
    names = [type(make_model(fast=f).nll(states, targets)[0].grad_fn).__name__ for f in (True, False)]
    assert "ChunkedCrossEntropy" in names[0] and "ChunkedCrossEntropy" not in names[1]
