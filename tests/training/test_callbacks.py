"""What happens between updates: rows, validations, the best, the checkpoints that stay."""

import contextlib
import csv
import math
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from minitrans import checkpoint
from minitrans.config import TrainConfig
from minitrans.data.stream import UpdateStream
from minitrans.errors import UserError
from minitrans.model.transformer import Transformer
from minitrans.run import RunFolder
from minitrans.training import callbacks
from minitrans.training.callbacks import Stopwatch
from minitrans.training.ema import MovingAverage
from minitrans.training.module import Totals, UpdateReport
from minitrans.training.prepare import prepare
from minitrans.training.validation import Validation, ValidationScores
from tests.training.tiny import assert_equal, changed, train


def rows_of(folder: RunFolder, split: str) -> list[dict[str, str]]:
    with folder.metrics.open(newline="") as file:
        return [row for row in csv.DictReader(file) if row["split"] == split]


def updates_of(folder: RunFolder, split: str) -> list[int]:
    return [int(row["update"]) for row in rows_of(folder, split)]


def best_update(folder: RunFolder) -> int:
    return checkpoint.read(folder.checkpoints / "best.ckpt").progress.update


def last_progress(folder: RunFolder) -> checkpoint.Progress:
    return checkpoint.read(folder.checkpoints / "last.ckpt").progress


# Rows of training


def test_a_row_weighs_tokens_not_micro_batches() -> None:
    """BR-07 in numbers: sums 6.0 over 3 tokens and 9.0 over 9 tokens are 1.25, not 1.5."""
    progress = checkpoint.Progress(seconds=10.0)
    module: Any = types.SimpleNamespace(
        device=torch.device("cpu"),
        progress=progress,
        totals=Totals(smoothed=6.0 + 9.0, nll=2.4 + 3.6, target_tokens=12, real_positions=30, positions=40),
        report=UpdateReport(update=20, epoch=2, lr=0.01, grad_norm=3.5, lines=(1, 2)),
    )
    trainer: Any = types.SimpleNamespace(world_size=1)
    stopwatch: Any = types.SimpleNamespace(lap=lambda: (4.0, 3.0), paused=contextlib.nullcontext)
    # 18 source and 12 target tokens: 18 x 100 + 12 x 200 operations in 3 of the seconds, of 5600 a second
    utilisation: Any = types.SimpleNamespace(
        flops=lambda src, tgt: 100 * src + 200 * tgt, peak=lambda device: 5600.0
    )
    row = callbacks._training_row(trainer, module, stopwatch, utilisation)
    assert row == {
        "update": 20,
        "epoch": 2,
        "split": "train",
        "loss": 1.25,
        "nll": 0.5,
        "perplexity": pytest.approx(math.exp(0.5)),
        "lr": 0.01,
        "grad_norm": 3.5,
        "target_tokens_per_s": 4.0,
        "padding_fraction": 0.25,
        "mfu": pytest.approx(0.25),
        "seconds": 14.0,
    }
    assert module.totals == Totals()
    assert progress.seconds == 14.0


def test_pauses_do_not_count_as_training(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 5.0, 7.0, 10.0, 11.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(now))
    stopwatch = Stopwatch()
    with stopwatch.paused():
        pass
    assert stopwatch.lap() == (10.0, 8.0)
    assert stopwatch.lap() == (1.0, 1.0)


def test_rows_are_means_over_their_updates(tiny: TrainConfig, tmp_path: Path) -> None:
    each = train(tiny, tmp_path / "each")
    windows = train(changed(tiny, {"training.log_every": 5}), tmp_path / "windows")
    assert updates_of(each, "train") == list(range(1, 13))
    assert updates_of(windows, "train") == [5, 10, 12]
    assert [row["epoch"] for row in rows_of(windows, "train")] == ["1", "1", "2"]
    shares = list(UpdateStream(prepare(tiny).run_plan, 0, rank=0, world_size=1))
    loss = [float(row["loss"]) for row in rows_of(each, "train")]
    for row, updates in zip(rows_of(windows, "train"), (range(5), range(5, 10), range(10, 12)), strict=True):
        tokens = [shares[update].target_tokens for update in updates]
        mean = sum(loss[u] * n for u, n in zip(updates, tokens, strict=True)) / sum(tokens)
        assert float(row["loss"]) == pytest.approx(mean, rel=1e-6)
        batches = [batch for update in updates for batch in shares[update].micro_batches]
        positions = sum(batch.src.numel() + batch.tgt_out.numel() for batch in batches)
        padding = sum(int((ids == 0).sum()) for batch in batches for ids in (batch.src, batch.tgt_out))
        assert float(row["padding_fraction"]) == pytest.approx(padding / positions, rel=1e-6)
        assert float(row["lr"]) == pytest.approx(float(rows_of(each, "train")[updates[-1]]["lr"]))


# When validation happens


@pytest.mark.parametrize(
    ("changes", "updates"),
    [
        ({"training.validate_every": 5}, [5, 10, 12]),
        ({"training.validate_every": 4}, [4, 8, 12]),
        ({"training.validate_every": 100}, [12]),
        ({"training.validate_every": None}, [10, 12]),
        ({"training.validate_every": None, "training.accumulate": 3}, [10, 12]),
        ({"training.validate_every": None, "training.max_epochs": 1}, [10]),
    ],
)
def test_validation_counts_updates_or_epochs(
    changes: dict[str, Any], updates: list[int], tiny: TrainConfig, tmp_path: Path
) -> None:
    folder = train(changed(tiny, changes), tmp_path / "run")
    assert updates_of(folder, "valid") == updates


@pytest.mark.parametrize("decay", [None, 0.9])
def test_training_is_the_same_whether_it_is_watched_or_not(
    decay: float | None, tiny: TrainConfig, tmp_path: Path
) -> None:
    config = changed(tiny, {"training.ema_decay": decay})
    alone = train(config, tmp_path / "alone")
    watched = changed(
        config,
        {
            "training.validate_every": 1,
            "training.save_every": 2,
            "training.log_every": 3,
            "logger.kind": "csv",
        },
    )
    folder = train(watched, tmp_path / "watched")
    for name in ("model", "ema", "optimizer"):
        assert_equal(
            getattr(checkpoint.read(folder.checkpoints / "last.ckpt"), name),
            getattr(checkpoint.read(alone.checkpoints / "last.ckpt"), name),
        )


def test_the_moving_average_is_what_is_validated(
    tiny: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, torch.Tensor]] = []
    run = Validation.run

    def watch(self: Validation, model: Transformer) -> ValidationScores:
        assert not model.training
        seen.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
        return run(self, model)

    monkeypatch.setattr(Validation, "run", watch)
    folder = train(changed(tiny, {"training.ema_decay": 0.9}), tmp_path / "run")
    saved = checkpoint.read(folder.checkpoints / "last.ckpt")
    assert saved.ema is not None
    assert len(seen) == 1
    assert_equal(seen[0], dict(saved.ema))
    assert not torch.equal(seen[0]["encoder.embedding.weight"], saved.model["encoder.embedding.weight"])


def test_the_average_follows_every_update(tiny: TrainConfig, tmp_path: Path) -> None:
    """Computed again from the weights of each update's own checkpoint."""
    config = changed(
        tiny,
        {
            "training.ema_decay": 0.6,
            "training.save_every": 1,
            "training.keep_last": 12,
            "training.log_every": 50,
        },
    )
    folder = train(config, tmp_path / "run")
    average = MovingAverage(prepare(config).model, 0.6)
    model = prepare(config).model
    for update, path in enumerate(folder.steps(), start=1):
        content = checkpoint.read(path)
        model.load_state_dict(content.model)
        average.follow(model, update)
        assert content.ema is not None
        assert_equal(average.weights, dict(content.ema))


# The best, early stopping, what is kept


@pytest.fixture
def scores(monkeypatch: pytest.MonkeyPatch) -> list[ValidationScores]:
    """Validations give these, one after the other, instead of measuring."""
    queue: list[ValidationScores] = []
    monkeypatch.setattr(Validation, "run", lambda self, model: queue.pop(0))
    return queue


def losses(*values: float) -> list[ValidationScores]:
    return [ValidationScores(value, value, 0.0, []) for value in values]


def bleus(*values: float) -> list[ValidationScores]:
    return [ValidationScores(1.0, 1.0, value, []) for value in values]


def by_loss(tiny: TrainConfig, **training: Any) -> TrainConfig:
    settings = {"max_updates": 10, "validate_every": 2, "metric": "loss"} | training
    return changed(tiny, {f"training.{name}": value for name, value in settings.items()})


@pytest.mark.parametrize(
    ("values", "best"),
    [
        ((5.0, 3.0, 4.0, 2.0, 6.0), 8),
        ((math.nan, 3.0, 2.5, 2.6, 2.7), 6),  # Lightning-AI/pytorch-lightning#2636
        ((math.inf, 3.0, math.nan, 2.5, 2.5), 8),
        ((2.0, 2.0, 2.0, 2.0, 2.0), 2),
    ],
)
def test_the_best_has_the_lowest_loss_that_is_a_number(
    values: tuple[float, ...], best: int, tiny: TrainConfig, tmp_path: Path, scores: list[ValidationScores]
) -> None:
    scores += losses(*values)
    folder = train(by_loss(tiny), tmp_path / "run")
    assert best_update(folder) == best
    progress = last_progress(folder)
    assert (progress.best_update, progress.best_value) == (best, values[best // 2 - 1])
    assert progress.stale_validations == 5 - best // 2


def test_the_best_has_the_highest_bleu(
    tiny: TrainConfig, tmp_path: Path, scores: list[ValidationScores]
) -> None:
    scores += bleus(0.0, 12.5, 30.0, 30.0, 29.9)
    assert best_update(train(by_loss(tiny, metric="bleu"), tmp_path / "run")) == 6


def test_no_best_where_no_validation_gave_a_number(
    tiny: TrainConfig, tmp_path: Path, scores: list[ValidationScores]
) -> None:
    scores += losses(*[math.nan] * 5)
    folder = train(by_loss(tiny), tmp_path / "run")
    assert not (folder.checkpoints / "best.ckpt").exists()
    assert last_progress(folder).best_value is None
    assert checkpoint.resolve(folder.path).name == "last.ckpt"


@pytest.mark.parametrize(
    ("values", "patience", "updates"),
    [
        ((3.0, 2.0, 2.5, 2.2, 1.0), 2, 8),
        ((3.0, 3.1, 2.9, 3.0, 2.8), 2, 10),
        ((3.0, 3.0, 1.0, 1.0, 1.0), 1, 4),
        ((math.nan, math.nan, 1.0, 1.0, 1.0), 2, 4),
        ((3.0, 4.0, 5.0, 6.0, 7.0), None, 10),
    ],
)
def test_training_stops_after_so_many_validations_without_a_better_one(
    values: tuple[float, ...], patience: int | None, updates: int,
    tiny: TrainConfig, tmp_path: Path, scores: list[ValidationScores],
) -> None:  # fmt: skip
    scores += losses(*values)
    folder = train(by_loss(tiny, patience=patience), tmp_path / "run")
    assert last_progress(folder).update == updates
    assert len(scores) == 5 - updates // 2


@pytest.mark.parametrize(
    ("keep_last", "average_last", "kept"),
    [(1, 0, [10]), (2, 0, [8, 10]), (3, 3, [6, 8, 10]), (9, 0, [2, 4, 6, 8, 10])],
)
def test_so_many_checkpoints_stay_and_the_best_outlives_its_step(
    keep_last: int, average_last: int, kept: list[int],
    tiny: TrainConfig, tmp_path: Path, scores: list[ValidationScores],
) -> None:  # fmt: skip
    scores += losses(2.0, 1.0, 3.0, 4.0, 5.0)
    config = by_loss(tiny, save_every=2, keep_last=keep_last, average_last=average_last)
    folder = train(config, tmp_path / "run")
    assert folder.steps() == [folder.step(update) for update in kept]
    assert best_update(folder) == 4
    assert (folder.checkpoints / "last.ckpt").samefile(folder.step(10))
    names = [path.name for path in folder.steps()] + ["best.ckpt", "last.ckpt"]
    assert sorted(path.name for path in folder.checkpoints.iterdir()) == sorted(names)


# A loss that is not a number


def test_a_run_that_diverges_keeps_its_last_good_checkpoint(tiny: TrainConfig, tmp_path: Path) -> None:
    config = changed(
        tiny,
        {
            "optimizer": {"kind": "sgd", "lr": 1e30},
            "schedule": {"kind": "constant", "warmup_updates": 0},
            "training.clip_norm": None,
            "training.save_every": 1,
        },
    )
    lines = sorted(line + 1 for batch in _share(config, 2) for line in batch.lines)
    told = rf"at update 2 \(training lines {', '.join(map(str, lines))}\)"
    with pytest.raises(UserError, match=told):
        train(config, tmp_path / "run")
    folder = RunFolder.of(tmp_path / "run")
    assert [path.name for path in folder.steps()] == ["step-000001.ckpt"]
    good = checkpoint.read(folder.checkpoints / "last.ckpt")
    assert good.progress.update == 1
    assert all(bool(torch.isfinite(tensor).all()) for tensor in good.model.values())
    assert updates_of(folder, "train") == [1]


def _share(config: TrainConfig, update: int) -> Iterator[Any]:
    stream = UpdateStream(prepare(config).run_plan, update - 1, rank=0, world_size=1)
    return iter(next(iter(stream)).micro_batches)
