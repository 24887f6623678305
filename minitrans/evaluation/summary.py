"""Several checkpoints, and what frames them, a row each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from minitrans.evaluation.metrics import Score
from minitrans.evaluation.sanity import SanityRow
from minitrans.evaluation.scorecard import ScoreCard, shown

_COLUMNS = {
    "bleu": "BLEU",
    "chrf": "chrF2++",
    "ter": "TER",
    "exact_match": "exact, %",
    "length_ratio": "length",
    "comet": "COMET",
}


@dataclass(frozen=True)
class Evaluated:
    """A checkpoint's name in tables, and its card."""

    name: str
    card: ScoreCard


def summary_table(rows: Sequence[Evaluated], sanity: Sequence[SanityRow] = ()) -> Table:
    """One row a checkpoint, in the order given, then the rows of no model.

    BLEU's column says how wide its 95 % interval is to either side; all else is on the cards. Cards of
    unlike data or unlike tokenizers are not comparable, and the caption says so.
    """
    scores = [row.card.scores for row in rows] + [row.scores for row in sanity]
    columns = [name for name in _COLUMNS if any(name in found for found in scores)]
    table = Table(title=_title(rows), box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("translations", overflow="fold")
    for name in [*(_COLUMNS[column] for column in columns), "perplexity"]:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(row.name, *_cells(row.card.scores, columns), f"{row.card.loss.perplexity:.2f}")
    if sanity:
        table.add_section()
    for frame in sanity:
        table.add_row(frame.name, *_cells(frame.scores, columns), "")
    table.caption = _caption(rows, _FRAME if sanity else "")
    table.caption_justify = "left"
    return table


def _title(rows: Sequence[Evaluated]) -> str:
    first = rows[0].card
    return f"{first.split}: {first.sentences:,} sentences"


def _cells(scores: Mapping[str, Score], columns: Sequence[str]) -> list[str]:
    return [_cell(name, scores[name]) if name in scores else "" for name in columns]


def _cell(name: str, score: Score) -> str:
    if name != "bleu" or score.low is None or score.high is None:
        return shown(name, score)
    return f"{shown(name, score)} ± {(score.high - score.low) / 2:.2f}"


_FRAME = "source: copied as it stands; nearest: the target of the nearest training source"


def _caption(rows: Sequence[Evaluated], frame: str) -> Text:
    """Notes of the cards and the signatures, each once, and what forbids comparing the rows."""
    notes = list(dict.fromkeys(row.card.note for row in rows if row.card.note))
    if len({tuple(row.card.data.values()) for row in rows}) > 1:
        notes.append("the rows are scored on different data: do not compare them")
    if len({row.card.bleu_tokenize for row in rows}) > 1:
        notes.append("the rows are scored with different tokenizers: do not compare their BLEU")
    signatures = {
        f"{title}: {row.card.scores[name].signature}": None
        for name, title in _COLUMNS.items()
        for row in rows
        if name in row.card.scores and row.card.scores[name].signature
    }
    notes += signatures
    return Text("\n".join([*notes, frame] if frame else notes))
