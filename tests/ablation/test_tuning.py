"""The search for learning rates: the same for every variant, by validation, in cells like any other."""

import math
from pathlib import Path

import pytest

from minitrans.ablation.study import Variant
from minitrans.ablation.tuning import Choice, Trial, choose, rate_key, trials
from minitrans.config import TrainConfig
from minitrans.errors import StoppedEarlyError, UserError
from tests.ablation.cases import FOUR, MadeUpMachine, maker_of, record, said, session_of, states, study_of
from tests.training.tiny import changed


def trial(variant: str, value: float, tiny: TrainConfig) -> Trial:
    maker = maker_of(study_of(Variant(variant)), tiny)
    word = f"optimizer.lr={value}"
    return Trial(variant, "optimizer.lr", value, word, maker.cell(Variant(variant), 1, word))


def test_every_variant_tries_the_same_rates_with_one_seed(tiny: TrainConfig) -> None:
    study = study_of(*FOUR[:2], seeds=(5, 6), tune="lr")
    maker = maker_of(study, tiny)
    found = trials(study, maker, (0.3, 1.0, 3.0), 5)
    assert [(one.variant, one.value, one.word, one.cell.seed) for one in found] == [
        (name, value, word, 5)
        for name in ("base", "d8")
        for value, word in ((0.003, "optimizer.lr=0.003"), (0.01, None), (0.03, "optimizer.lr=0.03"))
    ]
    assert found[1].cell == maker.cells({})[0]


def test_under_noam_the_rate_is_the_schedules_factor(tiny: TrainConfig) -> None:
    noam = changed(tiny, {"schedule": {"kind": "noam", "warmup_updates": 4, "factor": 2.0}})
    study = study_of(Variant("base"), tune="lr")
    (one,) = trials(study, maker_of(study, noam), (0.5,), 1)
    assert (one.key, one.value, one.word) == ("schedule.factor", 1.0, "schedule.factor=1.0")
    assert rate_key(tiny) == "optimizer.lr"


def test_a_variant_that_sets_the_rate_cannot_be_searched(tiny: TrainConfig) -> None:
    study = study_of(Variant("base"), Variant("hot", ("optimizer.lr=1.0",), "base"), tune="lr")
    with pytest.raises(
        UserError,
        match=r'^the variant "hot" sets optimizer\.lr, which tune=lr searches; '
        r"take it out, or type tune=none$",
    ):
        trials(study, maker_of(study, tiny), (0.3, 1.0), 1)


@pytest.mark.parametrize("factors", [(), (1.0, 1.0)])
def test_a_list_of_rates_without_a_choice_is_refused(tiny: TrainConfig, factors: tuple[float, ...]) -> None:
    study = study_of(Variant("base"), tune="lr")
    with pytest.raises(
        UserError, match=r"^tune_factors=\[.*\] is no list to choose from: state some, each once$"
    ):
        trials(study, maker_of(study, tiny), factors, 1)


def test_where_every_rate_fails_the_cells_run_at_their_own(tiny: TrainConfig, tmp_path: Path) -> None:
    def validation(config: TrainConfig) -> float:
        return math.nan

    session = session_of(study_of(*FOUR[:2], tune="lr"), tiny, tmp_path, MadeUpMachine(validation=validation))
    session.run()
    assert states(tmp_path) == [("base", 1, "done"), ("d8", 1, "done")]


def test_the_best_by_validation_is_chosen_whichever_way_is_better(tiny: TrainConfig) -> None:
    tried = [trial("a", value, tiny) for value in (0.1, 0.2, 0.3)]
    values = dict(zip([one.cell.address for one in tried], (10.0, 30.0, 20.0), strict=True))
    assert choose(tried, values, higher_is_better=True) == {"a": Choice(tried[1], at_the_end=False)}
    assert choose(tried, values, higher_is_better=False) == {"a": Choice(tried[0], at_the_end=True)}


def test_among_equals_the_first_and_among_the_failed_none(tiny: TrainConfig) -> None:
    tried = [trial("a", 0.1, tiny), trial("a", 0.2, tiny), trial("b", 0.3, tiny)]
    values = {tried[0].cell.address: 5.0, tried[1].cell.address: 5.0}
    assert choose(tried, values, higher_is_better=True) == {"a": Choice(tried[0], at_the_end=True)}


def validation(config: TrainConfig) -> float:
    """The base likes 0.01, a narrow head 0.03."""
    best = 0.03 if config.model.d_k == 8 else 0.01
    return 10 - abs(config.optimizer["lr"] - best)


def test_a_study_with_a_search_runs_each_variant_at_its_best_rate(tiny: TrainConfig, tmp_path: Path) -> None:
    machine = MadeUpMachine(validation=validation)
    session = session_of(study_of(*FOUR[:2], seeds=(1, 2), tune="lr"), tiny, tmp_path, machine)
    session.run()
    # 3 rates x 2 variants with seed 1, of which the best are the study's own cells; then seed 2
    assert machine.started == [(name, 1) for name in ("base", "d8") for _ in range(3)] + [
        ("base", 2),
        ("d8", 2),
    ]
    content = record(tmp_path)
    assert content["tune"] == "lr"
    assert [variant["tuned"] for variant in content["variants"]] == [
        {"optimizer.lr": 0.01},
        {"optimizer.lr": 0.03},
    ]
    assert [(one["variant"], one["rate"], one["validation"], one["state"]) for one in content["tuning"]] == [
        (name, {"optimizer.lr": rate}, 10 - abs(rate - best), "done")
        for name, best in (("base", 0.01), ("d8", 0.03))
        for rate in (0.003, 0.01, 0.03)
    ]
    rates = [cell["command"].split("optimizer.lr=")[-1].split()[0] for cell in content["cells"]]
    assert rates[1] == rates[3] == "0.03"
    assert "optimizer.lr" not in content["cells"][0]["command"]
    assert "d8: optimizer.lr=0.03 is the best rate tried, the end of the list" in said(session)
    assert "base: optimizer.lr=0.01 is the best rate tried\n" in said(session)


def test_a_search_that_was_stopped_goes_on_where_it_was(tiny: TrainConfig, tmp_path: Path) -> None:
    study = study_of(*FOUR[:2], seeds=(1,), tune="lr")
    machine = MadeUpMachine(looks=3, validation=validation)
    session = session_of(study, tiny, tmp_path, machine, max_hours=1e-9)
    with pytest.raises(StoppedEarlyError):
        session.run()
    assert [cell["folder"] for cell in record(tmp_path)["cells"]] == ["", ""]
    assert states(tmp_path) == [("base", 1, "waiting"), ("d8", 1, "waiting")]
    machine = MadeUpMachine(validation=validation)
    session_of(study, tiny, tmp_path, machine).run()
    assert len(machine.started) == 6
    assert states(tmp_path) == [("base", 1, "done"), ("d8", 1, "done")]


def test_a_variant_of_which_every_rate_fails_is_named(tiny: TrainConfig, tmp_path: Path) -> None:
    machine = MadeUpMachine(failing={"d8": "the loss is not a number"}, validation=validation)
    session = session_of(study_of(*FOUR[:2], tune="lr"), tiny, tmp_path, machine)
    with pytest.raises(UserError, match=r"^1 of 2 cells failed, each told above with its log"):
        session.run()
    assert states(tmp_path) == [("base", 1, "done"), ("d8", 1, "failed")]
    assert "failed: d8, seed 1: the loss is not a number (log: logs/" in said(session)
