"""The score card of one checkpoint on one split: what is printed, and what ``scores.json`` holds."""

import dataclasses
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table

from minitrans.config import SearchConfig
from minitrans.data.corpus import Corpus
from minitrans.decoding.translator import Translator
from minitrans.evaluation.loss import Loss, corpus_loss
from minitrans.evaluation.metrics import METRICS, Score, exact_matches

LEGACY = "lower-cased, tokenised BLEU; not comparable with cased 13a"
_TITLES = {
    "bleu": "BLEU",
    "chrf": "chrF2++",
    "exact_match": "exact match, %",
    "length_ratio": "length ratio",
}


@dataclass(frozen=True)
class DepthScore:
    """Exact match among the sentences of one nesting depth."""

    sentences: int
    exact_match: float  # percent


@dataclass(frozen=True)
class ScoreCard:
    """How well a split was translated, and by which settings.

    Attributes
    ----------
    scores
        Name -> score, see :data:`minitrans.evaluation.metrics.METRICS`.
    loss
        Of the references, token-weighted, without label smoothing.
    exact_match_by_depth
        Nesting depth -> exact match, where the corpus knows depths.
    cut
        Translations that the length limit ended.
    seconds
        Time of the search, encoding and decoding of text included.
    note
        What a reader of the BLEU must know (empty: nothing).
    data
        File (or other origin) -> SHA-256.
    hypotheses
        The translations, one a line of the split.
    """

    split: str
    sentences: int
    scores: Mapping[str, Score]
    loss: Loss
    exact_match_by_depth: Mapping[int, DepthScore]
    cut: int
    seconds: float
    note: str
    search: SearchConfig
    data: Mapping[str, str]
    hypotheses: tuple[str, ...] = field(repr=False)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, without the hypotheses: the content of ``scores.json``."""
        by_depth = {str(depth): dataclasses.asdict(s) for depth, s in self.exact_match_by_depth.items()}
        return {
            "split": self.split,
            "sentences": self.sentences,
            "scores": {name: dataclasses.asdict(score) for name, score in self.scores.items()},
            "note": self.note,
            "loss": self.loss.per_token,
            "perplexity": self.loss.perplexity,
            "target_tokens": self.loss.num_tokens,
            **({"exact_match_by_depth": by_depth} if by_depth else {}),
            "cut_by_length_limit": self.cut,
            "seconds": round(self.seconds, 3),
            "sentences_per_s": round(self.sentences / self.seconds, 2),
            "search": dataclasses.asdict(self.search),
            "data": dict(self.data),
        }

    def table(self) -> Table:
        """The card for the terminal."""
        table = Table(title=f"{self.split}: {self.sentences:,} sentences, beam {self.search.beam_size}")
        table.add_column("score")
        table.add_column("value", justify="right")
        table.add_column("signature", overflow="fold")
        for name, score in self.scores.items():
            digits = 3 if name == "length_ratio" else 2
            table.add_row(_TITLES.get(name, name), f"{score.value:.{digits}f}", score.signature)
        for depth, at_depth in self.exact_match_by_depth.items():
            size = f"{at_depth.sentences:,} sentences"
            table.add_row(f"  nesting depth {depth}", f"{at_depth.exact_match:.2f}", size)
        table.add_row("loss, nats a token", f"{self.loss.per_token:.4f}", f"{self.loss.num_tokens:,} tokens")
        table.add_row("perplexity", f"{self.loss.perplexity:.3f}", "")
        table.add_row("sentences a second", f"{self.sentences / self.seconds:.1f}", f"{self.seconds:.1f} s")
        table.caption = self.note or None
        return table


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
        sacreBLEU's tokenizer; ``none`` is the legacy setting, and said so on the card.
    progress
        Called with the number of lines just translated.

    Raises
    ------
    UserError
        A line that has more tokens than the model has positions for.
    """
    sources, references = list(corpus.src), list(corpus.tgt)
    loss = corpus_loss(
        translator.model, translator.tokenizers, sources, references, translator.batch_tokens, corpus.origin
    )
    begin = time.perf_counter()
    translations = translator.translate(sources, name=f"the source of {corpus.origin}", progress=progress)
    seconds = time.perf_counter() - begin
    hypotheses = tuple(translation.text for translation in translations)
    return ScoreCard(
        split=corpus.name,
        sentences=len(sources),
        scores={name: metric(hypotheses, references, bleu_tokenize) for name, metric in METRICS.items()},
        loss=loss,
        exact_match_by_depth=_by_depth(corpus.depths, exact_matches(hypotheses, references)),
        cut=sum(not translation.finished for translation in translations),
        seconds=seconds,
        note=LEGACY if bleu_tokenize == "none" else "",
        search=translator.search,
        data=corpus.hashes,
        hypotheses=hypotheses,
    )


def _by_depth(depths: Sequence[int] | None, matches: Sequence[bool]) -> dict[int, DepthScore]:
    """Exact match of each nesting depth, shallowest first."""
    groups: defaultdict[int, list[bool]] = defaultdict(list)
    for depth, match in zip(depths or (), matches, strict=depths is not None):
        groups[depth].append(match)
    return {depth: DepthScore(len(g), 100 * sum(g) / len(g)) for depth, g in sorted(groups.items())}
