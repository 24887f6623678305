"""``curves.png``: what ``metrics.csv`` holds, as a picture: loss, BLEU and the learning rate over updates."""

import csv
import math
from collections.abc import Iterable
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from minitrans.errors import UserError

Points = list[tuple[int, float]]  # (update, value)

TRAIN, VALID, QUIET = "#9db4c8", "#c8452c", "#6b7280"
INCHES = (12.0, 3.6)
DPI = 150


def draw_curves(metrics_csv: Path, out_png: Path) -> None:
    """Draw the curves of a run.

    Parameters
    ----------
    metrics_csv
        Columns ``update``, ``split`` (train or valid), ``loss``, ``nll`` (both nats per target token),
        ``bleu`` and ``lr``, among others; a cell may be empty.
    out_png
        The picture: 1800 x 540 pixels.

    Raises
    ------
    UserError
        The file is missing, or holds no row with a loss.
    """
    rows = read_rows(metrics_csv)
    smoothed, train = points(rows, "train", "loss"), points(rows, "train", "nll")
    valid, bleu = points(rows, "valid", "nll") or points(rows, "valid", "loss"), points(rows, "valid", "bleu")
    if not (smoothed or train or valid):
        raise UserError(f"{metrics_csv} holds no row with a loss; curves need at least one")
    figure = Figure(figsize=INCHES, dpi=DPI, layout="constrained")
    loss_axes, bleu_axes, rate_axes = figure.subplots(1, 3, width_ratios=(1.35, 1, 1))
    _draw_loss(loss_axes, train or smoothed, valid)
    _draw_bleu(bleu_axes, bleu)
    _draw_rate(rate_axes, points(rows, "train", "lr"))
    figure.savefig(out_png)


def read_rows(metrics_csv: Path) -> list[dict[str, str]]:
    """The rows of ``metrics.csv`` as they are written, by column."""
    if not metrics_csv.is_file():
        raise UserError(f"{metrics_csv} does not exist; a run folder holds it after the first logged update")
    with metrics_csv.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def points(rows: Iterable[dict[str, str]], split: str, column: str) -> Points:
    """(update, value) of each row of ``split`` that has a finite value in ``column``."""
    found = []
    for row in rows:
        if row.get("split") == split and row.get(column):
            value = float(row[column])
            if math.isfinite(value):
                found.append((int(row["update"]), value))
    return found


def _draw_loss(axes: Axes, train: Points, valid: Points) -> None:
    _style(axes, "Loss", "nats per target token")
    _line(axes, train, TRAIN, label="training", width=1.2)
    _line(axes, valid, VALID, label="validation", marker="o")
    values = [value for _, value in train + valid]
    floor, ceiling = min(values), max(values)
    if floor > 0 and ceiling > 8 * floor:
        axes.set_yscale("log")
    axes.legend(frameon=False)


def _draw_bleu(axes: Axes, bleu: Points) -> None:
    _style(axes, "BLEU on the validation split", "BLEU (0 to 100)")
    if not bleu:
        _say(axes, "not measured")
        return
    _line(axes, bleu, VALID, marker="o")
    update, best = max(bleu, key=lambda point: point[1])
    axes.axhline(best, color=QUIET, linewidth=0.8, linestyle=":")
    axes.annotate(
        f"best {best:.1f} at update {update:,}",
        (1, best),
        xycoords=("axes fraction", "data"),
        xytext=(-4, 4),
        textcoords="offset points",
        ha="right",
        color=QUIET,
        fontsize=9,
    )
    axes.set_ylim(0, max(1.0, 1.15 * best))


def _draw_rate(axes: Axes, rate: Points) -> None:
    _style(axes, "Learning rate", "rate per update")
    if not rate:
        _say(axes, "not logged")
        return
    _line(axes, rate, QUIET)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_ylim(bottom=0)


def _style(axes: Axes, title: str, unit: str) -> None:
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
    axes.set_xlabel("updates")
    axes.set_ylabel(unit)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e5e7eb", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 5, 10], integer=True))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def _line(
    axes: Axes, data: Points, color: str, label: str | None = None, width: float = 1.8, marker: str = ""
) -> None:
    """A line through the points, if any; a single point is drawn as a dot, or it would not show."""
    if not data:
        return
    updates, values = [point[0] for point in data], [point[1] for point in data]
    dot = marker or ("o" if len(data) == 1 else "")
    axes.plot(updates, values, color=color, label=label, linewidth=width, marker=dot, markersize=3.5)


def _say(axes: Axes, text: str) -> None:
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=QUIET)
    axes.set_xticks([])
    axes.set_yticks([])
