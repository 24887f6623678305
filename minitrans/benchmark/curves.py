"""The curves of ``scaling`` as a picture: a panel an axis, both scales logarithmic."""

import itertools
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from minitrans.benchmark.scaling import MEMORY, Curve

COLUMNS, PANEL, GAP = 3, (4.2, 4.0), 0.1  # panels side by side, inches of each and at its edge
DPI = 120
# The scales go on by these factors beyond the values, the one of time downwards, that of memory upwards:
# a flat curve or one point gives a scale no length of its own, and in the middle the two hide each other.
NARROW, WIDE = 2.0, 10.0


def draw(curves: Sequence[Curve], path: Path) -> Path:
    """Draw the figures as points and what was predicted as broken lines; returns the path."""
    by_axis = [list(group) for _, group in itertools.groupby(curves, key=lambda curve: curve.axis)]
    rows = math.ceil(len(by_axis) / COLUMNS)
    figure = Figure(figsize=(PANEL[0] * COLUMNS, PANEL[1] * rows), dpi=DPI)
    FigureCanvasAgg(figure)
    figure.set_layout_engine("constrained", w_pad=GAP)  # or one panel's right label meets the next one's left
    for place, group in enumerate(by_axis, start=1):
        _panel(figure.add_subplot(rows, COLUMNS, place), group)
    figure.savefig(path)
    return path


def _panel(axes: Axes, group: Sequence[Curve]) -> None:
    """Time on the left scale, memory on the right one: the two have no unit in common."""
    lines = []  # of the legend
    times = [curve for curve in group if curve.name != MEMORY]
    for number, curve in enumerate(times):
        lines += axes.plot(curve.x, curve.y, "o-", markersize=4, color=f"C{number}", label=_label(curve))
        if curve.predicted is not None:
            axes.plot(curve.x, fitted(curve.y, curve.predicted), "--", color=f"C{number}", alpha=0.6)
    axes.set_xscale("log", base=2)
    _log_scale(axes, [y for curve in times for y in curve.y], below=WIDE, above=NARROW)
    axes.set_xlabel(group[0].axis)
    axes.set_ylabel("seconds (dashed: as predicted)", fontsize=8)
    for curve in (curve for curve in group if curve.name == MEMORY):
        right = axes.twinx()
        lines += right.plot(curve.x, curve.y, "s:", markersize=4, color="0.5", label=_label(curve))
        _log_scale(right, curve.y, below=NARROW, above=WIDE)
        right.set_ylabel(MEMORY, fontsize=8)
    axes.legend(handles=lines, fontsize=7, frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0))


def _log_scale(axes: Axes, values: Sequence[float], below: float, above: float) -> None:
    """A logarithmic scale with room around the values; what is not above 0 has no place on it."""
    axes.set_yscale("log")
    axes.tick_params(axis="y", which="both", labelsize=8)
    shown = [value for value in values if value > 0]
    if shown:
        axes.set_ylim(min(shown) / below, max(shown) * above)


def _label(curve: Curve) -> str:
    found, predicted = curve.exponent, curve.predicted_exponent
    exponent = "" if found is None else f": ^{found:z.2f}"
    return curve.name + exponent + ("" if predicted is None else f" (predicted ^{predicted:z.2f})")


def fitted(y: Sequence[float], predicted: Sequence[float]) -> np.ndarray:
    """The prediction times the factor that brings it nearest to the figures, in the logarithm."""
    factor = np.exp(np.mean(np.log(y) - np.log(predicted)))
    return factor * np.asarray(predicted)
