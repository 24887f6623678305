"""Which beam and which length penalty suit a model: every combination tried on the validation split."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from rich.table import Table

from minitrans.config import SearchConfig
from minitrans.data.corpus import Corpus
from minitrans.decoding.translator import Translator
from minitrans.errors import UserError
from minitrans.evaluation.metrics import bleu, length_ratio
from minitrans.evaluation.references import references

DPI = 120


@dataclass(frozen=True)
class Cell:
    """One combination, and how it did."""

    beam_size: int
    alpha: float
    bleu: float
    length_ratio: float


@dataclass(frozen=True)
class SearchSweep:
    """All combinations on one split.

    Attributes
    ----------
    cells
        Beam by beam, the narrowest first; in each, by rising alpha.
    search
        The settings that all combinations share.
    """

    split: str
    sentences: int
    cells: tuple[Cell, ...]
    search: SearchConfig

    @property
    def beam_sizes(self) -> list[int]:
        """The beams tried, narrowest first."""
        return sorted({cell.beam_size for cell in self.cells})

    @property
    def alphas(self) -> list[float]:
        """The strengths of the length penalty tried, weakest first."""
        return sorted({cell.alpha for cell in self.cells})

    @property
    def best(self) -> Cell:
        """Of the highest BLEU; among equals the cheapest: the narrowest beam, then the weakest penalty."""
        return max(self.cells, key=lambda cell: (cell.bleu, -cell.beam_size, -cell.alpha))

    def best_search(self) -> SearchConfig:
        """The settings of :attr:`best`, whole."""
        return dataclasses.replace(self.search, beam_size=self.best.beam_size, alpha=self.best.alpha)

    def as_dict(self) -> dict[str, Any]:
        """Plain data: the content of ``sweep.json``."""
        return {
            "split": self.split,
            "sentences": self.sentences,
            "best": dataclasses.asdict(self.best),
            "cells": [dataclasses.asdict(cell) for cell in self.cells],
        }

    def table(self) -> Table:
        """BLEU of each combination, the best marked."""
        table = Table(title=f"{self.split}: {self.sentences:,} sentences, BLEU by beam and alpha")
        table.add_column("beam", justify="right")
        for alpha in self.alphas:
            table.add_column(f"alpha {alpha:g}", justify="right")
        for beam_size in self.beam_sizes:
            row = [cell for cell in self.cells if cell.beam_size == beam_size]
            table.add_row(str(beam_size), *(self._shown(cell) for cell in row))
        table.caption = f"length penalty {self.search.length_penalty}; * is the best"
        return table

    def _shown(self, cell: Cell) -> str:
        return f"[bold]{cell.bleu:.2f} *[/bold]" if cell == self.best else f"{cell.bleu:.2f}"


def sweep_search(
    translator: Translator,
    corpus: Corpus,
    bleu_tokenize: str,
    beam_sizes: Sequence[int],
    alphas: Sequence[float],
    progress: Callable[[int], object] | None = None,
) -> SearchSweep:
    """Translate a split with every combination.

    A beam of 1 compares no finished hypotheses, so alpha means nothing to it: it is run once.

    Parameters
    ----------
    translator
        Its model and its other settings are used.
    progress
        Called with the number of lines just translated, :func:`num_searches` x the split's lines in all.

    Raises
    ------
    UserError
        Nothing to try, or values that no search can have.
    """
    beam_sizes, alphas = sorted(set(beam_sizes)), sorted(set(alphas))
    translators = _translators(translator, beam_sizes, alphas)
    sources, expected = list(corpus.src), references(corpus)
    scores: dict[tuple[int, float], tuple[float, float]] = {}
    for (beam_size, alpha), one in translators.items():
        found = one.translate(sources, name=f"the source of {corpus.origin}", progress=progress)
        lines = [translation.text for translation in found]
        pair = bleu(lines, expected, bleu_tokenize).value, length_ratio(lines, expected, bleu_tokenize).value
        for other in alphas if beam_size == 1 else [alpha]:
            scores[beam_size, other] = pair
    cells = [Cell(beam, alpha, *scores[beam, alpha]) for beam in beam_sizes for alpha in alphas]
    return SearchSweep(corpus.name, len(sources), tuple(cells), translator.search)


def num_searches(beam_sizes: Sequence[int], alphas: Sequence[float]) -> int:
    """How often a sweep translates the split."""
    beams = set(beam_sizes)
    return len(beams - {1}) * len(set(alphas)) + (1 in beams)


def _translators(
    translator: Translator, beam_sizes: Sequence[int], alphas: Sequence[float]
) -> dict[tuple[int, float], Translator]:
    """One for each combination that is searched. All are made, and so checked, before any works."""
    if not beam_sizes or not alphas:
        raise UserError("a sweep needs at least one value in sweep_beam_sizes and one in sweep_alphas")
    if translator.search.length_penalty == "none":
        raise UserError(
            "search.length_penalty=none leaves alpha without a meaning, and nothing to sweep; "
            "type search.length_penalty=gnmt beside it"
        )
    if not translator.search.sample and translator.search.n_best > min(beam_sizes):
        raise UserError(
            f"search.n_best={translator.search.n_best} is more than the beam of {min(beam_sizes)} in "
            f"sweep_beam_sizes={list(beam_sizes)}; type search.n_best=1, since a sweep scores the best alone"
        )
    return {
        (beam_size, alpha): Translator(
            translator.model,
            translator.tokenizers,
            dataclasses.replace(translator.search, beam_size=beam_size, alpha=alpha),
            translator.batch_tokens,
        )
        for beam_size in beam_sizes
        for alpha in (alphas[:1] if beam_size == 1 else alphas)
    }


# --------------------------------------------------------------------------------------
# The picture
# --------------------------------------------------------------------------------------


def draw_sweep(sweep: SearchSweep) -> Figure:
    """A heat map: a row a beam, a column an alpha, BLEU as colour and number, the best framed."""
    beams, alphas = sweep.beam_sizes, sweep.alphas
    values = [[cell.bleu for cell in sweep.cells if cell.beam_size == beam] for beam in beams]
    figure = Figure(figsize=(1.1 * len(alphas) + 2.6, 0.7 * len(beams) + 1.9), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    image = axes.imshow(values, cmap="viridis", aspect="auto")
    axes.set_xticks(range(len(alphas)), [f"{alpha:g}" for alpha in alphas])
    axes.set_yticks(range(len(beams)), [str(beam) for beam in beams])
    axes.set_xlabel(f"alpha ({sweep.search.length_penalty})")
    axes.set_ylabel("beam")
    axes.set_title(f"BLEU on {sweep.split}, {sweep.sentences:,} sentences", fontsize=11)
    middle = (min(map(min, values)) + max(map(max, values))) / 2
    for y, row in enumerate(values):
        for x, value in enumerate(row):
            color = "white" if value <= middle else "black"  # viridis goes from dark to light
            axes.text(x, y, f"{value:.2f}", ha="center", va="center", color=color)
    corner = alphas.index(sweep.best.alpha) - 0.5, beams.index(sweep.best.beam_size) - 0.5
    axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor="#d62728", linewidth=3, clip_on=False))
    figure.colorbar(image, ax=axes, label="BLEU")
    return figure


def save_sweep(sweep: SearchSweep, path: Path) -> None:
    """Write the heat map as PNG."""
    draw_sweep(sweep).savefig(path, format="png")
