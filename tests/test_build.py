import pytest
import torch
from torch import nn

from minitrans.build import build_model
from minitrans.config import Experiment
from minitrans.errors import UserError
from minitrans.model.dropout import Dropout
from minitrans.model.positions import LearnedPositions, PositionEncoding, RotaryPositions, SinusoidalPositions


@pytest.fixture
def experiment() -> Experiment:
    made = Experiment(position={"kind": "sinusoidal"}, attention={"kind": "scaled_dot_product"})
    made.model.num_encoder_layers, made.model.num_decoder_layers = 2, 1
    made.model.d_model, made.model.num_heads, made.model.d_ff = 16, 4, 32
    return made


def test_sizes_follow_the_configuration(experiment: Experiment) -> None:
    experiment.model.d_v = 3
    experiment.model.tie = "none"
    model = build_model(experiment, 30, 40)
    assert model.encoder.embedding.weight.shape == (30, 16)
    assert model.output.weight.shape == (40, 16)
    assert (len(model.encoder.layers), len(model.decoder.layers)) == (2, 1)
    attention = model.encoder.layers[0].self_attention
    assert attention.w_key.weight.shape == (16, 16)  # d_k = 16 / 4
    assert attention.w_value.weight.shape == (12, 16)
    assert attention.core.scale == 0.5


def test_d_v_follows_d_k(experiment: Experiment) -> None:
    experiment.model.d_k = 6
    attention = build_model(experiment, 30, 30).encoder.layers[0].self_attention
    assert attention.w_query.weight.shape == attention.w_value.weight.shape == (24, 16)


def test_rates_reach_their_places(experiment: Experiment) -> None:
    experiment.model.dropout, experiment.model.attention_dropout, experiment.model.ffn_dropout = 0.1, 0.2, 0.3
    model = build_model(experiment, 30, 30)
    rates = {name: part.rate for name, part in model.named_modules() if isinstance(part, Dropout)}
    for name, rate in rates.items():
        assert rate == {"core": 0.2, "feed_forward": 0.3}.get(name.split(".")[-2], 0.1), name
    assert len(rates) == 2 + 2 * 4 + 1 * 6


def test_one_switch_turns_the_fast_twins_off(experiment: Experiment) -> None:
    for fast in (True, False):
        model = build_model(experiment, 30, 30, fast=fast)
        assert {part.fast for part in model.modules() if hasattr(part, "fast")} == {fast}


def test_unscaled_attention(experiment: Experiment) -> None:
    experiment.attention["scale"] = 1.0
    model = build_model(experiment, 30, 30)
    assert model.decoder.layers[0].cross_attention.core.scale == 1.0


@pytest.mark.parametrize(
    ("section", "encoder", "decoder"),
    [
        ({"kind": "sinusoidal"}, SinusoidalPositions, SinusoidalPositions),
        ({"kind": "none", "encoder": "", "decoder": "rotary"}, PositionEncoding, RotaryPositions),
        (
            {"kind": "learned", "max_length": 9, "encoder": "sinusoidal"},
            SinusoidalPositions,
            LearnedPositions,
        ),
    ],
)
def test_positions_a_side(experiment: Experiment, section: dict, encoder: type, decoder: type) -> None:
    experiment.position = section
    model = build_model(experiment, 30, 30)
    assert type(model.encoder.position) is encoder
    assert type(model.decoder.position) is decoder


def test_position_settings_hold_for_their_own_kind(experiment: Experiment) -> None:
    experiment.position = {"kind": "learned", "max_length": 9, "encoder": "sinusoidal", "decoder": "learned"}
    model = build_model(experiment, 30, 30)
    assert (model.src_limit, model.tgt_limit) == (None, 9)


def test_learned_positions_of_the_sides_are_two_tables(experiment: Experiment) -> None:
    experiment.position = {"kind": "learned"}
    model = build_model(experiment, 30, 30)
    assert not torch.equal(model.encoder.position.weight, model.decoder.position.weight)


@pytest.mark.parametrize(("order", "last"), [("pre", 2), ("post", 0)])
def test_final_norm_belongs_to_pre_norm(experiment: Experiment, order: str, last: int) -> None:
    experiment.model.norm_order = order
    model = build_model(experiment, 30, 30)
    final = (model.encoder.final_norm, model.decoder.final_norm)
    assert sum(not isinstance(norm, nn.Identity) for norm in final) == last


def spoil(experiment: Experiment, key: str, value: object) -> None:
    *path, last = key.split(".")
    place: object = experiment
    for name in path:
        place = place[name] if isinstance(place, dict) else getattr(place, name)
    if isinstance(place, dict):
        place[last] = value
    else:
        setattr(place, last, value)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("model.num_heads", 3, ["model.num_heads=3", "model.d_model=16"]),
        ("model.num_heads", 0, ["model.num_heads must be at least 1"]),
        ("model.d_ff", -1, ["model.d_ff must be at least 1"]),
        ("model.dropout", 1.0, ["dropout", "1.0"]),
        ("model.norm", "layernorm", ['model.norm is "layernorm"', '"layer_norm"']),
        ("model.norm_order", "prenorm", ["model.norm_order", "prenorm"]),
        ("model.tie", "both", ["model.tie", '"all"']),
        ("model.ffn.activation", "rela", ["model.ffn.activation", '"relu"']),
        ("tokenizer.joint", False, ["model.tie=all", "tokenizer.joint"]),
        ("position.kind", "sinusiodal", ["position", "sinusoidal"]),
        ("position.encoder", "rotery", ["position.encoder", "rotary"]),
        ("attention.backend", "flash", ["attention.backend", "flash", "fused"]),
        ("attention.scale", -1.0, ["attention.scale", "-1.0"]),
        ("attention.kind", "additive", ["attention", "additive"]),
    ],
)
def test_a_mistake_is_told_by_its_key(
    experiment: Experiment, key: str, value: object, words: list[str]
) -> None:
    spoil(experiment, key, value)
    with pytest.raises(UserError) as caught:
        build_model(experiment, 30, 30)
    for word in words:
        assert word in str(caught.value)


def test_rotary_needs_an_even_head(experiment: Experiment) -> None:
    experiment.position, experiment.model.d_k = {"kind": "rotary"}, 5
    with pytest.raises(UserError, match="d_k must be even, but it is 5"):
        build_model(experiment, 30, 30)


def test_heads_need_not_divide_a_width_when_d_k_is_given(experiment: Experiment) -> None:
    experiment.model.num_heads, experiment.model.d_k = 3, 4
    assert build_model(experiment, 30, 30).encoder.layers[0].self_attention.w_query.weight.shape == (12, 16)
