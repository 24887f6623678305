"""Where time goes: the wall time of a piece of work, divided among its named parts.

At every moment exactly one part is under way, the innermost one begun. So the parts' times add up to the
whole. What no part claims is "other".
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from types import ModuleType
from typing import Any, NamedTuple

from minitrans.benchmark.machine import synchronize

OTHER = "other"


class Clock:
    """Seconds of each part."""

    def __init__(self) -> None:
        self._open = [OTHER]
        self._last = time.perf_counter()
        self._seconds: dict[str, float] = {}

    def _tick(self) -> None:
        """Give the time since the last tick to the part under way."""
        synchronize()
        now = time.perf_counter()
        self._seconds[self._open[-1]] = self._seconds.get(self._open[-1], 0.0) + now - self._last
        self._last = now

    def reset(self) -> None:
        """Begin to count anew."""
        self._tick()
        self._seconds = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """What happens inside is part ``name``, but for the parts inside of it."""
        self._tick()
        self._open.append(name)
        try:
            yield
        finally:
            self._tick()
            self._open.pop()

    def seconds(self) -> dict[str, float]:
        """Seconds of each part so far."""
        self._tick()
        return dict(self._seconds)

    def shares(self) -> dict[str, float]:
        """Each part's share of the time, the largest first; they sum to 1."""
        seconds = self.seconds()
        total = sum(seconds.values())
        return {name: part / total for name, part in sorted(seconds.items(), key=lambda item: -item[1])}


class Timed(NamedTuple):
    """Calls that belong to one part: those of ``owner.name``."""

    owner: type | ModuleType
    name: str
    part: str


@contextmanager
def timed(clock: Clock, calls: Sequence[Timed]) -> Iterator[None]:
    """Let the given functions and methods tell the clock when they are called, inside of the block."""
    before = [(call, vars(call.owner).get(call.name)) for call in calls]
    for call in calls:
        setattr(call.owner, call.name, _telling(clock, call.part, getattr(call.owner, call.name)))
    try:
        yield
    finally:
        for call, own in reversed(before):
            if own is None:  # it was inherited
                delattr(call.owner, call.name)
            else:
                setattr(call.owner, call.name, own)


def _telling(clock: Clock, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def telling(*args: Any, **kwargs: Any) -> Any:
        with clock.part(part):
            return function(*args, **kwargs)

    return telling
