"""Maps of a real model, and entropy and pattern of weights made by hand."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from minitrans.analysis.attention import (
    SentenceMaps,
    describe,
    entropy,
    highest_entropy,
    pattern,
    sentence_maps,
)
from minitrans.analysis.drawing import draw_maps
from minitrans.build import build_model
from minitrans.config import Experiment, ModelConfig, TokenizerConfig
from minitrans.data.tokenizer import Tokenizers, train_tokenizer
from minitrans.errors import UserError
from minitrans.model.transformer import Transformer

# Entries in the order of their frequency: a 4, b 5, c 6 and x 4, y 5.
TOKENIZERS = Tokenizers(
    train_tokenizer(["a a a a b b b c c"], TokenizerConfig(kind="word", vocab_size=10)),
    train_tokenizer(["x x x y y"], TokenizerConfig(kind="word", vocab_size=10)),
)


def small_model(position: dict[str, object] | None = None) -> Transformer:
    experiment = Experiment(
        model=ModelConfig(
            num_encoder_layers=2, num_decoder_layers=3, d_model=16, num_heads=2, d_ff=8, tie="none"
        ),
        position=position or {"kind": "sinusoidal"},
        attention={"kind": "scaled_dot_product"},
        tokenizer=TokenizerConfig(joint=False),
    )
    return build_model(experiment, TOKENIZERS.src.vocab_size, TOKENIZERS.tgt.vocab_size).eval()


def test_the_maps_are_the_models_own_with_the_tokens_that_it_saw() -> None:
    model = small_model()
    found = sentence_maps(model, TOKENIZERS, "a c b", "y x")
    assert found.src == ("▁a", "▁c", "▁b", "</s>")
    assert found.tgt_in == ("<s>", "▁y", "▁x")
    assert found.tgt_out == ("▁y", "▁x", "</s>")
    src, tgt = torch.tensor([[4, 6, 5, 2]]), torch.tensor([[1, 5, 4]])
    with torch.no_grad():
        expected = model.attention_maps(src, torch.ones(1, 1, 4, dtype=torch.bool), tgt)
    for kind, shape in (("encoder", (2, 2, 4, 4)), ("decoder", (3, 2, 3, 3)), ("cross", (3, 2, 3, 4))):
        weights = getattr(found, kind)
        assert weights.shape == shape
        np.testing.assert_array_equal(weights, torch.cat(getattr(expected, kind)).numpy())
        np.testing.assert_allclose(weights.sum(axis=-1), 1.0, atol=1e-6)
    assert (np.triu(found.decoder, 1) == 0).all()


def test_the_npz_file_holds_tokens_weights_and_entropies(tmp_path: Path) -> None:
    maps = sentence_maps(small_model(), TOKENIZERS, "a c b", "y x")
    maps.save(tmp_path / "maps.npz")
    with np.load(tmp_path / "maps.npz", allow_pickle=False) as saved:
        assert sorted(saved) == sorted(
            ["src", "tgt_in", "tgt_out"]
            + [kind + what for kind in ("encoder", "decoder", "cross") for what in ("", "_entropy")]
        )
        assert saved["src"].tolist() == ["▁a", "▁c", "▁b", "</s>"]
        assert saved["tgt_in"].tolist() == ["<s>", "▁y", "▁x"]
        assert saved["tgt_out"].tolist() == ["▁y", "▁x", "</s>"]
        np.testing.assert_array_equal(saved["cross"], maps.cross)
        np.testing.assert_array_equal(saved["cross_entropy"], entropy(maps.cross))
        np.testing.assert_allclose(saved["encoder"].sum(axis=-1), 1.0, atol=1e-6)


def test_an_empty_target_has_one_row() -> None:
    maps = sentence_maps(small_model(), TOKENIZERS, "a", "")
    assert (maps.tgt_in, maps.tgt_out) == (("<s>",), ("</s>",))
    assert maps.cross.shape == (3, 2, 1, 2)


def test_a_recurrent_model_has_maps_of_the_source_alone(tmp_path: Path) -> None:
    experiment = Experiment(
        model=ModelConfig(architecture="lstm", d_model=16, tie="none"),
        position={"kind": "none"},
        attention={"kind": "scaled_dot_product"},
        tokenizer=TokenizerConfig(joint=False),
    )
    model = build_model(experiment, TOKENIZERS.src.vocab_size, TOKENIZERS.tgt.vocab_size).eval()
    maps = sentence_maps(model, TOKENIZERS, "a c b", "y x")
    assert (maps.encoder.shape, maps.decoder.shape) == ((0, 1, 4, 4), (0, 1, 3, 3))
    assert maps.cross.shape == (1, 1, 3, 4)
    maps.save(tmp_path / "maps.npz")
    assert [line.split()[0] for line in describe(maps).splitlines()] == ["cross", "head", "layer"]
    assert draw_maps(maps, tmp_path) == [tmp_path / "cross.png"]


@pytest.mark.parametrize("text", ["", "  \t"])
def test_a_blank_text_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="the text is empty"):
        sentence_maps(small_model(), TOKENIZERS, text, "x")


def test_learned_positions_bound_both_sides() -> None:
    model = small_model({"kind": "learned", "max_length": 4})
    assert sentence_maps(model, TOKENIZERS, "a b c", "x y x").cross.shape == (3, 2, 4, 4)
    with pytest.raises(UserError, match="the text has 5 tokens, but the model has learned 4 positions"):
        sentence_maps(model, TOKENIZERS, "a b c a", "x")
    with pytest.raises(UserError, match="the target has 5 tokens, but the model has learned 4 positions"):
        sentence_maps(model, TOKENIZERS, "a", "x y x y")


EVEN = np.full((3, 4), 0.25)
HALVES = np.array([[0.5, 0.5, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]])


def test_entropy_by_hand() -> None:
    assert entropy(EVEN) == pytest.approx(math.log(4))
    assert entropy(np.eye(5)) == 0
    assert entropy(HALVES) == pytest.approx(math.log(2) / 2)  # ln 2 and 0
    assert entropy(np.array([[0.5, 0.25, 0.25]])) == pytest.approx(1.5 * math.log(2))
    np.testing.assert_allclose(entropy(np.stack([EVEN, EVEN])[None]), [[math.log(4), math.log(4)]])


def test_highest_entropy_by_hand() -> None:
    assert highest_entropy((3, 4), causal=False) == pytest.approx(math.log(4))
    assert highest_entropy((3, 3), causal=True) == pytest.approx((math.log(2) + math.log(3)) / 3)


def looking_at(keys: list[int], num_keys: int, weight: float = 1.0) -> np.ndarray:
    """Query t gives ``weight`` to ``keys[t]`` and shares the rest evenly among all keys."""
    weights = np.full((len(keys), num_keys), (1 - weight) / num_keys)
    weights[range(len(keys)), keys] += weight
    return weights


@pytest.mark.parametrize(
    ("weights", "name"),
    [
        (looking_at([0, 1, 2, 3], 4), "diagonal"),
        (looking_at([2, 0, 1, 2, 3], 5), "previous"),
        (looking_at([1, 2, 3, 4, 2], 5), "next"),
        (looking_at([0, 0, 0, 0], 4), "first"),
        (looking_at([5, 5, 5, 5], 6), "end"),
        (looking_at([0, 1, 2, 3], 4, weight=0.4), "diagonal"),  # 0.4 + 0.6 / 4 = 0.55
        (looking_at([0, 1, 2, 3], 4, weight=0.3), "uniform"),  # 0.475; 1.27 nats of 1.39, 91 %
        (looking_at([0, 1, 2, 3, 4, 5], 6, weight=0.35), "mixed"),  # 0.458; 1.56 nats of 1.79, 87 %
        (np.full((4, 6), 1 / 6), "uniform"),
        (looking_at([3, 0, 4, 1, 2], 6), "mixed"),
        (np.eye(1), "diagonal"),
    ],
)
def test_patterns_by_hand(weights: np.ndarray, name: str) -> None:
    assert pattern(weights) == name


def test_an_even_spread_over_the_past_is_uniform_only_for_causal_maps() -> None:
    past = np.tril(np.ones((8, 8)))
    past /= past.sum(axis=-1, keepdims=True)
    assert pattern(past, causal=True) == "uniform"
    assert pattern(past, causal=False) == "mixed"  # 1.33 of 2.08 nats


def test_the_table_names_each_head() -> None:
    eye, last = np.eye(3), looking_at([2, 2, 2], 3)
    decoder = np.array([[[1, 0], [0.5, 0.5]]])  # one head, (2, 2)
    maps = SentenceMaps(
        src=("a", "b", "</s>"),
        tgt_in=("<s>", "x"),
        tgt_out=("x", "</s>"),
        encoder=np.array([[eye, last], [np.full((3, 3), 1 / 3), eye]]),
        decoder=decoder[None],
        cross=np.full((1, 1, 2, 3), 1 / 3),
    )
    assert describe(maps).splitlines() == [
        "encoder (entropy in nats, at most 1.10)",
        "         head 1         head 2",
        "layer 1  0.00 diagonal  0.00 end",
        "layer 2  1.10 uniform   0.00 diagonal",
        "",
        "decoder (entropy in nats, at most 0.35)",
        "         head 1",
        "layer 1  0.35 diagonal",
        "",
        "cross (entropy in nats, at most 1.10)",
        "         head 1",
        "layer 1  1.10 uniform",
    ]
