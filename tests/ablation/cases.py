"""Small studies whose cells are made up in a moment, and the jobs that make them."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from minitrans.ablation.cells import Cell, CellMaker
from minitrans.ablation.folder import StudyFolder
from minitrans.ablation.process import CellProcess, Outcome
from minitrans.ablation.runner import Place
from minitrans.ablation.session import Session, Wishes
from minitrans.ablation.study import Study, Variant
from minitrans.config import TrainConfig, check
from minitrans.run import write_json
from tests.training.tiny import changed

CODE = "code"
FOUR = (
    Variant("base"),
    Variant("d8", ("model.d_k=8",), "base"),
    Variant("three heads", ("model.num_heads=3",), "base"),  # 16 is no multiple of 3
    Variant("d12", ("model.d_k=12",), "base"),
)


def study_of(*variants: Variant, seeds: Sequence[int] = (1,), tune: str | None = None) -> Study:
    """A study of these variants."""
    return Study("small", "Does it matter?", (), variants, tuple(seeds), tune=tune)


def composer(tiny: TrainConfig) -> Callable[[Sequence[str]], tuple[TrainConfig, dict[str, Any]]]:
    """Changes ``tiny`` by words, without Hydra."""

    def compose(words: Sequence[str]) -> tuple[TrainConfig, dict[str, Any]]:
        typed = {key: yaml.safe_load(value) for key, _, value in (word.partition("=") for word in words)}
        config = changed(tiny, typed)
        check(config)
        return config, typed

    return compose


def maker_of(study: Study, tiny: TrainConfig, code: str = CODE) -> CellMaker:
    """The cells of a study around ``tiny``."""
    return CellMaker(study, (), composer(tiny), code)


@dataclass
class MadeUpJob:
    """A process that is done after a few looks, or when it is asked to stop."""

    log: Path
    work: Callable[[], Outcome]
    looks: int
    alive: list["MadeUpJob"]
    stopped: bool = False

    def done(self) -> bool:
        self.looks -= 1
        if self.looks < 0 or self.stopped:
            if self in self.alive:
                self.alive.remove(self)
            return True
        return False

    def outcome(self) -> Outcome:
        return Outcome("stopped") if self.stopped else self.work()

    def stop(self) -> None:
        self.stopped = True


@dataclass
class MadeUpMachine:
    """Starts cells that write a result without training.

    Attributes
    ----------
    failing
        Variant -> the sentence with which it fails.
    looks
        How often a job is looked at until it is done.
    started
        (variant, seed) of each cell that was started, in order.
    remakes
        Whether a cell may have a folder already.
    most
        The most cells that ran at once.
    """

    failing: Mapping[str, str] = field(default_factory=dict)
    looks: int = 0
    remakes: bool = False
    validation: Callable[[TrainConfig], float] = lambda config: 1.0
    started: list[tuple[str, int]] = field(default_factory=list)
    most: int = 0
    alive: list[MadeUpJob] = field(default_factory=list)

    def __call__(self, cell: Cell, process: CellProcess) -> MadeUpJob:
        self.started.append((cell.variant, cell.seed))
        log = Path(process.config.run_dir).parents[1] / "logs" / f"{cell.address}.out"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(self.failing.get(cell.variant, "trained"))
        job = MadeUpJob(log, lambda: self._outcome(cell, process.config), self.looks, self.alive)
        self.alive.append(job)
        self.most = max(self.most, len(self.alive))
        return job

    def _outcome(self, cell: Cell, config: TrainConfig) -> Outcome:
        if cell.variant in self.failing:
            return Outcome("failed", self.failing[cell.variant])
        folder = Path(config.run_dir)
        folder.mkdir(parents=True, exist_ok=self.remakes)
        result = {
            "metric": "bleu",
            "best_validation": self.validation(config),
            "seconds": 24.0,
            "updates": config.training.max_updates,
        }
        write_json(folder / "result.json", result)  # whole, as a training's: other runners look at it
        return Outcome("done")


def session_of(
    study: Study, tiny: TrainConfig, folder: Path, submit: Any, jobs: int = 1, **wishes: Any
) -> Session:
    """A session that says what it has to say into ``session.console.file``."""
    return Session(
        study,
        maker_of(study, tiny),
        StudyFolder(folder),
        submit,
        Wishes("ablate.py study=small", Place(jobs, 1, "small", CODE), **wishes),
        Console(file=StringIO(), width=120),
        lambda path: path / "report.html",
        poll=0.001,
        measure=None,
    )


def said(session: Session) -> str:
    """What the session has printed."""
    file = session.console.file
    assert isinstance(file, StringIO)
    return file.getvalue()


def record(folder: Path) -> dict[str, Any]:
    """``study.json``."""
    return dict(json.loads((folder / "study.json").read_text()))


def states(folder: Path) -> list[tuple[str, int, str]]:
    """Variant, seed and state of each cell in ``study.json``."""
    return [(cell["variant"], cell["seed"], cell["state"]) for cell in record(folder)["cells"]]
