"""``benchmark.py data``: tokenising, planning, feeding.

* Tokenising: the whole way from text to the arrays on the disk, beside the tokenizers library alone on the
  same lines.
* Planning: the updates of one epoch of generated pairs, in a process of its own for its memory.
* Feeding: micro-batches a second, with nobody to train on them.
"""

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import tokenizers

from minitrans.benchmark.contest import Spread, in_own_process, tell
from minitrans.benchmark.machine import peak_memory_mb
from minitrans.benchmark.settings import BenchmarkConfig
from minitrans.config import construct
from minitrans.data.corpus import SOURCES, Corpus
from minitrans.data.encoded import encode_corpus
from minitrans.data.plan import plan
from minitrans.data.stream import RunPlan, UpdateSize, UpdateStream
from minitrans.data.tokenizer import Tokenizers

MEAN_LENGTH, DEVIATION, LONGEST = 2.9, 0.6, 250  # of the logarithm of a length; of the longest side


@dataclass(frozen=True)
class PlanJob:
    """What is planned."""

    pairs: int
    size: UpdateSize
    seed: int


@dataclass(frozen=True)
class PlanResult:
    """What planning came to."""

    seconds: float
    peak_rss_mb: float  # with the lengths of all pairs, and what Python and its libraries take
    base_rss_mb: float  # those alone, before any pair
    updates: int
    pairs: int


@dataclass(frozen=True)
class DataResult:
    """What was measured of the data's way."""

    sentences: int  # of both sides of the training split
    sentences_per_s: Spread
    library_sentences_per_s: Spread
    feed_tokens_per_s: Spread
    planned: PlanResult

    def row(self) -> dict[str, Any]:
        """The JSON line."""
        return {
            "benchmark": "data",
            "sentences": self.sentences,
            "tokenised_sentences_per_s": self.sentences_per_s.median,
            "library_sentences_per_s": self.library_sentences_per_s.median,
            "tokenised_over_library": self.sentences_per_s.over(self.library_sentences_per_s).median,
            "feed_tokens_per_s": self.feed_tokens_per_s.median,
            "planned_pairs": self.planned.pairs,
            "planned_updates": self.planned.updates,
            "plan_s": self.planned.seconds,
            "plan_peak_rss_mb": self.planned.peak_rss_mb,
            "plan_base_rss_mb": self.planned.base_rss_mb,
        }


def measure_data(config: BenchmarkConfig) -> DataResult:
    """Measure the training split of the configured data, and planning.

    Raises
    ------
    UserError
        Data that cannot be read, or a pair longer than an update may be.
    """
    corpus = construct(SOURCES, config.data, {}, "data").load("train")
    trained = Tokenizers.train(corpus, config.tokenizer)
    training = config.training
    size = UpdateSize(
        training.update_tokens, training.update_sentences, training.chunk_tokens, training.accumulate
    )
    ours, library = zip(*(_tokenise(corpus, trained) for _ in range(config.windows)), strict=True)
    tell(f"tokenising {2 * len(corpus):,} sentences: {', '.join(f'{seconds:.2f}' for seconds in ours)} s")
    run_plan = RunPlan(encode_corpus(corpus, trained), size, config.seed, 10**9, None)
    feeds = tuple(_feed(run_plan, config.seconds) for _ in range(config.windows))
    tell(f"feeding: {', '.join(f'{speed:,.0f}' for speed in feeds)} target tokens/s")
    planned = in_own_process("planning", _plan, PlanJob(config.corpus.pairs, size, 1))
    sentences = 2 * len(corpus)
    return DataResult(
        sentences,
        Spread(tuple(sentences / seconds for seconds in ours)),
        Spread(tuple(sentences / seconds for seconds in library)),
        Spread(feeds),
        planned,
    )


def _tokenise(corpus: Corpus, trained: Tokenizers) -> tuple[float, float]:
    """Seconds of our whole way with an empty cache, and of the library alone."""
    with _empty_cache():
        start = time.perf_counter()
        encode_corpus(corpus, trained)
        ours = time.perf_counter() - start
    lines = [list(corpus.src), list(corpus.tgt)]
    library = [tokenizers.Tokenizer.from_str(own.to_json()) for own in (trained.src, trained.tgt)]
    start = time.perf_counter()
    for texts, tokenizer in zip(lines, library, strict=True):
        tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    return ours, time.perf_counter() - start


@contextmanager
def _empty_cache() -> Iterator[None]:
    before = os.environ.get("MINITRANS_CACHE")
    with tempfile.TemporaryDirectory(prefix="minitrans-benchmark-") as folder:
        os.environ["MINITRANS_CACHE"] = folder
        try:
            yield
        finally:
            if before is None:
                del os.environ["MINITRANS_CACHE"]
            else:
                os.environ["MINITRANS_CACHE"] = before


def _feed(run_plan: RunPlan, seconds: float) -> float:
    """Target tokens a second of the loader alone."""
    shares = UpdateStream(run_plan, 0, rank=0, world_size=1).loader(0, pin_memory=False)
    start, tokens = time.perf_counter(), 0
    for share in shares:
        tokens += share.target_tokens
        if time.perf_counter() - start >= seconds:
            break
    return tokens / (time.perf_counter() - start)


def generated_lengths(pairs: int, seed: int) -> np.ndarray:
    """(pairs, 2) lengths as of sentences: log-normal, the target's near the source's."""
    generator = np.random.default_rng(seed)
    logarithms = generator.normal(MEAN_LENGTH, DEVIATION, pairs)
    lengths = np.empty((pairs, 2), dtype=np.int64)
    for side in range(2):
        lengths[:, side] = np.exp(logarithms + generator.normal(0, 0.1, pairs)).clip(2, LONGEST)
    return lengths


def _plan(job: PlanJob) -> PlanResult:
    base = peak_memory_mb()
    lengths = generated_lengths(job.pairs, job.seed)
    start = time.perf_counter()
    updates = plan(
        lengths,
        update_tokens=None if job.size.update_sentences else job.size.update_tokens,
        update_sentences=job.size.update_sentences,
        chunk_tokens=job.size.chunk_tokens,
        seed=job.seed,
        epoch=1,
    )
    seconds = time.perf_counter() - start
    return PlanResult(seconds, peak_memory_mb(), base, len(updates), job.pairs)
