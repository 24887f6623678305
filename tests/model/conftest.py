"""Small models for the tests of this folder."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from minitrans.build import build_model
from minitrans.config import Experiment
from minitrans.model.transformer import Transformer

MakeModel = Callable[..., Transformer]


@pytest.fixture
def make_model() -> MakeModel:
    """The TINY of the bug reports (1 + 1 layers, width 16, 2 heads, no dropout), with the changes given."""

    def make(
        *,
        vocab_size: int = 50,
        position: str = "sinusoidal",
        activation: str = "relu",
        joint: bool = True,
        seed: int = 1,
        fast: bool = True,
        **model: Any,
    ) -> Transformer:
        experiment = Experiment(
            seed=seed, position={"kind": position}, attention={"kind": "scaled_dot_product"}
        )
        experiment.tokenizer.joint = joint
        experiment.model.ffn.activation = activation
        tiny = {
            "num_encoder_layers": 1,
            "num_decoder_layers": 1,
            "d_model": 16,
            "num_heads": 2,
            "d_ff": 32,
            "dropout": 0.0,
        }
        for name, value in {**tiny, **model}.items():
            setattr(experiment.model, name, value)
        return build_model(experiment, vocab_size, vocab_size, fast=fast)

    return make


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
