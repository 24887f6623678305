"""The compiled stacks beside the plain ones: the same values and gradients, from one graph for all sizes."""

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from minitrans import checkpoint
from minitrans.build import build_model
from minitrans.config import Experiment, ModelConfig, TrainConfig
from minitrans.data.batching import Batch
from minitrans.errors import UserError
from minitrans.model.encoder_decoder import EncoderDecoder
from minitrans.training.compiled import States, compiled_states, filled, states
from minitrans.training.prepare import refuse_uncompilable
from tests.training.tiny import NUM_ENTRIES, assert_equal, batch_of, changed, train

ON_PROCESSOR = {"trainer.compile": True, "training.fast": False}
SIZES = [(3, 5, 7), (3, 7, 7), (1, 2, 9), (4, 8, 8), (2, 17, 1), (5, 1, 16), (1, 1, 1), (9, 9, 9)]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()
    counters.clear()


def model_of(**settings: Any) -> EncoderDecoder:
    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 1, "d_model": 16, "num_heads": 2, "d_ff": 32}
    experiment = Experiment(
        model=ModelConfig(**sizes, dropout=settings.pop("dropout", 0.0)),
        position=settings.pop("position", {"kind": "sinusoidal"}),
        attention={"kind": "scaled_dot_product", **settings},
    )
    return build_model(experiment, NUM_ENTRIES, NUM_ENTRIES, fast=False)


def batch(rows: int, source: int, target: int, seed: int = 0) -> Batch:
    """A ragged batch whose longest rows are so long, start and end token counted."""
    draw = random.Random(seed)
    lengths = [(source - 1, target - 1)]
    lengths += [(draw.randint(0, source - 1), draw.randint(0, target - 1)) for _ in range(rows - 1)]
    return batch_of([tuple([draw.randint(4, 11) for _ in range(n)] for n in pair) for pair in lengths])  # type: ignore[misc]


def gradients(run: States, model: EncoderDecoder, own: Batch) -> tuple[torch.Tensor, ...]:
    """The sum of the smoothed loss and what it is differentiated to."""
    model.zero_grad()
    loss, _ = model.nll(run(model, own), own.tgt_out, 0.1)
    loss.backward()
    return loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"backend": "fused"},
        {"backend": "reference", "position": {"kind": "rotary"}},
        {"backend": "fused", "position": {"kind": "learned", "max_length": 32}},
    ],
)
def test_one_graph_for_all_sizes_gives_the_plain_values_and_gradients(settings: dict[str, Any]) -> None:
    model, run = model_of(**settings), compiled_states("aot_eager")
    for seed, sizes in enumerate(SIZES):
        own = batch(*sizes, seed)
        assert (own.src.size(0), own.src.size(1), own.tgt_in.size(1)) == sizes
        got, want = gradients(run, model, own), gradients(states, model, own)
        assert len(got) == len(want) > 10
        for one, other in zip(got, want, strict=True):
            torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-4)
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]


def test_lengths_are_filled_to_eights_and_a_sentence_gets_company() -> None:
    assert filled(torch.tensor([[5, 6, 2]])).tolist() == [[5, 6, 2, 0, 0, 0, 0, 0], [0] * 8]
    ids = torch.arange(1, 33).view(2, 16)
    assert torch.equal(filled(ids), ids)


@pytest.mark.slow
def test_dropout_follows_the_seed() -> None:
    model, run, own = model_of(backend="fused", dropout=0.3), compiled_states("aot_eager"), batch(3, 5, 7)
    made = []
    for seed in (1, 2, 1):
        torch.manual_seed(seed)
        made.append(run(model, own))
    assert torch.equal(made[0], made[2])
    assert not torch.equal(made[0], made[1])


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler for a processor")
def test_a_compiled_training_repeats_and_learns_what_a_plain_one_does(
    tiny: TrainConfig, tmp_path: Path
) -> None:
    sgd = {"optimizer": {"kind": "sgd", "lr": 0.3}}  # Adam makes steps of gradients that are rounding alone
    compiled = changed(tiny, {**ON_PROCESSOR, **sgd, "model.dropout": 0.0})
    plain = changed(compiled, {"trainer.compile": False})
    one, same, other = (
        checkpoint.read(train(config, tmp_path / str(i)).checkpoints / "last.ckpt").model
        for i, config in enumerate((compiled, compiled, plain))
    )
    assert_equal(one, same)
    for name, weight in one.items():
        torch.testing.assert_close(weight, other[name], atol=1e-4, rtol=1e-3)


@pytest.mark.slow
def test_what_cannot_be_compiled_is_told_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch._inductor.cpp_builder as builder

    def missing() -> str:
        raise torch._inductor.exc.InvalidCxxCompiler

    monkeypatch.setattr(builder, "get_cpp_compiler", missing)
    with pytest.raises(UserError, match=r"trainer\.compile=true, but torch\.compile failed here \(.*Cxx"):
        compiled_states()(model_of(backend="fused"), batch(3, 5, 7))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"training.fast": True}, r"is for a GPU.*trainer\.compile=false \(or training\.fast=false"),
        ({"model.architecture": "lstm"}, r"is for the Transformer, but model\.architecture=lstm"),
        ({"trainer.strategy": "fsdp"}, r"needs whole weights.*trainer\.strategy=ddp"),
    ],
)
def test_refused(tiny: TrainConfig, changes: dict[str, Any], sentence: str) -> None:
    config = changed(tiny, ON_PROCESSOR)
    refuse_uncompilable(config)
    with pytest.raises(UserError, match=sentence):
        refuse_uncompilable(changed(config, changes))
    refuse_uncompilable(changed(config, {**changes, "trainer.compile": False}))
