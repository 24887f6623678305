"""From checkpoints to a translator: one, the average of a run's, or an ensemble of several."""

from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

import torch

from minitrans.checkpoint import Loaded, mean, ready, steps_of
from minitrans.checkpoint import load as load_one
from minitrans.config import SearchConfig, parse, plain
from minitrans.decoding.ensemble import Ensemble
from minitrans.decoding.translator import SearchOptions, TranslationModel, Translator
from minitrans.errors import UserError


def load(
    checkpoint: str | Path | Sequence[str | Path],
    *,
    average: int = 0,
    average_best: bool = False,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    batch_tokens: int = 4096,
    **search: Unpack[SearchOptions],
) -> Translator:
    """Make a translator of a trained model.

    Parameters
    ----------
    checkpoint
        A ``.ckpt`` file or a run folder (then its best). Of several, which must have one vocabulary, the
        probabilities are averaged.
    average
        Average the weights of the last so many checkpoints of the run folder (0: take one as it is).
    average_best
        Average those of the best validations instead of the last.
    device
        Where to translate, such as ``"cuda"``.
    dtype
        Of the weights: ``torch.bfloat16`` is faster, and rounds to 8 bits.
    batch_tokens
        Padded source tokens of one batch.
    search
        Search settings that differ from the (first) checkpoint's: ``beam_size=1``, ``n_best=5`` ...

    Returns
    -------
    A translator; its ``translate`` takes a list of sentences.

    Raises
    ------
    minitrans.errors.UserError
        A checkpoint that cannot be read, vocabularies that differ, settings without meaning.
    """
    if checkpoint is None:
        raise UserError("there is no checkpoint to load; give a .ckpt file or a run folder")
    several = [checkpoint] if isinstance(checkpoint, (str, Path)) else list(checkpoint)
    loaded = load_all(several, average=average, average_best=average_best, device=device, dtype=dtype)
    settings = {**plain(loaded[0].experiment.search), **search}
    return translator_of(loaded, parse(SearchConfig, settings, "the call", "search."), batch_tokens)


def load_all(
    checkpoints: Sequence[str | Path],
    *,
    average: int = 0,
    average_best: bool = False,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
) -> list[Loaded]:
    """Each of the checkpoints, or the average of each run folder; for the parameters see :func:`load`."""
    if dtype not in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        raise UserError(f"dtype={dtype!r} is no type for weights; use torch.float32 or torch.bfloat16")
    if average < 0:
        raise UserError(f"average={average} means nothing; say how many checkpoints, or 0 for one as it is")
    _require_device(device)
    if not checkpoints:
        raise UserError("checkpoint=[] is an empty list; give a .ckpt file or a run folder")
    if average_best and not average:
        raise UserError("average_best=true means nothing without average=; say how many checkpoints")
    if average:
        loaded = [ready(mean(steps_of(path, average, best=average_best)), device) for path in checkpoints]
    else:
        loaded = [load_one(path, device) for path in checkpoints]
    for one in loaded:
        one.model.to(dtype)
    return loaded


def _require_device(device: str | torch.device) -> None:
    """Refuse a device that torch does not know or does not have."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        found = "cpu and cuda" if torch.cuda.is_available() else "cpu alone"
        raise UserError(f"device={str(device)!r} cannot be used: torch finds {found} here") from error


def translator_of(loaded: Sequence[Loaded], search: SearchConfig, batch_tokens: int = 4096) -> Translator:
    """A translator with one model, or with an ensemble.

    Raises
    ------
    UserError
        Two of the checkpoints have unlike vocabularies.
    """
    first, *others = loaded
    for other in others:
        if other.tokenizers.state() != first.tokenizers.state():
            raise UserError(
                f"{first.path} and {other.path} have unlike vocabularies, and only the probabilities of like "
                "entries can be averaged; train both on one training text with the same tokenizer settings"
            )
    model: TranslationModel = Ensemble([one.model for one in loaded]) if others else first.model
    return Translator(model, first.tokenizers, search, batch_tokens)
