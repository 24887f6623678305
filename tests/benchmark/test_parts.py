"""The clock that divides time among parts."""

import time

import pytest

from minitrans.benchmark import parts
from minitrans.benchmark.parts import Clock, Timed, timed


class Ticks:
    """A clock that goes on by a second whenever it is read."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(time, "perf_counter", Ticks())
    return Clock()


class Base:
    def inherited(self) -> str:
        return "inherited"


class Machine(Base):
    def outer(self) -> str:
        return self.inner() + self.inherited()

    def inner(self) -> str:
        return "inner"


CALLS = [
    Timed(Machine, "outer", "a"),
    Timed(Machine, "inner", "b"),
    Timed(Machine, "inherited", "c"),
]


def test_each_moment_belongs_to_the_innermost_part(clock: Clock) -> None:
    with timed(clock, CALLS):
        assert Machine().outer() == "innerinherited"
    # one second from each reading to the next: other | a | b | a | c | a | other
    assert clock.seconds() == {"other": 2.0, "a": 3.0, "b": 1.0, "c": 1.0}
    assert clock.shares()["a"] == 3 / 8  # looking is a second of other


def test_shares_sum_to_one_and_the_largest_comes_first(clock: Clock) -> None:
    with timed(clock, CALLS):
        Machine().outer()
    shares = clock.shares()
    assert sum(shares.values()) == pytest.approx(1.0, abs=1e-12)
    assert list(shares.values()) == sorted(shares.values(), reverse=True)


def test_a_reset_inside_a_part_leaves_it_under_way(clock: Clock) -> None:
    with clock.part("a"):
        clock.reset()
    assert clock.seconds() == {"a": 1.0, "other": 1.0}


def test_the_methods_are_left_as_they_were() -> None:
    own = Machine.outer, Machine.inner, Base.inherited
    with pytest.raises(KeyError), timed(Clock(), CALLS):
        assert Machine.outer is not own[0]
        raise KeyError
    assert (Machine.outer, Machine.inner, Base.inherited) == own
    assert "inherited" not in vars(Machine)


def test_a_function_of_a_module_is_timed(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "job", lambda x, *, y: x + y, raising=False)
    with timed(clock, [Timed(parts, "job", "a")]):
        assert parts.job(1, y=2) == 3  # type: ignore[attr-defined]
    assert clock.seconds()["a"] == 1.0
