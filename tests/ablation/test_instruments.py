"""The section on what is inside the heads: means by hand, and a report with and without it."""

import csv
import math
from pathlib import Path

import pytest

from minitrans.ablation import plots
from minitrans.ablation.document import Figure, Table
from minitrans.ablation.instruments import blocks, measured
from minitrans.ablation.plots import DARK, INSTRUMENTS
from minitrans.ablation.report import write
from minitrans.ablation.results import load
from minitrans.analysis.instruments import COLUMNS
from tests.ablation.studies import StudyBuilder, noisy


def write_diagnostics(cell: Path, variance: float, d_k: int = 32) -> None:
    """Two heads at the updates 0 and 50; the second one has no number for its entropy."""
    with (cell / "diagnostics.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ("update", *COLUMNS))
        writer.writeheader()
        for update in (0, 50):
            for head in (1, 2):
                row = dict.fromkeys(COLUMNS, 0.5) | {"side": "encoder", "layer": 1, "head": head, "d_k": d_k}
                row |= {"update": update, "variance": variance * head + update, "uniform_entropy": 2.0}
                row |= {"entropy": 1.5 if head == 1 else math.nan, "saturated": 0.25 * head}
                row |= {"query_gradient": 0.1 / (update + 1), "key_gradient": 0.2 / (update + 1)}
                writer.writerow(row)


@pytest.fixture
def builder(tmp_path: Path) -> StudyBuilder:
    """Two variants over two seeds; one cell of ``new`` measured nothing, and none of ``blind``."""
    study = StudyBuilder(tmp_path / "study", tmp_path / "text", {"base": None, "new": "base", "blind": None})
    for seed in (1, 2):
        write_diagnostics(study.done("base", seed, noisy(0.1, seed)), 10.0 * seed)
    write_diagnostics(study.done("new", 1, noisy(0.2, 3)), 100.0, d_k=128)
    study.done("new", 2, noisy(0.2, 4))
    study.done("blind", 1, noisy(0.2, 5))
    return study


def test_a_figure_is_the_mean_of_the_heads_that_have_one(builder: StudyBuilder) -> None:
    found = measured(load(builder.write()))
    assert list(found) == ["base", "new"]
    assert (found["base"].d_k, found["new"].d_k, found["base"].most_entropy) == (32, 128, 2.0)
    assert found["base"].curves["variance"] == [[(0, 15.0), (50, 65.0)], [(0, 30.0), (50, 80.0)]]
    assert found["new"].curves["variance"] == [[(0, 150.0), (50, 200.0)]]
    assert found["base"].curves["entropy"][0] == [(0, 1.5), (50, 1.5)]
    assert found["base"].curves["saturated"][0] == [(0, 0.375), (50, 0.375)]


def test_the_table_tells_the_first_and_the_last_mean_over_seeds(builder: StudyBuilder) -> None:
    table, _, figure = blocks(load(builder.write()))
    assert isinstance(table, Table) and isinstance(figure, Figure)
    rows = [[cell.replace("\N{NO-BREAK SPACE}", " ") for cell in row] for row in table.rows]
    assert rows[0] == [
        "base", "32", "22.5 → 72.5", "0.5 → 0.5", "1.5 → 1.5", "2", "37.5 % → 37.5 %", "0.1 → 0.00196",
        "0.2 → 0.00392",
    ]  # fmt: skip
    assert rows[1][:3] == ["new", "128", "150 → 200"]
    assert len(rows) == 2


def test_the_picture_has_a_line_a_variant_in_each_panel(builder: StudyBuilder) -> None:
    found = measured(load(builder.write()))
    figure = plots._instruments(DARK, {name: one.curves for name, one in found.items()})
    assert [axes.get_title(loc="left") for axes in figure.axes] == list(INSTRUMENTS.values())
    assert list(figure.axes[0].lines[0].get_ydata()) == [22.5, 72.5]
    assert all(len(axes.lines) == 2 for axes in figure.axes)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["base", "new"]


def test_the_report_has_the_section_where_something_was_measured(
    builder: StudyBuilder, tmp_path: Path
) -> None:
    folder = builder.write()
    write(folder)
    assert "## Inside the heads" in (folder / "report.md").read_text(encoding="utf8")
    for file in folder.rglob("diagnostics.csv"):
        file.unlink()
    write(folder)
    assert "Inside the heads" not in (folder / "report.html").read_text(encoding="utf8")
