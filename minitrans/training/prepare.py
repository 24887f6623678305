"""Everything that a run needs and that can be refused, before a run folder exists."""

from dataclasses import dataclass

import torch

from minitrans.build import build_model
from minitrans.config import Experiment, TrainConfig, TrainerConfig, construct
from minitrans.data.batching import Batch
from minitrans.data.cleaning import CleaningReport
from minitrans.data.corpus import SOURCES, Corpus, Source
from minitrans.data.encoded import EncodedCorpus, encode_corpus, encode_training
from minitrans.data.stream import RunPlan, UpdateSize, UpdateStream
from minitrans.data.tokenizer import Tokenizers
from minitrans.errors import UserError
from minitrans.evaluation.metrics import require_tokenizer
from minitrans.model.encoder_decoder import EncoderDecoder
from minitrans.processors import refuse_unbearable
from minitrans.training.leak import check_for_leaks
from minitrans.training.optimizer import OPTIMIZERS, AdamW
from minitrans.training.schedule import SCHEDULES, Schedule


@dataclass(frozen=True)
class Material:
    """What an experiment's words stand for: data, plan, model, update rule."""

    source: Source
    train: EncodedCorpus
    cleaning: CleaningReport
    valid_text: Corpus
    valid: EncodedCorpus
    tokenizers: Tokenizers
    run_plan: RunPlan
    model: EncoderDecoder
    optimizer: AdamW
    schedule: Schedule


def prepare(config: TrainConfig, tokenizers: Tokenizers | None = None) -> Material:
    """Read the data, build the model, and check that the one fits the other.

    Parameters
    ----------
    config
        The experiment.
    tokenizers
        Those of the checkpoint that the run goes on from; trained on the training split if not given.

    Raises
    ------
    UserError
        Whatever is wrong with data, configuration or both together, before anything is written.
    """
    refuse_machine(config.trainer)
    refuse_sharded(config)
    refuse_uncompilable(config)
    source = construct(SOURCES, config.data, {}, "data")
    require_tokenizer(source.bleu_tokenize)
    # every split is read, so that a bad one stops here and not after hours
    text = {split: source.load(split) for split in source.splits()}
    for corpus in text.values():
        corpus.require_text()
    tokenizers = tokenizers or Tokenizers.train(text["train"], config.tokenizer)
    train, cleaning = encode_training(text["train"], tokenizers, config.cleaning)
    valid = encode_corpus(text["valid"], tokenizers)
    fast = config.training.fast and config.trainer.precision != "fp64"  # the fast twins add in fp32
    model = _model(config, tokenizers, fast)
    refuse_beyond_positions(model, train, "or leave such pairs out with cleaning.max_tokens")
    for split in [name for name in text if name != "train"]:
        refuse_beyond_positions(model, encode_corpus(text[split], tokenizers), "or shorten it")
    settings = config.training
    size = UpdateSize(
        settings.update_tokens, settings.update_sentences, settings.chunk_tokens, settings.accumulate
    )
    run_plan = RunPlan(train, size, config.seed, settings.max_updates, settings.max_epochs)
    if settings.leak_test:
        check_for_leaks(model, first_batch(run_plan), causal=config.model.causal)
    return Material(
        source, train, cleaning, text["valid"], valid, tokenizers, run_plan, model,
        *update_rule(config, run_plan.total),
    )  # fmt: skip


def _model(config: TrainConfig, tokenizers: Tokenizers, fast: bool) -> EncoderDecoder:
    try:
        return build_model(config, tokenizers.src.vocab_size, tokenizers.tgt.vocab_size, fast=fast)
    except RuntimeError as error:
        if "allocate memory" not in str(error):
            raise
        raise UserError(
            "the model's weights do not fit into this machine's memory; lower model.d_model, model.d_ff, the "
            "numbers of layers or tokenizer.vocab_size"
        ) from error


def refuse_machine(trainer: TrainerConfig) -> None:
    """Stop where the run asks for more than this machine has."""
    num_gpus = count_gpus()
    if trainer.accelerator == "gpu" and num_gpus == 0:
        raise UserError(
            "trainer.accelerator=gpu, but torch finds no GPU here; use trainer=cpu or trainer=auto"
        )
    on_gpu = takes_gpu(trainer)
    refuse_unbearable(trainer.devices, "trainer.devices")
    refuse_unbearable(trainer.num_workers, "trainer.num_workers")
    if on_gpu and trainer.devices > num_gpus:
        raise UserError(
            f"trainer.devices={trainer.devices}, but this machine has {num_gpus}; "
            f"use trainer.devices={num_gpus}"
        )


def count_gpus() -> int:
    """GPUs of this machine that torch can use."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def takes_gpu(trainer: TrainerConfig) -> bool:
    """Whether a training with these settings runs on a GPU here."""
    return trainer.accelerator != "cpu" and count_gpus() > 0


def refuse_uncompilable(config: TrainConfig) -> None:
    """Stop where ``trainer.compile`` would record the model anew again and again, or not at all."""
    if not config.trainer.compile:
        return
    if config.model.architecture != "transformer":
        raise UserError(
            "trainer.compile=true is for the Transformer, but "
            f"model.architecture={config.model.architecture}; use trainer.compile=false"
        )
    if config.trainer.strategy == "fsdp":
        raise UserError(
            "trainer.compile=true needs whole weights, of which each process keeps a part with "
            "trainer.strategy=fsdp; use trainer.strategy=ddp, or trainer.compile=false"
        )
    if config.training.fast and not takes_gpu(config.trainer):
        raise UserError(
            "trainer.compile=true is for a GPU, and this training runs on the processor, whose fast twins "
            "cannot be compiled; use trainer.compile=false (or training.fast=false, to try it)"
        )


# Before it torch overlooks the tensors in a dataclass, which the decoder's layers take and give.
SHARDS_DATACLASSES = (2, 13)


def refuse_sharded(config: TrainConfig) -> None:
    """Stop where the weights are to be in parts and an update would not be that of the whole."""
    if config.trainer.strategy != "fsdp":
        return
    if config.optimizer.get("kind") == "muon":
        raise UserError(
            "optimizer=muon turns whole matrices, of which each process keeps a part with "
            "trainer.strategy=fsdp; use trainer.strategy=ddp, or optimizer=adamw"
        )
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version < SHARDS_DATACLASSES:
        raise UserError(
            f"trainer.strategy=fsdp needs torch {'.'.join(map(str, SHARDS_DATACLASSES))}, but here is "
            f"{torch.__version__}; use trainer.strategy=ddp"
        )


def update_rule(experiment: Experiment, max_updates: int) -> tuple[AdamW, Schedule]:
    """The optimizer's settings and the schedule that moves its rate."""
    optimizer: AdamW = construct(OPTIMIZERS, experiment.optimizer, {}, "optimizer")
    facts = {"lr": optimizer.lr, "d_model": experiment.model.d_model, "max_updates": max_updates}
    return optimizer, construct(SCHEDULES, experiment.schedule, facts, "schedule")


def first_batch(run_plan: RunPlan) -> Batch:
    """The first micro-batch of the run, for the leak test."""
    return next(iter(UpdateStream(run_plan, 0, rank=0, world_size=1))).micro_batches[0]


def refuse_beyond_positions(model: EncoderDecoder, corpus: EncodedCorpus, way_out: str) -> None:
    """Stop where a sentence is longer than learned positions go, naming it."""
    sides = (("source", corpus.src.lengths, model.src_limit), ("target", corpus.tgt.lengths, model.tgt_limit))
    for side, lengths, limit in sides:
        if limit is not None and int(lengths.max()) > limit:
            row = int(lengths.argmax())
            raise UserError(
                f"the {side} on line {int(corpus.lines[row]) + 1} of {corpus.origin} has {int(lengths[row])} "
                f"tokens (end token counted), but position.max_length is {limit}; raise position.max_length, "
                f"use position=sinusoidal, {way_out}"
            )
