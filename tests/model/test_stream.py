"""Half-precision activations: what changes of type, and that the numbers stay those of the plain twin."""

import pytest
import torch
from torch import Tensor

from minitrans.model.fast.stream import narrow
from minitrans.model.masks import padding_mask
from minitrans.model.transformer import Transformer
from tests.model.conftest import MakeModel

SRC = torch.tensor([[5, 6, 7, 8, 2], [9, 2, 0, 0, 0]])
TGT_IN = torch.tensor([[1, 10, 11, 12], [1, 13, 0, 0]])
TGT_OUT = torch.tensor([[10, 11, 12, 2], [13, 2, 0, 0]])


def test_narrow_acts_under_autocast_alone() -> None:
    x = torch.ones(2, 3)
    assert narrow(x) is x
    with torch.autocast("cpu", torch.bfloat16):
        assert narrow(x).dtype == torch.bfloat16
    with torch.autocast("cpu", torch.float16):
        assert narrow(x).dtype == torch.float16


@pytest.mark.parametrize(("fast", "dtype"), [(True, torch.bfloat16), (False, torch.float32)])
def test_the_residual_stream_is_narrow_in_the_fast_model_alone(
    make_model: MakeModel, fast: bool, dtype: torch.dtype
) -> None:
    model = make_model(fast=fast, num_encoder_layers=2, num_decoder_layers=2)
    seen = []
    for layer in [*model.encoder.layers, *model.decoder.layers]:
        layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].dtype))
    with torch.autocast("cpu", torch.bfloat16):
        losses_and_gradients(model)
    assert seen == [dtype] * 4


@pytest.mark.parametrize("norm_order", ["pre", "post"])
@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("position", ["sinusoidal", "learned", "rotary", "none"])
def test_values_and_gradients_are_the_plain_ones_to_bf16(
    make_model: MakeModel, norm_order: str, norm: str, position: str
) -> None:
    shape = {"norm_order": norm_order, "norm": norm, "position": position, "num_encoder_layers": 2}
    exact = losses_and_gradients(make_model(fast=False, **shape))
    results = []
    for fast in (False, True):
        with torch.autocast("cpu", torch.bfloat16):
            results.append(losses_and_gradients(make_model(fast=fast, **shape)))
    (loss, *right), *halves = exact, *results
    for half in halves:
        assert half[0].item() == pytest.approx(loss.item(), rel=5e-3)
    errors = [distance(half[1:], right) for half in halves]
    assert errors[1] < 4 * errors[0]  # the rounding of sums comes on top of that of products
    assert errors[1] < 0.1 * distance(right, [torch.zeros_like(gradient) for gradient in right])


def test_without_autocast_nothing_changes(make_model: MakeModel) -> None:
    plain, clever = (losses_and_gradients(make_model(fast=fast)) for fast in (False, True))
    for expected, found in zip(plain, clever, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


def distance(some: list[Tensor], others: list[Tensor]) -> float:
    """The Euclidean distance of two models' gradients, all parameters as one vector."""
    pairs = zip(some, others, strict=True)
    return torch.stack([(one - other).norm() for one, other in pairs]).norm().item()


def losses_and_gradients(model: Transformer) -> list[Tensor]:
    """The smoothed loss, then each parameter's gradient."""
    mask = padding_mask(SRC)
    states = model.decode(TGT_IN, model.encode(SRC, mask), mask)
    loss, _ = model.nll(states, TGT_OUT, 0.1)
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]
