"""What a translation may be: how long, how it begins, and which tokens may not come next.

A token that is not allowed keeps its share of the model's probability: the others are not made likelier.

Letters: B sentences, R rows (hypotheses), S source length, t tokens so far, n length of an n-gram,
P longest forced beginning, N vocabulary.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from minitrans.config import SearchConfig
from minitrans.errors import UserError

PAD, START, END = 0, 1, 2
NEVER = -math.inf


@dataclass(frozen=True)
class Constraints:
    """The bounds of each sentence of a batch.

    Attributes
    ----------
    minimum, limit
        (B,) fewest and most tokens of its translation, end not counted.
    prefix
        (B, P) the tokens that it begins with, filled up with padding.
    no_repeat_ngram
        No n-gram of this length comes twice (0: it may).
    """

    minimum: Tensor
    limit: Tensor
    prefix: Tensor
    no_repeat_ngram: int

    @classmethod
    def of(
        cls,
        src_mask: Tensor,
        settings: SearchConfig,
        tgt_limit: int | None,
        prefixes: Sequence[Sequence[int]] | None = None,
    ) -> "Constraints":
        """The bounds that the settings mean for the sources of a (B, 1, S) mask.

        Absolute bounds hold over relative ones, and both over what a short source would allow: a sentence
        may be as long as its forced beginning and its minimum, but never longer than ``max_length`` or the
        model's positions.

        Raises
        ------
        UserError
            A forced beginning longer than that, or with padding, start or end in it.
        """
        longest = longest_allowed(settings, tgt_limit)
        rows = [()] * len(src_mask) if prefixes is None else prefixes
        for number, row in enumerate(rows, start=1):
            check_prefix(row, longest, f"sentence {number} of the batch")
        prefix = torch.nn.utils.rnn.pad_sequence(
            [torch.tensor(row, dtype=torch.long) for row in rows], batch_first=True, padding_value=PAD
        ).to(src_mask.device)  # (B, P)
        num_tokens = src_mask.sum(dim=(1, 2)) - 1  # (B,), end token not counted
        minimum = (num_tokens * settings.min_length_ratio).ceil().long().clamp(settings.min_length, longest)
        limit = (num_tokens * settings.max_length_ratio + 10).long().clamp(max=longest)
        limit = torch.maximum(torch.maximum(limit, minimum), (prefix != PAD).sum(dim=1))
        return cls(minimum, limit, prefix, settings.no_repeat_ngram)

    def forbid(self, log_prob: Tensor, tokens: Tensor, sentence: Tensor) -> None:
        """Write -inf over the next tokens that are not allowed; the end is one where a beginning is forced.

        Parameters
        ----------
        log_prob
            (R, N), changed in place.
        tokens
            (R, 1 + t) of each hypothesis, start first.
        sentence
            (R,) whose bounds hold for each row.
        """
        t = tokens.size(1) - 1
        wanted = None
        if t < self.prefix.size(1):
            wanted = self.prefix[sentence, t].unsqueeze(-1)  # (R, 1); padding: free to choose
            kept = log_prob.gather(-1, wanted)  # (R, 1): a forced token may be what is forbidden else
        log_prob[:, [PAD, START]] = NEVER
        if self.no_repeat_ngram:
            log_prob.masked_fill_(
                completes_ngram(tokens[:, 1:], self.no_repeat_ngram, log_prob.size(-1)), NEVER
            )
        if wanted is not None:
            forced = wanted != PAD  # (R, 1)
            log_prob.masked_fill_(forced, NEVER)
            log_prob.scatter_(-1, wanted, torch.where(forced, kept, NEVER))

    def may_end(self, sentence: Tensor, t: int) -> Tensor:
        """Whether t tokens are enough, and the forced beginning is over: bool like ``sentence``."""
        enough = self.minimum[sentence] <= t
        return enough & (self.prefix[sentence, t] == PAD) if t < self.prefix.size(1) else enough


def longest_allowed(settings: SearchConfig, tgt_limit: int | None) -> int:
    """Most tokens of any translation, end not counted; the start token takes a position of the model's."""
    return settings.max_length if tgt_limit is None else min(settings.max_length, tgt_limit - 1)


def check_prefix(tokens: Sequence[int], longest: int, name: str) -> None:
    """Refuse a forced beginning that no translation can have."""
    if not {PAD, START, END}.isdisjoint(tokens):
        raise UserError(f"the forced beginning of {name} holds padding, start or end, which are no words")
    if len(tokens) > longest:
        raise UserError(
            f"the forced beginning of {name} has {len(tokens)} tokens, but a translation has at most "
            f"{longest} (search.max_length, or the model's learned positions); shorten it"
        )


def completes_ngram(tokens: Tensor, n: int, vocab_size: int) -> Tensor:
    """Which next tokens would repeat n tokens in a row that are there already.

    Parameters
    ----------
    tokens
        (R, t) without the start token.

    Returns
    -------
    (R, N) bool.
    """
    num_rows, t = tokens.shape
    seen = tokens.new_zeros(num_rows, vocab_size)
    if t >= n:
        ngrams = tokens.unfold(1, n, 1)  # (R, t - n + 1, n)
        newest = tokens[:, t - n + 1 :].unsqueeze(1)  # (R, 1, n - 1)
        begins_alike = (ngrams[..., :-1] == newest).all(dim=-1)  # (R, t - n + 1)
        seen = seen.scatter_add(1, ngrams[..., -1], begins_alike.long())
    return seen > 0
