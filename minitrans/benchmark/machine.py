"""The machine that the figures are of: what it is, how much memory is taken."""

import os
import platform
from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass(frozen=True)
class Machine:
    """What stands in front of every table."""

    processor: str
    processors: int  # that this process may use
    memory_gb: float
    gpus: tuple[str, ...]
    system: str
    python: str
    torch: str
    load: float  # programs that wanted to run, mean of the last minute: of a busy machine, only ratios tell

    def __str__(self) -> str:
        gpus = f" · {' · '.join(self.gpus)}" if self.gpus else ""
        return (
            f"{self.processor} · {self.processors} processors · {self.memory_gb:.0f} GB{gpus} · "
            f"{self.system} · Python {self.python} · torch {self.torch} · load {self.load:.1f}"
        )


def describe() -> Machine:
    """This machine, as it is now."""
    gpus = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    return Machine(
        processor=_processor(),
        processors=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_gb=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9,
        gpus=tuple(torch.cuda.get_device_name(number) for number in gpus),
        system=platform.system(),
        python=platform.python_version(),
        torch=torch.__version__,
        load=os.getloadavg()[0],
    )


def _processor() -> str:
    for line in _lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _lines(path: str) -> list[str]:
    """The lines of a file of the system's; none where the system is another."""
    try:
        return Path(path).read_text(encoding="utf8").splitlines()
    except OSError:
        return []


def peak_memory_mb() -> float:
    """The most memory that this process has held, in MB of 10⁶ bytes.

    Of the process since it was started as the program that it is: the count of ``getrusage`` would begin
    with what its parent held when it made it.
    """
    for line in _lines("/proc/self/status"):
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    import resource

    unit = 1 if platform.system() == "Darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def peak_gpu_memory_mb() -> float:
    """The most memory of the GPU that tensors of this process have taken, in MB; 0 without one."""
    return torch.cuda.max_memory_allocated() / 1e6 if torch.cuda.is_available() else 0.0


def synchronize() -> None:
    """Wait for the GPU, where there is one, so that the clock can be read."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
