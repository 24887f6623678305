import pytest
import torch

from minitrans.model.masks import as_boolean_mask, causal_mask, padding_mask

INF = float("inf")


def test_padding_mask_is_this_matrix() -> None:
    ids = torch.tensor([[5, 6, 2, 0], [7, 2, 0, 0]])
    assert padding_mask(ids).tolist() == [[[True, True, True, False]], [[True, True, False, False]]]


def test_padding_mask_of_another_padding_id() -> None:
    assert padding_mask(torch.tensor([[0, 9]]), pad_id=9).tolist() == [[[True, False]]]


@pytest.mark.parametrize(
    ("num_queries", "num_keys", "rows"),
    [
        (4, 4, ["1000", "1100", "1110", "1111"]),
        (2, 4, ["1110", "1111"]),
        (1, 3, ["111"]),
        (3, 2, ["00", "10", "11"]),
    ],
)
def test_causal_mask_is_anchored_at_the_end(num_queries: int, num_keys: int, rows: list[str]) -> None:
    expected = [[mark == "1" for mark in row] for row in rows]
    assert causal_mask(num_queries, num_keys).tolist() == expected


@pytest.mark.parametrize(
    "mask",
    [
        torch.tensor([[True, False]]),
        torch.tensor([[1, 0]]),
        torch.tensor([[1, 0]], dtype=torch.uint8),
        torch.tensor([[0.0, -INF]]),
        torch.tensor([[0.0, -INF]], dtype=torch.float16),
    ],
)
def test_every_accepted_form_reads_alike(mask: torch.Tensor) -> None:
    read = as_boolean_mask(mask)
    assert read.dtype == torch.bool
    assert read.tolist() == [[True, False]]


@pytest.mark.parametrize(
    ("mask", "value"),
    [
        (torch.tensor([1.0, 0.0]), "1.0"),
        (torch.tensor([0.0, -1e9]), "-1000000000.0"),
        (torch.tensor([0.0, INF]), "inf"),
        (torch.tensor([0.0, float("nan")]), "nan"),
        (torch.tensor([0, 1, 2]), "2"),
        (torch.tensor([0, -1]), "-1"),
    ],
)
def test_any_other_value_is_refused_by_name(mask: torch.Tensor, value: str) -> None:
    with pytest.raises(ValueError, match=f"holds {value}"):
        as_boolean_mask(mask)
