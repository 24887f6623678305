"""A diagnosis as pictures: measured against predicted, what is lost without each head, alike positions.

Letters: P positions, D d_model.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from minitrans.analysis.diagnosis import NAMES, Diagnosis
from minitrans.analysis.drawing import DPI, INK
from minitrans.analysis.instruments import HeadFigures
from minitrans.analysis.operands import SIDES
from minitrans.analysis.positions import similarity
from minitrans.model.positions import sinusoidal_table

COLORS = {"encoder": "#0072b2", "decoder": "#d55e00", "cross": "#009e73"}
MARKERS = {"encoder": "o", "decoder": "s", "cross": "^"}
GRID = "#e5e7eb"
SMALLEST_RANGE = 0.05  # of an axis: small shares of saturated rows are not blown up

Figured = Callable[[HeadFigures], float]


def draw_predictions(diagnosis: Diagnosis) -> Figure:
    """Variance, entropy and saturation of every head: measured against predicted, a dot a head.

    Dashed lines are what components of unit variance would give; of entropy and saturation a line a side,
    which see unlike numbers of keys.
    """
    figure = Figure(figsize=(12.0, 4.9), dpi=DPI, layout="constrained")
    variance, entropy, saturated = figure.subplots(1, 3)
    heads = diagnosis.measured.heads
    _compare(variance, heads, "Variance of q·k", lambda one: one.predicted_variance, lambda one: one.variance)
    _compare(entropy, heads, "Entropy of the rows, nats",
             lambda one: diagnosis.predicted(one).entropy, lambda one: one.entropy)  # fmt: skip
    _compare(saturated, heads, "Share of saturated rows",
             lambda one: diagnosis.predicted(one).saturated, lambda one: one.saturated)  # fmt: skip
    variance.set_xlabel("predicted: d_k · E[q²] · E[k²]")
    for axes in (entropy, saturated):
        axes.set_xlabel("predicted by the variance measured")
    label = f"components of unit variance (d_k = {heads[0].d_k})"
    variance.axhline(heads[0].d_k, color=INK, linewidth=1.1, linestyle="--", label=label)
    for side in SIDES:
        theory = diagnosis.theory(next(one for one in heads if one.side == side))
        entropy.axhline(theory.entropy, color=COLORS[side], linewidth=1.1, linestyle="--")
        saturated.axhline(theory.saturated, color=COLORS[side], linewidth=1.1, linestyle="--")
    handles, labels = variance.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    return figure


def _compare(
    axes: Axes, heads: Sequence[HeadFigures], title: str, predicted: Figured, measured: Figured
) -> None:
    most = SMALLEST_RANGE
    for side in SIDES:
        x, y = zip(*((predicted(one), measured(one)) for one in heads if one.side == side), strict=True)
        axes.plot(x, y, MARKERS[side], color=COLORS[side], markersize=5, alpha=0.75, label=NAMES[side])
        most = max([most, *(value for value in (*x, *y) if math.isfinite(value))])
    axes.axline((0, 0), slope=1, color=INK, linewidth=0.9, label="measured = predicted")
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
    axes.set_ylabel("measured")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_xlim(0, 1.06 * most)
    axes.set_ylim(0, 1.06 * most)


def draw_importance(diagnosis: Diagnosis) -> Figure:
    """BLEU lost without each head: a row a layer, a column a head."""
    places = list(dict.fromkeys((one.side, one.layer) for one in diagnosis.importance))
    num_heads = max(one.head for one in diagnosis.importance)
    losses = np.full((len(places), num_heads), np.nan)
    for one in diagnosis.importance:
        losses[places.index((one.side, one.layer)), one.head - 1] = one.loss
    figure = Figure(figsize=(2.6 + 0.75 * num_heads, 1.6 + 0.36 * len(places)), dpi=DPI, layout="constrained")
    axes = figure.subplots()
    most = max(float(np.abs(losses).max()), 0.1)
    picture = axes.imshow(losses, cmap="RdBu_r", norm=TwoSlopeNorm(0.0, -most, most), aspect="auto")
    for (row, column), value in np.ndenumerate(losses):
        ink = "white" if abs(value) > 0.6 * most else "black"
        axes.text(column, row, f"{value:.1f}", ha="center", va="center", fontsize=8, color=ink)
    axes.set_xticks(range(num_heads), [f"head {head + 1}" for head in range(num_heads)], fontsize=8)
    axes.set_yticks(range(len(places)), [f"{side} {layer}" for side, layer in places], fontsize=8)
    axes.tick_params(length=0)
    axes.set_title(f"BLEU lost without it, of {diagnosis.bleu:.1f}", loc="left", fontsize=10)
    figure.colorbar(picture, ax=axes).ax.tick_params(labelsize=7)
    return figure


def draw_positions(tables: Mapping[str, Tensor], length: int) -> Figure:
    """How alike learned positions are, a panel a side, and sinusoidal ones as wide beside them.

    Parameters
    ----------
    tables
        Side -> (P, D), at least one.
    length
        Positions drawn, the first ones: those that some sentence has.
    """
    width = next(iter(tables.values())).size(-1)
    panels = {f"{side}, learned": table[:length].cpu() for side, table in tables.items()}
    panels["sinusoidal"] = sinusoidal_table(length, width)
    figure = Figure(figsize=(4.0 * len(panels) + 0.6, 4.2), dpi=DPI, layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for one, (name, table) in zip(axes, panels.items(), strict=True):
        picture = one.imshow(similarity(table).numpy(), cmap="RdBu_r", vmin=-1, vmax=1)
        one.set_title(name, loc="left", fontsize=10)
        one.set_xlabel("position")
        for axis in (one.xaxis, one.yaxis):
            axis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axes[0].set_ylabel("position")
    figure.colorbar(picture, ax=axes, label="cosine").ax.tick_params(labelsize=8)
    return figure


def draw(diagnosis: Diagnosis, tables: Mapping[str, Tensor], length: int, folder: Path) -> list[Path]:
    """Write ``diagnostics.png``, and ``heads.png`` and ``positions.png`` where there is such to show."""
    pictures = {"diagnostics.png": draw_predictions(diagnosis)}
    if diagnosis.importance:
        pictures["heads.png"] = draw_importance(diagnosis)
    if tables:
        pictures["positions.png"] = draw_positions(tables, length)
    for name, figure in pictures.items():
        figure.savefig(folder / name)
    return [folder / name for name in pictures]
