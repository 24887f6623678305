"""Token-weighted loss against one sentence at a time, with torch's own cross-entropy."""

import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from minitrans.build import build_model
from minitrans.config import Experiment, ModelConfig, TokenizerConfig
from minitrans.data.tokenizer import Tokenizers, train_tokenizer
from minitrans.errors import UserError
from minitrans.evaluation.loss import Loss, corpus_loss
from minitrans.model.masks import padding_mask
from minitrans.model.transformer import Transformer

SRC = ["abcab", "a", "abcabcabcabc", "", "cc"]
TGT = ["c", "abcabcabc", "", "ab", "bcb"]
START, END = 1, 2


@pytest.fixture(scope="module")
def tokenizers() -> Tokenizers:
    both = train_tokenizer(["abc cba", "bca acb"], TokenizerConfig(kind="char", vocab_size=20))
    return Tokenizers(both, both)


def model_of(tokenizers: Tokenizers, position: dict[str, object]) -> Transformer:
    config = ModelConfig(
        num_encoder_layers=1, num_decoder_layers=1, d_model=16, num_heads=2, d_ff=32, dropout=0.5
    )
    experiment = Experiment(model=config, position=position, attention={"kind": "scaled_dot_product"})
    return build_model(experiment, tokenizers.src.vocab_size, tokenizers.tgt.vocab_size)


@torch.no_grad()
def one_by_one(model: Transformer, tokenizers: Tokenizers) -> tuple[float, int]:
    total, count = 0.0, 0
    for src_line, tgt_line in zip(SRC, TGT, strict=True):
        src = torch.tensor([[*tokenizers.src.encode([src_line])[0], END]])
        tgt = tokenizers.tgt.encode([tgt_line])[0]
        mask = padding_mask(src)
        states = model.decode(torch.tensor([[START, *tgt]]), model.encode(src, mask), mask)
        total += float(cross_entropy(model.logits(states)[0], torch.tensor([*tgt, END]), reduction="sum"))
        count += len(tgt) + 1
    return total, count


@pytest.mark.parametrize("batch_tokens", [1, 14, 4096])
def test_every_token_weighs_the_same_whatever_the_batches(tokenizers: Tokenizers, batch_tokens: int) -> None:
    model = model_of(tokenizers, {"kind": "sinusoidal"}).train()
    loss = corpus_loss(model, tokenizers, SRC, TGT, batch_tokens)
    assert model.training
    total, count = one_by_one(model.eval(), tokenizers)
    assert count == 20
    assert loss.num_tokens == 20
    assert loss.per_token == pytest.approx(total / 20, abs=1e-5)
    assert loss.perplexity == pytest.approx(math.exp(total / 20), rel=1e-5)


def test_a_uniform_model_has_the_vocabulary_as_its_perplexity(tokenizers: Tokenizers) -> None:
    model = model_of(tokenizers, {"kind": "sinusoidal"})
    with torch.no_grad():
        model.output.weight.zero_()
    assert corpus_loss(model, tokenizers, SRC, TGT).perplexity == pytest.approx(
        tokenizers.tgt.vocab_size, rel=1e-5
    )


def test_a_perplexity_past_every_float_is_infinite() -> None:
    assert Loss(per_token=1000.0, num_tokens=1).perplexity == math.inf


@pytest.mark.parametrize(("src", "tgt", "side"), [("a" * 9, "a", "source"), ("a", "a" * 9, "target")])
def test_a_side_too_long_for_learned_positions_is_named(
    tokenizers: Tokenizers, src: str, tgt: str, side: str
) -> None:
    model = model_of(tokenizers, {"kind": "learned", "max_length": 9})
    with pytest.raises(UserError, match=f"the {side} of test, line 2 has 9 tokens .* 9 at most"):
        corpus_loss(model, tokenizers, ["a" * 8, src], ["a" * 8, tgt], name="test")
