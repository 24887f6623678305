"""Cells: one variant with one seed, addressed by the content of everything that decides its result."""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from minitrans.ablation.budget import updates_within
from minitrans.ablation.study import Study, Variant
from minitrans.config import DATA_PATHS, TrainConfig, construct, plain
from minitrans.data.cache import hash_file, hash_plain
from minitrans.data.corpus import SOURCES
from minitrans.errors import UserError
from minitrans.program import program
from minitrans.training.resume import experiment_of

PACKAGE = Path(__file__).resolve().parents[1]
ADDRESS_LENGTH = 12  # hexadecimal digits: 2^48 addresses
# Packages that decide how cells are run and reported, not what comes out of them.
NOT_IN_RESULTS = ("ablation", "benchmark", "cli")

# From the words after ``train`` to the configuration, and what was typed of it.
Compose = Callable[[Sequence[str]], tuple[TrainConfig, dict[str, Any]]]


@dataclass(frozen=True)
class Cell:
    """One training run of a study.

    Attributes
    ----------
    variant, seed
        Its place in the matrix.
    words
        The words after ``train`` that make the same run.
    config, typed
        The configuration, and what of it was typed; None where the words contradict each other.
    address
        Hash of what decides the result: configuration, data, code.
    error
        Why it cannot run.
    """

    variant: str
    seed: int
    words: tuple[str, ...]
    config: TrainConfig | None
    typed: Mapping[str, Any]
    address: str
    error: str | None = None

    @property
    def command(self) -> str:
        """The line that reproduces this cell alone."""
        return f"{program('train')} {shlex.join(self.words)}"

    @property
    def folder_name(self) -> str:
        """Readable, and unique through the address."""
        name = re.sub(r"[^A-Za-z0-9_.=]+", "_", self.variant).strip("_.")[:60]
        return f"{name}-seed{self.seed}-{self.address}"


class CellMaker:
    """Makes the cells of a study.

    Parameters
    ----------
    study
        The study; its base stands below ``typed``.
    typed
        The words for the base that were typed on the command line.
    compose
        From words to a configuration.
    code
        The hash of the code (:func:`code_hash`).
    """

    def __init__(self, study: Study, typed: Sequence[str], compose: Compose, code: str) -> None:
        self.study, self.compose, self.code = study, compose, code
        self.base = (*study.base, *typed)
        self._data: dict[str, tuple[list[str], list[str]]] = {}
        self._composed: dict[tuple[str, ...], tuple[TrainConfig, dict[str, Any]]] = {}
        self._updates: dict[str, int] = {}

    @property
    def updates(self) -> Mapping[str, int]:
        """Variant -> the updates that the study's budget gives each of its cells, as far as they are counted.

        Empty for a study without a budget.
        """
        return self._updates

    def cells(self, rates: Mapping[str, str]) -> list[Cell]:
        """All cells of the study, a seed of every variant before the next one.

        Parameters
        ----------
        rates
            Variant -> the word for its tuned learning rate; may lack some or all.
        """
        return [
            self.cell(variant, seed, rates.get(variant.name))
            for seed in self.study.seeds
            for variant in self.study.variants
        ]

    def cell(self, variant: Variant, seed: int, rate: str | None = None) -> Cell:
        """One cell; where the words contradict each other, one that only says so."""
        words = last_of_each_key((*self.base, *variant.overrides, *([rate] if rate else [])))
        all_words = (*words, f"seed={seed}")
        try:
            words = (*words, *self._end(variant))
            all_words = (*words, f"seed={seed}")
            config, typed = self._resolve(words)
            config = replace(config, seed=seed)
            address = self._address(config)
        except UserError as error:
            unique = hash_plain([*all_words, self.code])[:ADDRESS_LENGTH]
            return Cell(variant.name, seed, all_words, None, {}, unique, str(error))
        return Cell(variant.name, seed, all_words, config, {**typed, "seed": seed}, address)

    def _end(self, variant: Variant) -> tuple[str, ...]:
        """The word for the updates that the budget gives a variant; the same ones for all its seeds."""
        budget = self.study.budget
        if budget is None:
            return ()
        if variant.name not in self._updates:
            config, _ = self._resolve(last_of_each_key((*self.base, *variant.overrides)))
            self._updates[variant.name] = updates_within(budget, config)
        return (f"training.max_updates={self._updates[variant.name]}",)

    def _resolve(self, words: tuple[str, ...]) -> tuple[TrainConfig, dict[str, Any]]:
        if words not in self._composed:
            self._composed[words] = self.compose(words)
        return self._composed[words]

    def _address(self, config: TrainConfig) -> str:
        return address(config, self._data_hashes(config.data), self.code)

    def _data_hashes(self, data: Mapping[str, Any]) -> list[str]:
        splits, hashes = self._source(data)
        return [*splits, *hashes]

    def _source(self, data: Mapping[str, Any]) -> tuple[list[str], list[str]]:
        """The names of the splits, and the hashes of their content."""
        key = hash_plain(data)
        if key not in self._data:
            source = construct(SOURCES, data, {}, "data")
            self._data[key] = [*source.splits()], [*source.hashes().values()]
        return self._data[key]

    def tests(self, config: TrainConfig) -> list[str]:
        """The names of the splits that a cell with this configuration is scored on."""
        splits, _ = self._source(config.data)
        return [split for split in splits if split not in ("train", "valid")]


def address(config: TrainConfig, data: Sequence[str], code: str) -> str:
    """The address of a cell.

    Where it runs plays no part: not the run folder, threads, logger, devices nor the data's paths. The
    number type does.

    Parameters
    ----------
    config
        The resolved configuration.
    data
        Names and content hashes of the splits.
    code
        Hash of the code.
    """
    experiment = plain(experiment_of(config))
    paths = DATA_PATHS.get(config.data.get("kind", ""), ())
    experiment["data"] = {key: value for key, value in config.data.items() if key not in paths}
    content = [experiment, config.trainer.precision, list(data), code]
    return hash_plain(content)[:ADDRESS_LENGTH]


def code_hash(package: Path = PACKAGE) -> str:
    """Hash of the package's modules, without those that only run and report studies."""
    files = sorted(path.relative_to(package) for path in package.rglob("*.py"))
    return hash_plain(
        [[str(file), hash_file(package / file)] for file in files if file.parts[0] not in NOT_IN_RESULTS]
    )


def last_of_each_key(words: Sequence[str]) -> tuple[str, ...]:
    """The words without those that a later one of the same key overrules."""
    return tuple({word.partition("=")[0]: word for word in words}.values())
