r"""Search: the translations y of highest score, by greedy or beam search, or some drawn at random.

    score(y) = log P(y | x) / penalty(|y|) + coverage(x, y),    log P(y | x) = sum_t log P(y_t | y_<t, x)

One loop serves every width: each step extends the hypotheses of the *beam* by one token and keeps the
best. Greedy search is a beam of 1. A sentence is done when

* no unfinished hypothesis of its beam can still beat the best finished one (with ``n_best``, the n-th
  best): the score that it can at most reach (:meth:`_Search._optimistic`) is not above it;
* or it is as long as allowed. Ending is then the one continuation, at its own probability;
* or, greedy, ending was the best continuation.

Finished sentences leave the batch. A sentence's limits depend on that sentence alone, and so does its result.
A beam wider than the number of unfinished hypotheses that there can be makes the search exhaustive.

Sampling is the same loop with another way to extend: the ``n_best`` hypotheses of a sentence go on each by
itself, by a token drawn at random.

Letters: B sentences still searched, W hypotheses in each one's beam (1 at the start, then at most k;
``n_best`` when sampling), k ``beam_size``, n ``n_best``, C = min(k + 1, N) continuations looked at, S source
length, t tokens so far, D d_model, N vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from minitrans.config import SearchConfig, check_search
from minitrans.decoding.constraints import END, NEVER, PAD, START, Constraints
from minitrans.decoding.hypothesis import Finished, Hypothesis, near_tie
from minitrans.decoding.penalties import PENALTIES, coverage_penalty
from minitrans.decoding.sampling import draw, truncate, uniforms
from minitrans.decoding.topk import largest
from minitrans.errors import UserError


class Searchable(Protocol):
    """What search asks of a model: the encoder-decoder's face. Rivals of the Transformer have it too.

    Memory and states are handed on as they are. A cache is what ``start_cache`` returns, B rows of it, one a
    sentence. ``cache.select(rows)`` reorders, repeats and drops rows: ``rows`` (B', W) names the old row that
    each new one continues, W hypotheses of one sentence in each line, so that what they share need not be
    repeated.
    """

    @property
    def tgt_limit(self) -> int | None:
        """The longest decoder input that the model has positions for, the start token counted."""

    def encode(self, src: Tensor, src_mask: Tensor) -> Any:
        """Map (B, S) ids and a (B, 1, S) mask, True = token, to the memory (B, S, D)."""

    def start_cache(self, memory: Any, src_mask: Tensor) -> Any:
        """Compute what every step needs of the source, once a sentence."""

    def step(self, tgt: Tensor, cache: Any) -> tuple[Any, Any]:
        """Map the newest tokens (B*W, 1) to states (B*W, 1, D) and the grown cache."""

    def attending_step(self, tgt: Tensor, cache: Any) -> tuple[Any, Tensor, Any]:
        """A step that tells where it looked, (B*W, 1, S); asked for where ``search.coverage`` is above 0."""

    def logits(self, states: Any) -> Tensor:
        """Map (..., D) to (..., N)."""


@dataclass(frozen=True)
class _Beam:
    """Unfinished hypotheses of the sentences still searched. Dead places have the log-probability -inf."""

    sentence: Tensor  # (B,) rows of the batch
    tokens: Tensor  # (B, W, 1 + t) ids, start first
    totals: Tensor  # (B, W, 1 + t) log-probability up to each token, 0 at the start
    covered: Tensor | None  # (B, W, S) attention that each source token has got; None without coverage
    best: Tensor  # (B, n) scores of the best finished hypotheses, best first, -inf where there is none

    @property
    def log_prob(self) -> Tensor:
        """(B, W)."""
        return self.totals[:, :, -1]

    @property
    def num_tokens(self) -> int:
        """t."""
        return self.tokens.size(2) - 1


@dataclass(frozen=True)
class _Extended:
    """All that one step can do to a beam."""

    ends: Tensor  # (B, W) log-probability of each hypothesis with the end token
    chosen: Tensor  # (B, W) bool: the end is one of the continuations that the search takes
    forced: Tensor  # (B, 1) bool: the length limit leaves nothing but the end
    log_prob: Tensor  # (B, W') of the continuations that the search takes
    parent: Tensor  # (B, W') which hypothesis each one extends
    token: Tensor  # (B, W') by which token
    near_tie: Tensor  # (B,) bool: something just as good was left out


def search(
    model: Searchable,
    src: Tensor,
    src_mask: Tensor,
    settings: SearchConfig,
    prefixes: Sequence[Sequence[int]] | None = None,
) -> list[Hypothesis]:
    """The best translation of each row: the first of each that :func:`search_n_best` finds."""
    return [best for best, *_ in search_n_best(model, src, src_mask, settings, prefixes)]


@torch.inference_mode()
def search_n_best(
    model: Searchable,
    src: Tensor,
    src_mask: Tensor,
    settings: SearchConfig,
    prefixes: Sequence[Sequence[int]] | None = None,
) -> list[tuple[Hypothesis, ...]]:
    """Find the best translations of each row.

    Parameters
    ----------
    model
        In evaluation mode: dropout would make the result random.
    src
        (B, S) source ids, each row ``tokens + </s>``, padded at the right.
    src_mask
        (B, 1, S) bool, True = a token.
    settings
        Width, penalties, bounds. A row's translation has at most ``max_length`` tokens, at most
        ``max_length_ratio`` x the row's tokens (end not counted) + 10, and fits the model's positions.
    prefixes
        Tokens that each row's translation begins with (empty: free).

    Returns
    -------
    ``n_best`` hypotheses a row, best first, in order; fewer where there are no more, never none. A beam of k
    keeps the k unfinished hypotheses of highest log-probability. One that ends while fewer than k unfinished
    ones are better is a finished one; those compare by score.

    Raises
    ------
    UserError
        Settings without meaning, a forced beginning that is too long, or a model whose logits are not finite.
    """
    check_search(settings)
    return _Search(model, src, src_mask, settings, prefixes).run()


class _Search:
    """One batch under way: what all of its steps share."""

    def __init__(
        self,
        model: Searchable,
        src: Tensor,
        src_mask: Tensor,
        settings: SearchConfig,
        prefixes: Sequence[Sequence[int]] | None,
    ) -> None:
        self.model, self.src, self.src_mask, self.settings = model, src, src_mask, settings
        self.constraints = Constraints.of(src_mask, settings, model.tgt_limit, prefixes)
        self.finished = Finished(len(src), settings.n_best)
        self.near_tie = torch.zeros(len(src), dtype=torch.bool, device=src.device)
        self.uniforms = self._uniforms() if settings.sample else None

    def run(self) -> list[tuple[Hypothesis, ...]]:
        """Step until every sentence is done."""
        beam, cache = self._start()
        while len(beam.sentence):
            beam, logits, cache = self._read(beam, cache)
            self.finished.tolerance = near_tie(logits.dtype)
            extended = self._sample(beam, logits) if self.settings.sample else self._extend(beam, logits)
            best = self._finish(beam, extended)
            going_on = self._can_win(beam, extended, best)
            self._cut(beam, ~going_on)
            beam, rows = _next(beam, extended, best, going_on)
            cache = cache.select(rows)
        return self.finished.results(self.near_tie.tolist(), ranked=not self.settings.sample)

    def _uniforms(self) -> Tensor:
        """(B, n, limit + 1) numbers that the draws of each sentence follow from."""
        rows = zip(self.src.tolist(), self.src_mask.sum(dim=(1, 2)).tolist(), strict=True)
        num_steps = int(self.constraints.limit.max()) + 1
        ids = [row[:length] for row, length in rows]
        return uniforms(ids, self.settings.seed, self.settings.n_best, num_steps).to(self.src.device)

    def _start(self) -> tuple[_Beam, Any]:
        """One hypothesis a sentence (when sampling, n): the start token."""
        cache = self.model.start_cache(self.model.encode(self.src, self.src_mask), self.src_mask)
        size, device, n = len(self.src), self.src.device, self.settings.n_best
        width = n if self.settings.sample else 1
        sentence = torch.arange(size, device=device)
        beam = _Beam(
            sentence=sentence,
            tokens=torch.full((size, width, 1), START, device=device),
            totals=torch.zeros(size, width, 1, device=device),
            covered=self._uncovered(width) if self.settings.coverage else None,
            best=torch.full((size, n), NEVER, device=device),
        )
        return beam, cache.select(sentence.unsqueeze(1).expand(size, width))

    def _uncovered(self, width: int) -> Tensor:
        """(B, W, S): no source token has been attended to; the end and padding do not count."""
        num_tokens = self.src_mask.sum(dim=2) - 1  # (B, 1)
        positions = torch.arange(self.src.size(1), device=self.src.device)  # (S,)
        return (positions >= num_tokens).float().unsqueeze(1).repeat(1, width, 1)  # (B, S) -> (B, W, S)

    def _read(self, beam: _Beam, cache: Any) -> tuple[_Beam, Tensor, Any]:
        """The newest tokens through the model: logits (B*W, N) of the next ones."""
        newest = beam.tokens[:, :, -1].reshape(-1, 1)  # (B*W, 1)
        if beam.covered is None:
            states, cache = self.model.step(newest, cache)  # (B*W, 1, D)
        else:
            states, attention, cache = self.model.attending_step(newest, cache)  # attention (B*W, 1, S)
            beam = replace(beam, covered=beam.covered + attention.float().view(beam.covered.shape))
        return beam, self.model.logits(states)[:, -1], cache

    def _extend(self, beam: _Beam, logits: Tensor) -> _Extended:
        """Score every continuation of every hypothesis, and take the best.

        The best k + 1 continuations of a beam are among the best k + 1 of each of its hypotheses, so only
        those are compared: k go on, and the next one tells how near the choice was.
        """
        size, width, k = len(beam.sentence), beam.tokens.size(1), self.settings.beam_size
        ends, best, token = self._continuations(beam, logits, min(k + 1, logits.size(-1)))
        total = beam.log_prob.unsqueeze(-1) + best.view(size, width, -1)  # (B, W, C)
        log_prob, index = total.flatten(1).topk(min(k + 1, width * total.size(-1)))  # (B, k + 1)
        worst = log_prob[:, :k][:, -1:]  # (B, 1), -inf where there are no k
        at_limit = self._at_limit(beam)  # (B, 1)
        tolerance = self.finished.tolerance
        left_out = (worst - log_prob[:, k:] < tolerance) & ~at_limit  # (B, 0 or 1); -inf - -inf is no tie
        end_is_close = ((ends - worst).abs() < tolerance) & ~at_limit  # (B, W)
        return _Extended(
            ends=ends,
            chosen=ends >= worst,
            forced=at_limit,
            log_prob=log_prob[:, :k].masked_fill(at_limit, NEVER),
            parent=index[:, :k] // total.size(-1),
            token=token.view(size, -1).gather(1, index[:, :k]),
            near_tie=left_out.any(dim=1) | end_is_close.any(dim=1),
        )

    def _continuations(self, beam: _Beam, logits: Tensor, number: int) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probability of each hypothesis with the end, (B, W), and the best so many other tokens.

        Returns
        -------
        (B, W), and the tokens' log-probabilities and ids (B*W, C), best first.
        """
        next_log_prob = _log_probabilities(logits)  # (B*W, N)
        end = next_log_prob[:, END].clone()  # (B*W,)
        self.constraints.forbid(next_log_prob, beam.tokens.flatten(0, 1), _each(beam))
        next_log_prob[:, END] = NEVER
        best, token = largest(next_log_prob, number)
        return self._ends(beam, end), best, token

    def _sample(self, beam: _Beam, logits: Tensor) -> _Extended:
        """Draw one continuation of each hypothesis. Its log-probability is the model's, not the draw's."""
        size, width, t = len(beam.sentence), beam.tokens.size(1), beam.num_tokens
        assert self.uniforms is not None
        allowed = _log_probabilities(logits)  # (B*W, N)
        end = allowed[:, END].masked_fill(~self._may_end(beam), NEVER)  # (B*W,)
        ends = self._ends(beam, end)  # (B, W)
        self.constraints.forbid(allowed, beam.tokens.flatten(0, 1), _each(beam))
        allowed[:, END] = end
        s = self.settings
        uniform = self.uniforms[beam.sentence, :, t].flatten()  # (B*W,)
        edge = self.finished.tolerance / 10  # of probabilities
        token, near = draw(truncate(allowed, s.temperature, s.top_k, s.top_p), uniform, edge)  # (B*W,)
        drawn = allowed.gather(-1, token.unsqueeze(-1)).view(size, width)  # (B, W)
        chosen = (token == END).view(size, width)
        at_limit = self._at_limit(beam)
        alive = (beam.log_prob > NEVER) & ~at_limit  # (B, W)
        return _Extended(
            ends=ends,
            chosen=chosen,
            forced=at_limit,
            log_prob=(beam.log_prob + drawn).masked_fill(chosen | at_limit, NEVER),
            parent=torch.arange(width, device=token.device).expand(size, width),
            token=token.view(size, width),
            near_tie=(near.view(size, width) & alive).any(dim=1),
        )

    def _may_end(self, beam: _Beam) -> Tensor:
        """(B*W,) bool."""
        return self.constraints.may_end(_each(beam), beam.num_tokens)

    def _ends(self, beam: _Beam, end: Tensor) -> Tensor:
        """log P(y, end) of each hypothesis, -inf where it may not end: (B*W,) log P(end) -> (B, W)."""
        end = end.masked_fill(~self._may_end(beam), NEVER)
        return beam.log_prob + end.view_as(beam.log_prob)

    def _at_limit(self, beam: _Beam) -> Tensor:
        return (self.constraints.limit[beam.sentence] == beam.num_tokens).unsqueeze(-1)  # (B, 1)

    def _scores(self, log_prob: Tensor, length: int, covered: Tensor | None) -> Tensor:
        """Scores of hypotheses (B, W) with ``length`` scored tokens."""
        scores = log_prob / self._penalty(torch.tensor(length, device=log_prob.device))
        return scores if covered is None else scores + coverage_penalty(covered, self.settings.coverage)

    def _penalty(self, length: Tensor) -> Tensor:
        """What the log-probability of ``length`` scored tokens is divided by, fp32."""
        return PENALTIES[self.settings.length_penalty](length.float(), self.settings.alpha)

    def _finish(self, beam: _Beam, extended: _Extended) -> Tensor:
        """Put the hypotheses that end now among the best finished ones; return those's scores, (B, n)."""
        taken = extended.chosen | extended.forced  # (B, W)
        scores = self._scores(extended.ends, beam.num_tokens + 1, beam.covered)  # t tokens and the end
        scores = scores.masked_fill(~taken, NEVER)  # (B, W)
        close = scores > beam.best[:, -1:] - self.finished.tolerance  # (B, W): good enough, or a near-tie
        b, w = close.nonzero().unbind(1)
        totals = torch.cat((beam.totals[b, w], extended.ends[b, w].unsqueeze(-1)), dim=-1)  # (m, 2 + t)
        rows = (beam.sentence[b], beam.tokens[b, w, 1:], totals, scores[b, w], extended.chosen[b, w])
        for sentence, *parts in zip(*(row.tolist() for row in rows), strict=True):
            self.finished.add(sentence, Hypothesis.of(*parts))
        return torch.cat((beam.best, scores), dim=1).topk(beam.best.size(1)).values

    def _optimistic(self, log_prob: Tensor, beam: _Beam) -> Tensor:
        r"""The score that no continuation of an unfinished hypothesis can pass, (B,).

        Going on, log P can only fall: at every later length n it is at most the present log P <= 0. So the
        score is at most log P / penalty(n), and as log P is not positive, the largest penalty gives the
        largest quotient. The penalties are monotone in n, so the largest stands at one end of the lengths
        that are left: the longest allowed (alpha >= 0) or the next one (alpha < 0). Both count the end
        token. Coverage is at most 0.

        Parameters
        ----------
        log_prob
            (B,) of hypotheses with t + 1 tokens, -inf for none.
        """
        shortest = torch.tensor(beam.num_tokens + 2, device=log_prob.device)  # t + 1 tokens and the end
        longest = self.constraints.limit[beam.sentence] + 1  # (B,)
        return log_prob / torch.maximum(self._penalty(shortest), self._penalty(longest))

    def _can_win(self, beam: _Beam, extended: _Extended, best: Tensor) -> Tensor:
        """Which sentences still have an unfinished hypothesis that could win, (B,) bool. Notes near-ties."""
        bound = self._optimistic(extended.log_prob.amax(dim=1), beam)  # (B,)
        can_win = bound > best[:, -1]
        met = extended.near_tie
        if self.settings.beam_size > 1:
            met = met | (~can_win & (best[:, -1] - bound < self.finished.tolerance))
        elif not self.settings.sample:  # greedy: the best continuation, though a longer one might score more
            can_win &= ~extended.chosen.squeeze(1)
        self.near_tie[beam.sentence] |= met
        return can_win

    def _cut(self, beam: _Beam, done: Tensor) -> None:
        """Where nothing could end, as the model gives the end no probability: the best unfinished one."""
        scores = self._scores(beam.log_prob, max(beam.num_tokens, 1), beam.covered)  # (B, W)
        for b in done.nonzero().flatten().tolist():
            sentence = int(beam.sentence[b])
            if self.finished.is_empty(sentence):
                w = int(beam.log_prob[b].argmax())
                tokens, totals = beam.tokens[b, w, 1:].tolist(), beam.totals[b, w].tolist()
                self.finished.add(sentence, Hypothesis.of(tokens, totals, float(scores[b, w]), False))


def _each(beam: _Beam) -> Tensor:
    """(B*W,) the sentence of each hypothesis."""
    return beam.sentence.repeat_interleave(beam.tokens.size(1))


def _log_probabilities(logits: Tensor) -> Tensor:
    """(B*W, N) logits of any type -> log P of each next token, float32, a tensor of its own."""
    log_prob = logits.float()
    own = log_prob if log_prob is not logits else torch.empty_like(logits)
    torch.ops.aten._log_softmax.out(log_prob, -1, False, out=own)
    # One logit that is NaN or +inf, or none above -inf, makes the sum NaN, and with it all of the row.
    if own[:, PAD].isnan().any():
        raise UserError("the model's logits are not finite: its training diverged, or its file is damaged")
    return own


def _next(beam: _Beam, extended: _Extended, best: Tensor, going_on: Tensor) -> tuple[_Beam, Tensor]:
    """The beam one token on, of the sentences that go on, and the old row that each of its rows extends."""
    kept = going_on.nonzero().flatten()  # (B',)
    parent, token = extended.parent[kept], extended.token[kept]  # (B', W')
    rows = kept.unsqueeze(-1) * beam.tokens.size(1) + parent  # (B', W') rows of (B*W)
    grown = _Beam(
        sentence=beam.sentence[kept],
        tokens=torch.cat((beam.tokens.flatten(0, 1)[rows], token.unsqueeze(-1)), dim=-1),  # (B', W', 2 + t)
        totals=torch.cat((beam.totals.flatten(0, 1)[rows], extended.log_prob[kept].unsqueeze(-1)), dim=-1),
        covered=None if beam.covered is None else beam.covered.flatten(0, 1)[rows],  # (B', W', S)
        best=best[kept],
    )
    return grown, rows


__all__ = ["END", "PAD", "START", "Hypothesis", "Searchable", "search", "search_n_best"]
