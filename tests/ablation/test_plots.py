"""The pictures of a report: bands by hand, and what is drawn where."""

import dataclasses
import io

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from minitrans.ablation import plots
from minitrans.ablation.answer import Comparison, answer
from minitrans.ablation.plots import DARK, LIGHT, band
from minitrans.ablation.statistics import Bootstrap
from tests.ablation.studies import results_of


def test_a_band_is_the_mean_and_deviation_at_shared_updates() -> None:
    updates, mean, sd = band(
        [[(10, 1.0), (20, 3.0), (30, 9.0)], [(10, 3.0), (20, 3.0)], [(10, 2.0), (20, 6.0), (40, 1.0)]]
    )
    assert updates.tolist() == [10, 20]
    assert mean.tolist() == [2.0, 4.0]
    assert sd == pytest.approx([1.0, np.sqrt(3)])


def test_one_seed_has_no_band() -> None:
    updates, mean, sd = band([[(10, 1.0), (20, 3.0)]])
    assert (updates.tolist(), mean.tolist(), sd.tolist()) == ([10, 20], [1.0, 3.0], [0.0, 0.0])


def comparisons() -> tuple[Comparison, ...]:
    scores = {
        "base": {1: 1.0, 2: 2.0, 3: 3.0},
        "new": {1: 2.0, 2: 4.0, 3: 6.0},
        "single": {1: 5.0},
        "lost": {},
    }
    return answer(results_of(scores, dict.fromkeys(("new", "single", "lost"), "base"))).comparisons


def test_the_forest_shows_intervals_means_and_pairs() -> None:
    new, single, _ = comparisons()
    new = dataclasses.replace(new, sentences=Bootstrap(2.0, 1.5, 2.5, 0.001))
    figure = plots._forest(LIGHT, [new, single], "bleu")
    (axes,) = figure.axes
    lines = {line.get_label(): line for line in axes.lines[:4]}
    assert list(lines["mean over seeds"].get_xdata()) == [2.0]
    assert sorted(lines["one pair of seeds"].get_xdata()) == [1.0, 2.0, 3.0]
    assert lines["95 % over seeds"].get_xdata() == pytest.approx([2 - 2.4841, 2 + 2.4841], abs=1e-4)
    assert list(lines["95 % over sentences"].get_xdata()) == [1.5, 2.5]
    assert len(axes.lines) == 4 + 2 + 1  # one seed: mean and pair alone; the line at 0
    assert [text.get_text() for text in axes.texts] == ["new − base", "single − base"]
    low, high = axes.get_xlim()
    assert low < 0 < high
    rules = [segment for lines in axes.collections for segment in lines.get_segments()]  # type: ignore[attr-defined]
    spans = {(round(float(start[1]), 2), round(float(end[1]), 2)) for start, end in rules}
    assert spans == {(0.17, 0.59), (0.76, 1.18)}  # below each label's line of words


def pixels(png: bytes) -> np.ndarray:
    return np.asarray(imread(io.BytesIO(png)))


def test_each_picture_is_drawn_for_light_and_dark_pages_on_no_ground() -> None:
    figure = plots.forest(comparisons(), "bleu")
    assert figure is not None
    light, dark = pixels(figure.light), pixels(figure.dark)
    assert light.shape == dark.shape and light.shape[1] == plots.WIDTH * plots.DPI
    for picture, ink in ((light, LIGHT.ink), (dark, DARK.ink)):
        assert picture[0, 0, 3] == 0  # the page shows through
        color = [int(ink[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        assert (np.abs(picture[..., :3] - color).max(axis=-1) < 0.01).any()
    assert "new less base: +2.00" in figure.text and "lost" not in figure.text


def test_without_a_pair_or_a_finished_cell_nothing_is_drawn() -> None:
    assert plots.forest(comparisons()[2:], "bleu") is None
    assert plots.learning_curves(results_of({"base": {}, "new": {}}, {"new": "base"})) is None


def test_the_same_figures_give_the_same_picture() -> None:
    def draw() -> Figure:
        return plots._forest(LIGHT, comparisons()[:2], "bleu")

    assert plots._png(draw()) == plots._png(draw())
