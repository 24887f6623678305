import itertools
import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from minitrans.model.attention import (
    MultiHeadAttention,
    ScaledDotProductAttention,
    choose_backend,
    fused_attention,
    scaled_dot_product_attention,
)
from minitrans.model.dropout import Dropout
from minitrans.model.fast.attention import folded_attention
from minitrans.model.masks import causal_mask

INF = float("inf")


def column(values: list[float], dtype: torch.dtype = torch.float32) -> Tensor:
    """(1, 1, n, 1): one batch row, one head, width 1."""
    return torch.tensor(values, dtype=dtype).view(1, 1, -1, 1)


# --- values by hand ---


def test_two_keys_by_hand() -> None:
    # Q·K = (4, 0), scaled by 1/√4: (2, 0); softmax: e²/(e² + 1) = 0.880797
    query = torch.tensor([[[2.0, 0.0, 0.0, 0.0]]])
    key = torch.tensor([[[2.0, 0.0, 0.0, 0.0], [0.0, 2.0, 0.0, 0.0]]])
    output, weights = scaled_dot_product_attention(query, key, torch.tensor([[[1.0], [0.0]]]))
    assert weights.flatten().tolist() == pytest.approx([0.880797, 0.119203], abs=1e-6)
    assert output.item() == pytest.approx(0.880797, abs=1e-6)


def test_scale_one_leaves_the_logits_unscaled() -> None:
    # softmax(4, 0): e⁴/(e⁴ + 1) = 0.982014
    query, key = torch.tensor([[[2.0, 0.0, 0.0, 0.0]]]), torch.tensor([[[2.0, 0, 0, 0], [0, 2.0, 0, 0]]])
    _, weights = scaled_dot_product_attention(query, key, torch.ones(1, 2, 1), scale=1.0)
    assert weights[0, 0, 0].item() == pytest.approx(0.982014, abs=1e-6)


def test_projected_example_of_the_text() -> None:
    x = torch.randn(2, 5, 8)
    w_query, w_key, w_value = nn.Linear(8, 4), nn.Linear(8, 4), nn.Linear(8, 6)
    output, weights = ScaledDotProductAttention(4)(w_query(x), w_key(x), w_value(x))
    assert output.shape == (2, 5, 6)
    assert weights.shape == (2, 5, 5)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 5))
    logits = torch.einsum("btk,bsk->bts", w_query(x), w_key(x)) / 2
    expected = torch.einsum("bts,bsv->btv", logits.exp() / logits.exp().sum(-1, keepdim=True), w_value(x))
    torch.testing.assert_close(output, expected)


@pytest.mark.parametrize("backend", ["reference", "fused"])
@pytest.mark.parametrize(("num_queries", "expected"), [(1, [6.0]), (2, [4.5, 6.0]), (3, [3.0, 4.5, 6.0])])
def test_causal_queries_are_the_last_positions(backend: str, num_queries: int, expected: list[float]) -> None:
    """BR-01: a step with cached keys sees all of them."""
    core = ScaledDotProductAttention(1, backend=backend)
    zeros = column([0.0] * 3)
    output, _ = core(zeros[:, :, :num_queries], zeros, column([3, 6, 9]), causal=True, need_weights=False)
    assert output.flatten().tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("backend", ["reference", "fused"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_masked_key_never_wins(backend: str, dtype: torch.dtype) -> None:
    """BR-04: the only allowed logit is -20000."""
    core = ScaledDotProductAttention(1, backend=backend)
    query, key, value = column([-200], dtype), column([100, 0], dtype), column([1, 5], dtype)
    output, _ = core(query, key, value, torch.tensor([[True, False]]), need_weights=False)
    assert output.item() == 1.0
    assert output.dtype == dtype


@pytest.mark.parametrize("backend", ["reference", "fused"])
def test_a_query_without_keys_gives_zeros_and_zero_gradients(backend: str) -> None:
    query, key, value = (torch.randn(2, 1, 3, 4, requires_grad=True) for _ in range(3))
    mask = torch.tensor([[[True, False, True]], [[False, False, False]]]).unsqueeze(1)  # row 1 is empty
    core = ScaledDotProductAttention(4, backend=backend)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that anomaly detection is slow
        anomaly = torch.autograd.detect_anomaly()
    with anomaly:  # a NaN on the way is an error too
        output, _ = core(query, key, value, mask, need_weights=False)
        output.sum().backward()
    assert torch.equal(output[1], torch.zeros(1, 3, 4))
    assert output[0].abs().min() > 0
    for leaf in (query, key, value):
        assert leaf.grad is not None
        assert torch.equal(leaf.grad[1], torch.zeros(1, 3, 4))
        assert torch.isfinite(leaf.grad).all()
    assert value.grad is not None and value.grad[0].abs().sum() > 0


def test_weights_of_a_query_without_keys_are_zero() -> None:
    x = torch.randn(1, 2, 4)
    _, weights = scaled_dot_product_attention(x, x, x, torch.tensor([[[True, True], [False, False]]]))
    assert weights[0].sum(-1).tolist() == pytest.approx([1.0, 0.0])


def test_dropout_is_applied_to_the_weights() -> None:
    x = torch.randn(1, 3, 4)
    output, weights = scaled_dot_product_attention(x, x, x, dropout=lambda w: w * 2)
    torch.testing.assert_close(output, 2 * weights @ x)


@pytest.mark.parametrize("shape", [(2, 1, 4), (2, 3, 4), (3, 4)])
def test_single_head_mask_shapes(shape: tuple[int, ...]) -> None:
    query, key = torch.randn(2, 3, 5), torch.randn(2, 4, 5)
    mask = torch.rand(shape) > 0.3
    mask[..., 0] = True
    _, weights = scaled_dot_product_attention(query, key, key, mask)
    assert torch.equal(weights > 0, mask.expand(2, 3, 4))


# --- claims ---


@settings(deadline=None, max_examples=40)
@given(
    batch=st.integers(1, 3),
    num_queries=st.integers(1, 5),
    num_keys=st.integers(1, 5),
    d_k=st.integers(1, 6),
    seed=st.integers(0, 1000),
)
def test_rows_sum_to_one_under_any_mask(
    batch: int, num_queries: int, num_keys: int, d_k: int, seed: int
) -> None:
    torch.manual_seed(seed)
    query, key = 5 * torch.randn(batch, num_queries, d_k), 5 * torch.randn(batch, num_keys, d_k)
    mask = torch.rand(batch, num_queries, num_keys) > 0.5
    _, weights = scaled_dot_product_attention(query, key, key, mask)
    torch.testing.assert_close(weights.sum(-1), mask.any(-1).float())
    assert (weights[~mask] == 0).all()


@pytest.mark.parametrize("d_k", [4, 64, 256])
def test_variance_of_a_dot_product_is_d_k(d_k: int) -> None:
    """Vaswani et al. 2017, footnote 4; over 40,000 pairs the estimate's own deviation is about 1 %."""
    query, key = torch.randn(40_000, d_k), torch.randn(40_000, d_k)
    products = (query * key).sum(-1)
    assert products.var().item() == pytest.approx(d_k, rel=0.06)
    assert (products / math.sqrt(d_k)).var().item() == pytest.approx(1.0, rel=0.06)


def test_multi_head_attention_has_four_square_matrices() -> None:
    attention = MultiHeadAttention(32, 4, 8, 8, ScaledDotProductAttention(8), bias=False)
    assert sum(parameter.numel() for parameter in attention.parameters()) == 4 * 32**2


# --- backends ---

MASKS = {
    "none": lambda t, s: None,
    "padding": lambda t, s: (torch.arange(s) < max(1, s // 2)).view(1, 1, 1, s).expand(2, 1, 1, s),
    "full": lambda t, s: torch.rand(2, 3, t, s) > 0.4,
    "integers": lambda t, s: (torch.rand(2, 1, t, s) > 0.4).long(),
    "additive": lambda t, s: torch.zeros(2, 1, t, s).masked_fill(torch.rand(2, 1, t, s) > 0.6, -INF),
    "empty rows": lambda t, s: torch.tensor([True, False]).view(2, 1, 1, 1).expand(2, 1, 1, s),
    "two axes": lambda t, s: causal_mask(t, s),
}
SHAPES = [(1, 1, 1, 1), (5, 5, 8, 8), (1, 7, 8, 8), (3, 7, 5, 9), (7, 3, 4, 2)]  # T, S, K, V
TOLERANCE = {
    torch.float64: 1e-10,
    torch.float32: 1e-5,
    torch.float16: 1e-2,
    torch.bfloat16: 6e-2,
}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("fast", ["fused", "folded"])
def test_fast_backends_equal_reference(name: str, causal: bool, dtype: torch.dtype, fast: str) -> None:
    for (t, s, k, v), scale in itertools.product(SHAPES, (None, 1.0)):
        mask = MASKS[name](t, s)
        inputs = [torch.randn(2, 3, n, width).to(dtype) for n, width in ((t, k), (s, k), (s, v))]
        upstream = torch.randn(2, 3, t, v).to(dtype)
        results = []
        for backend in ("reference", fast):
            leaves = [x.clone().requires_grad_() for x in inputs]
            core = ScaledDotProductAttention(k, scale=scale, backend=backend)
            output, _ = core(*leaves, mask, causal=causal, need_weights=False)
            results.append((output, *torch.autograd.grad(output, leaves, upstream)))
        for plain, clever in zip(*results, strict=True):
            torch.testing.assert_close(clever, plain, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def test_reference_equals_torch() -> None:
    query, key, value = torch.randn(2, 3, 5, 8), torch.randn(2, 3, 6, 8), torch.randn(2, 3, 6, 4)
    mask = torch.rand(2, 1, 5, 6) > 0.3
    mask[..., 0] = True
    output, _ = scaled_dot_product_attention(query, key, value, mask, scale=0.3)
    expected = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=0.3)
    torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-5)


def test_fused_drops_weights_at_the_rate() -> None:
    zeros, ones = torch.zeros(1, 1, 50, 4), torch.ones(1, 1, 400, 4)
    output = fused_attention(zeros, torch.zeros(1, 1, 400, 4), ones, dropout_rate=0.5)
    assert output.std() > 0.01
    assert output.mean().item() == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("sizes", [(0, 3, 3), (2, 0, 3), (2, 3, 0), (0, 0, 0)])
@pytest.mark.parametrize("masked", [False, True])
def test_folded_of_nothing_is_the_references(sizes: tuple[int, int, int], masked: bool) -> None:
    b, t, s = sizes
    shapes = ((b, 2, t, 8), (b, 2, s, 8), (b, 2, s, 5))
    inputs = [torch.ones(shape, requires_grad=True) for shape in shapes]
    mask = torch.ones(b, 1, t, s, dtype=torch.bool) if masked else None
    expected, _ = scaled_dot_product_attention(*inputs, mask, scale=0.3)
    output = folded_attention(*inputs, mask, scale=0.3)
    torch.testing.assert_close(output, expected)
    for ours, theirs in zip(
        torch.autograd.grad(output.sum(), inputs), torch.autograd.grad(expected.sum(), inputs), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


def test_folded_drops_what_the_reference_drops() -> None:
    query, key, value = torch.randn(2, 3, 5, 8), torch.randn(2, 3, 7, 8), torch.randn(2, 3, 7, 4)
    mask = torch.rand(2, 1, 1, 7) > 0.4
    outputs = []
    for backend in ("reference", "folded"):
        torch.manual_seed(5)
        core = ScaledDotProductAttention(8, backend=backend, dropout=Dropout(0.5, fast=True))
        outputs.append(core(query, key, value, mask, need_weights=False)[0])
    torch.testing.assert_close(*outputs)


@pytest.mark.parametrize("backend", ["auto", "reference", "folded", "fused"])
def test_dropout_acts_in_training_alone(backend: str) -> None:
    core = ScaledDotProductAttention(4, backend=backend, dropout=Dropout(0.5))
    query, key, value = (torch.randn(1, 1, 6, 4) for _ in range(3))
    plain, _ = scaled_dot_product_attention(query, key, value)
    assert (core(query, key, value, need_weights=False)[0] - plain).abs().max() > 1e-2
    core.eval()
    torch.testing.assert_close(core(query, key, value, need_weights=False)[0], plain)


@pytest.mark.parametrize(
    ("device", "dtype", "num_queries", "num_keys", "trains", "drops", "narrow", "backend"),
    [
        ("cpu", torch.float32, 20, 20, True, False, False, "fused"),
        ("cpu", torch.float32, 20, 20, True, False, True, "folded"),
        ("cpu", torch.float32, 20, 65, True, False, True, "fused"),
        ("cpu", torch.float32, 20, 20, False, False, True, "fused"),
        ("cpu", torch.float64, 20, 20, True, False, True, "fused"),
        ("cpu", torch.float32, 20, 20, True, True, False, "folded"),
        ("cpu", torch.bfloat16, 20, 20, True, False, False, "folded"),
        ("cpu", torch.bfloat16, 20, 512, True, False, True, "fused"),
        ("cpu", torch.bfloat16, 20, 20, False, False, False, "folded"),
        ("cpu", torch.bfloat16, 1, 20, False, False, False, "fused"),
        ("cuda", torch.bfloat16, 20, 20, True, True, True, "fused"),
    ],
)
def test_auto_is_a_table(
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    dtype: torch.dtype,
    num_queries: int,
    num_keys: int,
    trains: bool,
    drops: bool,
    narrow: bool,
    backend: str,
) -> None:
    monkeypatch.setattr("minitrans.model.attention.HAS_NARROW_REGISTERS", narrow)
    found = choose_backend(device, dtype, num_queries, num_keys, trains=trains, drops=drops)
    assert found == backend


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ValueError, match=r"attention\.backend is"):
        ScaledDotProductAttention(4, backend="flash")
    with pytest.raises(ValueError, match=r"attention\.scale must be above 0"):
        ScaledDotProductAttention(4, scale=0.0)
    with pytest.raises(ValueError, match="must be 4 wide, but they are 4 and 5"):
        ScaledDotProductAttention(4)(torch.ones(1, 1, 4), torch.ones(1, 1, 5), torch.ones(1, 1, 4))


# --- multi-head attention ---


def copy_attention(ours: MultiHeadAttention, theirs: nn.MultiheadAttention) -> None:
    """Give torch's module our weights."""
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([ours.w_query.weight, ours.w_key.weight, ours.w_value.weight]))
        theirs.out_proj.weight.copy_(ours.w_output.weight)
        if theirs.in_proj_bias is not None:
            theirs.in_proj_bias.copy_(torch.cat([ours.w_query.bias, ours.w_key.bias, ours.w_value.bias]))
            theirs.out_proj.bias.copy_(ours.w_output.bias)


@pytest.mark.parametrize("backend", ["reference", "fused"])
@pytest.mark.parametrize("bias", [True, False])
def test_multi_head_attention_equals_torch(backend: str, bias: bool) -> None:
    ours = MultiHeadAttention(12, 3, 4, 4, ScaledDotProductAttention(4, backend=backend), bias=bias)
    theirs = nn.MultiheadAttention(12, 3, bias=bias, batch_first=True)
    copy_attention(ours, theirs)
    x, y = torch.randn(2, 5, 12, requires_grad=True), torch.randn(2, 7, 12, requires_grad=True)
    real = torch.tensor([[True] * 7, [True] * 4 + [False] * 3])

    maps: list[Tensor] = []
    output = ours(x, y, real.unsqueeze(1))
    expected, expected_weights = theirs(x, y, y, key_padding_mask=~real, average_attn_weights=False)
    torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-5)
    ours.attend(ours.project_query(x), *ours.project_key_value(y), real.unsqueeze(1), maps=maps)
    torch.testing.assert_close(maps[0], expected_weights, atol=1e-5, rtol=1e-5)

    upstream = torch.randn_like(output)
    for got, right in zip(
        torch.autograd.grad(output, (x, y, ours.w_output.weight), upstream),
        torch.autograd.grad(expected, (x, y, theirs.out_proj.weight), upstream),
        strict=True,
    ):
        torch.testing.assert_close(got, right, atol=1e-5, rtol=1e-5)


def test_head_widths_are_free() -> None:
    attention = MultiHeadAttention(10, 3, 5, 7, ScaledDotProductAttention(5))
    assert attention(torch.randn(2, 4, 10), torch.randn(2, 6, 10)).shape == (2, 4, 10)
    assert attention.w_query.weight.shape == attention.w_key.weight.shape == (15, 10)
    assert attention.w_value.weight.shape == (21, 10)
    assert attention.w_output.weight.shape == (10, 21)


@pytest.mark.parametrize("shape", [(2, 1, 6), (2, 4, 6), (2, 3, 4, 6), (2, 1, 1, 6), (4, 6)])
def test_multi_head_mask_shapes(shape: tuple[int, ...]) -> None:
    attention = MultiHeadAttention(8, 3, 4, 4, ScaledDotProductAttention(4))
    mask = torch.rand(shape) > 0.4
    mask[..., 0] = True
    x, y = torch.randn(2, 4, 8), torch.randn(2, 6, 8)
    maps: list[Tensor] = []
    attention.attend(attention.project_query(x), *attention.project_key_value(y), mask, maps=maps)
    spread = mask.unsqueeze(1) if mask.dim() == 3 else mask
    assert torch.equal(maps[0] > 0, spread.expand(2, 3, 4, 6))
