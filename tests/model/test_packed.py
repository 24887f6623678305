"""Steps of the packed decoder against those of the plain one."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from minitrans.decoding.ensemble import Ensemble
from minitrans.model.attention import MultiHeadAttention
from minitrans.model.cache import LayerCache
from minitrans.model.fast.packed import PackedLinear, PackedTransformer, RoomyCache, packed
from minitrans.model.masks import padding_mask
from tests.model.conftest import MakeModel

SRC = torch.tensor([[5, 6, 7, 8, 2], [9, 5, 2, 0, 0], [4, 2, 0, 0, 0]])
STEPS = torch.tensor(
    [[1, 1, 1, 1, 1, 1], [5, 6, 7, 8, 9, 10], [11, 12, 13, 14, 15, 16], [4, 4, 5, 5, 6, 6]]
).T
"""(6, 4): four tokens of the two hypotheses of each of the three sources."""

bf16_products = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="the processor has no bf16 products"
)


def states_of(model: Any, src: Tensor, tgt: Tensor, width: int) -> list[Tensor]:
    """States and logits of each step; behind the second one, the hypotheses are reordered."""
    mask = padding_mask(src)
    found = []
    with torch.no_grad():
        cache = model.start_cache(model.encode(src, mask), mask)
        cache = cache.select(torch.arange(len(src)).unsqueeze(1).expand(-1, width))
        for t in range(tgt.size(1)):
            states, cache = model.step(tgt[:, t : t + 1], cache)
            found += [states.float(), model.logits(states).float()]
            if t == 1:
                cache = cache.select(torch.arange(len(tgt)).view(len(src), width).flip(1))
    return found


@bf16_products
@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("padding", [False, True])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm_order": "post"},
        {"norm": "rms_norm", "bias": False},
        {"activation": "gelu"},
        {"activation": "swiglu"},
        {"activation": "identity"},
        {"activation": "none"},
        {"position": "rotary", "d_k": 6, "d_v": 10},
        {"position": "learned", "num_decoder_layers": 3, "tie": "none"},
        {"d_model": 48, "num_heads": 3, "d_ff": 70, "vocab_size": 131},
    ],
    ids=str,
)
def test_the_packed_decoder_steps_as_the_plain_one(
    make_model: MakeModel, changes: dict[str, Any], padding: bool, width: int
) -> None:
    exact = make_model(**changes).eval()
    plain = make_model(**changes).eval().bfloat16()
    clever = packed(plain)
    assert isinstance(clever, PackedTransformer)
    src = SRC if padding else SRC[:1].expand(3, -1)
    tgt = STEPS if width == 2 else STEPS[::2]
    wanted, usual, found = (states_of(model, src, tgt, width) for model in (exact, plain, clever))
    for near, ours in zip(usual, found, strict=True):
        assert ours.shape == near.shape
        torch.testing.assert_close(ours, near, atol=0.15, rtol=0.05)
    assert error(found, wanted) < 1.3 * error(usual, wanted)


def error(found: list[Tensor], wanted: list[Tensor]) -> float:
    """Root of the mean square of all differences."""
    squares = [(one - other).pow(2).flatten() for one, other in zip(found, wanted, strict=True)]
    return torch.cat(squares).mean().sqrt().item()


@bf16_products
def test_several_maps_are_one_product() -> None:
    linears = [nn.Linear(8, width).bfloat16() for width in (3, 5)]
    x, residual = torch.randn(64, 8).bfloat16(), torch.randn(64, 8).bfloat16()
    y = torch.cat([F.linear(x.float(), one.weight.float(), one.bias.float()) for one in linears], dim=1)
    with torch.no_grad():
        both = PackedLinear(*linears)
        tolerance = {"atol": 1e-2, "rtol": 1e-2}
        torch.testing.assert_close(both(x).float(), y, **tolerance)
        torch.testing.assert_close(both.rectified(x).float(), y.relu(), **tolerance)
        torch.testing.assert_close(both.added(residual, x).float(), residual.float() + y, **tolerance)


@bf16_products
def test_a_neighbour_changes_nothing(make_model: MakeModel) -> None:
    model = packed(make_model().eval().bfloat16())
    alone = states_of(model, SRC[1:2], STEPS[2:3], 1)
    beside = states_of(model, SRC[:2], STEPS[[0, 2]], 1)
    for one, two in zip(alone, beside, strict=True):
        assert torch.equal(one[0], two[1])


def moved(cache: LayerCache, steps: list[int | tuple[int, ...]]) -> LayerCache:
    """The cache after steps: so many tokens, or a choice of rows."""
    for number, step in enumerate(steps):
        if isinstance(step, tuple):
            cache = cache.select_hypotheses(torch.tensor(step))
            continue
        rows = 4 if cache.self_key is None else len(cache.self_key)
        generator = torch.Generator().manual_seed(number)
        key = torch.randn(rows, 2, step, 3, generator=generator)
        value = torch.randn(rows, 2, step, 5, generator=generator)
        all_keys, all_values, cache = cache.extend(key, value)
        assert cache.self_key is not None and cache.self_value is not None
        assert torch.equal(cache.self_key, all_keys) and torch.equal(cache.self_value, all_values)
    return cache


def assert_alike(one: LayerCache, other: LayerCache) -> None:
    assert one.self_key is not None and one.self_value is not None
    assert other.self_key is not None and other.self_value is not None
    assert torch.equal(one.self_key, other.self_key)
    assert torch.equal(one.self_value, other.self_value)


STEP = st.one_of(st.integers(1, 20), st.just((0, 1, 2, 3)), st.just((3, 3, 0, 1)))


STEPS_ON = st.lists(STEP, min_size=1, max_size=6)


@given(STEPS_ON, STEPS_ON, STEPS_ON)
def test_a_cache_with_room_holds_what_a_plain_one_holds_and_may_be_gone_on_from_twice(
    before: list[int | tuple[int, ...]],
    first: list[int | tuple[int, ...]],
    second: list[int | tuple[int, ...]],
) -> None:
    source = torch.zeros(4, 2, 1, 3), torch.zeros(4, 2, 1, 5)
    plain, roomy = (moved(kind(*source), [1, *before]) for kind in (LayerCache, RoomyCache))
    assert_alike(roomy, plain)
    branches = [moved(roomy, first), moved(roomy, second)]
    for branch, steps in zip(branches, (first, second), strict=True):
        assert_alike(branch, moved(plain, steps))
    assert_alike(roomy, plain)


@bf16_products
def test_weights_that_change_are_packed_anew(make_model: MakeModel) -> None:
    model = make_model().eval().bfloat16()
    before = states_of(packed(model), SRC, STEPS[::2], 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(-0.5)
    after = states_of(packed(model), SRC, STEPS[::2], 1)
    assert not torch.allclose(before[1], after[1], atol=0.1)
    torch.testing.assert_close(after[1], states_of(model, SRC, STEPS[::2], 1)[1], atol=0.1, rtol=0.05)


def test_what_has_no_twin_stays_as_it_is(make_model: MakeModel) -> None:
    """Float32, the switch, an attention that was chosen by name, several models at once."""
    chosen = make_model().bfloat16()
    for module in chosen.modules():
        if isinstance(module, MultiHeadAttention):
            module.core.backend = "reference"
    for model in (
        make_model(),
        make_model().double(),
        make_model(fast=False).bfloat16(),
        chosen,
        Ensemble([make_model().bfloat16()]),
    ):
        assert packed(model) is model
