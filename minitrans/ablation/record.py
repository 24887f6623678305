"""``study.json``: what a study is and how its cells stand; with the run folders, all that a report needs."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from minitrans.ablation.cells import Cell
from minitrans.ablation.claims import lock
from minitrans.ablation.folder import DONE, State, StudyFolder
from minitrans.ablation.study import Study
from minitrans.ablation.tuning import Choice, Trial
from minitrans.errors import UserError
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


def refuse_left_out(folder: StudyFolder, study: Study) -> None:
    """Stop where the folder's last report holds variants or seeds of which this call would make nothing.

    A record that cannot be read holds none.
    """
    try:
        old = json.loads(folder.record.read_text(encoding="utf8"))
        done = {(cell["variant"], cell["seed"]) for cell in old["cells"] if cell["state"] == DONE}
    except (OSError, ValueError, KeyError, TypeError):
        return
    variants = [variant.name for variant in study.variants]
    lost = list(dict.fromkeys(variant for variant, _ in done if variant not in variants))
    seeds = sorted({seed for _, seed in done if seed not in study.seeds})
    left_out = [
        *([f"the variants {', '.join(sorted(lost))}"] if lost else []),
        *([f"the seeds {', '.join(map(str, seeds))}"] if seeds else []),
    ]
    if left_out:
        raise UserError(
            f"{folder.path} holds a study with {' and '.join(left_out)}, which its report would lose; to "
            "extend it, type those too; for another study, give another study_dir; to leave them out, "
            f"delete {folder.record}"
        )


def write_record(folder: StudyFolder, content: Mapping[str, Any]) -> None:
    """Write ``study.json``, whole or not at all, one runner after another."""
    with lock(folder.path / "claims" / "record"):
        write_json(folder.record, content)
