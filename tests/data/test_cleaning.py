"""What is left out, and what is said about it."""

import numpy as np
import pytest

from minitrans.config import CleaningConfig
from minitrans.data.cleaning import clean
from minitrans.errors import UserError

# Tokens with the end token: (3, 4), (1, 5) and (5, 1) empty, (2, 4) is 1 word against 3, (9, 9), (10, 9).
SRC = np.array([3, 1, 5, 2, 9, 10])
TGT = np.array([4, 5, 1, 4, 9, 9])


def test_only_empty_sides_are_left_out_by_default():
    kept, report = clean(SRC, TGT, CleaningConfig(), "a.de and a.en")
    assert kept.tolist() == [0, 3, 4, 5]
    assert str(report) == "Left out 2 of 6 training pairs: 2 with an empty side."


def test_limits_are_inclusive_and_each_pair_counts_once():
    kept, report = clean(SRC, TGT, CleaningConfig(max_tokens=9, max_ratio=2.0), "a.de and a.en")
    assert kept.tolist() == [0, 4]
    assert (report.total, report.kept, report.empty, report.too_long, report.unlike) == (6, 2, 2, 1, 1)
    assert str(report) == (
        "Left out 4 of 6 training pairs: 2 with an empty side, "
        "1 with a side longer than cleaning.max_tokens=9, "
        "1 with sides less alike in length than cleaning.max_ratio=2.0."
    )


def test_a_ratio_of_exactly_the_limit_is_kept():
    kept, _ = clean(np.array([2, 4]), np.array([4, 2]), CleaningConfig(max_ratio=3.0), "a")
    assert kept.tolist() == [0, 1]


def test_nothing_left_out_is_said_too():
    _, report = clean(SRC[:1], TGT[:1], CleaningConfig(), "a")
    assert str(report) == "All 1 training pairs are in use."


def test_a_set_that_is_left_out_altogether_is_refused():
    with pytest.raises(UserError) as caught:
        clean(SRC[1:3], TGT[1:3], CleaningConfig(), "a.de and a.en")
    assert str(caught.value) == (
        "no training pair of a.de and a.en is left: "
        "left out 2 of 2 training pairs: 2 with an empty side; loosen that rule, or mend the text"
    )
