"""``scripts/evaluate.py``: translate a split with a checkpoint, score it, write both down."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minitrans.cli.compose import Composed
from minitrans.cli.main import run_main
from minitrans.cli.translate import LIMITS, load_translator, overlaid
from minitrans.config import EvaluateConfig, construct
from minitrans.errors import UserError
from minitrans.progress import progress_bar

if TYPE_CHECKING:
    from minitrans.checkpoint import Loaded
    from minitrans.data.corpus import Source
    from minitrans.evaluation.scorecard import ScoreCard


def main() -> int:
    """The command; returns its exit status."""
    return run_main(evaluate, "evaluate", EvaluateConfig)


def evaluate(composed: Composed[EvaluateConfig]) -> None:
    """Score one checkpoint on one split."""
    from minitrans.evaluation.scorecard import evaluate_split

    config = composed.config
    loaded, translator = load_translator(config, composed.typed)
    folder = output_folder(config, loaded.path, translator.search.beam_size)
    source = data_source(loaded, config, composed.typed)
    corpus = source.load(config.split)
    corpus.require_text()
    with progress_bar(len(corpus)) as progress:
        card = evaluate_split(translator, corpus, source.bleu_tokenize, progress)
    write_results(folder, card, loaded.path)
    show(card, loaded.path, folder)


def data_source(loaded: "Loaded", config: EvaluateConfig, typed: Mapping[str, Any]) -> "Source":
    """The checkpoint's data set, but for what was typed."""
    from minitrans.data.corpus import SOURCES

    section = overlaid(loaded.experiment.data, config.data, typed, "data")
    return construct(SOURCES, section, {}, "data")


def output_folder(config: EvaluateConfig, checkpoint: Path, beam_size: int) -> Path:
    """``output_dir``, or a folder in the run folder named by split, checkpoint and beam.

    Raises
    ------
    UserError
        The path is a file.
    """
    run_folder = checkpoint.parent.parent if checkpoint.parent.name == "checkpoints" else checkpoint.parent
    name = _plain_name(f"{config.split}-{checkpoint.stem}-beam{beam_size}")
    folder = Path(config.output_dir) if config.output_dir else run_folder / "evaluation" / name
    if folder.exists() and not folder.is_dir():
        raise UserError(f"output_dir={folder} is a file; give a folder")
    return folder


def _plain_name(text: str) -> str:
    """A file name without characters that shells or Hydra's grammar trip over."""
    return re.sub(r"[^\w.-]+", "_", text, flags=re.ASCII)


def _hypotheses_file(folder: Path, card: "ScoreCard") -> Path:
    return folder / f"{_plain_name(card.split)}.txt"


def write_results(folder: Path, card: "ScoreCard", checkpoint: Path) -> None:
    """Write the hypotheses, one a line, and ``scores.json``."""
    from minitrans.checkpoint import write_whole

    text = "".join(f"{line}\n" for line in card.hypotheses)
    content = {"checkpoint": str(checkpoint), **card.as_dict()}
    scores = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"output_dir={folder} cannot be made: {error.strerror}") from error
    write_whole(_hypotheses_file(folder, card), lambda partial: partial.write_bytes(text.encode()))
    write_whole(folder / "scores.json", lambda partial: partial.write_bytes(scores.encode()))


def show(card: "ScoreCard", checkpoint: Path, folder: Path) -> None:
    """Print the card and where everything lies."""
    from rich.console import Console

    Console().print(card.table())
    if card.cut:
        print(f"{card.cut:,} of {card.sentences:,} translations were ended by the length limit {LIMITS}")
    print(f"checkpoint:  {checkpoint}")
    print(f"hypotheses:  {_hypotheses_file(folder, card)}")
    print(f"scores:      {folder / 'scores.json'}")
