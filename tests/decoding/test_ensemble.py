"""An ensemble against the mean of its members' probabilities, computed apart."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrans.config import SearchConfig
from minitrans.decoding.ensemble import Ensemble
from minitrans.decoding.search import END, START, search
from minitrans.model.masks import padding_mask
from minitrans.model.transformer import Transformer
from tests.decoding.test_search import tiny

SOURCES = torch.tensor([[4, 5, 6, END], [7, END, 0, 0], [8, 9, END, 0]])


def mean_log_probs(models: list[Transformer], src: torch.Tensor, tgt: torch.Tensor) -> torch.Tensor:
    """log of the mean probability, (B, T, N)."""
    probs = [model(src, padding_mask(src), tgt).softmax(-1) for model in models]
    return torch.stack(probs).mean(dim=0).log()


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6), beam_size=st.sampled_from([1, 4]), coverage=st.sampled_from([0.0, 0.2]))
@torch.no_grad()
def test_its_scores_are_the_mean_probabilities(seed: int, beam_size: int, coverage: float) -> None:
    models = [tiny(seed, 12), tiny(seed + 1, 12, "rotary"), tiny(seed + 2, 12)]
    config = SearchConfig(beam_size=beam_size, max_length=6, coverage=coverage)
    found = search(Ensemble(models), SOURCES, padding_mask(SOURCES), config)
    for row, best in zip(SOURCES, found, strict=True):
        src, tgt = row[row != 0].unsqueeze(0), torch.tensor([[START, *best.tokens]])
        log_probs = mean_log_probs(models, src, tgt)[0]  # (T, N)
        expected = [float(log_probs[i, token]) for i, token in enumerate([*best.tokens, END])]
        assert best.token_log_probs == pytest.approx(expected, abs=1e-4)
        looked = torch.stack([m.source_attention(src, padding_mask(src), tgt) for m in models]).mean(0)
        covered = looked[0, :, :-1].sum(dim=0)  # (T, S) -> the words
        penalty = coverage * sum(math.log(min(float(part), 1.0)) for part in covered)
        length = ((6 + len(best.tokens)) / 6) ** 0.6
        assert best.score == pytest.approx(sum(expected) / length + penalty, abs=1e-4)


@torch.no_grad()
def test_greedy_takes_the_token_of_the_highest_mean_probability() -> None:
    models = [tiny(1, 12), tiny(2, 12)]
    src = SOURCES[:1]
    (best,) = search(Ensemble(models), src, padding_mask(src), SearchConfig(beam_size=1, max_length=6))
    tgt = torch.tensor([[START, *best.tokens]])
    log_probs = mean_log_probs(models, src, tgt)[0]
    log_probs[:, :2] = -math.inf
    assert log_probs[: len(best.tokens)].argmax(-1).tolist() == list(best.tokens)


def test_one_member_is_that_model() -> None:
    model, config = tiny(5, 12), SearchConfig(max_length=6)
    alone = search(model, SOURCES, padding_mask(SOURCES), config)
    same = search(Ensemble([model]), SOURCES, padding_mask(SOURCES), config)
    assert [h.tokens for h in same] == [h.tokens for h in alone]
    assert [h.score for h in same] == pytest.approx([h.score for h in alone], abs=1e-5)


def test_its_loss_is_that_of_the_mean_probability() -> None:
    models = [tiny(1, 12), tiny(2, 12)]
    ensemble, mask = Ensemble(models), padding_mask(SOURCES)
    tgt = torch.tensor([[START, 4, 5], [START, 6, 0], [START, 7, 8]])
    labels = torch.tensor([[4, 5, END], [6, END, 0], [7, 8, END]])
    with torch.no_grad():
        log_probs = mean_log_probs(models, SOURCES, tgt)
        real = labels != 0
        nll = -log_probs.gather(-1, labels.unsqueeze(-1)).squeeze(-1)[real].sum()
        uniform = -log_probs.mean(dim=-1)[real].sum()
        smoothed, plain = ensemble.nll(
            ensemble.decode(tgt, ensemble.encode(SOURCES, mask), mask), labels, 0.1
        )
    assert float(plain) == pytest.approx(float(nll), rel=1e-5)
    assert float(smoothed) == pytest.approx(float(0.9 * nll + 0.1 * uniform), rel=1e-5)


def test_the_shortest_positions_limit_it() -> None:
    learned, any_length = tiny(1, 12, "learned"), tiny(2, 12)
    assert Ensemble([any_length, learned]).tgt_limit == Ensemble([learned]).src_limit == 512
    assert Ensemble([any_length]).tgt_limit is None
