"""The recurrent rival: cell and layers against torch's, attention by hand, and what it must not see."""

import pytest
import torch
from torch import Tensor, nn

from minitrans.errors import UserError
from minitrans.model.masks import padding_mask
from minitrans.model.recurrent import BidirectionalLSTM, LSTMCell, RecurrentModel
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
def model(make_model: MakeModel) -> RecurrentModel:
    """2 + 2 layers, width 16, states of 12."""
    return lstm(make_model)


def lstm(make_model: MakeModel, **changes: object) -> RecurrentModel:
    shape = {"architecture": "lstm", "num_heads": 4, "d_ff": 1024, "num_encoder_layers": 2, "d_hidden": 12}
    made = make_model(position="none", **{**shape, "num_decoder_layers": 2, **changes})
    assert isinstance(made, RecurrentModel)
    return made


# --- parts ---


def copy_cell(ours: LSTMCell, theirs: nn.LSTM | nn.LSTMCell, suffix: str = "") -> None:
    """Give torch's module the weights of our cell, all of its bias in the first of their two."""
    width = getattr(theirs, f"weight_ih{suffix}").size(1)
    with torch.no_grad():
        getattr(theirs, f"weight_ih{suffix}").copy_(ours.weight[:, :width])
        getattr(theirs, f"weight_hh{suffix}").copy_(ours.weight[:, width:])
        getattr(theirs, f"bias_ih{suffix}").copy_(ours.bias)
        getattr(theirs, f"bias_hh{suffix}").zero_()


def test_cell_equals_torch_over_a_sentence() -> None:
    ours, theirs = LSTMCell(5, 3), nn.LSTM(5, 3, batch_first=True)
    nn.init.normal_(ours.bias)
    copy_cell(ours, theirs, "_l0")
    x, h, c = torch.randn(2, 4, 5), torch.randn(2, 3), torch.randn(2, 3)
    expected, (last_h, last_c) = theirs(x, (h.unsqueeze(0), c.unsqueeze(0)))
    outputs = []
    for token in x.unbind(1):
        h, c = ours(token, h, c)
        outputs.append(h)
    torch.testing.assert_close(torch.stack(outputs, 1), expected)
    torch.testing.assert_close((h, c), (last_h[0], last_c[0]))


def test_cell_by_hand() -> None:
    """One unit, x = 1, h = 0: every gate's sum is its own weight."""
    cell = LSTMCell(1, 1)
    with torch.no_grad():
        cell.weight.copy_(torch.tensor([[0.5, 9.0], [-1.0, 9.0], [2.0, 9.0], [0.0, 9.0]]))
    h, c = cell(torch.ones(1, 1), torch.zeros(1, 1), torch.full((1, 1), 3.0))
    # c' = σ(-1) · 3 + σ(0.5) · tanh(2) = 0.268941 · 3 + 0.622459 · 0.964028; h' = 0.5 · tanh(c')
    assert c.item() == pytest.approx(1.406892, abs=1e-5)
    assert h.item() == pytest.approx(0.443416, abs=1e-5)


def test_cell_keeps_its_sum_in_full_precision() -> None:
    cell = LSTMCell(4, 4)
    with torch.autocast("cpu", torch.bfloat16):
        h, c = cell(torch.randn(2, 4), torch.zeros(2, 4), torch.zeros(2, 4))
    assert (h.dtype, c.dtype) == (torch.bfloat16, torch.float32)


def test_both_directions_equal_torch_on_packed_sentences() -> None:
    ours, theirs = BidirectionalLSTM(5, 6), nn.LSTM(5, 3, batch_first=True, bidirectional=True)
    for layer, suffix in ((ours.rightwards, "_l0"), (ours.leftwards, "_l0_reverse")):
        for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            getattr(theirs, f"{kind}{suffix}").data.copy_(getattr(layer, f"{kind}_l0"))
    x, lengths = torch.randn(3, 7, 5), torch.tensor([4, 7, 1])
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    expected, _ = nn.utils.rnn.pad_packed_sequence(theirs(packed)[0], batch_first=True)
    found = ours(x, lengths.unsqueeze(1))
    for row, length in enumerate(lengths):
        torch.testing.assert_close(found[row, :length], expected[row, :length])


def test_two_steps_of_the_decoder_by_its_equations(make_model: MakeModel) -> None:
    model = lstm(make_model, num_decoder_layers=1)
    decoder = model.decoder
    src, tgt = ids(5), ids(2)
    mask = padding_mask(src)
    memory = model.encode(src, mask)
    cell = nn.LSTMCell(32, 12)
    copy_cell(decoder.cells[0], cell)
    start = torch.tanh(memory[:, 0, 6:] @ decoder.w_start.weight.T + decoder.w_start.bias)
    h, c, fed = start, start, torch.zeros(1, 16)
    for t in range(2):
        y = decoder.embedding.weight[tgt[:, t]] * 4  # √16
        h, c = cell(torch.cat((y, fed), dim=-1), (h, c))
        scores = torch.einsum("be,ef,bsf->bs", h, decoder.w_key.weight, memory)
        weights = (scores / 12**0.5).softmax(-1)
        both = torch.cat((torch.einsum("bs,bse->be", weights, memory), h), dim=-1)
        fed = torch.tanh(both @ decoder.w_output.weight.T + decoder.w_output.bias)
    torch.testing.assert_close(model.decode(tgt, memory, mask)[:, 1], fed)
    attention = model.source_attention(src, mask, tgt)
    torch.testing.assert_close(attention[:, 1], weights)


def test_forget_gates_begin_by_remembering(model: RecurrentModel) -> None:
    expected = torch.cat((torch.zeros(12), torch.ones(12), torch.zeros(24)))
    assert torch.equal(model.decoder.cells[1].bias, expected)
    layer = model.encoder.layers[0]
    both = layer.leftwards.bias_ih_l0 + layer.leftwards.bias_hh_l0
    assert torch.equal(both, torch.cat((torch.zeros(6), torch.ones(6), torch.zeros(12))))


def test_an_odd_width_has_no_halves(make_model: MakeModel) -> None:
    with pytest.raises(UserError, match=r"model\.d_hidden=13 is odd"):
        lstm(make_model, d_hidden=13)


# --- the face ---


def test_the_future_is_never_read(model: RecurrentModel) -> None:
    assert_future_is_never_read(model)


def test_a_sentence_does_not_feel_its_neighbours(model: RecurrentModel) -> None:
    assert_neighbours_are_not_felt(model)


def test_padding_gets_no_gradient(model: RecurrentModel) -> None:
    assert_padding_gets_no_gradient(model)


@pytest.mark.parametrize("pieces", [[1] * 7, [3, 1, 3]])
def test_steps_equal_all_at_once(model: RecurrentModel, pieces: list[int]) -> None:
    assert_steps_equal_all_at_once(model, pieces)


def test_selected_rows_go_on_as_themselves(model: RecurrentModel) -> None:
    assert_selected_rows_go_on(model)


def test_nll_is_cross_entropy(make_model: MakeModel) -> None:
    for tie in ("none", "all"):
        assert_nll_is_cross_entropy(lstm(make_model, tie=tie))


def test_search_ignores_neighbours(model: RecurrentModel) -> None:
    assert_search_ignores_neighbours(model)


def test_one_attention_is_drawn(model: RecurrentModel) -> None:
    src, tgt = ids(6, 3), ids(4, 4)
    maps = model.attention_maps(src, padding_mask(src), tgt)
    assert (maps.encoder, maps.decoder, len(maps.cross)) == ([], [], 1)
    assert maps.cross[0].shape == (2, 1, 4, 6)
    torch.testing.assert_close(maps.cross[0].sum(-1), torch.ones(2, 1, 4))
    assert (maps.cross[0][1, :, :, 3:] == 0).all()
    with pytest.raises(ValueError, match="no layer 2"):
        model.source_attention(src, padding_mask(src), tgt, 2)


def test_half_precision_is_near_full(make_model: MakeModel) -> None:
    model = lstm(make_model, d_model=64, d_hidden=64)
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
    assert_learns_to_copy(lstm(make_model, vocab_size=12, d_model=32, d_hidden=64, num_decoder_layers=1))
