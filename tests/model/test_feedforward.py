import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from minitrans.model.dropout import Dropout
from minitrans.model.feedforward import ACTIVATIONS


def gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


@pytest.mark.parametrize(
    ("name", "f"), [("relu", lambda x: x.clamp(min=0)), ("gelu", gelu), ("identity", lambda x: x)]
)
def test_plain_forms(name: str, f: Callable[[Tensor], Tensor]) -> None:
    network, activation = ACTIVATIONS[name]
    ffn = network(4, 6, activation, Dropout(0.0))
    x = torch.randn(2, 3, 4)
    expected = f(x @ ffn.w_1.weight.T + ffn.w_1.bias) @ ffn.w_2.weight.T + ffn.w_2.bias
    torch.testing.assert_close(ffn(x), expected)


def test_swiglu_form() -> None:
    network, activation = ACTIVATIONS["swiglu"]
    ffn = network(4, 6, activation, Dropout(0.0), bias=False)
    w_1, w_gate, w_2 = (dict(ffn.named_parameters())[f"{name}.weight"] for name in ("w_1", "w_gate", "w_2"))
    x = torch.randn(2, 3, 4)
    inner = x @ w_1.T
    torch.testing.assert_close(ffn(x), (inner * torch.sigmoid(inner) * (x @ w_gate.T)) @ w_2.T)


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("bias", [True, False])
def test_dropout_and_biases(name: str, bias: bool) -> None:
    network, activation = ACTIVATIONS[name]

    class Erase(Dropout):
        def forward(self, x: Tensor) -> Tensor:
            return x * 0

    ffn = network(4, 6, activation, Erase(0.0), bias=bias)
    output = ffn(torch.randn(2, 3, 4))  # the hidden layer erased: the last bias alone is left
    assert torch.equal(output, (ffn.w_2.bias if bias else torch.zeros(4)).expand(2, 3, 4))
    assert any("bias" in parameter for parameter, _ in ffn.named_parameters()) == bias
