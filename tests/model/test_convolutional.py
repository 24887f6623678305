"""The convolutional rival: its blocks against torch's convolution, its attention by hand, and its limits."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from minitrans.errors import UserError
from minitrans.model.convolutional import ConvolutionalModel, GatedConvolution
from minitrans.model.masks import padding_mask
from tests.model.conftest import MakeModel
from tests.model.rivals import (
    assert_future_is_never_read,
    assert_learns_to_copy,
    assert_neighbours_are_not_felt,
    assert_nll_is_cross_entropy,
    assert_padding_gets_no_gradient,
    assert_search_ignores_neighbours,
    assert_selected_rows_go_on,
    assert_steps_equal_all_at_once,
)
from tests.model.test_transformer import ids


@pytest.fixture
def model(make_model: MakeModel) -> ConvolutionalModel:
    """3 + 2 layers, width 16, 12 channels."""
    return conv(make_model)


def conv(make_model: MakeModel, **changes: object) -> ConvolutionalModel:
    shape = {"architecture": "conv", "num_heads": 4, "d_ff": 1024, "num_encoder_layers": 3, "d_hidden": 12}
    made = make_model(**{**shape, "num_decoder_layers": 2, **changes})
    assert isinstance(made, ConvolutionalModel)
    return made


# --- parts ---


@pytest.mark.parametrize(("kernel_size", "dilation"), [(1, 1), (2, 3), (3, 1), (3, 4), (5, 2)])
def test_convolution_equals_torch(kernel_size: int, dilation: int) -> None:
    ours = GatedConvolution(4, kernel_size, dilation)
    x = torch.randn(2, 19, 4)
    # (2C, k*C) -> (2C, k, C) -> torch's (2C, C, k)
    weight = ours.linear.weight.view(8, kernel_size, 4).transpose(1, 2)
    both = F.conv1d(x.transpose(1, 2), weight, ours.linear.bias, dilation=dilation)  # (2, 2C, T)
    content, gate = both.transpose(1, 2).split(4, dim=-1)
    torch.testing.assert_close(ours(x), content * torch.sigmoid(gate))


def test_convolution_by_hand() -> None:
    """One channel, y_t = (x_t + 10 x_{t+2}) · σ(0)."""
    layer = GatedConvolution(1, 2, 2)
    with torch.no_grad():
        layer.linear.weight.copy_(torch.tensor([[1.0, 10.0], [0.0, 0.0]]))
        layer.linear.bias.zero_()
    found = layer(torch.tensor([[[1.0], [2.0], [3.0], [4.0], [5.0]]]))
    assert found.flatten().tolist() == [15.5, 21.0, 26.5]


def test_dilations_double_and_begin_again(make_model: MakeModel) -> None:
    model = conv(make_model, num_encoder_layers=7, kernel_size=5)
    assert [layer.convolution.dilation for layer in model.encoder.layers] == [1, 2, 4, 8, 16, 1, 2]
    assert model.decoder.reaches == [4, 8]


def test_the_encoder_sees_as_far_as_its_layers_reach(make_model: MakeModel) -> None:
    """Three layers of 3 neighbours, 1 + 2 + 4 = 7 to each side."""
    model = conv(make_model)
    src = ids(20)
    memory = model.encode(src, padding_mask(src))
    other = src.clone()
    other[0, 10] = (src[0, 10] - 4 + 11) % 46 + 4
    change = (model.encode(other, padding_mask(src)) - memory)[0].abs().amax(-1)
    assert (change > 0).nonzero().flatten().tolist() == list(range(3, 18))


def test_a_decoder_layer_by_its_equations(make_model: MakeModel) -> None:
    model = conv(make_model, num_encoder_layers=1, num_decoder_layers=1, norm_order="post")
    src, tgt = ids(5), ids(4)
    mask = padding_mask(src)
    memory = model.encode(src, mask)
    z, value = memory[..., :16], memory[..., 16:]
    source = model.encoder.position.add(model.encoder.embedding(src))
    torch.testing.assert_close(value, (z + source) * 0.5**0.5)
    layer, decoder = model.decoder.layers[0], model.decoder
    g = decoder.position.add(decoder.embedding(tgt))
    x = decoder.w_input(g)
    gated = layer.convolution(torch.cat((torch.zeros(1, 2, 12), x), dim=1))
    x = F.layer_norm(x + gated, (12,))
    query = (layer.w_query(x) + g) * 0.5**0.5
    weights = (query @ z.transpose(1, 2) / 16**0.5).softmax(-1)
    x = F.layer_norm(x + layer.w_context(weights @ value), (12,))
    torch.testing.assert_close(model.decode(tgt, memory, mask), decoder.w_output(x))
    torch.testing.assert_close(model.source_attention(src, mask, tgt), weights)


def test_a_kernel_without_a_middle_is_refused(make_model: MakeModel) -> None:
    with pytest.raises(UserError, match=r"model\.kernel_size=2 is even"):
        conv(make_model, kernel_size=2)


# --- the face ---


@pytest.mark.parametrize("norm_order", ["pre", "post"])
def test_the_future_is_never_read(make_model: MakeModel, norm_order: str) -> None:
    assert_future_is_never_read(conv(make_model, norm_order=norm_order))


@pytest.mark.parametrize("norm_order", ["pre", "post"])
def test_a_sentence_does_not_feel_its_neighbours(make_model: MakeModel, norm_order: str) -> None:
    assert_neighbours_are_not_felt(conv(make_model, norm_order=norm_order))


def test_padding_gets_no_gradient(model: ConvolutionalModel) -> None:
    assert_padding_gets_no_gradient(model)


@pytest.mark.parametrize("position", ["none", "sinusoidal", "learned"])
@pytest.mark.parametrize("pieces", [[1] * 7, [3, 1, 3]])
def test_steps_equal_all_at_once(make_model: MakeModel, position: str, pieces: list[int]) -> None:
    assert_steps_equal_all_at_once(conv(make_model, position=position), pieces)


def test_a_kernel_of_one_needs_no_past(make_model: MakeModel) -> None:
    assert_steps_equal_all_at_once(conv(make_model, kernel_size=1), [1] * 7)


def test_selected_rows_go_on_as_themselves(model: ConvolutionalModel) -> None:
    assert_selected_rows_go_on(model)


def test_nll_is_cross_entropy(make_model: MakeModel) -> None:
    for tie in ("none", "all"):
        assert_nll_is_cross_entropy(conv(make_model, tie=tie))


def test_search_ignores_neighbours(model: ConvolutionalModel) -> None:
    assert_search_ignores_neighbours(model)


def test_each_layer_s_attention_is_drawn(model: ConvolutionalModel) -> None:
    src, tgt = ids(6, 3), ids(4, 4)
    maps = model.attention_maps(src, padding_mask(src), tgt)
    assert (maps.encoder, maps.decoder, len(maps.cross)) == ([], [], 2)
    for weights in maps.cross:
        assert weights.shape == (2, 1, 4, 6)
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 1, 4))
        assert (weights[1, :, :, 3:] == 0).all()


def test_learned_positions_limit_it(make_model: MakeModel) -> None:
    model = conv(make_model, position="learned")
    assert model.src_limit == model.tgt_limit == 512


def test_half_precision_is_near_full(make_model: MakeModel) -> None:
    model = conv(make_model, d_model=64, d_hidden=64)
    src, tgt = ids(9, 5), ids(8, 6)
    mask = padding_mask(src)

    def flat_gradient() -> Tensor:
        smoothed, _ = model.nll(model.decode(tgt, model.encode(src, mask), mask), tgt, 0.1)
        return torch.cat([g.flatten() for g in torch.autograd.grad(smoothed, list(model.parameters()))])

    full = flat_gradient()
    with torch.autocast("cpu", torch.bfloat16):
        half = flat_gradient()
    assert (half - full).norm() < 0.05 * full.norm()


def test_it_learns_to_copy(make_model: MakeModel) -> None:
    assert_learns_to_copy(conv(make_model, vocab_size=12, d_model=32, d_hidden=32))
