"""Where a command writes its results in a run folder, so that none overwrites another one.

What makes a result the one it is stands in its record (``scores.json``, ``maps.json`` ...): the
checkpoint's and the text's hashes, the search settings ... (its *facts*; of several checkpoints, what was
made of them too). A folder that holds the same facts is written anew; any other folder with something in
it is refused.
"""

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minitrans.config import SearchConfig
from minitrans.errors import UserError

_LONGEST = 120  # characters of a name; file systems take 255 bytes


@dataclass(frozen=True)
class Kind:
    """A kind of result.

    Attributes
    ----------
    place
        The folder in the run folder that has a folder for each.
    record
        The file that holds the facts.
    another
        One that is not the same, in words.
    """

    place: str
    record: str
    another: str


EVALUATION = Kind("evaluation", "scores.json", "another evaluation")
SWEEP = Kind("evaluation", "sweep.json", "another evaluation")
MAPS = Kind("attention", "maps.json", "other maps")
DIAGNOSIS = Kind("diagnostics", "diagnostics.json", "another diagnosis")


def plain_name(text: str) -> str:
    """A file name without characters that shells or Hydra's grammar trip over, and not too long.

    Where letters of other scripts are lost, a hash keeps apart what would else be one name.
    """
    name = re.sub(r"[^\w.-]+", "_", text, flags=re.ASCII)
    if text.isascii() and len(name) <= _LONGEST:
        return name
    return f"{name[:_LONGEST]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def differing(own: SearchConfig, used: SearchConfig) -> str:
    """The search in a folder's name: the beam, and what else is not as the checkpoint has it."""
    values = dataclasses.asdict(used)
    others = [
        f"-{key}{values[key]}" for key, value in dataclasses.asdict(own).items() if value != values[key]
    ]
    return f"beam{used.beam_size}" + "".join(other for other in others if not other.startswith("-beam_size"))


def choose(kind: Kind, output_dir: str, home: Path, name: str, update: int, facts: Mapping[str, Any]) -> Path:
    """The folder to write to. Nothing is made yet.

    Parameters
    ----------
    output_dir
        As typed. Empty: ``NAME`` in the run folder's place for this kind, and, where that holds an earlier
        state of the same checkpoint, ``NAME-updateN``.
    home
        The run folder.
    update
        At which the checkpoint was written.
    facts
        What makes the result the one it is.

    Raises
    ------
    UserError
        The folder is a file, or holds something else.
    """
    own = home / kind.place / plain_name(name)
    candidates = [Path(output_dir)] if output_dir else [own, own.with_name(f"{own.name}-update{update}")]
    for folder in candidates:
        if folder.exists() and not folder.is_dir():
            raise UserError(f"output_dir={folder} is a file; give a folder")
    held = [_held(folder, kind, facts) for folder in candidates]
    for folder, other in zip(candidates, held, strict=True):
        if not other:
            _require_makeable(folder)
            return folder
    raise UserError(f"{candidates[0]} holds {held[0]}; give another output_dir, or remove it")


def _require_makeable(folder: Path) -> None:
    """Refuse before any work a folder that could not be made or written to; nothing is made."""
    nearest = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        raise UserError(f"output_dir={folder} cannot be made or written to: see {nearest}; give another")


def _held(folder: Path, kind: Kind, facts: Mapping[str, Any]) -> str:
    """What lies in the folder that must not be overwritten, in words; empty: nothing."""
    if not folder.exists() or not any(folder.iterdir()):
        return ""
    try:
        old = json.loads((folder / kind.record).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return "other files"
    if not isinstance(old, dict):
        return "other files"
    for key, now in facts.items():
        if old.get(key) != now:
            return f"{kind.another} ({_unlike(key, old.get(key), now)})"
    return ""


def _unlike(key: str, old: Any, now: Any) -> str:
    """The first difference of two facts, in words."""
    if isinstance(old, dict) and isinstance(now, dict):
        for name in {**old, **now}:
            if old.get(name) != now.get(name):
                return f"{key}.{name} is {old.get(name)} there, {now.get(name)} here"
    if key.endswith("sha256"):
        return f"of another {key.removesuffix('_sha256')}"
    return f"{key} is {_told(old)} there, {_told(now)} here"


def _told(value: Any) -> str:
    """A fact as a sentence tells it: what holds a space stands between quotation marks."""
    return f'"{value}"' if isinstance(value, str) and " " in value else str(value)


def make(folder: Path) -> None:
    """Make the folder.

    Raises
    ------
    UserError
        It cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"output_dir={folder} cannot be made: {error.strerror}") from error


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text, whole or not at all."""
    from minitrans.checkpoint import write_whole

    write_whole(path, lambda partial: partial.write_bytes(text.encode()))


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write indented JSON, whole or not at all."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
