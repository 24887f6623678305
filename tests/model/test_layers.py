"""Our layers against torch's own, with copied weights: values and gradients."""

import pytest
import torch
from torch import Tensor, nn

from minitrans.model.attention import MultiHeadAttention, ScaledDotProductAttention
from minitrans.model.cache import LayerCache
from minitrans.model.dropout import Dropout
from minitrans.model.feedforward import ACTIVATIONS
from minitrans.model.layers import DecoderLayer, EncoderLayer, Residual
from minitrans.model.norms import LayerNorm
from minitrans.model.positions import PositionEncoding

D, H, F = 12, 3, 20


def attention() -> MultiHeadAttention:
    return MultiHeadAttention(D, H, D // H, D // H, ScaledDotProductAttention(D // H))


def feed_forward(activation: str = "relu") -> nn.Module:
    network, f = ACTIVATIONS[activation]
    return network(D, F, f, Dropout(0.0))


def residual(pre_norm: bool) -> Residual:
    norm = LayerNorm(D)
    with torch.no_grad():  # away from the start, where a forgotten gain or bias would not show
        norm.weight.uniform_(0.5, 1.5)
        norm.bias.uniform_(-0.5, 0.5)
    return Residual(norm, Dropout(0.0), pre_norm=pre_norm)


def encoder_layer(pre_norm: bool, activation: str = "relu") -> EncoderLayer:
    return EncoderLayer(attention(), feed_forward(activation), residual(pre_norm), residual(pre_norm))


def decoder_layer(pre_norm: bool) -> DecoderLayer:
    return DecoderLayer(attention(), attention(), feed_forward(), *(residual(pre_norm) for _ in range(3)))


def pair(theirs: nn.Module, ours: nn.Module) -> list[tuple[nn.Parameter, list[nn.Parameter]]]:
    """Each of torch's parameters in a layer with ours, several where torch joins them."""
    names: list[tuple[str, list[str]]] = []
    for torch_name, name in (("self_attn", "self_attention"), ("multihead_attn", "cross_attention")):
        if hasattr(theirs, torch_name):
            for kind in ("weight", "bias"):
                projections = [f"{name}.w_{part}.{kind}" for part in ("query", "key", "value")]
                names.append((f"{torch_name}.in_proj_{kind}", projections))
                names.append((f"{torch_name}.out_proj.{kind}", [f"{name}.w_output.{kind}"]))
    residuals = [name for name in ("self_residual", "cross_residual", "ffn_residual") if hasattr(ours, name)]
    for kind in ("weight", "bias"):
        names += [(f"linear{i}.{kind}", [f"feed_forward.w_{i}.{kind}"]) for i in (1, 2)]
        names += [(f"norm{i}.{kind}", [f"{name}.norm.{kind}"]) for i, name in enumerate(residuals, 1)]
    return [(theirs.get_parameter(a), [ours.get_parameter(b) for b in bs]) for a, bs in names]


def copy_weights(theirs: nn.Module, ours: nn.Module) -> list[tuple[nn.Parameter, list[nn.Parameter]]]:
    pairs = pair(theirs, ours)
    assert len(pairs) == len(list(theirs.parameters()))
    assert sum(len(parts) for _, parts in pairs) == len(list(ours.parameters()))
    with torch.no_grad():
        for parameter, parts in pairs:
            parameter.copy_(torch.cat(list(parts)))
    return pairs


def assert_same(
    output: Tensor,
    expected: Tensor,
    inputs: list[Tensor],
    pairs: list[tuple[nn.Parameter, list[nn.Parameter]]],
) -> None:
    """Equal values, and equal gradients in the inputs and every parameter."""
    torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-5)
    upstream = torch.randn_like(output)
    ours = torch.autograd.grad(output, inputs + [part for _, parts in pairs for part in parts], upstream)
    theirs = torch.autograd.grad(expected, inputs + [parameter for parameter, _ in pairs], upstream)
    split = iter(ours[len(inputs) :])
    joined = [torch.cat([next(split) for _ in parts]) for _, parts in pairs]
    for got, right in zip([*ours[: len(inputs)], *joined], theirs, strict=True):
        torch.testing.assert_close(got, right, atol=1e-5, rtol=1e-5)


REAL = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])  # (B, S)


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("pre_norm", [True, False])
def test_encoder_layer_equals_torch(pre_norm: bool, activation: str) -> None:
    ours = encoder_layer(pre_norm, activation)
    theirs = nn.TransformerEncoderLayer(D, H, F, 0.0, activation, batch_first=True, norm_first=pre_norm)
    pairs = copy_weights(theirs, ours)
    x = torch.randn(2, 6, D, requires_grad=True)
    output = ours(x, REAL.unsqueeze(1), PositionEncoding())
    assert_same(output, theirs(x, src_key_padding_mask=~REAL), [x], pairs)


@pytest.mark.parametrize("pre_norm", [True, False])
def test_decoder_layer_equals_torch(pre_norm: bool) -> None:
    ours = decoder_layer(pre_norm)
    theirs = nn.TransformerDecoderLayer(D, H, F, 0.0, batch_first=True, norm_first=pre_norm)
    pairs = copy_weights(theirs, ours)
    x, memory = torch.randn(2, 5, D, requires_grad=True), torch.randn(2, 6, D, requires_grad=True)
    output, cache = ours(x, ours.start_cache(memory), REAL.unsqueeze(1), PositionEncoding(), 0)
    future = nn.Transformer.generate_square_subsequent_mask(5).isinf()
    expected = theirs(x, memory, tgt_mask=future, memory_key_padding_mask=~REAL)
    assert_same(output, expected, [x, memory], pairs)
    assert cache.self_key is not None and cache.self_key.shape == (2, H, 5, D // H)


def test_dropout_acts_on_the_change_not_on_the_stream() -> None:
    class Erase(Dropout):
        def forward(self, x: Tensor) -> Tensor:
            return x * 0

    x, change = torch.randn(2, 3, D), torch.randn(2, 3, D)
    assert torch.equal(Residual(LayerNorm(D), Erase(0.0), pre_norm=True).close(x, change), x)
    norm = LayerNorm(D)
    assert torch.equal(Residual(norm, Erase(0.0), pre_norm=False).close(x, change), norm(x))


def test_layer_cache_grows_and_leaves_the_old_one() -> None:
    start = LayerCache(torch.zeros(2, 1, 3, 4), torch.zeros(2, 1, 3, 5))
    first_key, first_value = torch.randn(2, 1, 2, 4), torch.randn(2, 1, 2, 5)
    key, value, one = start.extend(first_key, first_value)
    assert torch.equal(key, first_key) and torch.equal(value, first_value)
    next_key = torch.randn(2, 1, 1, 4)
    key, _, two = one.extend(next_key, torch.randn(2, 1, 1, 5))
    assert torch.equal(key, torch.cat([first_key, next_key], dim=2))
    assert two.self_key is key
    assert start.self_key is None
    assert one.self_key is not None and one.self_key.size(2) == 2
