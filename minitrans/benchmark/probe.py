"""The training command, run to its first update with a look at the clock on the way.

Importing this module imports all that a training does, so that the imports are over when :func:`watch` is
called.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from minitrans.benchmark.parts import OTHER, Clock, Timed, timed
from minitrans.data.stream import Share
from minitrans.training import prepare, session
from minitrans.training.module import TranslationModule

_STEP = TranslationModule.training_step


def watch(train: Callable[[], int], begun: float) -> int:
    """Train until the first update is made, write the seconds of each part as JSON, and end the process.

    The command line holds the time at which the process was asked for (seconds since 1970), the file to
    write, and the words of the training.

    Parameters
    ----------
    train
        The training command.
    begun
        The time at which this process began with the imports.

    Returns
    -------
    The command's exit status where it made no update.
    """
    asked, file, *words = sys.argv[1:]
    before = {"interpreter": begun - float(asked), "imports": time.time() - begun}
    clock = Clock()

    def first_step(self: TranslationModule, batch: Share, batch_idx: int) -> None:
        with clock.part("first update"):
            _STEP(self, batch, batch_idx)
        seconds = clock.seconds()
        seconds["command"] = seconds.pop(OTHER)
        Path(file).write_text(json.dumps({**before, **seconds}), encoding="utf8")
        os._exit(0)

    parts = [
        Timed(session, "prepare", "data"),
        Timed(prepare, "build_model", "model"),
        Timed(prepare, "check_for_leaks", "leak test"),
        Timed(session, "fit", "trainer"),
    ]
    with timed(clock, parts):
        TranslationModule.training_step = first_step  # type: ignore[method-assign]
        sys.argv = ["train", *words]
        return train()
