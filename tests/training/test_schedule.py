"""Rates against values computed by hand from the equations."""

import math

import pytest

from minitrans.config import construct
from minitrans.errors import UserError
from minitrans.training.schedule import SCHEDULES, Constant, Cosine, InverseSqrt, Linear, Noam

FACTS = {"lr": 0.001, "d_model": 64, "max_updates": 100}


def rates(schedule, updates):
    return [schedule.rate(update) for update in updates]


def test_inverse_square_root_of_the_published_case():
    # width 64, warm-up 4, factor 1: the peak 64^-0.5 * 4^-0.5 = 0.0625 is reached at update 4
    expected = [0.015625, 0.03125, 0.046875, 0.0625, 0.0559017, 0.0510310]
    assert rates(Noam(64, 4, 1.0), range(1, 7)) == pytest.approx(expected, abs=5e-8)
    assert rates(InverseSqrt(0.0625, 4), range(1, 7)) == pytest.approx(expected, abs=5e-8)


@pytest.mark.parametrize("update", [1, 3, 4, 5, 4000, 100_000])
def test_noam_is_the_papers_equation_3(update):
    expected = 2.0 * 512**-0.5 * min(update**-0.5, update * 4000**-1.5)
    assert Noam(512, 4000, 2.0).rate(update) == pytest.approx(expected)


def test_cosine_by_hand():
    schedule = Cosine(1.0, max_updates=110, warmup_updates=10, floor=0.1)
    assert rates(schedule, [1, 5, 10, 60, 110, 500]) == pytest.approx([0.1, 0.5, 1.0, 0.55, 0.1, 0.1])
    assert schedule.rate(35) == pytest.approx(0.1 + 0.9 * (1 + math.cos(math.pi / 4)) / 2)


def test_linear_by_hand():
    schedule = Linear(2.0, max_updates=110, warmup_updates=10, floor=0.5)
    assert rates(schedule, [1, 10, 60, 110, 111]) == pytest.approx([0.2, 2.0, 1.5, 1.0, 1.0])


def test_constant_with_and_without_warm_up():
    assert rates(Constant(3.0, 0), [1, 2, 1000]) == [3.0, 3.0, 3.0]
    assert rates(Constant(3.0, 3), [1, 2, 3, 4]) == pytest.approx([1.0, 2.0, 3.0, 3.0])


@pytest.mark.parametrize("kind", SCHEDULES)
def test_no_schedule_starts_at_zero_and_the_peak_is_lr(kind):
    schedule = construct(SCHEDULES, {"kind": kind, "warmup_updates": 10}, FACTS, "schedule")
    values = rates(schedule, range(1, 101))
    assert all(value > 0 for value in values)
    assert max(values) == values[9]
    assert values[9] == pytest.approx((64 * 10) ** -0.5 if kind == "noam" else 0.001)


def test_updates_are_numbered_from_one():
    with pytest.raises(ValueError, match="numbered from 1, not 0"):
        Constant(1.0).rate(0)


def test_bad_settings_are_refused_by_name():
    with pytest.raises(UserError, match="warmup_updates must be at least 1"):
        construct(SCHEDULES, {"kind": "inverse_sqrt", "warmup_updates": 0}, FACTS, "schedule")
    with pytest.raises(UserError, match=r"schedule.floor.* means nothing with schedule=constant"):
        construct(SCHEDULES, {"kind": "constant", "floor": 0.1}, FACTS, "schedule")
    with pytest.raises(UserError, match=r'schedule.kind cannot be "cosin"; did you mean "cosine"'):
        construct(SCHEDULES, {"kind": "cosin"}, FACTS, "schedule")


@pytest.mark.parametrize("kind", ["cosine", "linear"])
@pytest.mark.parametrize("floor", [-5, -0.001, 1.001, 5])
def test_a_floor_that_is_no_share_of_the_peak_is_refused(kind: str, floor: float) -> None:
    sentence = f"schedule={kind}: floor is {float(floor)}, but must be a share of the peak: at least 0"
    with pytest.raises(UserError, match=sentence):
        construct(SCHEDULES, {"kind": kind, "floor": floor}, FACTS, "schedule")


@pytest.mark.parametrize("kind", ["cosine", "linear"])
@pytest.mark.parametrize("floor", [0, 1])
def test_the_ends_of_the_range_of_floor_are_what_they_say(kind: str, floor: float) -> None:
    schedule = construct(SCHEDULES, {"kind": kind, "floor": floor, "warmup_updates": 4}, FACTS, "schedule")
    assert schedule.rate(100) == pytest.approx(0.001 * floor)
