"""Counts of pairs, and the useful operations, against hand and against torch's counter."""

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from minitrans.analysis.flops import cost_of
from minitrans.benchmark.counts import Counts
from minitrans.build import build_model
from minitrans.config import ModelConfig, TrainConfig

# Letters: D d_model, H heads, K d_k, V d_v, F d_ff, N vocabulary, S source length, T target length.
D, H, K, V, F, N = 8, 2, 3, 5, 12, 11
MODEL = ModelConfig(
    num_encoder_layers=2, num_decoder_layers=1, d_model=D, num_heads=H, d_k=K, d_v=V, d_ff=F, dropout=0.0
)
EXPERIMENT = TrainConfig(
    model=MODEL,
    position={"kind": "sinusoidal"},
    attention={"kind": "scaled_dot_product", "backend": "reference"},
)
LENGTHS = np.array([[3, 2], [1, 4], [5, 5]])


def test_one_update_is_counted() -> None:
    counts = Counts.of(LENGTHS, [np.array([0, 1]), np.array([2])])
    assert counts == Counts(
        updates=1,
        pairs=3,
        src_tokens=9,
        tgt_tokens=11,
        src_squares=9 + 1 + 25,
        tgt_squares=4 + 16 + 25,
        products=6 + 4 + 25,
        positions=2 * (3 + 4) + 1 * (5 + 5),
    )
    assert counts.padding_fraction == 1 - 20 / 24


def test_updates_add_up() -> None:
    one, other = Counts.of(LENGTHS, [np.array([0])]), Counts.of(LENGTHS, [np.array([1]), np.array([2])])
    both = Counts.of(LENGTHS, [np.array([0]), np.array([1]), np.array([2])])
    assert one + other == Counts(**{**vars(both), "updates": 2})


def by_hand(s: int, t: int) -> int:
    """Operations of a forward and backward pass of one pair: a product of m x k and k x n is 2mkn."""
    heads = H * (K + V)
    projections, ffn, core = 2 * 2 * D * heads, 2 * 2 * D * F, 2 * heads
    encoder = 2 * ((projections + ffn) * s + core * s * s)
    cross = projections // 2 * (s + t) + core * s * t
    decoder = (projections + ffn) * t + core * t * t + cross
    return 3 * (encoder + decoder + 2 * D * N * t)


@pytest.mark.filterwarnings("ignore:TF32 acceleration")  # of a GPU that is not there
@pytest.mark.parametrize("pair", [(3, 2), (1, 4), (5, 5)])
def test_useful_operations_are_those_of_torch_and_of_the_formula(pair: tuple[int, int]) -> None:
    model = build_model(EXPERIMENT, N, N)
    counts = Counts.of(np.array([pair]), [np.array([0])])
    useful = counts.useful_flops(cost_of(model))
    assert useful == by_hand(*pair)

    src, tgt = (torch.full((1, length), 4) for length in pair)
    # without oneDNN, for which rows are filled up
    with torch.backends.mkldnn.flags(enabled=False), FlopCounterMode(display=False) as counter:
        states = model.decode(tgt, model.encode(src, torch.ones(1, 1, pair[0], dtype=torch.bool)), None)
        model.nll(states, tgt)[0].backward()
    assert useful == counter.get_total_flops()


def test_padding_is_not_useful() -> None:
    cost = cost_of(build_model(EXPERIMENT, N, N))
    together = Counts.of(LENGTHS, [np.array([0, 1, 2])])
    assert together.useful_flops(cost) == sum(by_hand(s, t) for s, t in LENGTHS.tolist())
