"""The promises of this package, put to the test on the user's machine, with the user's configuration.

Each proof trains or computes the same thing in two ways and measures the largest difference between the
results. The runs are a few updates long, in a folder that is removed afterwards.

Letters: B batch, S source length, T target length, D d_model, N vocabulary.
"""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from minitrans import checkpoint
from minitrans.build import build_model
from minitrans.checkpoint import Checkpoint
from minitrans.config import TrainConfig, plain
from minitrans.data.batching import Batch
from minitrans.errors import UserError
from minitrans.model.attention import MultiHeadAttention
from minitrans.model.encoder_decoder import EncoderDecoder
from minitrans.run import RunFolder, open_or_create, write_config
from minitrans.training.fit import fit
from minitrans.training.launch import run_workers
from minitrans.training.leak import TOLERANCE, check_for_leaks
from minitrans.training.prepare import Material, first_batch, prepare, takes_gpu
from minitrans.training.resume import continuation

UPDATES = 6
ROUNDING = 1e-4  # of float32 sums in another order, relative to the largest number


@dataclass(frozen=True)
class Proof:
    """What came of one proof.

    Attributes
    ----------
    claim, compared
        What is promised, and what was measured for it.
    difference
        The largest difference found; infinite where the comparison itself was refused.
    bound
        The largest that counts as equal.
    """

    claim: str
    compared: str
    difference: float
    bound: float

    @property
    def holds(self) -> bool:
        """The verdict; a difference that is not a number is none that holds."""
        return self.difference <= self.bound


def prove(config: TrainConfig, folder: Path) -> Iterator[Proof]:
    """The proofs, one after another.

    Parameters
    ----------
    config
        Any training configuration; its updates are cut to a few.
    folder
        An empty folder for the runs.
    """
    short = _shortened(config)
    material = prepare(short)
    batch = first_batch(material.run_plan)
    yield _leaks(material, batch)
    yield _cache(material, batch)
    if any(isinstance(layer, MultiHeadAttention) for layer in material.model.modules()):
        yield _attention(short, material, batch)
    yield _fast(short, material, batch)
    yield _accumulation(short, folder)
    yield _processes(short, folder)
    yield _resume(short, folder)


def _shortened(config: TrainConfig) -> TrainConfig:
    """A few updates; everything that follows every so many updates happens in the middle."""
    training = replace(
        config.training,
        max_updates=UPDATES,
        max_epochs=None,
        validate_every=UPDATES,
        validate_sentences=4,
        save_every=UPDATES // 2,
        keep_last=2,
        average_last=0,
        log_every=1,
        patience=None,
        leak_test=False,
    )
    trainer = replace(config.trainer, progress_bar=False, devices=1)
    return replace(config, training=training, trainer=trainer, run_dir="", resume="")


# --------------------------------------------------------------------------------------
# On one batch
# --------------------------------------------------------------------------------------


def _leaks(material: Material, batch: Batch) -> Proof:
    claim = "No future or padding token is seen"
    compared = "states, losses and gradients, with hidden tokens changed"
    try:
        report = check_for_leaks(material.model, batch)
    except UserError as refusal:
        return Proof(claim, str(refusal), float("inf"), TOLERANCE)
    found = dataclasses.asdict(report)
    changes = [value for name, value in found.items() if value is not None and name != "cached_steps"]
    return Proof(claim, compared, max(changes), TOLERANCE)


@torch.no_grad()
def _cache(material: Material, batch: Batch) -> Proof:
    """The logits of every position, token by token through the cache and all at once."""
    model = material.model.eval()
    memory = model.encode(batch.src, batch.src_mask)  # (B, S, D)
    at_once = model.logits(model.decode(batch.tgt_in, memory, batch.src_mask))  # (B, T, N)
    cache = model.start_cache(memory, batch.src_mask)
    steps = []
    for token in batch.tgt_in.split(1, dim=1):  # (B, 1)
        states, cache = model.step(token, cache)  # (B, 1, D)
        steps.append(model.logits(states))  # (B, 1, N)
    model.train()
    real = batch.tgt_out != 0  # (B, T)
    difference = _relative(at_once[real], torch.cat(steps, dim=1)[real])
    return Proof(
        "The cache changes nothing", "logits of a batch, with the cache and without", difference, ROUNDING
    )


def _attention(config: TrainConfig, material: Material, batch: Batch) -> Proof:
    attention = [{**config.attention, "backend": name} for name in ("reference", "fused")]
    models = [_model(replace(config, attention=section), material, fast=False) for section in attention]
    compared = "loss and gradients of a batch, four visible steps and torch's kernel"
    return Proof("Fused attention is the written-out one", compared, _apart(models, config, batch), ROUNDING)


def _fast(config: TrainConfig, material: Material, batch: Batch) -> Proof:
    models = [_model(config, material, fast=fast) for fast in (False, True)]
    compared = "loss and gradients of a batch, plain code and fast twins"
    return Proof("What is fast computes the same", compared, _apart(models, config, batch), ROUNDING)


def _model(config: TrainConfig, material: Material, fast: bool) -> EncoderDecoder:
    sizes = material.tokenizers.src.vocab_size, material.tokenizers.tgt.vocab_size
    return build_model(_without_dropout(config), *sizes, fast=fast)


def _without_dropout(config: TrainConfig) -> TrainConfig:
    model = replace(config.model, dropout=0.0, attention_dropout=0.0, ffn_dropout=0.0)
    return replace(config, model=model)


def _apart(models: list[EncoderDecoder], config: TrainConfig, batch: Batch) -> float:
    """The largest difference between two models' losses and gradients, relative to the largest number."""
    one, other = (_loss_and_gradients(model, config.training.label_smoothing, batch) for model in models)
    return max(_relative(one[name], other[name]) for name in one)


def _loss_and_gradients(model: EncoderDecoder, label_smoothing: float, batch: Batch) -> dict[str, Tensor]:
    memory = model.encode(batch.src, batch.src_mask)  # (B, S, D)
    states = model.decode(batch.tgt_in, memory, batch.src_mask)  # (B, T, D)
    loss, _ = model.nll(states, batch.tgt_out, label_smoothing)
    loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    # all in one: a gradient that is zero but for rounding (a key's bias) has no scale of its own
    return {"loss": loss.detach(), "gradients": torch.cat([grad.flatten() for grad in gradients.values()])}


def _relative(expected: Tensor, found: Tensor) -> float:
    return float((expected - found).abs().max() / expected.abs().max())


# --------------------------------------------------------------------------------------
# On short runs
# --------------------------------------------------------------------------------------


def _exact(config: TrainConfig) -> TrainConfig:
    """In float64 and with plain SGD nothing but the last digits may differ (Adam can enlarge them)."""
    return replace(
        config,
        optimizer={"kind": "sgd", "lr": 0.1},
        schedule={"kind": "constant", "warmup_updates": 1},
        trainer=replace(config.trainer, accelerator="cpu", precision="fp64", num_nodes=1, strategy="auto"),
    )


def _parts(config: TrainConfig, number: int) -> TrainConfig:
    return replace(config, training=replace(config.training, accumulate=number))


def _accumulation(config: TrainConfig, folder: Path) -> Proof:
    exact = _exact(_without_dropout(config))
    runs = [_run(_parts(exact, number), folder / f"accumulate{number}") for number in (1, 4)]
    compared = f"weights after {UPDATES} updates in 1 and 4 micro-batches (float64, SGD)"
    return Proof("Accumulation changes no update", compared, _weights_apart(*runs), 1e-6)


def _processes(config: TrainConfig, folder: Path) -> Proof:
    """On the processor, which every machine has two processes' worth of.

    Dropout and strategy (with ``trainer=fsdp`` each process keeps a part of the weights) are the
    configuration's.
    """
    exact = _exact(config)
    strategy = config.trainer.strategy
    alone = _run(_parts(exact, 2), folder / "alone")
    two = replace(_parts(exact, 1), trainer=replace(exact.trainer, devices=2, strategy=strategy))
    together = _run(two, folder / "together", lambda run: run_workers(two.trainer, run, None))
    parts = " with parts of the weights" if strategy == "fsdp" else ""
    compared = (
        f"weights after {UPDATES} updates by 2 processes{parts} and in 2 micro-batches "
        "(float64, SGD, dropout)"
    )
    return Proof("Processes change no update", compared, _weights_apart(alone, together), 1e-6)


def _resume(config: TrainConfig, folder: Path) -> Proof:
    whole = _run(config, folder / "whole")
    half = RunFolder.of(folder / "whole").step(UPDATES // 2)
    branch = replace(config, resume=str(half), run_dir=str(folder / "resumed"))
    found = continuation(branch, {"resume": branch.resume, "run_dir": branch.run_dir})
    resumed = _run(found.config, found.folder.path, start=found.start)
    on_gpu = takes_gpu(config.trainer)
    compared = f"weights after {UPDATES} updates, undisturbed and gone on with after {UPDATES // 2}"
    bound = ROUNDING if on_gpu else 0.0
    return Proof(
        "A resumed run ends as if it had not stopped", compared, _weights_apart(whole, resumed), bound
    )


def _run(
    config: TrainConfig,
    path: Path,
    train: Callable[[RunFolder], None] | None = None,
    start: Checkpoint | None = None,
) -> Checkpoint:
    """The last checkpoint of a run that this process, or ``train``, makes the updates of."""
    folder = open_or_create(RunFolder.of(path))
    write_config(folder, plain(config))
    if train is None:
        fit(config, folder, prepare(config, start.tokenizers if start else None), start)
    else:
        train(folder)
    return checkpoint.read(folder.checkpoints / checkpoint.LAST)


def _weights_apart(one: Checkpoint, other: Checkpoint) -> float:
    """The largest difference, relative to the farthest way that a weight has gone since the beginning."""
    start = checkpoint.rebuild(one).state_dict()
    moved = max(float((one.model[name] - start[name]).abs().max()) for name in start)
    return max(float((one.model[name] - other.model[name]).abs().max()) for name in start) / moved
