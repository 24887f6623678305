"""Where curves go: ``metrics.csv`` always, and the logger of the user's choice."""

import csv
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

from lightning.pytorch.loggers import Logger, TensorBoardLogger, WandbLogger

from minitrans.checkpoint import write_whole
from minitrans.config import LoggerConfig
from minitrans.errors import UserError
from minitrans.run import RunFolder

COLUMNS = (
    "update",
    "epoch",
    "split",
    "loss",
    "nll",
    "perplexity",
    "bleu",
    "lr",
    "grad_norm",
    "target_tokens_per_s",
    "padding_fraction",
    "mfu",
    "seconds",
)
Row = Mapping[str, float | int | str]


class MetricsFile:
    """``metrics.csv``: a row of training every ``log_every`` updates, a row of validation at each validation.

    Rows are flushed as they come, so that the file is right up to the moment of a crash; on going on from an
    earlier checkpoint the rows after it are cut away, so that each update stands there once.

    Parameters
    ----------
    path
        The file; made if it does not exist.
    keep_until
        The update that the run goes on from: later rows are removed.
    columns
        Their names; those of ``metrics.csv`` unless another table is meant.
    """

    def __init__(self, path: Path, keep_until: int = 0, columns: Sequence[str] = COLUMNS):
        rows = [row for row in read_rows(path, columns) if int(row["update"]) <= keep_until]
        write_whole(path, lambda partial: _write(partial, rows, columns))
        self._file: TextIO = path.open("a", encoding="utf8", newline="")
        self._writer = csv.DictWriter(self._file, columns, lineterminator="\n")

    def write(self, row: Row) -> None:
        """Append one row; columns that it lacks stay empty.

        Raises
        ------
        UserError
            The disk is full or refuses.
        """
        try:
            self._writer.writerow({name: _shown(value) for name, value in row.items()})
            self._file.flush()
        except OSError as error:
            raise UserError(
                f"{self._file.name} could not be written: {error.strerror}; free some space"
            ) from error

    def keep(self) -> None:
        """See that the disk holds all rows: none may be missing before a checkpoint that comes later."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_rows(path: Path, columns: Sequence[str] | None = None) -> list[dict[str, str]]:
    """The whole rows of a table like ``metrics.csv``; none where there is no file.

    Raises
    ------
    UserError
        Its first line names no or other columns than ``columns`` (None: any), or a row is not of as many, or
        not of a numbered update.
    """
    if not path.exists():
        return []
    remedy = "; mend it, or move it away to go on without its rows"
    try:
        with path.open(encoding="utf8", newline="") as file:
            # a crash can cut the last row short, in the middle of a number too: then it has no line end
            reader = csv.DictReader(line for line in file if line.endswith("\n"))
            rows = list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} is damaged: {error}{remedy}") from error
    named = set(reader.fieldnames or ["update"])
    if "update" not in named or (columns is not None and not named <= set(columns)):
        raise UserError(f"{path} is damaged: its first line does not name the columns{remedy}")
    for number, row in enumerate(rows, start=2):
        whole = None not in row and None not in row.values()
        if not whole or not row["update"].isdecimal():
            raise UserError(f"{path}, line {number} is damaged: {','.join(map(str, row.values()))}{remedy}")
    return rows


def _write(path: Path, rows: Sequence[Mapping[str, str]], columns: Sequence[str]) -> None:
    with path.open("w", encoding="utf8", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _shown(value: float | int | str) -> float | int | str:
    return float(f"{value:.7g}") if isinstance(value, float) and math.isfinite(value) else value


def make_loggers(config: LoggerConfig, folder: RunFolder, run_config: Mapping[str, object]) -> list[Logger]:
    """The loggers besides ``metrics.csv``: none, TensorBoard or Weights & Biases, inside the run folder."""
    if config.kind == "tensorboard":
        return [TensorBoardLogger(save_dir=folder.path, name="tensorboard", version="")]
    if config.kind == "wandb":
        logger: Logger = WandbLogger(
            name=folder.path.name,
            save_dir=folder.path,
            project=config.project,
            group=config.group or None,
            offline=config.offline,
            log_model=False,
            config=dict(run_config),
        )
        return [logger]
    return []


def close_loggers(loggers: Sequence[Logger]) -> None:
    """Finish what the loggers write; without it the next run of this process would go into the same one."""
    for logger in loggers:
        if isinstance(logger, WandbLogger):
            logger.experiment.finish()


def log_row(loggers: list[Logger], row: Row) -> None:
    """Hand one row's numbers to every logger, under ``train/…`` or ``valid/…``, at its update."""
    split = row["split"]
    numbers = {
        f"{split}/{name}": float(value)
        for name, value in row.items()
        if name not in ("update", "split") and isinstance(value, (int, float))
    }
    for logger in loggers:
        logger.log_metrics(numbers, step=int(row["update"]))
