"""``benchmark.py decode``: sentences a second of the real search, beside others on the same sources.

A window is one pass over the sources, in batches of like lengths, the longest first. The clock holds padding,
search and the tokens' way into Python lists; reading, tokenising, loading and laying out the weights stand
outside of it.

Letters: B sentences of a batch, W hypotheses of each, S source length, D d_model, N vocabulary.
"""

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minitrans import checkpoint
from minitrans.allocator import keep_freed_memory
from minitrans.benchmark.contest import LastWord, MeasuredJob, Outcome, Spread, measure
from minitrans.benchmark.machine import peak_gpu_memory_mb, peak_memory_mb
from minitrans.benchmark.parts import Clock
from minitrans.benchmark.peers.decoding import Decode, RivalDecoder, Work, rival_decoders
from minitrans.benchmark.profiling import traced
from minitrans.benchmark.settings import BenchmarkConfig
from minitrans.build import build_model
from minitrans.config import Experiment, SearchConfig, check_search, construct
from minitrans.data.batching import padded
from minitrans.data.corpus import SOURCES
from minitrans.data.tokenizer import PAD_ID, Tokenizers
from minitrans.decoding.search import Searchable, search
from minitrans.errors import UserError
from minitrans.model.encoder_decoder import EncoderDecoder
from minitrans.model.fast.packed import packed
from minitrans.model.masks import padding_mask

OURS = "minitrans"
TRACED_BATCHES = 2
TORCH_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}

Batches = Sequence[Sequence[Sequence[int]]]  # batches of sentences of ids, without start and end


@dataclass(frozen=True, kw_only=True)
class Job(MeasuredJob):
    """One process's work.

    Attributes
    ----------
    experiment, vocab_sizes
        What the model is made of, and the entries of both vocabularies.
    checkpoint
        Where its weights are (empty: random ones).
    """

    experiment: Experiment
    vocab_sizes: tuple[int, int]
    checkpoint: str
    search: SearchConfig
    length: int | None
    dtype: str
    batches: Batches
    threads: int
    on_gpu: bool
    rival: RivalDecoder | None = None

    def model(self) -> EncoderDecoder:
        """The model, in evaluation mode, in float32."""
        if self.checkpoint:
            return checkpoint.load(self.checkpoint).model.eval()
        return build_model(self.experiment, *self.vocab_sizes, fast=self.experiment.training.fast).eval()


@dataclass(frozen=True)
class Window:
    """One pass over the sources."""

    seconds: float
    cpu_seconds: float  # of all threads
    sentences: int
    output_tokens: int  # end tokens not counted

    def __str__(self) -> str:
        return f"{self.sentences / self.seconds:,.0f} sentences/s"


@dataclass(frozen=True, kw_only=True)
class LastDecodingWord(LastWord):
    """What a process that decoded tells of itself."""

    steps_per_output_token: float | None = None  # end tokens counted; None: it did not look


@dataclass(frozen=True)
class DecodingResult:
    """One contestant's figures with one beam and one type."""

    name: str
    dtype: str
    beam_size: int
    length: int | None
    windows: tuple[Window, ...]
    last: LastDecodingWord

    @property
    def sentences_per_s(self) -> Spread:
        """Of each pass."""
        return Spread(tuple(window.sentences / window.seconds for window in self.windows))

    @property
    def output_tokens_per_s(self) -> Spread:
        """Of each pass."""
        return Spread(tuple(window.output_tokens / window.seconds for window in self.windows))

    def row(self) -> dict[str, Any]:
        """The JSON line."""
        speed = self.sentences_per_s
        return {
            "benchmark": "decode",
            "name": self.name,
            "beam_size": self.beam_size,
            "dtype": self.dtype,
            "length": self.length,
            "sentences_per_s": speed.median,
            "output_tokens_per_s": self.output_tokens_per_s.median,
            "spread": speed.spread,
            "windows": list(speed.values),
            "sentences_per_cpu_s": Spread(tuple(w.sentences / w.cpu_seconds for w in self.windows)).median,
            "sentences": self.windows[0].sentences,
            "output_tokens": self.windows[0].output_tokens,
            "steps_per_output_token": self.last.steps_per_output_token,
            "peak_rss_mb": self.last.peak_rss_mb,
            "peak_gpu_mb": self.last.peak_gpu_mb,
            "threads": self.last.threads,
            "shares": self.last.shares,
        }


def measure_decoding(config: BenchmarkConfig, own: Job) -> Iterator[list[DecodingResult]]:
    """For each beam, the others' results where asked for and then ours, one for each type.

    Parameters
    ----------
    config
        The configuration.
    own
        What :func:`decoding_job` made of it.

    Raises
    ------
    UserError
        A type that no search has, search settings without meaning: before the first beam is measured.
    """
    types = list(TORCH_TYPES) if config.trainer.precision == "auto" else [config.trainer.precision]
    if unfit := [dtype for dtype in types if dtype not in TORCH_TYPES]:
        raise UserError(f"trainer.precision={unfit[0]} cannot be measured by decode; use fp32, bf16 or auto")
    searches = [(beam_size, search_settings(config, beam_size)) for beam_size in config.decode.beam_sizes]
    for _, settings in searches:
        check_search(settings)
    for beam_size, settings in searches:
        base = dataclasses.replace(own, search=settings)
        contestants = {
            (rival.name, rival.dtype): dataclasses.replace(base, rival=rival, dtype=rival.dtype, looks=False)
            for rival in _rivals(config, own.experiment, types)
        }
        contestants |= {(OURS, dtype): dataclasses.replace(base, dtype=dtype) for dtype in types}
        made = measure({" ".join(named): job for named, job in contestants.items()}, _decode)
        yield [
            DecodingResult(*named, beam_size, config.decode.length, outcome.windows, outcome.last)
            for named, outcome in zip(contestants, made.values(), strict=True)
        ]


def _rivals(config: BenchmarkConfig, experiment: Experiment, types: Sequence[str]) -> list[RivalDecoder]:
    return rival_decoders(experiment, config.decode.length, types) if config.peers else []


def search_settings(config: BenchmarkConfig, beam_size: int) -> SearchConfig:
    """The configured search with another beam, its lengths forced where wanted."""
    own = config.search
    settings = own.greedy() if beam_size == 1 else dataclasses.replace(own, beam_size=beam_size)
    length = config.decode.length
    if length is None:
        return settings
    return dataclasses.replace(
        settings, min_length=length, max_length=length, min_length_ratio=0.0, max_length_ratio=1.0
    )


def decoding_job(config: BenchmarkConfig, typed: Mapping[str, Any]) -> Job:
    """The sources and the model that are measured.

    Parameters
    ----------
    config
        The configuration.
    typed
        What the user typed of it: with a checkpoint, its own data set is taken where none was typed.

    Raises
    ------
    UserError
        Nothing to translate or to measure, a checkpoint that cannot be read, no GPU where one is asked for.
    """
    if not config.decode.beam_sizes:
        raise UserError("decode.beam_sizes=[] measures nothing; name beams, such as decode.beam_sizes=[1,5]")
    if config.trainer.accelerator == "gpu" and not torch.cuda.is_available():
        raise UserError("trainer.accelerator=gpu, but torch finds no GPU here; use trainer=cpu or auto")
    experiment: Experiment = config
    tokenizers = None
    if config.checkpoint:
        loaded = checkpoint.load(config.checkpoint)
        experiment, tokenizers = loaded.experiment, loaded.tokenizers
    data_typed = any(key.split(".")[0] == "data" for key in typed)
    source = construct(SOURCES, config.data if data_typed else experiment.data, {}, "data")
    if tokenizers is None:
        tokenizers = Tokenizers.train(source.load("train"), config.tokenizer)
    texts = source.load(config.decode.split).src[: config.decode.sentences]
    rows = [row for row in tokenizers.src.encode(texts) if row]
    if not rows:
        raise UserError(f"the split {config.decode.split} has no source that is not blank; choose another")
    return Job(
        experiment=Experiment(
            **{f.name: getattr(experiment, f.name) for f in dataclasses.fields(Experiment)}
        ),
        vocab_sizes=(tokenizers.src.vocab_size, tokenizers.tgt.vocab_size),
        checkpoint=config.checkpoint,
        search=config.search,
        length=config.decode.length,
        dtype="fp32",
        batches=_batches(rows, config.decode.batch_sentences),
        threads=config.threads,
        on_gpu=config.trainer.accelerator != "cpu" and torch.cuda.is_available(),
        warm_up=config.warm_up,
        windows=config.windows,
        looks=True,
        profile=config.profile,
    )


def _batches(rows: Sequence[Sequence[int]], size: int) -> Batches:
    """The rows in batches of so many, the longest first."""
    order = np.argsort([-len(row) for row in rows], kind="stable")
    return [[rows[i] for i in order[start : start + size]] for start in range(0, len(rows), size)]


# --------------------------------------------------------------------------------------
# In the process of a contestant
# --------------------------------------------------------------------------------------


def _decode(job: Job) -> Outcome[Window, LastDecodingWord]:
    """Warm up, make the passes, then, where it is to, look where the time goes."""
    if job.threads:
        torch.set_num_threads(job.threads)
    if job.rival is None:
        model = _on_its_device(job)
        if model.fast:
            keep_freed_memory()  # as the commands that translate do
        decode: Decode = _searching(packed(model), job.search, _device(model))
    else:
        decode = job.rival.build(
            Work(job.experiment, job.model(), job.search, job.length, torch.get_num_threads(), job.on_gpu)
        )
    _search_for(job.warm_up, decode, job.batches)
    windows = tuple(_pass(decode, job.batches) for _ in range(job.windows))
    last = LastDecodingWord(
        peak_rss_mb=peak_memory_mb(),
        peak_gpu_mb=peak_gpu_memory_mb(),
        threads=torch.get_num_threads(),
        shares={},
        operations=[],
        trace=None,
    )
    return Outcome(windows, _looking(last, model, job) if job.looks else last)


def _search_for(seconds: float, decode: Decode, batches: Batches) -> None:
    """Batches outside of any window, at least one."""
    start, passed = time.perf_counter(), 0
    while passed == 0 or time.perf_counter() - start < seconds:
        decode(batches[passed % len(batches)])
        passed += 1


def _on_its_device(job: Job) -> EncoderDecoder:
    return job.model().to("cuda" if job.on_gpu else "cpu", TORCH_TYPES[job.dtype])


def _pass(decode: Decode, batches: Batches) -> Window:
    start, cpu = time.perf_counter(), time.process_time()
    outputs = [tokens for batch in batches for tokens in decode(batch)]
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu
    return Window(seconds, cpu_seconds, len(outputs), sum(len(tokens) for tokens in outputs))


def _device(model: EncoderDecoder) -> torch.device:
    return next(model.parameters()).device


def _searching(model: Searchable, settings: SearchConfig, device: torch.device) -> Decode:
    """Our search on one batch."""

    def decode(batch: Sequence[Sequence[int]]) -> list[Sequence[int]]:
        src = padded(batch, end=True).to(device)  # (B, S)
        return [found.tokens for found in search(model, src, padding_mask(src, PAD_ID), settings)]

    return decode


class Watched:
    """A model whose calls tell a clock which part of the search is under way; the rest is bookkeeping."""

    def __init__(self, model: Searchable) -> None:
        self.model, self.clock = model, Clock()
        self.sentence_steps = 0  # steps, each times the sentences that are still searched

    @property
    def tgt_limit(self) -> int | None:
        """The model's."""
        return self.model.tgt_limit

    def encode(self, src: Tensor, src_mask: Tensor) -> Tensor:
        """(B, S), (B, 1, S) -> (B, S, D)."""
        with self.clock.part("encoder"):
            return self.model.encode(src, src_mask)

    def start_cache(self, memory: Tensor, src_mask: Tensor) -> Any:
        """(B, S, D), (B, 1, S) -> the cache."""
        with self.clock.part("encoder"):
            return self.model.start_cache(memory, src_mask)

    def step(self, tgt: Tensor, cache: Any) -> tuple[Tensor, Any]:
        """(B*W, 1) -> (B*W, 1, D)."""
        self.sentence_steps += len(cache.src_mask)
        with self.clock.part("decoder"):
            return self.model.step(tgt, cache)

    def attending_step(self, tgt: Tensor, cache: Any) -> tuple[Tensor, Tensor, Any]:
        """(B*W, 1) -> (B*W, 1, D), (B*W, 1, S)."""
        self.sentence_steps += len(cache.src_mask)
        with self.clock.part("decoder"):
            return self.model.attending_step(tgt, cache)

    def logits(self, states: Tensor) -> Tensor:
        """(B*W, 1, D) -> (B*W, 1, N)."""
        with self.clock.part("softmax"):
            return self.model.logits(states)


def _looking(last: LastDecodingWord, model: EncoderDecoder, job: Job) -> LastDecodingWord:
    """Add the parts' shares and the steps an output token, of one more pass; the trace of a few batches."""
    watched = Watched(packed(model))
    window = _pass(_searching(watched, job.search, _device(model)), job.batches)
    named = {
        "bookkeeping" if name == "other" else name: part for name, part in watched.clock.shares().items()
    }
    steps = watched.sentence_steps / (window.output_tokens + window.sentences)
    last = dataclasses.replace(last, shares=named, steps_per_output_token=steps)
    if not job.profile:
        return last
    few = job.batches[:TRACED_BATCHES]
    decode = _searching(packed(model), job.search, _device(model))
    with traced(Path(job.profile), f"decode-beam{job.search.beam_size}-{job.dtype}", len(few)) as trace:
        _pass(decode, few)
    return dataclasses.replace(last, operations=trace.operations, trace=trace.path)
