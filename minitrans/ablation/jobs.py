"""Cells on machines: ``submitit`` starts a process for each, on this machine or through SLURM."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import submitit

from minitrans.ablation.cells import Cell
from minitrans.ablation.process import FAILED, CellProcess, Outcome
from minitrans.errors import UserError

_PACKAGE_PARENT = str(Path(__file__).resolve().parents[2])
_NO_LIMIT = 60 * 24 * 365  # minutes


class Job(Protocol):
    """A cell's process, as a runner sees it."""

    @property
    def log(self) -> Path:
        """What it prints."""

    def done(self) -> bool:
        """Whether it has ended."""

    def outcome(self) -> Outcome:
        """What came of it, once it has ended."""

    def stop(self) -> None:
        """Ask it to save and end; may be asked again."""


# Starts a cell's process.
Submit = Callable[[Cell, CellProcess], Job]


@dataclass(frozen=True)
class Slurm:
    """What a job asks SLURM for.

    Attributes
    ----------
    partition
        Empty: the cluster's default.
    minutes
        A job's time. A cell that needs more is put back into the queue and goes on.
    cpus, gpus
        Of one cell.
    options
        Further ``KEY=VALUE`` lines of the batch file, such as ``account=NAME``.
    """

    partition: str = ""
    minutes: int = 240
    cpus: int = 4
    gpus: int = 0
    options: Sequence[str] = field(default_factory=tuple)


class SubmititJob:
    """A job of ``submitit`` in a runner's eyes."""

    def __init__(self, job: "submitit.Job[Outcome]", local: bool) -> None:
        self._job, self._local = job, local

    @property
    def log(self) -> Path:
        return self._job.paths.stdout

    def done(self) -> bool:
        return self._job.done()

    def outcome(self) -> Outcome:
        if self._local and not self._job.paths.result_pickle.exists():
            return Outcome(FAILED, "the process was ended from outside, for want of memory perhaps")
        error = self._job.exception()
        if error is None:
            return self._job.result()
        lines = [line for line in str(error).splitlines() if line.strip()]
        last = [
            line for line in lines if not line.startswith(("---", "You can check", "or at paths", "  - "))
        ]
        return Outcome(FAILED, (last or lines)[-1].strip())

    def stop(self) -> None:
        if not self._local:
            self._job.cancel(check=False)
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(self._job.job_id), signal.SIGTERM)  # the controller hands it on


class LocalMachine:
    """Processes on this machine; where there are GPUs, each cell has the one that fewest others use.

    Parameters
    ----------
    logs
        Folder for logs and pickles.
    num_gpus
        GPUs of this machine.
    """

    def __init__(self, logs: Path, num_gpus: int) -> None:
        self._executor = _executor(logs, "local")
        self._running: list[tuple[int, Job]] = []
        self._num_gpus = num_gpus

    def __call__(self, cell: Cell, process: CellProcess) -> Job:
        """Start a cell."""
        self._executor.update_parameters(timeout_min=_NO_LIMIT, stderr_to_stdout=True)
        gpu = 0
        if self._num_gpus:
            self._running = [(gpu, job) for gpu, job in self._running if not job.done()]
            used = [gpu for gpu, _ in self._running]
            gpu = min(range(self._num_gpus), key=used.count)
            self._executor.update_parameters(gpus_per_node=1, local_visible_gpus=(gpu,))
        with _deaf_to_ctrl_c():
            job = SubmititJob(self._executor.submit(process), local=True)
        self._running.append((gpu, job))
        return job


class SlurmCluster:
    """Jobs in SLURM's queue.

    Raises
    ------
    UserError
        There is no SLURM here, or it does not know an option.
    """

    def __init__(self, logs: Path, slurm: Slurm) -> None:
        self._executor = _executor(logs, "slurm")
        options = dict(_pair(option) for option in slurm.options)
        self._executor.update_parameters(
            timeout_min=slurm.minutes,
            cpus_per_task=slurm.cpus,
            stderr_to_stdout=True,
            **({"gpus_per_node": slurm.gpus} if slurm.gpus else {}),
            **({"slurm_partition": slurm.partition} if slurm.partition else {}),
            **({"slurm_additional_parameters": options} if options else {}),
        )

    def __call__(self, cell: Cell, process: CellProcess) -> Job:
        """Queue a cell."""
        self._executor.update_parameters(name=f"minitrans-{cell.variant}"[:60].replace(" ", "_"))
        return SubmititJob(self._executor.submit(process), local=False)


def _pair(option: str) -> tuple[str, str]:
    key, equals, value = option.partition("=")
    if not equals:
        raise UserError(f'slurm_options: "{option}" is not of the form KEY=VALUE')
    return key, value


def _executor(logs: Path, cluster: str) -> submitit.AutoExecutor:
    # a checkout that is not installed must be found by the new process too
    paths = [_PACKAGE_PARENT, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(filter(None, paths)))
    try:
        return submitit.AutoExecutor(folder=logs, cluster=cluster)
    except RuntimeError as error:
        raise UserError("cluster=slurm, but srun is not found here; use cluster=local") from error


@contextlib.contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """Processes started inside do not hear the terminal's Ctrl-C.

    It reaches all processes of a terminal at once, and ``submitit``'s controller would answer it by killing
    the cell a second later. The runner passes the request on in its own way.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
