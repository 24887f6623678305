"""Two or more systems on the same sentences: is the difference more than chance, and where does it lie?

Both tests are sacreBLEU's, paired: they ask how often a difference as large arises when the systems are
the same.

* Paired bootstrap (Koehn 2004): 1,000 samples of the sentences.
* Approximate randomisation (Riezler and Maxwell 2005): 10,000 times, each sentence's two translations
  change sides by the toss of a coin.

A difference of exactly 0 has p = 1. sacreBLEU counts only what is larger than the difference found, and
would give a system held against itself the smallest p that there can be.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from sacrebleu.metrics import TER
from sacrebleu.metrics.base import Metric as SacreMetric
from sacrebleu.significance import PairedTest

from minitrans.data.corpus import Corpus
from minitrans.errors import UserError
from minitrans.evaluation.metrics import TITLES, bleu_metric, chrf_metric
from minitrans.evaluation.references import references
from minitrans.evaluation.summary import Evaluated

BOOTSTRAP, RANDOMISATION = 1000, 10000
"""Samples and trials: sacreBLEU's own numbers."""


@dataclass(frozen=True)
class Difference:
    """One metric of a system beside the baseline's.

    Attributes
    ----------
    p_bootstrap, p_randomisation
        Probability of a difference at least as large between equal systems.
    bootstrap_signature, randomisation_signature
        sacreBLEU's, samples and seed in them.
    """

    baseline: float
    system: float
    p_bootstrap: float
    p_randomisation: float
    bootstrap_signature: str
    randomisation_signature: str

    @property
    def difference(self) -> float:
        """System minus baseline."""
        return self.system - self.baseline


@dataclass(frozen=True)
class Change:
    """One sentence that a system translates otherwise than the baseline.

    Attributes
    ----------
    line
        Its number in the split, from 1.
    baseline_chrf, system_chrf, baseline_bleu, system_bleu
        chrF2++ and BLEU of the sentence alone, percent (BLEU of the orders that the sentence has).
    """

    line: int
    source: str
    reference: str
    baseline: str
    system: str
    baseline_chrf: float
    system_chrf: float
    baseline_bleu: float
    system_bleu: float

    @property
    def difference(self) -> float:
        """By which it is better (above 0) or worse, in chrF2++."""
        return self.system_chrf - self.baseline_chrf


@dataclass(frozen=True)
class Comparison:
    """A system held against the baseline.

    Attributes
    ----------
    differences
        Name of a metric -> both scores, and p-values.
    better, worse, unlike
        Sentences with a higher and a lower chrF2++ than the baseline's, and with other words at all.
    """

    system: Evaluated
    baseline: Evaluated
    differences: Mapping[str, Difference]
    better: int
    worse: int
    unlike: int

    def as_dict(self) -> dict[str, Any]:
        """Plain data: the content of ``comparison.json``."""
        return {
            "system": self.system.name,
            "baseline": self.baseline.name,
            "split": self.system.card.split,
            "sentences": self.system.card.sentences,
            "sentences_better": self.better,
            "sentences_worse": self.worse,
            "sentences_unlike": self.unlike,
            "differences": {
                name: {**dataclasses.asdict(found), "difference": found.difference}
                for name, found in self.differences.items()
            },
            "system_search": dataclasses.asdict(self.system.card.search),
            "baseline_search": dataclasses.asdict(self.baseline.card.search),
            "data": dict(self.system.card.data),
        }


def compare(systems: Sequence[Evaluated], baseline: Evaluated) -> list[Comparison]:
    """Hold each system against the baseline.

    Raises
    ------
    UserError
        A system was scored on other sentences or references than the baseline, or with another tokenizer.
    """
    for system in systems:
        require_same_ground(Ground.of(system), Ground.of(baseline))
    bootstrap, randomisation = (_paired_test(systems, baseline, kind) for kind in ("bs", "ar"))
    comparisons = []
    for place, system in enumerate(systems):
        differences = {}
        for name in bootstrap:
            (of_baseline, of_system), signature = _pick(bootstrap[name], place)
            (_, randomised), other_signature = _pick(randomisation[name], place)
            same = of_system.score == of_baseline.score
            differences[name] = Difference(
                baseline=float(of_baseline.score),
                system=float(of_system.score),
                p_bootstrap=1.0 if same else float(of_system.p_value),
                p_randomisation=1.0 if same else float(randomised.p_value),
                bootstrap_signature=signature,
                randomisation_signature=other_signature,
            )
        found = changes(system, baseline)
        better, worse = (sum(sign * change.difference > 0 for change in found) for sign in (1, -1))
        comparisons.append(Comparison(system, baseline, differences, better, worse, len(found)))
    return comparisons


@dataclass(frozen=True)
class Ground:
    """What a system is scored on.

    Attributes
    ----------
    name
        The system's.
    data
        File (or other origin) -> SHA-256.
    """

    name: str
    data: Mapping[str, str]
    sources: Sequence[str]
    references: Sequence[str]
    bleu_tokenize: str

    @classmethod
    def of(cls, system: Evaluated) -> "Ground":
        """Of a system that was scored."""
        card = system.card
        return cls(system.name, card.data, card.sources, card.references, card.bleu_tokenize)

    @classmethod
    def of_corpus(cls, name: str, corpus: Corpus, bleu_tokenize: str) -> "Ground":
        """Of a system that is to be scored."""
        return cls(name, corpus.hashes, tuple(corpus.src), references(corpus), bleu_tokenize)


def require_same_ground(system: Ground, baseline: Ground) -> None:
    """Refuse to compare what is not scored alike.

    Raises
    ------
    UserError
        Other sentences, other references, or another tokenizer.
    """
    if system.references != baseline.references or system.sources != baseline.sources:
        raise UserError(
            f"{system.name} and {baseline.name} are scored on different text ({' and '.join(system.data)}; "
            f"{' and '.join(baseline.data)}), so their scores cannot be compared; "
            "name the data set for both: data=..."
        )
    if system.bleu_tokenize != baseline.bleu_tokenize:
        raise UserError(
            f"the BLEU of {system.name} is of data.bleu_tokenize={system.bleu_tokenize}, that of "
            f"{baseline.name} of {baseline.bleu_tokenize}; give data.bleu_tokenize for both"
        )


_Results = tuple[list[Any], str]  # sacreBLEU's results, the baseline's first; the signature


def _paired_test(systems: Sequence[Evaluated], baseline: Evaluated, kind: str) -> dict[str, _Results]:
    """sacreBLEU's test of every metric: name -> results."""
    card = baseline.card
    metrics: dict[str, SacreMetric] = {
        "bleu": bleu_metric(card.bleu_tokenize),
        "chrf": chrf_metric(),
        "ter": TER(),
    }
    hypotheses: list[tuple[str, Sequence[str]]] = [
        (one.name, one.card.hypotheses) for one in (baseline, *systems)
    ]
    samples = BOOTSTRAP if kind == "bs" else RANDOMISATION
    test = PairedTest(hypotheses, metrics, [card.references], kind, n_samples=samples)
    signatures, results = test()
    titles = [title for title in results if title != "System"]  # in the order of the metrics
    return {
        name: (results[title], str(signatures[title])) for name, title in zip(metrics, titles, strict=True)
    }


def _pick(results: _Results, place: int) -> tuple[tuple[Any, Any], str]:
    """The baseline's result, one system's, and the signature."""
    found, signature = results
    return (found[0], found[place + 1]), signature


def changes(system: Evaluated, baseline: Evaluated) -> list[Change]:
    """Every sentence that the two translate with other words, the one that lost most first."""
    chrf, bleu = chrf_metric(), bleu_metric(baseline.card.bleu_tokenize)
    bleu.effective_order = True  # a sentence of three words has no 4-grams, and is no failure for it
    found = []
    for line, (before, after) in enumerate(
        zip(baseline.card.hypotheses, system.card.hypotheses, strict=True), start=1
    ):
        if before.split() == after.split():
            continue
        reference = baseline.card.references[line - 1]
        before_chrf, after_chrf = (chrf.sentence_score(text, [reference]).score for text in (before, after))
        before_bleu, after_bleu = (bleu.sentence_score(text, [reference]).score for text in (before, after))
        source = baseline.card.sources[line - 1]
        scores = (before_chrf, after_chrf, before_bleu, after_bleu)
        found.append(Change(line, source, reference, before, after, *scores))
    return sorted(found, key=lambda change: (change.difference, change.line))


def comparison_table(comparison: Comparison) -> Table:
    """One comparison for the terminal."""
    title = f"{comparison.system.name} against {comparison.baseline.name}"
    table = Table(title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column(comparison.system.card.split)
    for name in ("baseline", "system", "difference", "p bootstrap", "p randomised"):
        table.add_column(name, justify="right", no_wrap=True)
    for metric, found in comparison.differences.items():
        numbers = f"{found.baseline:.2f}", f"{found.system:.2f}", f"{found.difference:+.2f}"
        chances = f"{found.p_bootstrap:.4f}", f"{found.p_randomisation:.4f}"
        table.add_row(TITLES[metric], *numbers, *chances)
    table.caption = (
        f"{comparison.better:,} sentences better, {comparison.worse:,} worse. p: the chance of a difference "
        f"as large between equal systems (sacreBLEU, paired; {BOOTSTRAP:,} samples, {RANDOMISATION:,} trials)"
    )
    table.caption_justify = "left"
    return table
