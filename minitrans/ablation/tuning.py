"""``tune=lr``: the same small search for a learning rate in every variant, before its seeds run.

The rates are the variant's own times a few factors, the same for all; a variant may not set the rate
itself, so that all variants with one optimizer try one list. They are compared by the validation split, on
one seed: the first of the study, unless told otherwise. The cell of the chosen rate is then at once that
seed's cell of the study.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from minitrans.ablation.cells import Cell, CellMaker
from minitrans.ablation.study import Study, Variant
from minitrans.config import TrainConfig
from minitrans.errors import UserError


@dataclass(frozen=True)
class Trial:
    """One rate of one variant.

    Attributes
    ----------
    variant
        Its name.
    key, value
        The setting and its value.
    word
        The setting as typed to ``train``; None for the variant's own rate.
    cell
        The run that shows what it is worth.
    """

    variant: str
    key: str
    value: float
    word: str | None
    cell: Cell


@dataclass(frozen=True)
class Choice:
    """The trial that was best for a variant, and whether it lies at the end of the list."""

    best: Trial
    at_the_end: bool


def rate_key(config: TrainConfig) -> str:
    """The setting that is the learning rate: under ``schedule=noam`` it is that schedule's factor."""
    return "schedule.factor" if config.schedule.get("kind") == "noam" else "optimizer.lr"


def trials(study: Study, maker: CellMaker, factors: Sequence[float], seed: int) -> list[Trial]:
    """What ``tune=lr`` runs: for each variant a cell a factor.

    Parameters
    ----------
    study
        The study.
    maker
        Of its cells.
    factors
        On the variant's own rate.
    seed
        Of all trials.

    Returns
    -------
    The trials; none for a variant whose settings contradict each other.

    Raises
    ------
    UserError
        A variant sets the rate that would be searched, or there is no rate to choose, or one twice.
    """
    if not factors or len(set(factors)) < len(factors):
        raise UserError(f"tune_factors={list(factors)} is no list to choose from: state some, each once")
    found = []
    for variant in study.variants:
        plain = maker.cell(variant, seed)
        if plain.config is not None:
            _refuse_own_rate(variant, rate_key(plain.config))
            found += [_trial(variant, plain.config, maker, factor, seed) for factor in factors]
    return found


def _trial(variant: Variant, config: TrainConfig, maker: CellMaker, factor: float, seed: int) -> Trial:
    key = rate_key(config)
    section, name = key.split(".")
    own = float(getattr(config, section)[name])
    if factor == 1:  # the very cell that the study has without a search
        return Trial(variant.name, key, own, None, maker.cell(variant, seed))
    value = float(f"{own * factor:.4g}")
    word = f"{key}={value!r}"
    return Trial(variant.name, key, value, word, maker.cell(variant, seed, word))


def _refuse_own_rate(variant: Variant, key: str) -> None:
    if any(word.partition("=")[0] == key for word in variant.overrides):
        raise UserError(
            f'the variant "{variant.name}" sets {key}, which tune=lr searches; take it out, or type tune=none'
        )


def choose(tried: Sequence[Trial], values: Mapping[str, float], higher_is_better: bool) -> dict[str, Choice]:
    """The best trial of each variant.

    Parameters
    ----------
    tried
        The trials.
    values
        Address -> what validation gave, of the trials that are done.
    higher_is_better
        Whether the validation metric is one of which more is better.

    Returns
    -------
    Variant -> choice. A variant of which no trial is done is left out. Among equals the first is taken.
    """
    chosen = {}
    for name in dict.fromkeys(trial.variant for trial in tried):
        own = [trial for trial in tried if trial.variant == name]
        done = [trial for trial in own if trial.cell.address in values]
        if done:
            sign = 1 if higher_is_better else -1
            best = max(done, key=lambda trial: sign * values[trial.cell.address])
            rates = [trial.value for trial in own]
            chosen[name] = Choice(best, len(own) > 1 and best.value in (min(rates), max(rates)))
    return chosen
