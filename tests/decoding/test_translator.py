"""Text in, text out, with real models and a character vocabulary."""

from collections.abc import Sequence
from typing import get_type_hints

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrans.build import build_model
from minitrans.config import Experiment, ModelConfig, SearchConfig, TokenizerConfig
from minitrans.data.tokenizer import Tokenizer, Tokenizers, train_tokenizer
from minitrans.decoding.search import Hypothesis
from minitrans.decoding.translator import BLANK, SearchOptions, Translation, Translator, one_line
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


# --------------------------------------------------------------------------------------
# Settings of one call, n-best, forced beginnings, attention
# --------------------------------------------------------------------------------------


def test_settings_of_a_call_lie_over_the_translators(model: Transformer, tokenizers: Tokenizers) -> None:
    translator = Translator(model, tokenizers, SearchConfig(beam_size=4, max_length=5))
    called = translator.translate(LINES, beam_size=1, max_length=9)
    own = Translator(model, tokenizers, SearchConfig(beam_size=1, max_length=9)).translate(LINES)
    assert called == own
    assert translator.search == SearchConfig(beam_size=4, max_length=5)
    with pytest.raises(UserError, match=r'unknown key "search.beam" = 3; did you mean "beam_size"'):
        translator.translate(LINES, beam=3)  # type: ignore[call-arg]
    with pytest.raises(UserError, match=r"search.n_best=5 is more than search.beam_size=4"):
        translator.translate(LINES, n_best=5)


def test_options_are_the_search_settings() -> None:
    assert get_type_hints(SearchOptions) == get_type_hints(SearchConfig)


@pytest.mark.parametrize("batch_tokens", [1, 12, 4096])
def test_n_best_translations_of_each_line(
    model: Transformer, tokenizers: Tokenizers, batch_tokens: int
) -> None:
    translator = Translator(model, tokenizers, SearchConfig(beam_size=4, max_length=9), batch_tokens)
    found = translator.translate(LINES, n_best=3)
    best = translator.translate(LINES)
    assert [one.text for one in found] == [one.text for one in best]
    alone = [translator.translate([line], n_best=3)[0] for line in LINES]
    for one, same in zip(found, alone, strict=True):
        assert [other.text for other in one.others] == [other.text for other in same.others]
        scores = [one.score, *(other.score for other in one.others)]
        assert scores == sorted(scores, reverse=True)
        assert scores[1:] == pytest.approx([other.score for other in same.others], abs=1e-4)
    assert [len(one.others) for one in found] == [2, 0, 2, 2, 0, 2, 2]


def test_a_translation_begins_as_it_must(model: Transformer, tokenizers: Tokenizers) -> None:
    translator = Translator(model, tokenizers, SearchConfig(beam_size=3, max_length=6))
    prefixes = ["c a", "c", "", "bbbbbb", "b", "a", ""]
    found = translator.translate(LINES, prefixes=prefixes)
    free = translator.translate(LINES)
    assert [one.text[: len(prefix)] for one, prefix in zip(found, prefixes, strict=True)] == [
        prefix if line.strip() else "" for line, prefix in zip(LINES, prefixes, strict=True)
    ]
    assert (found[2], found[6]) == (free[2], free[6])
    assert found[3].text == "bbbbbb"
    with pytest.raises(UserError, match=r"the forced beginning of line 12 has 7 tokens.*at most 6"):
        translator.translate(["a", "b"], prefixes=["a", "bbbbbbb"], first_line=11)


def test_attention_is_the_models_own(model: Transformer, tokenizers: Tokenizers) -> None:
    translator = Translator(model, tokenizers, SearchConfig(beam_size=2, max_length=8))
    found = translator.translate(["abc ab", "c"], attention=True, n_best=2)
    for line, translation in zip(["abc ab", "c"], found, strict=True):
        for one in (translation, *translation.others):
            assert one.attention is not None
            assert one.attention.source == tuple(line.replace(" ", "▁"))
            src = torch.tensor([[*tokenizers.src.encode([line])[0], 2]])
            tgt = torch.tensor([[1, *tokenizers.tgt.encode([one.text])[0]]])
            if tgt.size(1) == len(one.tokens) + 1:  # spaces at an end are no text
                maps = model.attention_maps(src, padding_mask(src), tgt)
                expected = maps.cross[-1][0].mean(dim=0)  # (H, T, S) -> (T, S)
                torch.testing.assert_close(torch.from_numpy(one.attention.weights), expected)
            assert one.attention.weights.shape == (len(one.tokens) + 1, len(line) + 1)
            words = {target for _, target in one.attention.links}
            assert words == set(range(len(one.text.split())))
    assert translator.translate(["a"])[0].attention is None


@settings(max_examples=10, deadline=None)
@given(lines=st.lists(st.text("abc ", max_size=9), min_size=1, max_size=6), data=st.data())
def test_samples_do_not_depend_on_batches(lines: list[str], data: st.DataObject) -> None:
    both = train_tokenizer(["abc cba", "bca acb"], TokenizerConfig(kind="char", vocab_size=20))
    tokenizers = Tokenizers(both, both)
    model = model_of(tokenizers, {"kind": "sinusoidal"}).eval()
    sampling = SearchConfig(beam_size=1, sample=True, temperature=0.7, seed=4, max_length=8)
    order = data.draw(st.permutations(range(len(lines))))
    batch_tokens = data.draw(st.sampled_from([1, 12, 4096]))
    alone = [Translator(model, tokenizers, sampling).translate([line])[0] for line in lines]
    found = Translator(model, tokenizers, sampling, batch_tokens).translate([lines[i] for i in order])
    for place, i in enumerate(order):
        if not alone[i].near_tie:
            assert found[place].text == alone[i].text
            assert found[place].score == pytest.approx(alone[i].score, abs=1e-4)


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ("A dog.", "the input must be a list of sentences, but it is one string; write ['A dog.']"),
        (["a", None], "the input, line 2 is None, which is no text"),
        ([1], "the input, line 1 is 1, which is no text"),
        (
            ["b", "a \udcff b"],
            "the input, line 2 holds half of a character (a lone surrogate); decode it as UTF-8",
        ),
    ],
)
def test_what_is_no_list_of_sentences_is_refused(
    model: Transformer, tokenizers: Tokenizers, lines: list[str], sentence: str
) -> None:
    translator = Translator(model, tokenizers, SearchConfig(beam_size=1))
    with pytest.raises(UserError) as refused:
        translator.translate(lines)
    assert str(refused.value) == sentence
    beginnings = sentence.replace("the input", "the forced beginnings")
    with pytest.raises(UserError) as refused:
        translator.translate(["a"] * len(lines), prefixes=lines)
    assert str(refused.value) == beginnings
