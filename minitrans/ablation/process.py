"""The process of one cell: an ordinary training in the cell's run folder, that says what came of it.

``submitit`` pickles a :class:`CellProcess` and calls it in a new process, here or on another machine.
"""

import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from submitit.helpers import DelayedSubmission

from minitrans.config import TrainConfig
from minitrans.errors import StoppedEarlyError, UserError
from minitrans.signals import interrupt

DONE, FAILED, STOPPED = "done", "failed", "stopped"


@dataclass(frozen=True)
class Outcome:
    """What came of a process: done, failed or stopped, and the sentence for it."""

    name: str
    sentence: str = ""


@dataclass(frozen=True)
class CellProcess:
    """A cell's training.

    Attributes
    ----------
    config
        The cell's configuration, with its run folder, ``resume=auto`` and its threads.
    typed
        What of it was typed.
    lock
        The lock to hold while training.
    code
        The hash of the code that the cell's address stands for.
    """

    config: TrainConfig
    typed: Mapping[str, Any]
    lock: Path
    code: str

    def __call__(self) -> Outcome:
        """Train, from the cell's last checkpoint where it has one.

        A request to end (SIGTERM) is obeyed at once outside of training; in training, after the update in
        hand is saved.
        """
        signal.signal(signal.SIGTERM, interrupt)
        try:
            return self._train()
        except (StoppedEarlyError, KeyboardInterrupt) as stop:
            print(stop, file=sys.stderr)
            return Outcome(STOPPED, str(stop))
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            return Outcome(FAILED, str(error))

    def checkpoint(self) -> DelayedSubmission:
        """What ``submitit`` queues again when SLURM takes the machine away: the same, to go on."""
        return DelayedSubmission(self)

    def _train(self) -> Outcome:
        # torch and lightning take seconds to import: the request to end must be heard before
        from minitrans.ablation.cells import code_hash
        from minitrans.ablation.claims import training
        from minitrans.run import RunFolder
        from minitrans.training.session import train

        if code_hash() != self.code:
            raise UserError("the code has changed since the study was started; start the study again")
        with training(self.lock):
            if not RunFolder.of(self.config.run_dir).result.exists():
                train(self.config, self.typed)
        return Outcome(DONE)
