"""One process of a run on several: ``python -m minitrans.cli.worker RUN_FOLDER PARENT [CHECKPOINT]``.

Started by :mod:`minitrans.training.launch`, never by hand.
"""

import os
import signal
import sys
import threading
import time
from pathlib import Path


def main() -> int:
    """Train this process's share; returns the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until training has its own handler: end without a word
    _end_with(int(sys.argv[2]))
    from torch.distributed.elastic.multiprocessing.errors import get_error_handler

    from minitrans.errors import UserError
    from minitrans.run import RunFolder
    from minitrans.training.launch import work

    try:
        work(RunFolder.of(sys.argv[1]), Path(sys.argv[3]) if len(sys.argv) > 3 else None)
    except UserError as error:
        get_error_handler().record_exception(error)  # the parent tells it, once
        return 2
    return 0


def _end_with(parent: int) -> None:
    """Let this process end when its parent has: nobody else would stop it from writing into the folder."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    sys.exit(main())
