"""The sweep: which searches are run, which is the best, what is drawn."""

from pathlib import Path
from typing import cast

import pytest
from rich.console import Console

from minitrans.config import SearchConfig
from minitrans.data.corpus import Corpus, read_corpus
from minitrans.data.formats import TextPair
from minitrans.decoding.translator import Translation, Translator
from minitrans.errors import UserError
from minitrans.evaluation import sweep as module
from minitrans.evaluation.metrics import bleu, length_ratio
from minitrans.evaluation.sweep import Cell, SearchSweep, draw_sweep, num_searches, save_sweep, sweep_search

REFERENCE = "one two three four five six"
SAID = {  # (beam, alpha) -> the translation
    (1, 0.0): "one two three four",
    (2, 0.0): "one two three",
    (2, 0.5): "one two three four five",
    (2, 1.0): REFERENCE,
    (4, 0.0): "one",
    (4, 0.5): REFERENCE,
    (4, 1.0): REFERENCE + " seven",
}


class Stub:
    """A translator that says what the table has for its search."""

    runs: list[tuple[int, float]]

    def __init__(
        self, model: object, tokenizers: object, search: SearchConfig, batch_tokens: int = 9
    ) -> None:
        self.model, self.tokenizers, self.search, self.batch_tokens = model, tokenizers, search, batch_tokens

    def translate(self, lines: list[str], *, name: str, progress: object) -> list[Translation]:
        key = self.search.beam_size, self.search.alpha
        Stub.runs.append(key)
        assert self.search.max_length == 7
        cast(type(print), progress)(len(lines))  # type: ignore[valid-type]
        return [Translation(SAID[key], (), 0.0, True) for _ in lines]


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    (tmp_path / "v.x").write_text("a\nb\n", encoding="utf-8")
    (tmp_path / "v.y").write_text(f"{REFERENCE}\n{REFERENCE}\n", encoding="utf-8")
    return read_corpus("valid", TextPair(tmp_path / "v.x", tmp_path / "v.y"))


@pytest.fixture
def translator(monkeypatch: pytest.MonkeyPatch) -> Translator:
    monkeypatch.setattr(module, "Translator", Stub)
    Stub.runs = []
    return cast(Translator, Stub(None, None, SearchConfig(beam_size=3, alpha=0.7, max_length=7)))


def test_every_combination_is_searched_and_greedy_once(corpus: Corpus, translator: Translator) -> None:
    done: list[int] = []
    sweep = sweep_search(translator, corpus, "13a", [4, 1, 2, 2], [1.0, 0.0, 0.5], done.append)
    assert Stub.runs == [(1, 0.0), *((beam, alpha) for beam in (2, 4) for alpha in (0.0, 0.5, 1.0))]
    assert sum(done) == 2 * num_searches([4, 1, 2, 2], [1.0, 0.0, 0.5]) == 14
    assert [(cell.beam_size, cell.alpha) for cell in sweep.cells] == [
        (beam, alpha) for beam in (1, 2, 4) for alpha in (0.0, 0.5, 1.0)
    ]
    for cell in sweep.cells:
        said = [SAID[1, 0.0] if cell.beam_size == 1 else SAID[cell.beam_size, cell.alpha]] * 2
        assert cell.bleu == bleu(said, [REFERENCE] * 2).value
        assert cell.length_ratio == length_ratio(said, [REFERENCE] * 2).value
    assert (sweep.best.beam_size, sweep.best.alpha) == (2, 1.0)  # as good as (4, 0.5), and cheaper
    assert sweep.best_search() == SearchConfig(beam_size=2, alpha=1.0, max_length=7)


def test_greedy_does_not_depend_on_alpha_at_all() -> None:
    assert num_searches([1], [0.0, 0.5, 1.0]) == 1
    assert num_searches([5, 10], [0.0, 0.5]) == 4


@pytest.mark.parametrize(
    ("beams", "alphas", "search", "sentence"),
    [
        ([], [1.0], {}, "at least one value in sweep_beam_sizes"),
        ([1], [], {}, "one in sweep_alphas"),
        ([1], [1.0], {"length_penalty": "none"}, "type search.length_penalty=gnmt beside it"),
    ],
)
def test_what_cannot_be_swept_is_refused(
    corpus: Corpus,
    translator: Translator,
    beams: list[int],
    alphas: list[float],
    search: dict[str, str],
    sentence: str,
) -> None:
    translator.search = SearchConfig(**search)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=sentence):
        sweep_search(translator, corpus, "13a", beams, alphas)
    assert Stub.runs == []


SWEEP = SearchSweep(
    "valid",
    1014,
    (Cell(1, 0.0, 30.0, 1.0), Cell(1, 1.0, 30.0, 1.0), Cell(5, 0.0, 33.33, 0.9), Cell(5, 1.0, 34.567, 1.1)),
    SearchConfig(),
)


def test_the_table_marks_the_best() -> None:
    console = Console(width=100)
    with console.capture() as capture:
        console.print(SWEEP.table())
    assert "34.57 *" in capture.get()
    assert capture.get().count("*") == 2  # and the caption says what it means
    assert capture.get().count("30.00") == 2


def test_the_heat_map_shows_each_number_at_its_place(tmp_path: Path) -> None:
    figure = draw_sweep(SWEEP)
    axes = figure.axes[0]
    texts = {text.get_position(): text.get_text() for text in axes.texts}
    assert texts == {(0, 0): "30.00", (1, 0): "30.00", (0, 1): "33.33", (1, 1): "34.57"}
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "1"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["1", "5"]
    (frame,) = axes.patches
    assert frame.get_xy() == (0.5, 0.5)  # around column 1, row 1
    save_sweep(SWEEP, tmp_path / "sweep.partial")
    assert (tmp_path / "sweep.partial").read_bytes().startswith(b"\x89PNG")
