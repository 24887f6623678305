"""Processes that something else starts: torchrun, srun, and a sweep over runs of several processes."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from minitrans import checkpoint
from minitrans.config import TrainConfig
from minitrans.errors import UserError
from minitrans.processes import Launched, launched
from minitrans.run import RunFolder
from minitrans.training import session
from minitrans.training.launch import needs_workers
from tests.distributed.commands import CHECKOUT, SCRIPT, assert_same_end, finish, updates, words
from tests.training.tiny import assert_equal, changed, tiny_experiment

SECONDS = 300


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    size = {"training.save_every": 4, "trainer.timeout": 60}
    return changed(tiny_experiment(tmp_path_factory.mktemp("text")), size)


# What the environment says


def test_a_process_alone_was_not_launched() -> None:
    assert launched({}) is None
    assert launched({"SLURM_STEP_ID": "0", "SLURM_NTASKS": "1"}) is None
    assert launched({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}) is None  # the batch script itself, not a step


def test_torchrun_tells_the_place() -> None:
    places = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    job = {"TORCHELASTIC_RUN_ID": "runs/7", "TORCHELASTIC_RESTART_COUNT": "2"}
    assert launched({**places, **job}) == Launched(5, 8, 4, "runs_7-2-a-1")


def test_srun_tells_the_place() -> None:
    step = {"SLURM_JOB_ID": "42", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "8", "SLURM_PROCID": "5"}
    assert launched({**step, "SLURM_NTASKS_PER_NODE": "4"}) == Launched(5, 8, 4, "42-0-0")


def test_several_machines_need_a_launcher(config: TrainConfig) -> None:
    with pytest.raises(UserError, match=r"trainer\.num_nodes=2 needs a launcher.*run_dir=FOLDER"):
        needs_workers(changed(config, {"trainer.num_nodes": 2}).trainer)


def test_processes_from_outside_must_meet_in_a_folder(
    config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match="started from outside need run_dir=FOLDER"):
        session.train(config, {})


def test_a_process_does_not_wait_for_the_first_one_for_ever(
    config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", "1")):
        monkeypatch.setenv(name, value)
    impatient = changed(config, {"trainer.timeout": 1, "run_dir": str(tmp_path / "run")})
    with pytest.raises(UserError, match=r"rank 1 waited 1 seconds \(trainer\.timeout\) for rank 0"):
        session.train(impatient, {})


# Real launchers


def torchrun(*options: str) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", *options, str(SCRIPT)]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(CHECKOUT)}


def run(command: list[str], log: Path) -> int:
    with log.open("w") as out:
        return subprocess.run(command, stdout=out, stderr=out, env=environment(), timeout=SECONDS).returncode


@pytest.mark.slow
def test_torchrun_starts_the_processes(config: TrainConfig, tmp_path: Path) -> None:
    """The same run as our own two workers make; then the finished run again, which changes nothing."""
    folder, own = RunFolder(tmp_path / "run"), RunFolder(tmp_path / "own")
    typed = [*words(config), f"run_dir={folder.path}", "resume=auto"]
    command = [*torchrun("--standalone", "--nproc-per-node=2"), *typed]
    assert run(command, tmp_path / "log") == 0, (tmp_path / "log").read_text()
    finish([*words(config), f"run_dir={own.path}"], tmp_path / "own.log", processes=2)
    assert_same_end(folder, own)
    assert (tmp_path / "log").read_text().count("Trained to update 12") == 1
    before = (folder.checkpoints / "last.ckpt").stat().st_mtime_ns
    assert run(command, tmp_path / "again") == 0
    assert "is finished: 12 updates" in (tmp_path / "again").read_text().replace("\n", " ")
    assert (folder.checkpoints / "last.ckpt").stat().st_mtime_ns == before


@pytest.mark.slow
def test_srun_starts_the_processes(config: TrainConfig, tmp_path: Path) -> None:
    """Two tasks with the environment that srun gives them."""
    folder = RunFolder(tmp_path / "run")
    step = {"SLURM_JOB_ID": "42", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "2"}
    step |= {"SLURM_JOB_NAME": "train", "SLURM_NODEID": "0", "SLURM_NODELIST": "127.0.0.1"}
    tasks = []
    for rank in range(2):
        place = {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank), "MASTER_PORT": "29731"}
        command = [sys.executable, str(SCRIPT), *words(config), f"run_dir={folder.path}"]
        told = {**environment(), **step, **place, "MASTER_ADDR": "127.0.0.1"}
        with (tmp_path / f"{rank}.log").open("w") as out:
            tasks.append(subprocess.Popen(command, env=told, stdout=out, stderr=out))
    try:
        assert [task.wait(SECONDS) for task in tasks] == [0, 0], (tmp_path / "0.log").read_text()
    finally:
        for task in tasks:
            task.kill()
    assert updates(folder) == list(range(1, 13))
    assert folder.result.exists()


@pytest.mark.slow
def test_a_sweep_of_runs_with_two_processes_each(config: TrainConfig, tmp_path: Path) -> None:
    """BR-20: one sweep folder with one folder a job, and nothing else anywhere; BR-27 (b) for the second."""
    place = tmp_path / "place"
    place.mkdir()
    short = changed(config, {"training.max_updates": 3})
    typed = ["-m", *[word for word in words(short) if not word.startswith(("seed=", "logger="))], "seed=1,2"]
    typed += ["logger=wandb", "run_dir=sweep"]
    finish(typed, place / "log", processes=2)
    assert sorted(path.name for path in place.iterdir()) == ["log", "sweep"]
    jobs = sorted(path for path in (place / "sweep").iterdir() if path.is_dir())
    assert [job.name for job in jobs] == ["0", "1"]
    for seed, job in enumerate(jobs, start=1):
        assert yaml.safe_load((job / "config.yaml").read_text())["seed"] == seed
        assert checkpoint.read(job / "checkpoints" / "last.ckpt").experiment.seed == seed
        assert updates(RunFolder(job)) == [1, 2, 3]
        assert len(list((job / "wandb").glob("offline-run-*"))) == 1
    one, two = (checkpoint.read(job / "checkpoints" / "last.ckpt").model for job in jobs)
    assert any(bool((one[name] != two[name]).any()) for name in one)


# Two hosts


@pytest.fixture
def hosts() -> Iterator[tuple[str, str]]:
    """Two network namespaces with addresses of their own, joined by a cable."""
    if shutil.which("ip") is None:
        pytest.skip("needs iproute2 (the command ip)")
    names = (f"mt{os.getpid()}a", f"mt{os.getpid()}b")
    steps = [
        *(f"netns add {name}" for name in names),
        f"link add veth0 netns {names[0]} type veth peer name veth0 netns {names[1]}",
        *(f"-n {name} addr add 10.77.0.{i}/24 dev veth0" for i, name in enumerate(names, start=1)),
        *(f"-n {name} link set {device} up" for name in names for device in ("lo", "veth0")),
    ]
    try:
        for step in steps:
            done = subprocess.run(["ip", *step.split()], capture_output=True, text=True)
            if done.returncode:
                pytest.skip(f"this machine makes no network namespaces: {done.stderr.strip()}")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


def on_host(
    place: str, node: int, config: TrainConfig, folder: RunFolder, log: Path
) -> subprocess.Popen[bytes]:
    """One machine's torchrun, with one process; the first machine is where they meet."""
    options = ["--nnodes=2", "--nproc-per-node=1", f"--node-rank={node}"]
    meet = ["--master-addr=10.77.0.1", "--master-port=29500"]
    typed = [*words(config), f"run_dir={folder.path}", "resume=auto"]
    command = ["ip", "netns", "exec", place, *torchrun(*options, *meet), *typed]
    told = {**environment(), "GLOO_SOCKET_IFNAME": "veth0"}
    with log.open("w") as out:
        return subprocess.Popen(command, env=told, stdout=out, stderr=out, start_new_session=True)


@pytest.mark.slow
def test_two_hosts(config: TrainConfig, hosts: tuple[str, str], tmp_path: Path) -> None:
    """A run of two machines is that of one; one that is cut off in the middle ends, and is gone on from."""
    whole, folder = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "run")
    same = changed(config, {"training.accumulate": 2, "training.max_updates": 400})
    finish([*words(same), f"run_dir={whole.path}"], tmp_path / "whole.log")
    long = changed(config, {"training.max_updates": 400, "trainer.timeout": 10})
    first = [on_host(hosts[i], i, long, folder, tmp_path / f"first{i}.log") for i in range(2)]
    try:
        while len(updates(folder)) < 20:
            assert first[0].poll() is None, (tmp_path / "first0.log").read_text()
        subprocess.run(["ip", "-n", hosts[1], "link", "set", "veth0", "down"], check=True)
        assert first[0].wait(SECONDS) != 0
        assert (
            "error: another process of the run (rank 1) was ended or did not answer for 10 seconds"
            in (tmp_path / "first0.log").read_text()
        )
        assert first[1].wait(SECONDS) != 0
    finally:
        for host in first:
            if host.poll() is None:
                os.killpg(host.pid, signal.SIGKILL)
    subprocess.run(["ip", "-n", hosts[1], "link", "set", "veth0", "up"], check=True)
    second = [on_host(hosts[i], i, long, folder, tmp_path / f"second{i}.log") for i in range(2)]
    assert [host.wait(SECONDS) for host in second] == [0, 0], (tmp_path / "second0.log").read_text()
    for part in ("model", "optimizer"):
        run_last, whole_last = (checkpoint.read(f.checkpoints / "last.ckpt") for f in (folder, whole))
        assert_equal(getattr(run_last, part), getattr(whole_last, part))
    assert updates(folder) == list(range(1, 401))
