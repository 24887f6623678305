r"""Floating-point operations of training, as torch counts them, over a run's own batches.

``FlopCounterMode`` adds up the matrix products and convolutions of a forward and backward pass. To run it
over a whole training would cost as much as the training. But in every model here the count is a polynomial
of the micro-batch's shape,

.. math:: B (c_0 + c_1 S + c_2 T + c_3 S^2 + c_4 T^2 + c_5 S T) + c_6 R_S + c_7 R_T

so that a few passes over tiny batches give its coefficients, and the batch plan, which is arithmetic, gives
every shape of the run. What is found is compared with torch's count of batches that had no part in it.

Letters: B rows of a micro-batch, S and T its padded source and target length, R_S and R_T its real source and
target tokens.
"""

import itertools
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from minitrans.data.batching import Batch, padded
from minitrans.data.plan import Update, split
from minitrans.data.stream import RunPlan
from minitrans.data.tokenizer import UNKNOWN_ID
from minitrans.model.attention import ScaledDotProductAttention
from minitrans.model.encoder_decoder import EncoderDecoder

TOLERANCE = 0.01
"""Largest part by which the polynomial may miss torch's count of another batch."""


@dataclass(frozen=True)
class Shape:
    """What of a micro-batch its cost depends on."""

    rows: int
    src_length: int  # padded, end token counted
    tgt_length: int
    src_tokens: int  # real ones of all rows
    tgt_tokens: int

    @classmethod
    def of(cls, batch: Batch) -> "Shape":
        """The shape of a batch as tensors."""
        rows, src_length = batch.src.shape
        real = int(batch.src_mask.sum()), batch.num_target_tokens
        return cls(rows, src_length, batch.tgt_out.size(1), *real)

    @property
    def terms(self) -> tuple[int, ...]:
        """What the eight coefficients are multiplied by."""
        b, s, t = self.rows, self.src_length, self.tgt_length
        return b, b * s, b * t, b * s * s, b * t * t, b * s * t, self.src_tokens, self.tgt_tokens


@dataclass(frozen=True)
class Cost:
    """The operations of one forward and backward pass of a model, by the shape of its input."""

    coefficients: tuple[int, ...]

    def of(self, shape: Shape) -> int:
        """Operations of one micro-batch; a multiplication and an addition are two."""
        return sum(c * term for c, term in zip(self.coefficients, shape.terms, strict=True))


def count(model: EncoderDecoder, batch: Batch) -> int:
    """Operations of one forward and backward pass over a batch, by torch's ``FlopCounterMode``.

    Attention is computed in its plain steps and an LSTM by its plain products for the purpose: torch's
    counter takes the processor's fused kernels for nothing, and a kernel that computes things twice to save
    memory does not make the model a costlier one.

    The model's mode, gradients and backends are left as they are.
    """
    with (
        _undisturbed(model),
        _plain_attention(model),
        _plain_products(),
        FlopCounterMode(display=False) as counter,
    ):
        memory = model.encode(batch.src, batch.src_mask)
        smoothed, _ = model.nll(model.decode(batch.tgt_in, memory, batch.src_mask), batch.tgt_out)
        smoothed.backward()
    return int(counter.get_total_flops())


@contextmanager
def _undisturbed(model: torch.nn.Module) -> Iterator[None]:
    """Without dropout; mode and gradients are given back."""
    was_training, gradients = model.training, [parameter.grad for parameter in model.parameters()]
    model.eval()
    model.zero_grad(set_to_none=True)  # or backward would add to the very tensors that are to be given back
    try:
        yield
    finally:
        model.train(was_training)
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.grad = gradient


@contextmanager
def _plain_products() -> Iterator[None]:
    """Without oneDNN, whose LSTM is one opaque operation."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "TF32 acceleration", UserWarning)  # of a GPU that is not there
        with torch.backends.mkldnn.flags(enabled=False):
            yield


@contextmanager
def _plain_attention(model: torch.nn.Module) -> Iterator[None]:
    """Every attention takes its visible steps."""
    cores = [module for module in model.modules() if isinstance(module, ScaledDotProductAttention)]
    backends = [core.backend for core in cores]
    for core in cores:
        core.backend = "reference"
    try:
        yield
    finally:
        for core, backend in zip(cores, backends, strict=True):
            core.backend = backend


# Tokens of each row, source and target, end tokens counted. Together they tell the eight terms apart.
_PROBES = (
    ((2, 3),),
    ((3, 2),),
    ((4, 4),),
    ((2, 5),),
    ((5, 3),),
    ((3, 3), (3, 3)),
    ((4, 3), (2, 3)),
    ((3, 5), (3, 1), (3, 2)),
    ((6, 2), (1, 2)),
    ((2, 6), (2, 2)),
)
_OTHERS = (((7, 8), (5, 2), (1, 4)), ((9, 3), (9, 3)))


def cost_of(model: EncoderDecoder) -> Cost:
    """Find a model's cost as a function of shape.

    Parameters
    ----------
    model
        On the processor, with at least four entries in each vocabulary and room for nine positions.

    Raises
    ------
    ValueError
        The polynomial misses torch's count of another batch by more than 1 %: the model's cost grows in
        another way.
    """
    measured = [(Shape.of(batch), count(model, batch)) for batch in map(_probe, _PROBES)]
    terms = np.array([shape.terms for shape, _ in measured], dtype=float)  # (probes, 8)
    flops = np.array([found for _, found in measured], dtype=float)  # (probes,)
    solution, *_ = np.linalg.lstsq(terms, flops, rcond=None)
    cost = Cost(tuple(round(value) for value in solution))
    for batch in map(_probe, _OTHERS):
        expected, found = count(model, batch), cost.of(Shape.of(batch))
        if abs(found - expected) > TOLERANCE * expected:
            raise ValueError(
                f"this model's operations do not follow from the shape of a batch: {found:,} expected by "
                f"the smaller ones, {expected:,} counted at {Shape.of(batch)}"
            )
    return cost


def _probe(lengths: Sequence[tuple[int, int]]) -> Batch:
    """A batch of unknown words: every vocabulary has that one."""
    src, tgt = ([[UNKNOWN_ID] * (pair[side] - 1) for pair in lengths] for side in (0, 1))
    return Batch(padded(src, end=True), padded(tgt, start=True), padded(tgt, end=True), (0,) * len(lengths))


def training_flops(model: EncoderDecoder, run_plan: RunPlan, updates: int) -> int:
    """Operations of the first ``updates`` updates of a run on one process, validation and search left out."""
    cost = cost_of(model)
    return sum(cost.of(shape) for shape in _shapes(run_plan, updates))


def _shapes(run_plan: RunPlan, updates: int) -> Iterator[Shape]:
    """The shape of every micro-batch, from the plan alone."""
    for *_, update in itertools.islice(run_plan.updates(0), updates):
        yield from shapes_of(run_plan, update)


def shapes_of(run_plan: RunPlan, update: Update) -> Iterator[Shape]:
    """The shapes of one update's micro-batches in a single process."""
    lengths = run_plan.encoded.lengths  # (n, 2)
    (parts,) = split(update, lengths, world_size=1, accumulate=run_plan.size.accumulate)
    for part in parts:
        if part.weight:
            sizes = lengths[part.rows]  # (B, 2)
            longest, total = sizes.max(axis=0), sizes.sum(axis=0)  # (2,), (2,)
            yield Shape(len(sizes), int(longest[0]), int(longest[1]), int(total[0]), int(total[1]))
