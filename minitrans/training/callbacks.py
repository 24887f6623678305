"""What happens between updates: logging, validation, checkpoints, the progress bar.

Everything here counts updates of the whole run (``module.progress.update``), never Lightning's own steps or
epochs, which start at zero again when a run goes on from a checkpoint. The callbacks run in the order in
which :mod:`minitrans.training.fit` lists them.
"""

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import Logger
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from minitrans import checkpoint
from minitrans.analysis.instruments import measure
from minitrans.checkpoint import Checkpoint
from minitrans.config import Experiment, TrainingConfig, plain
from minitrans.data.batching import Batch
from minitrans.data.stream import Share
from minitrans.data.tokenizer import Tokenizers
from minitrans.decoding.translator import evaluating
from minitrans.errors import UserError
from minitrans.model.encoder_decoder import EncoderDecoder
from minitrans.run import RunFolder
from minitrans.training.ema import MovingAverage
from minitrans.training.interruption import Interruption
from minitrans.training.log import MetricsFile, Row, log_row
from minitrans.training.module import Totals, TranslationModule, widest
from minitrans.training.sharding import gathered, like
from minitrans.training.utilisation import Utilisation
from minitrans.training.validation import Validation

# Gets a validation's translations, for a logger that can show them: model, update, translations.
Show = Callable[[EncoderDecoder, int, list[str]], None]


class Stopwatch:
    """Seconds of training, with those of validating and saving left out of the throughput."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._paused = 0.0

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Time inside the block does not count towards the current window."""
        start = time.perf_counter()
        yield
        self._paused += time.perf_counter() - start

    def lap(self) -> tuple[float, float]:
        """End the window: its seconds with and without the pauses."""
        now = time.perf_counter()
        whole, paused = now - self._start, self._paused
        self._start, self._paused = now, 0.0
        return whole, whole - paused


def _module(pl_module: LightningModule) -> TranslationModule:
    assert isinstance(pl_module, TranslationModule)
    return pl_module


class FollowWeights(Callback):
    """Keeps the exponential moving average of the weights."""

    def __init__(self, average: MovingAverage):
        self.average = average

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep of the average what this process keeps of the weights."""
        weights = _module(pl_module).model.state_dict()
        self.average.weights = {
            name: like(weights[name], mean) for name, mean in self.average.weights.items()
        }

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: object, batch: Share, batch_idx: int
    ) -> None:
        """Move the average towards the weights that the update left."""
        module = _module(pl_module)
        self.average.follow(module.model, module.progress.update)


class LogMetrics(Callback):
    """A row of ``metrics.csv`` and of the logger every ``every`` updates, means over those updates.

    Throughput, padding share and utilisation (``target_tokens_per_s``, ``padding_fraction``, ``mfu``) are
    those of the updates alone, without validating and saving.

    Parameters
    ----------
    file
        The table; None in all processes but the first.
    loggers
        The loggers besides.
    every
        Updates of a row.
    stopwatch
        Of the training.
    utilisation
        What throughput comes to.
    """

    def __init__(
        self,
        file: MetricsFile | None,
        loggers: list[Logger],
        every: int,
        stopwatch: Stopwatch,
        utilisation: Utilisation,
    ):
        self.file, self.loggers, self.every = file, loggers, every
        self.stopwatch, self.utilisation = stopwatch, utilisation
        self.speed, self.loss = 0.0, 0.0

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: object, batch: Share, batch_idx: int
    ) -> None:
        """Write the row where it is due."""
        module = _module(pl_module)
        if module.progress.update % self.every == 0 or batch.last:
            module.catch_up()
            self.write(_training_row(trainer, module, self.stopwatch, self.utilisation))

    def write(self, row: Row) -> None:
        """Write one row everywhere (the first process alone has a file)."""
        if row["split"] == "train":
            self.speed, self.loss = float(row["target_tokens_per_s"]), float(row["loss"])
        if self.file is not None:
            self.file.write(row)
            log_row(self.loggers, row)


def _training_row(
    trainer: Trainer, module: TranslationModule, stopwatch: Stopwatch, utilisation: Utilisation
) -> Row:
    whole, training = stopwatch.lap()
    with stopwatch.paused():  # the first time it is measured
        peak = utilisation.peak(module.device) * trainer.world_size
    module.progress.seconds += whole
    totals, report = _summed(trainer, module.totals), module.report
    module.totals = Totals()
    nll = totals.nll / totals.target_tokens
    flops = utilisation.flops(totals.real_positions - totals.target_tokens, totals.target_tokens)
    return {
        "update": report.update,
        "epoch": report.epoch,
        "split": "train",
        "loss": totals.smoothed / totals.target_tokens,
        "nll": nll,
        "perplexity": float(torch.tensor(nll).exp()),
        "lr": report.lr,
        "grad_norm": report.grad_norm,
        "target_tokens_per_s": totals.target_tokens / training,
        "padding_fraction": 1 - totals.real_positions / totals.positions,
        "mfu": flops / training / peak,
        "seconds": module.progress.seconds,
    }


def _summed(trainer: Trainer, totals: Totals) -> Totals:
    """The totals over all processes."""
    if trainer.world_size == 1:
        return totals
    values = [totals.smoothed, totals.nll, totals.target_tokens, totals.real_positions, totals.positions]
    device = trainer.strategy.root_device
    summed = trainer.strategy.reduce(
        torch.tensor(values, dtype=widest(device), device=device), reduce_op="sum"
    )
    smoothed, nll, tokens, real, positions = summed.tolist()
    return Totals(smoothed, nll, int(tokens), int(real), int(positions), totals.updates)


class Validate(Callback):
    """Loss, perplexity and BLEU on the validation split; the best so far; early stopping.

    Parameters
    ----------
    validation
        Scores the model.
    settings
        ``validate_every``, ``metric``, ``patience``.
    metrics, stopwatch
        Where the row goes, and what must not count its seconds.
    average
        The moving average, which is what is scored where there is one.
    show
        Shows the validation's translations, where a logger can.
    """

    def __init__(
        self,
        validation: Validation,
        settings: TrainingConfig,
        metrics: LogMetrics,
        stopwatch: Stopwatch,
        average: MovingAverage | None,
        show: Show | None,
    ):
        self.validation, self.settings, self.metrics, self.stopwatch = (
            validation,
            settings,
            metrics,
            stopwatch,
        )
        self.average, self.show = average, show
        self.improved = False

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: object, batch: Share, batch_idx: int
    ) -> None:
        """Validate where it is due."""
        self.improved = False
        every = self.settings.validate_every
        due = batch.ends_epoch if every is None else batch.update % every == 0
        if due or batch.last:
            _module(pl_module).catch_up()
            with self.stopwatch.paused():
                self._validate(trainer, _module(pl_module), batch)

    def _validate(self, trainer: Trainer, module: TranslationModule, batch: Share) -> None:
        weights = self.average.in_place(module.model) if self.average else contextlib.nullcontext()
        with weights, module.whole() as model, evaluating(model):
            scores = self.validation.run(model)
            if self.show is not None:
                self.show(model, batch.update, scores.translations)
        self.metrics.write({"update": batch.update, "epoch": batch.epoch, "split": "valid", **scores.row()})
        self._compare(module, scores.row()["bleu" if self.settings.metric == "bleu" else "nll"])
        patience = self.settings.patience
        if patience is not None and module.progress.stale_validations >= patience:
            trainer.should_stop = True

    def _compare(self, module: TranslationModule, value: float) -> None:
        """Remember the best. A value that is not a number is never the best, and never bars a later one."""
        progress = module.progress
        best = progress.best_value
        better_than = (lambda a, b: a > b) if self.settings.metric == "bleu" else (lambda a, b: a < b)
        self.improved = math.isfinite(value) and (best is None or better_than(value, best))
        if self.improved:
            progress.best_value, progress.best_update, progress.stale_validations = value, progress.update, 0
        else:
            progress.stale_validations += 1


class Diagnose(Callback):
    """Rows of ``diagnostics.csv``: what every head does on a fixed batch, at the start and ever so often.

    Measured at the updates that ``every`` divides, update 0 too, and at the run's last one; of the weights
    themselves, not of their moving average. A run that goes on from such an update measures it again, on
    the same weights, so that ``file`` is to end before it.

    Parameters
    ----------
    file
        The table; None in all processes but the first.
    batch
        What is measured on.
    every
        Updates between measurements.
    label_smoothing
        That of training.
    """

    def __init__(
        self, file: MetricsFile | None, batch: Batch, every: int, label_smoothing: float, stopwatch: Stopwatch
    ):
        self.file, self.batch, self.every = file, batch, every
        self.label_smoothing, self.stopwatch = label_smoothing, stopwatch

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Measure where the run begins, or goes on from an update that is due."""
        module = _module(pl_module)
        if module.progress.update % self.every == 0:
            self._measure(module)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: object, batch: Share, batch_idx: int
    ) -> None:
        """Measure where it is due: the last update is one that no other follows, by early stopping too."""
        if batch.update % self.every == 0 or batch.last or trainer.should_stop:
            self._measure(_module(pl_module))

    def _measure(self, module: TranslationModule) -> None:
        module.catch_up()
        with self.stopwatch.paused(), module.whole() as model:
            if self.file is None:
                return
            measured = measure(model, [self.batch.to(module.device)], self.label_smoothing)
            for figures in measured.heads:
                self.file.write({"update": module.progress.update, **asdict(figures)})
            self.file.keep()


class SaveCheckpoints(Callback):
    """Writes ``step-NNNNNN.ckpt``, and lets ``last.ckpt`` and ``best.ckpt`` stand for the right one.

    Parameters
    ----------
    folder
        The run folder.
    experiment, tokenizers
        What a checkpoint carries besides weights, optimizer and progress.
    validate
        Knows whether the last validation was the best.
    interruption
        Asks for a checkpoint and an end after the update in hand.
    average
        The moving average of the weights, where there is one.
    """

    def __init__(
        self,
        folder: RunFolder,
        experiment: Experiment,
        tokenizers: Tokenizers,
        validate: Validate,
        interruption: Interruption,
        stopwatch: Stopwatch,
        average: MovingAverage | None,
    ):
        self.folder, self.experiment, self.tokenizers = folder, experiment, tokenizers
        self.validate, self.interruption, self.stopwatch, self.average = (
            validate,
            interruption,
            stopwatch,
            average,
        )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """See that all processes start from the same place, and that ``best.ckpt`` is of an update before it.

        Raises
        ------
        UserError
            Processes that were started from outside have met the word of an earlier start.
        """
        progress = _module(pl_module).progress
        has_best = trainer.is_global_zero and self._keep_best(progress)
        own = (progress.update, plain(self.experiment))
        first, has_best = trainer.strategy.broadcast((own, has_best))
        if first != own:
            raise UserError(
                f"rank {trainer.global_rank} has read the word of an earlier start of this run; "
                "remove the files .begin-* of the run folder and start again, torchrun with a new --rdzv-id"
            )
        if not has_best:
            progress.best_value = progress.best_update = None

    def _keep_best(self, progress: checkpoint.Progress) -> bool:
        """Let ``best.ckpt`` stand for the best of the updates made; returns whether there is one."""
        best = self.folder.checkpoints / checkpoint.BEST
        if progress.best_update is not None and self.folder.step(progress.best_update).exists():
            checkpoint.link(self.folder.step(progress.best_update), best)
        with contextlib.suppress(UserError):
            if best.exists() and checkpoint.read(best).progress.update == progress.best_update:
                return True
        best.unlink(missing_ok=True)
        return False

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: object, batch: Share, batch_idx: int
    ) -> None:
        """Save where it is due: every so often, at a new best, at the end, when asked to stop."""
        stopping = self.interruption.agreed(trainer)
        due = batch.update % self.experiment.training.save_every == 0
        if due or batch.last or stopping or trainer.should_stop or self.validate.improved:
            _module(pl_module).catch_up()
            with self.stopwatch.paused():
                self._save(trainer, _module(pl_module))
        if stopping:
            trainer.should_stop = True

    def _save(self, trainer: Trainer, module: TranslationModule) -> None:
        first = trainer.is_global_zero
        model = gathered(module.model.state_dict(keep_vars=True), keep=first)
        optimizer = gathered(trainer.optimizers[0].state_dict(), keep=first)
        average = gathered(self.average.weights, keep=first) if self.average else None
        window = asdict(_summed(trainer, module.totals))
        if first:
            self._write(
                Checkpoint(
                    path=self.folder.step(module.progress.update),
                    experiment=self.experiment,
                    tokenizers=self.tokenizers,
                    model=model,
                    ema=average,
                    optimizer=optimizer,
                    progress=replace(module.progress, window=window),
                )
            )
        trainer.strategy.barrier("checkpoint")

    def _write(self, content: Checkpoint) -> None:
        if self.validate.metrics.file is not None:
            self.validate.metrics.file.keep()
        checkpoint.save(content)
        if self.validate.improved:
            checkpoint.link(content.path, self.folder.checkpoints / checkpoint.BEST)
        checkpoint.link(content.path, self.folder.checkpoints / checkpoint.LAST)
        settings = self.experiment.training
        for old in self.folder.steps()[: -max(settings.keep_last, settings.average_last, 1)]:
            old.unlink()


class ProgressBar(Callback):
    """One line: updates done, loss, target tokens a second, time left."""

    def __init__(self, metrics: LogMetrics, start: int, total: int):
        self.metrics = metrics  # Lightning puts a function of its own under the name log
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[loss]} {task.fields[speed]}"),
            TimeRemainingColumn(compact=True),
        )
        self.loss = ""
        self.task = self.bar.add_task("training", total=total, completed=start, loss="", speed="")

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show the bar."""
        self.bar.start()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: object, batch: Share, batch_idx: int
    ) -> None:
        """Move the bar. Where the sums are not read yet, the loss is that of the last row."""
        totals = _module(pl_module).totals
        loss = totals.smoothed / totals.target_tokens if totals.target_tokens else self.metrics.loss
        if loss:
            self.loss = f"loss {loss:.3f}"
        speed = f"· {self.metrics.speed:,.0f} tokens/s" if self.metrics.speed else ""
        self.bar.update(self.task, completed=batch.update, loss=self.loss, speed=speed)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave the bar as it stands."""
        self.bar.stop()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Give the terminal back."""
        self.bar.stop()
