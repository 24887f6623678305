"""Two processes that are told to end, that die, that hang: bounded, said, and gone on from exactly."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from minitrans import checkpoint
from minitrans.config import TrainConfig
from minitrans.run import RunFolder
from tests.distributed.commands import assert_same_end, finish, running, updates, words
from tests.training.tiny import changed, tiny_experiment

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    """Far more updates than are waited for, with 2 loader processes a rank."""
    size = {"training.max_updates": 100_000, "training.save_every": 4, "trainer.timeout": 5}
    return changed(tiny_experiment(tmp_path_factory.mktemp("text")), {**size, "trainer.num_workers": 2})


def assert_goes_on_exactly(config: TrainConfig, folder: RunFolder, tmp_path: Path, update: int) -> None:
    """To some updates after the stop, as the undisturbed run does."""
    short = words(changed(config, {"training.max_updates": update + 8}))
    finish([*short, f"run_dir={folder.path}", "resume=auto"], tmp_path / "second.log", processes=2)
    whole = RunFolder(tmp_path / "whole")
    finish([*short, f"run_dir={whole.path}"], tmp_path / "whole.log", processes=2)
    assert_same_end(folder, whole)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGUSR1"])
def test_two_processes_are_told_to_end(name: str, config: TrainConfig, tmp_path: Path) -> None:
    """BR-18: the signal goes to the whole process group, as a terminal's and a cluster's do."""
    folder = RunFolder(tmp_path / "run")
    with running([*words(config), f"run_dir={folder.path}"], tmp_path / "run.log", processes=2) as command:
        command.until(lambda: len(updates(folder)) >= 5)
        os.killpg(command.process.pid, getattr(signal, name))
        assert command.wait(30) == 130
    update = checkpoint.read(folder.checkpoints / "last.ckpt").progress.update
    assert update >= 5
    told = command.told()
    assert told.rstrip().endswith(
        f"stopped after update {update}, which is saved; go on with resume={folder.path}"
    )
    assert "Traceback" not in told
    if name == "SIGTERM":
        assert_goes_on_exactly(config, folder, tmp_path, update)


def test_one_of_two_processes_is_killed(config: TrainConfig, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    with running([*words(config), f"run_dir={folder.path}"], tmp_path / "run.log", processes=2) as command:
        command.until(lambda: len(updates(folder)) >= 5)
        os.kill(command.workers()[1], signal.SIGKILL)
        assert command.wait(60) == 2
    told = command.told()
    assert "error: the process of rank 1 was killed by signal 9 and the others were ended; the last" in told
    assert told.rstrip().endswith(f"the last checkpoint is whole: go on with resume={folder.path}")
    assert "Traceback" not in told
    assert_goes_on_exactly(config, folder, tmp_path, max(updates(folder)))


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_one_of_two_processes_hangs(config: TrainConfig, tmp_path: Path, strategy: str) -> None:
    """After trainer.timeout (here 5 seconds) the other one names it; some 40 later both have ended."""
    folder = RunFolder(tmp_path / "run")
    typed = words(changed(config, {"trainer.strategy": strategy}))
    with running([*typed, f"run_dir={folder.path}"], tmp_path / "run.log", processes=2) as command:
        command.until(lambda: len(updates(folder)) >= 5)
        workers = command.workers()
        os.kill(workers[1], signal.SIGSTOP)
        assert command.wait(90) == 2
    told = command.told()
    assert "error: another process of the run (rank 1) was ended or did not answer for 5 seconds" in told
    assert "Traceback" not in told
    assert not Path(f"/proc/{workers[1]}").exists()


def test_the_second_ctrl_c_waits_for_nobody(config: TrainConfig, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    patient = changed(config, {"trainer.timeout": 600})
    with running([*words(patient), f"run_dir={folder.path}"], tmp_path / "run.log", processes=2) as command:
        command.until(lambda: len(updates(folder)) >= 5)
        workers = command.workers()
        os.kill(workers[1], signal.SIGSTOP)
        os.killpg(command.process.pid, signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            command.wait(2)
        os.killpg(command.process.pid, signal.SIGINT)
        assert command.wait(10) == 130
        assert not any(Path(f"/proc/{worker}").exists() for worker in workers.values())
    assert command.told().rstrip().endswith("interrupted")


def test_workers_end_when_their_parent_is_killed(config: TrainConfig, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    with running([*words(config), f"run_dir={folder.path}"], tmp_path / "run.log", processes=2) as command:
        command.until(lambda: len(updates(folder)) >= 5)
        workers = command.workers()
        command.process.kill()
        command.process.wait()
    assert set(workers) == {0, 1}
    assert_goes_on_exactly(config, folder, tmp_path, max(updates(folder)))
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers.values())
