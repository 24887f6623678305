"""The curves of ``scaling`` as a picture: a panel an axis, both scales logarithmic."""

import itertools
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from minitrans.benchmark.scaling import Curve

COLUMNS, PANEL = 3, (4.2, 3.4)  # panels side by side, inches of each
DPI = 120


def draw(curves: Sequence[Curve], path: Path) -> Path:
    """Draw the figures as points and what was predicted as broken lines; returns the path."""
    by_axis = [list(group) for _, group in itertools.groupby(curves, key=lambda curve: curve.axis)]
    rows = math.ceil(len(by_axis) / COLUMNS)
    figure = Figure(figsize=(PANEL[0] * COLUMNS, PANEL[1] * rows), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    for place, group in enumerate(by_axis, start=1):
        _panel(figure.add_subplot(rows, COLUMNS, place), group)
    figure.savefig(path)
    return path


def _panel(axes: Axes, group: Sequence[Curve]) -> None:
    for curve in group:
        (line,) = axes.plot(curve.x, curve.y, "o-", markersize=4, label=_label(curve))
        if curve.predicted is not None:
            axes.plot(curve.x, fitted(curve.y, curve.predicted), "--", color=line.get_color(), alpha=0.6)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel(group[0].axis)
    axes.set_title("dashed: as predicted", fontsize=8)
    axes.legend(fontsize=7)


def _label(curve: Curve) -> str:
    found, predicted = curve.exponent, curve.predicted_exponent
    exponent = "" if found is None else f": ^{found:.2f}"
    return curve.name + exponent + ("" if predicted is None else f" (predicted ^{predicted:.2f})")


def fitted(y: Sequence[float], predicted: Sequence[float]) -> np.ndarray:
    """The prediction times the factor that brings it nearest to the figures, in the logarithm."""
    factor = np.exp(np.mean(np.log(y) - np.log(predicted)))
    return factor * np.asarray(predicted)
