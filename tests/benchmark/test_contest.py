"""Contestants in turn, each in a process of its own."""

import os
from multiprocessing.connection import Connection

import pytest

from minitrans.benchmark.contest import Contestant, Spread, contestants, in_turn
from minitrans.errors import UserError


def counting(channel: Connection, start: int) -> None:
    """Counts on from a number; its last word is its process."""
    channel.send(None)
    while (order := channel.recv()) is not None:
        start += order
        channel.send(start)
    channel.send(os.getpid())


def refusing(channel: Connection, sentence: str) -> None:
    raise UserError(sentence)


def leaving(channel: Connection, status: int) -> None:
    os._exit(status)


def test_contestants_work_in_turn_in_processes_of_their_own() -> None:
    made = (Contestant(name, counting, start) for name, start in (("a", 0), ("b", 100)))
    with contestants(made) as started:
        assert in_turn(started, 2, windows=3) == {"a": [2, 4, 6], "b": [102, 104, 106]}
        processes = {contestant.finish() for contestant in started}
    assert len(processes) == 2 and os.getpid() not in processes


def test_what_a_contestant_refuses_is_said_here() -> None:
    with (
        pytest.raises(UserError, match=r"^no such data$"),
        contestants(Contestant(name, refusing, "no such data") for name in "ab"),
    ):
        raise AssertionError("nobody was ready")


def test_a_contestant_that_is_gone_is_told() -> None:
    with (
        pytest.raises(UserError, match="measured a ended with status 3 and gave no result"),
        contestants(Contestant(name, leaving, 3) for name in "a"),
    ):
        raise AssertionError("nobody was ready")


def test_median_spread_and_ratio() -> None:
    ours, theirs = Spread((4.0, 9.0, 6.0)), Spread((2.0, 3.0, 6.0))
    assert (ours.median, ours.spread) == (6.0, 5 / 6)
    assert ours.over(theirs).values == (2.0, 3.0, 1.0)
    assert ours.over(theirs).median == 2.0  # not 6 / 3 of the medians
