"""The shipped toy corpus: reproducible, a function, varied, learnable by rule but not by memory."""

import hashlib
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitrans.data import bundled
from minitrans.data.toy import english, generate, german, lexicon, toy_root
from minitrans.data.toy.__main__ import main
from minitrans.data.toy.generate import DEEPER, FEWEST, HELD_OUT, SIZES, Example, corpus, tokens
from minitrans.data.toy.sample import Draws, Sampler
from minitrans.evaluation.nearest import Memory

SPLITS = tuple(SIZES)


@pytest.fixture(scope="module")
def drawn() -> dict[str, list[Example]]:
    return corpus()


def lines(name: str) -> list[str]:
    return (toy_root() / name).read_text(encoding="utf-8").splitlines()


def test_the_generator_writes_exactly_the_shipped_files(
    drawn: dict[str, list[Example]], tmp_path: Path
) -> None:
    generate.write(tmp_path, drawn)
    shipped = {path.name: path.read_bytes() for path in toy_root().iterdir() if path.name != "README.md"}
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == shipped


def test_the_command_writes_into_the_folder_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["toy", "--out", str(tmp_path / "new folder"), "--seed", "5"])
    monkeypatch.setattr(generate, "SIZES", {"train": 30, "val": 0, "test": 0, "test_novel": 0})
    monkeypatch.setattr(generate, "DEEPER", {})
    main()
    written = (tmp_path / "new folder" / "train.en").read_text(encoding="utf-8").splitlines()
    assert len(set(written)) == 30 and written != lines("train.en")[:30]


def test_checksums_are_those_of_the_files() -> None:
    listed = dict(reversed(line.split("  ")) for line in lines("SHA256SUMS"))
    assert set(listed) == {path.name for path in toy_root().iterdir()} - {"README.md", "SHA256SUMS"}
    for name, digest in listed.items():
        assert hashlib.sha256((toy_root() / name).read_bytes()).hexdigest() == digest


def test_sizes_and_columns() -> None:
    for name, size in SIZES.items():
        assert len(lines(f"{name}.en")) == len(lines(f"{name}.de")) == size
    for name in ("val", "test"):
        assert {int(line) for line in lines(f"{name}.depth")} == {0, 1, 2, 3}
        assert len(lines(f"{name}.depth")) == SIZES[name]
    deep = Counter(int(line) for line in lines("test_novel.depth"))
    assert {nesting: deep[nesting] for nesting in (4, 5, 6)} == {**DEEPER, 6: 0}
    kinds = Counter(lines("test_novel.kind"))
    assert set(kinds) == {"depth", *HELD_OUT} and min(kinds.values()) >= 40


def test_one_translation_for_each_sentence_and_no_sentence_twice() -> None:
    sources = [line for name in SPLITS for line in lines(f"{name}.en")]
    assert len(set(sources)) == len(sources)


KEPT = {
    "NOUNS": ("teacher", "woman", "king", "dog", "cat", "letter", "ball", "lamp", "table", "garden", "milk"),
    "ADJECTIVES": ("old", "good"),
    "CONJUNCTIONS": ("when",),
    "MANNERS": ("gladly",),
    "FREQUENCIES": ("often",),
    "MODALS": ("can",),
    "NUMBERS": ("two",),
    "NAMES": ("Anna",),
    "POSSESSIVES": ("her",),
}
KEPT_VERBS = ("play", "wait", "stop", "go", "see", "look", "call", "drink", "help", "think", "give", "know")


def test_english_to_german_is_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """With few words the same English line comes up often; its German must be the same each time."""
    for table, kept in KEPT.items():
        monkeypatch.setattr(lexicon, table, [word for word in getattr(lexicon, table) if word.en in kept])
    verbs = {
        frame: [verb for verb in group if verb.en[0] in KEPT_VERBS] for frame, group in lexicon.VERBS.items()
    }
    monkeypatch.setattr(lexicon, "VERBS", verbs)
    known: dict[str, str] = {}
    repeated = 0
    sampler = Sampler(7)
    for _ in range(12_000):
        sentence = sampler.sentence()
        en, de = english.write(sentence), german.write(sentence)
        repeated += en in known
        assert known.setdefault(en, de) == de
    assert repeated > 100


def test_no_english_word_means_two_things_in_one_construction() -> None:
    for frame, verbs in lexicon.VERBS.items():
        named = Counter((verb.en[0], verb.en_particle) for verb in verbs)
        assert max(named.values()) == 1, frame
    for words in (lexicon.NOUNS, lexicon.ADJECTIVES, lexicon.NUMBERS, lexicon.MODALS, lexicon.CONJUNCTIONS):
        assert max(Counter(word.en for word in words).values()) == 1
    assert not {noun.en for noun in lexicon.NOUNS} & {noun.en_plural for noun in lexicon.NOUNS}


def test_the_english_past_never_looks_like_the_plural_present() -> None:
    verbs = [verb for group in lexicon.VERBS.values() for verb in group]
    assert [verb.en for verb in verbs if verb.en[0] == verb.en[2]] == []


def test_thousands_of_structures_and_novel_ones_are_new(drawn: dict[str, list[Example]]) -> None:
    shown = {pair.structure for pair in drawn["train"]}
    assert len(shown) > 9_000
    assert not shown & {pair.structure for pair in drawn["test_novel"]}
    assert max(pair.depth for pair in drawn["train"]) == 3
    assert {pair.kind for name in ("train", "val", "test") for pair in drawn[name]} == {"known"}


def test_every_word_is_seen_often_enough_in_training() -> None:
    for side in ("en", "de"):
        counts = Counter(word for line in lines(f"train.{side}") for word in tokens(line))
        for name in ("val", "test", "test_novel"):
            rare = {
                word for line in lines(f"{name}.{side}") for word in tokens(line) if counts[word] < FEWEST
            }
            assert rare == set(), name


def test_every_lexeme_is_seen_often() -> None:
    counts = Counter(word for line in lines("train.en") for word in tokens(line))
    lexemes = [(noun.en, noun.en_plural) for noun in lexicon.NOUNS]
    lexemes += [verb.en for verbs in lexicon.VERBS.values() for verb in verbs]
    lexemes += [
        (word.en,) for words in (lexicon.ADJECTIVES, lexicon.NUMBERS, lexicon.NAMES) for word in words
    ]
    lexemes += [(word.en,) for words in (lexicon.FREQUENCIES, lexicon.MANNERS) for word in words]
    rare = [forms for forms in lexemes if sum(counts[form.lower()] for form in set(forms)) < 25]
    assert rare == []


def test_remembering_the_nearest_sentence_translates_almost_nothing() -> None:
    memory = Memory(lines("train.en"), lines("train.de"))
    pairs = list(zip(lines("test.en"), lines("test.de"), strict=True))
    exact = sum(memory.translate(en) == de for en, de in pairs)
    assert exact < 0.05 * len(pairs)


@given(depth=st.integers(0, 5), seed=st.integers(0, 2**32))
def test_a_sentence_nests_as_deep_as_asked(depth: int, seed: int) -> None:
    pair = generate.example(Sampler(seed).sentence(depth))
    assert pair.depth == depth
    for text in (pair.en, pair.de):
        assert text[0].isupper() and text[-1] in ".?"
        assert "  " not in text and ",," not in text and " ," not in text


def test_draws_are_the_same_on_any_python() -> None:
    """The values of ``random.Random(1).random()``, which Python promises to keep, decide each choice."""
    draws = Draws(1)  # 0.134..., 0.847..., 0.763..., 0.255...
    assert draws.one("abcdefghij") == "b"
    assert draws.weighted({"x": 8, "y": 1, "z": 1}) == "y"
    assert not draws.chance(0.7)
    assert draws.chance(0.3)


def test_bundled_folders_are_found_in_a_checkout_and_in_an_installed_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bundled.bundled("data/toy") == toy_root()
    package = tmp_path / "minitrans"
    (tmp_path / "conf").mkdir()
    monkeypatch.setattr(bundled, "_PACKAGE", package)
    assert bundled.bundled("conf") == tmp_path / "conf"
    (package / "_bundled" / "conf").mkdir(parents=True)
    assert bundled.bundled("conf") == package / "_bundled" / "conf"
    with pytest.raises(FileNotFoundError, match="data/toy is missing from this installation"):
        bundled.bundled("data/toy")
