"""A training command from beginning to end: check, make the run folder, train, score, report."""

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from rich.table import Column, Table

from minitrans import checkpoint, run
from minitrans.checkpoint import Checkpoint, Progress
from minitrans.config import TrainConfig, plain
from minitrans.console import Console
from minitrans.errors import StoppedEarlyError, UserError
from minitrans.model.parameters import parameter_table
from minitrans.processes import launched
from minitrans.processors import use_threads
from minitrans.run import RunFolder
from minitrans.training import finish, precision
from minitrans.training.fit import fit
from minitrans.training.launch import follow, needs_workers, nothing_to_do, run_workers, word_given
from minitrans.training.leak import ANNOUNCEMENT as LEAK_ANNOUNCEMENT
from minitrans.training.prepare import Material, prepare
from minitrans.training.resume import AUTO, begun, continuation, run_folder


def train(config: TrainConfig, typed: Mapping[str, Any]) -> None:
    """What a training command line means: begin a run, go on with one, or work on one that another leads.

    Parameters
    ----------
    config
        The configuration.
    typed
        What the user typed of it.
    """
    process = launched()
    folder = run_folder(config) if process else None
    if process and folder and process.rank > 0:
        follow(folder, process, config.trainer.timeout)
    elif config.resume == AUTO and not begun(config):
        print(f"{config.run_dir} holds no checkpoint to go on from: starting anew", flush=True)
        start(config, typed)
    elif config.resume:
        go_on(config, typed)
    else:
        start(config, typed)


def start(config: TrainConfig, typed: Mapping[str, Any]) -> None:
    """Begin a new run.

    Parameters
    ----------
    config
        The configuration.
    typed
        What the user typed of it, for the folder's name.

    Raises
    ------
    UserError
        Anything wrong with the input, before a folder is made.
    """
    console = Console()
    begun_before = config.resume == AUTO  # and killed before its first checkpoint
    if config.run_dir and not begun_before:
        run.refuse_used(run.RunFolder.of(config.run_dir).path)
    if config.schedule.get("kind") == "noam" and "optimizer.lr" in typed:
        raise UserError(
            "optimizer.lr means nothing with schedule=noam, whose peak is "
            "schedule.factor / sqrt(d_model x warmup_updates); set that, or use schedule=inverse_sqrt"
        )
    use_threads(config.threads)
    material = prepare(config)
    _announce(console, config, material)
    if begun_before:
        folder = run.open_or_create(run.RunFolder.of(config.run_dir))
    else:
        folder = run.create(config.run_dir, str(typed.get("experiment", "")), *_words(config))
    config = replace(config, resume="", force=False)
    with run.locked(folder):
        _write_records(config, folder, material)
        _train_and_score(console, config, folder, material, None)


def go_on(config: TrainConfig, typed: Mapping[str, Any]) -> None:
    """Go on with the run that ``resume=`` names.

    Raises
    ------
    UserError
        Nothing to go on from, or settings that would make it another experiment.
    """
    console = Console()
    going_on = continuation(config, typed)
    use_threads(going_on.config.threads)
    material = prepare(going_on.config, going_on.start.tokenizers)
    folder, progress = going_on.folder, going_on.start.progress
    unscored = (folder.checkpoints / checkpoint.LAST).exists() and not folder.result.exists()
    if is_finished(progress, going_on.config, material) and not unscored:
        nothing_to_do(folder)
        console.print(f"{folder.path} is finished: {progress.update} updates made.", soft_wrap=True)
        return
    _announce(console, going_on.config, material)
    console.print(str(going_on), highlight=False, soft_wrap=True)
    with run.locked(run.open_or_create(folder)):
        _write_records(going_on.config, folder, material)
        _train_and_score(console, going_on.config, folder, material, going_on.start)


def _write_records(config: TrainConfig, folder: RunFolder, material: Material) -> None:
    """What the folder says of its run; where the run came from is written once, at its beginning."""
    run.remove_partial_files(folder)
    run.write_config(folder, plain(config))
    material.tokenizers.save(folder.path)
    record = folder.path / "provenance.json"
    if not record.exists():
        origin = run.provenance(config.seed, material.source.hashes())
        run.write_json(record, {**origin, "leak": not config.model.causal})


def _train_and_score(
    console: Console, config: TrainConfig, folder: RunFolder, material: Material, begin: Checkpoint | None
) -> None:
    started = time.perf_counter()
    folder.result.unlink(missing_ok=True)  # of fewer updates
    if begin is None or not is_finished(begin.progress, config, material):
        _train(config, folder, material, begin)
    else:
        nothing_to_do(folder)
    last = folder.checkpoints / checkpoint.LAST
    if not last.exists():
        raise StoppedEarlyError(
            f"stopped before the first checkpoint; start again with run_dir={folder.path} resume=auto"
        )
    progress = checkpoint.read(last).progress
    if not is_finished(progress, config, material):
        raise StoppedEarlyError(
            f"stopped after update {progress.update}, which is saved; go on with resume={folder.path}"
        )
    minutes = (time.perf_counter() - started) / 60
    console.print(f"Trained to update {progress.update:,} in {minutes:.1f} minutes.", highlight=False)
    cards = finish.finish(config, folder, material.source)
    finish.report(folder, cards, console)


def _train(config: TrainConfig, folder: RunFolder, material: Material, begin: Checkpoint | None) -> None:
    try:
        _make_updates(config, folder, material, begin)
    except UserError as error:
        if not (folder.checkpoints / checkpoint.LAST).exists():
            raise
        raise UserError(f"{error}; the last checkpoint is whole: go on with resume={folder.path}") from error


def _make_updates(
    config: TrainConfig, folder: RunFolder, material: Material, begin: Checkpoint | None
) -> None:
    if needs_workers(config.trainer):
        run_workers(config.trainer, folder, begin.path if begin else None)
        return
    with word_given(folder, begin.path if begin else None):
        fit(config, folder, material, begin)


def is_finished(progress: Progress, config: TrainConfig, material: Material) -> bool:
    """Whether a run has made all its updates, or has ended for want of progress."""
    patience = config.training.patience
    gave_up = patience is not None and progress.stale_validations >= patience
    return gave_up or progress.update >= material.run_plan.total


def _words(config: TrainConfig) -> tuple[str, ...]:
    """What tells this run from others, for its folder's name."""
    model = config.model
    return (
        f"{config.data.get('src', '')}-{config.data.get('tgt', '')}",
        f"{model.num_encoder_layers}x{model.d_model}",
        f"seed{config.seed}",
    )


def _announce(console: Console, config: TrainConfig, material: Material) -> None:
    """A few lines on what is about to be trained on what."""
    if not config.model.causal:
        console.print(LEAK_ANNOUNCEMENT, highlight=False, soft_wrap=True)
    _, reason = precision.choose(config.trainer.precision, config.trainer.accelerator)
    src, tgt = material.tokenizers.src, material.tokenizers.tgt
    vocabulary = (
        f"{src.vocab_size:,} joint"
        if material.tokenizers.joint
        else f"{src.vocab_size:,} + {tgt.vocab_size:,}"
    )
    per_epoch = len(material.run_plan.first_epoch)
    rows = parameter_table(material.model)
    table = Table("side", "part", Column("parameters", justify="right"), Column("share", justify="right"))
    for row in rows:
        table.add_row(row.side, row.part, f"{row.count:,}", f"{row.share:.1%}")
    console.print(table)
    parameters = sum(row.count for row in rows)
    console.print(str(material.cleaning), highlight=False)
    console.print(
        f"{len(material.train):,} training and {len(material.valid):,} validation pairs · "
        f"vocabulary {vocabulary}\n"
        f"{per_epoch:,} update{'s' if per_epoch > 1 else ''} an epoch, {material.run_plan.total:,} in all · "
        f"peak rate {material.schedule.lr:g}\n"
        f"{parameters:,} parameters · {reason} · threads: {torch.get_num_threads()}",
        highlight=False,
    )
