import math

import pytest
import torch

from minitrans.model.positions import (
    POSITIONS,
    LearnedPositions,
    PositionEncoding,
    PositionLimitError,
    RotaryPositions,
    SinusoidalPositions,
    sinusoidal_table,
)


def test_sinusoidal_values_of_an_odd_width() -> None:
    row = sinusoidal_table(2, 5)[1].tolist()
    assert row == pytest.approx([0.841471, 0.540302, 0.025116, 0.999685, 0.000631], abs=1e-6)


@pytest.mark.parametrize("d_model", [1, 2, 7, 16])
def test_sinusoidal_formula(d_model: int) -> None:
    table = sinusoidal_table(300, d_model)
    for p in (0, 1, 17, 299):
        for j in range(d_model):
            angle = p / 10_000 ** ((j - j % 2) / d_model)
            expected = math.cos(angle) if j % 2 else math.sin(angle)
            assert table[p, j].item() == pytest.approx(expected, abs=1e-6)


def test_sinusoidal_has_no_limit_and_growth_changes_no_value() -> None:
    position = SinusoidalPositions(6)
    before = position.add(torch.zeros(1, 10, 6))
    far = position.add(torch.zeros(1, 1, 6), start=5000)
    assert position.limit is None
    torch.testing.assert_close(far[0, 0], sinusoidal_table(5001, 6)[5000])
    assert torch.equal(position.add(torch.zeros(1, 10, 6)), before)


@pytest.mark.parametrize("grow_before", [True, False])
def test_half_precision_table_differs_by_rounding_only(grow_before: bool) -> None:
    position = SinusoidalPositions(64)
    if grow_before:
        position.add(torch.zeros(1, 3000, 64))
    added = position.half().add(torch.zeros(1, 3000, 64, dtype=torch.float16))
    assert added.dtype == torch.float16
    assert (added[0].float() - sinusoidal_table(3000, 64)).abs().max() <= 1e-3


@pytest.mark.parametrize("kind", [SinusoidalPositions(8), RotaryPositions(8)])
def test_fixed_tables_are_not_saved(kind: PositionEncoding) -> None:
    assert kind.state_dict() == {}


def test_learned_positions_add_their_rows() -> None:
    position = LearnedPositions(4, max_length=6)
    x = torch.randn(2, 3, 4)
    torch.testing.assert_close(position.add(x, start=2), x + position.weight[2:5])


def test_past_the_end_of_a_learned_table() -> None:
    position = LearnedPositions(4, max_length=16)
    assert position.limit == 16
    position.add(torch.zeros(1, 16, 4))
    with pytest.raises(PositionLimitError, match="20 tokens is longer than the 16 positions") as caught:
        position.add(torch.zeros(1, 20, 4))
    assert (caught.value.length, caught.value.limit) == (20, 16)
    with pytest.raises(PositionLimitError, match="17 tokens"):
        position.add(torch.zeros(1, 1, 4), start=16)


def test_rotary_turns_by_the_position() -> None:
    position = RotaryPositions(4, base=100.0)
    x = torch.tensor([1.0, 0.0, 0.0, 1.0]).view(1, 1, 1, 4)
    # Position 3: the first pair turns by 3, the second by 3 / 100^(2/4) = 0.3.
    expected = [math.cos(3), math.sin(3), -math.sin(0.3), math.cos(0.3)]
    assert position.rotate(x, start=3).flatten().tolist() == pytest.approx(expected, abs=1e-6)


def test_rotary_products_depend_on_the_distance_alone() -> None:
    position = RotaryPositions(8)
    query, key = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8)

    def product(query_at: int, key_at: int) -> float:
        return (position.rotate(query, query_at) * position.rotate(key, key_at)).sum().item()

    assert product(5, 2) == pytest.approx(product(905, 902), abs=1e-4)
    assert product(0, 0) == pytest.approx((query * key).sum().item(), abs=1e-5)
    assert abs(product(5, 2) - product(5, 3)) > 1e-3


@pytest.mark.parametrize("name", ["sinusoidal", "learned"])
def test_added_encodings_leave_queries_alone(name: str) -> None:
    position = POSITIONS[name](d_model=8)  # type: ignore[call-arg]
    x = torch.randn(1, 2, 3, 4)
    assert position.rotate(x, start=1) is x


def test_rotary_and_none_leave_embeddings_alone() -> None:
    x = torch.randn(1, 3, 8)
    assert RotaryPositions(8).add(x) is x
    assert PositionEncoding().add(x) is x
    assert PositionEncoding().rotate(x) is x


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="d_k must be even, but it is 5"):
        RotaryPositions(5)
    with pytest.raises(ValueError, match=r"position\.base must be above 0"):
        RotaryPositions(4, base=0.0)
    with pytest.raises(ValueError, match=r"position\.max_length must be at least 1"):
        LearnedPositions(4, max_length=0)
