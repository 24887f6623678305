"""COMET (Rei et al. 2020): a learned score of source, translation and reference. An optional package."""

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Sequence
from typing import Any

import numpy as np

from minitrans.errors import UserError
from minitrans.evaluation.metrics import RESAMPLES, Score

MODEL = "Unbabel/wmt22-comet-da"
"""The model meant by ``comet=auto``."""
SEED = 12345  # sacreBLEU's


def installed() -> bool:
    """Whether the package ``unbabel-comet`` is there."""
    return importlib.util.find_spec("comet") is not None


def require_installed(model: str) -> None:
    """Refuse a model where the package is missing."""
    if not installed():
        raise UserError(
            f"comet={model} needs a package that is not installed; pip install unbabel-comet, "
            "or leave comet out"
        )


def comet(
    sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str], model: str, gpus: int
) -> Score:
    """The mean of COMET's scores of the sentences, about 0 (bad) to 1.

    Parameters
    ----------
    model
        Name on the hub, or a ``.ckpt`` file.
    gpus
        0: on the processor.

    Returns
    -------
    With the central 95 % of 1,000 bootstrap samples of the sentences.

    Raises
    ------
    UserError
        The package is not installed, or the model cannot be had.
    """
    require_installed(model)
    package: Any = importlib.import_module("comet")
    try:
        path = model if model.endswith(".ckpt") else package.download_model(model)
        scorer = package.load_from_checkpoint(path)
    except Exception as error:  # of the hub's client, the network, the file system or torch
        reason = " ".join(str(error).split()).rstrip(".")
        raise UserError(
            f"the COMET model {model} cannot be loaded: {reason}; check its name and the network, "
            "or leave COMET out with comet=none"
        ) from error
    triples = [
        {"src": source, "mt": hypothesis, "ref": reference}
        for source, hypothesis, reference in zip(sources, hypotheses, references, strict=True)
    ]
    found = scorer.predict(triples, batch_size=16, gpus=gpus, progress_bar=False)
    return _summed_up(np.array(found["scores"], dtype=float), model)


def _summed_up(scores: np.ndarray, model: str) -> Score:
    """Mean and percentile interval of the sentences' scores, (n,)."""
    rows = np.random.default_rng(SEED).choice(len(scores), size=(RESAMPLES, len(scores)))  # (1000, n)
    low, high = np.percentile(scores[rows].mean(axis=1), [2.5, 97.5])
    version = importlib.metadata.version("unbabel-comet")
    signature = f"model:{model}|bs:{RESAMPLES}|seed:{SEED}|version:{version}"
    return Score(float(scores.mean()), signature, float(low), float(high))
