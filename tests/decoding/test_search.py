"""Search against hand-computed distributions and against enumeration of everything it could find."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from minitrans.build import build_model
from minitrans.config import Experiment, ModelConfig, SearchConfig
from minitrans.decoding.penalties import PENALTIES
from minitrans.decoding.search import END, PAD, START, Hypothesis, search, search_n_best
from minitrans.errors import UserError
from minitrans.model.masks import padding_mask
from minitrans.model.transformer import Transformer

A, B = 3, 4
Prefix = tuple[int, ...]


@dataclass(frozen=True)
class PrefixCache:
    """The first source token and the target tokens so far (start first) of every row."""

    rows: tuple[tuple[int, Prefix], ...]

    def select(self, rows: Tensor) -> "PrefixCache":
        return PrefixCache(tuple(self.rows[row] for row in rows.flatten().tolist()))


class PrefixModel:
    """A stand-in whose next-token logits are any function of (first source token, target tokens so far)."""

    tgt_limit: int | None = None

    def __init__(self, logits_of: Callable[[int, Prefix], list[float]]) -> None:
        self.logits_of = logits_of

    def encode(self, src: Tensor, src_mask: Tensor) -> Tensor:
        return src

    def start_cache(self, memory: Tensor, src_mask: Tensor) -> PrefixCache:
        return PrefixCache(tuple((row[0], ()) for row in memory.tolist()))

    def step(self, tgt: Tensor, cache: PrefixCache) -> tuple[Tensor, PrefixCache]:
        assert len(tgt) == len(cache.rows)
        newest = [row[0] for row in tgt.tolist()]
        grown = [(src, (*prefix, new)) for (src, prefix), new in zip(cache.rows, newest, strict=True)]
        states = torch.tensor([[self.logits_of(src, prefix)] for src, prefix in grown])
        return states, PrefixCache(tuple(grown))

    def logits(self, states: Tensor) -> Tensor:
        return states


def run(model: PrefixModel | Transformer, src: list[list[int]], config: SearchConfig) -> list[Hypothesis]:
    width = max(len(row) for row in src)
    ids = torch.tensor([row + [PAD] * (width - len(row)) for row in src])
    return search(model, ids, padding_mask(ids), config)


def logs(**probabilities: float) -> list[float]:
    """Logits of a vocabulary of pad, start, end, unk = a, b."""
    p = {"end": 0.0, "a": 0.0, "b": 0.0} | probabilities
    return [math.log(x) if x else -math.inf for x in (0.0, 0.0, p["end"], p["a"], p["b"])]


# --------------------------------------------------------------------------------------
# BR-21: the search goes on until nothing unfinished can win
# --------------------------------------------------------------------------------------


def late_winner(p: float) -> PrefixModel:
    rest = (1 - p) / 2
    table = {
        (START,): logs(a=0.55, b=0.45),
        (START, B): logs(end=0.9, a=0.05, b=0.05),
        (START, A): logs(a=p, b=rest, end=rest),
        (START, A, A): logs(a=p, b=rest, end=rest),
        (START, A, A, A): logs(a=p, b=rest, end=rest),
        (START, A, A, A, A): logs(end=p, a=rest, b=rest),
    }
    return PrefixModel(lambda _, prefix: table.get(prefix, logs(end=1 / 3, a=1 / 3, b=1 / 3)))


@pytest.mark.parametrize(
    ("p", "penalty", "alpha", "tokens", "log_prob"),
    [
        (0.95, "none", 0.0, (A, A, A, A), -0.8030),
        (0.95, "exponent", 0.0, (A, A, A, A), -0.8030),
        (0.95, "exponent", 1.0, (A, A, A, A), -0.8030),
        (0.95, "gnmt", 0.0, (A, A, A, A), -0.8030),
        (0.95, "gnmt", 1.0, (A, A, A, A), -0.8030),
        (0.85, "none", 0.0, (B,), -0.9039),
        (0.85, "exponent", 0.0, (B,), -0.9039),
        (0.85, "exponent", 1.0, (A, A, A, A), -1.2479),
        (0.85, "gnmt", 0.0, (B,), -0.9039),
        (0.85, "gnmt", 1.0, (A, A, A, A), -1.2479),
    ],
)
def test_a_hypothesis_wins_only_when_no_unfinished_one_can_beat_it(
    p: float, penalty: str, alpha: float, tokens: Prefix, log_prob: float
) -> None:
    config = SearchConfig(beam_size=2, length_penalty=penalty, alpha=alpha, max_length=8)
    (best,) = run(late_winner(p), [[5, END]], config)
    assert best.tokens == tokens
    assert best.log_prob == pytest.approx(log_prob, abs=5e-5)
    length = {"none": 1.0, "exponent": (len(tokens) + 1) ** alpha, "gnmt": ((6 + len(tokens)) / 6) ** alpha}
    assert best.score == pytest.approx(best.log_prob / length[penalty], abs=1e-6)
    assert best.finished


def test_a_hypothesis_that_wins_only_at_the_longest_length_is_waited_for() -> None:
    """aaaa has -1.15 / 5. By then bbbb has -2.6: at most -2.6 / 6 one token later, -2.6 / 12 in the end."""

    def logits_of(src: int, prefix: Prefix) -> list[float]:
        if prefix == (START,):
            return [math.log(1 - math.exp(-1.15) - math.exp(-2.6)), -math.inf, -math.inf, -1.15, -2.6]
        length = {A: 4, B: 11}[prefix[1]]
        return logs(end=1.0) if len(prefix) == length + 1 else logs(**{"a" if prefix[1] == A else "b": 1.0})

    config = SearchConfig(beam_size=2, length_penalty="exponent", alpha=1.0, max_length=11)
    (best,) = run(PrefixModel(logits_of), [[5, END]], config)
    assert best.tokens == (B,) * 11
    assert best.score == pytest.approx(-2.6 / 12)  # with -2.6 / 11 it would lose


def test_a_negative_alpha_waits_for_the_next_length() -> None:
    """Nothing has -3 x 1; a has -1 x 2, though -1 x 13 at the longest length."""

    def logits_of(src: int, prefix: Prefix) -> list[float]:
        first = [math.log(1 - math.exp(-3.0) - math.exp(-1.0)), -math.inf, -3.0, -1.0, -math.inf]
        return first if prefix == (START,) else logs(end=1.0)

    config = SearchConfig(beam_size=2, length_penalty="exponent", alpha=-1.0)
    (best,) = run(PrefixModel(logits_of), [[5, END]], config)
    assert best.tokens == (A,)
    assert best.score == pytest.approx(-2.0)


@pytest.mark.parametrize("penalty", PENALTIES)
def test_a_beam_of_one_is_greedy_under_every_penalty(penalty: str) -> None:
    """Ending (0.5) is likelier than b (0.3), but a longer hypothesis would win by its mean."""
    table = {(START,): logs(end=0.5, a=0.2, b=0.3)}
    model = PrefixModel(lambda _, prefix: table.get(prefix, logs(end=0.01, a=0.01, b=0.98)))
    (best,) = run(model, [[5, END]], SearchConfig(beam_size=1, length_penalty=penalty, alpha=1.0))
    assert best.tokens == ()
    assert best.log_prob == pytest.approx(math.log(0.5))


# --------------------------------------------------------------------------------------
# BR-22: the end is the end; nothing is empty, infinite, or a sign that is no word
# --------------------------------------------------------------------------------------


def ends_after_two(src: int, prefix: Prefix) -> list[float]:
    """Row 5 ends after two tokens; row 6 never can."""
    if src == 5:
        return logs(end=0.98, a=0.01, b=0.01) if len(prefix) == 3 else logs(a=0.7, b=0.2, end=0.1)
    return logs(a=0.6, b=0.4)


@pytest.mark.parametrize("beam_size", [1, 4])
def test_a_row_that_never_ends_is_cut_at_the_limit_beside_one_that_ends(beam_size: int) -> None:
    config = SearchConfig(beam_size=beam_size, max_length=5)
    first, second = run(PrefixModel(ends_after_two), [[5, END], [6, END]], config)
    assert first.tokens == (A, A)
    assert first.finished
    assert first.log_prob == pytest.approx(math.log(0.7 * 0.7 * 0.98))
    assert second.tokens == (A, A, A, A, A)
    assert not second.finished
    assert second.log_prob == pytest.approx(5 * math.log(0.6))
    assert second.score == pytest.approx(5 * math.log(0.6) / (10 / 6) ** 0.6)


def test_a_translation_that_the_limit_ends_says_so_and_pays_for_its_end() -> None:
    model = PrefixModel(lambda src, prefix: logs(a=0.9, b=0.06, end=0.04))
    (best,) = run(model, [[5, END]], SearchConfig(beam_size=1, max_length=3))
    assert best.tokens == (A, A, A)
    assert not best.finished
    assert best.log_prob == pytest.approx(3 * math.log(0.9) + math.log(0.04))


@pytest.mark.parametrize("beam_size", [1, 4, 20])
def test_padding_and_start_are_never_inside(beam_size: int) -> None:
    model = PrefixModel(lambda src, prefix: [9.0, 8.0, 0.5 * len(prefix), 1.0, 0.9])
    config = SearchConfig(beam_size=beam_size, length_penalty="exponent", alpha=1.0, max_length=6)
    (best,) = run(model, [[5, END]], config)
    assert {PAD, START, END}.isdisjoint(best.tokens)
    assert math.isfinite(best.score)
    assert best.tokens == ((A,) if beam_size == 1 else (A,) * 6)


@pytest.mark.parametrize("beam_size", [1, 3])
def test_a_model_that_allows_nothing_at_all_gives_the_tokens_before(beam_size: int) -> None:
    only_padding = [0.0, -math.inf, -math.inf, -math.inf, -math.inf]
    model = PrefixModel(lambda src, prefix: only_padding if len(prefix) == 3 else logs(a=0.75, b=0.25))
    (best,) = run(model, [[5, END]], SearchConfig(beam_size=beam_size, length_penalty="none"))
    log_prob = pytest.approx(2 * math.log(0.75))
    half = (pytest.approx(math.log(0.75)), pytest.approx(math.log(0.75)))
    assert best == Hypothesis((A, A), log_prob, log_prob, False, half)
    nothing = PrefixModel(lambda src, prefix: only_padding)
    (empty,) = run(nothing, [[5, END]], SearchConfig(beam_size=beam_size))
    assert empty == Hypothesis((), 0.0, 0.0, False)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_no_numbers_are_refused(bad: float) -> None:
    model = PrefixModel(lambda src, prefix: [0.0, 0.0, 0.0, bad, 0.0])
    with pytest.raises(UserError, match="not finite"):
        run(model, [[5, END]], SearchConfig())


# --------------------------------------------------------------------------------------
# Limits
# --------------------------------------------------------------------------------------

endless = PrefixModel(lambda src, prefix: logs(a=0.6, b=0.4))


@pytest.mark.parametrize("beam_size", [1, 3])
def test_each_sentence_has_its_own_limit(beam_size: int) -> None:
    config = SearchConfig(beam_size=beam_size, max_length=14, max_length_ratio=1.5)
    src = [[5, END], [5, 5, 5, END], [5] * 9 + [END]]
    lengths = [len(h.tokens) for h in run(endless, src, config)]
    assert lengths == [11, 14, 14]  # 1 x 1.5 + 10, 3 x 1.5 + 10, max_length


def test_the_search_never_passes_the_models_positions() -> None:
    seen: list[int] = []

    def logits_of(src: int, prefix: Prefix) -> list[float]:
        seen.append(len(prefix))
        return logs(a=0.6, b=0.4)

    model = PrefixModel(logits_of)
    model.tgt_limit = 7
    (best,) = run(model, [[5] * 30 + [END]], SearchConfig(beam_size=2))
    assert max(seen) == 7
    assert len(best.tokens) == 6


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"beam_size": 0}, "search.beam_size"),
        ({"max_length": 0}, "search.max_length"),
        ({"max_length_ratio": -1.0}, "search.max_length_ratio"),
        ({"coverage": -0.1}, "search.coverage is -0.1, but must be at least 0"),
        ({"min_length": 9, "max_length": 8}, "search.min_length=9 is more than search.max_length=8"),
        ({"min_length_ratio": 2.5}, "search.min_length_ratio=2.5 is more than search.max_length_ratio=2.0"),
        ({"n_best": 6}, "search.n_best=6 is more than search.beam_size=5"),
        ({"sample": True}, "search.sample=true draws token by token and has no beam of 5"),
        ({"temperature": 0.5}, "search.temperature=0.5 means nothing without sampling"),
        ({"top_k": 3}, "search.top_k=3 means nothing without sampling"),
        ({"top_p": 0.5}, "search.top_p=0.5 means nothing without sampling"),
        ({"top_p": 1.5}, "search.top_p is 1.5, but a probability is at most 1"),
        ({"temperature": 0.0}, "search.temperature is 0.0, but must be at least 0.0001 and at most"),
        ({"length_penalty": "gmnt"}, 'did you mean "gnmt"'),
    ],
)
def test_settings_without_meaning_are_refused_by_name(change: dict[str, object], key: str) -> None:
    with pytest.raises(UserError, match=key):
        run(endless, [[5, END]], replace(SearchConfig(), **change))  # type: ignore[arg-type]


def test_a_finished_sentence_leaves_the_batch() -> None:
    rows: list[int] = []
    model = PrefixModel(ends_after_two)
    step = model.step

    def counting(tgt: Tensor, cache: PrefixCache) -> tuple[Tensor, PrefixCache]:
        rows.append(len(tgt))
        return step(tgt, cache)

    model.step = counting  # type: ignore[method-assign]
    run(model, [[5, END], [6, END]], SearchConfig(beam_size=1, max_length=5))
    assert rows == [2, 2, 2, 1, 1, 1]


# --------------------------------------------------------------------------------------
# Real models with random weights
# --------------------------------------------------------------------------------------


def tiny(seed: int, vocab_size: int, position: str = "sinusoidal") -> Transformer:
    """One layer a side, with weights large enough that distributions are far from flat."""
    model = ModelConfig(
        num_encoder_layers=1, num_decoder_layers=1, d_model=16, num_heads=2, d_ff=32, dropout=0.0, tie="none"
    )
    attention = {"kind": "scaled_dot_product"}
    experiment = Experiment(seed=seed, model=model, position={"kind": position}, attention=attention)
    transformer = build_model(experiment, vocab_size, vocab_size).eval()
    with torch.no_grad():
        for parameter in transformer.parameters():
            parameter.mul_(1.7)
    return transformer


@torch.inference_mode()
def scores_of(model: Transformer, src: list[int], strings: list[Prefix], config: SearchConfig) -> list[float]:
    """The penalised scores of whole translations of one length, without search and without a cache."""
    tgt = torch.tensor([[START, *tokens] for tokens in strings])
    ids = torch.tensor([src]).expand(len(tgt), -1)
    mask = padding_mask(ids)
    log_probs = model.logits(model.decode(tgt, model.encode(ids, mask), mask)).log_softmax(-1)  # (B, T, N)
    labels = torch.tensor([[*tokens, END] for tokens in strings])
    log_prob = log_probs.gather(-1, labels.unsqueeze(-1)).sum(dim=(1, 2))  # (B,)
    length, alpha = labels.size(1), config.alpha
    penalties = {"none": 1.0, "exponent": length**alpha, "gnmt": ((5 + length) / 6) ** alpha}
    return (log_prob / penalties[config.length_penalty]).tolist()


def best_of_all(model: Transformer, src: list[int], config: SearchConfig, vocab_size: int) -> float:
    words = [token for token in range(vocab_size) if token not in (PAD, START, END)]
    by_length = [list(itertools.product(words, repeat=n)) for n in range(config.max_length + 1)]
    return max(max(scores_of(model, src, strings, config)) for strings in by_length)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    penalty=st.sampled_from(sorted(PENALTIES)),
    alpha=st.sampled_from([-0.5, 0.0, 0.6, 1.0, 2.0]),
    shape=st.sampled_from([(4, 3, 2), (5, 3, 9), (6, 2, 10), (6, 3, 28), (8, 2, 26)]),
    src=st.lists(st.integers(3, 3), min_size=1, max_size=4),
)
def test_a_wide_beam_finds_what_enumeration_finds(
    seed: int, penalty: str, alpha: float, shape: tuple[int, int, int], src: list[int]
) -> None:
    """A beam wider than there are unfinished hypotheses is exhaustive; 10 of 6 entries is espnet#4981."""
    vocab_size, max_length, beam_size = shape
    config = SearchConfig(beam_size=beam_size, length_penalty=penalty, alpha=alpha, max_length=max_length)
    model = tiny(seed, vocab_size)
    (found,) = run(model, [[*src, END]], config)
    assert found.score == pytest.approx(best_of_all(model, [*src, END], config, vocab_size), abs=1e-4)
    assert scores_of(model, [*src, END], [found.tokens], config) == [pytest.approx(found.score, abs=1e-4)]


def plain_greedy(model: Transformer, src: list[int], max_length: int) -> tuple[Prefix, float]:
    """Greedy search for one sentence, decoding all of the prefix anew at each step."""
    ids = torch.tensor([src])
    tokens: Prefix = ()
    log_prob = 0.0
    while True:
        tgt = torch.tensor([[START, *tokens]])
        mask = padding_mask(ids)
        states = model.decode(tgt, model.encode(ids, mask), mask)  # (1, T, D)
        log_probs = model.logits(states)[0, -1].log_softmax(-1)  # (N,)
        log_probs[[PAD, START]] = -math.inf
        best = int(log_probs.argmax()) if len(tokens) < max_length else END
        log_prob += float(log_probs[best])
        if best == END:
            return tokens, log_prob
        tokens += (best,)


@pytest.mark.parametrize("position", ["sinusoidal", "learned", "rotary", "none"])
def test_greedy_with_the_cache_is_greedy_without(position: str) -> None:
    model = tiny(seed=3, vocab_size=30, position=position)
    sources = [[4, 5, 6, END], [7, END], [8, 9, 10, 11, 12, 13, 14, 15, END], [20, 21, END]]
    found = run(model, sources, SearchConfig(beam_size=1, max_length=12))
    with torch.inference_mode():
        expected = [plain_greedy(model, src, max_length=12) for src in sources]
    assert [h.tokens for h in found] == [tokens for tokens, _ in expected]
    assert [h.log_prob for h in found] == pytest.approx([log_prob for _, log_prob in expected], abs=1e-4)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    beam_size=st.sampled_from([1, 2, 5]),
    sources=st.lists(st.lists(st.integers(3, 19), min_size=1, max_size=9), min_size=2, max_size=6),
    data=st.data(),
)
def test_neighbours_and_their_order_do_not_matter(
    seed: int, beam_size: int, sources: list[list[int]], data: st.DataObject
) -> None:
    model = tiny(seed % 50, vocab_size=20)
    config = SearchConfig(beam_size=beam_size, max_length=9, max_length_ratio=0.1)
    rows = [[*src, END] for src in sources]
    alone = [run(model, [row], config)[0] for row in rows]
    order = data.draw(st.permutations(range(len(rows))))
    together = run(model, [rows[i] for i in order], config)
    for place, i in enumerate(order):
        assert together[place].tokens == alone[i].tokens
        assert together[place].score == pytest.approx(alone[i].score, abs=1e-4)


# --------------------------------------------------------------------------------------
# n-best, coverage, constraints: against enumeration
# --------------------------------------------------------------------------------------

WIDE = (6, 3, 30)  # vocabulary, longest, a beam that nothing falls out of: 3 + 9 + 27 unfinished at most


@torch.no_grad()
def coverage_of(model: Transformer, src: list[int], tokens: Prefix, beta: float) -> float:
    """The penalty of one translation from all of its attention at once."""
    ids, tgt = torch.tensor([src]), torch.tensor([[START, *tokens]])
    maps = model.attention_maps(ids, padding_mask(ids), tgt)
    covered = maps.cross[-1].mean(dim=1).sum(dim=1)[0, :-1]  # (1, H, T, S) -> the S - 1 words
    return beta * sum(math.log(min(float(part), 1.0)) for part in covered)


def repeats(tokens: Prefix, n: int) -> bool:
    ngrams = [tokens[i : i + n] for i in range(len(tokens) - n + 1)]
    return n > 0 and len(set(ngrams)) < len(ngrams)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    beta=st.sampled_from([0.0, 0.3]),
    min_length=st.integers(0, 3),
    no_repeat_ngram=st.integers(0, 2),
    prefix=st.lists(st.integers(3, 5), max_size=2),
    n_best=st.sampled_from([1, 4]),
    src=st.lists(st.integers(3, 5), min_size=1, max_size=4),
)
def test_a_wide_beam_finds_the_best_of_all_that_is_allowed(
    seed: int,
    beta: float,
    min_length: int,
    no_repeat_ngram: int,
    prefix: list[int],
    n_best: int,
    src: list[int],
) -> None:
    vocab_size, max_length, beam_size = WIDE
    config = SearchConfig(
        beam_size=beam_size,
        coverage=beta,
        min_length=min_length,
        max_length=max_length,
        no_repeat_ngram=no_repeat_ngram,
        n_best=n_best,
    )
    model, source, begin = tiny(seed, vocab_size), [*src, END], tuple(prefix)
    scores = {
        tokens: scores_of(model, source, [tokens], config)[0] + coverage_of(model, source, tokens, beta)
        for n in range(max(min_length, len(prefix)), max_length + 1)
        for tokens in itertools.product(range(3, vocab_size), repeat=n)
        if tokens[: len(begin)] == begin
        # what is forced may repeat, and what follows may not repeat any more
        and not any(
            repeats(tokens[:end], no_repeat_ngram)
            and tokens[end - no_repeat_ngram : end] in ngrams_before(tokens, end, no_repeat_ngram)
            for end in range(len(begin) + 1, len(tokens) + 1)
        )
    }
    ids = torch.tensor([source])
    (found,) = search_n_best(model, ids, padding_mask(ids), config, [prefix])
    best = sorted(scores.values(), reverse=True)[:n_best]
    assert [h.score for h in found] == pytest.approx(best, abs=1e-4)
    assert [h.score for h in found] == pytest.approx([scores[h.tokens] for h in found], abs=1e-4)
    assert len({h.tokens for h in found}) == len(found)


def ngrams_before(tokens: Prefix, end: int, n: int) -> set[Prefix]:
    """The n-grams of ``tokens`` that are over before the one that ends at ``end``."""
    return {tokens[i : i + n] for i in range(end - n)}


def test_coverage_prefers_what_looked_everywhere() -> None:
    """aa has the higher probability and looks at the first word alone; b looks at both."""
    table = {(START,): logs(a=0.6, b=0.4), (START, A): logs(a=1.0), (START, A, A): logs(end=1.0)}
    model = PrefixModel(lambda _, prefix: table.get(prefix, logs(end=1.0)))
    looked = {1: [0.5, 0.5, 0.0], A: [1.0, 0.0, 0.0], B: [0.4, 0.9, 0.0]}

    def attending_step(tgt: Tensor, cache: PrefixCache) -> tuple[Tensor, Tensor, PrefixCache]:
        states, cache = model.step(tgt, cache)
        return states, torch.tensor([[looked.get(row[0], [0.0] * 3)] for row in tgt.tolist()]), cache

    model.attending_step = attending_step  # type: ignore[attr-defined]
    config = SearchConfig(beam_size=3, length_penalty="none", max_length=4)
    assert run(model, [[5, 6, END]], config)[0].tokens == (A, A)
    (best,) = run(model, [[5, 6, END]], replace(config, coverage=1.0))
    assert best.tokens == (B,)
    # the start looked half at each word, b at .4 and .9 of them: .9 and 1.4 in all
    assert best.score == pytest.approx(math.log(0.4) + math.log(0.9))
    (best,) = run(model, [[5, 6, END]], replace(config, coverage=0.1))
    assert best.tokens == (A, A)
    assert best.score == pytest.approx(math.log(0.6) + 0.1 * math.log(0.5))


def test_no_more_hypotheses_come_than_there_are() -> None:
    model = PrefixModel(lambda src, prefix: logs(a=0.75, end=0.25) if len(prefix) == 1 else logs(end=1.0))
    ids = torch.tensor([[5, END]])
    config = SearchConfig(beam_size=4, n_best=4, length_penalty="none")
    (found,) = search_n_best(model, ids, padding_mask(ids), config)
    assert [(h.tokens, h.finished) for h in found] == [((A,), True), ((), True)]
    assert [h.log_prob for h in found] == pytest.approx([math.log(0.75), math.log(0.25)])
    assert found[0].token_log_probs == pytest.approx((math.log(0.75), 0.0))


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), beam_size=st.sampled_from([1, 3]))
def test_the_log_probabilities_of_tokens_are_the_models(seed: int, beam_size: int) -> None:
    model = tiny(seed, vocab_size=12)
    source = [4, 5, 6, END]
    (best,) = run(model, [source], SearchConfig(beam_size=beam_size, max_length=7))
    ids, tgt = torch.tensor([source]), torch.tensor([[START, *best.tokens]])
    with torch.no_grad():
        log_probs = model(ids, padding_mask(ids), tgt)[0].log_softmax(-1)  # (T, N)
    expected = [float(log_probs[i, token]) for i, token in enumerate([*best.tokens, END])]
    assert best.token_log_probs == pytest.approx(expected, abs=1e-4)
    assert best.log_prob == pytest.approx(sum(expected), abs=1e-4)


# --------------------------------------------------------------------------------------
# Sampling
# --------------------------------------------------------------------------------------

SAMPLED = SearchConfig(beam_size=1, sample=True, length_penalty="none", max_length=9, max_length_ratio=0.1)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    sources=st.lists(st.lists(st.integers(3, 19), min_size=1, max_size=9), min_size=2, max_size=6),
    data=st.data(),
)
def test_a_sentences_samples_do_not_depend_on_its_neighbours(
    seed: int, sources: list[list[int]], data: st.DataObject
) -> None:
    model = tiny(seed % 50, vocab_size=20)
    config = replace(SAMPLED, seed=seed, n_best=2, top_k=data.draw(st.sampled_from([0, 4])))
    rows = [[*src, END] for src in sources]
    order = data.draw(st.permutations(range(len(rows))))
    width = max(len(row) for row in rows)
    ids = torch.tensor([rows[i] + [PAD] * (width - len(rows[i])) for i in order])
    together = search_n_best(model, ids, padding_mask(ids), config)
    for place, i in enumerate(order):
        one = torch.tensor([rows[i]])
        (alone,) = search_n_best(model, one, padding_mask(one), config)
        if not alone[0].near_tie:
            assert [h.tokens for h in together[place]] == [h.tokens for h in alone]
        scores = [h.score for h in alone]
        assert [h.score for h in together[place]] == pytest.approx(scores, abs=1e-4)


def test_samples_follow_the_model() -> None:
    """500 translations of one token each: shares within 5 standard deviations of the model's."""
    first = logs(end=0.2, a=0.3, b=0.5)
    model = PrefixModel(lambda src, prefix: first if len(prefix) == 1 else logs(end=1.0))
    ids = torch.tensor([[5, END]])
    (found,) = search_n_best(model, ids, padding_mask(ids), replace(SAMPLED, n_best=500))
    assert len(found) == 500
    for tokens, p in (((), 0.2), ((A,), 0.3), ((B,), 0.5)):
        drawn = [h for h in found if h.tokens == tokens]
        assert len(drawn) / 500 == pytest.approx(p, abs=5 * math.sqrt(p * (1 - p) / 500))
        assert {round(h.log_prob, 5) for h in drawn} == {round(math.log(p), 5)}  # the model's, not the draw's


def test_another_seed_is_another_sample_and_the_same_seed_the_same() -> None:
    model, source = tiny(3, vocab_size=20), [[4, 5, 6, END]]
    once, again, other = (run(model, source, replace(SAMPLED, seed=seed)) for seed in (1, 1, 2))
    assert once == again
    assert once[0].tokens != other[0].tokens


def test_one_token_to_draw_from_is_greedy() -> None:
    model, source = tiny(3, vocab_size=20), [[4, 5, 6, END], [7, END]]
    greedy = run(model, source, SearchConfig(beam_size=1, length_penalty="none", max_length=9))
    drawn = run(model, source, replace(SAMPLED, top_k=1, max_length_ratio=2.0))
    assert [h.tokens for h in drawn] == [h.tokens for h in greedy]


# --------------------------------------------------------------------------------------
# Near-ties
# --------------------------------------------------------------------------------------


@pytest.mark.parametrize("beam_size", [1, 2])
@pytest.mark.parametrize(("gap", "near"), [(1e-5, True), (1e-2, False)])
def test_a_choice_that_rounding_can_turn_is_told(beam_size: int, gap: float, near: bool) -> None:
    """Row 5 chooses between a and b, row 6 has no doubt."""
    doubt = [-math.inf, -math.inf, -math.inf, 0.0, gap]

    def logits_of(src: int, prefix: Prefix) -> list[float]:
        if len(prefix) > 1:
            return logs(end=1.0)
        return doubt if src == 5 else logs(a=0.9, b=0.1)

    config = SearchConfig(beam_size=beam_size, length_penalty="none", max_length=4)
    first, second = run(PrefixModel(logits_of), [[5, END], [6, END]], config)
    assert first.tokens == (B,)
    assert (first.near_tie, second.near_tie) == (near, False)


@pytest.mark.parametrize("beam_size", [1, 2])
@pytest.mark.parametrize(
    ("number_type", "near"), [(torch.float32, False), (torch.bfloat16, True), (torch.float16, True)]
)
def test_half_precision_turns_what_is_further_apart(
    beam_size: int, number_type: torch.dtype, near: bool
) -> None:
    """A gap of 1/16: one step of a bf16 logit between 8 and 16."""

    def logits_of(src: int, prefix: Prefix) -> list[float]:
        return logs(end=1.0) if len(prefix) > 1 else [-math.inf, -math.inf, -math.inf, 9.0, 9.0625]

    model = PrefixModel(logits_of)
    plain = model.logits
    model.logits = lambda states: plain(states).to(number_type)  # type: ignore[method-assign]
    config = SearchConfig(beam_size=beam_size, length_penalty="none", max_length=4)
    (found,) = run(model, [[5, END]], config)
    assert found.tokens == (B,)
    assert found.near_tie is near


def test_to_end_or_to_go_on_can_be_a_near_tie() -> None:
    table = {(START,): [-math.inf, -math.inf, 1e-5, 0.0, -3.0]}
    model = PrefixModel(lambda _, prefix: table.get(prefix, logs(end=1.0)))
    (best,) = run(model, [[5, END]], SearchConfig(beam_size=1))
    assert best.tokens == ()
    assert best.near_tie
