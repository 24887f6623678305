"""Several processes for one run.

Hydra runs once, in the parent. The parent makes the run folder, writes ``config.yaml`` into it and starts
workers through torch's own launcher; a worker reads the folder and never composes a configuration. (A
launcher that runs the command line again would make a second sweep folder, and could compose something else.)
"""

import logging
import os
import sys
from pathlib import Path

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

import minitrans
from minitrans.checkpoint import LAST
from minitrans.config import TrainerConfig
from minitrans.errors import UserError
from minitrans.run import RunFolder

_PACKAGE_PARENT = str(Path(minitrans.__file__).resolve().parent.parent)


def needs_workers(trainer: TrainerConfig) -> bool:
    """Whether this process has to start others."""
    return trainer.devices > 1


def run_workers(trainer: TrainerConfig, folder: RunFolder, begin: Path | None) -> None:
    """Train in ``trainer.devices`` processes, and come back when all have ended.

    Parameters
    ----------
    trainer
        How many processes.
    folder
        The run folder, with its ``config.yaml``.
    begin
        The checkpoint to go on from.

    Raises
    ------
    UserError
        A process died; its rank is named. The others have been ended.
    """
    words = ["-m", "minitrans.cli.worker", str(folder.path), *([str(begin)] if begin else [])]
    launch = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=trainer.devices,
        run_id=folder.path.name,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        monitor_interval=0.5,
    )
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // trainer.devices)))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [_PACKAGE_PARENT, os.environ.get("PYTHONPATH")]))
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # our sentence says it
    try:
        elastic_launch(launch, sys.executable)(*words)
    except SignalException:
        return  # the workers were told too: they have saved and ended
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        raise UserError(_describe(rank, failure, folder)) from error


def _describe(rank: int, failure: ProcessFailure, folder: RunFolder) -> str:
    how = (
        f"was killed by signal {-failure.exitcode}"
        if failure.exitcode < 0
        else f"ended with status {failure.exitcode}"
    )
    saved = (folder.checkpoints / LAST).exists()
    advice = f"; the last checkpoint is whole: go on with resume={folder.path}" if saved else ""
    return f"the process of rank {rank} {how} and the others were ended{advice}"
