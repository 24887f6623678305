"""Draws by hand-computed distributions."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minitrans.decoding.sampling import draw, truncate, uniforms


def log(*probabilities: float) -> torch.Tensor:
    return torch.tensor([[math.log(p) if p else -math.inf for p in probabilities]])


@pytest.mark.parametrize(
    ("u", "token"),
    [(0.0, 1), (0.19, 1), (0.21, 2), (0.49, 2), (0.51, 4), (0.999999, 4)],
)
def test_a_number_picks_the_token_in_whose_part_it_lies(u: float, token: int) -> None:
    chosen, _ = draw(log(0.0, 0.2, 0.3, 0.0, 0.5, 0.0), torch.tensor([u], dtype=torch.float64))
    assert chosen.tolist() == [token]


def test_a_number_at_an_edge_between_two_tokens_is_a_near_tie() -> None:
    u = torch.tensor([0.0, 0.199999, 0.25, 0.200001, 1 - 1e-9], dtype=torch.float64)
    _, near = draw(log(0.0, 0.2, 0.8, 0.0).expand(5, -1), u)
    assert near.tolist() == [False, True, False, True, False]  # below 0 and above 1 there is no token


def test_temperature_divides_logits() -> None:
    probs = truncate(log(0.2, 0.8), temperature=0.5).softmax(-1)
    assert probs.tolist() == [pytest.approx([0.04 / 0.68, 0.64 / 0.68])]


@pytest.mark.parametrize(
    ("top_k", "top_p", "kept"),
    [
        (0, 1.0, [0.1, 0.4, 0.2, 0.3]),
        (1, 1.0, [0.0, 0.4, 0.0, 0.0]),
        (3, 1.0, [0.0, 0.4, 0.2, 0.3]),
        (9, 1.0, [0.1, 0.4, 0.2, 0.3]),
        (0, 0.01, [0.0, 0.4, 0.0, 0.0]),
        (0, 0.5, [0.0, 0.4, 0.0, 0.3]),
        (0, 0.75, [0.0, 0.4, 0.2, 0.3]),
        (2, 0.95, [0.0, 0.4, 0.0, 0.3]),
        (3, 0.5, [0.0, 0.4, 0.0, 0.3]),  # 0.4 and 0.3 of the 0.9 that are left
    ],
)
def test_the_tail_is_cut_off(top_k: int, top_p: float, kept: list[float]) -> None:
    probs = truncate(log(0.1, 0.4, 0.2, 0.3), 1.0, top_k, top_p).softmax(-1)
    assert probs.tolist() == [pytest.approx([p / sum(kept) for p in kept])]


def test_draws_follow_the_distribution() -> None:
    """Of 20,000 draws, each share within 5 standard deviations."""
    probabilities = [0.05, 0.15, 0.3, 0.5]
    u = torch.from_numpy(uniforms([[3]], seed=1, num_draws=1, num_steps=20_000).numpy()[0, 0])
    tokens, _ = draw(log(*probabilities).expand(20_000, -1), u)
    for token, p in enumerate(probabilities):
        share = float((tokens == token).double().mean())
        assert share == pytest.approx(p, abs=5 * math.sqrt(p * (1 - p) / 20_000))


@given(
    sentences=st.lists(st.lists(st.integers(3, 9), min_size=1, max_size=5), min_size=1, max_size=4),
    steps=st.integers(1, 6),
)
def test_a_sentences_numbers_follow_from_it_alone(sentences: list[list[int]], steps: int) -> None:
    together = uniforms(sentences, seed=7, num_draws=2, num_steps=steps)
    assert together.shape == (len(sentences), 2, steps)
    for row, sentence in zip(together, sentences, strict=True):
        longer = uniforms([sentence], seed=7, num_draws=3, num_steps=steps + 4)[0]
        assert torch.equal(row, longer[:2, :steps])
    assert not torch.equal(together, uniforms(sentences, seed=8, num_draws=2, num_steps=steps))
    assert not torch.equal(together[:, 0], together[:, 1])
