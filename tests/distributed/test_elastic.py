"""A run that was stopped goes on with another number of processes, in the middle of an epoch."""

from pathlib import Path
from typing import Any

import pytest

from minitrans import checkpoint
from minitrans.config import TrainConfig
from minitrans.run import RunFolder
from minitrans.training.interruption import Interruption
from minitrans.training.resume import continuation
from tests.distributed.test_split import assert_close, difference, last, metrics
from tests.distributed.world import in_world
from tests.training.tiny import assert_equal, changed, tiny_experiment, train


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    """Plain SGD in float64 without dropout; 10 updates an epoch, 15 in all."""
    config = tiny_experiment(tmp_path_factory.mktemp("text"))
    settings = {"optimizer": {"kind": "sgd", "lr": 0.5}, "model.dropout": 0.0, "trainer.precision": "fp64"}
    return changed(config, {**settings, "training.max_updates": 15, "training.validate_every": 6})


def stopped(config: TrainConfig, path: Path, update: int) -> None:
    """Start a run and stop it after an update, as if one process alone had been asked to end."""
    agreed = Interruption.agreed

    def ask(self: Interruption, trainer: Any) -> bool:
        first = trainer.lightning_module.progress.update == update and trainer.global_rank == 0
        self.requested = 15 if first else None  # type: ignore[assignment]
        return agreed(self, trainer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Interruption, "agreed", ask)
        train(config, path)


def gone_on(config: TrainConfig, path: Path) -> None:
    """Go on from the newest checkpoint of a run folder to the end."""
    found = continuation(changed(config, {"resume": str(path)}), {})
    train(found.config, path, found.start)


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [1, 4])
def test_a_run_stopped_on_two_processes_goes_on_with(
    world_size: int, exact: TrainConfig, tmp_path: Path
) -> None:
    whole = train(exact, tmp_path / "whole")
    in_world(2, stopped, exact, tmp_path / "run", 7)
    folder = RunFolder(tmp_path / "run")
    assert last(folder).progress.update == 7
    in_world(world_size, gone_on, exact, folder.path)
    assert difference(last(folder).model, last(whole).model) < 1e-6
    assert_close(metrics(folder), metrics(whole))


def test_two_processes_go_on_bit_for_bit(exact: TrainConfig, tmp_path: Path) -> None:
    """With dropout, Adam, a moving average, rows over several updates, and loader processes."""
    noisy = {"model.dropout": 0.2, "optimizer": {"kind": "adamw", "lr": 0.01}, "trainer.precision": "fp32"}
    rows = {"training.ema_decay": 0.9, "training.log_every": 4, "trainer.num_workers": 2}
    config = changed(exact, {**noisy, **rows})
    in_world(2, train, config, tmp_path / "whole")
    in_world(2, stopped, config, tmp_path / "run", 7)
    in_world(2, gone_on, config, tmp_path / "run")
    run, whole = (RunFolder(tmp_path / name) for name in ("run", "whole"))
    for part in ("model", "ema", "optimizer"):
        assert_equal(getattr(last(run), part), getattr(last(whole), part), part)
    assert metrics(run) == metrics(whole)
    best = [checkpoint.read(folder.checkpoints / "best.ckpt").progress.update for folder in (run, whole)]
    assert best[0] == best[1]
