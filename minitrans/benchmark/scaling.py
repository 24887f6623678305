"""``benchmark.py scaling``: how time and memory a token grow with the sentences, the model and the machine.

Each point is a training of the real kind on generated text, in a process of its own. Along an axis everything
else stays as configured. An exponent is the slope of a line through the logarithms; beside it stands that of
the useful operations, which is what time would follow if every operation took as long.

Letters: n tokens of a sentence, N vocabulary.
"""

import csv
import dataclasses
import itertools
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from minitrans.benchmark.contest import in_own_process
from minitrans.benchmark.settings import BenchmarkConfig
from minitrans.benchmark.train import Job, TrainingResult, train_in_windows
from minitrans.config import TrainConfig, plain
from minitrans.data.tokenizer import SPECIAL_NAMES
from minitrans.errors import UserError
from minitrans.run import RunFolder, open_or_create, write_config
from minitrans.training.launch import run_workers
from minitrans.training.prepare import prepare

LETTERS = "abcdefghijklmnopqrstuvwxyz"
UPDATES_OF_TEXT = 4  # the generated corpus holds about so many updates
MEMORY = "bytes a token"
DIVIDED = ("threads", "processes")  # axes along which the work is shared
ROW_UPDATES, UNTIMED_ROWS = 4, 2  # of the table that a distributed training writes


@dataclass(frozen=True)
class Point:
    """One training.

    Attributes
    ----------
    seconds, work
        Wall time, and useful operations (or 1, where all points have as many), a target token.
    attention_seconds
        Of QKᵀ, softmax and weights·V, forward alone, a target token (None: not measured).
    memory
        Bytes a target token of an update, above what the process held before the first (None: not measured).
    """

    axis: str
    value: int
    seconds: float
    work: float
    attention_seconds: float | None = None
    memory: float | None = None

    def row(self) -> dict[str, Any]:
        """The JSON line."""
        return {"benchmark": "scaling", **dataclasses.asdict(self)}


@dataclass(frozen=True)
class Curve:
    """A figure along an axis, and what it was expected to be but for a factor."""

    axis: str
    name: str
    x: tuple[int, ...]
    y: tuple[float, ...]
    predicted: tuple[float, ...] | None

    @property
    def exponent(self) -> float | None:
        """The slope of log y over log x; None of a single point."""
        return slope(self.x, self.y)

    @property
    def predicted_exponent(self) -> float | None:
        """That of the prediction."""
        return None if self.predicted is None else slope(self.x, self.predicted)


def slope(x: Sequence[float], y: Sequence[float]) -> float | None:
    """The exponent a of y = c·xᵃ that fits best, by least squares of the logarithms."""
    if len(set(x)) < 2 or min(y) <= 0:
        return None
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def curves(points: Sequence[Point]) -> list[Curve]:
    """The curves of each axis: time and memory a token; along the length also attention and the rest."""
    found = []
    for axis, group in itertools.groupby(points, key=lambda point: point.axis):
        along = list(group)
        x = tuple(point.value for point in along)
        work = tuple(point.work / (point.value if axis in DIVIDED else 1) for point in along)
        found.append(Curve(axis, "seconds a token", x, tuple(point.seconds for point in along), work))
        if all(point.memory is not None for point in along):
            found.append(Curve(axis, MEMORY, x, tuple(p.memory or 0.0 for p in along), None))
        if axis == "length" and all(point.attention_seconds is not None for point in along):
            attention = tuple(p.value * (p.attention_seconds or 0.0) for p in along)
            rest = tuple(p.value * (p.seconds - (p.attention_seconds or 0.0)) for p in along)
            found.append(Curve(axis, "attention, s a sentence", x, attention, tuple(n**2 for n in x)))
            found.append(Curve(axis, "the rest, s a sentence", x, rest, tuple(float(n) for n in x)))
    return found


def measure_scaling(config: BenchmarkConfig) -> Iterator[Point]:
    """The points, one after another, axis by axis.

    Raises
    ------
    UserError
        No axis, a sentence longer than an update, or what a training with these words would refuse.
    """
    s = config.scaling
    if not any([s.lengths, s.widths, s.vocab_sizes, s.update_tokens, s.threads, s.processes]):
        raise UserError("every axis of scaling is empty, so that there is nothing to measure; fill one")
    longest, smallest = max([s.length, *s.lengths]), min([config.training.update_tokens, *s.update_tokens])
    if s.length > smallest:
        raise UserError(
            f"scaling.length={s.length} does not fit an update of {smallest} tokens; "
            "leave that out of scaling.update_tokens, or take shorter sentences"
        )
    if longest > config.training.update_tokens:
        raise UserError(
            f"a sentence of {longest} tokens does not fit training.update_tokens="
            f"{config.training.update_tokens}; raise that, or leave the length out of scaling.lengths"
        )
    axes: Mapping[str, tuple[list[int], Callable[[BenchmarkConfig, int], BenchmarkConfig]]] = {
        "length": (s.lengths, _with_length),
        "width": (s.widths, _with_width),
        "vocabulary": (s.vocab_sizes, _with_vocabulary),
        "update_tokens": (s.update_tokens, _with_update),
        "threads": (s.threads, _with_threads),
    }
    for axis, (values, change) in axes.items():
        for value in values:
            yield _point(axis, value, change(config, value))
    for value in s.processes:
        yield _distributed_point(value, config)


def _with_length(config: BenchmarkConfig, value: int) -> BenchmarkConfig:
    return dataclasses.replace(config, scaling=dataclasses.replace(config.scaling, length=value))


def _with_width(config: BenchmarkConfig, value: int) -> BenchmarkConfig:
    """Heads keep their width, the feed-forward network its proportion."""
    model = config.model
    heads = max(1, round(value * model.num_heads / model.d_model))
    d_ff = max(1, round(value * model.d_ff / model.d_model))
    changed = dataclasses.replace(model, d_model=value, d_ff=d_ff, num_heads=heads)
    return dataclasses.replace(config, model=changed)


def _with_vocabulary(config: BenchmarkConfig, value: int) -> BenchmarkConfig:
    return dataclasses.replace(config, tokenizer=dataclasses.replace(config.tokenizer, vocab_size=value))


def _with_update(config: BenchmarkConfig, value: int) -> BenchmarkConfig:
    return dataclasses.replace(config, training=dataclasses.replace(config.training, update_tokens=value))


def _with_threads(config: BenchmarkConfig, value: int) -> BenchmarkConfig:
    return dataclasses.replace(config, threads=value)


def _point(axis: str, value: int, config: BenchmarkConfig) -> Point:
    with tempfile.TemporaryDirectory(prefix="minitrans-benchmark-") as folder:
        run = on_generated_text(config, Path(folder))
        name, job = f"{axis} {value}", Job.of(run, config, looks=True)
        made = in_own_process(name, train_in_windows, job)
    result = TrainingResult(name, job.dtype, made.windows, made.last)
    seconds = 1 / result.target_tokens_per_s.median
    counts, last = result.counts, result.last
    work = sum(window.useful_flops for window in result.windows) / counts.tgt_tokens
    memory = (last.peak_rss_mb - last.base_rss_mb) * 1e6 * counts.updates / counts.tgt_tokens
    return Point(axis, value, seconds, work, last.shares.get("attention", 0.0) * seconds, memory)


def on_generated_text(config: BenchmarkConfig, folder: Path) -> TrainConfig:
    """The training run on sentences of ``scaling.length`` tokens over ``tokenizer.vocab_size`` entries."""
    length, vocab_size = config.scaling.length, config.tokenizer.vocab_size
    update_tokens = config.training.update_tokens
    lines = max(
        UPDATES_OF_TEXT * math.ceil(update_tokens / length),
        math.ceil((vocab_size - len(SPECIAL_NAMES)) / (length - 1)),
    )
    text = folder / "text.txt"
    few = folder / "few.txt"
    text.write_text("".join(generated_lines(lines, length - 1, vocab_size)), encoding="utf8")
    few.write_text("".join(generated_lines(2, length - 1, vocab_size)), encoding="utf8")
    run = config.training_run()
    return dataclasses.replace(
        run,
        data={
            "kind": "pairs",
            "src": "src",
            "tgt": "tgt",
            "train": [str(text), str(text)],
            "valid": [str(few), str(few)],
        },
        tokenizer=dataclasses.replace(run.tokenizer, kind="word", joint=True, lowercase=False),
        training=dataclasses.replace(run.training, update_sentences=None, chunk_tokens=update_tokens),
    )


def generated_lines(lines: int, words: int, vocab_size: int) -> Iterator[str]:
    """Lines of so many words each; all words in turn, as many as a vocabulary has besides special entries."""
    different = vocab_size - len(SPECIAL_NAMES)
    for line in range(lines):
        numbers = (number % different for number in range(line * words, (line + 1) * words))
        yield " ".join(map(_spelled, numbers)) + "\n"


def _spelled(number: int) -> str:
    """A word of letters for a number, another one for each."""
    letters = LETTERS[number % len(LETTERS)]
    while number := number // len(LETTERS):
        letters = LETTERS[number % len(LETTERS)] + letters
    return letters


# --------------------------------------------------------------------------------------
# Several processes: a real distributed training, read off the table that it writes
# --------------------------------------------------------------------------------------


def _distributed_point(processes: int, config: BenchmarkConfig) -> Point:
    with tempfile.TemporaryDirectory(prefix="minitrans-benchmark-") as folder:
        run = _short(on_generated_text(config, Path(folder)), processes, config.windows)
        speed = in_own_process(f"{processes} processes", _distribute, (run, folder))
    return Point("processes", processes, 1 / speed, work=1.0)


def _short(run: TrainConfig, processes: int, rows: int) -> TrainConfig:
    """A training of some rows of its table, in so many processes of one thread."""
    training = dataclasses.replace(
        run.training, max_updates=ROW_UPDATES * (UNTIMED_ROWS + rows), log_every=ROW_UPDATES
    )
    return dataclasses.replace(
        run, training=training, trainer=dataclasses.replace(run.trainer, devices=processes), threads=1
    )


def _distribute(job: tuple[TrainConfig, str]) -> float:
    run, parent = job
    os.environ["OMP_NUM_THREADS"] = str(run.threads)  # of each worker
    prepare(run)  # so that the workers find the cache filled
    folder = open_or_create(RunFolder.of(Path(parent) / "run"))
    write_config(folder, plain(run))
    run_workers(run.trainer, folder, None)
    if _last_update(folder.metrics) != run.training.max_updates:
        raise KeyboardInterrupt  # asked to end, the workers have ended early: half of a table is no figure
    return median_speed(folder.metrics)


def _last_update(metrics: Path) -> int | None:
    """The last update that a run's table tells of; None without one."""
    return max((int(row["update"]) for row in _rows(metrics)), default=None)


def median_speed(metrics: Path) -> float:
    """Target tokens a second of the rows of a run's table, the first ones left out."""
    rows = [row for row in _rows(metrics) if row["split"] == "train"]
    return float(np.median([float(row["target_tokens_per_s"]) for row in rows[UNTIMED_ROWS:]]))


def _rows(metrics: Path) -> list[dict[str, str]]:
    """The rows of a run's table; none before it is written."""
    if not metrics.exists():
        return []
    with metrics.open(encoding="utf8", newline="") as file:
        return list(csv.DictReader(file))
