"""From lines of text to lines of text: tokenizer, batches, search, tokenizer.

Letters: B batch, S source length, T target length, D d_model.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor, nn

from minitrans.config import SearchConfig, check_search
from minitrans.data.batching import evaluation_batches, padded
from minitrans.data.tokenizer import PAD_ID, Tokenizers
from minitrans.decoding.search import Hypothesis, Searchable, search
from minitrans.errors import UserError
from minitrans.processes import ALONE, Processes


class TranslationModel(Searchable, Protocol):
    """The face of an encoder-decoder that can be searched and scored, and is a ``torch.nn.Module``."""

    training: bool

    @property
    def src_limit(self) -> int | None:
        """The longest source that the model has positions for, the end token counted."""

    def decode(self, tgt: Tensor, memory: Tensor, src_mask: Tensor) -> Tensor:
        """All positions at once: (B, T), (B, S, D), (B, 1, S) -> states (B, T, D)."""

    def nll(self, states: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
        """Sums of the smoothed and of the plain cross-entropy over real target tokens."""

    def train(self, mode: bool = True) -> nn.Module:
        """Switch between training and evaluation mode."""

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """The weights."""


@dataclass(frozen=True)
class Translation:
    """One line's translation.

    Attributes
    ----------
    text
        One line: whatever a reader could take for the end of a line is a space.
    tokens
        The entries of the target vocabulary that the text is made of, as text.
    score
        log-probability / length penalty, natural logarithm (0 for a blank line).
    finished
        False where the length limit ended it.
    """

    text: str
    tokens: tuple[str, ...]
    score: float
    finished: bool


BLANK = Translation(text="", tokens=(), score=0.0, finished=True)


class Translator:
    """Translates text with one model and one way of searching.

    Parameters
    ----------
    model
        Put into evaluation mode while it translates, and back afterwards. Weights stay as they are.
    tokenizers
        The source side's encodes, the target side's decodes.
    search
        Width, penalty, limits.
    batch_tokens
        Padded source tokens of one batch, end tokens counted. A longer sentence goes alone.
    processes
        Those that share the batches of each call: every one makes the same calls, and gets everything.
    """

    def __init__(
        self,
        model: TranslationModel,
        tokenizers: Tokenizers,
        search: SearchConfig,
        batch_tokens: int = 4096,
        processes: Processes = ALONE,
    ) -> None:
        check_search(search)
        if batch_tokens < 1:
            raise UserError(f"batch_tokens is {batch_tokens}, but must be at least 1")
        self.model = model
        self.tokenizers = tokenizers
        self.search = search
        self.batch_tokens = batch_tokens
        self.processes = processes

    def translate(
        self,
        lines: Sequence[str],
        *,
        name: str = "the input",
        first_line: int = 1,
        progress: Callable[[int], object] | None = None,
    ) -> list[Translation]:
        """Translate each line. Blank lines give blank translations.

        Parameters
        ----------
        lines
            Sentences.
        name, first_line
            What the lines belong to and the first one's number there, for errors.
        progress
            Called with the number of lines that this process just translated, after each batch.

        Returns
        -------
        One translation a line, in order.

        Raises
        ------
        UserError
            A line that has more tokens than the model has positions for. Nothing was translated then.
        """
        rows = self.tokenizers.src.encode(lines)
        require_positions(rows, self.model.src_limit, name, first_line)
        filled = np.array([i for i, row in enumerate(rows) if row], dtype=np.int64)
        found: list[Translation] = [BLANK] * len(lines)
        _report(progress, len(lines) - len(filled))
        lengths = np.array([len(rows[i]) + 1 for i in filled], dtype=np.int64)
        batches = evaluation_batches(lengths, self.batch_tokens) if len(filled) else []

        def translate_batch(batch: np.ndarray) -> list[Translation]:
            translations = self._translate([rows[i] for i in filled[batch]])
            _report(progress, len(batch))
            return translations

        with evaluating(self.model):
            translated = self.processes.map(translate_batch, batches)
        for batch, translations in zip(batches, translated, strict=True):
            for i, translation in zip(filled[batch], translations, strict=True):
                found[i] = translation
        return found

    def _translate(self, rows: Sequence[Sequence[int]]) -> list[Translation]:
        """One batch."""
        src = padded(rows, end=True).to(next(self.model.parameters()).device)  # (B, S)
        found = search(self.model, src, (src != PAD_ID).unsqueeze(1), self.search)  # mask (B, 1, S)
        texts = self.tokenizers.tgt.decode([hypothesis.tokens for hypothesis in found])
        return [self._present(hypothesis, text) for hypothesis, text in zip(found, texts, strict=True)]

    def _present(self, hypothesis: Hypothesis, text: str) -> Translation:
        pieces = self.tokenizers.tgt.pieces(hypothesis.tokens)
        return Translation(one_line(text), tuple(pieces), hypothesis.score, hypothesis.finished)


def require_positions(
    rows: Sequence[Sequence[int]], limit: int | None, name: str, first_line: int = 1
) -> None:
    """Refuse a sentence that learned positions cannot place, before any work is done.

    Parameters
    ----------
    rows
        Ids of each line, without start and end (one of which takes a position too).
    limit
        The model's longest sequence; None: no limit.
    name, first_line
        What the lines belong to and the first one's number there.

    Raises
    ------
    UserError
        Naming the line, its tokens and the limit.
    """
    for number, row in enumerate(rows, start=first_line):
        if limit is not None and len(row) + 1 > limit:
            raise UserError(
                f"{name}, line {number} has {len(row)} tokens and the end token, but the model has learned "
                f"positions for {limit} at most; shorten the line, or train with a larger position.max_length"
            )


def one_line(text: str) -> str:
    """``text`` with every end of a line that Unicode knows made a space, so that a file keeps its lines."""
    return " ".join(text.splitlines())


def _report(progress: Callable[[int], object] | None, num_lines: int) -> None:
    if progress is not None and num_lines:
        progress(num_lines)


@contextmanager
def evaluating(model: TranslationModel) -> Iterator[None]:
    """Evaluation mode (no dropout) inside, the mode it had before afterwards."""
    was_training = model.training
    model.train(False)
    try:
        yield
    finally:
        model.train(was_training)
