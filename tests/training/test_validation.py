"""Validation scores the whole split, greedily and without dropout, and leaves the model as it was."""

import math

import pytest
import torch
import torch.nn.functional as F

from minitrans.config import SearchConfig, TrainConfig
from minitrans.data.batching import collate
from minitrans.training.prepare import Material, prepare
from minitrans.training.validation import Validation, ValidationScores
from tests.training.tiny import changed


@pytest.fixture(scope="module")
def material(tiny: TrainConfig) -> Material:
    return prepare(changed(tiny, {"model.dropout": 0.5, "training.label_smoothing": 0.3}))


def test_the_loss_is_the_plain_mean_over_all_target_tokens(material: Material) -> None:
    """Held against torch's cross-entropy, one sentence at a time."""
    scores = Validation(material, SearchConfig(max_length=10), sentences=2).run(material.model)
    material.model.eval()
    total, tokens = 0.0, 0
    with torch.no_grad():
        for row in range(len(material.valid)):
            batch = collate(material.valid, torch.tensor([row]).numpy())
            states = material.model.decode(
                batch.tgt_in, material.model.encode(batch.src, batch.src_mask), batch.src_mask
            )
            total += float(
                F.cross_entropy(material.model.logits(states)[0], batch.tgt_out[0], reduction="sum")
            )
            tokens += batch.tgt_out.numel()
    assert len(material.valid) == 6
    assert scores.nll == pytest.approx(total / tokens, rel=1e-5)
    assert scores.perplexity == pytest.approx(math.exp(total / tokens), rel=1e-4)


@pytest.mark.parametrize(("sentences", "count"), [(None, 6), (2, 2), (100, 6)])
def test_so_many_sentences_are_translated(material: Material, sentences: int | None, count: int) -> None:
    scores = Validation(material, SearchConfig(max_length=10), sentences).run(material.model)
    assert len(scores.translations) == count


def test_it_says_the_same_twice_under_dropout_and_goes_back_to_training(material: Material) -> None:
    """IBM/pytorch-seq2seq#33, with dropout 0.5; and it draws nothing from the generator."""
    validation = Validation(material, SearchConfig(max_length=10), None)
    material.model.train()
    state = torch.get_rng_state()
    first = validation.run(material.model)
    assert validation.run(material.model) == first
    assert torch.equal(torch.get_rng_state(), state)
    assert material.model.training
    assert all(module.training for module in material.model.modules())


def test_translations_are_greedy_whatever_the_search_settings(material: Material) -> None:
    greedy = Validation(material, SearchConfig(beam_size=1, max_length=10), None)
    beam = Validation(material, SearchConfig(beam_size=5, max_length=10), None)
    assert beam.search.beam_size == 1
    assert beam.run(material.model).translations == greedy.run(material.model).translations


def test_the_row_holds_the_scores_alone() -> None:
    row = ValidationScores(nll=1.5, perplexity=4.5, bleu=20.0, translations=["a"]).row()
    assert row == {"nll": 1.5, "perplexity": 4.5, "bleu": 20.0}
