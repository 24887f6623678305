"""Whatever ends a training, its checkpoints are whole, and resume=auto ends where nothing had happened."""

import os
import random
import re
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from minitrans import checkpoint
from minitrans.config import TrainConfig
from minitrans.run import RunFolder
from tests.distributed.commands import SECONDS, assert_same_end, assert_whole, quick, updates, words
from tests.training.tiny import changed, tiny_experiment

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    """60 updates with dropout, saved every third, validated every tenth."""
    size = {"training.max_updates": 60, "training.save_every": 3, "training.validate_every": 10}
    return changed(tiny_experiment(tmp_path_factory.mktemp("text")), size)


@pytest.fixture(scope="module")
def whole(config: TrainConfig, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """The undisturbed run."""
    folder = RunFolder(tmp_path_factory.mktemp("whole") / "run")
    run_to_the_end(config, folder)
    return folder


def command(config: TrainConfig, folder: RunFolder) -> list[str]:
    return [*words(config), f"run_dir={folder.path}", "resume=auto"]


def run_to_the_end(config: TrainConfig, folder: RunFolder) -> None:
    log = folder.path.with_suffix(".log")
    process = quick(command(config, folder), log)
    process.join(SECONDS)
    assert process.exitcode == 0, log.read_text()


def test_killed_at_random_instants(
    config: TrainConfig, whole: RunFolder, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    """``--kills N``: each time the run is started again with the same words, and killed again.

    The instant is drawn around an update, or anywhere in the time that starting takes.
    """
    draw = random.Random(1)
    folder = RunFolder(tmp_path / "run")
    killed = []
    for _ in range(pytestconfig.getoption("kills")):
        process = quick(command(config, folder), tmp_path / "run.log")
        goal = draw.randint(0, 20) + max(updates(folder), default=0)
        while process.is_alive() and goal and max(updates(folder), default=0) < min(goal, 60):
            time.sleep(0.02)
        time.sleep(draw.uniform(0, 0.1 if goal else 1.0))
        process.kill()
        process.join(SECONDS)
        assert_whole(folder)
        killed.append(max(updates(folder), default=0))
        if killed[-1] == 60:  # all updates are made: what is left is scored, and another run begins
            run_to_the_end(config, folder)
            assert_same_end(folder, whole)
            shutil.rmtree(folder.path)
    print("killed after the updates", killed)
    run_to_the_end(config, folder)
    assert_same_end(folder, whole)


# --------------------------------------------------------------------------------------
# Inside a system call
# --------------------------------------------------------------------------------------


def die_in(owner: Any, name: str, place: str, call: int) -> None:
    """Kill this process before or after the ``call``-th call of a function, or half-way through the file."""
    real, count = getattr(owner, name), 0

    def trap(*arguments: Any, **keywords: Any) -> Any:
        nonlocal count
        count += 1
        if count < call:
            return real(*arguments, **keywords)
        if place != "before":
            real(*arguments, **keywords)
        if place == "half":
            os.truncate(arguments[1], os.path.getsize(arguments[1]) // 2)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, name, trap)


def die_in_named(name: str, place: str, call: int) -> None:
    owner = {"save": torch, "fsync": os, "link": os, "replace": Path, "unlink": Path}[name]
    die_in(owner, name, place, call)


@pytest.mark.parametrize(
    ("name", "place", "call"),
    [
        ("save", "before", 3),
        ("save", "half", 3),
        ("fsync", "before", 20),
        ("fsync", "after", 21),
        ("replace", "before", 12),
        ("replace", "after", 12),
        ("replace", "after", 13),
        ("link", "before", 4),
        ("link", "after", 5),
        ("unlink", "after", 25),
    ],
)
def test_killed_inside_writing(
    name: str, place: str, call: int, config: TrainConfig, whole: RunFolder, tmp_path: Path
) -> None:
    folder = RunFolder(tmp_path / "run")
    process = quick(command(config, folder), tmp_path / "first.log", die_in_named, name, place, call)
    process.join(SECONDS)
    assert process.exitcode == -signal.SIGKILL, (tmp_path / "first.log").read_text()
    assert_whole(folder)
    run_to_the_end(config, folder)
    assert_same_end(folder, whole)


# --------------------------------------------------------------------------------------
# A disk that is full, or not ours
# --------------------------------------------------------------------------------------


def files_stay_small_after(saves: int) -> None:
    """From then on no file can grow beyond 20,000 bytes: less than a checkpoint takes."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    save, count = checkpoint.save, 0

    def counted(content: checkpoint.Checkpoint) -> None:
        nonlocal count
        count += 1
        if count > saves:
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
        save(content)

    checkpoint.save = counted


def test_a_full_disk_is_said_and_leaves_the_last_good_checkpoint(
    config: TrainConfig, whole: RunFolder, tmp_path: Path
) -> None:
    folder = RunFolder(tmp_path / "run")
    process = quick(command(config, folder), tmp_path / "first.log", files_stay_small_after, 4)
    process.join(SECONDS)
    told = (tmp_path / "first.log").read_text()
    assert process.exitcode == 2, told
    # which update makes the fifth checkpoint depends on when validation is best, so on the number of threads
    named = re.search(r"error: \S+/step-(\d+)\.ckpt could not be written:", told)
    assert named, told
    advice = f"the last checkpoint is whole: go on with resume={folder.path}"
    assert told.rstrip().endswith(f"free some space or give another run_dir; {advice}")
    assert "Traceback" not in told
    last, newest = folder.checkpoints / "last.ckpt", folder.steps()[-1]
    assert checkpoint.read(last).progress == checkpoint.read(newest).progress
    assert 0 < checkpoint.read(last).progress.update < int(named[1])
    assert not list(folder.path.rglob(".*.partial"))
    run_to_the_end(config, folder)
    assert_same_end(folder, whole)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1,200 kB in memory."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1200k", "tmpfs", str(place)], capture_output=True
    )
    if mount.returncode:
        pytest.skip("needs the right to mount a file system (root)")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_disk_that_fills_up(
    config: TrainConfig, whole: RunFolder, tmp_path: Path, small_disk: Path
) -> None:
    """No space is left at some moment, in whatever file; then there is some again."""
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"0" * 700_000)
    folder = RunFolder(small_disk / "run")
    process = quick(command(changed(config, {"training.keep_last": 20}), folder), tmp_path / "first.log")
    process.join(SECONDS)
    told = (tmp_path / "first.log").read_text()
    assert process.exitcode == 2, told
    assert "could not be written" in told and "go on with resume=" in told
    assert "Traceback" not in told
    assert_whole(folder)
    kept = folder.steps()[:-1]
    for path in [ballast, *kept]:
        path.unlink()
    run_to_the_end(config, folder)
    assert_same_end(folder, whole)


def test_a_run_folder_that_is_not_ours_to_write_is_refused(
    config: TrainConfig, tmp_path: Path, small_disk: Path
) -> None:
    (small_disk / "run").mkdir()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    process = quick(command(config, RunFolder(small_disk / "run")), tmp_path / "run.log")
    process.join(SECONDS)
    assert process.exitcode == 2
    assert "error: the run folder" in (tmp_path / "run.log").read_text()
