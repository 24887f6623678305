"""Utilisation: the weights by hand, the estimate beside torch's own count, the peak without a trace."""

import dataclasses

import pytest
import torch

from minitrans.analysis.flops import Shape, cost_of
from minitrans.build import build_model
from minitrans.config import ModelConfig, TrainConfig
from minitrans.model.encoder_decoder import EncoderDecoder
from minitrans.training import utilisation
from minitrans.training.utilisation import Utilisation, peak_flops, weights_per_token

# Letters: D d_model, F d_ff, N vocabulary.
D, F, N = 8, 20, 11
MODEL = ModelConfig(num_encoder_layers=2, num_decoder_layers=1, d_model=D, num_heads=2, d_ff=F)


def model_of(settings: ModelConfig = MODEL, position: str = "sinusoidal", size: int = N) -> EncoderDecoder:
    experiment = TrainConfig(
        model=settings, position={"kind": position}, attention={"kind": "scaled_dot_product"}
    )
    return build_model(experiment, size, size)


@pytest.mark.parametrize("position", ["sinusoidal", "learned", "rotary"])
@pytest.mark.parametrize("tie", ["none", "decoder", "all"])
def test_weights_are_the_matrices_but_for_what_is_looked_up(tie: str, position: str) -> None:
    model = model_of(dataclasses.replace(MODEL, tie=tie), position)
    encoder_layer, decoder_layer = 4 * D * D + 2 * D * F, 8 * D * D + 2 * D * F
    assert weights_per_token(model) == (2 * encoder_layer, decoder_layer + D * N)


def test_a_multiplication_and_an_addition_forwards_and_twice_backwards() -> None:
    measured = Utilisation(model_of(), torch.float32)
    src, tgt = weights_per_token(model_of())
    assert measured.flops(7, 0) == 6 * 7 * src
    assert measured.flops(7, 5) == 6 * (7 * src + 5 * tgt)


@pytest.mark.parametrize(
    ("settings", "position"),
    [
        (dataclasses.replace(MODEL, d_model=64, d_ff=256), "sinusoidal"),
        (ModelConfig(architecture="lstm", d_model=64), "none"),
        (ModelConfig(architecture="conv", d_model=64), "learned"),
    ],
)
def test_the_estimate_is_near_the_count_of_products(settings: ModelConfig, position: str) -> None:
    """Of a pair of 14 and 12 tokens, at width 64: attention is what the estimate lacks."""
    model = model_of(settings, position, size=1000)
    counted = cost_of(model).of(Shape(rows=1, src_length=14, tgt_length=12, src_tokens=14, tgt_tokens=12))
    assert Utilisation(model, torch.float32).flops(14, 12) == pytest.approx(counted, rel=0.05)


def test_a_peak_leaves_the_generator_and_is_above_nothing() -> None:
    torch.manual_seed(3)
    state = torch.get_rng_state()
    assert peak_flops(torch.device("cpu"), torch.float32, seconds=0.0) > 0
    assert torch.equal(torch.get_rng_state(), state)


def test_the_peak_is_that_of_the_quickest_size_that_there_is_time_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rates = {512: 2e9, 1024: 4e9, 2048: 3e9}  # a product of 1024 takes 0.5 s, one of 2048 4 s
    monkeypatch.setattr(utilisation, "_quickest", lambda size, *_: 2 * size**3 / rates[size])
    cpu = torch.device("cpu")
    assert peak_flops(cpu, torch.float32, seconds=0.3) == pytest.approx(2e9)
    assert peak_flops(cpu, torch.float32, seconds=3.3) == pytest.approx(4e9)
    assert peak_flops(cpu, torch.float32, seconds=30.0) == pytest.approx(4e9)


def test_the_peak_of_bf16_without_hardware_for_it_is_that_of_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """A training in bf16 came to twice the peak: more than half of it was not in bf16 at all."""
    measured: list[torch.dtype] = []

    def quickest(size: int, device: torch.device, number_type: torch.dtype, seconds: float) -> float:
        measured.append(number_type)
        return 1.0

    monkeypatch.setattr(utilisation, "_quickest", quickest)
    for fast in (True, False):
        monkeypatch.setattr(utilisation, "processor_is_fast_in_bf16", lambda fast=fast: fast)
        peak_flops(torch.device("cpu"), torch.bfloat16, seconds=0.0)
    assert measured == [torch.bfloat16, torch.float32]


def test_a_process_measures_its_peak_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def measure(device: torch.device, number_type: torch.dtype, seconds: float) -> float:
        asked.append(number_type)
        return 1e9

    monkeypatch.setattr(utilisation, "peak_flops", measure)
    utilisation._peak_once.cache_clear()
    try:
        peaks = [Utilisation(model_of(), kind).peak(torch.device("cpu")) for kind in (torch.bfloat16,) * 2]
    finally:
        utilisation._peak_once.cache_clear()
    assert (peaks, asked) == ([1e9, 1e9], [torch.bfloat16])
