"""The checkpoints that a command is given: one, a list, or a pattern such as ``runs/*``."""

import glob
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from minitrans.errors import UserError


def resolve_all(given: str | Sequence[str]) -> list[Path]:
    """The ``.ckpt`` files meant, in the order given, a pattern's in alphabetical order, each once.

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
    return list(dict.fromkeys(found))


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


def names(paths: Sequence[Path]) -> list[str]:
    """A short name for each checkpoint, its run folder's and its own; the whole path where two are alike."""
    short = [f"{run_folder(path).name}/{path.stem}" for path in paths]
    counts = Counter(short)
    return [str(path) if counts[name] > 1 else name for name, path in zip(short, paths, strict=True)]


def run_folder(checkpoint: Path) -> Path:
    """The run folder that a checkpoint lies in; for a loose file, its folder."""
    return checkpoint.parent.parent if checkpoint.parent.name == "checkpoints" else checkpoint.parent
