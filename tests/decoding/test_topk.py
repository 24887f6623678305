"""The k largest by blocks against torch's topk."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrans.decoding.topk import BLOCK, blockwise_topk, largest


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(
    ("num_columns", "k"), [(BLOCK, 1), (640, 2), (641, 6), (703, 10), (3497, 6), (8000, 11)]
)
def test_equal_to_torch(num_columns: int, k: int, dtype: torch.dtype) -> None:
    # distinct values, also in bf16's eight bits, where the number of columns allows it
    rows = torch.stack(
        [torch.randperm(num_columns, generator=torch.Generator().manual_seed(s)) for s in range(9)]
    )
    values = rows.to(dtype)
    expected, columns = values.topk(k)
    found, where = blockwise_topk(values, k)
    assert torch.equal(found, expected)
    assert torch.equal(values.gather(1, where), expected)
    if dtype != torch.bfloat16:  # which rounds some to the same value
        assert torch.equal(where, columns)
    assert torch.equal(largest(values, k)[0], expected)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_ties_and_forbidden_values(data: st.DataObject) -> None:
    num_columns = data.draw(st.integers(3 * BLOCK, 5 * BLOCK))
    k = data.draw(st.integers(1, 3))
    some = st.sampled_from([-math.inf, -1.0, 0.0, 0.5])
    values = torch.tensor([data.draw(st.lists(some, min_size=num_columns, max_size=num_columns))])
    found, where = blockwise_topk(values, k)
    assert torch.equal(found, values.topk(k).values)
    assert torch.equal(values.gather(1, where), found)
    assert len(set(where[0].tolist())) == k


def test_few_values_are_left_to_torch() -> None:
    values = torch.tensor([[3.0, 1.0, 2.0]])
    assert largest(values, 2)[1].tolist() == [[0, 2]]
