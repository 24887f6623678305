"""How long a study will take: from the cells that are done, else from a few updates made now."""

import csv
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean

from minitrans.ablation.cells import Cell
from minitrans.ablation.folder import DONE, State, StudyFolder
from minitrans.config import SearchConfig, TrainConfig
from minitrans.errors import StoppedEarlyError
from minitrans.run import RunFolder, open_or_create

WARM_UP_UPDATES = 6
_NOT_COUNTED = 2  # the first updates are slower than the others, and the last row holds a validation


@dataclass(frozen=True)
class Pace:
    """Seconds of one update, and where the figure comes from."""

    seconds: Mapping[str, float]  # variant -> seconds; "" for the others
    source: str

    def of(self, variant: str) -> float:
        """Seconds of an update of one variant."""
        return self.seconds.get(variant, self.seconds[""])


def pace_of_done(folder: StudyFolder, cells: Sequence[Cell], states: Mapping[str, State]) -> Pace | None:
    """From the cells that are done: each variant's own pace, the mean for others. None: no cell is done."""
    paces: dict[str, list[float]] = {}
    for cell in cells:
        if states[cell.address].name == DONE:
            result = folder.result(cell)
            paces.setdefault(cell.variant, []).append(result["seconds"] / max(1, result["updates"]))
    if not paces:
        return None
    seconds = {variant: mean(values) for variant, values in paces.items()}
    count = sum(len(values) for values in paces.values())
    source = f"from {count} cells that are done" if count > 1 else "from a cell that is done"
    return Pace({**seconds, "": mean(seconds.values())}, source)


def warm_up(config: TrainConfig) -> Pace:
    """Make a few updates now, in a folder that is removed afterwards.

    Raises
    ------
    UserError
        Whatever keeps the experiment from starting, or its updates from being made.
    StoppedEarlyError
        Somebody asked to stop meanwhile.
    """
    from minitrans.training.fit import fit
    from minitrans.training.prepare import prepare

    short = replace(
        config,
        training=replace(
            config.training,
            max_updates=WARM_UP_UPDATES,
            max_epochs=None,
            validate_every=WARM_UP_UPDATES,
            validate_sentences=1,
            save_every=WARM_UP_UPDATES,
            log_every=1,
            average_last=0,
            leak_test=False,
        ),
        search=SearchConfig(beam_size=1, max_length=1),
        trainer=replace(config.trainer, progress_bar=False, devices=1),
        logger=replace(config.logger, kind="csv"),
    )
    with tempfile.TemporaryDirectory(prefix="minitrans-warm-up-") as path:
        folder = open_or_create(RunFolder.of(path))
        fit(short, folder, prepare(short), None)
        clock = _clock(folder.metrics)
    if len(clock) < WARM_UP_UPDATES:
        raise StoppedEarlyError(
            "stopped while the pace was measured, before any cell; go on with the same line"
        )
    counted = clock[_NOT_COUNTED:-1]
    seconds = (counted[-1] - counted[0]) / max(1, len(counted) - 1)
    return Pace({"": seconds}, "measured now, of one variant")


def _clock(metrics: Path) -> list[float]:
    """When each update was made, in seconds."""
    if not metrics.exists():  # not one was
        return []
    with metrics.open(encoding="utf8", newline="") as file:
        return [float(row["seconds"]) for row in csv.DictReader(file) if row["split"] == "train"]


def seconds_left(pace: Pace, cells: Sequence[Cell], states: Mapping[str, State], jobs: int) -> float:
    """Seconds until all cells have ended, ``jobs`` at once; validation and scoring are not counted."""
    left = {cell.address: cell for cell in cells if not states[cell.address].ended}
    updates = [
        (cell.variant, cell.config.training.max_updates) for cell in left.values() if cell.config is not None
    ]
    return sum(pace.of(variant) * number for variant, number in updates) / max(1, min(jobs, len(updates)))


def in_words(seconds: float) -> str:
    """``"40 seconds"``, ``"12 minutes"``, ``"3.5 hours"``."""
    if seconds < 90:
        return f"{seconds:.0f} second{'s' * (round(seconds) != 1)}"
    return f"{seconds / 60:.0f} minutes" if seconds < 90 * 60 else f"{seconds / 3600:.1f} hours"
