"""Requests to end: one finishes the update, a second Ctrl-C does not wait, old handlers come back."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from lightning.pytorch import LightningModule, Trainer

from minitrans import checkpoint
from minitrans.config import TrainConfig, plain
from minitrans.run import RunFolder
from minitrans.signals import SIGNALS
from minitrans.training.callbacks import LogMetrics
from minitrans.training.interruption import Interruption
from minitrans.training.resume import continuation
from tests.training.tiny import assert_equal, changed, train


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


def test_lightning_handles_no_signal_itself(tiny: TrainConfig, tmp_path: Path) -> None:
    """Also not before the first update, where its handler would end the run with status 0 and no word."""
    seen = []

    def setup(self: LogMetrics, trainer: Trainer, module: LightningModule, stage: str) -> None:
        seen.append(signal.getsignal(signal.SIGTERM))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LogMetrics, "setup", setup)
        patch.setattr(LogMetrics, "on_train_start", lambda self, *_: setup(self, *_, stage=""))
        train(changed(tiny, {"training.max_updates": 1}), tmp_path / "run")
    assert [getattr(handler, "__func__", None) for handler in seen] == [Interruption._request] * 2


def test_outside_the_main_thread_nothing_happens() -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen = []

    def enter() -> None:
        with Interruption():
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


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGUSR1"])
def test_the_whole_process_group_is_told_while_loader_processes_work(
    name: str, tiny: TrainConfig, tmp_path: Path
) -> None:
    """BR-18, first half: 2 loader processes; the run says how to go on, and goes on to the same weights."""
    config = changed(tiny, {"training.max_updates": 5000, "trainer.num_workers": 2})
    program = (
        "import sys, yaml\n"
        "from minitrans.config import TrainConfig, parse\n"
        "from minitrans.errors import UserError\n"
        "from minitrans.training.session import start\n"
        "try: start(parse(TrainConfig, yaml.safe_load(open(sys.argv[1]))), {})\n"
        "except UserError as stop: sys.exit(str(stop))\n"
    )
    (tmp_path / "config.yaml").write_text(
        yaml.safe_dump(plain(changed(config, {"run_dir": str(tmp_path / "run")})))
    )
    running = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "config.yaml")],
        cwd=Path(checkpoint.__file__).parents[1], start_new_session=True,
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    folder = RunFolder.of(tmp_path / "run")
    while running.poll() is None and not (folder.metrics.exists() and "\n5,1," in folder.metrics.read_text()):
        time.sleep(0.02)
    os.killpg(running.pid, getattr(signal, name))
    _, told = running.communicate(timeout=30)
    saved = checkpoint.read(folder.checkpoints / "last.ckpt")
    update = saved.progress.update
    assert 5 <= update < 5000
    assert f"stopped after update {update}, which is saved; go on with resume={folder.path}" in told
    assert running.returncode == 1
    found = continuation(changed(config, {"resume": str(folder.path)}), {})
    total = update + 10
    train(changed(found.config, {"training.max_updates": total}), folder.path, found.start)
    whole = train(changed(config, {"training.max_updates": total}), tmp_path / "whole")
    for part in ("model", "optimizer"):
        assert_equal(
            getattr(checkpoint.read(folder.checkpoints / "last.ckpt"), part),
            getattr(checkpoint.read(whole.checkpoints / "last.ckpt"), part),
        )
