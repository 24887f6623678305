"""Study folders as a runner leaves them, with translations and scores of our choice."""

import csv
import dataclasses
import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from minitrans.ablation.results import Cell, Outcome, Results, Study, Variant
from minitrans.config import TrainConfig, plain
from minitrans.evaluation.scorecard import ScoreCard
from minitrans.training.log import COLUMNS
from tests.evaluation.cards import evaluated

NOUNS = ["man", "woman", "dog", "child", "teacher", "bird"]
VERBS = ["sees", "eats", "takes", "follows"]
OBJECTS = ["the ball", "a fish", "a red car on the road", "no book at all"]
REFERENCES = tuple(f"the {a} {b} {c} ." for a in NOUNS for b in VERBS for c in OBJECTS)  # 96


def noisy(share: float, seed: int, references: Sequence[str] = REFERENCES) -> list[str]:
    """The references with this share of their words lost."""
    draw = random.Random(seed)
    return [" ".join(w if draw.random() > share else "x" for w in line.split()) for line in references]


@dataclasses.dataclass
class StudyBuilder:
    """Writes one study folder, cell by cell; ``text`` is where its data lies."""

    folder: Path
    text: Path
    variants: Mapping[str, str | None]  # name -> the one it is against
    metric: str = "bleu"

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        self.text.mkdir(exist_ok=True)
        for side in ("x", "y"):
            (self.text / f"test.{side}").write_text("\n".join(REFERENCES) + "\n", encoding="utf8")
        self.cells: list[dict[str, Any]] = []
        self.changes: dict[str, Any] = {}
        self.of_variant: dict[str, dict[str, Any]] = {}

    def cell(self, variant: str, seed: int, state: str = "done", **changes: Any) -> Path:
        """Note down a cell; its folder is not made."""
        name = f"cells/{len(self.cells):03d}"
        entry = {
            "variant": variant,
            "seed": seed,
            "address": f"{len(self.cells):012x}",
            "folder": name,
            "state": state,
            "error": None,
            "log": None,
            "command": f"python scripts/train.py note={variant} seed={seed}",
        }
        self.cells.append(entry | changes)
        return self.folder / name

    def done(
        self,
        variant: str,
        seed: int,
        hypotheses: Sequence[str],
        result: Mapping[str, Any] | None = None,
        test: Mapping[str, Any] | None = None,
    ) -> Path:
        """Add a finished cell that gave these translations."""
        path = self.cell(variant, seed)
        (path / "translations").mkdir(parents=True)
        lines = "".join(f"{line}\n" for line in hypotheses)
        (path / "translations" / "test.txt").write_text(lines, encoding="utf8")
        card = self._card(hypotheses).as_dict() | dict(test or {})
        content = {"parameters": 1000, "updates": 300, "target_tokens": 60_000, "seconds": 30.0}
        content |= {"tests": {"test": card}} | dict(result or {})
        (path / "result.json").write_text(json.dumps(content), encoding="utf8")
        self._write_metrics(path / "metrics.csv", seed, card)
        files = [str(self.text / f"test.{side}") for side in ("x", "y")]
        data = {"kind": "pairs", "src": "x", "tgt": "y", "train": files, "valid": files, "test": files}
        config = plain(TrainConfig(data=data, seed=seed))
        (path / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf8")
        return path

    def _card(self, hypotheses: Sequence[str]) -> ScoreCard:
        card = evaluated("cell", hypotheses, REFERENCES).card
        files = [self.text / f"test.{side}" for side in ("x", "y")]
        digests = {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
        return dataclasses.replace(card, data=digests)

    def _write_metrics(self, path: Path, seed: int, card: Mapping[str, Any]) -> None:
        final = card["scores"]["bleu"]["value"]
        with path.open("w", encoding="utf8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            for update in range(50, 301, 50):
                nll = 4 - 3 * update / 300 + 0.1 * seed
                row = {"update": update, "split": "train", "nll": nll, "target_tokens_per_s": 1000 + seed}
                writer.writerow(row)
                if update % 100 == 0:
                    bleu = final * update / 300
                    writer.writerow({"update": update, "split": "valid", "nll": nll, "bleu": bleu})

    def write(self) -> Path:
        """Write ``study.json`` as it stands."""
        content = {
            "name": "losses",
            "question": "Do lost words cost BLEU?",
            "base": ["model=tiny"],
            "metric": self.metric,
            "equal": ["parameters", "updates"],
            "prediction": {"text": "They do.", "source": "the definition of BLEU"},
            "tune": None,
            "command": "python scripts/ablate.py study=losses",
            "seeds": sorted({cell["seed"] for cell in self.cells}),
            "variants": [
                {
                    "name": name,
                    "overrides": [f"note={name}"],
                    "against": against,
                    "expect": None,
                    "tuned": None,
                }
                | self.of_variant.get(name, {})
                for name, against in self.variants.items()
            ],
            "cells": self.cells,
        }
        (self.folder / "study.json").write_text(json.dumps(content | self.changes), encoding="utf8")
        return self.folder


def results_of(
    scores: Mapping[str, Mapping[int, float]],
    against: Mapping[str, str | None],
    expect: Mapping[str, str] | None = None,
    metric: str = "loss",
) -> Results:
    """A study in memory: variant -> seed -> score; a seed that only others have is a failed cell."""
    study = Study(
        name="memory", question="", base=(), metric=metric, equal=(), prediction="", source="", tune=None,
        command="", trials=(), variants=tuple(
            Variant(name, (), against.get(name), (expect or {}).get(name), {}) for name in scores
        ),
    )  # fmt: skip
    seeds = sorted({seed for of in scores.values() for seed in of})
    cells = [
        Cell(
            name, seed, "", Path(), "done" if seed in of else "failed", None, None, "", _outcome(of.get(seed))
        )
        for name, of in scores.items()
        for seed in seeds
    ]
    return Results(Path(), study, tuple(cells))


def _outcome(score: float | None) -> Outcome | None:
    if score is None:
        return None
    return Outcome(
        score=score, split="test", sentences=200, other_splits={}, parameters=1000, updates=300,
        target_tokens=60_000, seconds=30.0, tokens_per_s=1000.0, leak=False, train=[], valid=[], by_depth={},
        by_length={}, tokenize="13a", data={},
    )  # fmt: skip
