"""A tiny experiment on a few lines of text, whose runs take a fraction of a second, and single updates."""

import dataclasses
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from lightning.pytorch import Callback, Trainer

from minitrans.build import build_model
from minitrans.checkpoint import Checkpoint
from minitrans.config import (
    LoggerConfig,
    ModelConfig,
    SearchConfig,
    TokenizerConfig,
    TrainConfig,
    TrainerConfig,
    TrainingConfig,
    plain,
)
from minitrans.data.batching import Batch
from minitrans.data.stream import Share
from minitrans.run import RunFolder, open_or_create, write_config
from minitrans.training.fit import fit
from minitrans.training.module import TranslationModule
from minitrans.training.optimizer import SGD
from minitrans.training.prepare import prepare
from minitrans.training.schedule import Constant, Schedule

T = TypeVar("T")
WORDS = ["eins", "zwei", "drei", "vier", "sechs", "acht", "neun"]
NUM_ENTRIES = 12
MODEL = ModelConfig(num_encoder_layers=1, num_decoder_layers=1, d_model=16, num_heads=2, d_ff=32, dropout=0.0)


def write_split(folder: Path, stem: str, count: int, seed: int) -> list[str]:
    """Sentences of 1 to 7 words and their reversals, and the two files that they are written to."""
    draw = random.Random(seed)
    return write_rows(
        folder, stem, [[draw.choice(WORDS) for _ in range(draw.randint(1, 7))] for _ in range(count)]
    )


def write_rows(folder: Path, stem: str, rows: list[list[str]]) -> list[str]:
    """Two text files: the rows, and the rows reversed."""
    files = [str(folder / f"{stem}.x"), str(folder / f"{stem}.y")]
    for file, order in zip(files, (1, -1), strict=True):
        Path(file).write_text("".join(" ".join(row[::order]) + "\n" for row in rows), encoding="utf8")
    return files


def tiny_experiment(folder: Path) -> TrainConfig:
    """40 pairs, 4 an update (10 updates an epoch), 12 updates, dropout on; nothing logged but each update."""
    files = {
        split: write_split(folder, split, count, seed)
        for split, count, seed in (("train", 40, 1), ("valid", 6, 2), ("test", 4, 3))
    }
    return TrainConfig(
        model=dataclasses.replace(MODEL, dropout=0.1),
        position={"kind": "sinusoidal"},
        attention={"kind": "scaled_dot_product"},
        data={"kind": "pairs", "src": "x", "tgt": "y", **files},
        tokenizer=TokenizerConfig(kind="word", vocab_size=NUM_ENTRIES),
        training=TrainingConfig(
            max_updates=12,
            update_sentences=4,
            validate_every=100,
            save_every=100,
            log_every=1,
            leak_test=False,
        ),
        optimizer={"kind": "adamw", "lr": 0.01, "weight_decay": 0.01},
        schedule={"kind": "inverse_sqrt", "warmup_updates": 4},
        search=SearchConfig(beam_size=1, max_length=10),
        trainer=TrainerConfig(accelerator="cpu", precision="fp32", progress_bar=False),
        logger=LoggerConfig(),
    )


def changed(config: T, changes: dict[str, Any]) -> T:
    """A copy of a configuration with dotted keys changed."""
    for key, value in changes.items():
        name, _, rest = key.partition(".")
        section = getattr(config, name)
        if rest and isinstance(section, dict):
            value = {**section, rest: value}
        elif rest:
            value = changed(section, {rest: value})
        config = dataclasses.replace(config, **{name: value})  # type: ignore[type-var]
    return config


def train(config: TrainConfig, path: Path, start: Checkpoint | None = None) -> RunFolder:
    """Make the updates of a run in a folder, and no more: nothing is printed and no test split is scored."""
    folder = open_or_create(RunFolder.of(path))
    write_config(folder, plain(config))
    fit(config, folder, prepare(config, start.tokenizers if start else None), start)
    return folder


def assert_equal(left: Any, right: Any, where: str = "") -> None:
    """Nested plain data with tensors in it is the same to the last bit."""
    assert type(left) is type(right), where
    if isinstance(left, torch.Tensor):
        assert torch.equal(left, right), where
    elif isinstance(left, dict):
        assert left.keys() == right.keys(), where
        for key in left:
            assert_equal(left[key], right[key], f"{where}/{key}")
    elif isinstance(left, list | tuple):
        assert len(left) == len(right), where
        for i, (one, other) in enumerate(zip(left, right, strict=True)):
            assert_equal(one, other, f"{where}/{i}")
    else:
        assert left == right, where


# One update on batches made by hand


def batch_of(pairs: list[tuple[list[int], list[int]]], number: int = 0, weight: float = 1.0) -> Batch:
    """(source ids, target ids) without start and end, padded into one batch."""
    width = [max(len(pair[side]) for pair in pairs) + 1 for side in (0, 1)]
    src, tgt_in, tgt_out = (torch.zeros(len(pairs), width[side], dtype=torch.long) for side in (0, 1, 1))
    for row, (source, target) in enumerate(pairs):
        src[row, : len(source) + 1] = torch.tensor([*source, 2])
        tgt_in[row, : len(target) + 1] = torch.tensor([1, *target])
        tgt_out[row, : len(target) + 1] = torch.tensor([*target, 2])
    counted = sum(len(target) + 1 for _, target in pairs)
    return Batch(src, tgt_in, tgt_out, tuple(range(len(pairs))), weight, number, counted)


def share_of(*batches: Batch, update: int = 1, target_tokens: int | None = None) -> Share:
    """One update made of these micro-batches."""
    tokens = sum(batch.num_target_tokens for batch in batches if batch.weight)
    return Share(update, 1, target_tokens or tokens, batches, ends_epoch=False, last=False)


def module_of(
    settings: dict[str, Any] | None = None,
    model: dict[str, Any] | None = None,
    schedule: Schedule | None = None,
) -> TranslationModule:
    """A module with a tiny model: plain SGD at rate 1, no smoothing, no clipping unless asked for."""
    config = TrainConfig(
        model=dataclasses.replace(MODEL, **(model or {})),
        position={"kind": "sinusoidal"},
        attention={"kind": "scaled_dot_product"},
    )
    training = TrainingConfig(**({"label_smoothing": 0.0, "clip_norm": None} | (settings or {})))
    built = build_model(config, NUM_ENTRIES, NUM_ENTRIES)
    return TranslationModule(built, SGD(1.0), schedule or Constant(1.0), training, seed=1)  # type: ignore[arg-type]


def make_updates(
    module: TranslationModule,
    *shares: Share,
    callbacks: Sequence[Callback] = (),
    precision: Literal["32-true", "bf16-mixed"] = "32-true",
) -> TranslationModule:
    """Run the updates through Lightning's trainer on the processor."""
    trainer = Trainer(
        accelerator="cpu",
        precision=precision,
        max_epochs=1,
        callbacks=list(callbacks),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loader: Any = torch.utils.data.DataLoader(list(shares), batch_size=None)  # type: ignore[arg-type]
    trainer.fit(module, loader)
    return module


def weights_of(module: TranslationModule) -> dict[str, torch.Tensor]:
    """A copy of the weights."""
    return {name: tensor.detach().clone() for name, tensor in module.model.state_dict().items()}
