"""Others on the same work: the same shape, the same numbers where they are copied."""

from collections.abc import Callable

import pytest
import torch

from minitrans.benchmark import peers
from minitrans.benchmark.decode import _searching, search_settings
from minitrans.benchmark.peers import decoding, training
from minitrans.benchmark.peers.ctranslate import why_not
from minitrans.benchmark.peers.decoding import (
    Decode,
    Work,
    absent,
    ctranslate2_fp32,
    ctranslate2_int8,
    generate_bf16,
    generate_fp32,
    rival_decoders,
)
from minitrans.benchmark.peers.loop import smoothed_loss
from minitrans.benchmark.peers.training import Marian, TorchTransformer
from minitrans.build import build_model
from minitrans.config import ModelConfig
from minitrans.data.batching import Batch, padded
from minitrans.model.loss import cross_entropy_sums
from tests.benchmark.small import small

VOCAB_SIZE = 31
BATCH = [[5, 9, 12, 30], [7], [4, 4, 8]]


def work(beam_size: int) -> Work:
    config = small("decode.length=7", "model.tie=none", "seed=1")
    model = build_model(config, VOCAB_SIZE, VOCAB_SIZE).eval()
    return Work(config, model, search_settings(config, beam_size), 7, threads=1, on_gpu=False)


def test_ctranslate2_translates_with_our_weights_as_we_do() -> None:
    pytest.importorskip("ctranslate2", reason="needs the extra peers")
    given = work(1)
    ours = _searching(given.model, given.search, torch.device("cpu"))
    assert ctranslate2_fp32(given)(BATCH) == [list(row) for row in ours(BATCH)]


@pytest.mark.parametrize(
    ("module", "build"),
    [
        ("transformers", generate_fp32),
        ("transformers", generate_bf16),
        ("ctranslate2", ctranslate2_fp32),
        ("ctranslate2", ctranslate2_int8),
    ],
)
def test_others_make_outputs_of_the_forced_length(module: str, build: Callable[[Work], Decode]) -> None:
    pytest.importorskip(module, reason="needs the extra peers")
    assert [len(row) for row in build(work(3))(BATCH)] == [7, 7, 7]


def rival_models() -> list[type[torch.nn.Module]]:
    return [TorchTransformer, *([Marian] if peers.is_installed("transformers") else [])]


@pytest.mark.parametrize("kind", rival_models())
def test_a_rival_sees_no_padding_and_no_future(kind: type[torch.nn.Module]) -> None:
    torch.manual_seed(0)
    model = kind(ModelConfig(1, 1, d_model=16, num_heads=2, d_ff=16), VOCAB_SIZE).eval()  # type: ignore[call-arg]
    src, tgt = padded([[5, 6], [7]], end=True), padded([[8, 9], [10, 11]], start=True)
    logits = model(src, tgt)
    assert logits.shape == (2, 3, VOCAB_SIZE)
    torch.testing.assert_close(model(src[1:, :2], tgt[1:])[0], logits[1], atol=1e-5, rtol=0)
    other = tgt.clone()
    other[:, 2] = 12
    torch.testing.assert_close(model(src, other)[:, :2], logits[:, :2], atol=1e-5, rtol=0)


def test_the_loss_of_the_plain_loop_is_ours() -> None:
    torch.manual_seed(0)
    states, weight = torch.randn(2, 3, 4), torch.randn(VOCAB_SIZE, 4)
    targets = padded([[8, 9], [10]], end=True)
    batch = Batch(targets, targets, targets, (0, 1))
    plain = smoothed_loss(_Fixed(states @ weight.t()), batch, 0.1)
    torch.testing.assert_close(plain, cross_entropy_sums(states, weight, targets, 0.1)[0])


class _Fixed(torch.nn.Module):
    def __init__(self, logits: torch.Tensor) -> None:
        super().__init__()
        self.logits = logits

    def forward(self, src: torch.Tensor, tgt: torch.Tensor) -> torch.Tensor:
        return self.logits


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ((), ""),
        (("model.norm=rms_norm",), "model.norm=rms_norm"),
        (("position=rotary",), "position=rotary"),
        (("position.encoder=none",), "position.encoder=none"),
        (("attention=unscaled",), "attention.scale=1.0"),
        (("model.ffn.activation=swiglu",), "model.ffn.activation=swiglu"),
    ],
)
def test_what_ctranslate2_has_no_match_for_is_named(words: tuple[str, ...], reason: str) -> None:
    assert why_not(small(*words)) == reason


def test_who_is_not_installed_is_named_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (decoding, training):
        monkeypatch.setattr(module, "is_installed", lambda name: name == "torch")
    extra = "pip install 'minitrans[peers]', or from a checkout pip install -e '.[peers]'"
    assert training.absent() == [
        f"Hugging Face Marian is not measured: transformers is not installed ({extra})"
    ]
    assert absent(small(), 20) == [
        f"Hugging Face generate() is not measured: transformers is not installed ({extra})",
        f"CTranslate2 is not measured: ctranslate2 is not installed ({extra})",
    ]
    assert rival_decoders(small(), 20, ["fp32", "bf16"]) == []


def test_the_types_of_the_others_match_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "is_installed", lambda name: True)
    names = [(rival.name, rival.dtype) for rival in rival_decoders(small(), 20, ["fp32", "bf16"])]
    assert names == [
        ("Hugging Face generate()", "fp32"),
        ("Hugging Face generate()", "bf16"),
        ("CTranslate2", "fp32"),
        ("CTranslate2", "int8"),
    ]
    assert [rival.dtype for rival in rival_decoders(small(), None, ["fp32"])] == [
        "fp32"
    ]  # random weights end anyhow
