"""``scripts/diagnose.py``: what the heads of a model do, in figures, beside what theory predicts."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from minitrans.cli.checkpoints import run_folder
from minitrans.cli.compose import Composed
from minitrans.cli.evaluate import data_source
from minitrans.cli.evaluation_folder import make, write_json
from minitrans.cli.main import run_main
from minitrans.cli.translate import load_translator
from minitrans.config import DiagnoseConfig, TranslateConfig
from minitrans.errors import UserError
from minitrans.progress import progress_bar

if TYPE_CHECKING:
    from minitrans.analysis.diagnosis import Diagnosis
    from minitrans.checkpoint import Loaded
    from minitrans.data.corpus import Source
    from minitrans.data.encoded import EncodedCorpus
    from minitrans.decoding.translator import Translator

_BATCH_TOKENS = 4096


def main() -> int:
    """The command. Returns its exit status."""
    return run_main(diagnose, "diagnose", DiagnoseConfig)


def diagnose(composed: Composed[DiagnoseConfig]) -> None:
    """Measure the heads of a checkpoint on a split; print tables, write figures and pictures.

    Raises
    ------
    UserError
        A checkpoint that cannot be read or has no heads, an unknown split, a sentence that is longer than
        learned positions go, or an output_dir that is a file. Nothing is written then.
    """
    config = composed.config

    from minitrans.analysis.diagnosis_drawing import draw
    from minitrans.analysis.operands import places
    from minitrans.analysis.positions import learned_tables
    from minitrans.evaluation.metrics import require_tokenizer

    settings = TranslateConfig(
        checkpoint=config.checkpoint,
        threads=config.threads,
        accelerator=config.accelerator,
        search=config.search,
    )
    loaded, translator = load_translator(settings, composed.typed)
    places(loaded.model)  # another architecture is refused before anything is read
    source = data_source(loaded, config.data, composed.typed)
    if config.heads:
        require_tokenizer(source.bleu_tokenize)
    encoded = _encoded(loaded, source, config)
    diagnosis = _diagnosis(loaded, translator, source, encoded, config)
    folder = Path(config.output_dir) if config.output_dir else run_folder(loaded.path) / "diagnostics"
    make(folder)
    origin = {
        "checkpoint": str(loaded.path),
        "update": loaded.progress.update,
        "split": config.split,
        "sentences": len(encoded),
    }
    write_json(folder / "diagnostics.json", {**origin, **diagnosis.as_dict()})
    pictures = draw(diagnosis, learned_tables(loaded.model), int(encoded.lengths.max()), folder)

    print(f"checkpoint  {loaded.path} (update {loaded.progress.update:,})")
    print(f"measured on {len(encoded):,} sentences of the split {config.split}")
    print()
    print(diagnosis.table())
    print()
    for path in [folder / "diagnostics.json", *pictures]:
        print(path)


def _encoded(loaded: "Loaded", source: "Source", config: DiagnoseConfig) -> "EncodedCorpus":
    """The first sentences of the split that have text on both sides."""
    import numpy as np

    from minitrans.data.encoded import encode_corpus
    from minitrans.training.prepare import refuse_beyond_positions

    corpus = source.load(config.split)
    corpus.require_text()
    encoded = encode_corpus(corpus, loaded.tokenizers)
    filled = np.flatnonzero((encoded.lengths > 1).all(axis=1))  # an end token alone is a blank line
    blank = int(((encoded.lengths[: config.sentences]) == 1).any(axis=1).sum())
    if blank:
        print(f"left out, blank on a side: {blank:,} pair{'s' * (blank > 1)}", file=sys.stderr)
    if not len(filled):
        raise UserError(f"no pair of {corpus.origin} has a token on both sides; give another split")
    first = encoded.take(filled[: config.sentences])
    refuse_beyond_positions(loaded.model, first, "or give fewer sentences=")
    return first


def _diagnosis(
    loaded: "Loaded",
    translator: "Translator",
    source: "Source",
    encoded: "EncodedCorpus",
    config: DiagnoseConfig,
) -> "Diagnosis":
    from minitrans.analysis.diagnosis import Diagnosis
    from minitrans.analysis.heads import head_importance, patterns
    from minitrans.analysis.instruments import measure
    from minitrans.data.batching import collate, evaluation_batches

    model = loaded.model
    device = next(model.parameters()).device
    rows = evaluation_batches(encoded.lengths, _BATCH_TOKENS)
    batches = [collate(encoded, one).to(device) for one in rows]
    measured = measure(model, batches, loaded.experiment.training.label_smoothing)
    looks = patterns(model, batches)
    if not config.heads:
        return Diagnosis(measured, looks)
    corpus = source.load(config.split)
    sources = [corpus.src[int(line)] for line in encoded.lines]
    references = [corpus.tgt[int(line)] for line in encoded.lines]
    with progress_bar(len(sources) * (len(measured.heads) + 1), label="heads") as progress:
        whole, importance = head_importance(
            translator, model, sources, references, source.bleu_tokenize, progress
        )
    return Diagnosis(measured, looks, whole, importance)
