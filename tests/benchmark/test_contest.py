"""Contestants in turn, each time in a new process."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from minitrans.benchmark.contest import LastWord, MeasuredJob, Outcome, Spread, in_own_process, measure
from minitrans.errors import UserError

SECONDS_TO_WAIT = 60.0


@dataclass(frozen=True, kw_only=True)
class Counted(MeasuredJob):
    start: int


def word(peak: float, looked: bool) -> LastWord:
    shares = {"all": 1.0} if looked else {}
    return LastWord(
        peak_rss_mb=peak, peak_gpu_mb=-peak, threads=os.getpid(), shares=shares, operations=[], trace=None
    )


def counting(job: Counted) -> Outcome[int, LastWord]:
    """Windows that are numbers counted on from the first one."""
    return Outcome(tuple(range(job.start, job.start + job.windows)), word(float(job.start), job.looks))


def refusing(sentence: str) -> None:
    raise UserError(sentence)


def starving(size: str) -> None:
    raise MemoryError(f"Unable to allocate {size}")


def leaving(status: int) -> None:
    os._exit(status)


def counted(start: int, looks: bool = True) -> Counted:
    return Counted(start=start, windows=2, warm_up=0.0, looks=looks)


def test_one_alone_measures_all_its_windows_in_one_process() -> None:
    one = measure({"a": counted(5)}, counting)["a"]
    assert (one.windows, one.last.shares) == ((5, 6), {"all": 1.0})
    assert one.last.threads != os.getpid()


@pytest.mark.slow
def test_several_take_turns_each_in_a_new_process(capfd: pytest.CaptureFixture[str]) -> None:
    made = measure({"a": counted(1), "b": counted(100, looks=False)}, counting)
    assert (made["a"].windows, made["b"].windows) == ((1, 1), (100, 100))
    assert (made["a"].last.shares, made["b"].last.shares) == ({"all": 1.0}, {})
    assert capfd.readouterr().err.splitlines() == ["a: 1", "b: 100"] * 2  # told as they come


def test_the_peaks_of_several_processes_are_the_highest() -> None:
    outcomes = [Outcome((number,), word(peak, False)) for number, peak in enumerate((2.0, 9.0, 4.0))]
    whole = Outcome.whole(outcomes)
    assert whole.windows == (0, 1, 2)
    assert (whole.last.peak_rss_mb, whole.last.peak_gpu_mb) == (9.0, -2.0)


def test_what_a_process_refuses_is_said_here() -> None:
    with pytest.raises(UserError, match=r"^no such data$"):
        in_own_process("a", refusing, "no such data")


def test_a_process_without_memory_says_so() -> None:
    with pytest.raises(UserError, match=r"not enough memory .* \(Unable to allocate 9 GiB\); "):
        in_own_process("a", starving, "9 GiB")


def test_a_process_that_is_gone_is_told() -> None:
    with pytest.raises(UserError, match="measured a ended with status 3 and gave no result"):
        in_own_process("a", leaving, 3)


def waiting(folder: str) -> None:
    """Hold a temporary folder until asked to end."""
    with tempfile.TemporaryDirectory(dir=folder):
        Path(folder, "pid").write_text(str(os.getpid()), encoding="utf8")
        time.sleep(SECONDS_TO_WAIT)


def test_a_process_ends_with_the_one_that_asked(tmp_path: Path) -> None:
    program = (
        "from minitrans.benchmark.contest import in_own_process\n"
        "from tests.benchmark.test_contest import waiting\n"
        f"if __name__ == '__main__': in_own_process('a', waiting, {str(tmp_path)!r})\n"
    )
    file = tmp_path / "asker.py"
    file.write_text(program, encoding="utf8")
    paths = os.pathsep.join(filter(None, [str(Path.cwd()), os.environ.get("PYTHONPATH")]))
    asker = subprocess.Popen([sys.executable, str(file)], env={**os.environ, "PYTHONPATH": paths})
    try:
        wait_for((tmp_path / "pid").exists)
        wait_for(lambda: (tmp_path / "pid").read_text(encoding="utf8") != "")
    finally:
        asker.send_signal(signal.SIGKILL)  # which it cannot hand on
        asker.wait()
    wait_for(lambda: len(list(tmp_path.iterdir())) == 2)  # without the temporary folder
    assert {path.name for path in tmp_path.iterdir()} == {"pid", "asker.py"}


def wait_for(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS_TO_WAIT
    while not holds():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def test_median_spread_and_ratio() -> None:
    ours, theirs = Spread((4.0, 9.0, 6.0)), Spread((2.0, 3.0, 6.0))
    assert (ours.median, ours.spread) == (6.0, 5 / 6)
    assert ours.over(theirs).values == (2.0, 3.0, 1.0)
    assert ours.over(theirs).median == 2.0  # not 6 / 3 of the medians
