"""The splits of the toy corpus, and the files that hold them."""

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from minitrans.data.toy import english, german
from minitrans.data.toy.sample import Sampler
from minitrans.data.toy.tree import Both, Clause, Phrase, Sentence, clauses, depth, structure

SEED = 2017
FEWEST = 5  # how often training shows each word form of the other splits, at least
SIZES = {"train": 20_000, "val": 500, "test": 500, "test_novel": 500}
DEEPER = {4: 200, 5: 50}  # sentences of test_novel by depth; the rest are held-out combinations


@dataclass(frozen=True)
class Example:
    """One sentence in both languages, with what is reported about it.

    ``kind`` is ``"known"``, ``"depth"`` (nested deeper than in training) or a held-out combination.
    """

    en: str
    de: str
    depth: int
    kind: str
    structure: tuple[object, ...]


def _separable_in_complement(sentence: Sentence) -> bool:
    """*..., dass sie ihn anruft*."""
    return any(context == "complement" and clause.verb.particle for context, clause in clauses(sentence))


def _kein_in_relative(sentence: Sentence) -> bool:
    """*..., der keinen Hund hat*."""
    return any(context == "relative" and clause.negation == "kein" for context, clause in clauses(sentence))


def _preposition_and_modal_in_relative(sentence: Sentence) -> bool:
    """*..., auf den sie warten muss*."""
    return any(
        clause.relativised == "object" and clause.verb.preposition and clause.tense == "modal"
        for _, clause in clauses(sentence)
    )


def _negated_whose(sentence: Sentence) -> bool:
    """*..., dessen Hund nicht schläft*."""
    return any(clause.negation and _is_whose(clause) for _, clause in clauses(sentence))


def _is_whose(clause: Clause) -> bool:
    part = clause.subject if clause.relativised == "subject" else clause.object
    return bool(clause.relativised) and isinstance(part, Phrase) and part.determiner.kind == "whose"


def _ditransitive_question(sentence: Sentence) -> bool:
    """*Gibt er ihr das Buch?*"""
    return bool(sentence.question) and sentence.main.verb.frame == "ditransitive"


def _time_before_joined_subject(sentence: Sentence) -> bool:
    """*Heute schlafen Anna und der Hund.*"""
    return sentence.first == "time" and isinstance(sentence.main.subject, Both)


# Each part of these is common in training; the parts never meet there.
HELD_OUT: dict[str, Callable[[Sentence], bool]] = {
    "separable_in_complement": _separable_in_complement,
    "kein_in_relative": _kein_in_relative,
    "preposition_and_modal_in_relative": _preposition_and_modal_in_relative,
    "negated_whose": _negated_whose,
    "ditransitive_question": _ditransitive_question,
    "time_before_joined_subject": _time_before_joined_subject,
}


def example(sentence: Sentence) -> Example:
    """Write a sentence in both languages."""
    nesting = depth(sentence)
    kind = next((name for name, holds in HELD_OUT.items() if holds(sentence)), "known")
    if nesting > 3:
        kind = "depth"
    return Example(english.write(sentence), german.write(sentence), nesting, kind, structure(sentence))


def corpus(seed: int = SEED) -> dict[str, list[Example]]:
    """All splits: no English sentence twice, and no word in a test set that training hardly shows."""
    sampler = Sampler(seed)
    seen: set[str] = set()
    splits: dict[str, list[Example]] = {name: [] for name in SIZES}
    held_out: dict[str, list[Example]] = {name: [] for name in HELD_OUT}
    known: set[str] = set()
    for name in ("train", "val", "test"):
        while len(splits[name]) < SIZES[name]:
            drawn = example(sampler.sentence())
            if drawn.en in seen or (name != "train" and not known.issuperset(words(drawn))):
                continue
            seen.add(drawn.en)
            (splits[name] if drawn.kind == "known" else held_out[drawn.kind]).append(drawn)
        known = known or _frequent(splits["train"])
    shown = {pair.structure for pair in splits["train"]}
    splits["test_novel"] = _novel(sampler, held_out, shown, known)
    return splits


def _novel(
    sampler: Sampler, held_out: dict[str, list[Example]], shown: set[tuple[object, ...]], known: set[str]
) -> list[Example]:
    """The held-out combinations in equal parts (the last one a little less), then the deeper sentences."""
    number = SIZES["test_novel"] - sum(DEEPER.values())
    share = -(-number // len(HELD_OUT))
    chosen: list[Example] = []
    for pairs in held_out.values():
        fitting = [pair for pair in pairs if pair.structure not in shown and known.issuperset(words(pair))]
        chosen += fitting[: min(share, number - len(chosen))]
    seen = {pair.en for pair in chosen}
    for nesting, wanted in DEEPER.items():
        target = len(chosen) + wanted
        while len(chosen) < target:
            drawn = example(sampler.sentence(nesting))
            if drawn.en not in seen and known.issuperset(words(drawn)):
                seen.add(drawn.en)
                chosen.append(drawn)
    return chosen


def _frequent(pairs: list[Example]) -> set[str]:
    """The words that stand in at least ``FEWEST`` pairs' lines."""
    counts = Counter(word for pair in pairs for word in words(pair))
    return {word for word, count in counts.items() if count >= FEWEST}


def words(pair: Example) -> list[str]:
    """The words of both sides, each marked with its side."""
    return [f"{side}:{word}" for side, text in (("en", pair.en), ("de", pair.de)) for word in tokens(text)]


def tokens(text: str) -> list[str]:
    """Words of a line in lower case, punctuation left out."""
    return text.lower().replace(",", "").rstrip(".?").split()


def write(folder: Path, splits: dict[str, list[Example]]) -> None:
    """Write every split into a folder: ``.en``, ``.de``, ``.depth``, ``.kind`` and ``SHA256SUMS``."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, pairs in splits.items():
        columns = {"en": [pair.en for pair in pairs], "de": [pair.de for pair in pairs]}
        if name != "train":
            columns["depth"] = [str(pair.depth) for pair in pairs]
        if name == "test_novel":
            columns["kind"] = [pair.kind for pair in pairs]
        for suffix, lines in columns.items():
            path = folder / f"{name}.{suffix}"
            path.write_bytes("".join(line + "\n" for line in lines).encode())
            written.append(path)
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(written)]
    (folder / "SHA256SUMS").write_bytes("".join(sums).encode())
