"""Budgets: how many updates they are enough for, in cells, plan, record and report, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from minitrans.ablation.budget import MOST_UPDATES, countable, told, updates_within
from minitrans.ablation.cells import CellMaker
from minitrans.ablation.fairness import costs, unfair
from minitrans.ablation.report import write
from minitrans.ablation.results import load
from minitrans.ablation.study import Budget, Study, Variant, refuse_two_ends, study_of, within
from minitrans.analysis.flops import training_flops
from minitrans.config import TrainConfig
from minitrans.errors import UserError
from minitrans.training.prepare import prepare
from tests.ablation.cases import MadeUpMachine, composer, maker_of, record, said, session_of
from tests.ablation.studies import StudyBuilder, noisy
from tests.training.tiny import WORDS, changed, tiny_experiment, write_rows

THREE = [["eins", "zwei", "drei"], ["acht", "vier", "neun"], ["drei", "sechs", "eins"], ["vier"] * 3]
# FLOPs of a row of 4 tokens a side, by hand: one layer a side, D = 16, F = 32, 11 entries; backward costs
# twice what forward does
PROJECTIONS, ATTENTION = 4 * 2 * 4 * 16 * 16, 2 * 2 * 4 * 4 * 16
FFN, OUTPUT = 2 * 2 * 4 * 16 * 32, 2 * 4 * 16 * 11
ROW = 3 * (PROJECTIONS + ATTENTION + FFN + 2 * (PROJECTIONS + ATTENTION) + FFN + OUTPUT)


@pytest.fixture(scope="module")
def even(tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    """4 pairs of 4 tokens a side (end tokens counted), 2 an update: 8 target tokens, 2 updates an epoch."""
    return experiment(tmp_path_factory.mktemp("even"), THREE)


def experiment(folder: Path, rows: list[list[str]]) -> TrainConfig:
    """The tiny experiment on other training pairs, 2 an update."""
    config = tiny_experiment(folder)
    files = write_rows(folder, "train", rows)
    return changed(config, {"data.train": files, "training.update_sentences": 2})


def tokens(amount: float, config: TrainConfig) -> int:
    return updates_within(Budget("tokens", amount), config)


@pytest.mark.parametrize(("amount", "updates"), [(8, 1), (15.9, 1), (16, 2), (39, 4), (40, 5), (800, 100)])
def test_the_most_updates_within_so_many_target_tokens(
    amount: float, updates: int, even: TrainConfig
) -> None:
    assert tokens(amount, even) == updates


def test_updates_of_unlike_size_are_added_up_as_the_plan_has_them(tmp_path: Path) -> None:
    """Updates of 2 x 6 and 2 x 2 tokens, either first: 31 hold an epoch of 16 and the next update."""
    config = experiment(tmp_path, [WORDS[:5], ["eins"], WORDS[1:6], ["acht"]])
    assert [tokens(amount, config) for amount in (16, 31, 32)] == [2, 3, 4]


def test_where_the_training_would_end_of_itself_plays_no_part(even: TrainConfig) -> None:
    for changes in ({"training.max_updates": 1}, {"training.max_epochs": 1}, {"training.leak_test": True}):
        assert tokens(40, changed(even, changes)) == 5


@pytest.mark.parametrize(("amount", "updates"), [(2 * ROW, 1), (4 * ROW - 1, 1), (4 * ROW, 2), (11 * ROW, 5)])
def test_the_most_updates_within_so_many_operations(amount: int, updates: int, even: TrainConfig) -> None:
    assert updates_within(Budget("flops", amount), even) == updates


def test_operations_are_those_that_the_report_tells(tiny: TrainConfig) -> None:
    """Rows of many lengths, 4 an update cut into two micro-batches, over two epochs."""
    config = changed(countable(tiny), {"training.accumulate": 2, "training.max_updates": 15})
    material = prepare(config)
    spent = training_flops(material.model, material.run_plan, 13)
    assert updates_within(Budget("flops", spent), config) == 13
    assert updates_within(Budget("flops", spent - 1), config) == 12


@pytest.mark.parametrize(
    ("budget", "sentence"),
    [
        (
            Budget("tokens", 7),
            "budget.tokens=7 is less than the first update, which takes 8 target tokens; raise it, or lower "
            "the size of an update",
        ),
        (
            Budget("flops", 1000),
            "budget.flops=1000 is less than the first update, which takes 2.726e+05 training FLOPs; raise "
            "it, or lower the size of an update",
        ),
        (
            Budget("tokens", 8 * MOST_UPDATES + 1),
            "budget.tokens=8e+06 is more than 1,000,000 updates like the first, which takes 8 target tokens; "
            "lower it",
        ),
    ],
)
def test_budgets_of_no_update_and_of_too_many_are_refused(
    budget: Budget, sentence: str, even: TrainConfig
) -> None:
    with pytest.raises(UserError) as error:
        updates_within(budget, even)
    assert str(error.value) == sentence


# -- in a study ------------------------------------------------------------------------

VARIANTS = (
    Variant("base"),
    Variant("one", ("training.update_sentences=1",), "base"),  # 4 target tokens an update
    Variant("three heads", ("model.num_heads=3",), "base"),  # 16 is no multiple of 3
)


def study(budget: Budget | None, *variants: Variant, tune: str | None = None) -> Study:
    equal = ("parameters", "flops", "updates")
    return within(Study("small", "Enough?", (), variants, (2, 1), equal=equal, tune=tune), budget)


def test_what_the_budget_is_of_is_held_equal_and_nothing_else_that_training_spends() -> None:
    assert study(Budget("tokens", 9)).equal == ("parameters", "tokens")
    assert study(Budget("flops", 9)).equal == ("parameters", "flops")
    assert within(study(Budget("flops", 9)), Budget("tokens", 9)).equal == ("parameters", "tokens")
    assert study(None).equal == ("parameters", "flops", "updates")


def test_each_variant_has_its_own_number_of_updates_in_all_its_seeds(even: TrainConfig) -> None:
    maker = maker_of(study(Budget("tokens", 42), *VARIANTS), even)
    cells = maker.cells({"one": "optimizer.lr=0.5"})
    ends = [(c.variant, c.seed, c.config.training.max_updates if c.config else 0) for c in cells]
    assert ends == [
        ("base", 2, 5), ("one", 2, 10), ("three heads", 2, 0),
        ("base", 1, 5), ("one", 1, 10), ("three heads", 1, 0),
    ]  # fmt: skip
    assert dict(maker.updates) == {"base": 5, "one": 10}
    assert cells[1].command == (
        "python scripts/train.py training.update_sentences=1 optimizer.lr=0.5 training.max_updates=10 seed=2"
    )
    assert cells[2].error is not None and cells[2].error.startswith("model.d_model=16 is not a multiple")


def test_a_cell_of_a_budget_is_that_of_its_number_of_updates(even: TrainConfig) -> None:
    (cell,) = maker_of(replace(study(Budget("tokens", 42), VARIANTS[0]), seeds=(1,)), even).cells({})
    typed = replace(study(None, VARIANTS[0]), seeds=(1,))
    (same,) = CellMaker(typed, ["training.max_updates=5"], composer(even), "code").cells({})
    assert cell.address == same.address


def test_the_plan_and_the_record_tell_the_budget(even: TrainConfig, tmp_path: Path) -> None:
    session = session_of(study(Budget("tokens", 42), *VARIANTS[:2]), even, tmp_path, MadeUpMachine())
    session.run()
    assert said(session).startswith(
        "counting the updates that the budget is enough for\n"
        "Enough?\n"
        "small: 2 variants x 2 seeds = 4 cells; 0 done\n"
        'budget: 42 target tokens a cell, and the most updates within it: 5 of "base"; 10 of "one"\n'
    )
    content = record(tmp_path)
    assert content["budget"] == {"quantity": "tokens", "amount": 42, "updates": {"base": 5, "one": 10}}
    assert content["equal"] == ["parameters", "tokens"]


def test_the_cells_of_a_search_for_rates_have_the_same_budget(even: TrainConfig, tmp_path: Path) -> None:
    machine = MadeUpMachine()
    asked = study(Budget("tokens", 42), *VARIANTS[:2], tune="lr")
    session = session_of(asked, even, tmp_path, machine, factors=(1.0, 3.0))
    session.run()
    ends = [(t.variant, t.cell.config.training.max_updates) for t in session.tried if t.cell.config]
    assert ends == [("base", 5), ("base", 5), ("one", 10), ("one", 10)]


def test_a_budget_of_no_update_is_one_sentence_and_no_cell_runs(even: TrainConfig, tmp_path: Path) -> None:
    machine, folder = MadeUpMachine(), tmp_path / "study"
    session = session_of(study(Budget("tokens", 3), *VARIANTS[:2]), even, folder, machine)
    with pytest.raises(UserError, match=r"^budget.tokens=3 is less than the first update, which takes 8 "):
        session.run()
    assert machine.started == [] and not folder.exists()


def test_variants_with_one_number_of_updates_are_told_at_once() -> None:
    assert told(Budget("flops", 6.4e12), {"a": 1200, "b, c": 1200}) == (
        "6.4e+12 training FLOPs a cell, and the most updates within it: 1,200 of every variant"
    )


# -- as a study states it --------------------------------------------------------------


def stated(**content: Any) -> Study:
    return study_of("mine", {"equal": ["parameters", "updates"], **content}, "mine.yaml")


def test_a_file_states_a_budget() -> None:
    found = stated(budget={"flops": "2e12"})
    assert (found.budget, found.equal) == (Budget("flops", 2e12), ("parameters", "flops"))
    assert stated().budget is None


def test_two_budgets_are_refused() -> None:
    with pytest.raises(UserError) as error:
        stated(budget={"flops": 2e12, "tokens": 10})
    assert str(error.value) == "mine.yaml: budget.tokens and budget.flops are two budgets; leave one out"


@pytest.mark.parametrize(
    ("content", "typed", "where", "word"),
    [
        ({}, ["model=tiny", "training.max_updates=20"], "base", "training.max_updates=20"),
        ({"base": ["training.max_epochs=2"]}, [], "base", "training.max_epochs=2"),
        (
            {"variants": {"long": {"overrides": ["training.max_updates=9"]}}},
            [],
            "long",
            "training.max_updates=9",
        ),
    ],
)
def test_a_budget_and_a_number_of_updates_are_two_ends(
    content: dict[str, Any], typed: list[str], where: str, word: str
) -> None:
    with pytest.raises(UserError) as error:
        refuse_two_ends(stated(budget={"tokens": 10}, **content), typed)
    assert str(error.value) == (
        f'study mine, "{where}": {word} and budget.tokens both say when a cell ends; leave one of them out'
    )
    refuse_two_ends(stated(**content), typed)  # without a budget there is one end


# -- in the report ---------------------------------------------------------------------


@pytest.fixture
def spent(tmp_path: Path) -> StudyBuilder:
    """60,000 tokens in 300 updates, the same in 450, and 3 % more tokens."""
    names = {"base": None, "small steps": "base", "more": "base"}
    builder = StudyBuilder(tmp_path / "study", tmp_path / "text", names)
    builder.done("base", 1, noisy(0.1, 1))
    builder.done("small steps", 1, noisy(0.2, 2), {"updates": 450})
    builder.done("more", 1, noisy(0.2, 3), {"updates": 309, "target_tokens": 61_800})
    updates = {"base": 300, "small steps": 450, "more": 309}
    builder.changes = {
        "equal": ["parameters", "tokens"],
        "budget": {"quantity": "tokens", "amount": 60_000.0, "updates": updates},
    }
    return builder


def test_the_report_flags_by_the_budget_and_tells_it(spent: StudyBuilder) -> None:
    folder = spent.write()
    results = load(folder)
    flags = unfair(results, costs(results))
    assert [(flag.variant, flag.quantity) for flag in flags] == [("more", "tokens")]
    assert flags[0].excess == pytest.approx(0.03)
    write(folder)
    text = (folder / "report.md").read_text(encoding="utf8")
    assert (
        "The budget is 60,000 target tokens a cell, and the most updates within it: "
        '300 of "base"; 309 of "more"; 450 of "small steps".'
    ) in text
    told_of = json.loads((folder / "results.json").read_text(encoding="utf8"))["budget"]
    assert told_of == spent.changes["budget"]
