"""The run folder: its name, what it must not overwrite, and the record of where its results came from."""

import contextlib
import json
import os
import platform
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from minitrans import __version__
from minitrans.checkpoint import write_whole
from minitrans.errors import UserError

_PACKAGES = ("torch", "lightning", "datasets", "tokenizers", "hydra-core", "sacrebleu", "numpy")
_SECRET = re.compile(r"(?is)(key|token|secret|password)=.+")


@dataclass(frozen=True)
class RunFolder:
    """Where everything of one run lies."""

    path: Path

    @classmethod
    def of(cls, path: str | Path) -> "RunFolder":
        """The folder at a path, made absolute; nothing is made."""
        return cls(Path(path).resolve())

    @property
    def checkpoints(self) -> Path:
        """The folder of the ``.ckpt`` files."""
        return self.path / "checkpoints"

    @property
    def metrics(self) -> Path:
        """The table of losses, scores and rates, a row every ``training.log_every`` updates."""
        return self.path / "metrics.csv"

    @property
    def diagnostics(self) -> Path:
        """The table of what every head does, rows every ``training.diagnose_every`` updates."""
        return self.path / "diagnostics.csv"

    @property
    def result(self) -> Path:
        """The final scores, written when the run is finished."""
        return self.path / "result.json"

    def step(self, update: int) -> Path:
        """The checkpoint of one update."""
        return self.checkpoints / f"step-{update:06d}.ckpt"

    def steps(self) -> list[Path]:
        """The checkpoints of single updates, oldest first."""
        return sorted(self.checkpoints.glob("step-*.ckpt"), key=lambda path: int(path.stem.split("-")[1]))


def default_name(*words: str) -> str:
    """A readable, sortable folder name: the time, then the words that tell the run from others.

    Letters outside ASCII and signs become ``_``: the name must work in every shell and on every disk.
    """
    plain_words = (re.sub(r"[^A-Za-z0-9_.]+", "_", word).strip("_.") for word in words)
    return "-".join([datetime.now().strftime("%Y%m%d-%H%M%S"), *(word for word in plain_words if word)])


def create(run_dir: str, *words: str) -> RunFolder:
    """Make a new run folder.

    Parameters
    ----------
    run_dir
        Its path; empty makes a unique one below ``runs/``.
    words
        What the default name is made of.

    Raises
    ------
    UserError
        The folder is already there and not empty, or cannot be made.
    """
    path = Path(run_dir) if run_dir else _unused(Path("runs") / default_name(*words))
    refuse_used(path)
    return open_or_create(RunFolder.of(path))


def open_or_create(folder: RunFolder) -> RunFolder:
    """The folder, made where it is not there yet.

    Raises
    ------
    UserError
        It cannot be made or written to.
    """
    try:
        folder.checkpoints.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"the run folder {folder.path} cannot be made: {error.strerror}; give another run_dir"
        ) from error
    if not all(os.access(path, os.W_OK) for path in (folder.path, folder.checkpoints)):
        raise UserError(f"the run folder {folder.path} cannot be written to; give another run_dir")
    return folder


def remove_partial_files(folder: RunFolder) -> None:
    """Remove what a killed process left of files that it was writing; for the one that holds the folder."""
    for path in folder.path.rglob(".*"):
        if path.name.endswith(".partial") or path.name.startswith(".begin-"):
            path.unlink()


def refuse_used(path: Path) -> None:
    """Stop where a run already lies: no run folder is ever overwritten."""
    if path.is_file():
        raise UserError(f"run_dir={path} is a file; give the path of a folder")
    if path.is_dir() and any(entry.name != ".lock" for entry in path.iterdir()):
        begun = any((path / "checkpoints").glob("*.ckpt"))
        go_on = f"resume={path}" if begun else f"run_dir={path} resume=auto"
        raise UserError(
            f"the run folder {path} is already in use; go on with {go_on}, or give another run_dir"
        )


def _unused(path: Path) -> Path:
    number, candidate = 1, path
    while candidate.exists():
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate


@contextlib.contextmanager
def locked(folder: RunFolder) -> Iterator[None]:
    """Hold the folder for one process; a second one is refused instead of writing into the same files."""
    try:
        with FileLock(folder.path / ".lock", timeout=0):
            yield
    except Timeout as error:
        raise UserError(
            f"the run folder {folder.path} is in use by another process; wait for it to end"
        ) from error


# --------------------------------------------------------------------------------------
# Records
# --------------------------------------------------------------------------------------


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write indented UTF-8 JSON, whole or not at all."""
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    write_whole(path, lambda partial: partial.write_text(text, encoding="utf8"))


def write_lines(path: Path, lines: Sequence[str]) -> None:
    """Write UTF-8 text, one line each, making the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(
        path, lambda partial: partial.write_text("".join(f"{line}\n" for line in lines), encoding="utf8")
    )


def write_config(folder: RunFolder, config: Mapping[str, Any]) -> None:
    """Write the resolved configuration as ``config.yaml``."""
    text = yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)
    write_whole(folder.path / "config.yaml", lambda partial: partial.write_text(text, encoding="utf8"))


def provenance(seed: int, data_hashes: Mapping[str, str]) -> dict[str, Any]:
    """Where a result comes from: seed, versions, commit, machine, command, data.

    Nothing of the environment is recorded, so no key or password can be.
    """
    return {
        "seed": seed,
        "minitrans": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "packages": {name: metadata.version(name) for name in _PACKAGES},
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "processors": os.cpu_count(),
        "started": datetime.now().astimezone().isoformat(timespec="seconds"),
        "folder": os.getcwd(),
        "command": [_SECRET.sub(r"\1=…", argument) for argument in sys.argv],
        "data": dict(data_hashes),
    }


def _commit() -> str | None:
    """The commit of the source checkout, marked where files differ from it; None in an installed copy."""
    root = Path(__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return None
    git = ["git", "-C", str(root)]
    try:
        commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run(
            [*git, "status", "--porcelain", "-uno"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit.stdout.strip() + ("-modified" if changed.stdout.strip() else "")
