"""Translation by memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitrans.evaluation.nearest import Memory, edit_distance


def test_memory_answers_with_the_nearest_line() -> None:
    memory = Memory(["a b c d", "a b x y", "q r s t"], ["first", "second", "third"])
    assert memory.translate("q r s") == "third"
    assert memory.translate("z b c d") == "first"


@pytest.mark.parametrize(
    ("first", "second", "distance"),
    [("a b c", "a b c", 0), ("a b c", "a c", 1), ("", "a b", 2), ("a b c", "x b y z", 3)],
)
def test_edit_distance(first: str, second: str, distance: int) -> None:
    assert edit_distance(first.split(), second.split()) == distance


WORDS = st.lists(st.sampled_from("abc"), max_size=6)


@given(first=WORDS, second=WORDS, third=WORDS)
def test_edit_distance_is_a_metric(first: list[str], second: list[str], third: list[str]) -> None:
    assert edit_distance(first, second) == edit_distance(second, first)
    assert (edit_distance(first, second) == 0) == (first == second)
    assert edit_distance(first, third) <= edit_distance(first, second) + edit_distance(second, third)
