"""Real ``scripts/train.py`` processes: started, told, killed, looked at."""

import csv
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
import yaml

from minitrans import checkpoint
from minitrans.config import TrainConfig, plain
from minitrans.run import RunFolder
from tests.training.tiny import assert_equal

CHECKOUT = Path(__file__).resolve().parents[2]
SCRIPT = CHECKOUT / "scripts" / "train.py"
SECONDS = 300

_context = multiprocessing.get_context("forkserver")


def words(config: TrainConfig) -> list[str]:
    """The command line of a tiny configuration."""
    typed = ["data=pairs", "model=tiny", "logger=csv", "trainer=cpu"]
    typed += [f"{family}={plain(config)[family]['kind']}" for family in ("optimizer", "schedule")]
    for section in ("seed", "data", "model", "tokenizer", "training", "optimizer", "schedule", "trainer"):
        value = plain(config)[section]
        for name, item in value.items() if isinstance(value, dict) else [("", value)]:
            if not isinstance(item, dict) and name != "kind" and item is not None:
                typed.append(f"{section}{'.' if name else ''}{name}={_typed(item)}")
    return [*typed, f"tokenizer.kind={config.tokenizer.kind}", "search.max_length=10", "threads=1"]


def _typed(item: object) -> str:
    text = yaml.safe_dump(item, default_flow_style=True, width=10**6).removesuffix("...\n").strip()
    return text.replace(", ", ",")


class Running:
    """A training command, in a process (and process group) of its own."""

    def __init__(self, typed: list[str], log: Path, *, processes: int = 1) -> None:
        self.log = log
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(CHECKOUT)}
        with log.open("w") as out:
            self.process = subprocess.Popen(
                [sys.executable, str(SCRIPT), *typed, f"trainer.devices={processes}"],
                stdout=out, stderr=out, env=environment, cwd=log.parent, start_new_session=True,
            )  # fmt: skip

    def wait(self, seconds: float = SECONDS) -> int:
        """Its exit status."""
        return self.process.wait(seconds)

    def told(self) -> str:
        """All that it has printed."""
        return self.log.read_text()

    def until(self, condition: Callable[[], bool], seconds: float = SECONDS) -> None:
        """Wait while it runs."""
        give_up = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, self.told()
            assert time.monotonic() < give_up, f"waited {seconds} seconds in vain: {self.told()}"
            time.sleep(0.05)

    def workers(self) -> dict[int, int]:
        """The process of each rank."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        ranks = {}
        for child in children:
            with suppress(OSError):
                for setting in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
                    name, _, value = setting.partition(b"=")
                    if name == b"RANK":
                        ranks[int(value)] = int(child)
        return ranks


@contextmanager
def running(typed: list[str], log: Path, *, processes: int = 1) -> Iterator[Running]:
    """A training command that is not left behind when the test fails."""
    command = Running(typed, log, processes=processes)
    workers: dict[int, int] = {}
    try:
        yield command
    finally:
        if command.process.poll() is None:
            workers = command.workers()
            command.process.kill()
            command.process.wait()
        for worker in workers.values():
            with suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)


def finish(typed: list[str], log: Path, *, processes: int = 1) -> str:
    """Run a command to its end; returns what it printed."""
    with running(typed, log, processes=processes) as command:
        assert command.wait() == 0, command.told()
        return command.told()


# Quick ones: the same script in a fork of a process that has the slow imports behind it


def quick(typed: list[str], log: Path, before: Callable[..., None] | None = None, *given: object):  # type: ignore[no-untyped-def]
    """Start the script in a forked process; ``before(*given)`` runs in it first, to lay a trap."""
    process = _context.Process(target=_run_script, args=(typed, log, before, given))
    process.start()
    return process


def _run_script(
    typed: list[str], log: Path, before: Callable[..., None] | None, given: tuple[object, ...]
) -> None:
    os.setsid()
    multiprocessing.set_start_method("fork", force=True)
    torch.set_num_threads(1)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(out, 2)
    sys.argv = [str(SCRIPT), *typed]
    if before is not None:
        before(*given)
    runpy.run_path(str(SCRIPT), run_name="__main__")


# What they leave behind


def updates(folder: RunFolder) -> list[int]:
    """The updates that ``metrics.csv`` has rows of training for."""
    if not folder.metrics.exists():
        return []
    with folder.metrics.open(newline="") as file:
        rows = csv.DictReader(line for line in file if line.endswith("\n"))
        return [int(row["update"]) for row in rows if row["split"] == "train"]


def assert_whole(folder: RunFolder) -> None:
    """Every file that is named a checkpoint is one."""
    for path in folder.checkpoints.glob("*.ckpt"):
        if path.exists():
            checkpoint.read(path)


def assert_same_end(run: RunFolder, whole: RunFolder) -> None:
    """Weights, optimizer and scores to the last bit, each update once, and nothing half-written."""
    one, other = (checkpoint.read(folder.checkpoints / "last.ckpt") for folder in (run, whole))
    assert_equal(one.model, other.model)
    assert_equal(one.optimizer, other.optimizer)
    assert updates(run) == updates(whole) == list(range(1, other.progress.update + 1))
    assert scores(run) == scores(whole)
    assert not [path for path in run.path.rglob(".*") if path.name.endswith(".partial")]


def scores(folder: RunFolder) -> list[str]:
    """The lines of ``result.json`` that do not tell of time."""
    lines = folder.result.read_text().splitlines()
    return [line for line in lines if '"seconds"' not in line and "_per_s" not in line]
