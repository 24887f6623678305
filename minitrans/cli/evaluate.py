"""``scripts/evaluate.py``: translate a split with checkpoints, score it, compare, write all down."""

import dataclasses
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from minitrans.cli.checkpoints import System, names, systems
from minitrans.cli.compose import Composed
from minitrans.cli.main import run_main
from minitrans.cli.output_folder import (
    EVALUATION,
    SWEEP,
    Kind,
    choose,
    differing,
    make,
    plain_name,
    write_json,
    write_text,
)
from minitrans.cli.translate import LIMITS, load_translator, overlaid
from minitrans.config import EvaluateConfig, SearchConfig, TranslateConfig, construct, parse
from minitrans.errors import UserError, nearest
from minitrans.progress import progress_bar

if TYPE_CHECKING:
    from minitrans.checkpoint import Checkpoint, Loaded
    from minitrans.console import Console
    from minitrans.data.corpus import Corpus, Source
    from minitrans.decoding.translator import Translator
    from minitrans.evaluation.sanity import SanityRow
    from minitrans.evaluation.scorecard import ScoreCard
    from minitrans.evaluation.summary import Evaluated
    from minitrans.evaluation.sweep import SearchSweep


@dataclass(frozen=True)
class Subject:
    """One system, ready to be evaluated.

    Attributes
    ----------
    name
        In tables.
    loaded
        The checkpoint; of an average or an ensemble, the first one.
    facts
        What makes its evaluation the one it is, see :mod:`minitrans.cli.output_folder`.
    """

    name: str
    system: System
    loaded: "Loaded"
    translator: "Translator"
    source: "Source"
    corpus: "Corpus"
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class Result:
    """What stays of a subject when its model has gone."""

    evaluated: "Evaluated"
    system: System
    source: "Source"
    corpus: "Corpus"
    facts: Mapping[str, Any]
    folder: Path


def main() -> int:
    """The command; returns its exit status."""
    return run_main(evaluate, "evaluate", EvaluateConfig)


def evaluate(composed: Composed[EvaluateConfig]) -> None:
    """Score checkpoints on one split, or sweep the search settings of one."""
    config = composed.config
    typed = with_search_file(config.search_file, composed.typed)
    given = systems(
        config.checkpoint,
        average=config.average,
        average_best=config.average_best,
        ensemble=config.ensemble,
    )
    if config.sweep == "search":
        sweep(config, typed, given)
        return
    baseline = systems(config.baseline) if config.baseline else []
    compared = [system for system in given if not any(map(system.same_as, baseline))]
    if not compared or len(baseline) > 1:
        raise UserError(
            f"baseline={config.baseline} must be one checkpoint, and another one than checkpoint="
        )
    everything = compared + baseline
    if baseline:
        refuse_unlike(everything, config, typed)
    results = [
        score(prepare(system, name, config, typed, config.split), config, len(everything) > 1)
        for system, name in zip(everything, names(everything), strict=True)
    ]
    report(config, results)


# --------------------------------------------------------------------------------------
# One checkpoint
# --------------------------------------------------------------------------------------


def prepare(
    system: System, name: str, config: EvaluateConfig, typed: Mapping[str, Any], split: str
) -> Subject:
    """Load a checkpoint (an average, an ensemble) and the split that it is scored on."""
    from minitrans.data.cache import hash_file
    from minitrans.evaluation.comet import require_installed
    from minitrans.evaluation.metrics import require_tokenizer

    settings = TranslateConfig(
        checkpoint=[str(path) for path in system.given],
        average=system.average,
        average_best=system.average_best,
        batch_tokens=config.batch_tokens,
        threads=config.threads,
        accelerator=config.accelerator,
        precision=config.precision,
        search=config.search,
    )
    loaded, translator = load_translator(settings, typed)
    source = data_source(loaded, config.data, typed)
    require_tokenizer(source.bleu_tokenize)
    if config.comet not in ("none", "auto"):
        require_installed(config.comet)
    if config.sanity:
        source.load("train")  # what is missing is found before translating
    corpus = source.load(split)
    corpus.require_text()
    hashes = [hash_file(file) for file in system.files]
    facts = {
        "checkpoint_sha256": hashes[0] if len(hashes) == 1 else hashes,
        "combined": system.kind if len(hashes) > 1 else None,
        "split": split,
        "text_sha256": corpus.fingerprint,
        "bleu_tokenize": source.bleu_tokenize,
        "search": dataclasses.asdict(translator.search),
        "precision": config.precision,
    }
    return Subject(name, system, loaded, translator, source, corpus, facts)


def refuse_unlike(given: Sequence[System], config: EvaluateConfig, typed: Mapping[str, Any]) -> None:
    """Refuse before any work what could not be compared after it. The baseline is the last one."""
    from minitrans.checkpoint import read
    from minitrans.evaluation.comparison import Ground, require_same_ground

    grounds = []
    for system, name in zip(given, names(given), strict=True):
        source = data_source(read(system.files[0]), config.data, typed)
        grounds.append(Ground.of_corpus(name, source.load(config.split), source.bleu_tokenize))
    for ground in grounds[:-1]:
        require_same_ground(ground, grounds[-1])


def data_source(loaded: "Loaded | Checkpoint", data: Mapping[str, Any], typed: Mapping[str, Any]) -> "Source":
    """The checkpoint's data set, but for what was typed."""
    from minitrans.data.corpus import SOURCES

    section = overlaid(loaded.experiment.data, data, typed, "data")
    return construct(SOURCES, section, {}, "data")


def with_search_file(search_file: str, typed: Mapping[str, Any]) -> dict[str, Any]:
    """What was typed, over the settings of ``search_file``.

    Raises
    ------
    UserError
        The file cannot be read or holds anything but search settings, or a whole choice was typed too.
    """
    if not search_file:
        return dict(typed)
    if "search" in typed:
        raise UserError(
            f"search={typed['search']} and search_file={search_file} both state all settings; leave one out"
        )
    try:
        content = yaml.safe_load(Path(search_file).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(
            f"search_file={search_file} cannot be read: {' '.join(str(error).split())}"
        ) from error
    if not isinstance(content, dict):
        raise UserError(f"search_file={search_file} holds no settings; give a search.yaml that a sweep wrote")
    known = [field.name for field in dataclasses.fields(SearchConfig)]
    for key in map(str, content):  # its value can be a whole section of another file
        if key not in known:
            raise UserError(f'search_file={search_file} has the unknown key "{key}"{nearest(key, known)}')
    parse(SearchConfig, content, search_file, "search.")
    return {**{f"search.{key}": value for key, value in content.items()}, **typed}


def folder_of(kind: Kind, subject: Subject, output_dir: str, name: str, facts: Mapping[str, Any]) -> Path:
    """Where results go: as typed, else ``name`` and what of the precision and the data is not as usual."""
    loaded, precision = subject.loaded, subject.facts["precision"]
    if precision != EvaluateConfig().precision:
        name += f"-{precision}"
    name += data_mark(loaded, subject.source, subject.corpus)
    return choose(kind, output_dir, subject.system.home, name, loaded.progress.update, facts)


def data_mark(loaded: "Loaded", source: "Source", corpus: "Corpus") -> str:
    """What a folder's name says of the data: nothing where it is the checkpoint's own."""
    from minitrans.data.corpus import SOURCES

    own = construct(SOURCES, loaded.experiment.data, {}, "data")
    return "" if source == own else f"-{source.bleu_tokenize}-{corpus.fingerprint[:8]}"


def score(subject: Subject, config: EvaluateConfig, several: bool) -> Result:
    """Evaluate one checkpoint and write its translations and scores."""
    from minitrans.evaluation.scorecard import evaluate_split
    from minitrans.evaluation.summary import Evaluated

    output_dir = config.output_dir
    if output_dir and several:
        output_dir = str(Path(output_dir) / plain_name(subject.name))
    searched = differing(subject.loaded.experiment.search, subject.translator.search)
    name = f"{subject.corpus.name}-{subject.system.kind}-{searched}"
    folder = folder_of(EVALUATION, subject, output_dir, name, subject.facts)
    with progress_bar(len(subject.corpus), label=subject.name) as progress:
        card = evaluate_split(subject.translator, subject.corpus, subject.source.bleu_tokenize, progress)
    card = with_comet(card, config.comet, subject)
    make(folder)
    write_text(hypotheses_file(folder, card), "".join(f"{line}\n" for line in card.hypotheses))
    files = [str(file) for file in subject.system.files]
    origin = {
        "checkpoint": files[0] if len(files) == 1 else files,
        "update": subject.loaded.progress.update,
    }
    write_json(folder / "scores.json", {**origin, **subject.facts, **card.as_dict()})
    return Result(
        Evaluated(subject.name, card),
        subject.system,
        subject.source,
        subject.corpus,
        subject.facts,
        folder,
    )


def hypotheses_file(folder: Path, card: "ScoreCard") -> Path:
    """The file of the translations, one a line."""
    return folder / f"{plain_name(card.split)}.txt"


def with_comet(card: "ScoreCard", model: str, subject: Subject) -> "ScoreCard":
    """The card with COMET's score: always where a model is named, where it can be had with ``auto``."""
    from minitrans.evaluation import comet

    if model == "none" or (model == "auto" and not comet.installed()):
        return card
    gpus = int(next(subject.translator.model.parameters()).device.type == "cuda")
    name = comet.MODEL if model == "auto" else model
    try:
        found = comet.comet(card.sources, card.hypotheses, card.references, name, gpus)
    except UserError as error:
        if model != "auto":
            raise
        print(f"without COMET: {error}", file=sys.stderr)
        return card
    return dataclasses.replace(card, scores={**card.scores, "comet": found})


# --------------------------------------------------------------------------------------
# What is printed, and what is made of several results
# --------------------------------------------------------------------------------------


def report(config: EvaluateConfig, results: Sequence[Result]) -> None:
    """Print cards, rows and comparisons, and where everything lies. The baseline is the last result."""
    from minitrans.console import Console
    from minitrans.evaluation.summary import summary_table

    console = Console()
    systems = results[:-1] if config.baseline else results
    if len(systems) == 1:
        console.print(systems[0].evaluated.card.table())
    frame = sanity(results[0]) if config.sanity else []
    if frame or len(results) > 1:
        console.print(summary_table([result.evaluated for result in results], frame))
    for result in results:
        show(result)
    if config.baseline:
        compare_with(results[-1], systems, console)


def sanity(result: Result) -> "list[SanityRow]":
    """The rows of no model, on a result's data."""
    from minitrans.evaluation.sanity import sanity_rows

    return sanity_rows(result.corpus, result.source.load("train"), result.source.bleu_tokenize)


def show(result: Result) -> None:
    """Where a result lies, and what it was made with."""
    card = result.evaluated.card
    print(f"checkpoint:  {result.system.origin}")
    if card.cut:
        print(f"{card.cut:,} of {card.sentences:,} translations were ended by the length limit {LIMITS}")
    if card.near_ties:
        told = f"{card.near_ties:,} of {card.sentences:,} translations"
        print(f"{told} rest on a near-tie: rounding can turn them")
    print(f"search:      {card.settings()}, {result.facts['precision']}")
    for origin, digest in card.data.items():
        print(f"data:        {origin} (SHA-256 {digest[:16]}…)")
    print(f"hypotheses:  {hypotheses_file(result.folder, card)}")
    print(f"scores:      {result.folder / 'scores.json'}")


def compare_with(baseline: Result, systems: Sequence[Result], console: "Console") -> None:
    """Test the systems against the baseline; print the tests, write them and a page of changed sentences."""
    from minitrans.data.cache import hash_plain
    from minitrans.evaluation.comparison import changes, compare, comparison_table
    from minitrans.evaluation.page import comparison_page

    comparisons = compare([system.evaluated for system in systems], baseline.evaluated)
    for system, comparison in zip(systems, comparisons, strict=True):
        console.print(comparison_table(comparison))
        # the hash of what makes the baseline the one it is: another one has another folder
        name = f"against-{plain_name(baseline.evaluated.name)}-{hash_plain(baseline.facts)[:8]}"
        folder = system.folder / name
        make(folder)
        write_json(folder / "comparison.json", comparison.as_dict())
        page = comparison_page(comparison, changes(system.evaluated, baseline.evaluated))
        write_text(folder / "comparison.html", page)
        print(f"comparison:  {folder / 'comparison.json'}")
        print(f"page:        {folder / 'comparison.html'}")


# --------------------------------------------------------------------------------------
# The sweep of search settings
# --------------------------------------------------------------------------------------


def sweep(config: EvaluateConfig, typed: Mapping[str, Any], given: Sequence[System]) -> None:
    """Try beams and length penalties on the validation split; write the best where evaluate can take it."""
    from minitrans.console import Console
    from minitrans.evaluation.sweep import num_searches, sweep_search

    if len(given) > 1 or config.baseline:
        raise UserError("sweep=search takes one checkpoint and no baseline; call it once for each")
    split = config.split if "split" in typed else "valid"  # settings are not chosen on the test split
    (system,) = given
    subject = penalised(prepare(system, names(given)[0], config, typed, split), typed)
    beams, alphas = config.sweep_beam_sizes, config.sweep_alphas
    facts = {**subject.facts, "beam_sizes": sorted(set(beams)), "alphas": sorted(set(alphas))}
    folder = folder_of(SWEEP, subject, config.output_dir, f"sweep-{split}-{system.kind}", facts)
    total = len(subject.corpus) * num_searches(beams, alphas)
    with progress_bar(total, label=subject.name) as progress:
        found = sweep_search(
            subject.translator, subject.corpus, subject.source.bleu_tokenize, beams, alphas, progress
        )
    write_sweep(folder, found, {"checkpoint": system.origin, **facts})
    Console().print(found.table())
    best, file = found.best, folder / "search.yaml"
    words = [f"search_file={file}"]
    if config.precision != EvaluateConfig().precision:
        words.append(f"precision={config.precision}")
    print(f"best:        search.beam_size={best.beam_size} search.alpha={best.alpha:g}")
    print(f"settings:    {file} (type {shlex.join(words)} to evaluate)")
    print(f"heat map:    {folder / 'sweep.png'}")
    print(f"scores:      {folder / 'sweep.json'}")


def penalised(subject: Subject, typed: Mapping[str, Any]) -> Subject:
    """The subject, with the usual length penalty where its checkpoint has none and none was typed.

    A run that is validated by greedy search has no penalty, which leaves a sweep nothing to try.
    """
    from minitrans.decoding.translator import Translator

    own = subject.translator
    if own.search.length_penalty != "none" or "search" in typed or "search.length_penalty" in typed:
        return subject
    usual = SearchConfig().length_penalty
    told = f"the checkpoint's search has no length penalty: swept with search.length_penalty={usual}"
    print(told, file=sys.stderr)
    search = dataclasses.replace(own.search, length_penalty=usual)
    translator = Translator(own.model, own.tokenizers, search, own.batch_tokens)
    facts = {**subject.facts, "search": dataclasses.asdict(search)}
    return dataclasses.replace(subject, translator=translator, facts=facts)


def write_sweep(folder: Path, found: "SearchSweep", facts: Mapping[str, Any]) -> None:
    """Write ``sweep.json``, the best settings as ``search.yaml``, and the heat map."""
    from minitrans.checkpoint import write_whole
    from minitrans.evaluation.sweep import save_sweep

    make(folder)
    best = found.best
    text = yaml.safe_dump(dataclasses.asdict(found.best_search()), sort_keys=False)
    about = f"# the best of a sweep on {found.split} (BLEU {best.bleu:.2f}): search_file=this file\n"
    write_text(folder / "search.yaml", about + text)
    write_whole(folder / "sweep.png", lambda partial: save_sweep(found, partial))
    write_json(folder / "sweep.json", {**facts, **found.as_dict()})
