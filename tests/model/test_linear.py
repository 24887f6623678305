"""Maps with what stands around them, against torch's own maps one by one: values and gradients."""

import contextlib
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitrans.model import attention, feedforward
from minitrans.model.attention import MultiHeadAttention, ScaledDotProductAttention
from minitrans.model.dropout import Dropout
from minitrans.model.fast.dropout import byte_dropout
from minitrans.model.fast.linear import heads_of, joined_heads, rectified_network, trains_on_processor
from minitrans.model.fast.rows import ROWS
from minitrans.model.feedforward import FeedForward

D, H = 12, 3
SHAPES = [(1, 1), (2, 5), (4, ROWS // 4), (3, 43)]
TYPES = ["fp32", "fp64", "bf16", "autocast"]  # bf16: of the weights
TOLERANCE = {"fp32": 1e-5, "fp64": 1e-12, "bf16": 3e-2, "autocast": 3e-2}
DTYPE = {
    "fp32": torch.float32,
    "fp64": torch.float64,
    "bf16": torch.bfloat16,
    "autocast": torch.float32,
}


@contextlib.contextmanager
def computing_in(kind: str) -> Iterator[None]:
    with torch.autocast("cpu", torch.bfloat16, enabled=kind == "autocast"):
        yield


def assert_close(found: Tensor | None, expected: Tensor | None, kind: str) -> None:
    """By the norm of all entries, as single ones cancel (those of a key's bias altogether)."""
    assert found is not None and expected is not None
    assert found.shape == expected.shape
    error = (found.double() - expected.double()).norm()
    assert error <= TOLERANCE[kind] * max(expected.double().norm().item(), 0.1)


def assert_same_maps(
    clever: Callable[[Tensor], tuple[Tensor, ...]],
    plain: Callable[[Tensor], tuple[Tensor, ...]],
    x: Tensor,
    maps: nn.Module,
    kind: str,
) -> None:
    """Outputs, and gradients of the input and of every parameter, each of its own type."""
    results = []
    for function in (clever, plain):
        leaf = x.clone().requires_grad_()
        with computing_in(kind):
            outputs = function(leaf)
        torch.manual_seed(3)
        loss = sum((y.double() * torch.randn(y.shape, dtype=torch.float64)).sum() for y in outputs)
        assert isinstance(loss, Tensor)
        leaves = [leaf, *maps.parameters()]
        grads = torch.autograd.grad(loss, leaves)
        assert [grad.dtype for grad in grads] == [one.dtype for one in leaves]
        results.append((*outputs, *grads))
    for found, expected in zip(*results, strict=True):
        assert_close(found, expected, kind)


def split(x: Tensor) -> Tensor:
    return x.unflatten(-1, (H, -1)).transpose(1, 2)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("widths", [(4,), (4, 7), (4, 4, 5)])
def test_heads(kind: str, shape: tuple[int, int], bias: bool, widths: tuple[int, ...]) -> None:
    maps = nn.ModuleList(nn.Linear(D, H * width, bias=bias) for width in widths).to(DTYPE[kind])
    linears = [linear for linear in maps if isinstance(linear, nn.Linear)]
    x = torch.randn(*shape, D).to(DTYPE[kind])
    assert_same_maps(
        lambda x: heads_of(x, linears, H),
        lambda x: tuple(split(linear(x)) for linear in linears),
        x,
        maps,
        kind,
    )
    with computing_in(kind):
        found = heads_of(x, linears, H)
    assert all(heads.dtype == DTYPE[kind] and heads.is_contiguous() for heads in found)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("bias", [True, False])
def test_joined_heads(kind: str, shape: tuple[int, int], bias: bool) -> None:
    linear = nn.Linear(H * 5, D, bias=bias).to(DTYPE[kind])
    b, t = shape
    heads = torch.randn(b, H, t, 5).to(DTYPE[kind])
    assert_same_maps(
        lambda heads: (joined_heads(heads, linear),),
        lambda heads: (linear(heads.transpose(1, 2).flatten(2)),),
        heads,
        linear,
        kind,
    )


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("shape", [*SHAPES, (2, 3, 5)])
@pytest.mark.parametrize("biases", [(True, True), (False, False), (True, False)])
@pytest.mark.parametrize("rate", [0.0, 0.25])
def test_rectified_network(kind: str, shape: tuple[int, ...], biases: tuple[bool, bool], rate: float) -> None:
    w_1, w_2 = nn.Linear(D, 20, bias=biases[0]), nn.Linear(20, D, bias=biases[1])
    maps = nn.ModuleList((w_1, w_2)).to(DTYPE[kind])

    def clever(x: Tensor) -> tuple[Tensor, ...]:
        torch.manual_seed(5)
        return (rectified_network(x, w_1, w_2, rate),)

    def plain(x: Tensor) -> tuple[Tensor, ...]:
        torch.manual_seed(5)
        hidden = F.relu(w_1(x))
        return (w_2(byte_dropout(hidden, rate) if rate else hidden),)

    x = torch.randn(*shape, D).to(DTYPE[kind])
    # Filled rows draw numbers of their own, behind those of the real ones: the masks of the two are equal.
    assert_same_maps(clever, plain, x, maps, kind)


def test_a_map_that_is_frozen_has_no_gradient() -> None:
    maps = [nn.Linear(D, H * 4) for _ in range(3)]
    maps[1].requires_grad_(False)
    sum(heads.sum() for heads in heads_of(torch.randn(2, 5, D), maps, H)).backward()  # type: ignore[union-attr]
    assert [linear.weight.grad is not None for linear in maps] == [True, False, True]


def test_one_output_that_nothing_uses_has_a_gradient_of_zero() -> None:
    maps = [nn.Linear(D, H * 4) for _ in range(2)]
    heads_of(torch.randn(2, 5, D), maps, H)[0].sum().backward()
    assert maps[0].weight.grad is not None and maps[0].weight.grad.any()
    assert maps[1].weight.grad is not None and not maps[1].weight.grad.any()


@pytest.mark.parametrize("kind", ["fp32", "bf16"])
def test_not_a_number_stays_one(kind: str) -> None:
    """oneDNN's ReLU makes zeros of it, so that a divergence would pass unseen."""
    w_1, w_2 = nn.Linear(D, 20).to(DTYPE[kind]), nn.Linear(20, D).to(DTYPE[kind])
    x = torch.randn(2, 5, D).to(DTYPE[kind])
    x[0, 3] = float("nan")
    y = rectified_network(x, w_1, w_2, 0.0)
    assert y[0, 3].isnan().all() and int(y.isnan().sum()) == D


def test_second_derivatives_are_refused_not_wrong() -> None:
    x = torch.randn(2, 5, D, requires_grad=True)
    linear = nn.Linear(D, H * 4)
    (grad,) = torch.autograd.grad(heads_of(x, [linear], H)[0].square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


@pytest.mark.filterwarnings("ignore:TF32 acceleration")  # of a GPU that is not there
@pytest.mark.parametrize("kind", ["fp32", "bf16"])
def test_without_onednn_the_maps_are_torch_s(kind: str) -> None:
    w_1, w_2 = nn.Linear(D, 20).to(DTYPE[kind]), nn.Linear(20, D).to(DTYPE[kind])
    x = torch.randn(2, 5, D).to(DTYPE[kind])
    expected = rectified_network(x, w_1, w_2, 0.0)
    with torch.backends.mkldnn.flags(enabled=False):
        assert_close(rectified_network(x, w_1, w_2, 0.0), expected, kind)


def test_training_on_a_processor_alone_uses_them() -> None:
    x = torch.ones(2, 3)
    assert trains_on_processor(x)
    assert not trains_on_processor(torch.ones(0, 3))
    assert not trains_on_processor(torch.ones(3))
    assert not trains_on_processor(torch.ones(2, 3, device="meta"))
    with torch.no_grad():
        assert not trains_on_processor(x)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("together", [True, False])
def test_a_layer_s_pieces_are_the_same_without_them(
    monkeypatch: pytest.MonkeyPatch, kind: str, together: bool
) -> None:
    """Attention with d_k != d_v and a mask with an empty row, then the network, all with dropout."""
    torch.manual_seed(0)
    core = ScaledDotProductAttention(4, dropout=Dropout(0.2, fast=True))
    attend = MultiHeadAttention(D, H, 4, 6, core, fast=True)
    network = FeedForward(D, 20, F.relu, Dropout(0.3, fast=True), fast=True)
    maps = nn.ModuleList((attend, network)).to(DTYPE[kind])
    memory = torch.randn(3, 7, D).to(DTYPE[kind])
    mask = torch.rand(3, 5, 5 if together else 7) < 0.7
    mask[1, 2] = False

    def layer(x: Tensor) -> tuple[Tensor, ...]:
        torch.manual_seed(5)
        y = attend.attend(*attend.project(x), mask) if together else attend(x, memory, mask)
        return (x + y, x + network(y))

    def plain(x: Tensor) -> tuple[Tensor, ...]:
        with monkeypatch.context() as patch:
            for module in (attention, feedforward):
                patch.setattr(module, "trains_on_processor", lambda x, *maps: False)
            return layer(x)

    assert_same_maps(layer, plain, torch.randn(3, 5, D).to(DTYPE[kind]), maps, kind)


@pytest.mark.parametrize("kind", ["fp32", "bf16"])
@pytest.mark.parametrize("stride", [0, 2])
def test_a_bias_in_strides_is_read_as_it_lies(kind: str, stride: int) -> None:
    linear = nn.Linear(H * 4, D).to(DTYPE[kind])
    linear.bias = nn.Parameter(torch.randn(2 * D).to(DTYPE[kind]).as_strided((D,), (stride,)))
    heads = torch.randn(2, H, 5, 4).to(DTYPE[kind])
    assert_close(joined_heads(heads, linear), linear(heads.transpose(1, 2).flatten(2)), kind)


class Halved(nn.Linear):
    """A map with a forward pass of its own, as adapters have."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) / 2


def test_a_map_that_does_more_than_a_linear_one_is_called() -> None:
    """A hook, a forward pass of its own, a bias that its neighbours have not: plain maps, right values."""
    core = ScaledDotProductAttention(4)
    attend = MultiHeadAttention(D, H, 4, 4, core, fast=True)
    network = FeedForward(D, 20, F.relu, Dropout(0.0), fast=True)
    x = torch.randn(2, 5, D)
    calls = []
    for linear in (attend.w_value, attend.w_output, network.w_2):
        linear.register_forward_hook(lambda module, given, output: calls.append(module))
    attend(x, x), network(x)
    assert calls == [attend.w_value, attend.w_output, network.w_2]

    attend.w_query = Halved(D, H * 4)
    query, _, _ = attend.project(x)
    expected = (x @ attend.w_query.weight.T + attend.w_query.bias) / 2
    torch.testing.assert_close(query, split(expected))

    other = MultiHeadAttention(D, H, 4, 4, core, fast=True)
    other.w_key = nn.Linear(D, H * 4, bias=False)
    _, key, value = other.project(x)
    torch.testing.assert_close(key, split(x @ other.w_key.weight.T))
    torch.testing.assert_close(value, split(other.w_value(x)))


def test_a_cache_serves_with_and_without_gradients() -> None:
    """The heads of a model in half precision are so in training too."""
    attend = MultiHeadAttention(D, H, 4, 4, ScaledDotProductAttention(4), fast=True).bfloat16()
    x = torch.randn(2, 5, D).bfloat16()
    key, value = attend.project_key_value(x)
    with torch.no_grad():
        assert attend.project_query(x).dtype == key.dtype == value.dtype == torch.bfloat16
        attend.attend(attend.project_query(x), key, value)
