"""Contestants that work in turn, each in a process of its own.

A machine's speed drifts: other programs come and go, a processor warms up. So a ratio of two contestants is
taken within one turn, in which each works for one window, and the median over the turns is told. A process of
its own gives each its own memory to be measured by, and its own allocator.
"""

import multiprocessing
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Generic, TypeVar

from minitrans.errors import UserError

J = TypeVar("J")
_SECONDS_TO_END = 30


@dataclass(frozen=True)
class Failure:
    """What a contestant sends in place of a result where the user's words make its work impossible."""

    sentence: str


class Contestant(Generic[J]):
    """A process that does a window of work whenever it is asked.

    Parameters
    ----------
    name
        For the table.
    work
        Run in the process with its end of the connection and ``job``. It sends one message when it is ready,
        one result for each window asked for, and one last message when it receives None.
    job
        What it works on; it is pickled.
    """

    def __init__(self, name: str, work: Callable[[Connection, J], None], job: J) -> None:
        self.name = name
        context = multiprocessing.get_context("spawn")
        self._channel, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(work, theirs, job), daemon=False)
        self._process.start()
        theirs.close()  # so that its end is noticed when the process ends

    def ready(self) -> Any:
        """Wait until it has warmed up; what it says of itself."""
        return self._receive()

    def window(self, order: Any) -> Any:
        """Let it work for one window."""
        self._channel.send(order)
        return self._receive()

    def finish(self) -> Any:
        """Let it end; its last word."""
        self._channel.send(None)
        last = self._receive()
        self._process.join(_SECONDS_TO_END)
        return last

    def close(self) -> None:
        """See that the process is gone."""
        self._channel.close()
        if self._process.is_alive():
            self._process.terminate()
        self._process.join(_SECONDS_TO_END)

    def _receive(self) -> Any:
        try:
            message = self._channel.recv()
        except EOFError:
            self._process.join(_SECONDS_TO_END)
            raise UserError(
                f"the process that measured {self.name} ended with status {self._process.exitcode} and gave "
                "no result; what it printed says why (killed for want of memory, it printed nothing)"
            ) from None
        if isinstance(message, Failure):
            raise UserError(message.sentence)
        return message


def _work(work: Callable[[Connection, J], None], channel: Connection, job: J) -> None:
    try:
        work(channel, job)
    except UserError as error:
        channel.send(Failure(str(error)))
    except (KeyboardInterrupt, EOFError, BrokenPipeError):  # the process that asked says so, or is gone
        pass


@contextmanager
def contestants(made: Iterator[Contestant[Any]]) -> Iterator[list[Contestant[Any]]]:
    """Start contestants one after another, each once the one before is ready, and see that all end."""
    started: list[Contestant[Any]] = []
    try:
        for contestant in made:
            started.append(contestant)
            contestant.ready()
        yield started
    finally:
        for contestant in started:
            contestant.close()


def in_turn(started: Sequence[Contestant[Any]], order: Any, windows: int) -> dict[str, list[Any]]:
    """Let each work for a window, and so on in turn; the results of each contestant by its name."""
    results: dict[str, list[Any]] = {contestant.name: [] for contestant in started}
    for _ in range(windows):
        for contestant in started:
            results[contestant.name].append(contestant.window(order))
    return results


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
