"""Several processes on this machine that talk over gloo, as a launcher would start them.

They are forked from one process that has the slow imports behind it, so that a world costs a moment.
"""

import datetime
import multiprocessing
import os
import queue
import socket
import traceback
from collections.abc import Callable
from multiprocessing.queues import Queue
from typing import Any

import torch

SECONDS = 120  # after which a world that hangs is ended, and the test fails

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["minitrans.training.session", "tests.training.tiny"])


def in_world(world_size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """``function(*arguments)`` in each process of a world, by rank.

    Raises
    ------
    AssertionError
        A process failed (its traceback is shown) or did not come back in time.
    """
    results: Queue[Any] = _context.Queue()
    port = _free_port()
    processes = [
        _context.Process(target=_member, args=(rank, world_size, port, results, function, arguments))
        for rank in range(world_size)
    ]
    for process in processes:
        process.start()
    found: dict[int, Any] = {}
    try:
        while len(found) < world_size:
            rank, error, result = results.get(timeout=SECONDS)
            assert error is None, f"rank {rank}:\n{error}"
            found[rank] = result
    except queue.Empty:
        raise AssertionError(f"only ranks {sorted(found)} came back in {SECONDS} seconds") from None
    finally:
        for process in processes:
            process.join(timeout=10 if len(found) == world_size else 0.1)
            process.kill()
    return [found[rank] for rank in range(world_size)]


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _member(
    rank: int, world_size: int, port: int, results: Any, function: Callable[..., Any], arguments: tuple[Any]
) -> None:
    place = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0}
    place |= {"WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size}
    launch = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": port}
    os.environ.update({key: str(value) for key, value in (place | launch).items()})
    torch.set_num_threads(1)
    multiprocessing.set_start_method("fork", force=True)  # of loader processes, as where no test runs
    try:
        torch.distributed.init_process_group("gloo", timeout=datetime.timedelta(seconds=SECONDS))
        result = function(*arguments)
        torch.distributed.barrier()
        results.put((rank, None, result))
    except BaseException:
        results.put((rank, traceback.format_exc(), None))
