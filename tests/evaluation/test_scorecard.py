"""The score card on a small corpus with known translations."""

import dataclasses
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from rich.console import Console

from minitrans.build import build_model
from minitrans.config import Experiment, ModelConfig, SearchConfig, TokenizerConfig
from minitrans.data.corpus import Corpus, read_corpus
from minitrans.data.formats import TextPair
from minitrans.data.tokenizer import Tokenizers, train_tokenizer
from minitrans.decoding.translator import Translation, Translator
from minitrans.evaluation.loss import corpus_loss
from minitrans.evaluation.metrics import bleu
from minitrans.evaluation.scorecard import (
    AS_IT_STANDS,
    LEGACY,
    MARKED,
    DepthScore,
    LengthScore,
    ScoreCard,
    evaluate_split,
)

SRC = ["abcab", "a", "", "cc"]


@pytest.fixture
def translator() -> Translator:
    both = train_tokenizer(["abc cba", "bca acb"], TokenizerConfig(kind="char", vocab_size=20))
    config = ModelConfig(
        num_encoder_layers=1, num_decoder_layers=1, d_model=16, num_heads=2, d_ff=32, dropout=0.0
    )
    experiment = Experiment(
        model=config, position={"kind": "sinusoidal"}, attention={"kind": "scaled_dot_product"}
    )
    model = build_model(experiment, both.vocab_size, both.vocab_size).eval()
    search = SearchConfig(beam_size=2, length_penalty="exponent", alpha=1.0, max_length=6)
    return Translator(model, Tokenizers(both, both), search)


def corpus_of(folder: Path, references: list[str]) -> Corpus:
    for name, lines in (("test.x", SRC), ("test.y", references)):
        (folder / name).write_bytes("".join(f"{line}\n" for line in lines).encode())
    return read_corpus("test", TextPair(folder / "test.x", folder / "test.y"))


def test_the_card_of_known_translations(tmp_path: Path, translator: Translator) -> None:
    outputs = [translation.text for translation in translator.translate(SRC)]
    references = [outputs[0], "something else", outputs[2], "cc b"]
    corpus = replace(corpus_of(tmp_path, references), depths=(0, 2, 0, 2))
    done: list[int] = []
    card = evaluate_split(translator, corpus, "13a", done.append)
    assert list(card.hypotheses) == outputs
    assert sum(done) == 4
    expected = bleu(outputs, references)
    content = json.loads(json.dumps(card.as_dict()))
    assert content["scores"]["bleu"]["value"] == expected.value
    assert content["scores"]["bleu"]["signature"] == expected.signature.replace(
        "|", "|bs:1000|seed:12345|", 1
    )
    assert content["scores"]["exact_match"]["value"] == 50.0
    assert content["scores"]["exact_match"]["low"] == pytest.approx(15.0, abs=0.01)  # Wilson, 2 of 4
    assert content["exact_match_by_depth"] == {
        "0": {"sentences": 2, "exact_match": 100.0},
        "2": {"sentences": 2, "exact_match": 0.0},
    }
    assert content["search"] == dataclasses.asdict(translator.search)
    loss = corpus_loss(translator.model, translator.tokenizers, SRC, references)
    assert content["loss"] == pytest.approx(loss.per_token)
    assert content["sentences"] == 4
    assert content["cut_by_length_limit"] == sum(not t.finished for t in translator.translate(SRC))
    assert sorted(len(digest) for digest in content["data"].values()) == [64, 64]
    assert content["note"] == ""


def test_the_legacy_setting_says_what_it_is_beside_the_score(tmp_path: Path, translator: Translator) -> None:
    card = evaluate_split(translator, corpus_of(tmp_path, ["a b", "c", "d", "e"]), "none")
    assert card.as_dict()["note"] == LEGACY == "lower-cased, tokenised BLEU; not comparable with cased 13a"
    assert "exact_match_by_depth" not in card.as_dict()
    printed = table_of(card)
    assert LEGACY in printed
    assert "chrF2++" in printed
    assert "tok:none" in printed


def table_of(card: ScoreCard) -> str:
    console = Console(width=140)
    with console.capture() as capture:
        console.print(card.table())
    return capture.get()


class Parrot:
    """Stands in for a translator whose model and output are known: it says what it is told to."""

    def __init__(self, translator: Translator, says: list[str]) -> None:
        self.model, self.tokenizers = translator.model, translator.tokenizers
        self.search, self.batch_tokens = translator.search, translator.batch_tokens
        self.says = says

    def translate(self, lines: object, **_: object) -> list[Translation]:
        return [Translation(text, (), 0.0, True) for text in self.says]


def card_of(
    folder: Path, translator: Translator, says: list[str], expected: list[str], tokenize: str = "13a"
) -> ScoreCard:
    parrot = cast(Translator, Parrot(translator, says))
    return evaluate_split(parrot, corpus_of(folder, expected), tokenize)


def test_a_bleu_without_tokenizer_is_called_what_it_is(tmp_path: Path, translator: Translator) -> None:
    """Legacy is what published tables show: references and translations without capital letters."""
    lower, cased = ["ein hund .", "ß", "", "éa 两"], ["Ein Hund .", "ß", "", "Éa 两"]
    notes = [card_of(tmp_path, translator, *texts, "none").note for texts in ((lower, lower), (lower, cased))]
    assert notes == [LEGACY, AS_IT_STANDS]
    unlike = card_of(tmp_path, translator, cased, lower, "none")
    assert unlike.note.startswith(f"{LEGACY}; 2 of 4 translations have capital letters, which match nothing")
    assert card_of(tmp_path, translator, cased, lower).note == ""  # 13a says so in its signature


def test_what_rounding_can_turn_is_counted(tmp_path: Path, translator: Translator) -> None:
    parrot = Parrot(translator, [])
    ties = [Translation("a", (), 0.0, finished, near_tie=near) for finished, near in STATES]
    parrot.translate = lambda lines, **_: ties  # type: ignore[method-assign]
    card = evaluate_split(cast(Translator, parrot), corpus_of(tmp_path, ["a"] * 4), "13a")
    content = card.as_dict()
    assert (content["cut_by_length_limit"], content["near_ties"]) == (3, 2)


STATES = [(False, True), (True, True), (False, False), (False, False)]


def test_bleu_by_the_length_of_the_source(tmp_path: Path, translator: Translator) -> None:
    """Each bucket is scored as the corpus of its sentences alone; empty buckets are left out."""
    for name, lines in (("long.x", ["a " * 5, "a " * 6, "a " * 51, "b " * 10, ""]), ("long.y", WORDS)):
        (tmp_path / name).write_bytes("".join(f"{line.strip()}\n" for line in lines).encode())
    corpus = read_corpus("test", TextPair(tmp_path / "long.x", tmp_path / "long.y"))
    says = ["one two three four", "one two", "one two three four five", "x", ""]
    card = evaluate_split(cast(Translator, Parrot(translator, says)), corpus, "13a")
    assert card.bleu_by_length == {
        "0-5": LengthScore(2, pytest.approx(100.0)),
        "6-10": LengthScore(2, bleu(["one two", "x"], [WORDS[1], WORDS[3]]).value),
        "more than 50": LengthScore(1, pytest.approx(100.0)),
    }
    assert "sources of 6-10 words" in table_of(card)


WORDS = ["one two three four", "one two three four", "one two three four five", "x y", ""]


def test_exact_match_is_shown_where_it_makes_sense(tmp_path: Path, translator: Translator) -> None:
    none = card_of(tmp_path, translator, ["x"] * 4, ["a", "b", "c", "d"])
    assert none.scores["exact_match"].value == 0.0
    assert "exact match" not in table_of(none)
    one = card_of(tmp_path, translator, ["a", "x", "x", "x"], ["a", "b", "c", "d"])
    assert "other right ones count as wrong" in table_of(one)
    right = dataclasses.replace(none, exact_match_by_depth={0: DepthScore(4, 0.0)})
    assert "exact match" in table_of(right)
    assert "count as wrong" not in table_of(right)


@pytest.mark.parametrize("first", ["b c d e", ""])
def test_a_byte_order_mark_counts_as_the_sacrebleu_command_counts_it(
    tmp_path: Path, translator: Translator, first: str
) -> None:
    says, expected = [first, "one two three four", "", "b c"], [first, "one two three four", "", "b c d"]
    card = card_of(tmp_path, translator, says, [f"\ufeff{first}", *expected[1:]])
    assert card.note == MARKED
    (tmp_path / "test.txt").write_text("".join(f"{line}\n" for line in says), encoding="utf-8")
    command = [sys.executable, "-m", "sacrebleu", "test.y", "-i", "test.txt", "-m", "bleu", "ter", "-w", "6"]
    printed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    for name, said in zip(("bleu", "ter"), json.loads(printed), strict=True):
        assert card.scores[name].value == pytest.approx(said["score"], abs=1e-5)
    plain = card_of(tmp_path, translator, says, expected)
    assert plain.note == ""
    assert plain.scores["ter"].value < card.scores["ter"].value  # the mark is a word, or part of one


def test_a_mark_in_the_source_is_no_part_of_the_score(tmp_path: Path, translator: Translator) -> None:
    card = card_of(tmp_path, translator, ["a"] * 4, ["a"] * 4)
    (tmp_path / "test.x").write_bytes(b"\xef\xbb\xbf" + (tmp_path / "test.x").read_bytes())
    corpus = read_corpus("test", TextPair(tmp_path / "test.x", tmp_path / "test.y"))
    marked = evaluate_split(cast(Translator, Parrot(translator, ["a"] * 4)), corpus, "13a")
    assert (marked.note, marked.scores) == ("", card.scores)
