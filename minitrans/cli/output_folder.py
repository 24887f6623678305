"""Where a command writes its results in a run folder, so that none overwrites another one.

What makes a result the one it is stands in its record (``scores.json``, ``maps.json`` ...): the
checkpoint's and the text's hashes, the search settings ... (its *facts*; of several checkpoints, what was
made of them too). A folder that holds the same facts is written anew; any other folder with something in
it is refused. A record without a precision is of a time when there was only fp32.
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
_WORDS = re.compile("[A-Za-z0-9]+( [A-Za-z0-9]+)*")


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


def texts_name(*texts: str) -> str:
    """The texts as part of a file name; where more than single spaces is lost, with a hash of all of them."""
    name = "-".join(re.sub(r"[^\w.-]+", "_", text, flags=re.ASCII) for text in texts)
    if all(_WORDS.fullmatch(text) for text in texts):
        return name
    return f"{name[:_LONGEST]}-{hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:8]}"


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
        As typed. Empty: ``NAME`` in the run folder's place for this kind, and, where that holds the result
        of another state of the checkpoint, ``NAME-updateN``.
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
    folder = Path(output_dir) if output_dir else home / kind.place / plain_name(name)
    if not output_dir and _of_another_state(_record(folder, kind), facts):
        folder = folder.with_name(f"{folder.name}-update{update}")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"output_dir={folder} is a file; give a folder")
    held = _held(folder, kind, facts)
    if held:
        raise UserError(f"{folder} holds {held}; give another output_dir, or remove it")
    _require_makeable(folder)
    return folder


def _require_makeable(folder: Path) -> None:
    """Refuse before any work a folder that could not be made or written to; nothing is made."""
    nearest = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        raise UserError(f"output_dir={folder} cannot be made or written to: see {nearest}; give another")


def _record(folder: Path, kind: Kind) -> dict[str, Any] | None:
    """The facts of what lies in the folder; None where it holds no record."""
    try:
        record = json.loads((folder / kind.record).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return {"precision": "fp32", **record} if isinstance(record, dict) else None


def _of_another_state(record: Mapping[str, Any] | None, facts: Mapping[str, Any]) -> bool:
    """Whether a record is of a checkpoint that was another one when it was written."""
    key = "checkpoint_sha256"
    return record is not None and key in record and record[key] != facts[key]


def _held(folder: Path, kind: Kind, facts: Mapping[str, Any]) -> str:
    """What lies in the folder that must not be overwritten, in words; empty: nothing."""
    if not folder.exists() or not any(folder.iterdir()):
        return ""
    old = _record(folder, kind)
    if old is None:
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
