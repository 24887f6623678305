"""``benchmark.py train``: target tokens a second of the real training, beside others on the same batches.

What is timed is :func:`minitrans.training.fit.fit` itself, with everything that it does between updates but
validating and saving. It is watched through the one thing of ours that it asks once an update, the schedule.
"""

import dataclasses
import itertools
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from minitrans.analysis.flops import Cost, cost_of
from minitrans.benchmark.contest import LastWord, MeasuredJob, Outcome, Spread, measure
from minitrans.benchmark.counts import Counts
from minitrans.benchmark.machine import peak_gpu_memory_mb, peak_memory_mb, synchronize
from minitrans.benchmark.parts import Clock, Timed, timed
from minitrans.benchmark.peers.loop import rival_updates
from minitrans.benchmark.peers.training import Rival, rivals
from minitrans.benchmark.profiling import Operation, traced
from minitrans.benchmark.settings import BenchmarkConfig
from minitrans.config import TrainConfig
from minitrans.data import stream
from minitrans.data.plan import split
from minitrans.data.stream import RunPlan
from minitrans.errors import UserError
from minitrans.model.attention import MultiHeadAttention, ScaledDotProductAttention
from minitrans.model.embeddings import TokenEmbedding
from minitrans.model.encoder_decoder import EncoderDecoder
from minitrans.model.feedforward import FeedForward, GatedFeedForward
from minitrans.model.layers import Residual
from minitrans.model.positions import POSITIONS
from minitrans.run import RunFolder, open_or_create
from minitrans.training import precision
from minitrans.training.fit import fit
from minitrans.training.module import TranslationModule
from minitrans.training.prepare import Material, prepare
from minitrans.training.schedule import Schedule
from minitrans.training.utilisation import peak_flops

OURS = "minitrans"
SPLIT_UPDATES = 10
TRACED_UPDATES = 5
PEAK_SECONDS = 0.5
TORCH_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp64": torch.float64}
FEWEST_WARM_UP_UPDATES = 3


PARTS = [
    Timed(stream, "split", "data"),
    Timed(stream, "collate", "data"),
    Timed(TokenEmbedding, "forward", "embedding"),
    *(Timed(kind, "add", "embedding") for kind in POSITIONS.values() if "add" in vars(kind)),
    Timed(ScaledDotProductAttention, "forward", "attention"),
    Timed(MultiHeadAttention, "project", "attention's projections"),
    Timed(MultiHeadAttention, "project_query", "attention's projections"),
    Timed(MultiHeadAttention, "project_key_value", "attention's projections"),
    Timed(MultiHeadAttention, "attend", "attention's projections"),
    Timed(FeedForward, "forward", "feed-forward"),
    Timed(GatedFeedForward, "forward", "feed-forward"),
    Timed(Residual, "open", "norms and residuals"),
    Timed(Residual, "close", "norms and residuals"),
    Timed(EncoderDecoder, "nll", "softmax and loss"),
    Timed(TranslationModule, "manual_backward", "backward"),
    Timed(TranslationModule, "training_step", "optimizer"),
    Timed(TranslationModule, "losses", "other"),
]
"""A training step's parts. "optimizer" is the rest of the step: zeroing, clipping, the update."""


@dataclass(frozen=True)
class Window:
    """What one window came to."""

    seconds: float
    cpu_seconds: float  # of all threads: less than the time x threads where other programs had the processor
    counts: Counts
    useful_flops: int
    peak_flops: float  # a second, of products of the same type with the same threads, just before

    def __str__(self) -> str:
        return f"{self.target_tokens_per_s:,.0f} target tokens/s"

    @property
    def target_tokens_per_s(self) -> float:
        """Real target tokens, end tokens counted."""
        return self.counts.tgt_tokens / self.seconds

    @property
    def target_tokens_per_cpu_s(self) -> float:
        """Real target tokens a second of processor time: what a busy machine leaves more or less alone."""
        return self.counts.tgt_tokens / self.cpu_seconds

    @property
    def flops_per_s(self) -> float:
        """Useful operations a second."""
        return self.useful_flops / self.seconds


@dataclass(frozen=True, kw_only=True)
class LastTrainingWord(LastWord):
    """What a process that trained tells of itself."""

    base_rss_mb: float  # before the first update
    parameters: int


Trained = Outcome[Window, LastTrainingWord]


# A script is a generator that says what is measured: each ``yield`` lets one update be made.
Script = Generator[None, None, Trained]
Pause = Generator[None, None, None]


@dataclass(frozen=True, kw_only=True)
class Job(MeasuredJob):
    """One process's training: the experiment, the seconds of each window, who trains (None: we)."""

    config: TrainConfig
    dtype: str
    seconds: float
    rival: Rival | None = None

    @classmethod
    def of(cls, run: TrainConfig, config: BenchmarkConfig, looks: bool) -> "Job":
        """The training ``run`` as ``config`` wants it measured."""
        return cls(
            config=run,
            dtype=dtype_of(run),
            seconds=config.seconds,
            warm_up=config.warm_up,
            windows=config.windows,
            looks=looks,
            profile=config.profile,
        )


@dataclass(frozen=True)
class TrainingResult:
    """One contestant's figures."""

    name: str
    dtype: str
    windows: tuple[Window, ...]
    last: LastTrainingWord

    @property
    def target_tokens_per_s(self) -> Spread:
        """Of each window."""
        return Spread(tuple(window.target_tokens_per_s for window in self.windows))

    @property
    def target_tokens_per_cpu_s(self) -> Spread:
        """Of each window."""
        return Spread(tuple(window.target_tokens_per_cpu_s for window in self.windows))

    @property
    def counts(self) -> Counts:
        """Of all windows."""
        return sum((window.counts for window in self.windows), Counts())

    @property
    def flops_per_s(self) -> Spread:
        """Useful operations a second, of each window."""
        return Spread(tuple(window.flops_per_s for window in self.windows))

    @property
    def peak_flops_per_s(self) -> float:
        """The best of the peaks before each window: on a busy machine most are disturbed."""
        return max(window.peak_flops for window in self.windows)

    def row(self) -> dict[str, Any]:
        """The JSON line."""
        speed, counts = self.target_tokens_per_s, self.counts
        seconds = sum(window.seconds for window in self.windows)
        return {
            "benchmark": "train",
            "name": self.name,
            "target_tokens_per_s": speed.median,
            "spread": speed.spread,
            "windows": list(speed.values),
            "target_tokens_per_cpu_s": self.target_tokens_per_cpu_s.median,
            "updates_per_s": counts.updates / seconds,
            "target_tokens_per_update": counts.tgt_tokens / counts.updates,
            "padding_fraction": counts.padding_fraction,
            "mfu": self.flops_per_s.median / self.peak_flops_per_s,
            "flops_per_s": self.flops_per_s.median,
            "peak_flops_per_s": self.peak_flops_per_s,
            "peak_rss_mb": self.last.peak_rss_mb,
            "peak_gpu_mb": self.last.peak_gpu_mb,
            "parameters": self.last.parameters,
            "threads": self.last.threads,
            "dtype": self.dtype,
            "shares": self.last.shares,
        }


J = TypeVar("J", bound=Job)


def measure_training(config: BenchmarkConfig) -> list[TrainingResult]:
    """Measure this experiment's training, and where asked for the others'; ours is the last result.

    Raises
    ------
    UserError
        What a training with these words would refuse; several processes.
    """
    run = config.training_run()
    own = Job.of(run, config, looks=True)
    jobs = {OURS: own, **(_rivals_jobs(own) if config.peers else {})}
    ours, *others = measure_jobs(jobs, train_in_windows)
    return [*others, ours]


def measure_jobs(jobs: Mapping[str, J], work: Callable[[J], Trained]) -> list[TrainingResult]:
    """Let the trainings work (:func:`minitrans.benchmark.contest.measure`); their figures in the same order.

    ``work`` is :func:`train_in_windows`, or what calls it in the end.

    Raises
    ------
    UserError
        What a training with these words would refuse; several processes.
    """
    for devices in (job.config.trainer.devices for job in jobs.values()):
        if devices > 1:
            raise UserError(
                f"trainer.devices={devices}: a training is measured in one process; "
                f"type benchmark.py scaling scaling.processes=[1,{devices}]"
            )
    made = measure(jobs, work)
    return [
        TrainingResult(name, job.dtype, made[name].windows, made[name].last) for name, job in jobs.items()
    ]


def dtype_of(run: TrainConfig) -> str:
    """The type of a training's activations: ``fp32``, ``bf16`` or ``fp64``."""
    number_type = precision.number_type(run.trainer.precision, run.trainer.accelerator)
    return next(name for name, kind in TORCH_TYPES.items() if kind is number_type)


def _rivals_jobs(own: Job) -> dict[str, Job]:
    """Each rival in each type that is a fair match: ours, and where ours is the faster of two, both."""
    types = dict.fromkeys([own.dtype, "fp32"])
    return {
        f"{rival.name} {dtype}": dataclasses.replace(own, rival=rival, dtype=dtype, looks=False)
        for rival in rivals()
        for dtype in (types if own.config.trainer.precision == "auto" else [own.dtype])
    }


# --------------------------------------------------------------------------------------
# In the process of a contestant
# --------------------------------------------------------------------------------------


class _ScriptOverError(Exception):
    """The script is over, and with it the training."""

    def __init__(self, outcome: Trained) -> None:
        self.outcome = outcome


class _WatchedSchedule:
    """A schedule that lets the script know whenever an update has been made."""

    def __init__(self, schedule: Schedule, script: Script) -> None:
        self.lr, self.schedule, self.script = schedule.lr, schedule, script

    def rate(self, update: int) -> float:
        """The rate of an update, which is asked for when it begins."""
        try:
            next(self.script)
        except StopIteration as over:
            raise _ScriptOverError(over.value) from None
        return self.schedule.rate(update)


def train_in_windows(job: Job) -> Trained:
    """A contestant's work: make updates until the script is over."""
    if job.config.threads:
        torch.set_num_threads(job.config.threads)
    material = prepare(job.config)
    script = _script(job, material, cost_of(material.model))
    if job.rival is not None:
        return _made_by(rival_updates(job.rival, job.config, job.dtype, material), script)
    watched = dataclasses.replace(material, schedule=_WatchedSchedule(material.schedule, script))
    with tempfile.TemporaryDirectory(prefix="minitrans-benchmark-") as folder:
        try:
            fit(job.config, open_or_create(RunFolder.of(folder)), watched, None)
        except _ScriptOverError as over:
            return over.outcome
    raise KeyboardInterrupt  # nothing but a request to end ends an endless training before its script


def _made_by(updates: Iterator[None], script: Script) -> Trained:
    """Follow the script with updates that are made one at a time."""
    while True:
        try:
            next(script)
        except StopIteration as over:
            return over.value
        next(updates)


def _script(job: Job, material: Material, cost: Cost) -> Script:
    """Warm up, then the windows, then, where it is to look, the split and the trace."""
    updates = _counted(material.run_plan)
    device = next(material.model.parameters()).device
    base = peak_memory_mb()
    yield from _work_for(job.warm_up, updates, at_least=FEWEST_WARM_UP_UPDATES)
    windows = []
    for _ in range(job.windows):
        peak = peak_flops(device, TORCH_TYPES[job.dtype], PEAK_SECONDS)
        seconds, cpu, counts = yield from _window(job.seconds, updates)
        windows.append(Window(seconds, cpu, counts, counts.useful_flops(cost), peak))
    memory, gpu_memory = peak_memory_mb(), peak_gpu_memory_mb()  # before the trace takes some
    shares: dict[str, float] = {}
    operations: list[Operation] = []
    path = None
    if job.looks:
        shares = yield from _shares()
        if job.profile:
            with traced(Path(job.profile), "train", TRACED_UPDATES) as trace:
                yield from itertools.repeat(None, TRACED_UPDATES)
            operations, path = trace.operations, trace.path
    last = LastTrainingWord(
        base_rss_mb=base,
        peak_rss_mb=memory,
        peak_gpu_mb=gpu_memory,
        parameters=sum(parameter.numel() for parameter in material.model.parameters()),
        threads=torch.get_num_threads(),
        shares=shares,
        operations=operations,
        trace=path,
    )
    return Outcome(tuple(windows), last)


def _counted(run_plan: RunPlan) -> Iterator[Counts]:
    """What the updates of a run in one process come to, in their order."""
    lengths, accumulate = run_plan.encoded.lengths, run_plan.size.accumulate
    for _, _, _, update in run_plan.updates(0):
        (parts,) = split(update, lengths, 1, accumulate)
        yield Counts.of(lengths, [part.rows for part in parts if part.weight])


def _work_for(seconds: float, updates: Iterator[Counts], at_least: int) -> Pause:
    """Updates outside of any window."""
    start, made = time.perf_counter(), 0
    while made < at_least or time.perf_counter() - start < seconds:
        yield
        next(updates)
        made += 1


def _window(seconds: float, updates: Iterator[Counts]) -> Generator[None, None, tuple[float, float, Counts]]:
    """Updates for so many seconds, the last one whole."""
    synchronize()
    start, cpu, counts = time.perf_counter(), time.process_time(), Counts()
    while True:
        yield
        counts += next(updates)
        if time.perf_counter() - start >= seconds:
            synchronize()  # here alone: a training does not wait for the GPU after each update either
            return time.perf_counter() - start, time.process_time() - cpu, counts


def _shares() -> Generator[None, None, dict[str, float]]:
    """The parts of a few updates."""
    clock = Clock()
    with timed(clock, PARTS):
        yield  # the update under way was begun unwatched
        clock.reset()
        yield from itertools.repeat(None, SPLIT_UPDATES)
        return clock.shares()
