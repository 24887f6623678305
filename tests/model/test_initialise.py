import pytest
import torch

from minitrans.model.positions import sinusoidal_table
from tests.model.conftest import MakeModel


def test_the_same_seed_gives_the_same_model(make_model: MakeModel) -> None:
    one, two, other = (
        make_model(seed=3).state_dict(),
        make_model(seed=3).state_dict(),
        make_model(seed=4).state_dict(),
    )
    for name, values in one.items():
        assert torch.equal(values, two[name])
        drawn = values.dim() > 1
        assert torch.equal(values, other[name]) != drawn


def test_torch_s_generator_plays_no_part(make_model: MakeModel) -> None:
    torch.manual_seed(1)
    one = make_model().state_dict()
    torch.manual_seed(2)
    two = make_model().state_dict()
    assert all(torch.equal(values, two[name]) for name, values in one.items())


@pytest.mark.parametrize(
    "change",
    [
        {"num_encoder_layers": 3},
        {"norm_order": "post"},
        {"activation": "swiglu"},
        {"position": "learned"},
        {"tie": "none"},
        {"num_heads": 1},
        {"bias": False},
        {"norm": "rms_norm"},
    ],
)
def test_variants_start_alike_wherever_names_and_shapes_agree(make_model: MakeModel, change: dict) -> None:
    base = dict(make_model().named_parameters())
    variant = dict(make_model(**change).named_parameters())
    shared = [name for name in base if name in variant and base[name].shape == variant[name].shape]
    assert len(shared) >= 20
    assert all(torch.equal(base[name], variant[name]) for name in shared)


def test_sizes_of_the_values(make_model: MakeModel) -> None:
    model = make_model(vocab_size=4000, d_model=64, d_ff=256)
    layer = model.encoder.layers[0]
    assert model.encoder.embedding.weight.std().item() == pytest.approx(64**-0.5, rel=0.02)
    bound = (6 / (64 + 256)) ** 0.5
    assert layer.feed_forward.w_1.weight.abs().max().item() == pytest.approx(bound, rel=0.01)
    assert layer.feed_forward.w_1.weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.02)
    assert torch.equal(layer.feed_forward.w_1.bias, torch.zeros(256))
    assert torch.equal(layer.self_residual.norm.weight, torch.ones(64))
    assert torch.equal(layer.self_residual.norm.bias, torch.zeros(64))


def test_learned_positions_start_as_large_as_sinusoidal_ones(make_model: MakeModel) -> None:
    learned = make_model(d_model=64, position="learned").encoder.position
    assert learned.weight.pow(2).mean().item() == pytest.approx(0.5, rel=0.02)
    assert sinusoidal_table(512, 64).pow(2).mean().item() == pytest.approx(0.5, rel=1e-6)


def test_no_two_matrices_are_the_same(make_model: MakeModel) -> None:
    matrices = [p for p in make_model(num_encoder_layers=2).parameters() if p.shape == (16, 16)]
    sums = {round(p.sum().item(), 6) for p in matrices}
    assert len(matrices) == 16 and len(sums) == 16
