"""Measuring heads while training: when, on what, once each, and without a trace in the run."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minitrans import checkpoint
from minitrans.analysis.instruments import COLUMNS, measure
from minitrans.config import TrainConfig, check
from minitrans.data.batching import collate
from minitrans.errors import UserError
from minitrans.run import RunFolder
from minitrans.training.interruption import Interruption
from minitrans.training.prepare import prepare
from minitrans.training.resume import continuation
from tests.training.tiny import assert_equal, changed, train

NUM_HEADS = 3 * 2  # encoder, decoder and cross-attention of one layer each


def rows_of(folder: RunFolder) -> list[dict[str, str]]:
    with folder.diagnostics.open(newline="") as file:
        return list(csv.DictReader(file))


def updates_of(folder: RunFolder) -> list[int]:
    """The updates measured, each with all of its heads in one piece."""
    updates = [int(row["update"]) for row in rows_of(folder)]
    assert updates == [update for update in updates[::NUM_HEADS] for _ in range(NUM_HEADS)]
    return updates[::NUM_HEADS]


def metrics_of(folder: RunFolder) -> list[dict[str, str]]:
    with folder.metrics.open(newline="") as file:
        return [row | {"target_tokens_per_s": "", "mfu": "", "seconds": ""} for row in csv.DictReader(file)]


@pytest.fixture
def stop_after(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Asks runs to end after an update, as SIGTERM does; 0 asks nothing."""

    def stop(update: int) -> None:
        def agreed(self: Interruption, trainer: Any) -> bool:
            return bool(trainer.lightning_module.progress.update == update)

        monkeypatch.setattr(Interruption, "agreed", agreed)

    return stop


@pytest.mark.parametrize(("every", "updates"), [(5, [0, 5, 10, 12]), (6, [0, 6, 12]), (100, [0, 12])])
def test_measured_at_the_start_ever_so_often_and_at_the_end(
    every: int, updates: list[int], tiny: TrainConfig, tmp_path: Path
) -> None:
    folder = train(changed(tiny, {"training.diagnose_every": every}), tmp_path / "run")
    assert updates_of(folder) == updates
    assert tuple(rows_of(folder)[0]) == ("update", *COLUMNS)


def test_the_rows_are_the_figures_of_the_saved_weights_on_the_validation_split(
    tiny: TrainConfig, tmp_path: Path
) -> None:
    config = changed(tiny, {"training.diagnose_every": 6, "training.save_every": 6})
    folder = train(config, tmp_path / "run")
    material = prepare(config)
    batch = collate(material.valid, np.arange(6))
    for update in (0, 6, 12):
        if update:
            material.model.load_state_dict(checkpoint.read(folder.step(update)).model)
        expected = measure(material.model, [batch], config.training.label_smoothing).heads
        rows = [row for row in rows_of(folder) if row["update"] == str(update)]
        for row, figures in zip(rows, expected, strict=True):
            assert row["side"] == figures.side
            for name in COLUMNS[1:]:
                assert float(row[name]) == pytest.approx(float(getattr(figures, name)), rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("decay", [None, 0.9])
def test_the_run_is_the_same_to_the_last_bit(decay: float | None, tiny: TrainConfig, tmp_path: Path) -> None:
    config = changed(tiny, {"training.ema_decay": decay, "training.validate_every": 4})
    alone = train(config, tmp_path / "alone")
    measured = train(changed(config, {"training.diagnose_every": 1}), tmp_path / "measured")
    assert not alone.diagnostics.exists()
    assert updates_of(measured) == list(range(13))
    for name in ("model", "ema", "optimizer"):
        left, right = (getattr(checkpoint.read(f.checkpoints / "last.ckpt"), name) for f in (alone, measured))
        assert_equal(left, right, name)
    assert metrics_of(alone) == metrics_of(measured)


@pytest.mark.parametrize("stops", [[5], [7], [1, 10]])
def test_a_stopped_run_has_each_row_once_and_the_same(
    stops: list[int], tiny: TrainConfig, tmp_path: Path, stop_after: Any
) -> None:
    config = changed(tiny, {"training.diagnose_every": 5})
    stop_after(0)
    undisturbed = train(config, tmp_path / "undisturbed")
    path, start = tmp_path / "run", None
    for stop in [*stops, 0]:
        stop_after(stop)
        if start is not None:
            found = continuation(changed(config, {"resume": str(path)}), {})
            train(found.config, path, found.start)
        else:
            train(config, path)
        start = path
    assert rows_of(RunFolder.of(path)) == rows_of(undisturbed)


def test_a_run_may_be_measured_from_some_update_on(
    tiny: TrainConfig, tmp_path: Path, stop_after: Any
) -> None:
    stop_after(6)
    train(tiny, tmp_path / "run")
    stop_after(0)
    words = {"training.diagnose_every": 3}
    found = continuation(changed(tiny, words | {"resume": str(tmp_path / "run")}), words)
    assert updates_of(train(found.config, tmp_path / "run", found.start)) == [6, 9, 12]


def test_early_stopping_ends_with_a_measurement(tiny: TrainConfig, tmp_path: Path) -> None:
    stalled = {
        "training.diagnose_every": 100,
        "training.validate_every": 2,
        "training.patience": 1,
        "optimizer": {"kind": "sgd", "lr": 1e-9},
        "training.metric": "bleu",
    }
    folder = train(changed(tiny, stalled), tmp_path / "run")
    end = checkpoint.read(folder.checkpoints / "last.ckpt").progress.update
    assert end < 12
    assert updates_of(folder) == [0, end]


def test_an_architecture_without_heads_is_refused_before_anything_runs(tiny: TrainConfig) -> None:
    lstm = changed(
        tiny,
        {
            "model": type(tiny.model)(architecture="lstm", d_model=16),
            "position": {"kind": "none"},
            "training.diagnose_every": 5,
        },
    )
    with pytest.raises(UserError, match=r"training\.diagnose_every=5 measures the heads of a transformer"):
        check(lstm)
