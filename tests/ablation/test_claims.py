"""Claims: one runner a cell, one process a cell, and nothing is held by the dead."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from minitrans.ablation.claims import claim, training
from minitrans.ablation.folder import StudyFolder

HOLD = """
import sys, time
from filelock import FileLock
with FileLock(sys.argv[1]):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def folder(tmp_path: Path) -> StudyFolder:
    return StudyFolder(tmp_path)


def holder(path: Path) -> "subprocess.Popen[str]":
    """Another process that holds a lock, and holds it now."""
    path.parent.mkdir(exist_ok=True)
    command = [sys.executable, "-c", HOLD, str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def kill(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.communicate()


def test_a_cell_is_claimed_once_until_it_is_released(folder: StudyFolder) -> None:
    first = claim(folder, "a")
    assert first is not None
    assert claim(folder, "a") is None
    other = claim(folder, "b")
    assert other is not None
    first.release()
    again = claim(folder, "a")
    assert again is not None
    again.release()
    other.release()


def test_the_claim_of_a_runner_that_was_killed_is_taken_over(folder: StudyFolder) -> None:
    runner = holder(folder.claim("a"))
    assert claim(folder, "a") is None
    kill(runner)
    taken = claim(folder, "a")
    assert taken is not None
    taken.release()


def test_a_cell_that_a_dead_runner_left_running_is_not_started_again(folder: StudyFolder) -> None:
    """And the claim on it is not kept: whoever looks next must be able to ask."""
    process = holder(folder.process("a"))
    assert claim(folder, "a") is None
    assert claim(folder, "a") is None
    kill(process)
    taken = claim(folder, "a")
    assert taken is not None
    taken.release()


def test_a_second_process_of_a_cell_waits_for_the_first(folder: StudyFolder) -> None:
    order: list[str] = []

    def second() -> None:
        with training(folder.process("a")):
            order.append("second")

    with training(folder.process("a")):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(timeout=0.2)
        assert thread.is_alive()
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
