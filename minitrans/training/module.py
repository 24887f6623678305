r"""One optimizer update, exactly.

The loss of an update is the sum over its real target tokens divided by their number, over all processes and
micro-batches:

.. math:: L = \frac{1}{\sum_m n_m} \sum_m \sum_{t \in m} \ell_t

so that how the update is split changes nothing: each micro-batch m contributes its own sum, divided by the
whole update's count, which the plan knows beforehand.

To look at a number that a GPU computes is to wait until it has done all that it was given. So nothing is
looked at during an update: losses and gradient norms stay where they are until
:meth:`TranslationModule.catch_up` reads those of several updates at once, before a row of the log or anything
else is written. On a processor, where nothing is to be waited for, that is before each step.
"""

import contextlib
import itertools
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.strategies import ParallelStrategy
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from minitrans.checkpoint import Progress
from minitrans.config import TrainingConfig
from minitrans.data.batching import Batch
from minitrans.data.stream import Share
from minitrans.data.tokenizer import PAD_ID
from minitrans.errors import UserError
from minitrans.model.encoder_decoder import EncoderDecoder
from minitrans.training.compiled import States, states
from minitrans.training.optimizer import AdamW
from minitrans.training.schedule import Schedule
from minitrans.training.seeding import seed_micro_batch
from minitrans.training.sharding import WholeCopy, shard


@dataclass
class Totals:
    """Sums since the last row of the log, this process's part."""

    smoothed: float = 0.0
    nll: float = 0.0
    target_tokens: int = 0
    real_positions: int = 0
    positions: int = 0
    updates: int = 0

    def add(self, smoothed: float, nll: float, src_tokens: float, tgt_tokens: float) -> None:
        """Count the sums over the real tokens of one micro-batch, and their numbers."""
        self.smoothed += smoothed
        self.nll += nll
        self.target_tokens += int(tgt_tokens)
        self.real_positions += int(src_tokens + tgt_tokens)


@dataclass
class UpdateReport:
    """What the last update did."""

    update: int = 0
    epoch: int = 0
    lr: float = 0.0
    grad_norm: float = 0.0
    lines: tuple[int, ...] = ()


@dataclass(frozen=True)
class Unread:
    """An update's numbers on the device that computes them."""

    report: UpdateReport  # without the norm
    lines: tuple[int, ...]  # of all micro-batches, those of weight zero too
    norm: Tensor  # ()
    sums: list[Tensor]  # (4,) each: what Totals.add takes, a micro-batch


def widest(device: torch.device) -> torch.dtype:
    """The widest number type that a device has: sums of many tokens are to be exact."""
    return torch.float32 if device.type == "mps" else torch.float64


class TranslationModule(LightningModule):
    """The model with its update rule; Lightning owns devices, precision and processes.

    One Lightning batch is a :class:`~minitrans.data.stream.Share`: this process's part of one update.

    Parameters
    ----------
    model
        The Transformer, or another model of its face.
    optimizer
        Settings of the optimizer (:mod:`minitrans.training.optimizer`).
    schedule
        The rate as a function of the update's number.
    settings
        Label smoothing, clipping.
    seed
        The run's seed, from which each micro-batch's dropout follows.
    run_stacks
        From the model and a batch to the decoder's states: :func:`minitrans.training.compiled.states`, or its
        compiled twin.
    """

    def __init__(
        self,
        model: EncoderDecoder,
        optimizer: AdamW,
        schedule: Schedule,
        settings: TrainingConfig,
        seed: int,
        run_stacks: States = states,
    ):
        super().__init__()
        self.automatic_optimization = False
        self.model = model
        self.optimizer_settings = optimizer
        self.schedule = schedule
        self.settings = settings
        self.seed = seed
        self.run_stacks = run_stacks
        self.progress = Progress()
        self.totals = Totals()
        self.report = UpdateReport()
        self._copy: WholeCopy | None = None
        self._unread: list[Unread] = []

    def configure_model(self) -> None:
        """Shard the weights over the processes, where the strategy is one that leaves it to the model."""
        if self.device_mesh is not None:
            self._copy = WholeCopy(self.model)
            shard(self, "losses", self.device_mesh["data_parallel"])

    @contextlib.contextmanager
    def whole(self) -> Iterator[EncoderDecoder]:
        """The model with all its weights in this process, to look at. All processes must call it."""
        if self._copy is None:
            yield self.model
            return
        with self._copy.of(self.model, self.device) as model:
            yield model

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The optimizer; its rate is set anew before each update."""
        return self.optimizer_settings.build(self.model)

    def transfer_batch_to_device(self, batch: Share, device: torch.device, dataloader_idx: int) -> Share:
        """Move the micro-batches of one update."""
        return batch.to(device)

    def training_step(self, batch: Share, batch_idx: int) -> None:
        """Make one update: all backward passes, one clipping, one step."""
        optimizer = self.optimizers()
        assert isinstance(optimizer, LightningOptimizer)
        rate = self.schedule.rate(batch.update)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        sums = self._backward(batch)
        report = UpdateReport(batch.update, batch.epoch, rate, lines=_lines(batch, fillers=False))
        self._unread.append(Unread(report, _lines(batch, fillers=True), self._clip(), sums))
        if self.device.type == "cpu":
            self.catch_up()
        optimizer.step()
        self._record(batch, report)

    def losses(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Sums over the real target tokens of one micro-batch: the smoothed loss and the plain nll."""
        return self.model.nll(
            self.run_stacks(self.model, batch), batch.tgt_out, self.settings.label_smoothing, batch.counted
        )

    def catch_up(self) -> None:
        """Read what the updates since the last time came to, so that totals and report tell it.

        Anything that writes calls it first. All processes read the same norms, and so refuse together.

        Raises
        ------
        UserError
            Of the first update whose loss or gradient is not a finite number.
        """
        if not self._unread:
            return
        unread, self._unread = self._unread, []
        wide = widest(self.device)
        tensors = [n for update in unread for n in (update.norm.to(wide).reshape(1), *update.sums)]
        numbers = iter(torch.cat(tensors).tolist())
        for update in unread:
            update.report.grad_norm = next(numbers)
            for _ in update.sums:
                self.totals.add(*itertools.islice(numbers, 4))
            _refuse_divergence(update)

    def _backward(self, share: Share) -> list[Tensor]:
        """All micro-batches' backward passes; returns the sums of those that count."""
        sums = []
        for i, micro_batch in enumerate(share.micro_batches):
            seed_micro_batch(self.seed, share.update, micro_batch.number)
            with self._collective(i == len(share.micro_batches) - 1):
                smoothed, nll = self.losses(micro_batch)
                # the average over processes, times their number, is the sum that the equation has
                scale = micro_batch.weight * self.trainer.world_size / share.target_tokens
                # Outside of autocast, as torch advises: it would make half precision of what the forward
                # pass computed in float32 on purpose. (Lightning holds it open around the whole step.)
                with torch.autocast(self.device.type, enabled=False):
                    self.manual_backward(smoothed * scale)
            if micro_batch.weight:  # one of weight zero only fills a process's turn
                self.totals.positions += micro_batch.src.numel() + micro_batch.tgt_out.numel()
                counts = [(ids != PAD_ID).sum() for ids in (micro_batch.src, micro_batch.tgt_out)]
                wide = widest(self.device)
                sums.append(torch.stack([n.detach().to(wide) for n in (smoothed, nll, *counts)]))  # (4,)
        return sums

    def _collective(self, last: bool) -> AbstractContextManager[Any]:
        """Processes exchange gradients once an update: with the last micro-batch's backward pass."""
        if isinstance(self, FSDPModule):
            self.set_requires_gradient_sync(last)
        strategy = self.trainer.strategy
        if last or not isinstance(strategy, ParallelStrategy):
            return contextlib.nullcontext()
        return strategy.block_backward_sync()

    def _clip(self) -> Tensor:
        """Clip the whole update's gradient; returns its norm before clipping."""
        limit = self.settings.clip_norm
        parameters = [p for p in self.model.parameters() if p.grad is not None]
        norm = torch.nn.utils.clip_grad_norm_(parameters, math.inf if limit is None else limit)
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    def _record(self, share: Share, report: UpdateReport) -> None:
        self.report = report
        self.totals.updates += 1
        self.progress.update = share.update
        self.progress.target_tokens += share.target_tokens


def _lines(share: Share, *, fillers: bool) -> tuple[int, ...]:
    """The pairs of an update, with or without those that only fill a process's turn."""
    return tuple(line for micro in share.micro_batches if micro.weight or fillers for line in micro.lines)


def _refuse_divergence(made: Unread) -> None:
    """Stop before NaN or infinity is in every weight (on a GPU: before such weights are used or kept)."""
    report = made.report
    if math.isfinite(report.grad_norm):
        return
    lines = sorted(line + 1 for line in made.lines)
    shown = ", ".join(map(str, lines[:20])) + (f" and {len(lines) - 20} more" if len(lines) > 20 else "")
    raise UserError(
        f"the loss or its gradient is {report.grad_norm} at update {report.update} (training lines {shown}); "
        "the update was not made; try a lower optimizer.lr, "
        "a longer schedule.warmup_updates or trainer.precision=fp32"
    )
