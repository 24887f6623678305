import pytest

from minitrans.model.parameters import parameter_table
from tests.model.conftest import MakeModel


def test_table_of_a_small_model_by_hand(make_model: MakeModel) -> None:
    table = {(row.side, row.part): row.count for row in parameter_table(make_model(position="learned"))}
    attention = 4 * (16 * 16 + 16)
    feed_forward = 16 * 32 + 32 + 32 * 16 + 16
    assert table == {
        ("shared", "embeddings"): 50 * 16,
        ("encoder", "positions"): 512 * 16,
        ("encoder", "self-attention"): attention,
        ("encoder", "feed-forward"): feed_forward,
        ("encoder", "norms"): 3 * 32,
        ("decoder", "positions"): 512 * 16,
        ("decoder", "self-attention"): attention,
        ("decoder", "cross-attention"): attention,
        ("decoder", "feed-forward"): feed_forward,
        ("decoder", "norms"): 4 * 32,
    }


@pytest.mark.parametrize(
    ("tie", "expected"),
    [
        ("all", {"shared": 800}),
        ("decoder", {"encoder": 800, "decoder": 800}),
        ("none", {"encoder": 800, "decoder": 800, "output": 800}),
    ],
)
def test_tied_tables_count_once(make_model: MakeModel, tie: str, expected: dict[str, int]) -> None:
    model = make_model(tie=tie)
    rows = parameter_table(model)
    assert {row.side: row.count for row in rows if row.part == "embeddings"} == expected
    total = sum(parameter.numel() for parameter in model.parameters())
    assert sum(row.count for row in rows) == total
    assert sum(row.share for row in rows) == pytest.approx(1.0)
    assert rows[0].share == pytest.approx(rows[0].count / total)
