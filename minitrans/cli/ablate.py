"""``scripts/ablate.py``: a study from its question to its report."""

import dataclasses
import functools
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minitrans.ablation.study import (
    METRICS,
    Study,
    budget_of,
    checked,
    from_command_line,
    read_study,
    refuse_two_ends,
    shipped,
    study_of,
    within,
)
from minitrans.cli.argv import Words, read
from minitrans.cli.compose import Composed, compose_line
from minitrans.cli.main import run_main
from minitrans.config import AblateConfig, TrainConfig
from minitrans.errors import UserError, nearest
from minitrans.program import program

if TYPE_CHECKING:
    from minitrans.ablation.jobs import Submit

# Keys that a study sets for each of its cells, and what only its file can say.
OF_THE_STUDY = {
    "seed": "type seeds=[1,2,3]",
    "run_dir": "each cell has its own below study_dir",
    "resume": "cells that were interrupted go on by themselves",
    "force": "a cell that changes is another cell",
    "study.variants": "type variants=..., or write a file for study_file=",
}


def main() -> int:
    """Run a study; returns the exit status, which is not 0 where a cell failed."""
    return ablate_main(sys.argv[1:])


def ablate_main(argv: list[str]) -> int:
    """The command with these words."""
    return run_main(functools.partial(_ablate, argv), "ablate", AblateConfig, argv)


def _ablate(argv: Sequence[str], composed: Composed[AblateConfig]) -> None:
    config = composed.config
    refuse_keys_of_cells(composed.typed)
    typed = words_for_the_base(argv)
    study = asked_study(config, composed.typed.get("study"))
    check_words(study, typed)
    refuse_two_ends(study, typed)
    _run(study, typed, config, f"{program('ablate')} {shlex.join(argv)}")


def _run(study: Study, typed: Sequence[str], config: AblateConfig, command: str) -> None:
    # torch and lightning take seconds to import: --help and a mistyped key should not wait for them
    from minitrans.ablation.cells import CellMaker, code_hash
    from minitrans.ablation.estimate import warm_up
    from minitrans.ablation.folder import StudyFolder
    from minitrans.ablation.report import write
    from minitrans.ablation.runner import Place, share_of_threads
    from minitrans.ablation.session import Session, Wishes
    from minitrans.console import Console

    code = code_hash()
    local = config.cluster == "local"
    threads = share_of_threads(config.threads, config.jobs) if local else config.threads or config.slurm_cpus
    folder = StudyFolder(Path(config.study_dir or f"runs/study-{study.name}").resolve())
    wishes = Wishes(
        command=command,
        place=Place(config.jobs, threads, study.name, code),
        factors=config.tune_factors,
        tune_seed=config.tune_seed,
        retry_failed=config.retry_failed,
        max_hours=config.max_hours,
    )
    session = Session(
        study,
        CellMaker(study, typed, compose_words, code),
        folder,
        _machine(config, folder.logs),
        wishes,
        Console(),
        write,
        measure=warm_up if local else None,  # where jobs are queued from says little of where they run
    )
    session.run()


def _machine(config: AblateConfig, logs: Path) -> "Submit":
    import torch

    from minitrans.ablation.jobs import LocalMachine, Slurm, SlurmCluster

    if config.cluster == "slurm":
        slurm = Slurm(
            config.slurm_partition,
            config.slurm_minutes,
            config.slurm_cpus,
            config.slurm_gpus,
            config.slurm_options,
        )
        return SlurmCluster(logs, slurm)
    return LocalMachine(logs, torch.cuda.device_count() if torch.cuda.is_available() else 0)


def asked_study(config: AblateConfig, name: str | None) -> Study:
    """The study that the command line asks for: a file's, that of its own variants, or both together.

    Parameters
    ----------
    config
        What was typed.
    name
        The choice of ``study=``, whose content ``config`` holds.

    Raises
    ------
    UserError
        It asks for none or for two, or what :func:`minitrans.ablation.study.study_of` refuses.
    """
    study = _of_a_file(config, None if name == "null" else name)
    if config.variants or study is None:
        if not config.variants:
            known = ", ".join(shipped())
            raise UserError(f"type study=NAME, or variants='[\"KEY=VALUE ...\"]'; the studies are {known}")
        study = from_command_line(config.variants, study)
    tune = {"auto": study.tune, "lr": "lr", "none": None}[config.tune]
    seeds, metric = tuple(config.seeds) or study.seeds, config.metric or study.metric
    if metric not in METRICS:
        raise UserError(f'metric cannot be "{metric}"{nearest(metric, METRICS)}')
    study = within(study, budget_of(config.budget, "the configuration"))
    return checked(dataclasses.replace(study, seeds=seeds, metric=metric, tune=tune), f"study {study.name}")


def _of_a_file(config: AblateConfig, name: str | None) -> Study | None:
    if config.study_file and name:
        raise UserError(f"study={name} and study_file={config.study_file} are two studies; leave one out")
    if config.study_file:
        return read_study(config.study_file)
    return study_of(name, config.study, f"study={name}") if name else None


def refuse_keys_of_cells(typed: dict[str, Any]) -> None:
    """Stop where something was typed that each cell has for itself, or that only a study's file can say."""
    for key, advice in OF_THE_STUDY.items():
        if key in typed:
            raise UserError(f"{key} cannot be given to ablate: {advice}")


def words_for_the_base(argv: Sequence[str]) -> list[str]:
    """The words that are about the base experiment, and not about the study."""
    of_cells = {f.name for f in dataclasses.fields(TrainConfig)}
    own = {f.name for f in dataclasses.fields(AblateConfig)} - of_cells
    return [word for word in argv if word.partition("=")[0].split(".")[0] not in own]


def check_words(study: Study, typed: Sequence[str]) -> None:
    """Stop at a key or choice that ``train`` does not know, before anything runs.

    Raises
    ------
    UserError
        Names the variant, the word and the nearest one.
    """
    for where, words in (("base", (*study.base, *typed)), *((v.name, v.overrides) for v in study.variants)):
        try:
            read(words, train_words())
        except UserError as error:
            raise UserError(f'study {study.name}, "{where}": {error}') from error


def compose_words(words: Sequence[str]) -> tuple[TrainConfig, dict[str, Any]]:
    """The configuration that these words after ``train`` mean, and what of it they state."""
    composed = compose_line("train", read(words, train_words()), TrainConfig)
    return composed.config, composed.typed


@functools.cache
def train_words() -> Words:
    """What may be typed to ``train``."""
    return Words.of("train", TrainConfig)
