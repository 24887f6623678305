"""A budget of each cell, in target tokens or in training FLOPs, and the updates that it is enough for.

A cell makes the most updates whose cost stays within the budget. They are counted from the variant's own
batch plan and model, with the base's seed, so that all seeds of a variant make the same number of updates,
whichever of them a study has.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import accumulate, chain, takewhile

from minitrans.ablation.study import Budget, spent_in_words
from minitrans.analysis.flops import cost_of, shapes_of
from minitrans.config import TrainConfig, TrainerConfig
from minitrans.data.stream import RunPlan
from minitrans.errors import UserError
from minitrans.model.encoder_decoder import EncoderDecoder
from minitrans.training.prepare import prepare

MOST_UPDATES = 1_000_000
"""Updates that no cell makes: a budget for more is a slip."""


def countable(config: TrainConfig) -> TrainConfig:
    """The same training without its leak test, on this machine's processor, wherever it is to run."""
    here = TrainerConfig(accelerator="cpu", precision=config.trainer.precision)
    return replace(config, trainer=here, training=replace(config.training, leak_test=False))


def updates_within(budget: Budget, config: TrainConfig) -> int:
    """The most updates of a training that cost no more than the budget.

    Parameters
    ----------
    budget
        Of the training.
    config
        The training; where it ends of itself plays no part.

    Raises
    ------
    UserError
        The budget is less than the first update, or more than ``MOST_UPDATES`` such ones; or whatever keeps
        the training from starting.
    """
    config = countable(config)
    endless = replace(config.training, max_updates=MOST_UPDATES, max_epochs=None)
    material = prepare(replace(config, training=endless))
    count = {"tokens": _tokens, "flops": _flops}[budget.quantity]
    costs = count(material.model, material.run_plan)
    first = next(costs)
    if first > budget.amount:
        raise UserError(
            f"{budget.key}={budget.amount:g} is less than the first update, which takes "
            f"{spent_in_words(budget.quantity, first)}; raise it, or lower the size of an update"
        )
    if budget.amount > MOST_UPDATES * first:
        raise UserError(
            f"{budget.key}={budget.amount:g} is more than {MOST_UPDATES:,} updates like the first, which "
            f"takes {spent_in_words(budget.quantity, first)}; lower it"
        )
    spent = accumulate(chain([first], costs))
    return sum(1 for _ in takewhile(lambda total: total <= budget.amount, spent))


def _tokens(model: EncoderDecoder, run_plan: RunPlan) -> Iterator[int]:
    """The target tokens of each update, whatever the model is."""
    return (update.target_tokens for *_, update in run_plan.updates(0))


def _flops(model: EncoderDecoder, run_plan: RunPlan) -> Iterator[int]:
    """What each update costs, as :func:`minitrans.analysis.flops.training_flops` counts it."""
    try:
        cost = cost_of(model)
    except ValueError as error:
        raise UserError(f"budget.flops cannot be kept: {error}") from error
    for *_, update in run_plan.updates(0):
        yield sum(map(cost.of, shapes_of(run_plan, update)))


def told(budget: Budget, updates: Mapping[str, int]) -> str:
    """The budget, and the variants by the updates that it gives them, in words.

    Parameters
    ----------
    budget
        Of each cell.
    updates
        Variant -> updates; may lack some.
    """
    numbers = sorted(set(updates.values()))
    groups = {number: [name for name in updates if updates[name] == number] for number in numbers}
    if len(groups) == 1:
        given = f"{numbers[0]:,} of every variant"
    else:
        lists = {number: ", ".join(f'"{name}"' for name in names) for number, names in groups.items()}
        given = "; ".join(f"{number:,} of {names}" for number, names in lists.items())
    return f"{budget} a cell, and the most updates within it: {given}"
