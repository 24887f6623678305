"""The score card on a small corpus with known translations."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from minitrans.build import build_model
from minitrans.config import Experiment, ModelConfig, SearchConfig, TokenizerConfig
from minitrans.data.corpus import Corpus, read_corpus
from minitrans.data.formats import TextPair
from minitrans.data.tokenizer import Tokenizers, train_tokenizer
from minitrans.decoding.translator import Translator
from minitrans.evaluation.loss import corpus_loss
from minitrans.evaluation.metrics import bleu
from minitrans.evaluation.scorecard import LEGACY, evaluate_split

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
    assert content["scores"]["bleu"] == {"value": expected.value, "signature": expected.signature}
    assert content["scores"]["exact_match"]["value"] == 50.0
    assert content["exact_match_by_depth"] == {
        "0": {"sentences": 2, "exact_match": 100.0},
        "2": {"sentences": 2, "exact_match": 0.0},
    }
    assert content["search"] == {
        "beam_size": 2,
        "length_penalty": "exponent",
        "alpha": 1.0,
        "max_length": 6,
        "max_length_ratio": 2.0,
    }
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
    console = Console(width=120)
    with console.capture() as capture:
        console.print(card.table())
    assert LEGACY in capture.get()
    assert "chrF2++" in capture.get()
    assert "tok:none" in capture.get()
