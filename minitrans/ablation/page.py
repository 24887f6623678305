"""What the report of a study says, section by section."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from minitrans.ablation import instruments, plots, results
from minitrans.ablation.answer import (
    HELD,
    NO_DIFFERENCE,
    NOT_CONTRADICTED,
    NOT_HELD,
    OPEN,
    UNITS,
    Answer,
    Comparison,
    number,
    p_value,
    signed,
)
from minitrans.ablation.budget import told
from minitrans.ablation.document import Alarm, Block, Commands, Document, Note, Section, Table, Text
from minitrans.ablation.fairness import MOST, Cost, Unfair
from minitrans.ablation.results import Outcome, Results
from minitrans.ablation.statistics import ALPHA, Spread
from minitrans.evaluation.metrics import RESAMPLES, TITLES

_BESIDE = "\N{NO-BREAK SPACE}"


@dataclasses.dataclass(frozen=True)
class Findings:
    """Everything that a report tells."""

    results: Results
    answer: Answer
    costs: Mapping[str, Cost]
    unfair: Sequence[Unfair]


def document(findings: Findings) -> Document:
    """The report, section by section."""
    study = findings.results.study
    sections = [
        Section("Before you believe it", _alarms(findings)),
        Section("Scores", _scores(findings.results)),
        Section("Differences", _differences(findings)),
        Section("Prediction", _prediction(findings)),
        Section("What each variant cost", _costs(findings)),
        Section("Learning curves", _curves(findings.results)),
        Section("Inside the heads", instruments.blocks(findings.results)),
        Section("By nesting depth", _groups(findings.results, "by_depth", "depth", "Exact match, %")),
        Section("By source length", _groups(findings.results, "by_length", "words", "BLEU")),
        Section("On other test splits", _other_splits(findings.results)),
        Section("What this study could have found", _power(findings)),
        Section("Failed and missing cells", _missing(findings.results)),
        Section("Tuning", _tuning(findings.results)),
        Section("How to reproduce it", _commands(findings.results)),
    ]
    return Document(
        title=f"Study {study.name}",
        about=study.question,
        answer=findings.answer.sentence,
        sections=[section for section in sections if section.blocks],
    )


def _alarms(findings: Findings) -> list[Block]:
    """What weakens the answer."""
    found, study = findings.results, findings.results.study
    alarms = []
    leaks = [v.name for v in study.variants if any(outcome.leak for outcome in found.outcomes(v.name))]
    if leaks:
        alarms.append(
            f"A leak, as configured: in training the decoder of {', '.join(leaks)} saw the tokens that "
            "it was to predict. Its training and validation loss mean nothing beside those of other variants."
        )
    if found.missing:
        alarms.append(f"{len(found.missing)} of {len(found.cells)} cells have no score (listed below).")
    failed = list(dict.fromkeys(cell.variant for cell in found.missing if cell.error is not None))
    if failed:
        alarms.append(
            f"Seeds of {', '.join(failed)} failed. A variant that is judged by the seeds that went well "
            "looks better than it is."
        )
    alarms += [f"{' and '.join(names)} are one and the same configuration." for names in _same(found)]
    alarms += _unlike(findings)
    alarms += [_unfair_words(flag) for flag in findings.unfair]
    alarms += _few_seeds(findings.answer.comparisons)
    if study.tune is None:
        alarms.append(
            "Nothing was tuned: every variant ran with the settings of the base, which may suit some better "
            "than others (tune=lr searches a learning rate for each)."
        )
    return [Alarm(text) for text in alarms]


def _same(found: Results) -> list[list[str]]:
    """Names of variants that are one configuration: their cells have one address."""
    names: dict[tuple[str, int], list[str]] = {}
    for cell in found.cells:
        if cell.address:  # it has none while it waits for its rate
            names.setdefault((cell.address, cell.seed), []).append(cell.variant)
    return [list(group) for group in dict.fromkeys(map(tuple, names.values())) if len(group) > 1]


def _unlike(findings: Findings) -> list[str]:
    """Comparisons in which a pair of cells was scored on unlike text."""
    found, said = findings.results, []
    for comparison in findings.answer.comparisons:
        own, other = found.finished(comparison.variant), found.finished(comparison.against)
        if not all(results.alike(own[seed], other[seed]) for seed in own.keys() & other.keys()):
            said.append(
                f"Not comparable: {comparison.variant} and {comparison.against} were scored on other text or "
                "with another tokenizer, so they are no pair."
            )
    return said


def _few_seeds(comparisons: Sequence[Comparison]) -> list[str]:
    pairs = {n: [c.variant for c in comparisons if c.test is not None and c.test.n == n] for n in (1, 2)}
    said = []
    if pairs[1]:
        said.append(
            f"One seed: for {', '.join(pairs[1])} there is no interval over seeds and no test, only a number."
        )
    if pairs[2]:
        said.append(
            f"Two seeds: the test of {', '.join(pairs[2])} stands on the assumption that scores over seeds "
            "follow a normal distribution, which two seeds cannot show. Three or more are better."
        )
    return said


def _unfair_words(flag: Unfair) -> str:
    what = {"flops": "training FLOPs", "tokens": "target tokens"}.get(flag.quantity, flag.quantity)
    return (
        f"Not of equals: {flag.variant} has {_percent(flag.excess)} {what} beside {flag.against}, which the "
        f"study holds equal (to {100 * MOST:.0f} %)."
    )


def _percent(part: float) -> str:
    return f"{100 * part:+.1f}{_BESIDE}%".replace("-", "−")


def _scores(found: Results) -> list[Block]:
    metric, rows = found.study.metric, []
    for variant in found.study.variants:
        scores, cells = found.scores(variant.name), found.of(variant.name)
        spread = Spread.of(list(scores.values())) if scores else None
        each = ", ".join(number(score) for score in scores.values())
        changes = " ".join(variant.overrides) or "nothing"
        rows.append((variant.name, _spread(spread), each, f"{len(scores)} of {len(cells)}", changes))
    first = found.all_outcomes[0] if found.all_outcomes else None
    on = f" on the split {first.split}, {first.sentences:,} sentences" if first else ""
    return [
        Table(("variant", f"{TITLES.get(metric, metric)}", "each seed", "seeds", "what it changes"), rows),
        Note(f"Mean ± standard deviation over seeds{on}."),
    ]


def _spread(spread: Spread | None) -> str:
    if spread is None:
        return "–"
    return number(spread.mean) + ("" if spread.sd is None else f"{_BESIDE}±{_BESIDE}{number(spread.sd)}")


def _differences(findings: Findings) -> list[Block]:
    comparisons, metric = findings.answer.comparisons, findings.results.study.metric
    if not comparisons:
        return []
    heads = (
        "variant", "compared with", "pairs", f"difference in {UNITS.get(metric, metric)}", "95 % over seeds",
        "p", "p, Holm", "95 % over sentences", "p, sentences", "finding",
    )  # fmt: skip
    blocks: list[Block] = [Table(heads, [_difference_row(comparison) for comparison in comparisons])]
    blocks.append(Note(_how_to_read(findings.answer)))
    figure = plots.forest(comparisons, metric)
    return blocks if figure is None else [*blocks, figure]


def _difference_row(comparison: Comparison) -> tuple[str, ...]:
    test, sentences = comparison.test, comparison.sentences
    if test is None:
        return (comparison.variant, comparison.against, "0", *[""] * 6, "no paired seed yet")
    finding = comparison.direction
    if test.p is None:
        finding = "one seed: no test" if test.n == 1 else "no spread: no test"
    if test.p is not None and test.p < ALPHA and not comparison.found:
        finding = "none, after Holm"
    return (
        comparison.variant,
        comparison.against,
        str(test.n),
        signed(test.mean),
        _interval(test.low, test.high),
        p_value(test.p),
        p_value(comparison.p_holm),
        _interval(sentences.low, sentences.high) if sentences else "",
        p_value(sentences.p) if sentences else "",
        finding if finding != NO_DIFFERENCE else "none detected",
    )


def _interval(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"{signed(low)} to {signed(high)}".replace(" ", _BESIDE)


def _how_to_read(answered: Answer) -> str:
    sentences = (
        f"The bootstrap over sentences was not done: {answered.no_bootstrap}."
        if answered.no_bootstrap
        else f"The paired bootstrap over sentences ({RESAMPLES:,} samples, as sacreBLEU draws them, mean "
        "over the paired seeds) holds for these very models: it says how the difference carries over to "
        "other sentences, not to other seeds, and decides nothing here."
    )
    return (
        "Variant less the one it is compared with, seed by seed. Interval and p over seeds: two-sided t-test "
        "of the paired differences; the interval is that of one comparison, the second p is corrected for "
        f"all of them (Holm), and below 0.05 it is a finding. {sentences}"
    )


def _prediction(findings: Findings) -> list[Block]:
    study, comparisons = findings.results.study, findings.answer.comparisons
    blocks: list[Block] = []
    if study.prediction:
        blocks.append(Text(study.prediction))
    if study.source:
        blocks.append(Note(f"Source: {study.source}"))
    if not blocks:
        return [Text("The study states no prediction.")]
    verdict = findings.answer.verdict
    said = {
        HELD: "It held.",
        NOT_HELD: "It did not hold: look for the reason before you look for an explanation.",
        NOT_CONTRADICTED: "Nothing contradicts it; where it says that there is no difference none was "
        "detected, which does not prove that there is none.",
        OPEN: "Undecided: nothing speaks against it, but not all that it predicts was shown.",
        None: "The study does not say which variants it expects to differ, so nothing is checked.",
    }
    blocks.append(Text(said[verdict]))
    rows = [
        (c.variant, c.against, c.expect, _seen(c), c.verdict or "")
        for c in comparisons
        if c.expect is not None
    ]
    if rows:
        blocks.append(Table(("variant", "compared with", "predicted", "found", "verdict"), rows))
    return blocks


def _seen(comparison: Comparison) -> str:
    tested = comparison.p_holm is not None
    return "none detected" if tested and not comparison.found else comparison.direction


def _costs(findings: Findings) -> list[Block]:
    if not findings.costs:
        return []
    study, rows = findings.results.study, []
    for name, cost in findings.costs.items():
        flags = [
            f"{flag.quantity} {_percent(flag.excess)}" for flag in findings.unfair if flag.variant == name
        ]
        rows.append(
            (
                name,
                f"{cost.parameters:,.0f}",
                "not counted" if cost.flops is None else f"{cost.flops:.3e}",
                f"{cost.tokens:,.0f}",
                f"{cost.updates:,.0f}",
                "" if cost.tokens_per_s is None else f"{cost.tokens_per_s:,.0f}",
                ", ".join(flags) or ("" if study.named(name).against is None else "yes"),
            )
        )
    heads = (
        "variant",
        "parameters",
        "training FLOPs",
        "target tokens",
        "updates",
        "tokens a second",
        "fair?",
    )
    uncounted = {name: cost.note for name, cost in findings.costs.items() if cost.note}
    notes = []
    if uncounted:
        notes = [f"FLOPs of {', '.join(uncounted)} were not counted: {next(iter(uncounted.values()))}."]
    if study.budget is not None:
        notes.append(f"The budget is {told(study.budget, study.updates)}.")
    return [
        Table(heads, rows),
        Note(
            f"Held equal, to {100 * MOST:.0f} %: {', '.join(study.equal) or 'nothing'}. FLOPs are those of "
            "the first seed's updates, a multiplication and an addition counted as two, as torch's "
            "FlopCounterMode counts the matrix products and convolutions of the run's own batches, without "
            "validation and search. Tokens a second: target tokens in training; cells that ran side by side "
            "slow each other down."
        ),
        *(Note(note) for note in notes),
    ]


def _curves(found: Results) -> list[Block]:
    figure = plots.learning_curves(found)
    if figure is None:
        return []
    return [figure, Note("Mean of each variant's finished seeds; the band is ± one standard deviation.")]


def _groups(found: Results, field: str, unit: str, title: str) -> list[Block]:
    """A score by groups of sentences, the mean over seeds, where the cells tell it."""
    names = [variant.name for variant in found.study.variants if found.outcomes(variant.name)]
    tables = {name: [getattr(outcome, field) for outcome in found.outcomes(name)] for name in names}
    groups = list(dict.fromkeys(group for of in tables.values() for one in of for group in one))
    if not groups:
        return []
    sizes = {group: size for of in tables.values() for one in of for group, (_, size) in one.items()}
    rows = [
        (name, *(_mean([one[group][0] for one in tables[name] if group in one]) for group in groups))
        for name in names
    ]
    heads = ("variant", *(f"{group} ({sizes[group]:,})" for group in groups))
    return [
        Table(heads, rows),
        Note(f"{title}, mean over seeds, by {unit}; in brackets the number of sentences."),
    ]


def _mean(values: Sequence[float]) -> str:
    return f"{sum(values) / len(values):.1f}" if values else ""


def _other_splits(found: Results) -> list[Block]:
    splits = list(dict.fromkeys(split for outcome in found.all_outcomes for split in outcome.other_splits))
    if not splits:
        return []
    rows = []
    for variant in found.study.variants:
        outcomes = found.outcomes(variant.name)
        if outcomes:
            rows.append((variant.name, *(_on_split(outcomes, split) for split in splits)))
    metric = found.study.metric
    return [
        Table(("variant", *splits), rows),
        Note(f"{TITLES.get(metric, metric)}: mean ± standard deviation over seeds."),
    ]


def _on_split(outcomes: Sequence[Outcome], split: str) -> str:
    values = [outcome.other_splits[split] for outcome in outcomes if split in outcome.other_splits]
    return _spread(Spread.of(values) if values else None)


def _power(findings: Findings) -> list[Block]:
    power, metric = findings.answer.power, findings.results.study.metric
    if power is None:
        if any(c.test is not None and c.test.n > 1 for c in findings.answer.comparisons):
            return [Text("No spread between seeds was seen, so the power cannot be estimated.")]
        return [Text("With one seed a variant no difference, however large, can be told from chance.")]
    unit = UNITS.get(metric, metric)
    text = (
        f"Differences between paired seeds have a standard deviation of {number(power.sd)} {unit} (pooled "
        f"over the comparisons). With {power.seeds} pairs a study finds a true difference of "
        f"{number(power.single)} {unit} with a power of 80 % where it makes one comparison"
    )
    if power.corrected > power.single:
        text += f", and of {number(power.corrected)} {unit} where Holm's correction asks most of it"
    blocks: list[Block] = [Text(f"{text}. Smaller ones may be there and go unseen.")]
    if power.more:
        more = ", ".join(f"{seeds} would show {number(least)}" for seeds, least in power.more.items())
        blocks.append(Note(f"More seeds show smaller differences; as strictly, {more} {unit}."))
    return blocks


def _missing(found: Results) -> list[Block]:
    if not found.missing:
        return []
    rows = [
        (
            f"{cell.variant}, seed {cell.seed}",
            "no score" if cell.state == results.DONE else cell.state,
            cell.error or "",
            str(cell.log.relative_to(found.folder)) if cell.log else "",
        )
        for cell in found.missing
    ]
    return [Table(("cell", "state", "why", "log"), rows)]


def _tuning(found: Results) -> list[Block]:
    study = found.study
    if study.tune is None:
        return []
    chosen = [(v.name, _settings(v.tuned) or "not yet") for v in study.variants]
    blocks: list[Block] = [
        Text(
            f"Each variant had the same search (tune={study.tune}) on the validation split before its seeds."
        ),
        Table(("variant", "chosen"), chosen),
    ]
    if study.trials:
        rows = [
            (t.variant, _settings(t.setting), "" if t.validation is None else number(t.validation), t.state)
            for t in study.trials
        ]
        blocks.append(Table(("variant", "tried", "validation", "state"), rows))
    return blocks


def _settings(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in settings.items())


def _commands(found: Results) -> list[Block]:
    cells = [(f"{cell.variant}, seed {cell.seed}", cell.command) for cell in found.cells]
    return [
        Text("The study:"),
        Commands([("all cells; what is done is not run again", found.study.command)]),
        Text("One cell alone:"),
        Commands(cells),
    ]
