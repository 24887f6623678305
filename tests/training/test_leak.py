"""The leak test passes every healthy shape, and names each of the planted faults."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import minitrans.model.attention
from minitrans.build import build_model
from minitrans.config import Experiment, FeedForwardConfig, ModelConfig, TokenizerConfig, TrainConfig
from minitrans.data.batching import Batch
from minitrans.errors import UserError
from minitrans.model.attention import MultiHeadAttention
from minitrans.model.convolutional import ConvolutionalDecoderLayer, ConvolutionalEncoderLayer
from minitrans.model.encoder_decoder import EncoderDecoder
from minitrans.model.layers import EncoderLayer
from minitrans.model.recurrent import BidirectionalLSTM
from minitrans.model.transformer import Transformer
from minitrans.training.leak import ANNOUNCEMENT, TOLERANCE, check_for_leaks
from minitrans.training.session import start
from tests.training.tiny import changed

NUM_ENTRIES = 20


def model_of(
    position: dict[str, Any] | None = None, attention: dict[str, Any] | None = None, **model: Any
) -> Transformer:
    sizes: dict[str, Any] = {
        "num_encoder_layers": 2,
        "num_decoder_layers": 2,
        "d_model": 16,
        "num_heads": 2,
        "d_ff": 32,
    }
    experiment = Experiment(
        model=ModelConfig(**(sizes | {"dropout": 0.1} | model)),
        position=position or {"kind": "sinusoidal"},
        attention=attention or {"kind": "scaled_dot_product"},
        tokenizer=TokenizerConfig(joint=True),
    )
    return build_model(experiment, NUM_ENTRIES, NUM_ENTRIES)


def batch_of(src_lengths: list[int], tgt_lengths: list[int]) -> Batch:
    """Random rows with so many tokens, the end (or start) token counted."""
    generator = torch.Generator().manual_seed(3)
    src = torch.zeros(len(src_lengths), max(src_lengths), dtype=torch.long)
    tgt_in = torch.zeros(len(tgt_lengths), max(tgt_lengths), dtype=torch.long)
    tgt_out = torch.zeros_like(tgt_in)
    for row, (s, t) in enumerate(zip(src_lengths, tgt_lengths, strict=True)):
        tokens = torch.randint(4, NUM_ENTRIES, (s + t,), generator=generator)
        src[row, :s] = torch.cat([tokens[: s - 1], torch.tensor([2])])
        tgt_in[row, :t] = torch.cat([torch.tensor([1]), tokens[s : s + t - 1]])
        tgt_out[row, :t] = torch.cat([tokens[s : s + t - 1], torch.tensor([2])])
    return Batch(src=src, tgt_in=tgt_in, tgt_out=tgt_out, lines=tuple(range(len(src))), weight=1.0)


BATCH = ([4, 9, 7], [8, 8, 3])


@pytest.mark.parametrize("norm_order", ["pre", "post"])
@pytest.mark.parametrize("position", ["sinusoidal", "learned", "rotary", "none"])
@pytest.mark.parametrize("tie", ["none", "decoder", "all"])
def test_healthy_models_pass(norm_order: str, position: str, tie: str) -> None:
    report = check_for_leaks(model_of({"kind": position}, norm_order=norm_order, tie=tie), batch_of(*BATCH))
    assert report.encoder_padding <= TOLERANCE
    assert report.cross_attention_padding <= TOLERANCE
    assert report.loss_padding <= TOLERANCE
    assert report.future_tokens is not None and report.future_tokens <= TOLERANCE
    assert report.cached_steps is not None and report.cached_steps <= TOLERANCE


@pytest.mark.parametrize(
    "changes",
    [
        {"attention": {"kind": "scaled_dot_product", "scale": 1.0}},
        {"attention": {"kind": "scaled_dot_product", "backend": "reference"}},
        {"attention": {"kind": "scaled_dot_product", "scale": 1.0}, "d_model": 512, "num_heads": 1},
        {"num_heads": 1, "num_encoder_layers": 1, "num_decoder_layers": 1},
        {"d_k": 3, "d_v": 5, "bias": False, "norm": "rms_norm"},
        {"ffn": FeedForwardConfig(activation="identity")},
        {"ffn": FeedForwardConfig(activation="none")},
    ],
)
def test_healthy_ablations_pass(changes: dict[str, Any]) -> None:
    check_for_leaks(model_of(**changes), batch_of(*BATCH))


@pytest.mark.parametrize(
    "lengths",
    [([6, 6], [6, 6]), ([30], [40]), ([2, 2], [2, 2]), ([2, 12], [12, 2]), ([1, 1], [1, 1])],
    ids=["equal lengths", "one pair", "two tokens", "crosswise", "empty sentences"],
)
def test_any_batch_will_do(lengths: tuple[list[int], list[int]]) -> None:
    check_for_leaks(model_of(), batch_of(*lengths))
    with pytest.MonkeyPatch.context() as patch:
        plant_padding_in_encoder(patch)
        with pytest.raises(UserError, match="encoder sees padding"):
            check_for_leaks(model_of(), batch_of(*lengths))


# Each planted fault changes the real model in one place.


def replace_causal_mask(patch: pytest.MonkeyPatch, make: Callable[[int], Tensor]) -> None:
    """Wherever attention would be causal over n keys, let it use the last rows of the (n, n) ``make(n)``."""
    original = MultiHeadAttention.attend

    def attend(
        self: MultiHeadAttention,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
        *,
        causal: bool = False,
        maps: list[Tensor] | None = None,
    ) -> Tensor:
        if causal:
            mask = make(key.size(-2))[-query.size(-2) :]  # (T, T)
        return original(self, query, key, value, mask, maps=maps)

    patch.setattr(MultiHeadAttention, "attend", attend)


def plant_no_causal_mask(patch: pytest.MonkeyPatch) -> None:
    replace_causal_mask(patch, lambda n: torch.ones(n, n, dtype=torch.bool))


def plant_one_future_token(patch: pytest.MonkeyPatch) -> None:
    replace_causal_mask(patch, lambda n: torch.ones(n, n, dtype=torch.bool).tril(1))


def plant_hidden_first_token(patch: pytest.MonkeyPatch) -> None:
    replace_causal_mask(
        patch,
        lambda n: torch.ones(n, n, dtype=torch.bool).tril() & ((torch.arange(n) > 0) | torch.eye(n).bool()),
    )


def plant_wrong_end(patch: pytest.MonkeyPatch) -> None:
    def anchored_at_the_start(num_queries: int, num_keys: int, device: torch.device | None = None) -> Tensor:
        return torch.ones(num_queries, num_keys, dtype=torch.bool, device=device).tril()

    patch.setattr(minitrans.model.attention, "causal_mask", anchored_at_the_start)


def plant_wrong_end_in_single_steps(patch: pytest.MonkeyPatch) -> None:
    """torch's own flag, which is anchored at the first key (BR-01)."""

    def fused(
        query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, **settings: Any
    ) -> Tensor:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=settings["causal"], scale=settings["scale"]
        )

    patch.setattr(minitrans.model.attention, "fused_attention", fused)


def plant_padding_in_encoder(patch: pytest.MonkeyPatch) -> None:
    original = EncoderLayer.forward

    def forward(self: EncoderLayer, x: Tensor, src_mask: Tensor, *rest: Any) -> Tensor:
        return original(self, x, torch.ones_like(src_mask), *rest)

    patch.setattr(EncoderLayer, "forward", forward)


def plant_padding_in_cross_attention(patch: pytest.MonkeyPatch) -> None:
    original = Transformer.start_cache
    patch.setattr(
        Transformer,
        "start_cache",
        lambda self, memory, src_mask: original(self, memory, torch.ones_like(src_mask)),
    )


def plant_padding_in_loss(patch: pytest.MonkeyPatch) -> None:
    def nll(
        self: Transformer, states: Tensor, targets: Tensor, label_smoothing: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        total = F.cross_entropy(
            self.logits(states).flatten(0, 1),
            targets.flatten(),
            reduction="sum",
            label_smoothing=label_smoothing,
        )
        return total, total.detach()

    patch.setattr(Transformer, "nll", nll)


def plant_padding_in_smoothing(patch: pytest.MonkeyPatch) -> None:
    """The nll is right, the smoothed mass alone is spread over padded positions too."""

    def nll(
        self: Transformer, states: Tensor, targets: Tensor, label_smoothing: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        log_probs = self.logits(states).log_softmax(dim=-1)
        right = F.nll_loss(log_probs.flatten(0, 1), targets.flatten(), ignore_index=0, reduction="sum")
        return right - label_smoothing * log_probs.mean(dim=-1).sum(), right.detach()

    patch.setattr(Transformer, "nll", nll)


FAULTS = [
    (plant_no_causal_mask, "future target tokens"),
    (plant_one_future_token, "future target tokens"),
    (plant_wrong_end, "cached step"),
    (plant_wrong_end_in_single_steps, "cached step"),
    (plant_hidden_first_token, "hides past target tokens"),
    (plant_padding_in_encoder, "encoder sees padding"),
    (plant_padding_in_cross_attention, "cross-attention sees padding"),
    (plant_padding_in_loss, "loss counts padding"),
    (plant_padding_in_smoothing, "loss counts padding"),
]


@pytest.mark.parametrize("norm_order", ["pre", "post"])
@pytest.mark.parametrize(("plant", "name"), FAULTS)
def test_a_planted_fault_is_named(
    monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None], name: str, norm_order: str
) -> None:
    plant(monkeypatch)
    with pytest.raises(UserError, match=name):
        check_for_leaks(model_of(norm_order=norm_order), batch_of(*BATCH))


class LeakingGradient(torch.autograd.Function):
    """The identity, whose backward pass alone mixes positions."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.flip(1)


def leaking_value(x: Tensor) -> Tensor:
    """Mixes positions forward, while the gradient is the identity's."""
    return x + 0.1 * x.detach().flip(1)


def leaking_gradient(x: Tensor) -> Tensor:
    return LeakingGradient.apply(x)


Leak = Callable[[Tensor], Tensor]


def mix_memory(patch: pytest.MonkeyPatch, leak: Leak) -> None:
    encode = Transformer.encode
    patch.setattr(Transformer, "encode", lambda *arguments: leak(encode(*arguments)))


def mix_memory_in_decoder(patch: pytest.MonkeyPatch, leak: Leak) -> None:
    decode = Transformer.decode
    patch.setattr(Transformer, "decode", lambda s, tgt, memory, mask: decode(s, tgt, leak(memory), mask))


def mix_states_in_loss(patch: pytest.MonkeyPatch, leak: Leak) -> None:
    nll = Transformer.nll
    patch.setattr(
        Transformer,
        "nll",
        lambda s, states, tgt, label_smoothing: nll(s, leak(states), tgt, label_smoothing),
    )


def mix_states(patch: pytest.MonkeyPatch, leak: Leak) -> None:
    decode = Transformer.decode
    patch.setattr(Transformer, "decode", lambda *arguments: leak(decode(*arguments)))


@pytest.mark.parametrize("leak", [leaking_value, leaking_gradient])
@pytest.mark.parametrize(
    ("plant", "name"),
    [
        (mix_memory, "encoder sees padding"),
        (mix_memory_in_decoder, "cross-attention sees padding"),
        (mix_states_in_loss, "loss counts padding"),
        (mix_states, "future target tokens"),
    ],
)
def test_a_fault_in_values_or_gradients_alone_is_named(
    monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch, Leak], None], name: str, leak: Leak
) -> None:
    plant(monkeypatch, leak)
    with pytest.raises(UserError, match=name):
        check_for_leaks(model_of(), batch_of(*BATCH))


def test_a_mask_that_shows_padding_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = batch_of(*BATCH)
    monkeypatch.setattr(type(batch), "src_mask", torch.ones_like(batch.src, dtype=torch.bool).unsqueeze(1))
    with pytest.raises(UserError, match="source mask"):
        check_for_leaks(model_of(), batch)


@pytest.mark.parametrize("fault", [None, plant_no_causal_mask])
def test_nothing_is_disturbed(
    monkeypatch: pytest.MonkeyPatch, fault: Callable[[pytest.MonkeyPatch], None] | None
) -> None:
    model, batch = model_of(), batch_of(*BATCH)
    model.train()
    model.encoder.layers[0].eval()
    modes = [module.training for module in model.modules()]
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    if fault is None:
        check_for_leaks(model, batch)
    else:
        fault(monkeypatch)
        with pytest.raises(UserError):
            check_for_leaks(model, batch)
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())


# --- the rivals ---


def rival_of(architecture: str) -> EncoderDecoder:
    experiment = Experiment(
        model=ModelConfig(architecture=architecture, num_decoder_layers=2, d_model=16, d_hidden=12),
        position={"kind": "none"},
        attention={"kind": "scaled_dot_product", "scale": 1.0},
    )
    return build_model(experiment, NUM_ENTRIES, NUM_ENTRIES)


@pytest.mark.parametrize("architecture", ["lstm", "conv"])
@pytest.mark.parametrize("lengths", [BATCH, ([2, 2], [2, 2]), ([1, 1], [1, 1]), ([30], [40])])
def test_healthy_rivals_pass(architecture: str, lengths: tuple[list[int], list[int]]) -> None:
    report = check_for_leaks(rival_of(architecture), batch_of(*lengths))
    assert report.future_tokens is not None and report.future_tokens <= TOLERANCE


def plant_padding_in_lstm(patch: pytest.MonkeyPatch) -> None:
    original = BidirectionalLSTM.forward
    patch.setattr(
        BidirectionalLSTM,
        "forward",
        lambda self, x, lengths: original(self, x, torch.full_like(lengths, x.size(1))),
    )


def plant_padding_in_convolution(patch: pytest.MonkeyPatch) -> None:
    original = ConvolutionalEncoderLayer.forward
    patch.setattr(
        ConvolutionalEncoderLayer,
        "forward",
        lambda self, x, src_mask: original(self, x, torch.ones_like(src_mask)),
    )


def plant_future_in_convolution(patch: pytest.MonkeyPatch) -> None:
    """Padding at both sides, as the encoder has it."""

    def convolve(self: ConvolutionalDecoderLayer, x: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        side = self.convolution.reach // 2
        y = self.convolution(F.pad(self.residual.open(x), (0, 0, side, side)))
        return self.residual.close(x, y), past

    patch.setattr(ConvolutionalDecoderLayer, "convolve", convolve)


def plant_padding_in_start_cache(patch: pytest.MonkeyPatch) -> None:
    original = EncoderDecoder.start_cache
    patch.setattr(
        EncoderDecoder,
        "start_cache",
        lambda self, memory, src_mask: original(self, memory, torch.ones_like(src_mask)),
    )


@pytest.mark.parametrize(
    ("architecture", "plant", "name"),
    [
        ("lstm", plant_padding_in_lstm, "encoder sees padding"),
        ("lstm", plant_padding_in_start_cache, "cross-attention sees padding"),
        ("conv", plant_padding_in_convolution, "encoder sees padding"),
        ("conv", plant_padding_in_start_cache, "cross-attention sees padding"),
        ("conv", plant_future_in_convolution, "future target tokens"),
    ],
)
def test_a_fault_planted_in_a_rival_is_named(
    monkeypatch: pytest.MonkeyPatch, architecture: str, plant: Callable[[pytest.MonkeyPatch], None], name: str
) -> None:
    plant(monkeypatch)
    with pytest.raises(UserError, match=name):
        check_for_leaks(rival_of(architecture), batch_of(*BATCH))


# --- no numbers ---


def test_outputs_that_are_no_numbers_are_no_leak() -> None:
    model = model_of()
    with torch.no_grad():
        model.encoder.embedding.weight.fill_(float("nan"))
    with pytest.raises(UserError, match=r"outputs or gradients are not finite .* such as attention\.scale"):
        check_for_leaks(model, batch_of(*BATCH))


# --- a leak on purpose ---


@pytest.mark.parametrize("position", ["sinusoidal", "rotary"])
def test_a_configured_leak_passes_where_it_is_announced_alone(position: str) -> None:
    model = model_of({"kind": position}, causal=False)
    report = check_for_leaks(model, batch_of(*BATCH), causal=False)
    assert (report.future_tokens, report.cached_steps) == (None, None)
    assert report.decoder_padding is not None and report.decoder_padding <= TOLERANCE
    with pytest.raises(UserError, match="future target tokens"):
        check_for_leaks(model, batch_of(*BATCH))


def plant_padding_in_decoder(patch: pytest.MonkeyPatch) -> None:
    import minitrans.model.transformer as module

    patch.setattr(module, "padding_mask", lambda ids: torch.ones_like(ids, dtype=torch.bool).unsqueeze(1))


@pytest.mark.parametrize(
    ("plant", "name"),
    [
        (plant_padding_in_decoder, "decoder sees padding of the target"),
        (plant_padding_in_encoder, "encoder sees padding"),
        (plant_padding_in_cross_attention, "cross-attention sees padding"),
        (plant_padding_in_loss, "loss counts padding"),
    ],
)
def test_other_leaks_beside_a_configured_one_are_named(
    monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None], name: str
) -> None:
    plant(monkeypatch)
    with pytest.raises(UserError, match=name):
        check_for_leaks(model_of(causal=False), batch_of(*BATCH), causal=False)


def test_in_training_a_leaking_decoder_sees_all_and_in_search_the_past() -> None:
    """Step by step it is what the causal model with the same weights computes."""
    leaking, causal = model_of(causal=False, dropout=0.0).eval(), model_of(dropout=0.0).eval()
    batch = batch_of(*BATCH)
    memory = leaking.encode(batch.src, batch.src_mask)
    other = batch.tgt_in.clone()
    other[0, -1] = (other[0, -1] + 1) % NUM_ENTRIES
    states, moved = (leaking.decode(tgt, memory, batch.src_mask)[0] for tgt in (batch.tgt_in, other))
    assert ((states - moved).abs().amax(-1) > 1e-4).all()
    cache, steps = leaking.start_cache(memory, batch.src_mask), []
    for token in batch.tgt_in.split(1, dim=1):
        state, cache = leaking.step(token, cache)
        steps.append(state)
    expected = causal.decode(batch.tgt_in, memory, batch.src_mask)
    real = batch.tgt_in != 0
    torch.testing.assert_close(torch.cat(steps, dim=1)[real], expected[real], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("causal", [True, False])
def test_a_leak_on_purpose_is_said_and_recorded(
    tiny: TrainConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str], causal: bool
) -> None:
    changes = {"model.causal": causal, "training.leak_test": True, "training.max_updates": 2}
    start(changed(tiny, {**changes, "run_dir": str(tmp_path / "run")}), {})
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("A leak")]
    assert said == ([] if causal else [ANNOUNCEMENT])
    for name in ("result.json", "provenance.json"):
        assert json.loads((tmp_path / "run" / name).read_text(encoding="utf8"))["leak"] is not causal
