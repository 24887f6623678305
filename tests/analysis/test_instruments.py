"""The instruments against loops over pairs, autograd, and components of unit variance."""

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from minitrans.analysis.instruments import HeadFigures, _Sums, counted_pairs, measure
from minitrans.analysis.operands import Operands, operands, places
from minitrans.analysis.prediction import predict_rows
from minitrans.build import build_model
from minitrans.config import Experiment, ModelConfig
from minitrans.data.batching import Batch
from minitrans.errors import UserError
from minitrans.model.encoder_decoder import EncoderDecoder
from tests.training.tiny import batch_of

D_K = 8
SMALL = ModelConfig(num_encoder_layers=2, num_decoder_layers=2, d_model=16, num_heads=2, d_k=D_K, d_ff=16)


def model_of(attention: dict[str, Any] | None = None, **changes: Any) -> EncoderDecoder:
    """A small Transformer in training mode, dropout on."""
    experiment = Experiment(
        model=dataclasses.replace(SMALL, dropout=0.3, **changes),
        position={"kind": "sinusoidal"},
        attention={"kind": "scaled_dot_product"} | (attention or {}),
    )
    return build_model(experiment, 12, 12).double()


def batch() -> Batch:
    return batch_of([([4, 5, 6, 7], [7, 8]), ([9], [5, 6, 10, 11, 4]), ([5, 5], [])])


def head(figures: tuple[HeadFigures, ...], side: str, layer: int, number: int) -> HeadFigures:
    (found,) = [f for f in figures if (f.side, f.layer, f.head) == (side, layer, number)]
    return found


def real_lengths(side: str, row: int) -> tuple[int, int]:
    """Queries and keys of one row of the batch, end or start token counted."""
    src, tgt = (5, 2, 3)[row], (3, 6, 1)[row]
    return {"encoder": (src, src), "decoder": (tgt, tgt), "cross": (tgt, src)}[side]


def by_loops(found: Operands, head: int, scale: float) -> dict[str, float]:
    """The figures of a head, pair by pair and row by row."""
    side, products, rows, queries, keys = found.place.side, [], [], [], set()
    usual = 1 / math.sqrt(D_K)
    for b in range(3):
        num_queries, num_keys = real_lengths(side, b)
        for t in range(num_queries):
            seen = range(t + 1) if side == "decoder" else range(num_keys)
            if len(seen) < 2:
                continue
            z = torch.stack([found.query[b, head, t] @ found.key[b, head, s] for s in seen])
            products += z.tolist()
            queries.append(found.query[b, head, t])
            keys |= {(b, s) for s in seen}
            rows.append(row_by_autograd(z, scale, usual))
    z = torch.tensor(products, dtype=torch.float64)
    key_rows = torch.stack([found.key[b, head, s] for b, s in sorted(keys)])
    components = torch.stack(queries).square().mean() * key_rows.square().mean()
    means = {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}
    variance = float(z.var(correction=0))
    return {
        "variance": variance,
        "scaled_variance": scale**2 * variance,
        "predicted_variance": D_K * float(components),
    } | means


def row_by_autograd(z: Tensor, scale: float, usual: float) -> dict[str, float]:
    a = (scale * z).softmax(0)

    def slope(factor: float) -> float:
        return float(torch.autograd.functional.jacobian(lambda x: (factor * x).softmax(0), z).norm())

    return {
        "entropy": -sum(float(p) * math.log(p) for p in a),
        "uniform_entropy": math.log(len(z)),
        "saturated": float(a.max() > 0.99),
        "jacobian": slope(scale) / scale,
        "slope_scaled": slope(usual),
        "slope_unscaled": slope(1.0),
    }


@pytest.mark.parametrize("attention", [{}, {"scale": 1.0}], ids=["scaled", "unscaled"])
def test_every_figure_is_that_of_loops_over_real_pairs(attention: dict[str, Any]) -> None:
    model = model_of(attention)
    with torch.no_grad():  # larger maps: saturated rows are to be met too
        for place in places(model):
            place.attention.w_query.weight.mul_(4)
    figures = measure(model, [batch()]).heads
    model.eval()
    scale = 1.0 if attention else 1 / math.sqrt(D_K)
    assert len(figures) == 3 * 2 * 2
    for found in operands(model, batch()):
        for number in range(2):
            one = head(figures, found.place.side, found.place.layer, number + 1)
            assert (one.d_k, one.scale) == (D_K, pytest.approx(scale))
            for name, value in by_loops(found, number, scale).items():
                assert getattr(one, name) == pytest.approx(value, abs=1e-7), name
    if attention:
        assert max(one.saturated for one in figures) > 0


def test_what_is_recorded_makes_the_models_own_weights() -> None:
    model = model_of()
    model.eval()
    maps = model.attention_maps(batch().src, batch().src_mask, batch().tgt_in)
    own = {"encoder": maps.encoder, "decoder": maps.decoder, "cross": maps.cross}
    for found in operands(model, batch()):
        logits = found.place.core.scale * (found.query @ found.key.mT)
        weights = logits.masked_fill(~found.visible, -math.inf).softmax(-1)
        for b in range(3):
            t, s = real_lengths(found.place.side, b)
            theirs = own[found.place.side][found.place.layer - 1][b, :, :t, :s]
            torch.testing.assert_close(weights[b, :, :t, :s], theirs)


def test_padding_changes_no_figure() -> None:
    model = model_of()
    pairs = [([4, 5, 6, 7], [7, 8]), ([9], [5, 6, 10, 11, 4])]
    apart = measure(model, [batch_of(pairs[:1]), batch_of(pairs[1:])])
    together = measure(model, [batch_of(pairs)])
    wide = measure(model, [padded(batch_of(pairs), 3)])
    assert apart.key_counts == together.key_counts == wide.key_counts
    for one, other, third in zip(apart.heads, together.heads, wide.heads, strict=True):
        assert dataclasses.asdict(one) == pytest.approx(dataclasses.asdict(other), abs=1e-7)
        assert dataclasses.asdict(third) == pytest.approx(dataclasses.asdict(other), abs=1e-7)


def padded(of: Batch, more: int) -> Batch:
    src, tgt_in, tgt_out = (torch.nn.functional.pad(x, (0, more)) for x in (of.src, of.tgt_in, of.tgt_out))
    return dataclasses.replace(of, src=src, tgt_in=tgt_in, tgt_out=tgt_out)


def test_without_the_causal_mask_the_decoder_sees_all_of_its_real_tokens() -> None:
    counts = measure(model_of(causal=False), [batch()]).key_counts
    assert counts["decoder"] == {3: 3, 6: 6}  # the third row has the start token alone
    assert measure(model_of(), [batch()]).key_counts["decoder"] == {2: 2, 3: 2, 4: 1, 5: 1, 6: 1}


def test_gradients_are_the_norms_of_backward_in_each_heads_rows() -> None:
    model = model_of()
    found = measure(model, [batch()], label_smoothing=0.1).heads
    assert all(parameter.grad is None for parameter in model.parameters())
    model.eval()
    states = model.decode(batch().tgt_in, model.encode(batch().src, batch().src_mask), batch().src_mask)
    smoothed, _ = model.nll(states, batch().tgt_out, 0.1)
    (smoothed / batch().num_target_tokens).backward()
    for place in places(model):
        for number in (0, 1):
            one = head(found, place.side, place.layer, number + 1)
            own = slice(number * D_K, (number + 1) * D_K)
            for weight, norm in (
                (place.attention.w_query.weight, one.query_gradient),
                (place.attention.w_key.weight, one.key_gradient),
            ):
                assert weight.grad is not None
                assert norm == pytest.approx(float(weight.grad[own].norm()), rel=1e-5)


def test_nothing_is_disturbed() -> None:
    model = model_of()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.get_rng_state()
    measure(model, [batch()])
    assert model.training
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert not any(place.core._forward_pre_hooks for place in places(model))


def test_sentences_without_a_choice_give_no_number() -> None:
    found = measure(model_of(), [batch_of([([], [])])])
    assert all(math.isnan(one.entropy) and math.isnan(one.variance) for one in found.heads)


def test_an_architecture_without_heads_is_refused() -> None:
    experiment = Experiment(
        model=ModelConfig(architecture="lstm", num_encoder_layers=1, num_decoder_layers=1, d_model=8),
        position={"kind": "none"},
        attention={"kind": "scaled_dot_product"},
    )
    with pytest.raises(UserError, match="this model has none"):
        measure(build_model(experiment, 12, 12), [batch()])


# The theory


@pytest.mark.parametrize("d_k", [4, 64, 256])
def test_components_of_unit_variance_give_a_variance_of_d_k_and_1_when_scaled(d_k: int) -> None:
    """20,000 independent pairs: the variance's own deviation is about √((2 + 6/d_k)/n), 1.4 %."""
    generator = torch.Generator().manual_seed(d_k)
    model = model_of(d_k=d_k)
    drawn = [torch.randn(100, 2, 200, d_k, generator=generator, dtype=torch.float64) for _ in range(2)]
    visible = torch.eye(200, dtype=torch.bool)[None, None].expand(100, 1, 200, 200)
    visible = visible | visible.roll(1, dims=-1)  # two keys for each query
    place = places(model)[0]
    sums = _Sums(place)
    sums.add(Operands(place, drawn[0], drawn[1], visible), counted_pairs(visible))
    for one in sums.figures([0.0, 0.0], [0.0, 0.0]):
        assert one.variance == pytest.approx(d_k, rel=0.06)
        assert one.predicted_variance == pytest.approx(d_k, rel=0.02)
        assert one.scaled_variance == pytest.approx(1.0, rel=0.06)


def test_a_prediction_without_variance_is_the_even_row() -> None:
    found = predict_rows(0.0, {4: 1, 2: 3})
    assert found.entropy == pytest.approx((math.log(4) + 3 * math.log(2)) / 4)
    assert found.saturated == 0.0


def test_a_prediction_for_two_keys_is_the_integral() -> None:
    """With two keys the larger weight is above 0.99 where |z_1 - z_2| > ln 99, and z_1 - z_2 ~ N(0, 2 v)."""
    variance = 16.0
    exact = math.erfc(math.log(99) / math.sqrt(2 * 2 * variance))
    assert predict_rows(variance, {2: 5}).saturated == pytest.approx(exact, abs=0.04)


def test_more_variance_means_less_entropy_and_more_saturated_rows() -> None:
    found = [predict_rows(variance, {10: 1}) for variance in (1.0, 8.0, 32.0, 128.0)]
    assert [one.entropy for one in found] == sorted((one.entropy for one in found), reverse=True)
    assert [one.saturated for one in found] == sorted(one.saturated for one in found)
    assert found[0].saturated == 0.0 and found[-1].saturated > 0.4
