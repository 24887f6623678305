"""Several processes for one run.

Hydra runs once, in the parent. The parent makes the run folder, writes ``config.yaml`` into it and starts
workers through torch's own launcher; a worker reads the folder and never composes a configuration. (A
launcher that runs the command line again would make a second sweep folder, and could compose something else.)

Where torchrun or SLURM starts the processes from outside, the first one does the parent's work, and the
others wait in ``run_dir`` for its word.
"""

import contextlib
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import yaml
from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

import minitrans
from minitrans import checkpoint
from minitrans.config import TrainConfig, TrainerConfig, parse
from minitrans.errors import UserError
from minitrans.processes import Launched, launched
from minitrans.run import RunFolder
from minitrans.signals import handled_by
from minitrans.training.fit import fit
from minitrans.training.prepare import prepare

_FINISHED = "finished"
_PACKAGE_PARENT = str(Path(minitrans.__file__).resolve().parent.parent)


# --------------------------------------------------------------------------------------
# Processes that we start
# --------------------------------------------------------------------------------------


def needs_workers(trainer: TrainerConfig) -> bool:
    """Whether this process has to start others.

    Raises
    ------
    UserError
        Several machines: each of them has to be told.
    """
    if launched() is not None:
        return False
    if trainer.num_nodes > 1:
        raise UserError(
            f"trainer.num_nodes={trainer.num_nodes} needs a launcher on each machine (torchrun, srun), and "
            "run_dir=FOLDER on a disk that all of them see; README.md, several machines, has the line"
        )
    return trainer.devices > 1


def run_workers(trainer: TrainerConfig, folder: RunFolder, begin: Path | None) -> None:
    """Train in ``trainer.devices`` processes, and come back when all have ended.

    Each worker is in a session of its own, so a Ctrl-C of the terminal reaches this process alone, which
    hands it on. Asked to end, they have 30 seconds for it; at a second Ctrl-C they are killed. A worker ends
    by itself when this process does.

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
        A process failed; its rank or its own sentence says why. The others have been ended.
    KeyboardInterrupt
        A second Ctrl-C, while the first is being obeyed.
    """
    words = [str(folder.path), str(os.getpid()), *([str(begin)] if begin else [])]
    logs = tempfile.TemporaryDirectory(prefix="minitrans-workers-")  # torch leaves its own one behind
    launch = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=trainer.devices,
        run_id=folder.path.name,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        monitor_interval=0.5,
        logs_specs=DefaultLogsSpecs(log_dir=logs.name),
        signals_to_handle="",  # its handlers would make the second Ctrl-C wait as long as the first
    )
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // trainer.devices)))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [_PACKAGE_PARENT, os.environ.get("PYTHONPATH")]))
    for name in list(logging.root.manager.loggerDict):
        if name.startswith("torch.distributed.elastic"):  # our sentence says it
            logging.getLogger(name).setLevel(logging.CRITICAL)
    requests = _Requests()
    with logs, handled_by(requests.take):
        try:
            elastic_launch(launch, sys.executable)("-m", "minitrans.cli.worker", *words)
        except SignalException as request:
            if requests.insisted:
                raise KeyboardInterrupt from request
            return  # the workers were told too: they have saved and ended
        except ChildFailedError as error:
            raise UserError(_describe(error)) from error


class _Requests:
    """Hands the first request to end to torch's launcher, and obeys a second Ctrl-C itself.

    The launcher tells the workers and waits for them, 30 seconds for one that cannot hear (stopped, or in a
    driver). So the second Ctrl-C kills them, and the wait is over.
    """

    def __init__(self) -> None:
        self.insisted = False
        self._first: int | None = None
        self._others = _children()

    def take(self, number: int, frame: FrameType | None) -> None:
        """Handle one signal."""
        if self._first is None:
            self._first = number
            raise SignalException("asked to end", sigval=signal.Signals(number))
        if self._first == number == signal.SIGINT:
            self.insisted = True
            for worker in _children() - self._others:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(worker, signal.SIGKILL)  # with its loader processes


def _children() -> set[int]:
    """The processes that this one has started. Linux alone tells; elsewhere a worker sees its parent end."""
    lists = Path("/proc/self/task").glob("*/children")
    return {int(child) for children in lists for child in children.read_text().split()}


def _describe(error: ChildFailedError) -> str:
    """What the first process to fail says; the others failed because of it, or were ended."""
    rank, failure = error.get_first_failure()
    # torch hands over as a dictionary what a process has written down itself
    message: object = failure.message
    text = str(message["message"] if isinstance(message, dict) else message)
    sentence = text.partition("UserError: ")[2]
    if sentence:
        return sentence
    killed = failure.exitcode < 0
    how = f"was killed by signal {-failure.exitcode}" if killed else f"ended with status {failure.exitcode}"
    return f"the process of rank {rank} {how} and the others were ended"


# --------------------------------------------------------------------------------------
# Processes that were started from outside
# --------------------------------------------------------------------------------------


@contextlib.contextmanager
def word_given(folder: RunFolder, begin: Path | None) -> Iterator[None]:
    """The first process's word to the others of its launch: the folder is ready, and this is the start."""
    process = launched()
    if process is None:
        yield
        return
    word = _word(folder, process)
    checkpoint.write_whole(word, lambda partial: partial.write_text(str(begin or ""), encoding="utf8"))
    try:
        yield
    finally:
        word.unlink(missing_ok=True)


def nothing_to_do(folder: RunFolder) -> None:
    """The first process's word to the others where the run has made all its updates."""
    process = launched()
    if process is not None:
        _word(folder, process).write_text(_FINISHED, encoding="utf8")


def follow(folder: RunFolder, process: Launched, timeout: int) -> None:
    """Wait for the first process's word, and work with it.

    Raises
    ------
    UserError
        No word within ``timeout`` seconds.
    """
    word = _word(folder, process)
    give_up = time.monotonic() + timeout
    while not word.exists():
        if time.monotonic() > give_up:
            raise UserError(
                f"rank {process.rank} waited {timeout} seconds (trainer.timeout) for rank 0 to make the run "
                f"folder {folder.path}; give a run_dir on a disk that all machines see"
            )
        time.sleep(0.1)
    begin = word.read_text(encoding="utf8")
    if begin != _FINISHED:
        work(folder, Path(begin) if begin else None)


def _word(folder: RunFolder, process: Launched) -> Path:
    return folder.path / f".begin-{process.job}"


def work(folder: RunFolder, begin: Path | None) -> None:
    """Train this process's share of the run that ``folder`` describes."""
    start = checkpoint.read(begin) if begin else None
    path = folder.path / "config.yaml"
    config = parse(TrainConfig, yaml.safe_load(path.read_text(encoding="utf8")), str(path))
    fit(config, folder, prepare(config, start.tokenizers if start else None), start)
