"""What a study folder holds when its cells have run: ``study.json`` and the run folder of each cell."""

import json
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from minitrans.ablation.study import Budget
from minitrans.config import TrainConfig, construct, parse
from minitrans.data.corpus import SOURCES
from minitrans.errors import UserError, nearest
from minitrans.evaluation.references import references
from minitrans.run import RunFolder
from minitrans.training.curves import Points, points, read_rows

DONE = "done"
LOSSES = ("loss", "perplexity")
"""Scores that stand beside the others in ``result.json``; they have no sentences to draw from."""
LESS_IS_BETTER = ("ter", *LOSSES)


@dataclass(frozen=True)
class Variant:
    """One configuration of a study.

    Attributes
    ----------
    overrides
        What it changes of the base, as typed.
    against
        The variant that it is compared with; None: with none.
    expect
        What the study predicts of it beside that one: no difference, worse or better; None: nothing.
    tuned
        Settings that a search gave it.
    """

    name: str
    overrides: tuple[str, ...]
    against: str | None
    expect: str | None
    tuned: Mapping[str, Any]


@dataclass(frozen=True)
class Trial:
    """One cell of the search for a variant's settings, and what validation gave (None: not yet)."""

    variant: str
    setting: Mapping[str, Any]
    state: str
    validation: float | None


@dataclass(frozen=True)
class Study:
    """What was asked, and of what.

    Attributes
    ----------
    budget, updates
        What the training of each cell may cost, and variant -> the updates that it is enough for.
    """

    name: str
    question: str
    base: tuple[str, ...]
    metric: str
    equal: tuple[str, ...]
    prediction: str
    source: str
    tune: str | None
    command: str
    variants: tuple[Variant, ...]
    trials: tuple[Trial, ...]
    budget: Budget | None = None
    updates: Mapping[str, int] = field(default_factory=dict)

    def named(self, name: str) -> Variant:
        """The variant of that name."""
        return next(variant for variant in self.variants if variant.name == name)


@dataclass(frozen=True)
class Outcome:
    """What a finished cell gave.

    Attributes
    ----------
    score
        Of the study's metric, on the test split.
    split, sentences
        That split, and its size.
    other_splits
        Further test split -> score.
    parameters, updates, target_tokens, seconds
        Of the training.
    tokens_per_s
        Target tokens a second while training, the median of the rows of ``metrics.csv``.
    leak
        The decoder saw the future in training, as it was configured to.
    train, valid
        Curves: training nll, and on validation the study's metric where it was measured, else nll.
    by_depth, by_length
        Nesting depth -> exact match; words of the source -> BLEU; with the sentences of each.
    tokenize, data
        BLEU's tokenizer, and file -> SHA-256 of the test split.
    """

    score: float
    split: str
    sentences: int
    other_splits: Mapping[str, float]
    parameters: int
    updates: int
    target_tokens: int
    seconds: float
    tokens_per_s: float | None
    leak: bool
    train: Points = field(repr=False)
    valid: Points = field(repr=False)
    by_depth: Mapping[str, tuple[float, int]]
    by_length: Mapping[str, tuple[float, int]]
    tokenize: str
    data: Mapping[str, str]


@dataclass(frozen=True)
class Cell:
    """One variant with one seed.

    Attributes
    ----------
    state
        done, failed, running or waiting.
    error
        Why it has no outcome, where that is known.
    log
        What its process printed (None: not kept).
    command
        The line that runs this cell alone.
    outcome
        None where the cell is not done, or where its score is no number.
    """

    variant: str
    seed: int
    address: str
    folder: Path
    state: str
    error: str | None
    log: Path | None
    command: str
    outcome: Outcome | None

    @property
    def config(self) -> TrainConfig:
        """The resolved configuration in its run folder."""
        path = self.folder / "config.yaml"
        return parse(TrainConfig, yaml.safe_load(_text(path)), str(path))

    @property
    def hypotheses(self) -> tuple[str, ...]:
        """Its translations of the test split, line by line."""
        assert self.outcome is not None
        path = self.folder / "translations" / f"{self.outcome.split}.txt"
        return tuple(_text(path).split("\n")[:-1])


@dataclass(frozen=True)
class Results:
    """A study and its cells."""

    folder: Path
    study: Study
    cells: tuple[Cell, ...]

    def of(self, variant: str) -> list[Cell]:
        """All cells of a variant."""
        return [cell for cell in self.cells if cell.variant == variant]

    def finished(self, variant: str) -> dict[int, Cell]:
        """Seed -> cell with an outcome, by seed."""
        found = {cell.seed: cell for cell in self.of(variant) if cell.outcome is not None}
        return dict(sorted(found.items()))

    def scores(self, variant: str) -> dict[int, float]:
        """Seed -> score."""
        return {seed: _outcome(cell).score for seed, cell in self.finished(variant).items()}

    def outcomes(self, variant: str) -> list[Outcome]:
        """By seed."""
        return [_outcome(cell) for cell in self.finished(variant).values()]

    @property
    def missing(self) -> list[Cell]:
        """Cells without an outcome."""
        return [cell for cell in self.cells if cell.outcome is None]

    @property
    def all_outcomes(self) -> list[Outcome]:
        """Of all cells that have one."""
        return [cell.outcome for cell in self.cells if cell.outcome is not None]


def alike(one: Cell, other: Cell) -> bool:
    """Whether two finished cells were scored on the same text in the same way, so that scores compare."""
    return _scored_on(one) == _scored_on(other)


def _scored_on(cell: Cell) -> tuple[str, tuple[str, ...]]:
    outcome = _outcome(cell)
    return outcome.tokenize, tuple(sorted(outcome.data.values()))


def references_of(cell: Cell) -> tuple[str, ...]:
    """The references that a finished cell was scored on.

    Raises
    ------
    UserError
        Its data is not there any more as it was.
    """
    corpus = construct(SOURCES, cell.config.data, {}, "data").load(_outcome(cell).split)
    if sorted(corpus.hashes.values()) != sorted(_outcome(cell).data.values()):
        raise UserError(f"{corpus.origin} is not any more what {cell.folder} was scored on")
    return references(corpus)


def _outcome(cell: Cell) -> Outcome:
    assert cell.outcome is not None
    return cell.outcome


# --------------------------------------------------------------------------------------
# Reading
# --------------------------------------------------------------------------------------


def load(study_dir: str | Path) -> Results:
    """Read a study folder.

    Raises
    ------
    UserError
        There is no ``study.json``, or it lacks a key or names a variant that it does not have. (A done cell
        that cannot be read has no outcome, and says why.)
    """
    folder = Path(study_dir).resolve()
    record = _json(folder / "study.json")
    try:
        study = _study(record)
        _check_names(study, folder)
        cells = tuple(_cell(folder, study, cell) for cell in record["cells"])
    except KeyError as error:
        raise UserError(f"{folder / 'study.json'} lacks the key {error}; run the study again") from error
    return Results(folder, study, cells)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf8")
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}; run the study again") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start})") from error


def _json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(_text(path)))
    except ValueError as error:
        raise UserError(f"{path} is no JSON: {error}; run the study again") from error


def _study(record: Mapping[str, Any]) -> Study:
    budget = record.get("budget")
    return Study(
        name=record["name"],
        question=record["question"],
        base=tuple(record["base"]),
        metric=record["metric"],
        equal=tuple(record["equal"]),
        prediction=(record["prediction"] or {}).get("text", ""),
        source=(record["prediction"] or {}).get("source", ""),
        tune=record["tune"],
        command=record["command"],
        variants=tuple(
            Variant(
                name=variant["name"],
                overrides=tuple(variant["overrides"]),
                against=variant["against"],
                expect=variant.get("expect"),
                tuned=variant.get("tuned") or {},
            )
            for variant in record["variants"]
        ),
        trials=tuple(
            Trial(trial["variant"], trial["rate"], trial["state"], trial["validation"])
            for trial in record.get("tuning", ())
        ),
        budget=Budget(budget["quantity"], budget["amount"]) if budget else None,
        updates=budget["updates"] if budget else {},
    )


def _check_names(study: Study, folder: Path) -> None:
    names = [variant.name for variant in study.variants]
    for variant in study.variants:
        if variant.against is not None and variant.against not in names:
            raise UserError(
                f'{folder / "study.json"}: {variant.name} is against "{variant.against}"'
                f"{nearest(variant.against, names)}"
            )


def _cell(folder: Path, study: Study, record: Mapping[str, Any]) -> Cell:
    run = RunFolder(folder / record["folder"])
    outcome, error = None, record["error"]
    if record["state"] == DONE:
        try:
            outcome = _read_outcome(run, study.metric)
        except UserError as unread:  # of one cell; the others can be compared without it
            error = str(unread)
        except KeyError as missing:
            error = f"{run.result} lacks the key {missing}"
        if outcome is not None and not math.isfinite(outcome.score):
            error = f"its {study.metric} is {outcome.score}"
            outcome = None
    return Cell(
        variant=record["variant"],
        seed=record["seed"],
        address=record["address"],
        folder=run.path,
        state=record["state"],
        error=error,
        log=folder / record["log"] if record["log"] else None,
        command=record["command"],
        outcome=outcome,
    )


def _read_outcome(run: RunFolder, metric: str) -> Outcome:
    result = _json(run.result)
    tests = result["tests"]
    if not tests:
        raise UserError(
            f"{run.result} has no test split, and a study compares variants on one; set data.test"
        )
    split = "test" if "test" in tests else next(iter(tests))
    card, rows = tests[split], read_rows(run.metrics)
    scores = {name: _score(other, metric, run.result) for name, other in tests.items()}
    speeds = [value for _, value in points(rows, "train", "target_tokens_per_s")]
    by_depth, by_length = card.get("exact_match_by_depth", {}), card["bleu_by_length"]
    return Outcome(
        score=scores.pop(split),
        split=split,
        sentences=card["sentences"],
        other_splits=scores,
        parameters=result["parameters"],
        updates=result["updates"],
        target_tokens=result["target_tokens"],
        seconds=result["seconds"],
        tokens_per_s=statistics.median(speeds) if speeds else None,
        leak=result.get("leak", False),
        train=points(rows, "train", "nll") or points(rows, "train", "loss"),
        valid=points(rows, "valid", metric if metric == "bleu" else "nll"),
        by_depth={depth: (of["exact_match"], of["sentences"]) for depth, of in by_depth.items()},
        by_length={words: (of["bleu"], of["sentences"]) for words, of in by_length.items()},
        tokenize=card["bleu_tokenize"],
        data=card["data"],
    )


def _score(card: Mapping[str, Any], metric: str, path: Path) -> float:
    if metric in LOSSES:
        return float(card[metric])
    if metric not in card["scores"]:
        raise UserError(
            f'the study compares by "{metric}", which {path} does not hold'
            f"{nearest(metric, [*card['scores'], *LOSSES])}"
        )
    return float(card["scores"][metric]["value"])
