"""Bounds and bans by hand, and n-grams against a plain loop."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minitrans.config import SearchConfig
from minitrans.decoding.constraints import Constraints, completes_ngram
from minitrans.errors import UserError


def mask(*lengths: int) -> torch.Tensor:
    """(B, 1, S) for sources of so many tokens and the end."""
    return torch.arange(max(lengths) + 1)[None, None, :] <= torch.tensor(lengths)[:, None, None]


@pytest.mark.parametrize(
    ("settings", "tgt_limit", "minimum", "limit"),
    [
        (SearchConfig(), None, [0, 0], [14, 50]),  # 2 x 2 + 10, 2 x 20 + 10
        (SearchConfig(max_length=30, max_length_ratio=1.0), None, [0, 0], [12, 30]),
        (SearchConfig(min_length=3, min_length_ratio=0.3), None, [3, 6], [14, 50]),  # 0.6 and 6
        (SearchConfig(min_length_ratio=0.7), None, [2, 14], [14, 50]),  # 1.4 tokens are at least 2
        (SearchConfig(min_length=20), None, [20, 20], [20, 50]),  # the absolute bound over the relative one
        (SearchConfig(min_length_ratio=2.0, max_length=9), None, [4, 9], [9, 9]),
        (SearchConfig(min_length=20), 8, [7, 7], [7, 7]),  # the model's positions over all
    ],
)
def test_each_sentence_has_its_bounds(
    settings: SearchConfig, tgt_limit: int | None, minimum: list[int], limit: list[int]
) -> None:
    constraints = Constraints.of(mask(2, 20), settings, tgt_limit)
    assert constraints.minimum.tolist() == minimum
    assert constraints.limit.tolist() == limit


def test_a_forced_beginning_lengthens_the_relative_bound_and_no_other() -> None:
    settings = SearchConfig(max_length=12, max_length_ratio=0.5)
    assert Constraints.of(mask(2), settings, None, [[3] * 12]).limit.tolist() == [12]
    with pytest.raises(UserError, match=r"sentence 2 of the batch has 13 tokens.* at most 12 "):
        Constraints.of(mask(2, 2), settings, None, [[], [3] * 13])
    with pytest.raises(UserError, match=r"has 7 tokens.* at most 6 "):
        Constraints.of(mask(2), settings, 7, [[3] * 7])
    with pytest.raises(UserError, match="holds padding, start or end"):
        Constraints.of(mask(2), settings, None, [[3, 2]])


def test_only_the_forced_token_is_allowed_until_the_beginning_is_over() -> None:
    constraints = Constraints.of(mask(2, 2), SearchConfig(no_repeat_ngram=1), None, [[4, 4], [5]])
    logits = torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]] * 2)
    rows, never = torch.tensor([0, 1]), -math.inf
    first, second = logits.clone(), logits.clone()
    constraints.forbid(first, torch.tensor([[1], [1]]), rows)
    assert first.tolist() == [[never] * 4 + [5.0, never], [never] * 5 + [6.0]]
    constraints.forbid(second, torch.tensor([[1, 4], [1, 5]]), rows)
    # 4 again, though it is a repetition; the other sentence is free but for the 5 that it has
    assert second.tolist() == [[never] * 4 + [5.0, never], [never, never, 3.0, 4.0, 5.0, never]]
    assert [constraints.may_end(rows, t).tolist() for t in (0, 1, 2)] == [
        [False, False],
        [False, True],
        [True, True],
    ]


@given(
    tokens=st.lists(st.integers(3, 6), min_size=0, max_size=9),
    n=st.integers(1, 4),
)
def test_a_token_is_banned_where_it_would_repeat_an_ngram(tokens: list[int], n: int) -> None:
    there = {tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)}
    expected = [tuple([*tokens, token][-n:]) in there and len(tokens) >= n for token in range(7)]
    assert completes_ngram(torch.tensor([tokens]).long(), n, 7).tolist() == [expected]
