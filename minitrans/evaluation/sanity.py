"""What no model's translations score: the frame in which a model's score has a meaning."""

from collections.abc import Sequence
from dataclasses import dataclass

from minitrans.data.corpus import Corpus
from minitrans.evaluation.metrics import Score
from minitrans.evaluation.nearest import Memory
from minitrans.evaluation.references import references
from minitrans.evaluation.scorecard import all_scores


@dataclass(frozen=True)
class SanityRow:
    """The scores of translations that no model made."""

    name: str
    scores: dict[str, Score]


def sanity_rows(corpus: Corpus, train: Corpus, bleu_tokenize: str) -> list[SanityRow]:
    """Score three translations that need no model.

    * ``(reference)``: the reference itself, which must be perfect: if not, the scoring is at fault;
    * ``(source)``: the source, copied: what names, numbers and common words are worth;
    * ``(nearest)``: the target of the nearest training source
      (:class:`minitrans.evaluation.nearest.Memory`): what memory alone can do. A model that is not above
      it has not learned to translate.

    Parameters
    ----------
    corpus
        The split that is scored.
    train
        The training split of the same data.
    bleu_tokenize
        sacreBLEU's tokenizer.
    """
    sources, expected = list(corpus.src), references(corpus)
    memory = Memory(list(train.src), list(train.tgt))
    rows: dict[str, Sequence[str]] = {
        "(reference)": expected,
        "(source)": sources,
        "(nearest)": [memory.translate(source) for source in sources],
    }
    return [SanityRow(name, all_scores(lines, expected, bleu_tokenize)) for name, lines in rows.items()]
