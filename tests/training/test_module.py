"""One update is the same however it is split, to the numbers; BR-05, -06, -08, -09, -10."""

import dataclasses
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from minitrans.config import TrainConfig
from minitrans.data.batching import Batch
from minitrans.data.stream import Share, UpdateStream
from minitrans.errors import UserError
from minitrans.training.module import TranslationModule
from minitrans.training.optimizer import SGD
from minitrans.training.prepare import prepare
from minitrans.training.schedule import Constant, Noam
from tests.training.tiny import (
    assert_equal,
    batch_of,
    changed,
    make_updates,
    module_of,
    share_of,
    weights_of,
    write_rows,
)

A = ([4, 5, 6], [7, 8, 9, 10])  # 5 target tokens with the end
B = ([7], [4])  # 2
C = ([8, 9, 10, 11, 4], [11, 5])  # 3
D = ([5, 5], [6, 6, 6, 6, 6, 6, 6])  # 8


def assert_close(left: dict[str, Tensor], right: dict[str, Tensor], tolerance: float) -> None:
    for name, tensor in left.items():
        torch.testing.assert_close(tensor, right[name], atol=tolerance, rtol=0)


def after(*shares: Share, number_type: torch.dtype = torch.float32, **arguments: Any) -> dict[str, Tensor]:
    return weights_of(make_updates(module_of(**arguments).to(number_type), *shares))


# Splits


@pytest.mark.parametrize(("number_type", "tolerance"), [(torch.float32, 5e-6), (torch.float64, 1e-7)])
@pytest.mark.parametrize("settings", [{}, {"label_smoothing": 0.1}, {"clip_norm": 0.5}])
def test_every_split_of_an_update_gives_the_same_weights(
    settings: dict[str, float], number_type: torch.dtype, tolerance: float
) -> None:
    whole = share_of(batch_of([A, B, C, D]))
    in_two = share_of(batch_of([A]), batch_of([B, C, D]))
    in_four = share_of(*[batch_of([pair]) for pair in (A, B, C, D)])
    assert whole.target_tokens == in_two.target_tokens == in_four.target_tokens == 18
    expected = after(whole, number_type=number_type, settings=settings)
    assert_close(after(in_two, number_type=number_type, settings=settings), expected, tolerance)
    assert_close(after(in_four, number_type=number_type, settings=settings), expected, tolerance)


def test_one_update_of_plain_sgd_is_the_gradient_of_the_mean_over_all_target_tokens() -> None:
    module = module_of()
    before = weights_of(module)
    losses = []
    for pair in (A, B, C, D):
        batch = batch_of([pair])
        memory = module.model.encode(batch.src, batch.src_mask)
        logits = module.model.logits(module.model.decode(batch.tgt_in, memory, batch.src_mask))  # (1, T, N)
        losses.append(F.cross_entropy(logits[0], batch.tgt_out[0], reduction="sum"))
    (torch.stack(losses).sum() / 18).backward()
    expected = {
        name: before[name] - parameter.grad
        for name, parameter in module.model.named_parameters()
        if parameter.grad is not None
    }
    updated = after(share_of(batch_of([A, B]), batch_of([C, D])))
    assert len(expected) == len(list(module.model.named_parameters()))
    assert_close(expected, updated, 5e-6)
    assert max((updated[name] - before[name]).abs().max() for name in expected) > 0.01


@pytest.mark.parametrize("accumulate", [2, 4])
def test_every_split_gives_the_same_weights_over_two_epochs_of_the_real_plan(
    tiny: TrainConfig, accumulate: int
) -> None:
    """40 pairs of ragged lengths, 7 an update: the short update of an epoch has 5."""
    config = changed(tiny, {"model.dropout": 0.0, "training.update_sentences": 7})
    weights = []
    for parts in (1, accumulate):
        material = prepare(changed(config, {"training.accumulate": parts}))
        shares = list(UpdateStream(material.run_plan, 0, rank=0, world_size=1))
        assert [len(share.micro_batches) for share in shares] == [parts] * 12
        sizes = sorted(sum(len(batch.lines) for batch in share.micro_batches) for share in shares)
        assert sizes == [5, 5] + [7] * 10
        sgd: Any = SGD(0.5, momentum=0.9)
        module = TranslationModule(material.model, sgd, Constant(0.5), config.training, seed=1)
        weights.append(weights_of(make_updates(module.double(), *shares)))
    assert_close(weights[1], weights[0], 1e-6)


def test_the_last_short_update_counts_in_full(tiny: TrainConfig, tmp_path: Any) -> None:
    """BR-08: 5 equal pairs, 2 an update in 2 micro-batches; 3 equal pairs, 1 an update. 3 updates each."""
    weights = []
    for lines, size, accumulate in ((5, 2, 2), (3, 1, 1)):
        files = write_rows(tmp_path, f"train{lines}", [["eins", "zwei", "drei"]] * lines)
        changes = {
            "model.dropout": 0.0,
            "data.train": files,
            "data.valid": files,
            "data.test": files,
            "training.update_sentences": size,
            "training.accumulate": accumulate,
            "training.max_updates": 99,
            "training.max_epochs": 1,
        }
        config = changed(tiny, changes)
        material = prepare(config)
        shares = list(UpdateStream(material.run_plan, 0, rank=0, world_size=1))
        assert len(shares) == 3
        sgd: Any = SGD(1.0)
        module = TranslationModule(material.model, sgd, Constant(1.0), config.training, seed=1)
        weights.append(weights_of(make_updates(module, *shares)))
    assert_close(weights[0], weights[1], 1e-5)


def test_the_backward_pass_makes_no_half_precision_of_what_the_forward_pass_kept_from_it() -> None:
    module, seen = module_of(), []
    for parameter in module.model.parameters():
        parameter.register_hook(lambda _: seen.append(torch.is_autocast_enabled("cpu")))
    make_updates(module, share_of(batch_of([A]), batch_of([B])), precision="bf16-mixed")
    assert seen
    assert not any(seen)


def test_the_end_of_an_epoch_is_an_update_like_any_other() -> None:
    share = share_of(batch_of([A]), batch_of([B]))
    end = dataclasses.replace(share, ends_epoch=True, last=True)
    assert_equal(after(end), after(share))


def padding_of(pair: tuple[list[int], list[int]]) -> Batch:
    batch = batch_of([pair])
    return Batch(batch.src, batch.tgt_in, torch.zeros_like(batch.tgt_out), batch.lines)


def test_a_micro_batch_of_padding_alone_gives_no_loss_and_no_gradient() -> None:
    """BR-05."""
    module = module_of({"label_smoothing": 0.1})
    smoothed, nll = module.losses(padding_of(D))
    assert (smoothed.item(), nll.item()) == (0.0, 0.0)
    smoothed.backward()
    gradients = [p.grad for p in module.model.parameters() if p.grad is not None]
    assert gradients
    assert all(float(gradient.abs().max()) == 0.0 for gradient in gradients)
    alone = after(share_of(batch_of([A])))
    assert_close(after(share_of(batch_of([A]), padding_of(D))), alone, 1e-6)


def test_a_micro_batch_of_weight_zero_changes_nothing() -> None:
    filler = batch_of([D], number=1, weight=0.0)
    plain = make_updates(module_of(), share_of(batch_of([A])))
    filled = make_updates(module_of(), share_of(batch_of([A]), filler))
    assert_equal(weights_of(filled), weights_of(plain))
    assert filled.totals == plain.totals
    assert filled.totals.target_tokens == 5
    assert filled.report.lines == (0,)
    assert filled.progress.target_tokens == 5


# Rates


class Rates(Callback):
    """The rate that the optimizer used at each update."""

    def __init__(self) -> None:
        self.used: list[float] = []

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        rates = {group["lr"] for group in trainer.optimizers[0].param_groups}
        assert rates == {pl_module.report.lr}
        self.used += rates


@pytest.mark.parametrize("start", [0, 3])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_each_update_uses_the_rate_of_its_number(accumulate: int, start: int) -> None:
    """BR-06: width 64, warm-up 4; also with accumulation, and going on at update 4."""
    expected = [0.015625, 0.03125, 0.046875, 0.0625, 0.0625 * math.sqrt(4 / 5), 0.0625 * math.sqrt(4 / 6)]
    assert [round(rate, 7) for rate in expected[4:]] == [0.0559017, 0.0510310]
    rates = Rates()
    shares = [
        share_of(*[batch_of([A], number=m) for m in range(accumulate)], update=update)
        for update in range(start + 1, 7)
    ]
    make_updates(module_of(schedule=Noam(d_model=64, warmup_updates=4)), *shares, callbacks=[rates])
    assert rates.used == pytest.approx(expected[start:], rel=1e-12)


def test_the_first_update_moves_the_weights() -> None:
    module = module_of(schedule=Noam(d_model=64, warmup_updates=4))
    before = weights_of(module)
    updated = weights_of(make_updates(module, share_of(batch_of([A]))))
    assert (
        float((updated["encoder.embedding.weight"] - before["encoder.embedding.weight"]).abs().max()) > 1e-4
    )


# Loss


@pytest.mark.parametrize("padding", [0, 1, 2, 5])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_torchs_over_the_real_tokens_alone(smoothing: float, padding: int) -> None:
    """BR-09 through the module: whatever stands in padded positions."""
    module = module_of({"label_smoothing": smoothing})
    batch = batch_of([A, C])
    memory = module.model.encode(batch.src, batch.src_mask)
    logits = module.model.logits(module.model.decode(batch.tgt_in, memory, batch.src_mask))  # (B, T, N)
    expected = F.cross_entropy(
        logits.flatten(0, 1),
        batch.tgt_out.flatten(),
        ignore_index=0,
        label_smoothing=smoothing,
        reduction="sum",
    )
    tgt_in, tgt_out = F.pad(batch.tgt_in, (0, padding), value=9), F.pad(batch.tgt_out, (0, padding))
    smoothed, nll = module.losses(Batch(batch.src, tgt_in, tgt_out, batch.lines))
    torch.testing.assert_close(smoothed, expected, atol=1e-5, rtol=0)
    plain = F.cross_entropy(logits.flatten(0, 1), batch.tgt_out.flatten(), ignore_index=0, reduction="sum")
    torch.testing.assert_close(nll, plain, atol=1e-5, rtol=0)


# Clipping, on a model whose gradient is known


class Plane(nn.Module):
    """Two weights; the gradient of the loss is what the source says."""

    def __init__(self) -> None:
        super().__init__()
        self.point = nn.Parameter(torch.zeros(2))

    def encode(self, src: Tensor, src_mask: Tensor) -> Tensor:
        return src

    def decode(self, tgt: Tensor, memory: Tensor, src_mask: Tensor) -> Tensor:
        return memory

    def nll(
        self, states: Tensor, targets: Tensor, label_smoothing: float, num_real: int | None
    ) -> tuple[Tensor, Tensor]:
        loss = (states[0].float() * self.point).sum()
        return loss, loss.detach()


def gradients(*rows: tuple[int, int]) -> Share:
    one_token = torch.tensor([[2]])
    batches = [Batch(torch.tensor([row]), one_token, one_token, (i,), number=i) for i, row in enumerate(rows)]
    return Share(1, 1, len(rows), tuple(batches), ends_epoch=False, last=False)


@pytest.mark.parametrize(
    ("clip_norm", "point"),
    [(1.0, (-0.6, -0.8)), (None, (-1.5, -2.0)), (5.0, (-1.5, -2.0)), (2.0, (-1.2, -1.6))],
)
def test_gradients_are_clipped_once_an_update(clip_norm: float | None, point: tuple[float, float]) -> None:
    """BR-10: micro-batch gradients (3, 0) and (0, 4), each over one of the update's two tokens."""
    settings = changed(TrainConfig(), {"training.clip_norm": clip_norm}).training
    stand_in: Any = Plane()
    sgd: Any = SGD(1.0)
    module = TranslationModule(stand_in, sgd, Constant(1.0), settings, seed=1)
    make_updates(module, gradients((3, 0), (0, 4)))
    assert stand_in.point.tolist() == pytest.approx(point, abs=1e-5)
    assert module.report.grad_norm == pytest.approx(2.5, abs=1e-6)


# Dropout


def test_dropout_follows_from_seed_update_and_micro_batch() -> None:
    dropout = {"dropout": 0.5, "attention_dropout": 0.2, "ffn_dropout": 0.2}
    four = [batch_of([pair], number=i) for i, pair in enumerate((A, B, C, D))]
    first = after(share_of(*four), model=dropout)
    torch.rand(17)  # the generator's state does not matter
    assert_equal(after(share_of(*four), model=dropout), first)
    other_update = after(share_of(*four, update=2), model=dropout)
    other_number = after(share_of(*four[:3], batch_of([D], number=9)), model=dropout)
    for other in (other_update, other_number):
        assert not torch.equal(other["encoder.embedding.weight"], first["encoder.embedding.weight"])


def test_the_order_of_micro_batches_on_a_process_does_not_matter_to_dropout() -> None:
    """Another process count deals the same numbered micro-batches out in another order."""
    four = [batch_of([pair], number=i) for i, pair in enumerate((A, B, C, D))]
    forwards = after(share_of(*four), number_type=torch.float64, model={"dropout": 0.5})
    backwards = after(share_of(*four[::-1]), number_type=torch.float64, model={"dropout": 0.5})
    assert_close(forwards, backwards, 1e-7)


# Divergence


def test_a_loss_that_is_not_a_number_names_update_and_lines_and_changes_no_weight() -> None:
    module = module_of()
    with torch.no_grad():
        module.model.state_dict()[_a_bias(module)][0] = math.nan
    before = weights_of(module)
    batches = [
        Batch(b.src, b.tgt_in, b.tgt_out, (line,)) for b, line in ((batch_of([A]), 16), (batch_of([B]), 4))
    ]
    with pytest.raises(UserError, match=r"is nan at update 7 \(training lines 5, 17\)"):
        make_updates(module, share_of(*batches, update=7))
    for name, tensor in weights_of(module).items():
        assert torch.equal(tensor.nan_to_num(123.0), before[name].nan_to_num(123.0))
    assert module.progress.update == 0


# On a GPU, a look at a number is a wait


class NoLooks(TorchDispatchMode):
    """Fails where a tensor becomes a number of Python's, or decides how large another one is."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        looks = torch.ops.aten
        assert func not in (looks._local_scalar_dense.default, looks.equal.default, looks.nonzero.default)
        return func(*args, **(kwargs or {}))


@pytest.fixture
def attention_as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """By torch's kernel: what some processors are faster with looks for empty rows."""
    monkeypatch.setattr("minitrans.model.attention.HAS_NARROW_REGISTERS", False)


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch, attention_as_on_a_gpu: None) -> None:
    """Updates are made on the processor, by a module that takes it for a GPU."""
    step = TranslationModule.training_step

    def watched(self: TranslationModule, batch: Share, batch_idx: int) -> None:
        with NoLooks():
            step(self, batch, batch_idx)

    monkeypatch.setattr(TranslationModule, "training_step", watched)
    monkeypatch.setattr(TranslationModule, "device", torch.device("cuda"))


SHARES = (
    share_of(batch_of([A, B]), batch_of([C], number=1)),
    share_of(batch_of([D, B]), batch_of([A], number=1, weight=0.0), update=2),
)
SETTINGS = {"label_smoothing": 0.1, "clip_norm": 1.0}


@pytest.fixture
def looked_at(attention_as_on_a_gpu: None) -> TranslationModule:
    """What the updates come to where each is looked at."""
    return make_updates(module_of(SETTINGS), *SHARES)


def test_updates_on_a_gpu_are_those_of_a_processor_and_are_read_together(
    looked_at: TranslationModule, as_on_a_gpu: None
) -> None:
    module = make_updates(module_of(SETTINGS), *SHARES)
    assert (module.totals.target_tokens, module.report.grad_norm) == (0, 0.0)
    module.catch_up()
    # A and B, C; D and B: with end tokens 4 + 2 + 6 + 3 + 2 of the source, 5 + 2 + 3 + 8 + 2 of the target
    totals = module.totals
    assert (totals.target_tokens, totals.real_positions, totals.updates) == (20, 37, 2)
    assert totals.positions == 2 * (4 + 5) + (6 + 3) + 2 * (3 + 8)
    assert module.totals == looked_at.totals
    assert module.report == looked_at.report
    assert_equal(weights_of(module), weights_of(looked_at))
    module.catch_up()  # nothing new
    assert module.totals == looked_at.totals


def test_divergence_on_a_gpu_is_told_of_the_first_update_when_it_is_read(as_on_a_gpu: None) -> None:
    module = module_of()
    with torch.no_grad():
        module.model.state_dict()[_a_bias(module)][0] = math.nan
    make_updates(module, share_of(batch_of([A, B]), update=7), share_of(batch_of([C]), update=8))
    with pytest.raises(UserError, match=r"is nan at update 7 \(training lines 1, 2\)"):
        module.catch_up()


def _a_bias(module: TranslationModule) -> str:
    return next(
        name for name in module.model.state_dict() if name.startswith("decoder") and name.endswith("bias")
    )
