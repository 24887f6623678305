"""The end of a run: the best checkpoint scored on the test splits, and everything written down."""

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from minitrans import checkpoint
from minitrans.checkpoint import Loaded
from minitrans.config import TrainConfig
from minitrans.console import Console
from minitrans.data.corpus import Source
from minitrans.decoding.translator import Translator
from minitrans.evaluation.scorecard import ScoreCard, evaluate_split
from minitrans.program import program
from minitrans.progress import progress_bar
from minitrans.run import RunFolder, write_json, write_lines
from minitrans.training.curves import draw_curves


def finish(config: TrainConfig, folder: RunFolder, source: Source) -> dict[str, ScoreCard]:
    """Score the run on every test split and write ``result.json``, the translations and ``curves.png``.

    Parameters
    ----------
    config
        Of the run.
    folder
        Its folder, training done.
    source
        Where the test splits come from.

    Returns
    -------
    Split -> score card.
    """
    loaded = checkpoint.load(_final(config, folder))
    translator = Translator(loaded.model, loaded.tokenizers, config.search)
    cards = {}
    for split in _test_splits(source):
        corpus = source.load(split)
        with progress_bar(len(corpus), config.trainer.progress_bar, f"scoring {split}") as progress:
            card = evaluate_split(translator, corpus, source.bleu_tokenize, progress)
        write_lines(folder.path / "translations" / f"{split}.txt", card.hypotheses)
        cards[split] = card
    write_json(folder.result, _result(loaded, folder, cards))
    draw_curves(folder.metrics, folder.path / "curves.png")
    return cards


def _final(config: TrainConfig, folder: RunFolder) -> Path:
    """The checkpoint that the run is judged by: the average where one was asked for, else the best."""
    count = config.training.average_last
    if count:
        out = folder.checkpoints / checkpoint.AVERAGE
        checkpoint.average(folder.steps()[-count:], out)
        return out
    return checkpoint.resolve(folder.path)


def _test_splits(source: Source) -> list[str]:
    return [split for split in source.splits() if split not in ("train", "valid")]


def _result(loaded: Loaded, folder: RunFolder, cards: Mapping[str, ScoreCard]) -> dict[str, Any]:
    progress = loaded.progress
    last = checkpoint.read(folder.checkpoints / checkpoint.LAST).progress
    return {
        "checkpoint": str(loaded.path.relative_to(folder.path)),
        "checkpoint_update": progress.update,
        "metric": loaded.experiment.training.metric,
        "best_validation": last.best_value,
        "updates": last.update,
        "target_tokens": last.target_tokens,
        "seconds": round(last.seconds, 1),
        "leak": not loaded.experiment.model.causal,
        "parameters": sum(parameter.numel() for parameter in loaded.model.parameters()),
        "tests": {split: card.as_dict() for split, card in cards.items()},
    }


def report(folder: RunFolder, cards: Mapping[str, ScoreCard], console: Console) -> None:
    """Print the scores, where everything lies, and what to type next."""
    for card in cards.values():
        console.print(card.table())
    path = os.path.relpath(folder.path)
    console.print(f"Run folder    {path}", highlight=False, soft_wrap=True)
    measured = " · diagnostics.csv" if folder.diagnostics.exists() else ""
    held = f"  result.json · metrics.csv{measured} · curves.png · translations/ · checkpoints/"
    console.print(held, highlight=False)
    console.print("Next", highlight=False)
    split = "" if "test" in cards else " split=valid"
    commands = [("evaluate", split), ("translate", ""), ("inspect_attention", ' text="…"')]
    for name, further in [*commands, *([("diagnose", "")] if measured else [])]:
        command = f"{program(name)} checkpoint={shlex.quote(path)}{further}"
        console.print(f"  {command}", highlight=False, soft_wrap=True)
