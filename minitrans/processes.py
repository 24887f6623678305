"""The processes of one run: who this one is, and work that all of them share.

A process knows its place from the environment that its launcher sets: torchrun (and our own workers, which
are started through it) or SLURM's ``srun``.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch.distributed as dist

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Processes:
    """This process's number among those of the run."""

    rank: int = 0
    world_size: int = 1

    def map(self, function: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """``function`` of every item, in order, in all processes; each item is worked on by one of them.

        All processes must call it, with the same items.
        """
        own = [function(item) for item in items[self.rank :: self.world_size]]
        if self.world_size == 1:
            return own
        parts: list[Any] = [None] * self.world_size
        dist.all_gather_object(parts, own)
        dealt = cast(list[list[R]], parts)
        return [dealt[i % self.world_size][i // self.world_size] for i in range(len(items))]


ALONE = Processes()


def failed_to_answer(error: BaseException) -> bool:
    """Whether an error says that another process is gone or silent."""
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo/" in str(error))


@dataclass(frozen=True)
class Launched:
    """What a launcher outside of minitrans says of the processes that it started.

    Attributes
    ----------
    rank, world_size
        This process among all.
    per_machine
        Processes on each machine.
    job
        The same text in all processes of this launch, and in those of no other.
    """

    rank: int
    world_size: int
    per_machine: int
    job: str


def launched(environment: Mapping[str, str] = os.environ) -> Launched | None:
    """How this process was started: None where it was started alone."""
    if {"RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"} <= environment.keys():
        names = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")
        rank, world_size, per_machine = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    elif "SLURM_STEP_ID" in environment and int(environment.get("SLURM_NTASKS", "1")) > 1:
        names = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT", "")
        rank, world_size, per_machine = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE")
    else:
        return None
    num_processes = int(environment[world_size])
    return Launched(
        rank=int(environment[rank]),
        world_size=num_processes,
        per_machine=int(environment.get(per_machine, num_processes)),
        job="-".join(environment.get(name, "0").replace("/", "_") for name in names if name),
    )


def absent(process: Launched, seconds: float) -> list[int]:
    """The ranks that do not call within ``seconds``, by way of the store where all processes once met.

    For after a failure, when the connections between the processes are of no use any more.
    """
    try:
        store = dist.TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            is_master=False,
            timeout=timedelta(seconds=seconds),
        )
        calls = dist.PrefixStore("roll call", store)
        calls.set(str(process.rank), "here")
        time.sleep(seconds)
        return [rank for rank in range(process.world_size) if not calls.check([str(rank)])]
    except (dist.DistError, RuntimeError):
        return [0]  # the store was kept by the first process, or by its launcher
