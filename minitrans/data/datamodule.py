"""The loaders that Lightning asks for. All that is decided is decided in the plan; this only hands it over.

One training item is this process's share of one update: the list of its micro-batches. The training loader
reports the whole epoch's length and yields from the update at which the run goes on.
"""

from collections.abc import Iterator

import lightning
from torch.utils.data import DataLoader, Dataset, Sampler

from minitrans.config import TrainingConfig
from minitrans.data.batching import Batch, collate, evaluation_batches
from minitrans.data.encoded import EncodedCorpus
from minitrans.data.plan import Update, plan, split


class EpochUpdates(Dataset[list[Batch]]):
    """Item u is one process's micro-batches of the epoch's update u."""

    def __init__(
        self, encoded: EncodedCorpus, updates: list[Update], *, world_size: int, rank: int, accumulate: int
    ) -> None:
        self.encoded = encoded
        self.updates = updates
        self.world_size = world_size
        self.rank = rank
        self.accumulate = accumulate
        self.lengths = encoded.lengths

    def __len__(self) -> int:
        return len(self.updates)

    def __getitem__(self, index: int) -> list[Batch]:
        update = self.updates[index]
        return [
            collate(
                self.encoded,
                micro.rows,
                weight=micro.weight,
                number=micro.number,
                update_target_tokens=update.target_tokens,
            )
            for micro in split(update, self.lengths, self.world_size, self.accumulate)[self.rank]
        ]


class EvaluationBatches(Dataset[Batch]):
    """Item i is the batch i of :func:`~minitrans.data.batching.evaluation_batches`."""

    def __init__(self, encoded: EncodedCorpus, batch_tokens: int) -> None:
        self.encoded = encoded
        self.batches = evaluation_batches(encoded.lengths, batch_tokens)

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> Batch:
        return collate(self.encoded, self.batches[index])


class FromUpdate(Sampler[int]):
    """The numbers ``start`` ... ``length - 1`` in order; as long as the whole epoch to whoever asks.

    Lightning counts a resumed epoch from the update at which it goes on to the length of its loader.
    """

    def __init__(self, start: int, length: int) -> None:
        self.start = start
        self.length = length

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.length))

    def __len__(self) -> int:
        return self.length


class TranslationData(lightning.LightningDataModule):
    """Training updates and validation batches.

    Parameters
    ----------
    train, valid
        The encoded splits.
    training
        Sizes of updates and chunks, and the accumulation.
    seed
        The experiment's; the plan of each epoch follows from it.
    batch_tokens
        Most padded tokens of a validation batch.
    world_size, rank
        Processes, and which one this is.
    start_update
        Updates made before this run: the first one that is yielded, counted over all epochs.
    num_workers
        Loader processes; the order is the same for any number.
    """

    def __init__(
        self,
        train: EncodedCorpus,
        valid: EncodedCorpus,
        training: TrainingConfig,
        *,
        seed: int,
        batch_tokens: int,
        world_size: int = 1,
        rank: int = 0,
        start_update: int = 0,
        num_workers: int = 0,
    ) -> None:
        super().__init__()
        self.train = train
        self.valid = valid
        self.training = training
        self.seed = seed
        self.batch_tokens = batch_tokens
        self.world_size = world_size
        self.rank = rank
        self.num_workers = num_workers
        self.start_epoch, self.start_in_epoch = self.locate(start_update)

    def updates(self, epoch: int) -> list[Update]:
        """The plan of an epoch (from 0)."""
        by_sentences = self.training.update_sentences is not None
        return plan(
            self.train.lengths,
            update_tokens=None if by_sentences else self.training.update_tokens,
            update_sentences=self.training.update_sentences,
            chunk_tokens=self.training.chunk_tokens,
            seed=self.seed,
            epoch=epoch,
            lines=self.train.lines,
            origin=self.train.origin,
        )

    def locate(self, update: int) -> tuple[int, int]:
        """The epoch that holds an update, and its number there, both from 0.

        Epochs differ a little in their number of updates, so they are planned one after the other.
        """
        epoch = 0
        while (length := len(self.updates(epoch))) <= update:
            update -= length
            epoch += 1
        return epoch, update

    def train_dataloader(self) -> DataLoader[list[Batch]]:
        """The loader of the trainer's current epoch (of the start's epoch where no trainer is attached).

        The trainer must reload it every epoch (``reload_dataloaders_every_n_epochs=1``) and leave its sampler
        alone (``use_distributed_sampler=False``); a run that goes on starts at ``start_epoch``.
        """
        return self.epoch_loader(self.start_epoch if self.trainer is None else self.trainer.current_epoch)

    def epoch_loader(self, epoch: int) -> DataLoader[list[Batch]]:
        """This process's share of an epoch's updates; those made before the start are left out."""
        updates = EpochUpdates(
            self.train,
            self.updates(epoch),
            world_size=self.world_size,
            rank=self.rank,
            accumulate=self.training.accumulate,
        )
        start = self.start_in_epoch if epoch == self.start_epoch else 0
        sampler = FromUpdate(start, len(updates))
        return DataLoader(updates, sampler=sampler, batch_size=None, num_workers=self.num_workers)

    def val_dataloader(self) -> DataLoader[Batch]:
        """This process's share of the validation batches: each batch is on one process alone."""
        batches = EvaluationBatches(self.valid, self.batch_tokens)
        share = range(self.rank, len(batches), self.world_size)
        return DataLoader(batches, sampler=share, batch_size=None, num_workers=self.num_workers)
