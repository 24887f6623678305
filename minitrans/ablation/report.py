"""The report of a study: ``report.html``, ``report.md``, ``results.csv`` and ``results.json``.

Every figure and every sentence is computed from the run folders of the cells; writing it again, with more
cells done, writes all of it anew.
"""

import csv
import dataclasses
from pathlib import Path
from typing import Any

from minitrans.ablation import results
from minitrans.ablation.answer import answer
from minitrans.ablation.document import as_html, as_markdown
from minitrans.ablation.fairness import costs, unfair
from minitrans.ablation.page import Findings, document
from minitrans.ablation.results import Cell
from minitrans.ablation.statistics import Spread
from minitrans.checkpoint import write_whole
from minitrans.run import write_json

CELL_COLUMNS = (
    "variant",
    "seed",
    "state",
    "score",
    "parameters",
    "training_flops",
    "target_tokens",
    "updates",
    "target_tokens_per_s",
    "seconds",
    "leak",
    "error",
    "address",
    "folder",
    "command",
)


def write(study_dir: str | Path) -> Path:
    """Write the report of a study into its folder.

    Parameters
    ----------
    study_dir
        Holds ``study.json`` and the cells' run folders; cells may still be missing.

    Returns
    -------
    The path of ``report.html``.

    Raises
    ------
    UserError
        See :func:`minitrans.ablation.results.load`.
    """
    found = results.load(study_dir)
    spent = costs(found)
    findings = Findings(found, answer(found), spent, unfair(found, spent))
    page = document(findings)
    for name, text in (("report.html", as_html(page)), ("report.md", as_markdown(page))):
        _write_text(found.folder / name, text)
    write_json(found.folder / "results.json", as_dict(findings))
    _write_csv(found.folder / "results.csv", findings)
    return found.folder / "report.html"


def _write_text(path: Path, text: str) -> None:
    write_whole(path, lambda partial: partial.write_text(text, encoding="utf8"))


# --------------------------------------------------------------------------------------
# Tables for machines
# --------------------------------------------------------------------------------------


def as_dict(findings: Findings) -> dict[str, Any]:
    """Plain data: the content of ``results.json``."""
    study, answered = findings.results.study, findings.answer
    return {
        "study": study.name,
        "question": study.question,
        "answer": answered.sentence,
        "metric": study.metric,
        "base": list(study.base),
        "equal": list(study.equal),
        "tune": study.tune,
        "budget": {**dataclasses.asdict(study.budget), "updates": study.updates} if study.budget else None,
        "command": study.command,
        "prediction": {"text": study.prediction, "source": study.source, "verdict": answered.verdict},
        "variants": [_variant_dict(findings, variant.name) for variant in study.variants],
        "comparisons": [
            {**dataclasses.asdict(c), "found": c.found, "direction": c.direction, "verdict": c.verdict}
            for c in answered.comparisons
        ],
        "power": dataclasses.asdict(answered.power) if answered.power else None,
        "no_bootstrap": answered.no_bootstrap,
        "unfair": [dataclasses.asdict(flag) for flag in findings.unfair],
        "cells": list(_cell_rows(findings)),
    }


def _variant_dict(findings: Findings, name: str) -> dict[str, Any]:
    variant, scores = findings.results.study.named(name), findings.results.scores(name)
    cost = findings.costs.get(name)
    return {
        **dataclasses.asdict(variant),
        "scores": {str(seed): score for seed, score in scores.items()},
        "spread": dataclasses.asdict(Spread.of(list(scores.values()))) if scores else None,
        "cost": dataclasses.asdict(cost) if cost else None,
    }


def _cell_rows(findings: Findings) -> list[dict[str, Any]]:
    return [_cell_row(findings, cell) for cell in findings.results.cells]


def _cell_row(findings: Findings, cell: Cell) -> dict[str, Any]:
    row: dict[str, Any] = {
        "variant": cell.variant,
        "seed": cell.seed,
        "state": cell.state,
        "error": cell.error,
        "address": cell.address,
        "folder": str(cell.folder.relative_to(findings.results.folder)),
        "command": cell.command,
    }
    outcome = cell.outcome
    if outcome is not None:
        cost = findings.costs[cell.variant]
        row |= {
            "score": outcome.score,
            "parameters": outcome.parameters,
            "training_flops": cost.flops if cost.counted == cell.address else None,
            "target_tokens": outcome.target_tokens,
            "updates": outcome.updates,
            "target_tokens_per_s": outcome.tokens_per_s,
            "seconds": outcome.seconds,
            "leak": outcome.leak,
        }
    return {name: row.get(name) for name in CELL_COLUMNS}


def _write_csv(path: Path, findings: Findings) -> None:
    def fill(partial: Path) -> None:
        with partial.open("w", encoding="utf8", newline="") as file:
            writer = csv.DictWriter(file, CELL_COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(_cell_rows(findings))

    write_whole(path, fill)
