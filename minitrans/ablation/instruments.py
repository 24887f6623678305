"""What the cells of a study measured of their heads while they trained: ``diagnostics.csv``, per variant."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from minitrans.ablation.document import Block, Note, Table
from minitrans.ablation.plots import instrument_curves
from minitrans.ablation.results import Results
from minitrans.run import RunFolder
from minitrans.training.curves import Points, read_rows

FIGURES = ("variance", "scaled_variance", "entropy", "saturated", "query_gradient", "key_gradient")
_BESIDE = "\N{NO-BREAK SPACE}"


@dataclass(frozen=True)
class Measured:
    """What the finished cells of one variant measured, each figure the mean of all heads.

    Attributes
    ----------
    d_k
        Width of a head's queries and keys.
    most_entropy
        Mean of ln(number of keys that a query sees), nats.
    curves
        Figure -> a curve for each seed: (update, mean over the heads).
    """

    d_k: int
    most_entropy: float
    curves: Mapping[str, Sequence[Points]]


def measured(found: Results) -> dict[str, Measured]:
    """Variant -> what its finished cells measured; variants that measured nothing are left out."""
    of = {}
    for variant in found.study.variants:
        files = [RunFolder(cell.folder).diagnostics for cell in found.finished(variant.name).values()]
        tables = [rows for rows in map(_rows, files) if rows]
        if tables:
            of[variant.name] = Measured(
                d_k=int(tables[0][0]["d_k"]),
                most_entropy=_mean([value for _, value in _curve(tables[0], "uniform_entropy")]),
                curves={name: [_curve(rows, name) for rows in tables] for name in FIGURES},
            )
    return of


def _rows(path: Path) -> list[dict[str, str]]:
    return read_rows(path) if path.is_file() else []


def _curve(rows: Sequence[Mapping[str, str]], name: str) -> Points:
    """(update, mean over the heads whose figure is a number)."""
    by_update: dict[int, list[float]] = {}
    for row in rows:
        if math.isfinite(value := float(row[name])):
            by_update.setdefault(int(row["update"]), []).append(value)
    return [(update, _mean(values)) for update, values in sorted(by_update.items())]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def blocks(found: Results) -> list[Block]:
    """The section of a report: first and last figures as a table, all as curves; empty without any."""
    of = measured(found)
    if not of:
        return []
    heads = (
        "variant", "d_k", "Var q·k", "after the scale", "entropy, nats", "at most", "saturated rows",
        "gradient of W^Q", "gradient of W^K",
    )  # fmt: skip
    rows = [_row(name, one) for name, one in of.items()]
    note = (
        "First → last measurement of a cell (the first before any update), mean over all heads of encoder, "
        "decoder and cross-attention, then over seeds, on the first sentences of the validation split. With "
        "components of unit variance Var q·k is d_k, and 1 after the scale 1/√d_k. A row is saturated where "
        "one key has more than 99 % of the weight; entropy is at most that of even rows. Gradients: the "
        "Frobenius norm of the loss's gradient in one head's part of the matrix."
    )
    return [Table(heads, rows), Note(note), instrument_curves({name: one.curves for name, one in of.items()})]


def _row(name: str, one: Measured) -> tuple[str, ...]:
    return (
        name,
        str(one.d_k),
        _ends(one.curves["variance"], _number),
        _ends(one.curves["scaled_variance"], _number),
        _ends(one.curves["entropy"], _number),
        _number(one.most_entropy),
        _ends(one.curves["saturated"], _percent),
        _ends(one.curves["query_gradient"], _number),
        _ends(one.curves["key_gradient"], _number),
    )


def _ends(curves: Sequence[Points], shown: Callable[[float], str]) -> str:
    """The mean over seeds of the first and of the last point; empty where there are none."""
    drawn = [curve for curve in curves if curve]
    if not drawn:
        return ""
    first, last = (_mean([curve[end][1] for curve in drawn]) for end in (0, -1))
    return f"{shown(first)}{_BESIDE}→ {shown(last)}"


def _number(value: float) -> str:
    return f"{value:.3g}" if math.isfinite(value) else ""


def _percent(share: float) -> str:
    return f"{100 * share:.1f}{_BESIDE}%"
