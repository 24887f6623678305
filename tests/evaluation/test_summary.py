"""The table of several checkpoints."""

import dataclasses
import re

from rich.console import Console
from rich.table import Table

from minitrans.evaluation.sanity import SanityRow
from minitrans.evaluation.scorecard import LEGACY
from minitrans.evaluation.summary import Evaluated, summary_table
from tests.evaluation.cards import evaluated

LINES = ["a man rides a bike", "two dogs play in snow", "she reads a book today"]


def printed(table: Table) -> str:
    console = Console(width=160)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def cells(text: str, name: str) -> list[str]:
    (row,) = (line for line in text.splitlines() if line.strip().startswith(name))
    return row.replace(" ± ", "±").split()


def test_a_row_each_in_the_order_given() -> None:
    good, bad = evaluated("good", LINES, LINES), evaluated("bad", ["x"] * 3, LINES)
    frame = SanityRow("(reference)", dict(good.card.scores))
    text = printed(summary_table([bad, good], [frame]))
    assert text.index("bad") < text.index("good") < text.index("(reference)")
    scores = ["100.00±0.00", "100.00", "0.00", "100.00", "1.000"]
    assert cells(text, "good") == ["good", *scores, "2.72"]
    assert cells(text, "bad")[1:5] == ["0.00±0.00", "0.00", "100.00", "0.00"]
    assert cells(text, "(reference)") == ["(reference)", *scores]
    assert "do not compare" not in text
    said = re.findall(r"(\S+):\s+nrefs:1\|bs:1000\|seed:12345", text)
    assert said == ["BLEU", "chrF2++", "TER"]  # once each, and the ratio of lengths has no signature


def test_what_must_not_be_compared_is_said_below() -> None:
    first, second = evaluated("first", LINES, LINES), evaluated("second", LINES, LINES, tokenize="none")
    other = dataclasses.replace(second.card, data={"other.de": "1" * 64}, note=LEGACY)
    text = " ".join(printed(summary_table([first, Evaluated("second", other)])).split())
    assert LEGACY in text
    assert "the rows are scored on different data: do not compare them" in text
    assert "with different tokenizers: do not compare their BLEU" in text
