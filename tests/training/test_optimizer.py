"""Optimizers against the equations, by hand."""

import pytest
import torch
from torch import nn

from minitrans.config import construct
from minitrans.errors import UserError
from minitrans.training.optimizer import OPTIMIZERS, SGD, Adam, AdamW


def model_of_ones():
    layer = nn.Linear(2, 1)
    nn.init.ones_(layer.weight)
    nn.init.ones_(layer.bias)
    return layer


def one_step(settings, gradient):
    layer = model_of_ones()
    optimizer = settings.build(layer)
    for parameter in layer.parameters():
        parameter.grad = torch.full_like(parameter, gradient)
    optimizer.step()
    return layer


def test_adamw_decays_matrices_and_leaves_biases():
    layer = one_step(AdamW(lr=0.1, weight_decay=0.5, eps=0.0), gradient=0.3)
    # Adam's first step is lr times the gradient's sign; decay takes lr * 0.5 of the matrix away
    assert layer.weight.tolist() == [pytest.approx([1 - 0.1 * 0.5 - 0.1] * 2)]
    assert layer.bias.tolist() == pytest.approx([0.9])


def test_adam_first_step_is_the_rate():
    layer = one_step(Adam(lr=0.1, eps=0.0), gradient=-7.0)
    assert layer.weight.tolist() == [pytest.approx([1.1] * 2)]


@pytest.mark.parametrize("settings", [AdamW(lr=0.01, weight_decay=0.1), Adam(lr=0.01)])
def test_one_kernel_steps_as_torchs_loop_does(settings):
    torch.manual_seed(0)
    one, loop = nn.Linear(5, 3), nn.Linear(5, 3)
    loop.load_state_dict(one.state_dict())
    optimizers = settings.build(one), settings.build(loop)
    for group in optimizers[1].param_groups:
        group["fused"] = False
    assert all(group["fused"] for group in optimizers[0].param_groups)
    for _ in range(5):
        for parameter, twin in zip(one.parameters(), loop.parameters(), strict=True):
            parameter.grad = torch.randn_like(parameter)
            twin.grad = parameter.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    for parameter, twin in zip(one.parameters(), loop.parameters(), strict=True):
        torch.testing.assert_close(parameter, twin, atol=1e-7, rtol=1e-6)


def test_sgd_shows_the_gradient_itself():
    layer = one_step(SGD(lr=1.0), gradient=0.25)
    assert layer.weight.tolist() == [[0.75, 0.75]]
    assert layer.bias.tolist() == [0.75]


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"kind": "adamw", "lr": 0.0}, r"lr is 0.0, but a rate must be above 0"),
        ({"kind": "adamw", "lr": 1e-3, "betas": [0.9, 1.0]}, r"1.0 is no decay"),
        (
            {"kind": "sgd", "lr": 1.0, "betas": [0.9, 0.98]},
            r"optimizer.betas.* means nothing with optimizer=sgd",
        ),
        ({"kind": "adam"}, r"optimizer=adam needs optimizer.lr"),
        ({"kind": "adam", "lr": "fast"}, r"optimizer.lr is 'fast', but must be a number"),
    ],
)
def test_bad_settings_are_refused_by_name(section, message):
    with pytest.raises(UserError, match=message):
        construct(OPTIMIZERS, section, {}, "optimizer")


@pytest.mark.parametrize("written", [1e-4, "1e-4", "1e-04", 0.0001])
def test_a_rate_means_the_same_however_it_is_written(written):
    assert construct(OPTIMIZERS, {"kind": "adam", "lr": written}, {}, "optimizer").lr == 0.0001
