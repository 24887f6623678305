"""Contestants that work in turn, each time in a new process of its own.

A machine's speed drifts: other programs come and go, a processor warms up. So a ratio of two contestants is
taken within one turn, in which each works for one window, and the median over the turns is told. A process of
its own gives each its own memory to be measured by, and its own allocator. It is a new one every turn, since
a process that waits while the others have theirs may find what it had kept in memory slow to reach again: a
crowded host takes pages that lie idle away.
"""

import dataclasses
import multiprocessing
import os
import signal
import statistics
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Generic, TypeVar

from minitrans.benchmark.profiling import Operation
from minitrans.errors import StoppedEarlyError, UserError
from minitrans.progress import progress_bar
from minitrans.signals import handled_by, interrupt

J = TypeVar("J")
R = TypeVar("R")
_SECONDS_TO_END = 30


@dataclass(frozen=True, kw_only=True)
class MeasuredJob:
    """What one process is to measure.

    Attributes
    ----------
    warm_up
        Seconds of work before the first window.
    windows
        How many it measures.
    looks
        Whether it looks afterwards where the time goes.
    profile
        The folder for a trace, made where it looks (empty: none).
    """

    warm_up: float
    windows: int
    looks: bool
    profile: str = ""


@dataclass(frozen=True, kw_only=True)
class LastWord:
    """What a process tells of itself when it has measured its windows."""

    peak_rss_mb: float
    peak_gpu_mb: float
    threads: int
    shares: dict[str, float]
    operations: list[Operation]
    trace: Path | None


M = TypeVar("M", bound=MeasuredJob)
W = TypeVar("W")
L = TypeVar("L", bound=LastWord)


@dataclass(frozen=True)
class Outcome(Generic[W, L]):
    """What one process measured, or several that measured the same."""

    windows: tuple[W, ...]
    last: L

    def __str__(self) -> str:
        return ", ".join(map(str, self.windows))

    @classmethod
    def whole(cls, outcomes: "Sequence[Outcome[W, L]]") -> "Outcome[W, L]":
        """All windows; the last process's last word, with the highest peaks of all."""
        last = dataclasses.replace(
            outcomes[-1].last,
            peak_rss_mb=max(outcome.last.peak_rss_mb for outcome in outcomes),
            peak_gpu_mb=max(outcome.last.peak_gpu_mb for outcome in outcomes),
        )
        return cls(tuple(window for outcome in outcomes for window in outcome.windows), last)


def measure(jobs: Mapping[str, M], work: Callable[[M], Outcome[W, L]]) -> dict[str, Outcome[W, L]]:
    """Let the contestants work, each in processes of its own.

    One alone measures all its windows in one process. Several take turns, in each of which every one measures
    one window in a new process. They look where the time goes in the last turn alone.
    """
    if len(jobs) == 1:
        turns = [dict(jobs)]
    else:
        count = max(job.windows for job in jobs.values())
        turns = [
            {name: _one_window(job, is_last=turn == count) for name, job in jobs.items()}
            for turn in range(1, count + 1)
        ]
    return {name: Outcome.whole(outcomes) for name, outcomes in in_turn(turns, work).items()}


def _one_window(job: M, is_last: bool) -> M:
    return dataclasses.replace(job, windows=1, looks=job.looks and is_last)


@dataclass(frozen=True)
class Failure:
    """What a process sends in place of a result where the user's words make its work impossible."""

    sentence: str


def in_own_process(name: str, work: Callable[[J], R], job: J) -> R:
    """What ``work(job)`` returns in a new process, which ends with this one.

    Parameters
    ----------
    name
        For what is said if it fails.
    work, job
        A function that can be imported, and what it works on; both are pickled, as is the result.

    Raises
    ------
    UserError
        That of ``work``; a process that ended without a result.
    """
    context = multiprocessing.get_context("spawn")
    channel, theirs = context.Pipe()
    process = context.Process(target=_send, args=(work, theirs, job))
    # A terminal's Ctrl-C reaches the new process too, which would print a traceback while it still imports:
    # so it ignores that, and is asked to end below.
    with handled_by(signal.SIG_IGN, (signal.SIGINT,)):
        process.start()
    theirs.close()  # so that its end is noticed when the process ends
    try:
        message: Any = channel.recv()
        process.join(_SECONDS_TO_END)
    except EOFError:
        process.join(_SECONDS_TO_END)
        raise UserError(
            f"the process that measured {name} ended with status {process.exitcode} and gave "
            "no result; what it printed says why (killed for want of memory, it printed nothing)"
        ) from None
    finally:
        channel.close()
        if process.is_alive():
            process.terminate()
        process.join(_SECONDS_TO_END)
    if isinstance(message, Failure):
        raise UserError(message.sentence)
    return message


def _send(work: Callable[[J], Any], channel: Connection, job: J) -> None:
    try:
        signal.signal(signal.SIGTERM, interrupt)  # rather than leave temporary folders behind
        threading.Thread(target=_end_with_asker, daemon=True).start()
        channel.send(work(job))
    except (KeyboardInterrupt, StoppedEarlyError, BrokenPipeError):  # who asked says so, or is gone
        pass
    except UserError as error:
        channel.send(Failure(str(error)))
    except MemoryError as error:
        channel.send(
            Failure(f"there is not enough memory to measure this ({error}); measure something smaller")
        )


def _end_with_asker() -> None:
    """Ask this process to end once the one that started it has, however that came."""
    asker = multiprocessing.parent_process()
    assert asker is not None
    wait([asker.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)


def in_turn(turns: Sequence[Mapping[str, J]], work: Callable[[J], R]) -> dict[str, list[R]]:
    """Let each contestant of a turn do its work, turn after turn.

    Parameters
    ----------
    turns
        For each turn the contestants' jobs by their names.
    work
        What is done with a job, each time in a new process.

    Returns
    -------
    The results of each contestant, turn by turn. Each is also told on standard error as it comes, so that
    nothing is lost if the rest is not waited for.
    """
    results: dict[str, list[R]] = defaultdict(list)
    with progress_bar(sum(map(len, turns)), label="measuring") as advance:
        for turn in turns:
            for name, job in turn.items():
                results[name].append(in_own_process(name, work, job))
                tell(f"{name}: {results[name][-1]}")
                advance(1)
    return dict(results)


def tell(line: str) -> None:
    """Say on standard error what has been measured, so that it is not lost if the rest is not waited for."""
    print(line, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Spread:
    """A figure measured several times."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The value in the middle."""
        return statistics.median(self.values)

    @property
    def spread(self) -> float:
        """Largest less smallest value, as a share of the median."""
        return (max(self.values) - min(self.values)) / self.median

    def over(self, other: "Spread") -> "Spread":
        """The ratios of both contestants' figures, turn by turn."""
        return Spread(tuple(a / b for a, b in zip(self.values, other.values, strict=True)))

    def __str__(self) -> str:
        return f"{self.median:,.0f} ± {self.spread / 2:.0%}"
