"""The checkpoints that a command is given: one, a list, or a pattern such as ``runs/*``."""

import functools
import glob
import os
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from minitrans.errors import UserError


def resolve_all(given: str | Sequence[str]) -> list[Path]:
    """The ``.ckpt`` files meant, in the order given, a pattern's in alphabetical order, each once.

    One that is reached by two paths, such as a symbolic link, keeps the first.

    What a pattern matches and holds no checkpoint is left out, counted and said on standard error.

    Raises
    ------
    UserError
        A path that holds no checkpoint, or a pattern that matches none.
    """
    from minitrans.checkpoint import resolve

    found: list[Path] = []
    for one in [given] if isinstance(given, str) else given:
        found += [resolve(one)] if not _is_pattern(one) else _matches(one)
    return _each_once(found)


def _each_once(paths: Sequence[Path]) -> list[Path]:
    """The first path to each file or folder."""
    first: dict[Path, Path] = {}
    for path in paths:
        first.setdefault(path.resolve(), path)
    return list(first.values())


@dataclass(frozen=True)
class System:
    """What is evaluated as one: a checkpoint, the average of a run's, or an ensemble of either.

    Attributes
    ----------
    given
        What is loaded: ``.ckpt`` files, or the run folders whose checkpoints are averaged.
    average, average_best
        How many of each run folder's checkpoints are averaged (0: none), and which.
    """

    given: tuple[Path, ...]
    average: int = 0
    average_best: bool = False

    def same_as(self, other: "System") -> bool:
        """Whether both are made of the same files, however they are reached."""
        return self._identity == other._identity

    @property
    def _identity(self) -> tuple[object, ...]:
        return tuple(path.resolve() for path in self.given), self.average, self.average_best

    @functools.cached_property  # the best of a run are told by its checkpoint and its metrics: read once
    def files(self) -> list[Path]:
        """The ``.ckpt`` files that its weights come from."""
        from minitrans.checkpoint import steps_of

        if not self.average:
            return list(self.given)
        best = self.average_best
        return [file for folder in self.given for file in steps_of(folder, self.average, best=best)]

    @property
    def home(self) -> Path:
        """The run folder that keeps its evaluations; of an ensemble, the first one."""
        return self.given[0] if self.average else run_folder(self.given[0])

    @property
    def kind(self) -> str:
        """``best``, ``step-000500``, ``average5`` or ``averagebest5``; of three models ``ensemble3-best``."""
        averaged = f"average{'best' * self.average_best}{self.average}"
        one = averaged if self.average else self.given[0].stem
        return f"ensemble{len(self.given)}-{one}" if len(self.given) > 1 else one

    @property
    def origin(self) -> str:
        """The file that it comes from; of several, what was made of them."""
        files = ", ".join(str(file) for file in self.files)
        averaged = f"{self.average} weights averaged" if self.average else ""
        together = f"probabilities of {len(self.given)} averaged" if len(self.given) > 1 else ""
        made = ", ".join(filter(None, (averaged, together)))
        return f"{files} ({made})" if made else files


def systems(
    given: str | Sequence[str], *, average: int = 0, average_best: bool = False, ensemble: bool = False
) -> list[System]:
    """The systems that ``checkpoint=`` means, each once.

    Raises
    ------
    UserError
        See :func:`resolve_all`; an average of something that is no run folder; an ensemble of one.
    """
    paths = resolve_all(given)
    if average:
        files = [one for one in ([given] if isinstance(given, str) else given) if os.path.isfile(one)]
        if files:
            raise UserError(f"average={average} needs a run folder, but checkpoint={files[0]} is none")
        paths = _each_once([run_folder(path) for path in paths])
    elif average_best:
        raise UserError("average_best=true means nothing without average=; say how many checkpoints")
    if not ensemble:
        return [System((path,), average, average_best) for path in paths]
    if len(paths) < 2:
        raise UserError("ensemble=true needs two checkpoints or more; give a list or a pattern")
    return [System(tuple(paths), average, average_best)]


def _is_pattern(path: str) -> bool:
    return any(sign in path for sign in "*?[") and not os.path.lexists(path)


def _matches(pattern: str) -> list[Path]:
    found = {match: _checkpoint(match) for match in sorted(glob.glob(pattern, recursive=True))}
    empty = [os.path.basename(match) for match, path in found.items() if path is None]
    checkpoints = [path for path in found.values() if path is not None]
    if not checkpoints:
        raise UserError(f"checkpoint={pattern} matches no run folder and no .ckpt file; check the pattern")
    if empty:
        print(f"left out, without a checkpoint: {', '.join(empty)} ({len(empty)})", file=sys.stderr)
    return checkpoints


def _checkpoint(path: str) -> Path | None:
    """The checkpoint of something that a pattern matched; None where it has none."""
    from minitrans.checkpoint import resolve

    if os.path.isfile(path):
        return Path(path) if path.endswith(".ckpt") else None
    try:
        return resolve(path)
    except UserError:  # a folder of something else, or of a run that has saved nothing yet
        return None


def names(found: Sequence[System]) -> list[str]:
    """A short name for each system, its run folder's and its kind; the whole paths where two are alike."""
    short = [f"{system.home.name}/{system.kind}" for system in found]
    counts = Counter(short)
    return [system.origin if counts[name] > 1 else name for name, system in zip(short, found, strict=True)]


def run_folder(checkpoint: Path) -> Path:
    """The run folder that a checkpoint lies in; for a loose file, its folder."""
    return checkpoint.parent.parent if checkpoint.parent.name == "checkpoints" else checkpoint.parent
