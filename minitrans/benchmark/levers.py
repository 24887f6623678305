"""``benchmark.py levers``: what each fast piece brings to a training, alone and among the others.

Each contestant is one training, in a process of its own, with one piece exchanged for its plain twin (what
the piece brings among the others), or with all of them exchanged but one (what it brings alone).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from minitrans.benchmark.contest import Spread
from minitrans.benchmark.settings import BenchmarkConfig
from minitrans.benchmark.train import OURS, Job, Trained, TrainingResult, measure_jobs, train_in_windows
from minitrans.errors import UserError
from minitrans.model import attention, dropout, encoder_decoder, feedforward, transformer
from minitrans.model.fast import attention as folded
from minitrans.model.fast import cross_entropy, linear
from minitrans.model.fast.dropout import scale_of
from minitrans.model.loss import cross_entropy_sums
from minitrans.training import fit, optimizer

T = TypeVar("T")

PLAIN = "plain"


@dataclass(frozen=True)
class Lever:
    """A fast piece: where its name stands, and what is put there instead."""

    name: str
    exchanges: tuple[tuple[ModuleType, str, Any], ...]

    def exchange(self) -> None:
        """Put the plain twin in its place, for as long as this process lives."""
        for module, name, plain in self.exchanges:
            assert hasattr(module, name)
            setattr(module, name, plain)


def _as_it_comes(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return function(x)


def _plain_backend(*_: Any, **__: Any) -> str:
    return "reference"


def _torch_dropout(x: Tensor, rate: float) -> Tensor:
    return torch.nn.functional.dropout(x, rate, training=True)


def _whole_loss(
    states: Tensor, weight: Tensor, targets: Tensor, label_smoothing: float, *, num_real: int | None
) -> tuple[Tensor, Tensor]:
    return cross_entropy_sums(states, weight, targets, label_smoothing)


def _torch_dropout_sum(x: Tensor, change: Tensor, rate: float) -> Tensor:
    return x + _torch_dropout(change, rate)


def _torch_keep(x: Tensor, level: int) -> Tensor:
    return torch.empty_like(x).bernoulli_(1 / scale_of(level))


def _same(x: T) -> T:
    return x


def _never(x: Tensor, *maps: nn.Linear) -> bool:
    return False


LEVERS = (
    Lever("freed memory kept", ((fit, "keep_freed_memory", lambda: False),)),
    Lever("loss in chunks", ((encoder_decoder, "chunked_cross_entropy_sums", _whole_loss),)),
    Lever(
        "dropout from bytes",
        (
            (dropout, "byte_dropout", _torch_dropout),
            (dropout, "byte_dropout_sum", _torch_dropout_sum),
            (linear, "random_keep", _torch_keep),
        ),
    ),
    Lever("attention folded", ((attention, "choose_backend", _plain_backend),)),
    Lever("short rows of keys filled", ((folded, "_softmax", lambda logits: logits.softmax(dim=-1)),)),
    Lever("bf16 between layers", ((transformer, "narrow", _same),)),
    Lever(
        "products over full rows",
        (
            (attention, "over_full_rows", _as_it_comes),
            (feedforward, "over_full_rows", _as_it_comes),
            (cross_entropy, "filled", _same),
            (linear, "filled", _same),
            (linear, "full", _same),
        ),
    ),
    Lever(
        "maps with what surrounds them",
        (
            (attention, "trains_on_processor", _never),
            (feedforward, "trains_on_processor", _never),
        ),
    ),
    Lever("Muon's matrices together", ((optimizer, "BatchedMuon", torch.optim.Muon),)),
)
"""The fast pieces of a training. Sorting by length and the type bf16 are the data's and the trainer's."""

NAMES = [lever.name for lever in LEVERS]


@dataclass(frozen=True)
class Gain:
    """What one lever brings: target tokens a second of processor time, with it over without it.

    Attributes
    ----------
    alone
        Among plain pieces.
    kept
        Among the other levers.
    memory_mb
        By how much it lowers the peak, among the other levers.
    """

    lever: str
    alone: Spread
    kept: Spread
    memory_mb: float

    def row(self) -> dict[str, Any]:
        """The JSON line."""
        return {
            "benchmark": "levers",
            "lever": self.lever,
            "alone": self.alone.median,
            "alone_windows": list(self.alone.values),
            "kept": self.kept.median,
            "kept_windows": list(self.kept.values),
            "memory_mb": self.memory_mb,
        }


@dataclass(frozen=True)
class LeversResult:
    """All levers, and both ends: everything fast, everything plain."""

    gains: list[Gain]
    fast: TrainingResult
    plain: TrainingResult

    @property
    def together(self) -> Spread:
        """Everything fast over everything plain."""
        return self.fast.target_tokens_per_cpu_s.over(self.plain.target_tokens_per_cpu_s)


def measure_levers(config: BenchmarkConfig) -> LeversResult:
    """Train with all pieces fast and with each one exchanged; then with none fast and with each one alone.

    Raises
    ------
    UserError
        A training that uses none of the pieces, and what a training with these words would refuse.
    """
    if not config.training.fast:
        raise UserError("training.fast=false turns off the pieces that levers measures; leave it out")
    if config.trainer.precision == "fp64":
        raise UserError("trainer.precision=fp64 trains without the pieces that levers measures; use another")
    without = {_without(name): [name] for name in NAMES}
    alone = {_alone(name): [other for other in NAMES if other != name] for name in NAMES}
    made = _measure(config, {OURS: [], **without, PLAIN: NAMES, **alone})
    fast, plain = made[OURS], made[PLAIN]
    gains = [
        Gain(
            name,
            alone=made[_alone(name)].target_tokens_per_cpu_s.over(plain.target_tokens_per_cpu_s),
            kept=fast.target_tokens_per_cpu_s.over(made[_without(name)].target_tokens_per_cpu_s),
            memory_mb=made[_without(name)].last.peak_rss_mb - fast.last.peak_rss_mb,
        )
        for name in NAMES
    ]
    return LeversResult(gains, fast, plain)


def _without(lever: str) -> str:
    return f"{OURS} without: {lever}"


def _alone(lever: str) -> str:
    return f"{PLAIN} but for: {lever}"


@dataclass(frozen=True, kw_only=True)
class _ExchangedJob(Job):
    """A training with the levers of these names exchanged for their plain twins."""

    exchanged: tuple[str, ...] = ()


def _measure(config: BenchmarkConfig, exchanged: Mapping[str, Sequence[str]]) -> dict[str, TrainingResult]:
    """The figures of trainings with these pieces exchanged, window by window in turn."""
    run = config.training_run()
    whole = vars(Job.of(run, config, looks=False))
    jobs = {name: _ExchangedJob(**whole, exchanged=tuple(away)) for name, away in exchanged.items()}
    results = measure_jobs(jobs, _train)
    return dict(zip(jobs, results, strict=True))


def _train(job: _ExchangedJob) -> Trained:
    """Exchange the pieces, then train."""
    for lever in LEVERS:
        if lever.name in job.exchanged:
            lever.exchange()
    return train_in_windows(job)
