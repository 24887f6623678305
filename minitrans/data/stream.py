"""The updates of a whole run, in order, from any update on.

A run is one stream of updates numbered from 1, through as many epochs as it needs. Going on after an
interruption is starting the stream at a later number: the plan of each epoch follows from (seed, epoch), so
there is no sampler state to save, and the number of processes may change in between.
"""

import dataclasses
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from minitrans.data.batching import Batch, collate
from minitrans.data.encoded import EncodedCorpus
from minitrans.data.plan import Update, plan, split


@dataclass(frozen=True)
class Share:
    """One process's part of one update."""

    update: int  # number in the whole run, from 1
    epoch: int  # from 1
    target_tokens: int  # of the whole update, over all processes: what the summed nll is divided by
    micro_batches: tuple[Batch, ...]
    ends_epoch: bool
    last: bool  # of the run

    def to(self, device: torch.device) -> "Share":
        """The same share on another device."""
        moved = tuple(batch.to(device, non_blocking=True) for batch in self.micro_batches)
        return dataclasses.replace(self, micro_batches=moved)

    def pin_memory(self) -> "Share":
        """The same share in page-locked memory (the loader calls this for a GPU)."""
        pinned = tuple(
            dataclasses.replace(
                batch,
                src=batch.src.pin_memory(),
                tgt_in=batch.tgt_in.pin_memory(),
                tgt_out=batch.tgt_out.pin_memory(),
            )
            for batch in self.micro_batches
        )
        return dataclasses.replace(self, micro_batches=pinned)


@dataclass(frozen=True)
class UpdateSize:
    """How the training set is cut into updates: the arguments of :func:`minitrans.data.plan.plan`."""

    update_tokens: int | None
    update_sentences: int | None
    chunk_tokens: int
    accumulate: int = 1


class RunPlan:
    """Which rows make up each update of a run, and where the run ends.

    Parameters
    ----------
    encoded
        The training split.
    size
        Of an update.
    seed
        Of the run.
    max_updates, max_epochs
        The run ends at whichever comes first.

    Raises
    ------
    UserError
        A pair is longer than an update may be.
    """

    def __init__(
        self, encoded: EncodedCorpus, size: UpdateSize, seed: int, max_updates: int, max_epochs: int | None
    ):
        self.encoded, self.size, self.seed = encoded, size, seed
        self.max_epochs = max_epochs
        self.first_epoch = self.epoch(1)
        self.total = self._total(max_updates)

    def epoch(self, number: int) -> list[Update]:
        """The updates of one epoch (numbered from 1)."""
        return plan(
            self.encoded.lengths,
            update_tokens=None if self.size.update_sentences else self.size.update_tokens,
            update_sentences=self.size.update_sentences,
            chunk_tokens=self.size.chunk_tokens,
            seed=self.seed,
            epoch=number,
            lines=self.encoded.lines,
            origin=self.encoded.origin,
        )

    def _total(self, max_updates: int) -> int:
        """Updates of the run. Epochs differ a little in length: chunks fill updates in another order."""
        total = 0
        for number in range(1, (self.max_epochs or 0) + 1):
            total += len(self.epoch(number))
            if total >= max_updates:
                break
        return min(total, max_updates) if self.max_epochs else max_updates

    def updates(self, start: int) -> Iterator[tuple[int, int, bool, Update]]:
        """From update number ``start + 1`` on: its number, its epoch, whether it ends the epoch, its rows."""
        number, epoch = 0, 0
        while number < self.total:
            epoch += 1
            updates = self.first_epoch if epoch == 1 else self.epoch(epoch)
            for place, update in enumerate(updates, start=1):
                number += 1
                if start < number <= self.total:
                    yield number, epoch, place == len(updates), update


class UpdateStream(IterableDataset[Share]):
    """One process's shares of the updates of a run.

    Parameters
    ----------
    run_plan
        Of the whole run.
    start
        Updates already made.
    rank, world_size
        This process, and how many there are.
    """

    def __init__(self, run_plan: RunPlan, start: int, rank: int, world_size: int):
        super().__init__()
        self.run_plan, self.start, self.rank, self.world_size = run_plan, start, rank, world_size

    def __iter__(self) -> Iterator[Share]:
        worker = get_worker_info()
        workers, own = (worker.num_workers, worker.id) if worker else (1, 0)
        # The loader takes from its workers in turn, so dealing updates in turn keeps their order.
        for turn, (number, epoch, ends_epoch, update) in enumerate(self.run_plan.updates(self.start)):
            if turn % workers == own:
                yield self._share(number, epoch, ends_epoch, update)

    def _share(self, number: int, epoch: int, ends_epoch: bool, update: Update) -> Share:
        encoded, size = self.run_plan.encoded, self.run_plan.size
        parts = split(update, encoded.lengths, self.world_size, size.accumulate)[self.rank]
        micro_batches = tuple(
            collate(encoded, part.rows, weight=part.weight, number=part.number) for part in parts
        )
        last = number == self.run_plan.total
        return Share(number, epoch, update.target_tokens, micro_batches, ends_epoch, last)

    def loader(self, num_workers: int, pin_memory: bool) -> DataLoader[Share]:
        """A loader whose items are whole shares, in order."""
        return DataLoader(
            self,
            batch_size=None,
            num_workers=num_workers,
            pin_memory=pin_memory,
            worker_init_fn=_end_quietly_with_training,
        )


def _end_quietly_with_training(worker: int) -> None:
    """Ctrl-C and SIGTERM reach the whole process group; a loader process ends when training has."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    tell = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        # Training was killed while it took a batch: of that, multiprocessing would print a traceback here.
        if not isinstance(error, ConnectionError | EOFError):
            tell(kind, error, trace)

    sys.excepthook = hook
