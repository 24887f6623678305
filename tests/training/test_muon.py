"""Muon: what it moves, how far, and that one state dictionary brings all of it back."""

import copy

import pytest
import torch
from torch import nn

from minitrans.build import build_model
from minitrans.config import Experiment, ModelConfig
from minitrans.training import muon
from minitrans.training.muon import BatchedMuon, Together, hidden_matrices, orthogonal
from minitrans.training.optimizer import AdamW, Muon

A, B, C = 3.4445, -4.775, 2.0315  # torch's


def small_model(tie: str = "none", fast: bool = True) -> nn.Module:
    shape = ModelConfig(num_encoder_layers=1, num_decoder_layers=1, d_model=16, num_heads=2, d_ff=32, tie=tie)
    experiment = Experiment(
        seed=3, model=shape, position={"kind": "learned"}, attention={"kind": "scaled_dot_product"}
    )
    return build_model(experiment, 20, 20, fast=fast)


def give_gradients(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


@pytest.mark.parametrize("tie", ["none", "all"])
def test_the_hidden_matrices_are_the_maps_of_attention_and_feed_forward(tie: str) -> None:
    model = small_model(tie)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = {names[id(weight)] for weight in hidden_matrices(model)}
    maps = ("w_query", "w_key", "w_value", "w_output", "w_1", "w_2")
    assert found == {
        name for name in names.values() if name.endswith(tuple(f"{part}.weight" for part in maps))
    }
    assert len(found) == 2 * 4 + 4 + 2 * 2


@pytest.fixture
def steps_in_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch's own: for comparison with it."""
    monkeypatch.setattr(muon, "type_of_steps", lambda device: torch.bfloat16)


@pytest.mark.usefixtures("steps_in_bf16")
@pytest.mark.parametrize("fast", [False, True])
def test_a_step_is_the_two_optimizers_of_torch_side_by_side(fast: bool) -> None:
    together, apart = small_model(fast=fast), small_model()
    one = Muon(lr=0.01, weight_decay=0.1, momentum=0.9).build(together)
    hidden = hidden_matrices(apart)
    rest = [p for p in apart.parameters() if all(p is not weight for weight in hidden)]
    theirs = torch.optim.Muon(hidden, lr=0.01, weight_decay=0.1, momentum=0.9, adjust_lr_fn="match_rms_adamw")
    adamw = AdamW(lr=0.01, weight_decay=0.1).over(rest)
    for seed in range(3):
        give_gradients(together, seed)
        give_gradients(apart, seed)
        one.step()
        theirs.step()
        adamw.step()
    kind = one.parts[0]
    assert type(kind) is (BatchedMuon if fast else torch.optim.Muon)
    for own, other in zip(together.parameters(), apart.parameters(), strict=True):
        if fast:
            torch.testing.assert_close(own, other, atol=1e-4, rtol=1e-4)  # a step has 8 bits, of some 0.006
        else:
            assert torch.equal(own, other)


@pytest.mark.usefixtures("steps_in_bf16")
@pytest.mark.parametrize("shape", [(1, 1), (5, 5), (3, 7), (64, 16), (1, 9)])
@pytest.mark.parametrize("number", [1, 4])
def test_matrices_made_orthogonal_together_are_those_made_so_one_by_one(
    shape: tuple[int, int], number: int
) -> None:
    weights = [[nn.Parameter(torch.zeros(shape)) for _ in range(number)] for _ in range(2)]
    optimizers = [
        kind(own, lr=1.0, adjust_lr_fn="match_rms_adamw")
        for kind, own in zip((torch.optim.Muon, BatchedMuon), weights, strict=True)
    ]
    for scale in (1.0, 1e-3, 0.0):
        for own in weights:
            generator = torch.Generator().manual_seed(5)
            for weight in own:
                weight.grad = torch.randn(shape, generator=generator) * scale
        for optimizer in optimizers:
            optimizer.step()
    for one, other in zip(*weights, strict=True):
        torch.testing.assert_close(other, one, atol=0.03, rtol=0.03)
    assert optimizers[0].state_dict()["param_groups"] == optimizers[1].state_dict()["param_groups"]


def exactly_orthogonal(x: torch.Tensor, steps: int) -> torch.Tensor:
    """The polynomial of each singular value, in float64."""
    left, values, right = torch.linalg.svd(x.double(), full_matrices=False)
    values = values / values.norm(dim=-1, keepdim=True).clamp(min=1e-7)
    for _ in range(steps):
        values = A * values + B * values**3 + C * values**5
    return left * values.unsqueeze(-2) @ right


@pytest.mark.parametrize("shape", [(1, 1), (5, 5), (16, 33), (64, 16), (1, 9), (32, 128), (128, 32)])
@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("decades", [0, 8])
def test_orthogonal_in_float32_is_the_polynomial_of_the_singular_values(
    shape: tuple[int, int], steps: int, decades: int
) -> None:
    x = torch.randn(3, *shape, generator=torch.Generator().manual_seed(1))
    left, _, right = torch.linalg.svd(x, full_matrices=False)
    values = torch.logspace(0, -decades, min(shape))
    x = torch.stack([(left * values @ right)[0], torch.zeros(shape), x[2]])
    made = orthogonal(x, (A, B, C), steps, 1e-7)
    torch.testing.assert_close(made.double(), exactly_orthogonal(x, steps), atol=5e-4, rtol=0)


def test_steps_are_in_the_type_that_the_processor_is_fast_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """In bf16 on a processor that has none, Muon took more time than the rest of a default training."""
    seen: list[torch.dtype] = []

    def spy(x: torch.Tensor, *rest: object) -> torch.Tensor:
        seen.append(x.dtype)
        return orthogonal(x, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(muon, "orthogonal", spy)
    weight = nn.Parameter(torch.ones(2, 2))
    weight.grad = torch.ones(2, 2)
    for fast in (True, False):
        monkeypatch.setattr(muon, "processor_is_fast_in_bf16", lambda fast=fast: fast)
        BatchedMuon([weight], lr=1.0).step()
    assert seen == [torch.bfloat16, torch.float32]


def test_a_weight_without_a_gradient_stays() -> None:
    used, unused = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2, 2))
    optimizer = BatchedMuon([used, unused], lr=1.0)
    used.grad = torch.ones(2, 2)
    optimizer.step()
    assert torch.equal(unused, torch.ones(2, 2))
    assert not torch.equal(used, torch.ones(2, 2))
    assert list(optimizer.state) == [used]


def test_the_first_step_of_a_matrix_is_orthogonal_and_as_large_as_adams() -> None:
    layer = nn.Linear(8, 4)
    before = layer.weight.detach().clone()
    optimizer = Muon(lr=0.5).build(nn.Sequential(layer))
    give_gradients(layer, 1)
    optimizer.step()
    step = (before - layer.weight.detach()) / (0.5 * 0.2 * 8**0.5)  # 8 = the longer side
    values = torch.linalg.svdvals(step)
    assert values.min() > 0.6 and values.max() < 1.3  # Newton-Schulz stops near one


def test_the_rate_set_in_the_groups_moves_both_kinds() -> None:
    model = small_model()
    optimizer = Muon(lr=0.01, weight_decay=0.5).build(model)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    before = [parameter.detach().clone() for parameter in model.parameters()]
    give_gradients(model, 1)
    optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_a_state_put_back_goes_on_bit_for_bit() -> None:
    undisturbed = small_model()
    optimizer = Muon(lr=0.01).build(undisturbed)
    give_gradients(undisturbed, 1)
    optimizer.step()
    resumed = small_model()
    resumed.load_state_dict(undisturbed.state_dict())
    again = Muon(lr=0.02).build(resumed)  # the rate comes back with the state
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for model, own in ((undisturbed, optimizer), (resumed, again)):
        give_gradients(model, 2)
        own.step()
    for ours, theirs in zip(resumed.parameters(), undisturbed.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_model_without_linear_maps_is_adamws() -> None:
    embedding = nn.Embedding(3, 2)
    assert isinstance(Muon(lr=0.1).build(embedding), torch.optim.AdamW)


def test_a_closure_is_called_once() -> None:
    weight = nn.Parameter(torch.ones(2))
    together = Together([torch.optim.SGD([weight], lr=0.5)])
    calls = []

    def closure() -> torch.Tensor:
        calls.append(1)
        weight.grad = None
        loss = weight.sum()
        loss.backward()
        return loss

    assert together.step(closure) == 2
    assert calls == [1]
    assert weight.tolist() == [0.5, 0.5]
