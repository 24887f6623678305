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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from minitrans.benchmark.contest import in_own_process
from minitrans.benchmark.machine import describe
from minitrans.benchmark.settings import BenchmarkConfig
from minitrans.benchmark.train import Job, TrainingResult, train_in_windows
from minitrans.build import build_model
from minitrans.config import TrainConfig, check, plain
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
# What a training holds at the least: of a parameter the weight, its gradient and one sum of the optimizer's
# in fp32, of a token what goes from layer to layer in bf16.
BYTES_A_PARAMETER, BYTES_A_STATE = 12, 2


@dataclass(frozen=True)
class Point:
    """One training.

    Attributes
    ----------
    seconds, work
        Wall time, and useful operations, a target token (work is None where it was not counted: it is the
        same at all points).
    attention_seconds
        Of QKᵀ, softmax and weights·V, forward alone, a target token (None: not measured).
    memory
        Bytes a target token of an update, above what the process held before the first (None: not measured).
    """

    axis: str
    value: int
    seconds: float
    work: float | None
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
        work = tuple((point.work or 1.0) / (point.value if axis in DIVIDED else 1) for point in along)
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
    """The points, one after another, axis by axis, once all of them are found to be possible.

    Raises
    ------
    UserError
        Before the first point: no axis, a sentence longer than an update, a value with which there is no
        model or for which this machine has not the memory. Later what else a training would refuse.
    """
    refuse_lengths(config)
    s = config.scaling
    axes = [
        Axis("length", "lengths", s.lengths, _with_length),
        Axis("width", "widths", s.widths, _with_width),
        Axis("vocabulary", "vocab_sizes", s.vocab_sizes, _with_vocabulary),
        Axis("update_tokens", "update_tokens", s.update_tokens, _with_update),
        Axis("threads", "threads", s.threads, _with_threads),
    ]
    for axis in axes:
        for value in axis.values:
            refuse_impossible(axis.change(config, value), f"scaling.{axis.key}", value)
    for axis in axes:
        for value in axis.values:
            yield _point(axis.name, value, axis.change(config, value))
    for value in s.processes:
        yield _distributed_point(value, config)


def refuse_lengths(config: BenchmarkConfig) -> None:
    """Stop where there is nothing to measure, or a sentence that fits no update.

    Raises
    ------
    UserError
        Names the key and what to change.
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


@dataclass(frozen=True)
class Axis:
    """What grows: its name in figures, its key in ``scaling``, and how a value gets into a configuration."""

    name: str
    key: str
    values: Sequence[int]
    change: Callable[[BenchmarkConfig, int], BenchmarkConfig]


def refuse_impossible(config: BenchmarkConfig, key: str, value: int) -> None:
    """Stop where ``config``, made with a value of an axis, is no model or surely too large for this machine.

    Raises
    ------
    UserError
        Names the axis's key, the value and what is wrong with it.
    """
    length, vocab_size = config.scaling.length, config.tokenizer.vocab_size
    try:
        check(config)
        with torch.device("meta"):  # sizes alone, no memory
            model = build_model(config, vocab_size, vocab_size)
    except UserError as error:
        raise UserError(f"{value} cannot stand in {key}: {error}") from error
    limit = min((limit for limit in (model.src_limit, model.tgt_limit) if limit is not None), default=length)
    if length > limit:
        raise UserError(
            f"{value} cannot stand in {key}: a sentence of {length} tokens goes beyond position.max_length="
            f"{limit}; raise that, or use position=sinusoidal"
        )
    parameters = sum(parameter.numel() for parameter in model.parameters())
    layers = config.model.num_encoder_layers + config.model.num_decoder_layers
    states = config.training.update_tokens * config.model.d_model * layers
    needed, memory = BYTES_A_PARAMETER * parameters + BYTES_A_STATE * states, describe().memory_gb
    if needed / 1e9 > memory:
        raise UserError(
            f"{value} cannot stand in {key}: such a training takes more than {needed / 1e9:,.0f} GB, "
            f"of which this machine has {memory:,.0f}; leave it out"
        )


def _with_length(config: BenchmarkConfig, value: int) -> BenchmarkConfig:
    return dataclasses.replace(config, scaling=dataclasses.replace(config.scaling, length=value))


def _with_width(config: BenchmarkConfig, value: int) -> BenchmarkConfig:
    """Heads keep their width, the feed-forward network (or an lstm's state) its proportion."""
    model, share = config.model, value / config.model.d_model
    changed = dataclasses.replace(model, d_model=value)
    if model.architecture == "transformer":
        heads, d_ff = max(1, round(share * model.num_heads)), max(1, round(share * model.d_ff))
        changed = dataclasses.replace(changed, num_heads=heads, d_ff=d_ff)
    if model.d_hidden is not None:
        changed = dataclasses.replace(changed, d_hidden=max(2, round(share * model.d_hidden)))
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
    attention = last.shares.get("attention")
    return Point(axis, value, seconds, work, None if attention is None else attention * seconds, memory)


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
    return Point("processes", processes, 1 / speed, work=None)


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
