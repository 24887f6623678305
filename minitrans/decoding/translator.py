"""From lines of text to lines of text: tokenizer, batches, search, tokenizer.

Letters: B batch, S source length, T target length, m hypotheses of all lines of a batch.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypedDict, Unpack

import numpy as np
import torch

from minitrans.config import SearchConfig, check_search, parse, plain
from minitrans.data.batching import evaluation_batches, padded
from minitrans.data.tokenizer import PAD_ID, Tokenizers
from minitrans.decoding.alignment import link_words
from minitrans.decoding.constraints import check_prefix, longest_allowed
from minitrans.decoding.model import TranslationModel
from minitrans.decoding.search import Hypothesis, Searchable, search_n_best
from minitrans.decoding.translation import BLANK, SourceAttention, Translation, one_line
from minitrans.errors import UserError
from minitrans.model.fast.packed import packed
from minitrans.model.masks import padding_mask
from minitrans.processes import ALONE, Processes


class SearchOptions(TypedDict, total=False):
    """Search settings by name, see :class:`minitrans.config.SearchConfig`."""

    beam_size: int
    length_penalty: str
    alpha: float
    coverage: float
    min_length: int
    min_length_ratio: float
    max_length: int
    max_length_ratio: float
    no_repeat_ngram: int
    n_best: int
    sample: bool
    temperature: float
    top_k: int
    top_p: float
    seed: int


@dataclass(frozen=True)
class _Request:
    """What one call of :meth:`Translator.translate` asks for, but for the lines."""

    search: SearchConfig
    attention: bool
    layer: int | None


@dataclass(frozen=True)
class _Line:
    """A line that is not blank."""

    text: str
    ids: Sequence[int]
    prefix: Sequence[int]


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
        prefixes: Sequence[str] | None = None,
        attention: bool = False,
        attention_layer: int | None = None,
        name: str = "the input",
        first_line: int = 1,
        progress: Callable[[int], object] | None = None,
        **search: Unpack[SearchOptions],
    ) -> list[Translation]:
        """Translate each line. Blank lines give blank translations.

        Parameters
        ----------
        lines
            Sentences.
        prefixes
            What each line's translation begins with, as text (empty: free).
        attention
            Tell where the model looked, which takes one more pass of the decoder.
        attention_layer
            Of which decoder layer, from 1; None for the last.
        name, first_line
            What the lines belong to and the first one's number there, for errors.
        progress
            Called with the number of lines that this process just translated, after each batch.
        search
            Search settings that differ from the translator's, for this call alone: ``beam_size=1`` ...

        Returns
        -------
        One translation a line, in order.

        Raises
        ------
        UserError
            A line that has more tokens than the model has positions for, a forced beginning longer than a
            translation may be, search settings without meaning. Nothing was translated then.
        """
        request = _Request(self._settings(search), attention, attention_layer)
        require_sentences(lines, name, first_line)
        rows = self.tokenizers.src.encode(lines)
        require_positions(rows, self.model.src_limit, name, first_line)
        begun = self._begun(lines, prefixes, request.search, first_line)
        filled = [_Line(*parts) for parts in zip(lines, rows, begun, strict=True) if parts[1]]
        _report(progress, len(lines) - len(filled))
        found = iter(self._translate_all(filled, request, progress) if filled else [])
        return [next(found) if row else BLANK for row in rows]

    def _translate_all(
        self, lines: Sequence[_Line], request: _Request, progress: Callable[[int], object] | None
    ) -> list[Translation]:
        """All lines, in batches of like lengths; the translations in the lines' order."""
        lengths = np.array([len(line.ids) + 1 for line in lines], dtype=np.int64)
        batches = evaluation_batches(lengths, self.batch_tokens)
        searched = packed(self.model)  # anew in each call: the model may have been trained in between

        def translate_batch(batch: np.ndarray) -> list[Translation]:
            translations = self._translate(searched, [lines[i] for i in batch], request)
            _report(progress, len(batch))
            return translations

        with evaluating(self.model):
            translated = self.processes.map(translate_batch, batches)
        found: list[Translation] = [BLANK] * len(lines)
        for batch, translations in zip(batches, translated, strict=True):
            for i, translation in zip(batch, translations, strict=True):
                found[i] = translation
        return found

    def _settings(self, options: SearchOptions) -> SearchConfig:
        """The translator's settings with ``options`` over them."""
        if not options:
            return self.search
        settings = parse(SearchConfig, {**plain(self.search), **options}, "the call", "search.")
        check_search(settings)
        return settings

    def _begun(
        self, lines: Sequence[str], prefixes: Sequence[str] | None, search: SearchConfig, first_line: int
    ) -> list[list[int]]:
        """The ids of each line's forced beginning."""
        if prefixes is None:
            return [[] for _ in lines]
        require_sentences(prefixes, "the forced beginnings", first_line)
        if len(prefixes) != len(lines):
            raise UserError(
                f"each line needs one forced beginning, but there are {len(lines)} and {len(prefixes)}"
            )
        begun = self.tokenizers.tgt.encode(prefixes)
        longest = longest_allowed(search, self.model.tgt_limit)
        for number, ids in enumerate(begun, start=first_line):
            check_prefix(ids, longest, f"line {number}")
        return begun

    def _translate(self, model: Searchable, lines: Sequence[_Line], request: _Request) -> list[Translation]:
        """One batch."""
        src = padded([line.ids for line in lines], end=True).to(self._device)  # (B, S)
        prefixes = [line.prefix for line in lines]
        found = search_n_best(model, src, padding_mask(src, PAD_ID), request.search, prefixes)
        flat = [hypothesis for best in found for hypothesis in best]
        texts = iter(self.tokenizers.tgt.decode([hypothesis.tokens for hypothesis in flat]))
        looked = iter(self._attention(lines, found, request) if request.attention else [None] * len(flat))
        presented = [[self._present(one, next(texts), next(looked)) for one in best] for best in found]
        return [replace(best, others=tuple(others)) for best, *others in presented]

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device

    def _present(self, hypothesis: Hypothesis, text: str, attention: SourceAttention | None) -> Translation:
        return Translation(
            text=one_line(text),
            tokens=tuple(self.tokenizers.tgt.pieces(hypothesis.tokens)),
            score=hypothesis.score,
            finished=hypothesis.finished,
            log_prob=hypothesis.log_prob,
            token_log_probs=hypothesis.token_log_probs,
            near_tie=hypothesis.near_tie,
            attention=attention,
        )

    @torch.no_grad()
    def _attention(
        self, lines: Sequence[_Line], found: Sequence[Sequence[Hypothesis]], request: _Request
    ) -> list[SourceAttention]:
        """Where the model looked, for each hypothesis of each line."""
        pairs = [(line, hypothesis) for line, best in zip(lines, found, strict=True) for hypothesis in best]
        src = padded([line.ids for line, _ in pairs], end=True).to(self._device)  # (m, S)
        tgt = padded([hypothesis.tokens for _, hypothesis in pairs], start=True).to(self._device)  # (m, T)
        try:
            weights = self.model.source_attention(src, padding_mask(src, PAD_ID), tgt, request.layer)
        except ValueError as error:
            raise UserError(f"there is no such attention: {error}") from error
        rows = zip(pairs, weights.float().cpu().numpy(), strict=True)  # (m, T, S)
        return [
            self._looked(line, hypothesis.tokens, row[: len(hypothesis.tokens) + 1, : len(line.ids) + 1])
            for (line, hypothesis), row in rows
        ]

    def _looked(self, line: _Line, tokens: Sequence[int], weights: np.ndarray) -> SourceAttention:
        """Attention (T + 1, S + 1) with the tokens and words that it is between."""
        tgt = self.tokenizers.tgt
        so_far = tgt.decode([tokens[: t + 1] for t in range(len(tokens))])
        tgt_words = [max(len(text.split()) - 1, 0) for text in so_far]  # the word that each token ends in
        links = link_words(weights[:-1, :-1], self.tokenizers.src.word_numbers(line.text), tgt_words)
        return SourceAttention(tuple(self.tokenizers.src.pieces(line.ids)), weights.copy(), links)


def require_sentences(lines: Sequence[str], name: str, first_line: int = 1) -> None:
    """Refuse what is no list of text before anything is made of it: a string would be taken letter by letter.

    Raises
    ------
    UserError
        One string in place of a list, or a line that is no text.
    """
    if isinstance(lines, (str, bytes)):
        raise UserError(f"{name} must be a list of sentences, but it is one string; write [{lines!r:.40}]")
    for number, line in enumerate(lines, start=first_line):
        if not isinstance(line, str):
            raise UserError(f"{name}, line {number} is {line!r:.40}, which is no text")
        if not line.isascii() and any("\ud800" <= letter <= "\udfff" for letter in line):
            raise UserError(
                f"{name}, line {number} holds half of a character (a lone surrogate); decode it as UTF-8"
            )


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


__all__ = [
    "BLANK",
    "SearchOptions",
    "Translation",
    "TranslationModel",
    "Translator",
    "evaluating",
    "one_line",
    "require_positions",
]
