"""Requests to end: one finishes the update, a second Ctrl-C does not wait, old handlers come back."""

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import LightningModule, Trainer

from minitrans import checkpoint
from minitrans.config import TrainConfig
from minitrans.training.callbacks import LogMetrics
from minitrans.training.interruption import SIGNALS, Interruption
from tests.training.tiny import changed, train


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_a_request_and_the_old_handler_comes_back(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with Interruption() as interruption:
        assert interruption.requested is None
        os.kill(os.getpid(), number)
        assert interruption.requested is number
    assert signal.getsignal(number) is before


def test_a_second_ctrl_c_stops_at_once() -> None:
    with Interruption() as interruption:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        assert interruption.requested is signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_handler_of_another_library_is_taken_over() -> None:
    with Interruption() as interruption:
        old = signal.signal(signal.SIGTERM, lambda number, frame: pytest.fail("the other handler ran"))
        interruption.take_over()
        signal.raise_signal(signal.SIGTERM)
        assert interruption.requested is signal.SIGTERM
        signal.signal(signal.SIGTERM, old)


def test_outside_the_main_thread_nothing_happens() -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen = []

    def enter() -> None:
        with Interruption() as interruption:
            interruption.take_over()
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [before]


@pytest.mark.parametrize("number", SIGNALS)
def test_training_ends_with_the_update_in_hand_and_saves_it(
    number: signal.Signals, tiny: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal comes while update 5 is being made: 5 is saved, 6 is not made."""
    write = LogMetrics.on_train_batch_end

    def kill_at_5(
        self: LogMetrics, trainer: Trainer, module: LightningModule, out: Any, share: Any, i: int
    ) -> None:
        if share.update == 5:
            os.kill(os.getpid(), number)
        write(self, trainer, module, out, share, i)

    monkeypatch.setattr(LogMetrics, "on_train_batch_end", kill_at_5)
    folder = train(changed(tiny, {"trainer.num_workers": 0}), tmp_path / "run")
    assert [path.name for path in folder.steps()] == ["step-000005.ckpt"]
    assert checkpoint.read(folder.checkpoints / "last.ckpt").progress.update == 5
    assert folder.metrics.read_text().splitlines()[-1].startswith("5,1,train,")
