"""Claims: which runner sees to a cell, and which process trains it.

Two locks for each cell, files that the operating system lets go when their process ends, however it ends.
A runner holds the first from before it submits the cell until it has noted down what came of it. The cell's
own process holds the second while it trains: it outlives a runner that was killed, and nobody else may
train the same cell meanwhile.

File locks work between machines where the shared file system passes them on (NFS version 4, Lustre with
``flock``, GPFS).
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from minitrans.ablation.folder import StudyFolder


class Claim:
    """A runner's hold on one cell."""

    def __init__(self, lock: FileLock) -> None:
        self._lock = lock

    def release(self) -> None:
        """Let others see to the cell."""
        self._lock.release()


def claim(folder: StudyFolder, address: str) -> Claim | None:
    """Take a cell, unless another runner has it, or a process that a dead runner left still trains it."""
    lock = _lock(folder.claim(address))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return None
    if _held(folder.process(address)):
        lock.release()
        return None
    return Claim(lock)


@contextlib.contextmanager
def training(path: Path) -> Iterator[None]:
    """Hold a cell for the process that trains it; waits while another process does."""
    with _lock(path):
        yield


def _held(path: Path) -> bool:
    lock = _lock(path)
    try:
        with lock.acquire(timeout=0):
            return False
    except Timeout:
        return True


def _lock(path: Path) -> FileLock:
    path.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(path, thread_local=False)
