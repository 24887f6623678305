"""Training FLOPs: by hand, and equal to torch's own count over whole runs."""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from minitrans.analysis.flops import Shape, cost_of, count, training_flops
from minitrans.build import build_model
from minitrans.config import ModelConfig, TrainConfig
from minitrans.data.stream import UpdateStream
from minitrans.model.transformer import Transformer
from minitrans.training.prepare import prepare
from tests.training.tiny import batch_of, changed, tiny_experiment

N, D, F = 11, 8, 20
MODEL = ModelConfig(num_encoder_layers=1, num_decoder_layers=1, d_model=D, num_heads=2, d_ff=F, d_v=3)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    return tiny_experiment(tmp_path_factory.mktemp("text"))


def model_of(backend: str = "auto", **settings: Any) -> Transformer:
    config = TrainConfig(
        model=dataclasses.replace(MODEL, **settings),
        position={"kind": "sinusoidal"},
        attention={"kind": "scaled_dot_product", "backend": backend},
    )
    return build_model(config, N, N)


def by_hand(shape: Shape) -> int:
    """Multiplications and additions of MODEL: forward once, backward twice (to the input and the weights)."""
    b, s, t = shape.rows, shape.src_length, shape.tgt_length
    k, v = 2 * D // 2, 2 * 3  # widths of all heads together: keys, values
    ffn = 2 * D * F  # multiplications of one position
    encoder = b * s * (2 * D * k + D * v + v * D + ffn) + b * s * s * (k + v)
    own = b * t * (2 * D * k + D * v + v * D + ffn) + b * t * t * (k + v)
    cross = b * t * (D * k + v * D) + b * s * (D * k + D * v) + b * s * t * (k + v)
    return 3 * 2 * (encoder + own + cross + shape.tgt_tokens * D * N)


BATCH = batch_of([([4, 5, 6], [7, 8]), ([4], [5, 6, 7, 8, 9]), ([9, 8], [])])


def test_count_and_polynomial_are_the_hand_computed_number() -> None:
    model = model_of()
    shape = Shape.of(BATCH)
    assert shape == Shape(rows=3, src_length=4, tgt_length=6, src_tokens=9, tgt_tokens=10)
    assert count(model, BATCH) == by_hand(shape)
    assert cost_of(model).of(shape) == by_hand(shape)


def test_a_fused_kernel_costs_what_its_plain_steps_cost() -> None:
    assert count(model_of("fused"), BATCH) == count(model_of("reference"), BATCH)


def test_counting_leaves_the_model_as_it_was() -> None:
    model = model_of("fused").train()
    model.output.weight.grad = torch.ones(N, D)
    before = torch.get_rng_state()
    count(model, BATCH)
    assert model.training and model.encoder.layers[0].self_attention.core.backend == "fused"
    assert torch.equal(model.output.weight.grad, torch.ones(N, D))
    assert sum(parameter.grad is not None for parameter in model.parameters()) == 1
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("changes", [{}, {"training.fast": False}, {"training.accumulate": 3}], ids=str)
def test_a_whole_run_is_torchs_count_of_all_its_micro_batches(
    tiny: TrainConfig, changes: dict[str, Any]
) -> None:
    material = prepare(changed(tiny, changes))
    stream = itertools.islice(UpdateStream(material.run_plan, 0, rank=0, world_size=1), 11)
    expected = sum(
        count(material.model, batch) for share in stream for batch in share.micro_batches if batch.weight
    )
    assert training_flops(material.model, material.run_plan, updates=11) == expected


class Other(nn.Module):
    """A model of the Transformer's face: packed LSTM and convolution to read, convolution to write."""

    def __init__(self, extra: Callable[[Tensor], Tensor] = lambda memory: memory) -> None:
        super().__init__()
        self.embedding = nn.Embedding(N, D)
        self.lstm = nn.LSTM(D, D, batch_first=True)
        self.convolution = nn.Conv1d(D, D, kernel_size=3)
        self.output = nn.Linear(D, N)
        self.extra = extra

    def encode(self, src: Tensor, src_mask: Tensor) -> Tensor:
        lengths = src_mask.sum(dim=-1).flatten()
        packed = pack_padded_sequence(self.embedding(src), lengths, batch_first=True, enforce_sorted=False)
        return self.extra(pad_packed_sequence(self.lstm(packed)[0], batch_first=True)[0])

    def decode(self, tgt: Tensor, memory: Tensor, src_mask: Tensor) -> Tensor:
        x = nn.functional.pad(self.embedding(tgt).transpose(1, 2), (2, 0))  # (B, D, 2 + T)
        states = self.convolution(x).transpose(1, 2)
        return states + (states @ memory.transpose(1, 2)).softmax(-1) @ memory

    def nll(self, states: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
        loss = nn.functional.cross_entropy(self.output(states).flatten(0, 1), targets.flatten())
        return loss, loss


def test_recurrent_and_convolutional_models_are_counted_too() -> None:
    model: Any = Other()
    shape = Shape.of(BATCH)
    b, s, t, real = shape.rows, shape.src_length, shape.tgt_length, shape.src_tokens
    gates = 4 * D * D  # of the input, and as many of the last state
    lstm = 3 * 2 * real * gates - b * gates  # the states before the first word have no gradient
    convolution = 3 * b * t * 3 * D * D
    attention = 3 * 2 * b * t * s * D
    assert count(model, BATCH) == 2 * (lstm + convolution + attention + 3 * b * t * D * N)
    for batch in (BATCH, batch_of([([4] * 30, [5] * 40), ([4] * 12, [5] * 33)])):
        assert cost_of(model).of(Shape.of(batch)) == pytest.approx(count(model, batch), rel=0.01)


@pytest.mark.parametrize(
    "settings",
    [
        {"architecture": "lstm", "num_encoder_layers": 2, "d_hidden": 10},
        {"architecture": "conv", "num_encoder_layers": 2, "d_hidden": 10, "kernel_size": 3},
    ],
    ids=lambda settings: settings["architecture"],
)
def test_the_rivals_cost_what_torch_counts(settings: dict[str, Any]) -> None:
    model = ModelConfig(num_decoder_layers=2, d_model=D, **settings)
    config = TrainConfig(
        model=model, position={"kind": "none"}, attention={"kind": "scaled_dot_product", "scale": 1.0}
    )
    built = build_model(config, N, N)
    cost = cost_of(built)
    for batch in (BATCH, batch_of([([4] * 30, [5] * 40), ([4] * 12, [5] * 33)])):
        assert cost.of(Shape.of(batch)) == pytest.approx(count(built, batch), rel=0.01)


def test_a_cost_that_is_no_such_polynomial_is_refused() -> None:
    def cubic(memory: Tensor) -> Tensor:
        square = memory @ memory.transpose(1, 2)  # (B, S, S)
        return square @ square @ square @ memory

    model: Any = Other(cubic)
    with pytest.raises(ValueError, match="do not follow from the shape of a batch"):
        cost_of(model)
