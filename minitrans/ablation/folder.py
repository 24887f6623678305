"""The study folder: where cells, claims, logs and failures lie, and what they say of a cell's state.

Everything that runners must agree on is a file here, so that several of them, on several machines that
share the folder, can work on one study.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minitrans.ablation.cells import Cell
from minitrans.errors import UserError
from minitrans.run import RunFolder, write_json

DONE, FAILED, RUNNING, WAITING = "done", "failed", "running", "waiting"


@dataclass(frozen=True)
class State:
    """How a cell stands.

    Attributes
    ----------
    name
        done, failed, running or waiting.
    error
        The sentence that says why it failed.
    log
        What its process printed, relative to the study folder.
    """

    name: str = WAITING
    error: str | None = None
    log: str | None = None

    @property
    def ended(self) -> bool:
        """Nothing more will come of it."""
        return self.name in (DONE, FAILED)


@dataclass(frozen=True)
class StudyFolder:
    """The paths below a study's folder."""

    path: Path

    def make(self) -> None:
        """Make what is not there yet.

        Raises
        ------
        UserError
            A file is in the way, or the place may not be written to.
        """
        for path in (self.path, self.logs, *(self.path / name for name in ("cells", "claims", "failures"))):
            try:
                path.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UserError(
                    f"the study needs the folder {path}, which cannot be made: {error.strerror}; "
                    "choose another study_dir"
                ) from error

    @property
    def record(self) -> Path:
        """``study.json``: the study and the state of its cells, for the report."""
        return self.path / "study.json"

    @property
    def logs(self) -> Path:
        """What processes printed, and what ``submitit`` needs for them."""
        return self.path / "logs"

    def claim(self, address: str) -> Path:
        """The lock of the runner that sees to a cell."""
        return self.path / "claims" / f"{address}.runner"

    def process(self, address: str) -> Path:
        """The lock of the process that trains a cell."""
        return self.path / "claims" / f"{address}.process"

    def run(self, cell: Cell) -> RunFolder:
        """A cell's run folder: the one that bears its address, whatever its variant was called then."""
        found = next(iter(sorted((self.path / "cells").glob(f"*-{cell.address}"))), None)
        return RunFolder(found or self.path / "cells" / cell.folder_name)

    def state(self, cell: Cell) -> State:
        """Done, failed, or neither, as far as files tell. A file that cannot be read is a failure."""
        try:
            if self.run(cell).result.exists():
                self.result(cell)
                return State(DONE, log=self._log(cell))
            failure = self._failure(cell.address)
            if failure.exists():
                content = _read(failure, ("name", "error", "log"))
                return State(content["name"], content["error"], content["log"])
        except UserError as error:
            return State(FAILED, str(error))
        return State()

    def fail(self, cell: Cell, error: str, log: str | None) -> State:
        """Note down that a cell failed."""
        state = State(FAILED, error, log)
        self._failure(cell.address).parent.mkdir(parents=True, exist_ok=True)
        write_json(self._failure(cell.address), {"name": FAILED, "error": error, "log": log})
        return state

    def forgive(self, cell: Cell) -> None:
        """Forget a failure, so that the cell is tried again; a result that cannot be read is one."""
        if self.state(cell).name == FAILED:
            self.run(cell).result.unlink(missing_ok=True)
        self._failure(cell.address).unlink(missing_ok=True)

    def result(self, cell: Cell) -> dict[str, Any]:
        """The ``result.json`` of a cell that is done.

        Raises
        ------
        UserError
            It cannot be read, or is not what a run writes.
        """
        return _read(self.run(cell).result, ("metric", "best_validation", "updates", "seconds"))

    def _failure(self, address: str) -> Path:
        return self.path / "failures" / f"{address}.json"

    def note_log(self, cell: Cell, log: Path) -> str:
        """Remember which log is a cell's newest; returns its path as records have it."""
        name = str(log.relative_to(self.path)) if log.is_relative_to(self.path) else str(log)
        write_json(self._log_note(cell), {"log": name})
        return name

    def _log(self, cell: Cell) -> str | None:
        try:
            return _read(self._log_note(cell), ("log",))["log"]
        except UserError:  # without the note the log is not found, and nothing else
            return None

    def _log_note(self, cell: Cell) -> Path:
        return self.logs / f"{cell.address}.json"


def _read(path: Path, keys: Sequence[str]) -> dict[str, Any]:
    """A file of JSON that holds these keys.

    Raises
    ------
    UserError
        It does not.
    """
    try:
        content = json.loads(path.read_text(encoding="utf8"))
    except (OSError, ValueError) as error:  # what is not UTF-8 or not JSON is a ValueError
        raise UserError(f"{path} cannot be read ({error}); retry_failed=true makes it anew") from error
    if not isinstance(content, dict) or not set(keys) <= content.keys():
        raise UserError(f"{path} lacks {', '.join(keys)}, or some of it; retry_failed=true makes it anew")
    return content
