"""One run: train, keep the best, score it, and write everything down."""

import logging
import warnings
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import Logger, WandbLogger
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, Strategy

from minitrans import checkpoint
from minitrans.allocator import keep_freed_memory
from minitrans.analysis.instruments import COLUMNS as DIAGNOSTICS
from minitrans.checkpoint import Checkpoint
from minitrans.config import TrainConfig, TrainerConfig, TrainingConfig, plain
from minitrans.data.batching import collate
from minitrans.data.stream import UpdateStream
from minitrans.errors import UserError
from minitrans.model.encoder_decoder import EncoderDecoder
from minitrans.processes import Launched, Processes, absent, failed_to_answer, launched
from minitrans.run import RunFolder
from minitrans.training import precision
from minitrans.training.callbacks import (
    Diagnose,
    FollowWeights,
    LogMetrics,
    ProgressBar,
    SaveCheckpoints,
    Show,
    Stopwatch,
    Validate,
)
from minitrans.training.compiled import compiled_states, states
from minitrans.training.ema import MovingAverage
from minitrans.training.interruption import Interruption, own_signals
from minitrans.training.log import MetricsFile, close_loggers, make_loggers
from minitrans.training.module import Totals, TranslationModule
from minitrans.training.prepare import Material
from minitrans.training.resume import experiment_of, settle
from minitrans.training.sharding import like
from minitrans.training.utilisation import Utilisation
from minitrans.training.validation import Validation

_SHOWN_TRANSLATIONS = 10
_DIAGNOSED_SENTENCES = 16
_ROLL_CALL = 5.0  # seconds in which processes notice that one of them is gone


def fit(config: TrainConfig, folder: RunFolder, material: Material, start: Checkpoint | None) -> None:
    """Make the updates of a run, from the first or from those that ``start`` has made.

    Ends with the run, with early stopping, or after the update in hand when the process is asked to end;
    ``last.ckpt`` tells how far it came.

    Parameters
    ----------
    config
        The run's configuration.
    folder
        An existing run folder, held by this process.
    material
        What :func:`minitrans.training.prepare.prepare` made of the configuration.
    start
        The checkpoint to go on from.

    Raises
    ------
    UserError
        The loss is not a number, the disk is full, or another process of the run is gone or silent.
    """
    _quieten()
    if config.training.fast:
        keep_freed_memory()
    module = TranslationModule(
        material.model,
        material.optimizer,
        material.schedule,
        config.training,
        config.seed,
        compiled_states() if config.trainer.compile else states,
    )
    if config.trainer.precision == "fp64":
        module.double()  # before a checkpoint's weights come in
    average = MovingAverage(material.model, config.training.ema_decay) if config.training.ema_decay else None
    if start is not None:
        _restore(module, average, folder, start)
    process = launched()
    loggers = make_loggers(config.logger, folder, plain(config)) if _process_rank() == 0 else []
    with Interruption() as interruption:
        callbacks = _callbacks(config, folder, material, module, average, loggers, interruption)
        if start is not None and start.optimizer is not None:
            callbacks.insert(0, RestoreOptimizer(start.optimizer))
        trainer = _trainer(config, folder, process, callbacks, loggers)
        stream = UpdateStream(
            material.run_plan, module.progress.update, trainer.global_rank, trainer.world_size
        )
        on_gpu = trainer.strategy.root_device.type == "cuda"
        try:
            trainer.fit(module, stream.loader(config.trainer.num_workers, pin_memory=on_gpu))
        except Exception as error:
            if process is None or not failed_to_answer(error):
                raise
            raise UserError(_gone(process, config.trainer.timeout)) from error
        finally:
            close_loggers(loggers)


def _trainer(
    config: TrainConfig,
    folder: RunFolder,
    process: Launched | None,
    callbacks: list[Callback],
    loggers: list[Logger],
) -> Trainer:
    machine = config.trainer
    trainer_precision, _ = precision.choose(machine.precision, machine.accelerator)
    trainer = Trainer(
        accelerator=machine.accelerator,
        devices=process.per_machine if process else machine.devices,
        num_nodes=process.world_size // process.per_machine if process else machine.num_nodes,
        strategy=_strategy(machine, process),
        precision=trainer_precision,  # type: ignore[arg-type]
        max_epochs=1,  # the stream of updates runs through all epochs of the data
        callbacks=callbacks,
        logger=loggers or False,
        use_distributed_sampler=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
        num_sanity_val_steps=0,
        default_root_dir=folder.path,
    )
    return own_signals(trainer)


def _strategy(machine: TrainerConfig, process: Launched | None) -> str | Strategy:
    if machine.strategy == "fsdp":
        return _sharding(machine, process)
    if process is None:
        return machine.strategy
    # the buffers are constant tables: nothing to send before each update
    return DDPStrategy(timeout=timedelta(seconds=machine.timeout), broadcast_buffers=False)


def _sharding(machine: TrainerConfig, process: Launched | None) -> str | Strategy:
    """The weights in parts, which the module deals out; one process alone keeps them whole."""
    if process is None or process.world_size == 1:
        return "auto"
    return ModelParallelStrategy(
        data_parallel_size=process.world_size,
        tensor_parallel_size=1,
        timeout=timedelta(seconds=machine.timeout),
    )


def _gone(process: Launched, timeout: int) -> str:
    ranks = ", ".join(str(rank) for rank in absent(process, _ROLL_CALL)) or "unknown"
    return (
        f"another process of the run (rank {ranks}) was ended or did not answer for {timeout} seconds "
        "(trainer.timeout), and the others were ended"
    )


class RestoreOptimizer(Callback):
    """Puts a checkpoint's optimizer state back, once Lightning has made the optimizer.

    The settings (decay, betas) are those of the configuration, which may have been changed by force.
    """

    def __init__(self, state: dict[str, Any]):
        self.state = state

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Load the state before the first update."""
        optimizer = trainer.optimizers[0]
        saved = self.state["param_groups"]
        groups = [
            {**new, "params": old["params"]}
            for new, old in zip(optimizer.state_dict()["param_groups"], saved, strict=True)
        ]
        numbers = [number for group in saved for number in group["params"]]
        own = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        state = {
            number: {name: like(parameter, item) for name, item in self.state["state"][number].items()}
            for number, parameter in zip(numbers, own, strict=True)
            if number in self.state["state"]
        }
        optimizer.load_state_dict({"state": state, "param_groups": groups})


def _restore(
    module: TranslationModule, average: MovingAverage | None, folder: RunFolder, start: Checkpoint
) -> None:
    checkpoint.load_weights(module.model, start.model, start.path)
    module.progress = replace(start.progress)
    if _process_rank() == 0:
        settle(folder, start)
        # the sums are those of all processes
        module.totals = Totals(**start.progress.window)  # type: ignore[arg-type]
    if average is not None:
        average.restore(start.ema or start.model)


def _callbacks(
    config: TrainConfig,
    folder: RunFolder,
    material: Material,
    module: TranslationModule,
    average: MovingAverage | None,
    loggers: list[Logger],
    interruption: Interruption,
) -> list[Callback]:
    """In the order in which they act after each update: an average must have moved before it is scored."""
    stopwatch = Stopwatch()
    process = launched()
    processes = Processes(process.rank, process.world_size) if process else Processes()
    first_process = processes.rank == 0
    file = MetricsFile(folder.metrics, keep_until=module.progress.update) if first_process else None
    machine = config.trainer
    number_type = precision.number_type(machine.precision, machine.accelerator)
    utilisation = Utilisation(material.model, number_type)
    metrics = LogMetrics(file, loggers, config.training.log_every, stopwatch, utilisation)
    validation = Validation(material, config.search, config.training.validate_sentences, processes)
    show = _translations_shower(loggers, material)
    validate = Validate(validation, config.training, metrics, stopwatch, average, show)
    experiment = experiment_of(config)
    save = SaveCheckpoints(
        folder, experiment, material.tokenizers, validate, interruption, stopwatch, average
    )
    callbacks: list[Callback] = [metrics, validate, save]
    if config.training.diagnose_every is not None:
        # before a checkpoint is saved: its rows must be there when a run goes on from it
        callbacks.insert(2, _diagnose(config.training, folder, material, module, stopwatch))
    if average is not None:
        callbacks.insert(0, FollowWeights(average))
    if config.trainer.progress_bar and first_process:
        callbacks.append(ProgressBar(metrics, module.progress.update, material.run_plan.total))
    return callbacks


def _diagnose(
    settings: TrainingConfig,
    folder: RunFolder,
    material: Material,
    module: TranslationModule,
    stopwatch: Stopwatch,
) -> Diagnose:
    """Measures the heads on the first sentences of the validation split."""
    assert settings.diagnose_every is not None
    columns = ("update", *DIAGNOSTICS)
    file = None
    if _process_rank() == 0:  # the update that a run goes on from is measured again
        file = MetricsFile(folder.diagnostics, keep_until=module.progress.update - 1, columns=columns)
    batch = collate(material.valid, np.arange(min(len(material.valid), _DIAGNOSED_SENTENCES)))
    return Diagnose(file, batch, settings.diagnose_every, settings.label_smoothing, stopwatch)


def _translations_shower(loggers: list[Logger], material: Material) -> Show | None:
    """Sends some of a validation's translations, and an attention picture, to Weights & Biases."""
    wandb_loggers = [logger for logger in loggers if isinstance(logger, WandbLogger)]
    if not wandb_loggers:
        return None
    from minitrans.analysis.drawing import (
        picture,
    )  # matplotlib takes a second to import, and few runs need it here

    sources = list(material.valid_text.src[:_SHOWN_TRANSLATIONS])
    references = list(material.valid_text.tgt[:_SHOWN_TRANSLATIONS])
    drawn = next((row for row, source in enumerate(sources) if source.strip()), 0)  # a blank has no map

    def show(model: EncoderDecoder, update: int, translations: list[str]) -> None:
        rows = [list(row) for row in zip(sources, references, translations, strict=False)]
        for logger in wandb_loggers:
            logger.log_text(
                "translations", columns=["source", "reference", "translation"], data=rows, step=update
            )
        try:
            image = picture(model, material.tokenizers, sources[drawn], translations[drawn])
        except UserError as error:  # a translation that reads as more tokens than there are positions
            print(f"no attention picture at update {update}: {error}")
            return
        for logger in wandb_loggers:
            logger.log_image("attention", [image], step=update)

    return show


def _process_rank() -> int:
    """This process's number; 0 where it is alone."""
    process = launched()
    return process.rank if process else 0


def _quieten() -> None:
    """Silence Lightning's advice on choices that are made on purpose here."""
    for name in ("pytorch", "fabric"):
        logging.getLogger(f"lightning.{name}").setLevel(logging.WARNING)
    for advice in (
        "does not have many workers",
        "will not sync",
        "IterableDataset",
        "val_dataloader",
        "LeafSpec",
        "broadcast_buffers",
    ):
        warnings.filterwarnings("ignore", message=f".*{advice}.*", module="lightning.*")
    # keys of a cache are views, which nothing writes into
    warnings.filterwarnings("ignore", message=".*returned a view tensor.*", module="torch.distributed.fsdp.*")
