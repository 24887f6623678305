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

    def __init__(self, held: FileLock) -> None:
        self._held = held

    def release(self) -> None:
        """Let others see to the cell."""
        self._held.release()


def claim(folder: StudyFolder, address: str) -> Claim | None:
    """Take a cell, unless another runner has it, or a process that a dead runner left still trains it."""
    own = lock(folder.claim(address))
    try:
        own.acquire(timeout=0)
    except Timeout:
        return None
    if _held(folder.process(address)):
        own.release()
        return None
    return Claim(own)


@contextlib.contextmanager
def training(path: Path) -> Iterator[None]:
    """Hold a cell for the process that trains it; waits while another process does."""
    with lock(path):
        yield


def _held(path: Path) -> bool:
    try:
        with lock(path).acquire(timeout=0):
            return False
    except Timeout:
        return True


def lock(path: Path) -> FileLock:
    """A lock on a file, which is made where it is not there; not yet held."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(path, thread_local=False)
