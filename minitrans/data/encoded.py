"""Encoded corpora: token ids in flat arrays, mapped into memory from the cache.

Letters: n pairs.
"""

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import datasets
import numpy as np

from minitrans.config import CleaningConfig
from minitrans.data.cache import cached, hash_plain
from minitrans.data.cleaning import CleaningReport, clean
from minitrans.data.corpus import Corpus
from minitrans.data.tokenizer import Tokenizer, Tokenizers

_ROWS_AT_A_TIME = 10_000


@dataclass(frozen=True)
class Side:
    """The ids of one side. Row i is ``ids[starts[i] : starts[i] + counts[i]]``, without start and end."""

    ids: np.ndarray  # (all tokens,) int32, memory-mapped
    starts: np.ndarray  # (n,) int64
    counts: np.ndarray  # (n,) int64

    def __getitem__(self, row: int) -> np.ndarray:
        start = self.starts[row]
        return self.ids[start : start + self.counts[row]]

    @property
    def lengths(self) -> np.ndarray:
        """(n,) tokens of each row, end token counted."""
        return self.counts + 1

    def take(self, rows: np.ndarray) -> "Side":
        """These rows, in this order; the ids stay where they are."""
        return Side(self.ids, self.starts[rows], self.counts[rows])


@dataclass(frozen=True)
class EncodedCorpus:
    """A split as token ids: row i is the pair on line ``lines[i] + 1`` of ``origin``."""

    src: Side
    tgt: Side
    lines: np.ndarray  # (n,) int64, rows of the corpus, from 0
    origin: str  # the files, for errors

    def __len__(self) -> int:
        return len(self.lines)

    @cached_property
    def lengths(self) -> np.ndarray:
        """(n, 2) tokens of source and target, end tokens counted."""
        return np.stack([self.src.lengths, self.tgt.lengths], axis=1)

    def take(self, rows: np.ndarray) -> "EncodedCorpus":
        """These rows, in this order."""
        return dataclasses.replace(
            self, src=self.src.take(rows), tgt=self.tgt.take(rows), lines=self.lines[rows]
        )


def encode_corpus(corpus: Corpus, tokenizers: Tokenizers) -> EncodedCorpus:
    """Encode every pair of a split, or take from the cache what these tokenizers made of this text."""

    def make(folder: Path) -> None:
        for name, texts, tokenizer in [
            ("src", corpus.src, tokenizers.src),
            ("tgt", corpus.tgt, tokenizers.tgt),
        ]:
            _encode_side(texts, tokenizer, folder, name)

    entry = cached("encoded", [corpus.fingerprint, hash_plain(tokenizers.state())], make)
    src, tgt = _read_side(entry, "src"), _read_side(entry, "tgt")
    return EncodedCorpus(src, tgt, np.arange(len(corpus)), corpus.origin)


def encode_training(
    corpus: Corpus, tokenizers: Tokenizers, config: CleaningConfig
) -> tuple[EncodedCorpus, CleaningReport]:
    """Encode the training split and leave out what the rules say; the report is there to be printed.

    Raises
    ------
    UserError
        No pair is left.
    """
    encoded = encode_corpus(corpus, tokenizers)
    rows, report = clean(encoded.src.lengths, encoded.tgt.lengths, config, corpus.origin)
    return encoded.take(rows), report


def _encode_side(
    texts: "datasets.arrow_dataset.Column", tokenizer: Tokenizer, folder: Path, name: str
) -> None:
    """Write ``name.ids.npy`` and ``name.counts.npy``, holding one block of text at a time."""
    blocks, counts = [], []
    for start in range(0, len(texts), _ROWS_AT_A_TIME):
        block, of_each = tokenizer.encode_flat(texts[start : start + _ROWS_AT_A_TIME])
        blocks.append(block)
        counts.append(of_each)
    np.save(folder / f"{name}.ids.npy", np.concatenate(blocks))
    np.save(folder / f"{name}.counts.npy", np.concatenate(counts))


def _read_side(folder: Path, name: str) -> Side:
    counts = np.load(folder / f"{name}.counts.npy")
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    path = folder / f"{name}.ids.npy"
    ids = np.load(path, mmap_mode="r") if counts.any() else np.load(path)  # nothing cannot be mapped
    return Side(ids, starts, counts)
