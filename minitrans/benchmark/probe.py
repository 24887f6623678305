"""The training command, run to its first update with a look at the clock on the way.

``python -m minitrans.benchmark.probe STARTED FILE KEY=VALUE...``: STARTED is the time at which the process
was asked for (seconds since 1970), FILE gets the seconds of each part as JSON, the rest is the command line.
"""

import json
import os
import sys
import time
from pathlib import Path


def main() -> int:
    """Train until the first update is made, and end there."""
    started, file, *words = sys.argv[1:]
    interpreter = time.time() - float(started)  # until this module's first line
    before = time.perf_counter()
    from minitrans.cli import train
    from minitrans.data.stream import Share
    from minitrans.training import prepare, session
    from minitrans.training.module import TranslationModule

    imports = time.perf_counter() - before

    from minitrans.benchmark.parts import Clock, Timed, timed

    clock = Clock()
    step = TranslationModule.training_step

    def first_step(self: TranslationModule, batch: Share, batch_idx: int) -> None:
        with clock.part("first update"):
            step(self, batch, batch_idx)
        seconds = clock.seconds()
        seconds["command"] = seconds.pop("other")
        Path(file).write_text(
            json.dumps({"interpreter": interpreter, "imports": imports, **seconds}), encoding="utf8"
        )
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
        return train.main()


if __name__ == "__main__":
    sys.exit(main())
