"""The pictures of a report: differences as a forest plot, curves with bands of learning and of instruments.

Each is drawn twice, in the colours of a light and of a dark page, on no ground of its own.
"""

import io
import itertools
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from minitrans.ablation import document
from minitrans.ablation.answer import UNITS, Comparison
from minitrans.ablation.results import Results
from minitrans.training.curves import Points

WIDTH = 4.5  # inches: text of 10 points is still read on a phone
DPI = 220
FONT = 10
LABEL = 44  # letters of a line of a label
MARKS, LINE = 0.42, 0.17  # inches of a row of the forest: its intervals, and a line of the words above them
DASHES = ("-", "--", ":", "-.")


@dataclass(frozen=True)
class Theme:
    """Colours of a page; ``lines`` can be told apart by the colour-blind too (Okabe and Ito 2008)."""

    ink: str
    soft: str
    grid: str
    seeds: str
    sentences: str
    lines: tuple[str, ...]


LIGHT = Theme(
    ink="#1c2430",
    soft="#5b6675",
    grid="#d9dee5",
    seeds="#1d5fa8",
    sentences="#c26a12",
    lines=("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#7a5cc0", "#8a6d00", "#4a5563"),
)
DARK = Theme(
    ink="#e6eaf0",
    soft="#9aa5b4",
    grid="#343c47",
    seeds="#7fb6f2",
    sentences="#f0a85c",
    lines=("#56b4e9", "#ff8c42", "#2fd0a0", "#f0a0cc", "#b9a2f2", "#e8cf5a", "#b6c0cc"),
)

Draw = Callable[[Theme], Figure]


def forest(comparisons: Sequence[Comparison], metric: str) -> document.Figure | None:
    """Each comparison a row: the mean difference, both intervals, and a dot for each pair of seeds.

    Returns
    -------
    None where no pair of seeds is finished.
    """
    shown = [comparison for comparison in comparisons if comparison.test is not None]
    if not shown:
        return None
    said = "; ".join(f"{c.variant} less {c.against}: {c.test.mean:+.2f}" for c in shown if c.test)
    return _twice(lambda theme: _forest(theme, shown, metric), f"Differences with their intervals. {said}")


def _twice(draw: Draw, text: str) -> document.Figure:
    return document.Figure(_png(draw(LIGHT)), _png(draw(DARK)), text)


def _png(figure: Figure) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png", transparent=True, metadata={"Software": None})
    return file.getvalue()


def _forest(theme: Theme, comparisons: Sequence[Comparison], metric: str) -> Figure:
    labels = [textwrap.wrap(f"{c.variant} − {c.against}", LABEL) for c in comparisons]
    heights = [MARKS + LINE * len(lines) for lines in labels]
    figure = Figure(figsize=(WIDTH, sum(heights) + 1.0), dpi=DPI, layout="constrained")
    axes = figure.subplots()
    top = 0.0
    for comparison, lines, height in zip(comparisons, labels, heights, strict=True):
        weight = "bold" if comparison.found else "normal"
        axes.text(0.01, top, "\n".join(lines), transform=axes.get_yaxis_transform(), va="top",
                  color=theme.ink, fontsize=FONT, fontweight=weight)  # fmt: skip
        _row(axes, theme, comparison, top + height - 0.26)
        top += height
    axes.axvline(0, color=theme.soft, linewidth=1)
    axes.set_ylim(top, -0.05)
    axes.set_yticks([])
    _style(axes, theme, f"difference in {UNITS.get(metric, metric)}")
    axes.spines["left"].set_visible(False)
    left, right = axes.get_xlim()  # zero stays in sight, and ends of intervals off the edge
    axes.set_xlim(min(left, -0.05 * (right - left)), max(right, 0.05 * (right - left)))
    _rules(axes, theme, heights)
    handles, names = axes.get_legend_handles_labels()
    unique = dict(zip(names, handles, strict=True))
    figure.legend(unique.values(), unique.keys(), loc="outside lower center", ncols=2, frameon=False,
                  labelcolor=theme.ink, fontsize=FONT - 1)  # fmt: skip
    return figure


def _rules(axes: Axes, theme: Theme, heights: Sequence[float]) -> None:
    """A line at each tick beside the intervals of every row, and none through the words above them."""
    left, right = axes.get_xlim()
    ticks = [tick for tick in axes.get_xticks() if left <= tick <= right]
    axes.set_xticks(ticks)
    for bottom in itertools.accumulate(heights):
        axes.vlines(ticks, bottom - MARKS, bottom, color=theme.grid, linewidth=0.8, zorder=0)


def _row(axes: Axes, theme: Theme, comparison: Comparison, y: float) -> None:
    """The intervals of one comparison, that over seeds above that over sentences."""
    test, sentences = comparison.test, comparison.sentences
    assert test is not None
    if test.low is not None and test.high is not None:
        axes.plot([test.low, test.high], [y, y], color=theme.seeds, linewidth=2.4, solid_capstyle="butt",
                  label="95 % over seeds")  # fmt: skip
    axes.plot([test.mean], [y], "D", color=theme.seeds, markersize=6.5, label="mean over seeds")
    axes.plot(comparison.differences, [y] * len(comparison.differences), "o", markersize=3.6,
              markerfacecolor=theme.ink, markeredgecolor="none", label="one pair of seeds")  # fmt: skip
    if sentences is not None:
        axes.plot([sentences.low, sentences.high], [y + 0.13] * 2, color=theme.sentences, linewidth=2.4,
                  solid_capstyle="butt", label="95 % over sentences")  # fmt: skip


def learning_curves(results: Results) -> document.Figure | None:
    """Training nll and validation over updates: the mean of each variant's seeds, and ± one deviation.

    Returns
    -------
    None where no cell is done.
    """
    names = [variant.name for variant in results.study.variants if results.finished(variant.name)]
    if not names:
        return None
    text = f"Learning curves of {', '.join(names)}: training loss and validation, mean of the seeds."
    return _twice(lambda theme: _curves(theme, results, names), text)


def _curves(theme: Theme, results: Results, names: Sequence[str]) -> Figure:
    rows = -(-len(names) // (2 if max(map(len, names)) < LABEL // 2 else 1))
    figure = Figure(figsize=(WIDTH, 5.6 + 0.2 * rows), dpi=DPI, layout="constrained")
    train, valid = figure.subplots(2, 1, sharex=True)
    on_bleu = results.study.metric == "bleu"
    _style(train, theme, "")
    _style(valid, theme, "updates")
    train.set_title("Training", loc="left", color=theme.ink, fontsize=FONT + 1)
    valid.set_title("Validation", loc="left", color=theme.ink, fontsize=FONT + 1)
    train.set_ylabel("nll, nats a token")
    valid.set_ylabel("BLEU" if on_bleu else "nll, nats a token")
    styles = itertools.cycle(itertools.product(DASHES, theme.lines))
    for name, (dash, color) in zip(names, styles, strict=False):
        outcomes = results.outcomes(name)
        label = "\n".join(textwrap.wrap(name, LABEL))
        _band(train, [outcome.train for outcome in outcomes], color, dash, label)
        _band(valid, [outcome.valid for outcome in outcomes], color, dash, "")
    for axes in (train, valid):
        axes.grid(axis="y", color=theme.grid, linewidth=0.8)
    valid.xaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 5, 10], integer=True))
    valid.xaxis.set_major_formatter(EngFormatter(sep=""))
    handles, labels = train.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2 if rows < len(names) else 1,
                  frameon=False, labelcolor=theme.ink, fontsize=FONT - 1)  # fmt: skip
    return figure


def _band(axes: Axes, curves: Sequence[Points], color: str, dash: str, label: str) -> None:
    updates, mean, sd = band(curves)
    if not len(updates):
        axes.plot([], [], color=color, linestyle=dash, label=label)
        return
    marker = "o" if len(updates) == 1 else ""
    axes.plot(updates, mean, color=color, linestyle=dash, linewidth=1.7, marker=marker, label=label)
    if len(curves) > 1:
        axes.fill_between(updates, mean - sd, mean + sd, color=color, alpha=0.16, linewidth=0)


INSTRUMENTS = {
    "variance": "Variance of q·k, before the scale",
    "entropy": "Entropy of the rows, nats",
    "saturated": "Share of saturated rows",
    "query_gradient": "Gradient of W^Q, norm of a head",
}
LOGARITHMIC = ("variance", "query_gradient")


def instrument_curves(curves: Mapping[str, Mapping[str, Sequence[Points]]]) -> document.Figure:
    """What is measured inside the heads over updates: the mean of each variant's seeds, ± one deviation.

    Parameters
    ----------
    curves
        Variant -> figure (at least those of :data:`INSTRUMENTS`) -> a curve for each seed.
    """
    text = f"Variance, entropy, saturation and gradients over updates of {', '.join(curves)}."
    return _twice(lambda theme: _instruments(theme, curves), text)


def _instruments(theme: Theme, curves: Mapping[str, Mapping[str, Sequence[Points]]]) -> Figure:
    rows = -(-len(curves) // (2 if max(map(len, curves)) < LABEL // 2 else 1))
    figure = Figure(figsize=(WIDTH, 2.1 * len(INSTRUMENTS) + 0.4 + 0.2 * rows), dpi=DPI, layout="constrained")
    panels = figure.subplots(len(INSTRUMENTS), 1, sharex=True)
    for axes, (name, title) in zip(panels, INSTRUMENTS.items(), strict=True):
        _style(axes, theme, "")
        axes.set_title(title, loc="left", color=theme.ink, fontsize=FONT + 1)
        axes.grid(axis="y", color=theme.grid, linewidth=0.8)
        styles = itertools.cycle(itertools.product(DASHES, theme.lines))
        for (variant, of), (dash, color) in zip(curves.items(), styles, strict=False):
            _band(axes, of[name], color, dash, "\n".join(textwrap.wrap(variant, LABEL)))
        if name in LOGARITHMIC:
            axes.set_yscale("log")
    _style(panels[-1], theme, "updates")
    panels[-1].xaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 5, 10], integer=True))
    panels[-1].xaxis.set_major_formatter(EngFormatter(sep=""))
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2 if rows < len(curves) else 1,
                  frameon=False, labelcolor=theme.ink, fontsize=FONT - 1)  # fmt: skip
    return figure


Array = npt.NDArray[np.float64]


def band(curves: Sequence[Points]) -> tuple[Array, Array, Array]:
    """Mean and standard deviation over seeds (0 for one), at the updates where every curve has a point."""
    values = [dict(curve) for curve in curves]
    shared = sorted(set.intersection(*(set(curve) for curve in values)))
    table = np.array([[curve[update] for update in shared] for curve in values])  # (seeds, updates)
    sd = table.std(axis=0, ddof=1) if len(values) > 1 else np.zeros(len(shared))
    return np.array(shared, dtype=float), table.mean(axis=0), sd


def _style(axes: Axes, theme: Theme, xlabel: str) -> None:
    axes.set_xlabel(xlabel, fontsize=FONT)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(theme.soft)
    axes.tick_params(colors=theme.soft, labelsize=FONT - 1)
    axes.xaxis.label.set_color(theme.ink)
    axes.yaxis.label.set_color(theme.ink)
    axes.set_axisbelow(True)
