"""All that is measured of a model's heads on some sentences, as a table and as plain data."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from minitrans.analysis.heads import HeadImportance, HeadPattern
from minitrans.analysis.instruments import HeadFigures, Measurement
from minitrans.analysis.operands import SIDES
from minitrans.analysis.prediction import PredictedRows, predict_rows

NAMES = {"encoder": "encoder self-attention", "decoder": "decoder self-attention", "cross": "cross-attention"}
NONE = "–"

FIGURE_HEADS = (
    "layer", "head", "Var q·k", "predicted", "scaled", "entropy", "predicted", "saturated", "predicted",
    "Jacobian", "slope at 1/√d_k", "slope at 1", "grad W^Q", "grad W^K",
)  # fmt: skip
PATTERN_HEADS = ("layer", "head", "diagonal", "previous", "first", "end", "from uniform", "BLEU without")


@dataclass(frozen=True)
class Diagnosis:
    """What was measured.

    Attributes
    ----------
    measured
        The instruments.
    patterns
        Where each head looks, in the order of the instruments' heads.
    bleu
        With all heads; None where heads were not masked.
    importance
        In the same order; empty where heads were not masked.
    """

    measured: Measurement
    patterns: Sequence[HeadPattern]
    bleu: float | None = None
    importance: Sequence[HeadImportance] = ()

    def predicted(self, figures: HeadFigures) -> PredictedRows:
        """What normal logits of the measured variance would give."""
        return predict_rows(figures.scaled_variance, self.measured.key_counts[figures.side])

    def theory(self, figures: HeadFigures) -> PredictedRows:
        """What components of unit variance would give: normal logits of variance scale² · d_k."""
        return predict_rows(figures.scale**2 * figures.d_k, self.measured.key_counts[figures.side])

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON; not a number becomes null."""
        heads = []
        for i, (figures, pattern) in enumerate(zip(self.measured.heads, self.patterns, strict=True)):
            row: dict[str, Any] = asdict(figures)
            row["predicted"] = asdict(self.predicted(figures))
            row["unit_variance"] = asdict(self.theory(figures))
            row["pattern"] = {
                key: value for key, value in asdict(pattern).items() if key not in ("side", "layer", "head")
            }
            if self.importance:
                row["masked"] = {"bleu": self.importance[i].bleu, "loss": self.importance[i].loss}
            heads.append(_finite(row))
        return {"bleu": self.bleu, "heads": heads}

    def table(self) -> str:
        """Two tables a side, as text."""
        return "\n\n".join(
            text for side in SIDES for text in (self._figures(side), self._looks(side)) if text
        )

    def _figures(self, side: str) -> str:
        heads = [figures for figures in self.measured.heads if figures.side == side]
        if not heads:
            return ""
        first = heads[0]
        title = (
            f"{NAMES[side]}: d_k {first.d_k}, scale {first.scale:.4g}, entropy at most "
            f"{_number(first.uniform_entropy)} nats; components of unit variance would give "
            f"Var q·k {first.d_k}, entropy {_number(self.theory(first).entropy)}, "
            f"saturated {_percent(self.theory(first).saturated)}"
        )
        return "\n".join([title, *_aligned([FIGURE_HEADS, *(self._figure_row(one) for one in heads)])])

    def _figure_row(self, one: HeadFigures) -> tuple[str, ...]:
        predicted = self.predicted(one)
        return (
            str(one.layer),
            str(one.head),
            _number(one.variance),
            _number(one.predicted_variance),
            _number(one.scaled_variance),
            _number(one.entropy),
            _number(predicted.entropy),
            _percent(one.saturated),
            _percent(predicted.saturated),
            _number(one.jacobian),
            _number(one.slope_scaled),
            _number(one.slope_unscaled),
            _number(one.query_gradient),
            _number(one.key_gradient),
        )

    def _looks(self, side: str) -> str:
        rows: list[tuple[str, ...]] = [PATTERN_HEADS if self.importance else PATTERN_HEADS[:-1]]
        for i, one in enumerate(self.patterns):
            if one.side != side:
                continue
            shares = [_percent(share) for share in (one.diagonal, one.previous, one.first, one.end)]
            row = [str(one.layer), str(one.head), *shares, _number(one.from_uniform)]
            if self.importance:
                row.append(f"{self.importance[i].bleu:.2f} ({0.0 - self.importance[i].loss:+.2f})")
            rows.append(tuple(row))
        if len(rows) == 1:
            return ""
        beside = f"; BLEU with all heads {self.bleu:.2f}" if self.bleu is not None else ""
        return "\n".join([f"{NAMES[side]}: where the weight lies{beside}", *_aligned(rows)])


def _finite(value: Any) -> Any:
    """Nested plain data with None for what is no number: JSON has no word for it."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _number(value: float) -> str:
    return f"{value:.3g}" if math.isfinite(value) else NONE


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if math.isfinite(share) else NONE


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns aligned at the right, two blanks apart."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]
