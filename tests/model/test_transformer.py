import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitrans.model.masks import padding_mask
from minitrans.model.positions import POSITIONS, PositionLimitError
from tests.model.conftest import MakeModel
from tests.model.test_layers import assert_same, copy_weights


def ids(*lengths: int, width: int | None = None, start: int = 4) -> Tensor:
    """Random token ids, one row for each length, filled up with padding."""
    rows = torch.zeros(len(lengths), width or max(lengths), dtype=torch.long)
    for row, length in zip(rows, lengths, strict=True):
        row[:length] = torch.randint(start, 50, (length,))
    return rows


# --- against torch ---


@pytest.mark.parametrize("norm_order", ["pre", "post"])
def test_stacks_equal_torch(make_model: MakeModel, norm_order: str) -> None:
    model = make_model(num_encoder_layers=2, num_decoder_layers=2, norm_order=norm_order)
    pre_norm = norm_order == "pre"

    def final_norm() -> nn.Module | None:
        return nn.LayerNorm(16) if pre_norm else None

    shape = {"batch_first": True, "norm_first": pre_norm}
    theirs = nn.Transformer(
        16,
        2,
        custom_encoder=nn.TransformerEncoder(
            nn.TransformerEncoderLayer(16, 2, 32, 0.0, **shape), 2, final_norm(), enable_nested_tensor=False
        ),
        custom_decoder=nn.TransformerDecoder(
            nn.TransformerDecoderLayer(16, 2, 32, 0.0, **shape), 2, final_norm()
        ),
        batch_first=True,
    )
    pairs = []
    for ours_stack, theirs_stack in ((model.encoder, theirs.encoder), (model.decoder, theirs.decoder)):
        for ours_layer, theirs_layer in zip(ours_stack.layers, theirs_stack.layers, strict=True):
            pairs += copy_weights(theirs_layer, ours_layer)
    src, tgt = ids(7, 4), ids(5, 3)
    real = src != 0
    with torch.no_grad():  # the embeddings are ours on both sides
        x = model.encoder.position.add(model.encoder.embedding(src))
        y = model.decoder.position.add(model.decoder.embedding(tgt))
    future = nn.Transformer.generate_square_subsequent_mask(5).isinf()
    expected = theirs(x, y, tgt_mask=future, src_key_padding_mask=~real, memory_key_padding_mask=~real)
    mask = padding_mask(src)
    states = model.decode(tgt, model.encode(src, mask), mask)
    assert_same(states, expected, [], pairs)


def test_forward_is_the_output_matrix_on_the_states(make_model: MakeModel) -> None:
    model = make_model()
    src, tgt = ids(4), ids(3)
    mask = padding_mask(src)
    states = model.decode(tgt, model.encode(src, mask), mask)
    torch.testing.assert_close(model(src, mask, tgt), states @ model.decoder.embedding.weight.T)


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("tie", ["none", "decoder", "all"])
def test_gradients_of_the_whole_model(make_model: MakeModel, tie: str, fast: bool) -> None:
    """Against torch's loss on the logits: every parameter learns, tied ones from both ends."""
    model = make_model(tie=tie, fast=fast)
    src, tgt = ids(5, 3), ids(4, 2)
    mask = padding_mask(src)
    smoothed, _ = model.nll(model.decode(tgt, model.encode(src, mask), mask), tgt, 0.1)
    logits = model(src, mask, tgt).flatten(0, 1)
    expected = F.cross_entropy(logits, tgt.flatten(), ignore_index=0, reduction="sum", label_smoothing=0.1)
    parameters = list(model.parameters())
    got = torch.autograd.grad(smoothed, parameters)
    for gradient, right in zip(got, torch.autograd.grad(expected, parameters), strict=True):
        torch.testing.assert_close(gradient, right, atol=1e-5, rtol=1e-4)
    keys = [name for name, _ in model.named_parameters() if name.endswith("w_key.bias")]
    still = [name for (name, _), g in zip(model.named_parameters(), got, strict=True) if g.abs().max() < 1e-5]
    assert still == keys  # a constant added to every key changes no softmax


def test_autocast_is_near_full_precision(make_model: MakeModel) -> None:
    model = make_model(d_model=64)
    src, tgt = ids(9, 5), ids(8, 6)
    mask = padding_mask(src)

    def flat_gradient() -> Tensor:
        smoothed, _ = model.nll(model.decode(tgt, model.encode(src, mask), mask), tgt, 0.1)
        assert smoothed.dtype == torch.float32
        return torch.cat([g.flatten() for g in torch.autograd.grad(smoothed, list(model.parameters()))])

    full = flat_gradient()
    with torch.autocast("cpu", torch.bfloat16):
        half = flat_gradient()
    assert half.dtype == torch.float32
    assert (half - full).norm() < 0.05 * full.norm()


# --- nothing leaks ---


@pytest.mark.parametrize("position", POSITIONS)
def test_a_sentence_does_not_feel_its_neighbours(make_model: MakeModel, position: str) -> None:
    """BR-02: alone and beside a longer pair, in training and in evaluation mode."""
    model = make_model(position=position)
    src, tgt = ids(3, 20), ids(4, 15)
    alone_src, alone_tgt = src[:1, :3], tgt[:1, :4]
    outputs = []
    for mode in (True, False):
        model.train(mode)
        outputs.append(model(alone_src, padding_mask(alone_src), alone_tgt)[0])
        outputs.append(model(src, padding_mask(src), tgt)[0, :4])
        assert model.encode(src, padding_mask(src)).shape == (2, 20, 16)
    for output in outputs[1:]:
        torch.testing.assert_close(output, outputs[0], atol=1e-5, rtol=0)


def test_source_padding_is_never_read(make_model: MakeModel) -> None:
    model = make_model()
    src, tgt = ids(3, width=6), ids(4)
    mask = padding_mask(src)
    other = src.clone()
    other[0, 3:] = torch.tensor([7, 8, 9])  # real ids below the same mask
    assert (model(src, mask, tgt) - model(other, mask, tgt)).abs().max() == 0


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("norm_order", ["pre", "post"])
def test_the_future_is_never_read(make_model: MakeModel, position: str, norm_order: str) -> None:
    """BR-03, first half."""
    model = make_model(position=position, norm_order=norm_order, num_decoder_layers=2)
    src, tgt = ids(6), ids(8)
    mask = padding_mask(src)
    logits = model(src, mask, tgt)[0]
    for k in range(1, 8):
        other = tgt.clone()
        other[0, k:] = (tgt[0, k:] - 4 + 11) % 46 + 4
        change = (model(src, mask, other)[0] - logits).abs()
        assert change[:k].max() <= 1e-6
        assert change[k].max() > 1e-4


def test_every_past_token_is_read(make_model: MakeModel) -> None:
    model = make_model()
    src, tgt = ids(6), ids(8)
    mask = padding_mask(src)
    last = model(src, mask, tgt)[0, -1]
    for k in range(8):
        other = tgt.clone()
        other[0, k] = (tgt[0, k] - 4 + 11) % 46 + 4
        assert (model(src, mask, other)[0, -1] - last).abs().max() > 1e-5


def test_without_positions_the_encoder_does_not_know_the_order(make_model: MakeModel) -> None:
    src = ids(5)
    order = torch.tensor([3, 0, 4, 1, 2])
    for position, same in (("none", True), ("sinusoidal", False), ("learned", False), ("rotary", False)):
        model = make_model(position=position)
        memory = model.encode(src, padding_mask(src))
        shuffled = model.encode(src[:, order], padding_mask(src))
        assert ((memory[:, order] - shuffled).abs().max() < 1e-5) == same, position


# --- the cache ---


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("pieces", [[1] * 7, [3, 1, 3], [7]])
def test_steps_equal_all_at_once(make_model: MakeModel, position: str, pieces: list[int]) -> None:
    model = make_model(position=position, num_decoder_layers=2, d_k=6, d_v=10)
    src, tgt = ids(5, 3), ids(7, 7)
    mask = padding_mask(src)
    memory = model.encode(src, mask)
    cache, states = model.start_cache(memory, mask), []
    for piece in tgt.split(pieces, dim=1):
        state, cache = model.step(piece, cache)
        states.append(state)
    assert cache.length == 7
    torch.testing.assert_close(torch.cat(states, 1), model.decode(tgt, memory, mask), atol=1e-5, rtol=1e-5)


def test_selected_rows_go_on_as_themselves(make_model: MakeModel) -> None:
    model = make_model()
    src, tgt = ids(5, 3, 4), ids(3, 3, 3)
    mask = padding_mask(src)
    memory = model.encode(src, mask)
    rows = torch.tensor([2, 0, 2, 1])
    start = model.start_cache(memory, mask)
    _, cache = model.step(tgt, start)
    newest = ids(1, 1, 1, 1)
    states, _ = model.step(newest, cache.select(rows))
    whole = torch.cat([tgt[rows], newest], dim=1)
    expected = model.decode(whole, memory[rows], mask[rows])[:, -1:]
    torch.testing.assert_close(states, expected, atol=1e-5, rtol=1e-5)
    fresh, _ = model.step(whole, start.select(rows))
    torch.testing.assert_close(fresh[:, -1:], expected, atol=1e-5, rtol=1e-5)


def test_cache_does_not_change_under_a_step(make_model: MakeModel) -> None:
    model = make_model()
    src = ids(5)
    mask = padding_mask(src)
    cache = model.start_cache(model.encode(src, mask), mask)
    tgt = ids(2)
    first, _ = model.step(tgt, cache)
    again, _ = model.step(tgt, cache)
    assert torch.equal(first, again)


def test_learned_limit_counts_cached_tokens(make_model: MakeModel) -> None:
    model = make_model(position="learned")
    assert model.src_limit == model.tgt_limit == 512
    src = ids(5)
    mask = padding_mask(src)
    cache = model.start_cache(model.encode(src, mask), mask)
    _, cache = model.step(ids(512), cache)
    with pytest.raises(PositionLimitError, match="513 tokens is longer than the 512"):
        model.step(ids(1), cache)
    with pytest.raises(PositionLimitError, match="600 tokens"):
        model.encode(ids(600), padding_mask(ids(600)))


# --- parts put together ---


@pytest.mark.parametrize(("tie", "tables"), [("none", 3), ("decoder", 2), ("all", 1)])
def test_tied_tables(make_model: MakeModel, tie: str, tables: int) -> None:
    model = make_model(tie=tie)
    parts = (model.encoder.embedding.weight, model.decoder.embedding.weight, model.output.weight)
    assert len({part.data_ptr() for part in parts}) == tables
    assert sum(p.numel() for p in model.parameters() if p.shape == (50, 16)) == tables * 50 * 16


def test_saved_weights_load_into_another_start(make_model: MakeModel) -> None:
    model, other = make_model(seed=1), make_model(seed=2)
    src, tgt = ids(4), ids(3)
    mask = padding_mask(src)
    assert not torch.equal(model(src, mask, tgt), other(src, mask, tgt))
    other.load_state_dict(model.state_dict())
    assert torch.equal(model(src, mask, tgt), other(src, mask, tgt))


def test_attention_maps_of_every_layer(make_model: MakeModel) -> None:
    model = make_model(num_encoder_layers=2, num_decoder_layers=3).eval()
    src, tgt = ids(5, 3), ids(4, 4)
    mask = padding_mask(src)
    maps = model.attention_maps(src, mask, tgt)
    assert [m.shape for m in maps.encoder] == [(2, 2, 5, 5)] * 2
    assert [m.shape for m in maps.decoder] == [(2, 2, 4, 4)] * 3
    assert [m.shape for m in maps.cross] == [(2, 2, 4, 5)] * 3
    for weights in (*maps.encoder, *maps.decoder, *maps.cross):
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
    for weights in (*maps.encoder, *maps.cross):
        assert (weights[1, :, :, 3:] == 0).all() and (weights[1, :, :, :3] > 0).all()
    for weights in maps.decoder:
        assert (weights.triu(1) == 0).all() and (weights[..., -1, :] > 0).all()


def test_attention_maps_follow_from_queries_and_keys(make_model: MakeModel) -> None:
    model = make_model(norm_order="post")
    src = ids(5)
    layer = model.encoder.layers[0]
    x = model.encoder.position.add(model.encoder.embedding(src))
    query = (x @ layer.self_attention.w_query.weight.T).view(5, 2, 8)
    key = (x @ layer.self_attention.w_key.weight.T).view(5, 2, 8)
    expected = (torch.einsum("thk,shk->hts", query, key) / 8**0.5).softmax(-1)
    maps = model.attention_maps(src, padding_mask(src), ids(2))
    torch.testing.assert_close(maps.encoder[0][0], expected)


def test_half_precision_model_runs(make_model: MakeModel) -> None:
    model = make_model().to(torch.bfloat16)
    src, tgt = ids(4, 2), ids(3, 3)
    mask = padding_mask(src)
    full = make_model()(src, mask, tgt)
    assert (model(src, mask, tgt).float() - full).abs().max() < 0.1


@pytest.mark.slow
@pytest.mark.parametrize("norm_order", ["pre", "post"])
def test_six_layers_train(make_model: MakeModel, norm_order: str) -> None:
    """Vaswani's depth, post-norm too, learns to copy; blind guessing costs ln(47) = 3.85."""
    model = make_model(
        num_encoder_layers=6, num_decoder_layers=6, norm_order=norm_order, d_model=64, num_heads=4, d_ff=128
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 100))
    for _ in range(300):
        src = torch.randint(3, 50, (32, 6))
        tgt = torch.cat([torch.ones(32, 1, dtype=torch.long), src[:, :-1]], dim=1)
        mask = padding_mask(src)
        loss, nll = model.nll(model.decode(tgt, model.encode(src, mask), mask), src)
        optimizer.zero_grad()
        (loss / src.numel()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    assert nll.item() / src.numel() < 2.8
