"""Checkpoints: plain data in one file, enough to translate with and to go on training from.

A checkpoint is a dictionary of numbers, text and tensors, read with ``torch.load(weights_only=True)``, so
that opening one can run nothing. It carries its own configuration and tokenizers: a model with and one
without the 1/sqrt(d_k) scale have identical tensors, so a configuration given again by hand could be wrong
in silence.
"""

import csv
import dataclasses
import os
import pickle
import secrets
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minitrans.build import build_model
from minitrans.config import Experiment, parse, plain
from minitrans.data.tokenizer import Tokenizers
from minitrans.errors import UserError
from minitrans.model.encoder_decoder import EncoderDecoder

FORMAT = 1
BEST, LAST, AVERAGE = "best.ckpt", "last.ckpt", "average.ckpt"
_OPTIONAL = (dict, type(None))
_KINDS: Mapping[str, tuple[type, ...]] = {
    "format": (int,),
    "version": (str,),
    "experiment": (dict,),
    "tokenizers": (dict,),
    "model": (dict,),
    "ema": _OPTIONAL,
    "optimizer": _OPTIONAL,
    "progress": (dict,),
}


@dataclass
class Progress:
    """How far a run has come: all that the future of a run depends on besides weights and optimizer."""

    update: int = 0
    target_tokens: int = 0
    seconds: float = 0.0
    best_value: float | None = None
    best_update: int | None = None
    stale_validations: int = 0
    window: dict[str, float] = field(default_factory=dict)
    """Sums over the updates since the last row of ``metrics.csv``, of all processes."""


@dataclass(frozen=True)
class Checkpoint:
    """What one file holds."""

    path: Path
    experiment: Experiment
    tokenizers: Tokenizers
    model: dict[str, Tensor]
    ema: dict[str, Tensor] | None
    optimizer: dict[str, Any] | None
    progress: Progress

    @property
    def weights(self) -> dict[str, Tensor]:
        """The weights to translate with: the moving average where the run kept one."""
        return self.ema or self.model


@dataclass(frozen=True)
class Loaded:
    """A checkpoint made ready to translate."""

    path: Path
    experiment: Experiment
    tokenizers: Tokenizers
    model: EncoderDecoder
    progress: Progress


# --------------------------------------------------------------------------------------
# Writing
# --------------------------------------------------------------------------------------


def save(checkpoint: Checkpoint) -> None:
    """Write ``checkpoint.path`` so that a file of that name is always whole."""
    from minitrans import __version__

    content = {
        "format": FORMAT,
        "version": __version__,
        "experiment": plain(checkpoint.experiment),
        "tokenizers": checkpoint.tokenizers.state(),
        "model": checkpoint.model,
        "ema": checkpoint.ema,
        "optimizer": checkpoint.optimizer,
        "progress": dataclasses.asdict(checkpoint.progress),
    }
    write_whole(checkpoint.path, lambda partial: torch.save(content, partial))


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Write beside the final name, flush to the disk, rename: the name never stands for half a file.

    Several may write one file at once, from one machine or more: each has a partial file of its own (a
    process number would not do, machines and containers share those), and the last one's content stays.

    Raises
    ------
    UserError
        The disk is full or refuses; what was written of the file is removed.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        write(partial)
        _flush(partial)
        partial.replace(path)
        _flush(path.parent)
    except (OSError, RuntimeError) as error:
        raise UserError(
            f"{path} could not be written: {error}; free some space or give another run_dir"
        ) from error
    finally:
        partial.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def link(target: Path, name: Path) -> None:
    """Let ``name`` stand for the file ``target`` too, taking no more disk where the file system can."""

    def write(partial: Path) -> None:
        try:
            os.link(target, partial)
        except OSError:  # a file system without hard links
            partial.write_bytes(target.read_bytes())

    write_whole(name, write)


# --------------------------------------------------------------------------------------
# Reading
# --------------------------------------------------------------------------------------


def resolve(path: str | Path) -> Path:
    """The ``.ckpt`` file that ``path`` means: itself, or a run folder's best (else its last).

    Raises
    ------
    UserError
        Nothing there, or a folder without checkpoints.
    """
    if not str(path):
        raise UserError("checkpoint= is missing; give a .ckpt file or a run folder")
    path = Path(path)
    if path.is_file():
        return path
    if not path.exists():
        raise UserError(f"the checkpoint {path} does not exist; give a .ckpt file or a run folder")
    for name in (BEST, LAST):
        for folder in (path / "checkpoints", path):
            if (folder / name).is_file():
                return folder / name
    raise UserError(
        f"{path} holds no checkpoints/{BEST} and no checkpoints/{LAST}; give a .ckpt file or a run folder"
    )


def read(path: str | Path) -> Checkpoint:
    """Read one checkpoint, running nothing that is in it.

    Raises
    ------
    UserError
        The file is missing, damaged, holds anything but plain data, or is no checkpoint of minitrans.
    """
    path = resolve(path)
    content = _read_plain(path)
    _check_kinds(content, path)
    experiment = parse(Experiment, content["experiment"], f"the configuration in {path}")
    _check_complete(content["experiment"], path)
    return Checkpoint(
        path=path,
        experiment=experiment,
        tokenizers=_tokenizers(content["tokenizers"], path),
        model=content["model"],
        ema=content["ema"],
        optimizer=content["optimizer"],
        progress=parse(Progress, content["progress"], f"the progress in {path}"),
    )


def _check_kinds(content: Any, path: Path) -> None:
    """Refuse plain data that is not a checkpoint's."""
    if not isinstance(content, dict) or not content.keys() >= _KINDS.keys():
        raise UserError(f"{path} is not a checkpoint of minitrans; give one that scripts/train.py wrote")
    for key, kinds in _KINDS.items():
        if not isinstance(content[key], kinds):
            raise UserError(f"{path} is damaged: its {key} is of another type; use an older one")
    if content["format"] != FORMAT:
        raise UserError(
            f"{path} has the checkpoint format {content['format']}, but this version reads {FORMAT}; "
            f"use version {content['version']} of minitrans, which wrote it"
        )
    for weights in (content["model"], content["ema"] or {}):
        for name, tensor in weights.items():
            if not isinstance(tensor, Tensor):
                raise UserError(f"{path} is damaged: {name} is no tensor; use an older one")


def _check_complete(experiment: dict[str, Any], path: Path) -> None:
    """Refuse gaps in what the model is made of: defaults would fill them in silence, with another model.

    How it is searched and trained may lack what a later version added; its default is the old behaviour.
    """
    for name in ("model", "position", "attention", "tokenizer"):
        section = plain(Experiment())[name]
        keys = [name, *(f"{name}.{key}" for key in section)] if isinstance(section, dict) else [name]
        stated = experiment.get(name)
        present = {name, *(f"{name}.{key}" for key in stated)} if isinstance(stated, dict) else {name}
        for key in keys:
            if name not in experiment or key not in present:
                raise UserError(f"{path} is damaged: its configuration lacks {key}; use an older one")


def _check_format(path: Path) -> None:
    """Tell another kind of file from a damaged checkpoint, which begins as a zip file does."""
    with path.open("rb") as file:
        if file.read(2) not in (b"PK", b"", b"\0\0"):  # zeros: of a crash
            raise UserError(
                f"{path} is no checkpoint; give a .ckpt file that scripts/train.py wrote, or a run folder"
            )


def _check_bytes(path: Path) -> None:
    """Compare every part of the file with its checksum: a flipped bit in a weight is found nowhere else."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as parts:
            damaged = parts.testzip()
        if damaged:
            raise UserError(f"{path} is damaged: {damaged} is not what was written; use an older one")


def _read_plain(path: Path) -> Any:
    try:
        _check_format(path)
        _check_bytes(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if not zipfile.is_zipfile(path):
            raise UserError(f"{path} is damaged or is no checkpoint; use an older one") from error
        raise UserError(
            f"{path} holds more than plain data and was not opened, since it could run code; "
            "use one that scripts/train.py wrote"
        ) from error
    except UserError:
        raise
    except Exception as error:  # on other bytes the unpickler fails in any way: IndexError, EOFError ...
        raise UserError(f"{path} is damaged (cut short?) and cannot be read; use an older one") from error


def _tokenizers(state: Any, path: Path) -> Tokenizers:
    try:
        return Tokenizers.from_state(state)
    except Exception as error:  # the library raises bare exceptions of its own on damaged text
        raise UserError(f"{path} holds damaged tokenizers ({error}); use an older one") from error


def load_weights(model: torch.nn.Module, weights: Mapping[str, Tensor], path: Path) -> None:
    """Put ``weights`` into ``model``, refusing tensors that are missing, left over or of another shape."""
    expected = model.state_dict()
    wrong = sorted(expected.keys() ^ weights.keys())
    if wrong:
        raise UserError(
            f"{path} does not fit its own configuration: the tensor {wrong[0]} is on one side only; "
            "use another checkpoint"
        )
    for name, tensor in weights.items():
        if tensor.shape != expected[name].shape:
            raise UserError(
                f"{path} does not fit its own configuration: {name} has the shape {tuple(tensor.shape)}, "
                f"not {tuple(expected[name].shape)}; use another checkpoint"
            )
    model.load_state_dict(weights)


def load(path: str | Path, device: str | torch.device = "cpu") -> Loaded:
    """Rebuild the model of a checkpoint from the checkpoint's own configuration, in evaluation mode."""
    return ready(read(path), device)


def ready(checkpoint: Checkpoint, device: str | torch.device = "cpu") -> Loaded:
    """A checkpoint that has been read, made a model in evaluation mode."""
    model = rebuild(checkpoint)
    load_weights(model, checkpoint.weights, checkpoint.path)
    model.to(device).eval()
    return Loaded(checkpoint.path, checkpoint.experiment, checkpoint.tokenizers, model, checkpoint.progress)


def rebuild(checkpoint: Checkpoint) -> EncoderDecoder:
    """The model of the checkpoint's own configuration, freshly initialised; plain where it was trained so."""
    experiment, tokenizers = checkpoint.experiment, checkpoint.tokenizers
    sizes = tokenizers.src.vocab_size, tokenizers.tgt.vocab_size
    return build_model(experiment, *sizes, fast=experiment.training.fast)


# --------------------------------------------------------------------------------------
# Averaging
# --------------------------------------------------------------------------------------


def average(paths: Sequence[Path], out: Path) -> None:
    """Write the mean of several checkpoints' weights, see :func:`mean`."""
    save(dataclasses.replace(mean(paths), path=out))


def mean(paths: Sequence[Path]) -> Checkpoint:
    r"""The mean of several checkpoints' weights, :math:`\bar\theta = \frac1n\sum_i\theta_i`.

    Tensors that are tied keep one value under all their names, since each name's mean is the same.
    The result has no optimizer state: it is for translating, not for going on.

    Source: Vaswani et al. 2017, section 6.1 ("averaging the last 5 checkpoints").
    """
    if not paths:
        raise UserError("there are no checkpoints to average")
    first = read(paths[0])
    total = {name: tensor.double() for name, tensor in first.weights.items()}
    for path in paths[1:]:
        for name, tensor in read(path).weights.items():
            total[name] = total[name] + tensor.double()
    weights = {name: (total[name] / len(paths)).to(tensor.dtype) for name, tensor in first.weights.items()}
    progress = read(paths[-1]).progress
    return dataclasses.replace(first, model=weights, ema=None, optimizer=None, progress=progress)


def steps_of(folder: str | Path, count: int, *, best: bool = False) -> list[Path]:
    """The checkpoints of a run folder that ``average=count`` means, oldest first.

    Parameters
    ----------
    folder
        A run folder, with ``checkpoints/step-NNNNNN.ckpt``.
    count
        How many.
    best
        Those of the best validations (``metrics.csv``, in ``training.metric``) instead of the last.

    Raises
    ------
    UserError
        No run folder, or fewer such checkpoints than asked for.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"average={count} needs a run folder, but checkpoint={folder} is none")
    steps = sorted(folder.glob("checkpoints/step-*.ckpt"), key=_update_of)
    known = "step-NNNNNN.ckpt"
    if best and steps:
        values = _validation_values(folder, read(steps[-1]).experiment.training.metric)
        steps = sorted(
            (path for path in steps if _update_of(path) in values),
            key=lambda path: (values[_update_of(path)], -_update_of(path)),  # of equals the first: best.ckpt
        )
        known = "step-NNNNNN.ckpt with a validation in metrics.csv"
    if len(steps) < count:
        raise UserError(
            f"average={count}, but {folder} holds {len(steps)} checkpoints of the kind {known}; "
            "give a smaller number (training.keep_last says how many a run keeps)"
        )
    return sorted(steps[len(steps) - count :], key=_update_of)


def _update_of(step: Path) -> int:
    return int(step.stem.removeprefix("step-"))


def _validation_values(folder: Path, metric: str) -> dict[int, float]:
    """Update -> how good its validation was, the higher the better."""
    column, sign = ("bleu", 1.0) if metric == "bleu" else ("nll", -1.0)
    try:
        with (folder / "metrics.csv").open(encoding="utf8", newline="") as file:
            rows = [row for row in csv.DictReader(file) if row["split"] == "valid"]
            return {int(row["update"]): sign * float(row[column]) for row in rows}
    except (OSError, ValueError, KeyError) as error:
        raise UserError(
            f"the validations of {folder} cannot be read from its metrics.csv ({error}); "
            "average the last checkpoints instead (average_best=false)"
        ) from error
