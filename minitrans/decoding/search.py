r"""Search: the translation y of highest penalised log-probability, by greedy or beam search.

    score(y) = log P(y | x) / penalty(|y|),    log P(y | x) = sum_t log P(y_t | y_<t, x)

One loop serves every width: each step extends the hypotheses of the *beam* by one token and keeps the
best. Greedy search is a beam of 1. A sentence is done when

* no unfinished hypothesis of its beam can still beat the best finished one: the score that it can at most
  reach (:func:`_optimistic`) is not above it;
* or it is as long as allowed. Ending is then the one continuation, at its own probability;
* or, greedy, ending was the best continuation.

Finished sentences leave the batch. A sentence's limits depend on that sentence alone, and so does its result.
A beam wider than the number of unfinished hypotheses that there can be makes the search exhaustive.

Letters: B sentences still searched, W hypotheses in each one's beam (1 at the start, then at most k),
k ``beam_size``, C = min(k, N) continuations looked at, S source length, t tokens so far, D d_model,
N vocabulary.
"""

import math
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from minitrans.config import SearchConfig
from minitrans.decoding.penalties import PENALTIES
from minitrans.errors import UserError, nearest

PAD, START, END = 0, 1, 2
NEVER = -math.inf


class Searchable(Protocol):
    """What search asks of a model: the encoder-decoder's face. Rivals of the Transformer have it too.

    A cache is what ``start_cache`` returns, B rows of it, one a sentence. ``cache.select(rows)`` reorders,
    repeats and drops rows: ``rows`` (B', W) names the old row that each new one continues, W hypotheses of
    one sentence in each line, so that what they share need not be repeated.
    """

    @property
    def tgt_limit(self) -> int | None:
        """The longest decoder input that the model has positions for, the start token counted."""

    def encode(self, src: Tensor, src_mask: Tensor) -> Tensor:
        """Map (B, S) ids and a (B, 1, S) mask, True = token, to the memory (B, S, D)."""

    def start_cache(self, memory: Tensor, src_mask: Tensor) -> Any:
        """Compute what every step needs of the source, once a sentence."""

    def step(self, tgt: Tensor, cache: Any) -> tuple[Tensor, Any]:
        """Map the newest tokens (B, 1) to states (B, 1, D) and the grown cache."""

    def logits(self, states: Tensor) -> Tensor:
        """Map (..., D) to (..., N)."""


@dataclass(frozen=True)
class Hypothesis:
    """A translation.

    Attributes
    ----------
    tokens
        Vocabulary ids, without start and end.
    log_prob
        log P(tokens, end | source), natural logarithm; without the end where its probability is 0.
    score
        ``log_prob`` divided by the length penalty.
    finished
        The search chose to end here. False: the length limit did.
    """

    tokens: tuple[int, ...]
    log_prob: float
    score: float
    finished: bool


@dataclass(frozen=True)
class _Beam:
    """Unfinished hypotheses of the sentences still searched. Dead places have the log-probability -inf."""

    sentence: Tensor  # (B,) rows of the batch
    limit: Tensor  # (B,) longest translation in tokens
    longest_penalty: Tensor  # (B,) penalty at that length, end counted
    tokens: Tensor  # (B, W, 1 + t) ids, start first
    log_prob: Tensor  # (B, W)
    best_score: Tensor  # (B,) of the finished hypotheses, -inf while there is none


@dataclass(frozen=True)
class _Extended:
    """All that one step can do to a beam."""

    ends: Tensor  # (B, W) log-probability of each hypothesis with the end token
    chosen: Tensor  # (B, W) bool: fewer than k unfinished continuations are better than the end
    forced: Tensor  # (B, 1) bool: the length limit leaves nothing but the end
    log_prob: Tensor  # (B, W') the best unfinished continuations, best first; W' = min(k, W * C)
    parent: Tensor  # (B, W') which hypothesis each one extends
    token: Tensor  # (B, W') by which token


@torch.no_grad()  # not inference_mode: tables that a model grows here must serve training too
def search(model: Searchable, src: Tensor, src_mask: Tensor, settings: SearchConfig) -> list[Hypothesis]:
    """Find the best translation of each row.

    Parameters
    ----------
    model
        In evaluation mode: dropout would make the result random.
    src
        (B, S) source ids, each row ``tokens + </s>``, padded at the right.
    src_mask
        (B, 1, S) bool, True = a token.
    settings
        Width, penalty, limits. A row's translation has at most ``max_length`` tokens, at most
        ``max_length_ratio`` x the row's tokens (end not counted) + 10, and fits the model's positions.

    Returns
    -------
    One hypothesis a row, in order. A beam of k keeps the k unfinished hypotheses of highest log-probability.
    One that ends while fewer than k unfinished ones are better is a finished one; those compare by score.

    Raises
    ------
    UserError
        Settings without meaning, or a model whose logits are not finite.
    """
    check(settings)
    cache = model.start_cache(model.encode(src, src_mask), src_mask)
    beam = _start(model, src_mask, settings)
    found: list[Hypothesis | None] = [None] * len(src)
    while len(beam.sentence):
        states, cache = model.step(beam.tokens[:, :, -1].reshape(-1, 1), cache)  # (B*W, 1, D)
        extended = _extend(beam, model.logits(states[:, -1]), settings.beam_size)  # logits (B*W, N)
        best_score = _finish(beam, extended, settings, found)
        going_on = _can_win(beam, extended, best_score, settings)
        _cut(beam, ~going_on, settings, found)
        beam, rows = _next(beam, extended, best_score, going_on)
        cache = cache.select(rows)
    return [hypothesis for hypothesis in found if hypothesis is not None]


def check(settings: SearchConfig) -> None:
    """Refuse settings without meaning, naming the key."""
    if settings.beam_size < 1:
        raise UserError(f"search.beam_size is {settings.beam_size}, but must be at least 1 (greedy)")
    if settings.max_length < 1:
        raise UserError(f"search.max_length is {settings.max_length}, but must be at least 1 token")
    if settings.max_length_ratio < 0:
        raise UserError(f"search.max_length_ratio is {settings.max_length_ratio}, but cannot be negative")
    if settings.length_penalty not in PENALTIES:
        advice = nearest(settings.length_penalty, PENALTIES)
        raise UserError(f'search.length_penalty cannot be "{settings.length_penalty}"{advice}')


def _start(model: Searchable, src_mask: Tensor, settings: SearchConfig) -> _Beam:
    """One hypothesis a sentence: the start token."""
    num_tokens = src_mask.sum(dim=(1, 2)) - 1  # (B,), end token not counted
    limit = (num_tokens * settings.max_length_ratio + 10).long().clamp(max=settings.max_length)  # (B,)
    if model.tgt_limit is not None:
        limit = limit.clamp(max=model.tgt_limit - 1)  # the start token takes a position
    size, device = len(limit), limit.device
    return _Beam(
        sentence=torch.arange(size, device=device),
        limit=limit,
        longest_penalty=_penalty(limit + 1, settings),
        tokens=torch.full((size, 1, 1), START, device=device),
        log_prob=torch.zeros(size, 1, device=device),
        best_score=torch.full((size,), NEVER, device=device),
    )


def _penalty(length: Tensor, settings: SearchConfig) -> Tensor:
    """What the log-probability of ``length`` scored tokens is divided by, fp32."""
    return PENALTIES[settings.length_penalty](length.float(), settings.alpha)


def _extend(beam: _Beam, logits: Tensor, beam_size: int) -> _Extended:
    """Score every continuation of every hypothesis, and rank them.

    Padding and start are never continuations, yet keep their share of the model's probability. The best k
    continuations of a beam are among the best k of each of its hypotheses, so only those are compared.
    """
    size, width, t = len(beam.sentence), beam.tokens.size(1), beam.tokens.size(2) - 1
    logits = logits.float()
    normaliser = logits.logsumexp(-1, keepdim=True)  # (B*W, 1); log P = logits - normaliser
    if not normaliser.isfinite().all():
        raise UserError("the model's logits are not finite: its training diverged, or its file is damaged")
    ends = beam.log_prob + (logits[:, END : END + 1] - normaliser).view(size, width)  # (B, W)
    others = logits.index_fill(-1, torch.tensor([PAD, START, END], device=logits.device), NEVER)
    best, token = others.topk(min(beam_size, logits.size(-1)))  # (B*W, C)
    total = beam.log_prob.unsqueeze(-1) + (best - normaliser).view(size, width, -1)  # (B, W, C)
    num_best = total.size(-1)
    log_prob, index = total.flatten(1).topk(min(beam_size, width * num_best))  # (B, W')
    token = token.view(size, -1).gather(1, index)
    at_limit = (beam.limit == t).unsqueeze(-1)  # (B, 1)
    return _Extended(
        ends=ends,
        chosen=ends >= log_prob[:, -1:],  # the k-th best unfinished one; -inf where there are no k
        forced=at_limit,
        log_prob=log_prob.masked_fill(at_limit, NEVER),
        parent=index // num_best,
        token=token,
    )


def _finish(
    beam: _Beam, extended: _Extended, settings: SearchConfig, found: list[Hypothesis | None]
) -> Tensor:
    """Compare the hypotheses that end now with the best finished one; return the best scores, (B,)."""
    length = torch.tensor(beam.tokens.size(2), device=beam.tokens.device)  # t tokens and the end
    taken = extended.chosen | extended.forced  # (B, W)
    scores = (extended.ends / _penalty(length, settings)).masked_fill(~taken, NEVER)  # (B, W)
    score, place = scores.max(dim=1)  # (B,)
    for b in (score > beam.best_score).nonzero().flatten().tolist():
        w = int(place[b])
        found[int(beam.sentence[b])] = Hypothesis(
            tokens=tuple(beam.tokens[b, w, 1:].tolist()),
            log_prob=float(extended.ends[b, w]),
            score=float(score[b]),
            finished=bool(extended.chosen[b, w]),
        )
    return torch.maximum(score, beam.best_score)


def _optimistic(log_prob: Tensor, beam: _Beam, settings: SearchConfig) -> Tensor:
    r"""The score that no continuation of an unfinished hypothesis can pass, (B,).

    Going on, log P can only fall: at every later length n it is at most the present log P <= 0. So the
    score is at most log P / penalty(n), and as log P is not positive, the largest penalty gives the largest
    quotient. The penalties are monotone in n, so the largest stands at one end of the lengths that are
    left: the longest allowed (alpha >= 0) or the next one (alpha < 0). Both count the end token.

    Parameters
    ----------
    log_prob
        (B,) of hypotheses with t + 1 tokens, -inf for none.
    """
    shortest = torch.tensor(beam.tokens.size(2) + 1, device=log_prob.device)  # t + 1 tokens and the end
    return log_prob / torch.maximum(_penalty(shortest, settings), beam.longest_penalty)


def _can_win(beam: _Beam, extended: _Extended, best_score: Tensor, settings: SearchConfig) -> Tensor:
    """Which sentences still have an unfinished hypothesis that could win, (B,) bool."""
    best_unfinished = extended.log_prob[:, 0]  # (B,)
    can_win = _optimistic(best_unfinished, beam, settings) > best_score
    if settings.beam_size == 1:  # greedy: the best continuation, though a longer one might score more
        can_win &= ~extended.chosen.squeeze(1)
    return can_win


def _cut(beam: _Beam, done: Tensor, settings: SearchConfig, found: list[Hypothesis | None]) -> None:
    """Where nothing could end, because the model gives the end no probability: the best unfinished one."""
    length = torch.tensor(max(beam.tokens.size(2) - 1, 1), device=beam.tokens.device)
    for b in done.nonzero().flatten().tolist():
        if found[int(beam.sentence[b])] is None:
            log_prob, place = beam.log_prob[b].max(dim=0)
            found[int(beam.sentence[b])] = Hypothesis(
                tokens=tuple(beam.tokens[b, place, 1:].tolist()),
                log_prob=float(log_prob),
                score=float(log_prob / _penalty(length, settings)),
                finished=False,
            )


def _next(beam: _Beam, extended: _Extended, best_score: Tensor, going_on: Tensor) -> tuple[_Beam, Tensor]:
    """The beam one token on, of the sentences that go on, and the old row that each of its rows extends."""
    kept = going_on.nonzero().flatten()  # (B',)
    parent, token = extended.parent[kept], extended.token[kept]  # (B', W')
    rows = kept.unsqueeze(-1) * beam.tokens.size(1) + parent  # (B', W') rows of (B*W)
    tokens = torch.cat((beam.tokens.flatten(0, 1)[rows], token.unsqueeze(-1)), dim=-1)  # (B', W', 2 + t)
    grown = _Beam(
        sentence=beam.sentence[kept],
        limit=beam.limit[kept],
        longest_penalty=beam.longest_penalty[kept],
        tokens=tokens,
        log_prob=extended.log_prob[kept],
        best_score=best_score[kept],
    )
    return grown, rows
