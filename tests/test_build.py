import pytest
import torch
from torch import nn

import minitrans.build
from minitrans.build import build_model
from minitrans.cli.compose import compose
from minitrans.config import Experiment, ModelConfig, TrainConfig, check
from minitrans.data.bundled import bundled
from minitrans.errors import UserError
from minitrans.model.convolutional import ConvolutionalModel
from minitrans.model.dropout import Dropout
from minitrans.model.positions import LearnedPositions, PositionEncoding, RotaryPositions, SinusoidalPositions
from minitrans.model.recurrent import RecurrentModel
from minitrans.model.transformer import Transformer


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
        ("model.ffn.activation", "nono", ["model.ffn.activation", '"none"']),
        ("model.architecture", "convolution", ["model.architecture", '"conv"']),
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


# --- architectures ---


def composed(*words: str) -> TrainConfig:
    return compose("train", list(words), TrainConfig).config


def num_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", [path.stem for path in sorted((bundled("conf") / "model").glob("*.yaml"))])
def test_every_shipped_shape_is_one_that_can_be_built(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minitrans.build, "initialise", lambda model, seed: None)
    with torch.device("meta"):  # the large ones would take seconds and gigabytes
        model = build_model(composed(f"model={name}"), 100, 100)
    kind = {"tiny_lstm": RecurrentModel, "tiny_conv": ConvolutionalModel}.get(name, Transformer)
    assert type(model) is kind


def test_the_rivals_have_as_many_parameters() -> None:
    tiny, lstm, conv = (
        num_parameters(build_model(composed(f"model={name}"), 10, 10)) - 10 * 128
        for name in ("tiny", "tiny_lstm", "tiny_conv")
    )
    assert tiny == 1_325_568
    assert lstm == pytest.approx(tiny, rel=0.02)
    assert conv == pytest.approx(tiny, rel=0.02)


def test_the_lstm_brings_its_positions_and_attention_along() -> None:
    config = composed("experiment=multi30k_quick", "model=tiny_lstm")
    assert (config.position["kind"], config.attention["scale"]) == ("none", 1.0)
    assert composed("model=tiny_lstm", "attention=scaled").attention["scale"] is None
    assert composed("model=tiny_conv").position["kind"] == "sinusoidal"


@pytest.mark.parametrize("architecture", ["lstm", "conv"])
def test_rivals_start_from_seed_and_name(architecture: str) -> None:
    words = [f"model=tiny_{architecture}", "model.num_encoder_layers=1"]
    base, deeper, other = (
        dict(build_model(composed(*words, *more), 10, 10).named_parameters())
        for more in ([], ["model.num_encoder_layers=2"], ["seed=2"])
    )
    shared = [name for name in base if name in deeper and base[name].shape == deeper[name].shape]
    assert len(shared) >= 10
    assert all(torch.equal(base[name], deeper[name]) for name in shared)
    drawn = [name for name in base if base[name].dim() > 1]
    assert not any(torch.equal(base[name], other[name]) for name in drawn)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["model=tiny", "model.architecture=lstm"],
            "model.d_ff=256 means nothing with model.architecture=lstm",
        ),
        (
            ["model=tiny_lstm", "model.num_heads=8"],
            "model.num_heads=8 means nothing with model.architecture=lstm (it is for transformer); "
            "leave it out, or start from model=tiny_lstm",
        ),
        (["model=tiny_lstm", "model.norm=rms_norm"], "model.norm=rms_norm means nothing"),
        (["model=tiny_lstm", "model.kernel_size=5"], "(it is for conv)"),
        (
            ["model=tiny_lstm", "position=learned"],
            "position=learned means nothing with model.architecture=lstm",
        ),
        (["model=tiny_lstm", "position.decoder=rotary"], "type position.decoder=none"),
        (["model=tiny_conv", "position=rotary"], "model.architecture=conv; type position=sinusoidal"),
        (["model=tiny_conv", "model.causal=false"], "model.causal=False means nothing"),
        (["model=tiny_conv", "model.ffn.activation=gelu"], "model.ffn.activation=gelu means nothing"),
        (["model=tiny", "model.d_hidden=64"], "(it is for lstm and conv)"),
        (["model=tiny_conv", "model.kernel_size=4"], "model.kernel_size=4 is even"),
    ],
)
def test_what_an_architecture_does_not_read_is_refused(words: list[str], sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        build_model(composed(*words), 10, 10)
    assert sentence in str(caught.value)


def test_settings_made_in_python_are_refused_too() -> None:
    config = Experiment(model=ModelConfig(architecture="lstm", num_heads=2), position={"kind": "none"})
    with pytest.raises(UserError, match=r"model\.num_heads=2 means nothing"):
        build_model(config, 10, 10)
    with pytest.raises(UserError, match=r"model\.num_heads=2 means nothing"):
        check(config)


def test_heads_need_not_divide_the_width_of_what_has_none() -> None:
    for name in ("tiny_lstm", "tiny_conv"):
        assert build_model(composed(f"model={name}", "model.d_model=130"), 10, 10).output.weight.shape == (
            10,
            130,
        )


# --- ablations of the stacks ---


def test_no_feed_forward_network_at_all(experiment: Experiment) -> None:
    experiment.model.ffn.activation = "none"
    model = build_model(experiment, 30, 30)
    assert not any("feed_forward" in name or "ffn" in name for name, _ in model.named_parameters())
    attention, norm = 4 * (16 * 16 + 16), 32
    assert num_parameters(model) == 30 * 16 + 2 * (attention + norm) + (2 * attention + 2 * norm) + 2 * norm


def test_the_causal_mask_reaches_the_decoder(experiment: Experiment) -> None:
    assert build_model(experiment, 30, 30).decoder.causal
    experiment.model.causal = False
    assert not build_model(experiment, 30, 30).decoder.causal
