"""Run folders that no training made."""

from pathlib import Path

from minitrans.build import build_model
from minitrans.checkpoint import Checkpoint, Progress, save
from minitrans.config import Experiment
from minitrans.data.tokenizer import Tokenizers


def save_untrained(folder: Path, experiment: Experiment, tokenizers: Tokenizers, update: int) -> Path:
    """A run folder whose best checkpoint is a model with its first weights, as if written at ``update``."""
    model = build_model(experiment, tokenizers.src.vocab_size, tokenizers.tgt.vocab_size)
    path = folder / "checkpoints" / "best.ckpt"
    path.parent.mkdir(parents=True, exist_ok=True)
    progress = Progress(update=update)
    save(Checkpoint(path, experiment, tokenizers, model.state_dict(), None, None, progress))
    return folder
