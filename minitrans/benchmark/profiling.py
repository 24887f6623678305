"""A trace of a few steps by torch's profiler, and the operations that took most of the time."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

DEAREST = 10


@dataclass(frozen=True)
class Operation:
    """One kind of operation in a trace."""

    name: str
    share: float  # of the time of all operations; what it calls is not counted
    milliseconds: float  # a step
    calls: float  # a step


@dataclass
class Trace:
    """What a traced piece of work leaves behind."""

    path: Path | None = None
    operations: list[Operation] = field(default_factory=list)


@contextmanager
def traced(folder: Path, name: str, steps: int) -> Iterator[Trace]:
    """Trace what happens inside, ``steps`` steps, into ``folder/name.json``, which Perfetto and Chrome open.

    What is yielded is filled when the block is left.
    """
    on_gpu = torch.cuda.is_available()
    trace = Trace()
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]) as profiler:
        yield trace
    folder.mkdir(parents=True, exist_ok=True)
    trace.path = folder / f"{name}.json"
    profiler.export_chrome_trace(str(trace.path))
    events = profiler.key_averages()
    times = {
        event.key: (event.self_device_time_total if on_gpu else event.self_cpu_time_total, event.count)
        for event in events
    }  # microseconds
    total = sum(microseconds for microseconds, _ in times.values())
    dearest = sorted(times.items(), key=lambda item: -item[1][0])[:DEAREST]
    trace.operations = [
        Operation(key, microseconds / total, microseconds / 1000 / steps, count / steps)
        for key, (microseconds, count) in dearest
    ]
