"""The page of changed sentences: well formed, self-contained, worst first, nothing taken for markup."""

import re
from html.parser import HTMLParser

from minitrans.evaluation.comparison import Change, Comparison, Difference, changes
from minitrans.evaluation.page import MOST, comparison_page, marked, most_changed
from tests.evaluation.cards import evaluated

VOID = {"meta", "br"}


class Outline(HTMLParser):
    """Checks that tags are closed in order; collects attributes and the text of each kind of element."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: set[str] = set()
        self.tags: set[str] = set()
        self.texts: dict[str, list[str]] = {}
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.texts.setdefault(tag, []).append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        for tag in self.open:
            self.texts[tag][-1] += data


DIFFERENCE = Difference(50.0, 48.75, 0.03125, 0.5, "bs:1000", "ar:10000")


def page_of(before: list[str], after: list[str], references: list[str]) -> str:
    system, baseline = (
        evaluated("runs/<b>/new", after, references),
        evaluated("old & tried", before, references),
    )
    found = changes(system, baseline)
    return comparison_page(Comparison(system, baseline, {"bleu": DIFFERENCE}, 4, 5, len(found)), found)


def test_words_that_the_other_lacks_are_marked() -> None:
    before, after = ["a", "man", "rides", "a", "bike"], ["a", "man", "rode", "his", "<bike>"]
    assert marked(before, after, "del") == "a man <del>rides a bike</del>"
    assert marked(after, before, "ins") == "a man <ins>rode his &lt;bike&gt;</ins>"
    assert marked(["a", "b", "c"], ["a", "c"], "del") == "a <del>b</del> c"
    assert marked(["a", "c"], ["a", "b", "c"], "ins") == "a c"
    assert marked([], ["a"], "ins") == ""


def test_worst_first_and_nothing_from_outside() -> None:
    references = ["a man rides a bike", "two dogs run", "she & he <script>"]
    page = page_of(["a man rides a bike", "two", "she"], ["a man", "two dogs run", "<script>"], references)
    outline = Outline(page)
    assert [text.split()[1] for text in outline.texts["h3"]] == ["1", "3", "2"]
    differences = [
        float(re.search(r"[+−][\d.]+", text)[0].replace("−", "-"))  # type: ignore[index]
        for text in outline.texts["h3"]
    ]
    assert differences == sorted(differences)
    assert differences[0] < 0 < differences[-1]
    assert "script" not in outline.tags
    assert not outline.attributes & {"src", "href", "onload", "style"}
    assert "url(" not in page and "@import" not in page and "http" not in page
    assert "rides a bike" in outline.texts["del"]
    assert "dogs run" in outline.texts["ins"]
    assert outline.texts["h1"] == ["runs/<b>/new against old & tried"]
    assert "3 sentences of the split test: 4 better, 5 worse by chrF2++ of the sentence, " in page
    assert "<td>−1.25</td><td>0.0312</td><td>0.5000</td>" in page


def test_no_sentence_changed() -> None:
    page = page_of(["a b c d", ""], ["a b c d", ""], ["a b c d", "x"])
    outline = Outline(page)
    assert outline.texts["h2"] == ["No sentence changed"]
    assert "section" not in outline.tags


def test_an_empty_translation_is_seen() -> None:
    outline = Outline(page_of(["a b c d"], [""], ["a b c d"]))
    assert "(empty)" in outline.texts["dd"]


def changed(*differences: float) -> list[Change]:
    return [
        Change(i, "s", "r", "b", "a", 50.0, 50.0 + d, 0.0, 0.0) for i, d in enumerate(differences, start=1)
    ]


def test_of_many_changes_the_worst_and_the_best_are_shown() -> None:
    system, baseline = evaluated("new", ["x"], ["x"]), evaluated("old", ["x"], ["x"])
    comparison = Comparison(system, baseline, {}, 0, 0, 0)
    many = changed(*range(-60, 80))
    outline = Outline(comparison_page(comparison, many))
    assert outline.texts["h2"] == ["100 of 140 changed sentences: what lost most, then what gained most"]
    lines = [int(text.split()[1]) for text in outline.texts["h3"]]
    assert lines == [*range(1, 51), *range(91, 141)]


def test_few_losses_are_never_hidden_by_many_gains() -> None:
    few_losses = changed(-2.0, -1.0, *range(1, 200))
    assert [change.line for change in most_changed(few_losses)] == [1, 2, *range(104, 202)]
    few_gains = changed(*range(-200, 0), 1.0)
    assert [change.line for change in most_changed(few_gains)] == [*range(1, MOST), 201]
    assert most_changed(few_losses[:5]) == few_losses[:5]
