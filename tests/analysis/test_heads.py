"""Where heads look, by planted weights, and BLEU without a head, by hand-made heads."""

import math
from typing import Any

import pytest
import torch

from minitrans.analysis.heads import HeadPattern, _PatternSums, head_importance, patterns, without_head
from minitrans.analysis.operands import Operands, operands, places
from minitrans.analysis.positions import learned_tables, similarity
from minitrans.build import build_model
from minitrans.config import Experiment, ModelConfig, SearchConfig, TokenizerConfig
from minitrans.data.tokenizer import Tokenizers, train_tokenizer
from minitrans.decoding.translator import Translator
from minitrans.evaluation.metrics import bleu
from minitrans.model.encoder_decoder import EncoderDecoder
from minitrans.model.positions import sinusoidal_table
from tests.training.tiny import batch_of

SMALL = ModelConfig(num_encoder_layers=1, num_decoder_layers=1, d_model=8, num_heads=2, d_ff=8)


def model_of(position: dict[str, Any] | None = None, entries: int = 12) -> EncoderDecoder:
    experiment = Experiment(
        model=SMALL,
        position=position or {"kind": "sinusoidal"},
        attention={"kind": "scaled_dot_product", "scale": 1.0},
    )
    return build_model(experiment, entries, entries).double().eval()


def planted(side: str, looks_at: list[int], num_keys: int, *, causal: bool = False) -> HeadPattern:
    """The pattern of a head whose query t gives all its weight to key ``looks_at[t]``."""
    place = next(place for place in places(model_of()) if place.side == side)
    num_queries = len(looks_at)
    key = torch.eye(max(num_keys, num_queries), dtype=torch.float64)[:num_keys] * 100
    query = torch.eye(num_keys, key.size(1), dtype=torch.float64)[looks_at] * 100
    visible = torch.ones(num_queries, num_keys, dtype=torch.bool)
    visible = (visible.tril() if causal else visible)[None, None]
    sums = _PatternSums(place)
    heads = [x.expand(1, 2, *x.shape) for x in (query, key)]
    sums.add(Operands(place, heads[0], heads[1], visible))
    return sums.patterns()[0]


def shares(pattern: HeadPattern) -> tuple[float, float, float, float]:
    return pattern.diagonal, pattern.previous, pattern.first, pattern.end


def test_weight_on_the_diagonal_the_previous_the_first_and_the_end() -> None:
    assert shares(planted("encoder", [0, 1, 2, 3], 4)) == (1.0, 0.0, 0.25, 0.25)
    # of the three queries that have a token before them, all look at it
    assert shares(planted("encoder", [3, 0, 1, 2], 4)) == (0.0, 1.0, 0.25, 0.25)
    assert shares(planted("cross", [2, 2, 2, 2], 3)) == (pytest.approx(1 / 3), 0.25 * 4 / 3, 0.0, 1.0)


def test_the_decoders_first_query_has_no_choice_and_its_inputs_no_end() -> None:
    found = planted("decoder", [0, 0, 2, 0], 4, causal=True)
    assert (found.diagonal, found.previous) == (pytest.approx(1 / 3), pytest.approx(1 / 3))
    assert found.first == pytest.approx(2 / 3)
    assert math.isnan(found.end)


def test_the_distance_from_even_rows_is_all_of_their_entropy_where_one_key_has_all() -> None:
    assert planted("encoder", [0, 0, 0], 5).from_uniform == pytest.approx(math.log(5))


def test_the_end_is_the_last_real_token_and_padding_has_no_share() -> None:
    model = model_of()
    batch = batch_of([([4, 5, 6, 7], [7, 8]), ([9], [5, 6, 10, 11])])
    (encoder, *_) = operands(model, batch)
    logits = (encoder.query @ encoder.key.mT).masked_fill(~encoder.visible, -math.inf)
    weights = logits.softmax(-1)  # (2, H, 5, 5)
    expected = torch.cat([weights[0, :, :5, 4], weights[1, :, :2, 1]], dim=1).mean(dim=1)
    found = [one for one in patterns(model, [batch]) if one.side == "encoder"]
    assert [one.end for one in found] == pytest.approx(expected.tolist())
    before = torch.cat([weights[0].diagonal(-1, 1, 2), weights[1, :, :2, :2].diagonal(-1, 1, 2)], 1).mean(1)
    assert [one.previous for one in found] == pytest.approx(before.tolist())


# Without a head


def test_a_masked_head_is_a_head_of_no_values() -> None:
    model, batch = model_of(), batch_of([([4, 5, 6], [7, 8]), ([9], [5, 6])])
    place = places(model)[2]  # the cross-attention
    whole = model(batch.src, batch.src_mask, batch.tgt_in)
    with without_head(place, 1):
        masked = model(batch.src, batch.src_mask, batch.tgt_in)
    assert torch.equal(model(batch.src, batch.src_mask, batch.tgt_in), whole)
    assert not torch.allclose(masked, whole)
    with torch.no_grad():  # the rows of head 2 of W^O's input: 4 columns behind the first 4
        place.attention.w_output.weight[:, 4:] = 0.0
    torch.testing.assert_close(model(batch.src, batch.src_mask, batch.tgt_in), masked)


def test_importance_is_bleu_less_bleu_without_it() -> None:
    trained = train_tokenizer(["a a a a b b b c c"], TokenizerConfig(kind="word", vocab_size=10))
    model = model_of(entries=trained.vocab_size)
    translator = Translator(
        model, Tokenizers(trained, trained), SearchConfig(beam_size=1, min_length=5, max_length=6)
    )
    sources = ["a b c", "c c", "b a a b"]
    references = [one.text for one in translator.translate(sources)]
    whole, found = head_importance(translator, model, sources, references, "13a")
    assert whole == pytest.approx(100.0)
    assert [(one.side, one.layer, one.head) for one in found] == [
        (side, 1, head) for side in ("encoder", "decoder", "cross") for head in (1, 2)
    ]
    assert all(one.loss == pytest.approx(100.0 - one.bleu) for one in found)
    for one, place in ((found[0], places(model)[0]), (found[5], places(model)[2])):
        with without_head(place, one.head - 1):
            again = [translation.text for translation in translator.translate(sources)]
        assert one.bleu == bleu(again, references, "13a").value


# Positions


def test_similarity_is_the_cosine() -> None:
    table = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 3.0], [-1.0, 0.0]])
    half = math.sqrt(0.5)
    expected = [[1, 0, half, -1], [0, 1, half, 0], [half, half, 1, -half], [-1, 0, -half, 1]]
    torch.testing.assert_close(similarity(table), torch.tensor(expected, dtype=torch.float64))


def test_sinusoidal_positions_are_alike_by_distance_alone() -> None:
    found = similarity(sinusoidal_table(20, 16))
    for offset in range(5):
        diagonal = found.diagonal(offset)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), atol=1e-6, rtol=0)


def test_only_learned_positions_have_a_table() -> None:
    model = model_of({"kind": "learned", "max_length": 7, "decoder": "none"})
    tables = learned_tables(model)
    assert list(tables) == ["encoder"] and tables["encoder"].shape == (7, 8)
    assert learned_tables(model_of()) == {}
