"""The typed configuration: what can be set, its type, its unit, its default.

The dataclasses are the schema, the YAML files of ``conf/`` state values, and :mod:`minitrans.build`
turns both into objects by plain look-ups. A configuration is data: nothing in it can name code.

A *family* (positions, attention, feed-forward, optimizers, schedules, data sources) keeps a table
``name -> class`` in its own module, and its section here is a plain ``dict``: the key ``kind`` picks
the class, the other keys are that class's constructor arguments (:func:`construct`).
"""

import dataclasses
import inspect
import math
import os
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from minitrans.errors import UserError, nearest

Section = dict[str, Any]
T = TypeVar("T")

DATA_PATHS: Mapping[str, tuple[str, ...]] = {
    "": ("root",),
    "text": ("root",),
    "pairs": ("train", "valid", "test", "extra_tests"),
}
"""The keys of the section ``data`` that name files or folders, for each kind (and for none)."""


def _doc(
    text: str,
    default: Any = dataclasses.MISSING,
    *,
    choices: tuple[str, ...] = (),
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    below: float | None = None,
    path: bool = False,
    words: tuple[str, ...] = (),
    of: tuple[str, ...] = (),
    paths: Mapping[str, tuple[str, ...]] = types.MappingProxyType({}),
) -> Any:
    """A dataclass field with its explanation (shown by ``--help``) and what its values must be.

    ``choices`` are the words allowed; ``low`` is the least number and ``high`` the largest, ``above`` and
    ``below`` are bounds that a number must not reach; ``path`` marks a file or folder, ``words`` are values
    of it that are none, ``paths`` says which keys of a section are files or folders, for each kind. ``of``
    are the architectures that read a key of the model, where not all do.
    """
    limits = {"low": low, "high": high, "above": above, "below": below}
    metadata = {"doc": text, "choices": choices, "path": path, "words": words, "paths": paths, "of": of}
    metadata |= limits
    if isinstance(default, (list, dict)):
        return field(default_factory=lambda: type(default)(default), metadata=metadata)
    return field(default=default, metadata=metadata)


ARCHITECTURES = ("transformer", "lstm", "conv")


@dataclass
class FeedForwardConfig:
    """The position-wise network between attention layers."""

    activation: str = _doc("relu, gelu, swiglu, identity, or none: no such network (two ablations)", "relu")


@dataclass
class ModelConfig:
    """The stacks. The defaults are ``model=small``; the files of conf/model state differences.

    A key that the architecture does not read must stay at its default (:func:`check_model`).
    """

    architecture: str = _doc(
        "transformer, lstm (recurrent, with attention) or conv (convolutional, with attention)",
        "transformer",
        choices=ARCHITECTURES,
    )
    num_encoder_layers: int = _doc("encoder layers", 3, low=1)
    num_decoder_layers: int = _doc("decoder layers", 3, low=1)
    d_model: int = _doc("width of the embeddings, and of every layer's output in a transformer", 256, low=2)
    num_heads: int = _doc("attention heads", 4, low=1, of=("transformer",))
    d_k: int | None = _doc(
        "width of one head's queries and keys (null: d_model / num_heads)", None, low=1, of=("transformer",)
    )
    d_v: int | None = _doc("width of one head's values (null: d_k)", None, low=1, of=("transformer",))
    d_ff: int = _doc("hidden width of the feed-forward network", 1024, low=1, of=("transformer",))
    d_hidden: int | None = _doc(
        "width of an lstm's state (an encoder's directions have half each) or of a conv's channels "
        "(null: d_model)",
        None,
        low=2,
        of=("lstm", "conv"),
    )
    kernel_size: int = _doc("neighbours that one convolution reads, an odd number", 3, low=1, of=("conv",))
    dropout: float = _doc("rate after each sub-layer and on the embeddings", 0.05, low=0, below=1)
    attention_dropout: float = _doc("rate on the attention weights", 0.0, low=0, below=1)
    ffn_dropout: float = _doc(
        "rate inside the feed-forward network", 0.0, low=0, below=1, of=("transformer",)
    )
    norm: str = _doc(
        "layer_norm or rms_norm",
        "layer_norm",
        choices=("layer_norm", "rms_norm"),
        of=("transformer", "conv"),
    )
    norm_order: str = _doc("pre or post", "pre", choices=("pre", "post"), of=("transformer", "conv"))
    tie: str = _doc(
        "embedding tables that are one: none, decoder (target and output), all (needs a joint vocabulary)",
        "all",
        choices=("none", "decoder", "all"),
    )
    bias: bool = _doc("biases in the linear maps of attention and feed-forward", True, of=("transformer",))
    causal: bool = _doc(
        "the decoder's causal mask (false: in training it sees the future, a leak on purpose)",
        True,
        of=("transformer",),
    )
    ffn: FeedForwardConfig = field(default_factory=FeedForwardConfig, metadata={"of": ("transformer",)})


@dataclass
class TokenizerConfig:
    """How text becomes entries of the vocabulary."""

    kind: str = _doc(
        "bpe, byte_bpe, word or char",
        "bpe",
        choices=("bpe", "byte_bpe", "word", "char"),
    )
    vocab_size: int = _doc("entries, the special ones counted", 8000, low=1, high=1_000_000)
    joint: bool = _doc("one vocabulary for both sides", True)
    lowercase: bool = _doc("fold letters to lower case before anything else", False)


@dataclass
class CleaningConfig:
    """Which training pairs are left out. Each rule's count is printed; other splits are never cleaned."""

    max_tokens: int | None = _doc("longest side, end token counted (null: no limit)", None, low=1)
    max_ratio: float | None = _doc("longer side / shorter side in tokens (null: no limit)", None, low=1)


@dataclass
class TrainingConfig:
    """Updates, their size, and what is done between them."""

    max_updates: int = _doc("stop after so many updates", 3000, low=1)
    max_epochs: int | None = _doc("stop after so many passes over the data (null: no limit)", None, low=1)
    update_tokens: int = _doc(
        "tokens of one update over all processes, padded, the longer side counted", 4096, low=1
    )
    update_sentences: int | None = _doc("size an update by sentences instead (null: by tokens)", None, low=1)
    chunk_tokens: int = _doc(
        "rows x longest of one group of like lengths (at most update_tokens)", 4096, low=1
    )
    accumulate: int = _doc("least number of micro-batches that a process splits an update into", 1, low=1)
    label_smoothing: float = _doc("mass spread over the whole vocabulary", 0.1, low=0, below=1)
    clip_norm: float | None = _doc("largest norm of an update's gradient (null: no clipping)", 1.0, above=0)
    validate_every: int | None = _doc("updates between validations (null: once an epoch)", 500, low=1)
    validate_sentences: int | None = _doc(
        "sentences that validation translates for BLEU (null: all)", None, low=1
    )
    save_every: int = _doc("updates between checkpoints", 500, low=1)
    keep_last: int = _doc("step-NNNNNN.ckpt files kept", 3, low=1)
    metric: str = _doc("what best.ckpt is best in: bleu or loss", "bleu", choices=("bleu", "loss"))
    patience: int | None = _doc(
        "stop after so many validations without a better one (null: never)", None, low=1
    )
    ema_decay: float | None = _doc(
        "decay per update of an exponential moving average (null: none)", None, above=0, below=1
    )
    average_last: int = _doc("checkpoints averaged into average.ckpt at the end (0: none)", 0, low=0)
    log_every: int = _doc("updates between rows of metrics.csv", 20, low=1)
    diagnose_every: int | None = _doc(
        "updates between measurements of every head, which go to diagnostics.csv (null: none)", None, low=1
    )
    fast: bool = _doc(
        "use the fast twins of plain code, and keep freed memory (false: plain code alone)", True
    )
    leak_test: bool = _doc("before the first update, test that no future or padding token is seen", True)


@dataclass
class TrainerConfig:
    """Machines: handed to Lightning's Trainer."""

    accelerator: str = _doc("cpu, gpu or auto", "auto", choices=("cpu", "gpu", "auto"))
    devices: int = _doc("processes on one machine", 1, low=1)
    num_nodes: int = _doc("machines", 1, low=1)
    strategy: str = _doc("auto, ddp or fsdp", "auto", choices=("auto", "ddp", "fsdp"))
    timeout: int = _doc("seconds after which a process that waits for another one gives up", 600, low=1)
    precision: str = _doc(
        "fp32, bf16 (activations; weights stay fp32), fp64, or auto (bf16 where the processor is fast in it)",
        "auto",
        choices=("auto", "fp32", "bf16", "fp64"),
    )
    compile: bool = _doc("torch.compile the Transformer's stacks, for a GPU (a minute at the start)", False)
    num_workers: int = _doc("loader processes (0: load in the training process)", 0, low=0)
    progress_bar: bool = _doc("show the progress bar", True)


LONGEST = 1_000_000
"""Tokens of a translation, or of a source for each of them, that no text has: what is more is a slip."""


@dataclass
class SearchConfig:
    """How a translation is looked for."""

    beam_size: int = _doc("hypotheses kept; 1 is greedy", 5, low=1, high=10_000)
    length_penalty: str = _doc(
        "what a log-probability is divided by: none (1), exponent (n^alpha) or gnmt (((5 + n) / 6)^alpha)",
        "gnmt",
        choices=("none", "exponent", "gnmt"),
    )
    alpha: float = _doc("strength of the length penalty", 0.6, low=0, high=10)
    coverage: float = _doc(
        "strength of the penalty for source tokens hardly attended to (0: none)", 0.0, low=0, high=1e6
    )
    min_length: int = _doc("shortest translation in tokens, end token not counted", 0, low=0, high=LONGEST)
    min_length_ratio: float = _doc("further bound: tokens of the source x this", 0.0, low=0, high=LONGEST)
    max_length: int = _doc("longest translation in tokens, end token not counted", 256, low=1, high=LONGEST)
    max_length_ratio: float = _doc(
        "further bound: tokens of the source x this + 10", 2.0, above=0, high=LONGEST
    )
    no_repeat_ngram: int = _doc(
        "no so many tokens in a row come twice in a translation (0: they may)", 0, low=0, high=LONGEST
    )
    n_best: int = _doc("translations given for each sentence, best first", 1, low=1, high=10_000)
    sample: bool = _doc(
        "draw each token at random instead of looking for the best (needs beam_size=1)", False
    )
    temperature: float = _doc(
        "logits are divided by this before drawing; below 1 is bolder", 1.0, low=1e-4, high=1e4
    )
    top_k: int = _doc("draw among so many likeliest tokens (0: all)", 0, low=0, high=1_000_000)
    top_p: float = _doc("draw among the likeliest tokens that hold this probability, at most 1", 1.0, above=0)
    seed: int = _doc("of the draws; a sentence's are the same in every batch", 1, low=0)

    def greedy(self) -> "SearchConfig":
        """The same bounds, and the likeliest token at every step: what validation uses."""
        bounds = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if "length" in f.name}
        return SearchConfig(**{**bounds, "beam_size": 1})


@dataclass
class LoggerConfig:
    """Where curves go besides metrics.csv, which is always written."""

    kind: str = _doc("csv, tensorboard or wandb", "csv", choices=("csv", "tensorboard", "wandb"))
    project: str = _doc("wandb project", "minitrans")
    offline: bool = _doc("wandb without an account or a network", True)
    group: str = _doc("wandb group", "")


@dataclass
class Experiment:
    """What makes a run the experiment it is: everything that a checkpoint fixes."""

    seed: int = _doc("one number from which every random choice follows", 1, low=0)
    model: ModelConfig = field(default_factory=ModelConfig)
    position: Section = _doc("position encoding: conf/position", {})
    attention: Section = _doc("attention core: conf/attention", {})
    data: Section = _doc("data set: conf/data", {}, paths=DATA_PATHS)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    cleaning: CleaningConfig = field(default_factory=CleaningConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    optimizer: Section = _doc("optimizer: conf/optimizer (lr is the peak rate under every schedule)", {})
    schedule: Section = _doc("rate over updates: conf/schedule", {})
    search: SearchConfig = field(default_factory=SearchConfig)


@dataclass
class TrainConfig(Experiment):
    """``scripts/train.py``: an experiment, and where and on what it runs."""

    run_dir: str = _doc("run folder (empty: a new one below runs/)", "", path=True)
    resume: str = _doc(
        "checkpoint or run folder to go on from (empty: start; auto: run_dir's newest, else start)",
        "",
        path=True,
        words=("auto",),
    )
    force: bool = _doc("go on although what is typed makes it another experiment", False)
    threads: int = _doc("processor threads (0: torch's own choice)", 0, low=0)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    logger: LoggerConfig = field(default_factory=LoggerConfig)


@dataclass
class BudgetConfig:
    """What the training of a cell may cost, in one of two currencies."""

    tokens: float | None = _doc(
        "target tokens of each cell, end tokens counted (null: training.max_updates ends it)", None, above=0
    )
    flops: float | None = _doc(
        "training FLOPs of each cell, validation and search left out (null: training.max_updates ends it)",
        None,
        above=0,
    )


@dataclass
class AblateConfig(TrainConfig):
    """``scripts/ablate.py``: a study, variants times seeds, run, compared and reported."""

    study: Section = _doc("a shipped study: conf/study", {})
    study_file: str = _doc("a study of yours: a .yaml file like those of conf/study", "", path=True)
    study_dir: str = _doc("folder of the study (empty: runs/study-NAME)", "", path=True)
    seeds: list[int] = _doc("each variant runs once with each (empty: the study's)", [], low=0)
    variants: list[str] = _doc(
        "variants besides the study's, such as '[\"position=none,rotary model.d_k=8,32\"]'; "
        "values apart by commas make every combination",
        [],
    )
    metric: str = _doc(
        "what variants are compared by (empty: the study's): bleu, chrf, ter, exact_match, loss, perplexity",
        "",
    )
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    jobs: int = _doc("cells that run at once", 1, low=1)
    retry_failed: bool = _doc("run again the cells that failed", False)
    max_hours: float | None = _doc(
        "stop after so many hours; cells save first (null: no limit)", None, above=0
    )
    tune: str = _doc(
        "lr: search each variant's learning rate first; none; auto: as the study says",
        "auto",
        choices=("auto", "lr", "none"),
    )
    tune_factors: list[float] = _doc(
        "the rates tried: the variant's own times these", [0.3, 1.0, 3.0], above=0
    )
    tune_seed: int | None = _doc("the seed they are tried with (null: the first of the study's)", None, low=0)
    cluster: str = _doc("local: this machine; slurm: its queue", "local", choices=("local", "slurm"))
    slurm_partition: str = _doc("partition (empty: the cluster's default)", "")
    slurm_minutes: int = _doc("time of a job; a cell that needs more is queued again and goes on", 240, low=1)
    slurm_cpus: int = _doc("processors of a cell", 4, low=1)
    slurm_gpus: int = _doc("GPUs of a cell", 0, low=0)
    slurm_options: list[str] = _doc("further lines of the batch file, such as ['account=NAME']", [])


@dataclass
class EvaluateConfig:
    """``scripts/evaluate.py``: checkpoints scored on a split. Each checkpoint fixes its model."""

    checkpoint: str | list[str] = _doc(
        "a .ckpt file, or a run folder (then its best); several: a list, or a pattern such as 'runs/*'",
        "",
        path=True,
    )
    average: int = _doc(
        "average the weights of so many last checkpoints of each run folder (0: none)", 0, low=0
    )
    average_best: bool = _doc("average those of the best validations instead of the last", False)
    ensemble: bool = _doc("average the probabilities of all checkpoints given: one system of them", False)
    baseline: str = _doc(
        "a checkpoint that the others are compared with, by paired tests (empty: none)", "", path=True
    )
    split: str = _doc("valid, test, or another split that the data set names", "test")
    output_dir: str = _doc(
        "where test.txt and scores.json go (empty: evaluation/ in the run folder); "
        "of several checkpoints, a folder each in it",
        "",
        path=True,
    )
    search_file: str = _doc(
        "a search.yaml of a sweep: settings over the checkpoint's, below what is typed", "", path=True
    )
    sanity: bool = _doc("score the reference, the copied source and the nearest training target too", False)
    comet: str = _doc(
        "COMET model, on the hub or a .ckpt file (auto: wmt22-comet-da where unbabel-comet is there; none)",
        "auto",
    )
    sweep: str = _doc(
        "search: try beams and length penalties on the validation split", "none", choices=("none", "search")
    )
    sweep_beam_sizes: list[int] = _doc("the beams of a sweep", [1, 2, 5, 10], low=1, high=10_000)
    sweep_alphas: list[float] = _doc(
        "the strengths of the length penalty in a sweep", [0.0, 0.3, 0.6, 1.0], low=0, high=10
    )
    batch_tokens: int = _doc("padded tokens of one batch", 4096, low=1)
    threads: int = _doc("processor threads (0: torch's own choice)", 0, low=0)
    accelerator: str = _doc("cpu, gpu or auto", "auto", choices=("cpu", "gpu", "auto"))
    precision: str = _doc(
        "fp32; bf16 is faster, and rounds, so that near-ties are many", "fp32", choices=("fp32", "bf16")
    )
    data: Section = _doc(
        "another data set than the checkpoint's, or other values of its keys", {}, paths=DATA_PATHS
    )
    search: SearchConfig = field(default_factory=SearchConfig)


@dataclass
class TranslateConfig:
    """``scripts/translate.py``: a file or standard input, line by line."""

    checkpoint: str | list[str] = _doc(
        "a .ckpt file, or a run folder (then its best); of a list of them, the probabilities are averaged",
        "",
        path=True,
    )
    average: int = _doc(
        "average the weights of so many last checkpoints of the run folder (0: none)", 0, low=0
    )
    average_best: bool = _doc("average those of the best validations instead of the last", False)
    input: str = _doc("a text file, one sentence a line (-: standard input)", "-", path=True)
    output: str = _doc("the file for the translations (-: standard output)", "-", path=True)
    prefixes: str = _doc(
        "a text file, each line the beginning of that line's translation (empty: free)", "", path=True
    )
    format: str = _doc(
        "text, json (an object a line: scores, tokens, alignment, n-best) or alignment (source-target words)",
        "text",
        choices=("text", "json", "alignment"),
    )
    align_layer: int | None = _doc(
        "decoder layer whose attention aligns words, from 1 (null: the last)", None, low=1
    )
    batch_tokens: int = _doc("padded tokens of one batch", 4096, low=1)
    threads: int = _doc("processor threads (0: torch's own choice)", 0, low=0)
    accelerator: str = _doc("cpu, gpu or auto", "auto", choices=("cpu", "gpu", "auto"))
    precision: str = _doc(
        "fp32; bf16 is faster, and rounds, so that near-ties are many", "fp32", choices=("fp32", "bf16")
    )
    search: SearchConfig = field(default_factory=SearchConfig)


@dataclass
class InspectConfig:
    """``scripts/inspect_attention.py``: the attention maps of one sentence."""

    checkpoint: str = _doc("a .ckpt file, or a run folder (then its best)", "", path=True)
    text: str = _doc("the source sentence", "")
    target: str = _doc("the translation whose maps are drawn (empty: the model's own)", "")
    output_dir: str = _doc(
        "where the PNG and .npz files go (empty: a folder for each text in attention/ of the run folder)",
        "",
        path=True,
    )
    search: SearchConfig = field(default_factory=SearchConfig)


@dataclass
class DiagnoseConfig:
    """``scripts/diagnose.py``: what the heads of a model do, in figures, beside what theory predicts."""

    checkpoint: str = _doc("a .ckpt file, or a run folder (then its best)", "", path=True)
    split: str = _doc("valid, test, or another split that the data set names", "valid")
    sentences: int = _doc("sentences of the split that are looked at, the first ones", 64, low=1)
    heads: bool = _doc(
        "translate them with each head masked in turn, which takes a translation for each head", False
    )
    output_dir: str = _doc(
        "where the JSON and PNG files go (empty: a folder in diagnostics/ of the run folder)", "", path=True
    )
    threads: int = _doc("processor threads (0: torch's own choice)", 0, low=0)
    accelerator: str = _doc("cpu, gpu or auto", "auto", choices=("cpu", "gpu", "auto"))
    data: Section = _doc(
        "another data set than the checkpoint's, or other values of its keys", {}, paths=DATA_PATHS
    )
    search: SearchConfig = field(default_factory=SearchConfig)


# --------------------------------------------------------------------------------------
# From plain data to the typed configuration
# --------------------------------------------------------------------------------------


def parse(schema: type[T], data: Mapping[str, Any], source: str = "the configuration", prefix: str = "") -> T:
    """Turn plain nested data into a dataclass, refusing what the schema does not know.

    Parameters
    ----------
    schema
        One of the dataclasses above.
    data
        Plain data, as read from YAML or a checkpoint. A missing key takes its default.
    source
        Where the data came from, for the error's sentence.
    prefix
        The dotted key of ``data`` itself.

    Raises
    ------
    UserError
        An unknown key (the nearest is named) or a value of another type (the key, the value and the
        right type are named).
    """
    hints = typing.get_type_hints(schema)
    fields = {f.name: f for f in dataclasses.fields(schema)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for name, value in data.items():
        key = f"{prefix}{name}"
        if name not in fields:
            raise UserError(f'{source} has the unknown key "{key}" = {value!r}{nearest(str(name), fields)}')
        hint = hints[name]
        if dataclasses.is_dataclass(hint):
            if not isinstance(value, Mapping):
                raise UserError(f"{source}: {key} is {value!r} where a section of keys is needed")
            values[name] = parse(typing.cast(type, hint), value, source, f"{key}.")
        else:
            values[name] = typed(value, hint, key, source)
            _check_choice(values[name], fields[name].metadata.get("choices", ()), key, source)
            _check_range(values[name], fields[name].metadata, key, source)
    return schema(**values)


def _check_choice(value: Any, choices: tuple[str, ...], key: str, source: str) -> None:
    if choices and value not in choices:
        raise UserError(f'{source}: {key} cannot be "{value}"{nearest(str(value), choices)}')


def bounds(metadata: Mapping[str, Any]) -> str:
    """The range of a field in words: ``"at least 0 and below 1"``; empty where any number will do."""
    words = {"low": "at least", "high": "at most", "above": "above", "below": "below"}
    return " and ".join(f"{words[k]} {metadata[k]}" for k in words if metadata.get(k) is not None)


def _check_range(value: Any, metadata: Mapping[str, Any], key: str, source: str) -> None:
    if isinstance(value, list):
        for place, item in enumerate(value):
            _check_range(item, metadata, f"{key}[{place}]", source)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return
    low, high, above, below = (metadata.get(bound) for bound in ("low", "high", "above", "below"))
    too_small = (low is not None and value < low) or (above is not None and value <= above)
    too_large = (high is not None and value > high) or (below is not None and value >= below)
    if too_small or too_large:
        raise UserError(f"{source}: {key} is {value}, but must be {bounds(metadata)}")


def typed(value: Any, hint: Any, key: str, source: str = "the configuration") -> Any:
    """Return ``value`` as the type ``hint`` says, or refuse it.

    Whole numbers are accepted where a float is meant, and so is text that spells a float (YAML 1.1 reads
    ``1e-4`` as text). A truth value is never accepted for text: YAML reads an unquoted ``no`` as False.
    """
    if value is None and _allows_none(hint):
        return None
    for kind in _alternatives(hint):
        converted = _convert(value, kind, key, source)
        if converted is not _UNFIT:
            return converted
    if isinstance(value, bool) and str in _alternatives(hint):
        raise UserError(
            f"{source}: {key} was read as the truth value {value}; "
            f"words such as no, yes, on and off must be quoted where text is meant ({key}: 'no')"
        )
    raise UserError(f"{source}: {key} is {value!r}, but must be {_describe(hint)}")


_UNFIT = object()


def _alternatives(hint: Any) -> tuple[Any, ...]:
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return tuple(arm for arm in typing.get_args(hint) if arm is not types.NoneType)
    return (hint,)


def _allows_none(hint: Any) -> bool:
    return hint is Any or types.NoneType in typing.get_args(hint)


def _describe(hint: Any) -> str:
    names = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    names |= {list: "a list", dict: "a section of keys", tuple: "a list"}
    arms = [
        f"a list of {length}"
        if (length := _fixed_length(arm))
        else names.get(typing.get_origin(arm) or arm, str(arm))
        for arm in _alternatives(hint)
    ]
    return " or ".join([*arms, *(["null"] if _allows_none(hint) else [])])


def _fixed_length(hint: Any) -> int | None:
    """How many items ``tuple[float, float]`` takes; None where any number will do."""
    items = typing.get_args(hint)
    return len(items) if typing.get_origin(hint) is tuple and Ellipsis not in items else None


def _convert(value: Any, kind: Any, key: str, source: str) -> Any:
    origin = typing.get_origin(kind) or kind
    if kind is Any:
        return value
    if origin in (list, tuple):
        if not isinstance(value, (list, tuple)):
            return _UNFIT
        arms = [arm for arm in typing.get_args(kind) if arm is not Ellipsis] or [Any]
        if _fixed_length(kind) not in (None, len(value)):
            return _UNFIT
        items = (
            typed(item, arms[min(i, len(arms) - 1)], f"{key}[{i}]", source) for i, item in enumerate(value)
        )
        return list(items)
    if origin is dict:
        return _section(value, key, source) if isinstance(value, Mapping) else _UNFIT
    if kind is float:
        return _as_float(value)
    if kind is int:
        return value if isinstance(value, int) and not isinstance(value, bool) else _UNFIT
    if kind is str and isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)  # a file or language named 2016
    return value if isinstance(value, origin) else _UNFIT


def _section(value: Mapping[Any, Any], key: str, source: str) -> Section:
    """A copy of a family's section. Its keys are checked by :func:`construct`, but none may name code."""
    for name, item in value.items():
        if str(name).startswith("_"):
            raise UserError(f'{source} has the unknown key "{key}.{name}" = {item!r}; no key starts with "_"')
    return {
        str(n): _section(v, f"{key}.{n}", source) if isinstance(v, Mapping) else v for n, v in value.items()
    }


def _as_float(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return _UNFIT
    try:
        number = float(value)
    except ValueError:
        return _UNFIT
    return number if math.isfinite(number) else _UNFIT


def check(config: Experiment) -> None:
    """Refuse values that are right one by one and contradict each other.

    Raises
    ------
    UserError
        Names both keys and what to change.
    """
    model, training = config.model, config.training
    check_model(config)
    if model.architecture == "transformer" and model.d_k is None and model.d_model % model.num_heads:
        raise UserError(
            f"model.d_model={model.d_model} is not a multiple of model.num_heads={model.num_heads}; "
            "change one of them or give model.d_k"
        )
    if model.tie == "all" and not config.tokenizer.joint:
        raise UserError(
            "tokenizer.joint=false makes a vocabulary a side, and model.tie=all needs one for both; "
            "type model.tie=decoder beside it"
        )
    if training.diagnose_every is not None and model.architecture != "transformer":
        raise UserError(
            f"training.diagnose_every={training.diagnose_every} measures the heads of a transformer, which "
            f"model.architecture={model.architecture} has none of; leave it out"
        )
    if training.average_last > training.keep_last:
        raise UserError(
            f"training.average_last={training.average_last} checkpoints cannot be averaged "
            f"where training.keep_last={training.keep_last} are kept; raise training.keep_last"
        )
    check_search(config.search)


def check_model(config: Experiment) -> None:
    """Refuse settings that the architecture does not read: they would be believed to do something.

    A key of ``model`` that only others read must stand at its default, and ``position`` must be something
    that the architecture can use: an lstm needs none, and only self-attention has queries and keys to turn.

    Raises
    ------
    UserError
        Names the key, the architecture, and what to type.
    """
    model, default, name = config.model, ModelConfig(), config.model.architecture
    for f in dataclasses.fields(model):
        value = getattr(model, f.name)
        if name in (f.metadata["of"] or ARCHITECTURES) or value == getattr(default, f.name):
            continue
        key, shown = (f.name, value) if f.name != "ffn" else ("ffn.activation", value.activation)
        raise UserError(
            f"model.{key}={shown} means nothing with model.architecture={name} "
            f"(it is for {' and '.join(f.metadata['of'])}); leave it out, or start from model=tiny_{name}"
        )
    for key in ("kind", "encoder", "decoder"):
        value = config.position.get(key) or "none"
        if (name == "lstm" and value != "none") or (name == "conv" and value == "rotary"):
            shown = "position" if key == "kind" else f"position.{key}"
            raise UserError(
                f"{shown}={value} means nothing with model.architecture={name}; "
                f"type {shown}={'none' if name == 'lstm' else 'sinusoidal'}"
            )


def check_search(search: SearchConfig) -> None:
    """Refuse search settings that are out of range or contradict each other.

    Settings made in Python come here too, so that the ranges are looked at once more; only ``alpha`` may be
    negative there, which prefers short translations.

    Raises
    ------
    UserError
        Names the keys and what to change.
    """
    for f in dataclasses.fields(search):
        value = getattr(search, f.name)
        _check_choice(value, f.metadata["choices"], f"search.{f.name}", "the settings")
        if f.name != "alpha":
            _check_range(value, f.metadata, f"search.{f.name}", "the settings")
    if search.top_p > 1:
        raise UserError(f"search.top_p is {search.top_p}, but a probability is at most 1")
    for low, high in (("min_length", "max_length"), ("min_length_ratio", "max_length_ratio")):
        if getattr(search, low) > getattr(search, high):
            raise UserError(
                f"search.{low}={getattr(search, low)} is more than search.{high}={getattr(search, high)}; "
                "change one of them"
            )
    _check_sampling(search)


def _check_sampling(search: SearchConfig) -> None:
    """Drawing at random knows no beam, and the settings of the draws mean nothing without them."""
    if search.sample:
        if search.beam_size != 1:
            raise UserError(
                f"search.sample=true draws token by token and has no beam of {search.beam_size}; "
                "type search.beam_size=1 beside it, or search=sampling"
            )
        return
    for name, nothing in (("temperature", 1.0), ("top_k", 0), ("top_p", 1.0)):
        if getattr(search, name) != nothing:
            raise UserError(
                f"search.{name}={getattr(search, name)} means nothing without sampling; "
                "type search.sample=true and search.beam_size=1 beside it, or search=sampling"
            )
    if search.n_best > search.beam_size:
        raise UserError(
            f"search.n_best={search.n_best} is more than search.beam_size={search.beam_size} hypotheses; "
            "change one of them"
        )


def absolute_paths(config: T) -> T:
    """A copy of a command's configuration with its paths made absolute against the working directory.

    Empty paths and ``-`` (standard input or output) stay; ``~/`` is the user's own folder.
    """
    values = {}
    for f in dataclasses.fields(config):  # type: ignore[arg-type]
        value = getattr(config, f.name)
        if f.metadata.get("path") and value not in f.metadata["words"]:
            values[f.name] = _absolute(value)
        elif f.metadata.get("paths"):
            keys = f.metadata["paths"].get(value.get("kind", ""), ())
            values[f.name] = {key: _absolute(v) if key in keys else v for key, v in value.items()}
    return dataclasses.replace(config, **values)  # type: ignore[type-var]


def _absolute(value: Any) -> Any:
    if isinstance(value, list):
        return [_absolute(item) for item in value]
    if isinstance(value, dict):
        return {name: _absolute(item) for name, item in value.items()}
    if not isinstance(value, str) or value in ("", "-"):
        return value
    return os.path.abspath(os.path.expanduser(value) if value.startswith("~/") else value)


def plain(config: Any) -> dict[str, Any]:
    """The configuration as nested plain data: what ``config.yaml`` and a checkpoint hold."""
    return dataclasses.asdict(config)


# --------------------------------------------------------------------------------------
# Families: a table of classes whose constructor arguments are the schema
# --------------------------------------------------------------------------------------


def construct(
    table: Mapping[str, type[T]], section: Mapping[str, Any], facts: Mapping[str, Any], key: str
) -> T:
    """Build the object that ``section`` describes.

    Parameters
    ----------
    table
        The family's own table: name to class.
    section
        ``kind`` names the class; every other key is one of its constructor's arguments.
    facts
        What the builder knows (``d_model`` ...); passed where the constructor has an argument of
        that name, never taken from the section.
    key
        The section's name, for errors.

    Raises
    ------
    UserError
        No or an unknown kind, an unknown key, a value of another type, or one that the constructor refuses.
    """
    kind = section.get("kind")
    if kind is None:
        raise UserError(f"{key}.kind is missing{nearest('', table)}")
    if not isinstance(kind, str) or kind not in table:
        raise UserError(f'{key}.kind cannot be "{kind}"{nearest(str(kind), table)}')
    arguments = settings(table[kind], section, facts, key)
    signature = inspect.signature(table[kind])
    known = {name: value for name, value in facts.items() if name in signature.parameters}
    try:
        return table[kind](**known, **arguments)
    except ValueError as error:
        raise UserError(f"{key}={kind}: {error}") from error


def settings(cls: type, section: Mapping[str, Any], facts: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The section's arguments for ``cls``, each checked against the constructor's annotation."""
    hints = typing.get_type_hints(cls.__init__)  # type: ignore[misc]
    allowed = [name for name in inspect.signature(cls).parameters if name not in facts]
    arguments = {}
    for name, value in section.items():
        if name == "kind":
            continue
        if name not in allowed:
            advice = nearest(name, allowed) or "; it takes no settings"
            raise UserError(f"{key}.{name} = {value!r} means nothing with {key}={section['kind']}{advice}")
        arguments[name] = typed(value, hints[name], f"{key}.{name}")
    required = inspect.signature(cls).parameters
    missing = [n for n in allowed if n not in arguments and required[n].default is inspect.Parameter.empty]
    if missing:
        raise UserError(f"{key}={section['kind']} needs {' and '.join(f'{key}.{name}' for name in missing)}")
    return arguments
