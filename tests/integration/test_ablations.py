"""One choice changed at a time: each trains, and its checkpoint is rebuilt as what it was trained as."""

import copy
import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from minitrans import checkpoint
from minitrans.build import build_model
from minitrans.cli.compose import compose
from minitrans.config import TrainConfig
from minitrans.data.batching import Batch
from minitrans.model.feedforward import ACTIVATIONS
from minitrans.model.norms import RMSNorm
from minitrans.model.positions import LearnedPositions, PositionEncoding, RotaryPositions, SinusoidalPositions
from minitrans.model.transformer import Transformer
from minitrans.run import create
from minitrans.training.fit import fit
from minitrans.training.prepare import first_batch, prepare
from tests.integration.commands import SMALL, data_words

Trained = tuple[TrainConfig, Transformer, Path, Batch]
Train = Callable[..., Trained]


@pytest.fixture
def train(text: Path, tmp_path: Path) -> Train:
    """Makes two updates; returns the configuration, the model as it ended, its folder, and a batch."""

    def train(*words: str) -> Trained:
        typed = [*data_words(text), *SMALL, "model.dropout=0", "training.validate_sentences=1", *words]
        config = compose("train", typed, TrainConfig).config
        material = prepare(config)
        folder = create(config.run_dir or str(tmp_path / "run"))
        fit(config, folder, material, None)
        return config, material.model.eval(), folder.path, first_batch(material.run_plan)

    return train


@torch.no_grad()
def logits(model: Transformer, batch: Batch) -> Tensor:
    states = model.decode(batch.tgt_in, model.encode(batch.src, batch.src_mask), batch.src_mask)
    return model.logits(states)


def first(model: Transformer) -> Any:
    """The encoder's first layer."""
    return model.encoder.layers[0]


def scale_of(model: Transformer) -> float:
    return first(model).self_attention.core.scale


def positions(model: Transformer) -> tuple[type, type]:
    return type(model.encoder.position), type(model.decoder.position)


def bends(model: Transformer, activation: str) -> bool:
    """Whether the feed-forward network is the one of that name."""
    kind, function = ACTIVATIONS[activation]
    return type(first(model).feed_forward) is kind and first(model).feed_forward.activation is function


Check = Callable[[Transformer], bool]

ABLATIONS: dict[str, tuple[list[str], Check]] = {
    "no scaling": (["attention=unscaled"], lambda m: scale_of(m) == 1.0),
    "a scale typed": (["attention.scale=0.5"], lambda m: scale_of(m) == 0.5),
    "learned positions": (
        ["position=learned"],
        lambda m: positions(m) == (LearnedPositions, LearnedPositions),
    ),
    "rotary positions": (["position=rotary"], lambda m: positions(m) == (RotaryPositions, RotaryPositions)),
    "no positions": (["position=none"], lambda m: positions(m) == (PositionEncoding, PositionEncoding)),
    "none in the encoder": (
        ["position.encoder=none"],
        lambda m: positions(m) == (PositionEncoding, SinusoidalPositions),
    ),
    "learned in the decoder": (
        ["position.decoder=learned"],
        lambda m: positions(m) == (SinusoidalPositions, LearnedPositions),
    ),
    "no activation": (["model.ffn.activation=identity"], lambda m: bends(m, "identity")),
    "GELU": (["model.ffn.activation=gelu"], lambda m: bends(m, "gelu")),
    "SwiGLU": (["model.ffn.activation=swiglu"], lambda m: bends(m, "swiglu")),
    "RMSNorm": (["model.norm=rms_norm"], lambda m: isinstance(first(m).self_residual.norm, RMSNorm)),
    "post-norm": (["model.norm_order=post"], lambda m: not first(m).self_residual.pre_norm),
    "one head": (["model.num_heads=1"], lambda m: first(m).self_attention.num_heads == 1),
    "no tie": (["model.tie=none"], lambda m: m.output.weight is not m.decoder.embedding.weight),
    "decoder tied": (
        ["model.tie=decoder"],
        lambda m: m.output.weight is m.decoder.embedding.weight is not m.encoder.embedding.weight,
    ),
    "a vocabulary a side": (
        ["tokenizer.joint=false", "model.tie=decoder"],
        lambda m: m.encoder.embedding.weight.shape != m.decoder.embedding.weight.shape,
    ),
    "no biases": (["model.bias=false"], lambda m: first(m).self_attention.w_query.bias is None),
    "d_k and d_v apart": (
        ["model.num_heads=3", "model.d_k=4", "model.d_v=6"],
        lambda m: (
            first(m).self_attention.w_key.weight.shape == (12, 16)
            and first(m).self_attention.w_value.weight.shape == (18, 16)
            and scale_of(m) == 0.5
        ),
    ),
}


@pytest.mark.parametrize(("words", "is_so"), ABLATIONS.values(), ids=ABLATIONS)
def test_a_checkpoint_is_rebuilt_as_what_was_trained(train: Train, words: list[str], is_so: Check) -> None:
    config, model, folder, batch = train(*words)
    loaded = checkpoint.load(folder)
    assert is_so(loaded.model)
    assert torch.equal(logits(loaded.model, batch), logits(model, batch))
    start = build_model(config, loaded.tokenizers.src.vocab_size, loaded.tokenizers.tgt.vocab_size).eval()
    assert not torch.equal(logits(loaded.model, batch), logits(start, batch))  # two updates were made


def test_the_default_is_none_of_these(train: Train) -> None:
    _, _, folder, _ = train()
    model = checkpoint.load(folder).model
    assert [name for name, (_, is_so) in ABLATIONS.items() if is_so(model)] == []


def test_the_scale_is_nowhere_but_in_the_configuration(train: Train) -> None:
    _, model, folder, batch = train("attention=unscaled")
    saved = checkpoint.read(folder)
    other = copy.deepcopy(saved.experiment)
    other.attention["scale"] = None
    scaled = build_model(other, saved.tokenizers.src.vocab_size, saved.tokenizers.tgt.vocab_size).eval()
    checkpoint.load_weights(scaled, saved.model, saved.path)  # every tensor fits, in silence
    assert not torch.allclose(logits(scaled, batch), logits(model, batch), atol=1e-4)


def test_without_label_smoothing_the_loss_is_the_plain_one(train: Train, tmp_path: Path) -> None:
    for words, plain in ((["training.label_smoothing=0"], True), ([], False)):
        _, _, folder, _ = train(*words, f"run_dir={tmp_path}/{plain}")
        with (folder / "metrics.csv").open(encoding="utf-8") as file:
            (row,) = (row for row in csv.DictReader(file) if row["split"] == "train")
        assert (abs(float(row["loss"]) - float(row["nll"])) < 1e-6) is plain
