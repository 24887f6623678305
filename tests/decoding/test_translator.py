"""Text in, text out, with real models and a character vocabulary."""

from collections.abc import Sequence

import pytest
import torch

from minitrans.build import build_model
from minitrans.config import Experiment, ModelConfig, SearchConfig, TokenizerConfig
from minitrans.data.tokenizer import Tokenizer, Tokenizers, train_tokenizer
from minitrans.decoding.search import Hypothesis
from minitrans.decoding.translator import BLANK, Translation, Translator, one_line
from minitrans.errors import UserError
from minitrans.model.masks import padding_mask
from minitrans.model.transformer import Transformer

LINES = ["abcab", "", "c", "abcabcabcabcabc", "   ", "ba", "cab"]


@pytest.fixture(scope="module")
def tokenizers() -> Tokenizers:
    """The entries a, b, c and the space, each more than once in the training text."""
    both = train_tokenizer(["abc cba", "bca acb"], TokenizerConfig(kind="char", vocab_size=20))
    return Tokenizers(both, both)


def model_of(tokenizers: Tokenizers, position: dict[str, object], dropout: float = 0.0) -> Transformer:
    config = ModelConfig(
        num_encoder_layers=1, num_decoder_layers=1, d_model=16, num_heads=2, d_ff=32, dropout=dropout
    )
    experiment = Experiment(model=config, position=position, attention={"kind": "scaled_dot_product"})
    return build_model(experiment, tokenizers.src.vocab_size, tokenizers.tgt.vocab_size)


@pytest.fixture
def model(tokenizers: Tokenizers) -> Transformer:
    return model_of(tokenizers, {"kind": "sinusoidal"}).eval()


@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize("batch_tokens", [1, 12, 4096])
def test_lines_come_out_in_order_whatever_the_batches(
    model: Transformer, tokenizers: Tokenizers, beam_size: int, batch_tokens: int
) -> None:
    config = SearchConfig(beam_size=beam_size, max_length=20)
    found = Translator(model, tokenizers, config, batch_tokens).translate(LINES)
    alone = [Translator(model, tokenizers, config).translate([line])[0] for line in LINES]
    assert [translation.text for translation in found] == [translation.text for translation in alone]
    assert [t.score for t in found] == pytest.approx([t.score for t in alone], abs=1e-4)
    assert found[1] == found[4] == BLANK
    assert len({translation.score for translation in found}) == 6  # so a wrong order could not pass


def test_nothing_in_nothing_out(model: Transformer, tokenizers: Tokenizers) -> None:
    translator = Translator(model, tokenizers, SearchConfig())
    assert translator.translate([]) == []
    assert translator.translate(["", " "]) == [BLANK, BLANK]


def test_a_translation_tells_what_the_search_found(
    model: Transformer, tokenizers: Tokenizers, monkeypatch: pytest.MonkeyPatch
) -> None:
    (ids,) = tokenizers.tgt.encode(["ab c"])
    found = Hypothesis(tuple(ids), -3.0, -1.5, False, token_log_probs=(-1.0, -2.0), near_tie=True)
    monkeypatch.setattr("minitrans.decoding.translator.search_n_best", lambda *arguments: [(found,)])
    (translation,) = Translator(model, tokenizers, SearchConfig()).translate(["c"])
    assert translation == Translation(
        "ab c",
        ("a", "b", "▁", "c"),
        score=-1.5,
        finished=False,
        log_prob=-3.0,
        token_log_probs=(-1.0, -2.0),
        near_tie=True,
    )


def test_batches_hold_at_most_batch_tokens_and_progress_counts_every_line(
    model: Transformer, tokenizers: Tokenizers, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = []
    encode = model.encode
    monkeypatch.setattr(
        model, "encode", lambda src, mask: (shapes.append(tuple(src.shape)), encode(src, mask))[1]
    )
    done: list[int] = []
    Translator(model, tokenizers, SearchConfig(beam_size=1, max_length=3), 12).translate(
        LINES, progress=done.append
    )
    # 15, 5, 3, 2 and 1 characters with an end each: the first is more than 12 and goes alone
    assert shapes == [(1, 16), (2, 6), (2, 3)]
    assert done == [2, 1, 2, 2]


@pytest.mark.parametrize("training", [True, False])
def test_dropout_is_off_and_the_mode_comes_back(tokenizers: Tokenizers, training: bool) -> None:
    """IBM/pytorch-seq2seq#33."""
    model = model_of(tokenizers, {"kind": "sinusoidal"}, dropout=0.5).train(training)
    translator = Translator(model, tokenizers, SearchConfig(beam_size=2, max_length=20))
    assert translator.translate(LINES) == translator.translate(LINES)
    assert model.training is training
    assert model.encoder.layers[0].training is training


def test_the_mode_comes_back_after_an_error(tokenizers: Tokenizers) -> None:
    model = model_of(tokenizers, {"kind": "sinusoidal"}).train()
    with torch.no_grad():
        model.output.weight.fill_(torch.nan)
    with pytest.raises(UserError, match="not finite"):
        Translator(model, tokenizers, SearchConfig()).translate(["abc"])
    assert model.training


@pytest.mark.parametrize("position", ["rotary", "sinusoidal"])
def test_training_goes_on_after_a_search_longer_than_the_position_tables(
    tokenizers: Tokenizers, position: str
) -> None:
    """Tables that grow during a search are used by the next update."""
    model = model_of(tokenizers, {"kind": position})
    long = "abc" * 100
    Translator(model, tokenizers, SearchConfig(beam_size=1, max_length=2)).translate([long])
    src = torch.tensor(tokenizers.src.encode([long]))
    mask = padding_mask(src)
    smoothed, _ = model.nll(model.decode(src, model.encode(src, mask), mask), src)
    smoothed.backward()
    assert model.decoder.embedding.weight.grad is not None


# --------------------------------------------------------------------------------------
# BR-30: a source longer than learned positions
# --------------------------------------------------------------------------------------

THREE = ["abc", "abcabcabcabcabcabcab", "cab"]


def test_a_line_too_long_for_learned_positions_is_named_before_any_work(tokenizers: Tokenizers) -> None:
    model = model_of(tokenizers, {"kind": "learned", "max_length": 16}).eval()
    translator = Translator(model, tokenizers, SearchConfig(beam_size=2))
    model.encode = None  # type: ignore[assignment]  # any work would fail
    with pytest.raises(UserError, match=r"^in\.txt, line 2 has 20 tokens .* positions for 16 at most"):
        translator.translate(THREE, name="in.txt")
    with pytest.raises(UserError, match="line 1 has 16 tokens and the end token"):
        translator.translate(["abcabcabcabcabca"])
    with pytest.raises(UserError, match="line 12 has 20 tokens"):
        translator.translate(THREE, first_line=11)


def test_search_stays_inside_learned_positions(tokenizers: Tokenizers) -> None:
    model = model_of(tokenizers, {"kind": "learned", "max_length": 16}).eval()
    translator = Translator(model, tokenizers, SearchConfig(beam_size=2))
    found = translator.translate([THREE[0], "abcabcabcabcabc", THREE[2]])  # 15 and the end: it just fits
    assert found[0].text == translator.translate([THREE[0]])[0].text
    assert all(len(translation.tokens) <= 15 for translation in found)


def test_sinusoidal_positions_have_no_limit(model: Transformer, tokenizers: Tokenizers) -> None:
    assert len(Translator(model, tokenizers, SearchConfig()).translate(THREE)) == 3


# --------------------------------------------------------------------------------------
# One line a translation
# --------------------------------------------------------------------------------------


class Shouting(Tokenizer):
    """A tokenizer whose text holds line ends, as bytes that were never seen together can."""

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        return ["a\nb\r\nc\u2028d\x85e" for _ in rows]


def test_no_translation_holds_the_end_of_a_line(model: Transformer, tokenizers: Tokenizers) -> None:
    shouting = Tokenizers(tokenizers.src, Shouting.from_json(tokenizers.tgt.to_json()))
    (found,) = Translator(model, shouting, SearchConfig(beam_size=1, max_length=2)).translate(["a"])
    assert found.text == "a b c d e"


@pytest.mark.parametrize(
    ("text", "line"), [("a b", "a b"), ("\n", ""), ("a\n", "a"), ("", ""), ("a\x0bb", "a b")]
)
def test_line_ends_become_spaces(text: str, line: str) -> None:
    assert one_line(text) == line


def test_a_batch_without_tokens_is_refused(model: Transformer, tokenizers: Tokenizers) -> None:
    with pytest.raises(UserError, match="batch_tokens is 0"):
        Translator(model, tokenizers, SearchConfig(), batch_tokens=0)
