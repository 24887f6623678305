"""The score card of one checkpoint on one split: what is printed, and what ``scores.json`` holds."""

import dataclasses
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table
from rich.text import Text

from minitrans.config import SearchConfig
from minitrans.data.corpus import Corpus
from minitrans.decoding.translator import Translator
from minitrans.evaluation.loss import Loss, corpus_loss
from minitrans.evaluation.metrics import METRICS, RESAMPLES, TITLES, Score, bleu, exact_matches
from minitrans.evaluation.references import references, starts_with_mark

LEGACY = "lower-cased, tokenised BLEU; not comparable with cased 13a"
AS_IT_STANDS = "BLEU of the words as they stand, with no tokenizer; not comparable with 13a"
MARKED = (
    "the reference file begins with a byte order mark, which counts as a letter of its first word, "
    "as the sacrebleu command counts it; take it out"
)
BUCKETS = (5, 10, 15, 20, 30, 50)
"""Most words of a source sentence in each bucket but the last, which has no end."""


@dataclass(frozen=True)
class DepthScore:
    """Exact match among the sentences of one nesting depth."""

    sentences: int
    exact_match: float  # percent


@dataclass(frozen=True)
class LengthScore:
    """BLEU of the sentences whose sources have so many words."""

    sentences: int
    bleu: float


@dataclass(frozen=True)
class ScoreCard:
    """How well a split was translated, and by which settings.

    Attributes
    ----------
    scores
        Name -> score, see :data:`minitrans.evaluation.metrics.METRICS`.
    loss
        Of the references, token-weighted, without label smoothing.
    bleu_by_length
        Words of the source (``"6-10"``) -> BLEU. Words are what stands between white space.
    exact_match_by_depth
        Nesting depth -> exact match, where the corpus knows depths.
    cut
        Translations that the length limit ended.
    near_ties
        Translations that rounding can turn (:attr:`minitrans.decoding.translation.Translation.near_tie`).
    seconds
        Time of the search, encoding and decoding of text included.
    note
        What a reader of the BLEU must know (empty: nothing).
    data
        File (or other origin) -> SHA-256.
    sources, references, hypotheses
        The split, and its translations, line by line.
    """

    split: str
    sentences: int
    scores: Mapping[str, Score]
    loss: Loss
    bleu_by_length: Mapping[str, LengthScore]
    exact_match_by_depth: Mapping[int, DepthScore]
    cut: int
    near_ties: int
    seconds: float
    note: str
    search: SearchConfig
    bleu_tokenize: str
    data: Mapping[str, str]
    sources: tuple[str, ...] = field(repr=False)
    references: tuple[str, ...] = field(repr=False)
    hypotheses: tuple[str, ...] = field(repr=False)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, without the text: the content of ``scores.json``."""
        by_depth = {str(depth): dataclasses.asdict(s) for depth, s in self.exact_match_by_depth.items()}
        return {
            "split": self.split,
            "sentences": self.sentences,
            "scores": {name: dataclasses.asdict(score) for name, score in self.scores.items()},
            "note": self.note,
            "loss": self.loss.per_token,
            "perplexity": self.loss.perplexity,
            "target_tokens": self.loss.num_tokens,
            "bleu_by_length": {words: dataclasses.asdict(s) for words, s in self.bleu_by_length.items()},
            **({"exact_match_by_depth": by_depth} if by_depth else {}),
            "cut_by_length_limit": self.cut,
            "near_ties": self.near_ties,
            "seconds": round(self.seconds, 3),
            "sentences_per_s": round(self.sentences_per_s, 2),
            "search": dataclasses.asdict(self.search),
            "bleu_tokenize": self.bleu_tokenize,
            "data": dict(self.data),
        }

    @property
    def sentences_per_s(self) -> float:
        """Sentences translated in a second."""
        return self.sentences / self.seconds

    @property
    def one_right_answer(self) -> bool:
        """Whether the corpus has one right translation for each sentence: one that knows depths has."""
        return bool(self.exact_match_by_depth)

    def shows(self, name: str) -> bool:
        """Whether a score makes sense on the screen (``scores.json`` has them all).

        Exact match does where the corpus has one right translation for each sentence, and elsewhere where
        any translation is its reference: with many right translations, none is no sign of anything.
        """
        return name != "exact_match" or self.one_right_answer or self.scores[name].value > 0

    def table(self) -> Table:
        """The card for the terminal; what says how to get each score again stands below it."""
        table = Table(title=f"{self.split}: {self.sentences:,} sentences, beam {self.search.beam_size}")
        table.add_column("score")
        table.add_column("value", justify="right")
        table.add_column("95 % interval", justify="right")
        table.add_column("counted on", overflow="fold")
        for name, score in self.scores.items():
            if self.shows(name):
                table.add_row(TITLES[name], shown(name, score), interval(name, score), self._said_of(name))
                for group, value, size in self._groups(name):
                    table.add_row(f"  {group}", f"{value:.2f}", "", f"{size:,} sentences")
        table.add_row(
            "loss, nats a token", f"{self.loss.per_token:.4f}", "", f"{self.loss.num_tokens:,} tokens"
        )
        table.add_row("perplexity", f"{self.loss.perplexity:.3f}")
        table.add_row("sentences a second", f"{self.sentences_per_s:.1f}", "", f"{self.seconds:.1f} s")
        signatures = [f"{TITLES[name]}: {s.signature}" for name, s in self.scores.items() if s.signature]
        table.caption = Text("\n".join([self.note] * bool(self.note) + signatures))
        table.caption_justify = "left"
        return table

    def _groups(self, name: str) -> Iterator[tuple[str, float, int]]:
        """Groups of sentences that a score is told of too: name, score, sentences."""
        if name == "bleu":
            for words, of_length in self.bleu_by_length.items():
                yield f"sources of {words} words", of_length.bleu, of_length.sentences
        if name == "exact_match":
            for depth, at_depth in self.exact_match_by_depth.items():
                yield f"nesting depth {depth}", at_depth.exact_match, at_depth.sentences

    def _said_of(self, name: str) -> str:
        if name == "exact_match" and not self.one_right_answer:
            return "other right ones count as wrong"
        return ""

    def settings(self) -> str:
        """The search, in one line: its main settings, and whatever else is not the default."""
        usual = dataclasses.asdict(SearchConfig())
        values = dataclasses.asdict(self.search)
        return ", ".join(f"{k} {v}" for k, v in values.items() if k in _MAIN_SETTINGS or v != usual[k])


_MAIN_SETTINGS = ("beam_size", "length_penalty", "alpha")


def shown(name: str, score: Score) -> str:
    """A score as the tables show it."""
    return f"{score.value:.{_DIGITS.get(name, 2)}f}"


def interval(name: str, score: Score) -> str:
    """Both ends of a score's interval; empty where it has none."""
    if score.low is None or score.high is None:
        return ""
    digits = _DIGITS.get(name, 2)
    return f"{score.low:.{digits}f} – {score.high:.{digits}f}"


_DIGITS = {"length_ratio": 3, "comet": 4}


def evaluate_split(
    translator: Translator,
    corpus: Corpus,
    bleu_tokenize: str,
    progress: Callable[[int], object] | None = None,
) -> ScoreCard:
    """Translate a split and score the translations and the model.

    Parameters
    ----------
    corpus
        References are its target side, raw.
    bleu_tokenize
        sacreBLEU's tokenizer; of ``none``, the legacy setting, the card says what BLEU it gives.
    progress
        Called with the number of lines just translated.

    Raises
    ------
    UserError
        A line that has more tokens than the model has positions for.
    """
    sources, expected = tuple(corpus.src), references(corpus)
    loss = corpus_loss(
        translator.model,
        translator.tokenizers,
        sources,
        list(corpus.tgt),
        translator.batch_tokens,
        corpus.origin,
    )
    begin = time.perf_counter()
    translations = translator.translate(sources, name=f"the source of {corpus.origin}", progress=progress)
    seconds = time.perf_counter() - begin
    hypotheses = tuple(translation.text for translation in translations)
    notes = _untokenized(hypotheses, expected) if bleu_tokenize == "none" else []
    notes += [MARKED] * starts_with_mark(corpus)
    return ScoreCard(
        split=corpus.name,
        sentences=len(sources),
        scores=all_scores(hypotheses, expected, bleu_tokenize),
        loss=loss,
        bleu_by_length=_by_length(sources, hypotheses, expected, bleu_tokenize),
        exact_match_by_depth=_by_depth(corpus.depths, exact_matches(hypotheses, expected)),
        cut=sum(not translation.finished for translation in translations),
        near_ties=sum(translation.near_tie for translation in translations),
        seconds=seconds,
        note="; ".join(notes),
        search=translator.search,
        bleu_tokenize=bleu_tokenize,
        data=corpus.hashes,
        sources=sources,
        references=expected,
        hypotheses=hypotheses,
    )


def _untokenized(hypotheses: Sequence[str], references: Sequence[str]) -> list[str]:
    """What a reader of a BLEU without tokenizer must know."""
    if _num_cased(references):
        return [AS_IT_STANDS]
    cased = _num_cased(hypotheses)
    if not cased:
        return [LEGACY]
    return [
        LEGACY,
        f"{cased:,} of {len(hypotheses):,} translations have capital letters, which match nothing here: "
        "the model was trained on other text, and its BLEU is not that of published tables",
    ]


def _num_cased(lines: Sequence[str]) -> int:
    """Lines with a capital letter."""
    return sum(line != line.lower() for line in lines)


def all_scores(hypotheses: Sequence[str], references: Sequence[str], bleu_tokenize: str) -> dict[str, Score]:
    """Every score of :data:`minitrans.evaluation.metrics.METRICS`, with its interval."""
    return {
        name: metric(hypotheses, references, bleu_tokenize, RESAMPLES) for name, metric in METRICS.items()
    }


def _by_length(
    sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str], bleu_tokenize: str
) -> dict[str, LengthScore]:
    """BLEU of each bucket that has sentences, shortest first."""
    lengths = [len(source.split()) for source in sources]
    buckets = zip((-1, *BUCKETS), (*BUCKETS, None), strict=True)
    found = {}
    for shorter, longest in buckets:
        rows = [i for i, n in enumerate(lengths) if shorter < n and (longest is None or n <= longest)]
        if rows:
            name = f"{shorter + 1}-{longest}" if longest is not None else f"more than {shorter}"
            score = bleu(_rows(hypotheses, rows), _rows(references, rows), bleu_tokenize)
            found[name] = LengthScore(len(rows), score.value)
    return found


def _rows(lines: Sequence[str], rows: Iterable[int]) -> list[str]:
    return [lines[row] for row in rows]


def _by_depth(depths: Sequence[int] | None, matches: Sequence[bool]) -> dict[int, DepthScore]:
    """Exact match of each nesting depth, shallowest first."""
    groups: defaultdict[int, list[bool]] = defaultdict(list)
    for depth, match in zip(depths or (), matches, strict=depths is not None):
        groups[depth].append(match)
    return {depth: DepthScore(len(g), 100 * sum(g) / len(g)) for depth, g in sorted(groups.items())}
