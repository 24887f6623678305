"""``study.json``: what a study is and how its cells stand; with the run folders, all that a report needs."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from minitrans.ablation.cells import Cell
from minitrans.ablation.claims import lock
from minitrans.ablation.folder import State, StudyFolder
from minitrans.ablation.study import Study
from minitrans.ablation.tuning import Choice, Trial
from minitrans.run import write_json


def study_record(
    study: Study,
    base: Sequence[str],
    updates: Mapping[str, int],
    command: str,
    chosen: Mapping[str, Choice],
    cells: Sequence[Mapping[str, Any]],
    tried: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """The content of ``study.json``.

    Parameters
    ----------
    study
        The study.
    base
        The words of every cell: the study's and those typed.
    updates
        Variant -> what the study's budget gives it; empty where there is none.
    command
        The line that was typed.
    chosen
        Variant -> the tuned rate.
    cells, tried
        From :func:`cell_record` and :func:`trial_record`.
    """
    tuned = {name: {choice.best.key: choice.best.value} for name, choice in chosen.items()}
    return {
        "name": study.name,
        "question": study.question,
        "base": list(base),
        "metric": study.metric,
        "equal": list(study.equal),
        "prediction": asdict(study.prediction),
        "tune": study.tune,
        "budget": {**asdict(study.budget), "updates": dict(updates)} if study.budget else None,
        "command": command,
        "seeds": list(study.seeds),
        "variants": [
            {
                "name": variant.name,
                "overrides": list(variant.overrides),
                "against": variant.against,
                "expect": variant.expect,
                "tuned": tuned.get(variant.name),
            }
            for variant in study.variants
        ],
        "cells": list(cells),
        "tuning": list(tried),
    }


def cell_record(folder: StudyFolder, cell: Cell, state: State) -> dict[str, Any]:
    """One cell; its folder and log are relative to the study folder."""
    return {
        "variant": cell.variant,
        "seed": cell.seed,
        "address": cell.address,
        "folder": str(folder.run(cell).path.relative_to(folder.path)),
        "state": state.name,
        "error": state.error,
        "log": state.log,
        "command": cell.command,
    }


def unknown_cell_record(cell: Cell) -> dict[str, Any]:
    """A cell that waits for its learning rate: it has no address and no folder (empty) yet."""
    return {
        "variant": cell.variant,
        "seed": cell.seed,
        "address": "",
        "folder": "",
        "state": "waiting",
        "error": None,
        "log": None,
        "command": cell.command,
    }


def trial_record(folder: StudyFolder, trial: Trial, state: State, value: float | None) -> dict[str, Any]:
    """One cell of the search for a rate, with the rate and what validation gave (null: not yet)."""
    return {
        **cell_record(folder, trial.cell, state),
        "rate": {trial.key: trial.value},
        "validation": value,
    }


def write_record(folder: StudyFolder, content: Mapping[str, Any]) -> None:
    """Write ``study.json``, whole or not at all, one runner after another."""
    with lock(folder.path / "claims" / "record"):
        write_json(folder.record, content)
