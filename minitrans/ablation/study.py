"""A study: a question, a base experiment, variants of it, seeds, and what is predicted."""

import itertools
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from minitrans.config import BudgetConfig, Section, _doc, parse
from minitrans.data.bundled import bundled
from minitrans.errors import UserError, nearest

BASE = "base"
METRICS = ("bleu", "chrf", "ter", "exact_match", "loss", "perplexity")
SPENT = ("flops", "tokens", "updates")
HELD_EQUAL = ("parameters", *SPENT)
ENDS = ("training.max_updates", "training.max_epochs")
"""Keys that end a training where no budget does."""
EXPECTATIONS = ("no difference", "worse", "better")
# Keys that a study sets itself, or that say where a cell runs and not what it is.
NOT_IN_A_CELL = ("seed", "run_dir", "resume", "force")
PLACE = ("threads", "trainer", "logger")


@dataclass(frozen=True)
class Variant:
    """One configuration of a study.

    Attributes
    ----------
    name
        How tables and folders call it.
    overrides
        What it changes of the base, each ``KEY=VALUE`` as typed to ``train``.
    against
        The variant that it is compared with; None: with none.
    expect
        What the study predicts of it beside that one: no difference, worse or better.
    """

    name: str
    overrides: tuple[str, ...] = ()
    against: str | None = None
    expect: str | None = None


@dataclass
class Prediction:
    """What is expected before anything runs."""

    text: str = _doc("the prediction, a sentence or two", "")
    source: str = _doc("where it comes from: theory, or a paper and its table", "")


@dataclass(frozen=True)
class Budget:
    """What the training of each cell may cost.

    Attributes
    ----------
    quantity
        tokens (target tokens) or flops (training FLOPs).
    amount
        Of them.
    """

    quantity: str
    amount: float

    @property
    def key(self) -> str:
        """The key that sets it."""
        return f"budget.{self.quantity}"

    def __str__(self) -> str:
        return spent_in_words(self.quantity, self.amount)


def spent_in_words(quantity: str, amount: float) -> str:
    """``"2,000,000 target tokens"``, ``"6.404e+12 training FLOPs"``."""
    return f"{amount:,.0f} target tokens" if quantity == "tokens" else f"{amount:.4g} training FLOPs"


@dataclass(frozen=True)
class Study:
    """A matrix of variants and seeds."""

    name: str
    question: str
    base: tuple[str, ...]
    variants: tuple[Variant, ...]
    seeds: tuple[int, ...] = (1, 2, 3)
    metric: str = "bleu"
    equal: tuple[str, ...] = ("updates",)
    prediction: Prediction = field(default_factory=Prediction)
    tune: str | None = None
    budget: Budget | None = None

    def named(self, name: str) -> Variant:
        """The variant of that name."""
        return next(variant for variant in self.variants if variant.name == name)


@dataclass
class _VariantFile:
    """A variant as its file states it."""

    overrides: list[str] = _doc("settings that differ from the base, each KEY=VALUE", [])
    against: str | None = _doc("the variant it is compared with (null: the base)", None)
    expect: str | None = _doc("no difference, worse or better", None)


@dataclass
class _StudyFile:
    """The keys of ``conf/study/*.yaml``."""

    question: str = _doc("what the study asks", "")
    base: list[str] = _doc("settings of every cell, below what is typed", [])
    base_variant: bool = _doc("the base is itself a variant", True)
    seeds: list[int] = _doc("each variant runs once with each", [1, 2, 3], low=0)
    metric: str = _doc("what variants are compared by", "bleu", choices=METRICS)
    equal: list[str] = _doc("what all variants should have alike", ["updates"])
    prediction: Prediction = field(default_factory=Prediction)
    tune: str = _doc("none, or lr: a search for each variant's learning rate", "none", choices=("none", "lr"))
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    variants: Section = _doc("name to overrides, against, expect", {})
    cross: list[str] = _doc(
        "more variants: every combination of the values listed, as on the command line", []
    )


def read_study(file: str | Path) -> Study:
    """Read a study from a file like those of ``conf/study``.

    Raises
    ------
    UserError
        The file cannot be read, or what :func:`study_of` refuses.
    """
    path = Path(file)
    try:
        content = yaml.load(path.read_text(encoding="utf8"), _EachKeyOnce)
    except OSError as error:
        raise UserError(f"study_file={file} cannot be read: {error.strerror}; check the path") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start})") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise UserError(f"{path} is no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, Mapping):
        raise UserError(f"{path} holds no keys; a study has question, base, variants and more")
    return study_of(path.stem, content, str(path))


class _EachKeyOnce(yaml.SafeLoader):
    """Plain data alone, as of yaml.safe_load, without anchors, and without a key that is there twice.

    An anchor could make a value hold itself; of two variants with one name the first would be lost.
    """

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()
        if getattr(event, "anchor", None) is not None:
            raise yaml.YAMLError(f"anchors (&, *) are not for studies, at {_place(event.start_mark)}")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if str(key.value) in seen:
                raise yaml.YAMLError(f'the key "{key.value}" is there twice, at {_place(key.start_mark)}')
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


def _place(mark: yaml.Mark) -> str:
    return f"line {mark.line + 1}"


def shipped() -> dict[str, Path]:
    """The studies of ``conf/study``: name to file."""
    return {path.stem: path for path in sorted((bundled("conf") / "study").glob("*.yaml"))}


def study_of(name: str, content: Mapping[str, Any], source: str) -> Study:
    """The study that plain data describes.

    Parameters
    ----------
    name
        How tables and folders call it.
    content
        The keys of a file of ``conf/study``.
    source
        Where they come from, for the sentences of errors.

    Raises
    ------
    UserError
        An unknown key (the nearest is named), a wrong value, a variant that names another one that is not
        there, or that sets what is not a variant's to set.
    """
    file = parse(_StudyFile, content, source)
    for item in file.equal:
        if item not in HELD_EQUAL:
            raise UserError(f'{source}: equal cannot hold "{item}"{nearest(item, HELD_EQUAL)}')
    default = BASE if file.base_variant else None
    variants = [
        *([Variant(BASE)] if file.base_variant else []),
        *(_variant(key, value, default, source) for key, value in file.variants.items()),
        *(variant for line in file.cross for variant in crossed(line, default, source)),
    ]
    refuse_settings(file.base, NOT_IN_A_CELL, f"{source}: base")
    study = Study(
        name=name,
        question=file.question,
        base=tuple(file.base),
        variants=tuple(variants),
        seeds=tuple(file.seeds),
        metric=file.metric,
        equal=tuple(file.equal),
        prediction=file.prediction,
        tune=None if file.tune == "none" else file.tune,
    )
    return checked(within(study, budget_of(file.budget, source)), source)


def budget_of(config: BudgetConfig, source: str) -> Budget | None:
    """The budget that is stated; None where there is none.

    Raises
    ------
    UserError
        There are two.
    """
    stated = [
        Budget(quantity, amount)
        for quantity, amount in (("tokens", config.tokens), ("flops", config.flops))
        if amount is not None
    ]
    if len(stated) > 1:
        raise UserError(f"{source}: budget.tokens and budget.flops are two budgets; leave one out")
    return stated[0] if stated else None


def within(study: Study, budget: Budget | None) -> Study:
    """The same study with a budget for each cell: of what training spends, that alone is held equal then.

    A study without a budget (None) stays as it is.
    """
    if budget is None:
        return study
    kept = tuple(name for name in study.equal if name not in SPENT)
    return replace(study, budget=budget, equal=(*kept, budget.quantity))


def refuse_two_ends(study: Study, typed: Sequence[str]) -> None:
    """Stop where a budget and a number of updates or epochs would both end a cell.

    Parameters
    ----------
    study
        The study.
    typed
        The words for its base that were typed.

    Raises
    ------
    UserError
        Names the budget, the other word and where it stands.
    """
    if study.budget is None:
        return
    for where, words in (("base", (*study.base, *typed)), *((v.name, v.overrides) for v in study.variants)):
        for word in words:
            if word.partition("=")[0] in ENDS:
                raise UserError(
                    f'study {study.name}, "{where}": {word} and {study.budget.key} both say when a cell '
                    "ends; leave one of them out"
                )


def _variant(name: str, content: Any, against: str | None, source: str) -> Variant:
    if not isinstance(content, Mapping):
        raise UserError(
            f"{source}: variants.{name} is {content!r} where overrides: [KEY=VALUE, ...] is needed"
        )
    file = parse(_VariantFile, content, source, f"variants.{name}.")
    if file.expect is not None and file.expect not in EXPECTATIONS:
        raise UserError(
            f'{source}: variants.{name}.expect cannot be "{file.expect}"{nearest(file.expect, EXPECTATIONS)}'
        )
    return Variant(name, tuple(file.overrides), file.against or against, file.expect)


def checked(study: Study, source: str) -> Study:
    """The same study, refused where its parts do not fit together.

    Raises
    ------
    UserError
        No variant or no seed, one that comes twice, a comparison with a variant that is not there, an
        override of something that is not a variant's.
    """
    names = [variant.name for variant in study.variants]
    if not names or not study.seeds:
        raise UserError(f"{source}: a study needs at least one variant and one seed")
    for what, values in (("variant", names), ("seed", study.seeds)):
        for value in values:
            if list(values).count(value) > 1:
                raise UserError(f"{source}: the {what} {value} is there twice; leave one out")
    for variant in study.variants:
        where = f"{source}: variants.{variant.name}"
        refuse_settings(variant.overrides, (*NOT_IN_A_CELL, *PLACE), where)
        if not variant.name.strip():
            raise UserError(f"{source}: a variant has no name; give it one")
        if variant.against == variant.name:
            raise UserError(f"{where}.against names the variant itself; name another one")
        if variant.against is not None and variant.against not in names:
            raise UserError(f'{where}.against cannot be "{variant.against}"{nearest(variant.against, names)}')
        if variant.against is not None and study.named(variant.against).against == variant.name:
            raise UserError(
                f'{where}.against is "{variant.against}", which is against "{variant.name}": one comparison, '
                "twice; take one of them out"
            )
    return study


def refuse_settings(words: Sequence[str], keys: Sequence[str], where: str) -> None:
    """Stop at words that are no ``KEY=VALUE``, or that set what the study itself sets.

    ``trainer.precision`` is a part of the experiment; everything else below ``trainer`` is its place.
    """
    for word in words:
        key, equals, _ = word.partition("=")
        if not equals:
            raise UserError(f'{where}: "{word}" is not of the form KEY=VALUE')
        if key.split(".")[0] in keys and key != "trainer.precision":
            reason = "seeds are the study's own" if key == "seed" else "it says nothing of the experiment"
            raise UserError(f"{where} cannot set {key}: {reason}; leave it out")


# --------------------------------------------------------------------------------------
# Variants from the command line
# --------------------------------------------------------------------------------------


def from_command_line(lines: Sequence[str], study: Study | None) -> Study:
    """A study of the variants that were typed, or a study with these variants added.

    Parameters
    ----------
    lines
        One variant each: ``KEY=VALUE`` words apart by spaces. Several values of a key, apart by commas
        (``attention=scaled,unscaled model.d_k=8,32``), stand for as many variants.
    study
        The study to extend; None makes a new one around them.

    Raises
    ------
    UserError
        A word that is no ``KEY=VALUE``, or a variant that comes twice.
    """
    source = "variants"
    around = study or Study("variants", "What do these variants change?", (), (Variant(BASE),))
    against = BASE if BASE in [variant.name for variant in around.variants] else None
    added = tuple(variant for line in lines for variant in crossed(line, against, source))
    return checked(replace(around, variants=around.variants + added), source)


def crossed(line: str, against: str | None, source: str) -> list[Variant]:
    """Every combination of the values in one line, in the order in which they are written."""
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise UserError(f"{source}: {line!r} cannot be read: {error}") from error
    choices = []
    for word in words:
        key, equals, values = word.partition("=")
        if not equals:
            raise UserError(f'{source}: "{word}" is not of the form KEY=VALUE')
        choices.append([f"{key}={value}" for value in _alternatives(values)])
    return [Variant(" ".join(words), tuple(words), against) for words in itertools.product(*choices)]


def _alternatives(values: str) -> list[str]:
    """Cut at commas, but not inside brackets: ``[0.9,0.98]`` is one value."""
    return re.split(r",(?![^\[]*\])", values)
