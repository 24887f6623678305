"""``scripts/diagnose.py``: what the heads of a model do, in figures, beside what theory predicts."""

import dataclasses
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minitrans.cli.checkpoints import run_folder
from minitrans.cli.compose import Composed
from minitrans.cli.evaluate import data_mark, data_source
from minitrans.cli.main import run_main
from minitrans.cli.output_folder import DIAGNOSIS, choose, differing, make, write_json
from minitrans.cli.translate import load_translator
from minitrans.config import DiagnoseConfig, TranslateConfig
from minitrans.errors import UserError
from minitrans.progress import progress_bar

if TYPE_CHECKING:
    from minitrans.analysis.diagnosis import Diagnosis
    from minitrans.checkpoint import Loaded
    from minitrans.data.corpus import Corpus, Source
    from minitrans.data.encoded import EncodedCorpus
    from minitrans.decoding.translator import Translator

_BATCH_TOKENS = 4096


@dataclass(frozen=True)
class Subject:
    """What is diagnosed: a checkpoint, and the first sentences of a split."""

    loaded: "Loaded"
    translator: "Translator"
    source: "Source"
    corpus: "Corpus"
    encoded: "EncodedCorpus"


def main() -> int:
    """The command. Returns its exit status."""
    return run_main(diagnose, "diagnose", DiagnoseConfig)


def diagnose(composed: Composed[DiagnoseConfig]) -> None:
    """Measure the heads of a checkpoint on a split; print tables, write figures and pictures.

    Raises
    ------
    UserError
        A checkpoint that cannot be read or has no heads, an unknown split, a sentence that is longer than
        learned positions go, or an output_dir that is a file or holds anything else than this diagnosis.
        Nothing is written then.
    """
    from minitrans.analysis.diagnosis_drawing import draw
    from minitrans.analysis.positions import learned_tables

    config = composed.config
    subject = _prepare(config, composed.typed)
    loaded, encoded = subject.loaded, subject.encoded
    facts = _facts(subject, config.heads)
    folder = _folder(subject, facts, config.output_dir)
    diagnosis = _diagnosis(subject, config.heads)
    make(folder)
    origin = {"checkpoint": str(loaded.path), "update": loaded.progress.update}
    write_json(folder / DIAGNOSIS.record, {**origin, **facts, **diagnosis.as_dict()})
    pictures = draw(diagnosis, learned_tables(loaded.model), int(encoded.lengths.max()), folder)

    print(f"checkpoint  {loaded.path} (update {loaded.progress.update:,})")
    print(f"measured on {len(encoded):,} sentences of the split {config.split}")
    print()
    print(diagnosis.table())
    print()
    for path in [folder / DIAGNOSIS.record, *pictures]:
        print(path)


def _prepare(config: DiagnoseConfig, typed: Mapping[str, Any]) -> Subject:
    """Load the checkpoint and the sentences."""
    from minitrans.analysis.operands import places
    from minitrans.evaluation.metrics import require_tokenizer

    settings = TranslateConfig(
        checkpoint=config.checkpoint,
        threads=config.threads,
        accelerator=config.accelerator,
        search=config.search,
    )
    loaded, translator = load_translator(settings, typed)
    places(loaded.model)  # another architecture is refused before anything is read
    source = data_source(loaded, config.data, typed)
    if config.heads:
        require_tokenizer(source.bleu_tokenize)
    corpus = source.load(config.split)
    corpus.require_text()
    encoded = _encoded(loaded, corpus, config.sentences)
    return Subject(loaded, translator, source, corpus, encoded)


def _encoded(loaded: "Loaded", corpus: "Corpus", sentences: int) -> "EncodedCorpus":
    """The first sentences of the split that have text on both sides."""
    import numpy as np

    from minitrans.data.encoded import encode_corpus
    from minitrans.training.prepare import refuse_beyond_positions

    encoded = encode_corpus(corpus, loaded.tokenizers)
    filled = np.flatnonzero((encoded.lengths > 1).all(axis=1))  # an end token alone is a blank line
    blank = int(((encoded.lengths[:sentences]) == 1).any(axis=1).sum())
    if blank:
        print(f"left out, blank on a side: {blank:,} pair{'s' * (blank > 1)}", file=sys.stderr)
    if not len(filled):
        raise UserError(f"no pair of {corpus.origin} has a token on both sides; give another split")
    first = encoded.take(filled[:sentences])
    refuse_beyond_positions(loaded.model, first, "or give fewer sentences=")
    return first


def _facts(subject: Subject, heads: bool) -> dict[str, Any]:
    """What makes a diagnosis the one it is, see :mod:`minitrans.cli.output_folder`."""
    from minitrans.data.cache import hash_file

    return {
        "checkpoint_sha256": hash_file(subject.loaded.path),
        "split": subject.corpus.name,
        "sentences": len(subject.encoded),
        "text_sha256": subject.corpus.fingerprint,
        "heads_masked": heads,  # where none is, nothing is translated and scored
        "bleu_tokenize": subject.source.bleu_tokenize if heads else None,
        "search": dataclasses.asdict(subject.translator.search) if heads else None,
    }


def _folder(subject: Subject, facts: Mapping[str, Any], output_dir: str) -> Path:
    """Where the diagnosis goes: as typed, else a name that holds what is not as usual."""
    loaded = subject.loaded
    name = f"{facts['split']}-{loaded.path.stem}-{facts['sentences']}sentences"
    if facts["search"]:
        name += f"-heads-{differing(loaded.experiment.search, subject.translator.search)}"
    name += data_mark(loaded, subject.source, subject.corpus)
    return choose(DIAGNOSIS, output_dir, run_folder(loaded.path), name, loaded.progress.update, facts)


def _diagnosis(subject: Subject, heads: bool) -> "Diagnosis":
    """Measure; with ``heads``, translate with each head masked in turn too."""
    from minitrans.analysis.diagnosis import Diagnosis
    from minitrans.analysis.heads import head_importance, patterns
    from minitrans.analysis.instruments import measure
    from minitrans.data.batching import collate, evaluation_batches

    encoded, corpus, model = subject.encoded, subject.corpus, subject.loaded.model
    device = next(model.parameters()).device
    rows = evaluation_batches(encoded.lengths, _BATCH_TOKENS)
    batches = [collate(encoded, one).to(device) for one in rows]
    measured = measure(model, batches, subject.loaded.experiment.training.label_smoothing)
    looks = patterns(model, batches)
    if not heads:
        return Diagnosis(measured, looks)
    sources = [corpus.src[int(line)] for line in encoded.lines]
    references = [corpus.tgt[int(line)] for line in encoded.lines]
    with progress_bar(len(sources) * (len(measured.heads) + 1), label="heads") as progress:
        whole, importance = head_importance(
            subject.translator, model, sources, references, subject.source.bleu_tokenize, progress
        )
    return Diagnosis(measured, looks, whole, importance)
