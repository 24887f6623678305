"""What each variant cost, and where a comparison is not of equals."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from minitrans import checkpoint
from minitrans.ablation.budget import countable
from minitrans.ablation.results import Cell, Results
from minitrans.analysis.flops import training_flops
from minitrans.errors import UserError
from minitrans.run import write_json
from minitrans.training.prepare import prepare

MOST = 0.02
"""Largest difference in what a study holds equal that is not flagged."""
QUANTITIES = ("parameters", "flops", "tokens", "updates")


@dataclass(frozen=True)
class Cost:
    """Means over a variant's finished cells; the operations are those of its first one.

    Attributes
    ----------
    flops
        Training, validation and search left out (None: not counted, and ``note`` says why).
    tokens
        Target tokens trained on.
    tokens_per_s
        Of training; cells that ran side by side slow each other down.
    counted
        Address of the cell whose operations they are: other seeds have other batches.
    """

    parameters: float
    flops: float | None
    tokens: float
    updates: float
    tokens_per_s: float | None
    note: str
    counted: str

    def quantity(self, name: str) -> float | None:
        """One of ``QUANTITIES``."""
        return {
            "parameters": self.parameters,
            "flops": self.flops,
            "tokens": self.tokens,
            "updates": self.updates,
        }[name]


@dataclass(frozen=True)
class Unfair:
    """A variant and the one that it is compared with differ in what the study holds equal.

    Attributes
    ----------
    excess
        Part by which the variant has more (below 0: less).
    """

    variant: str
    against: str
    quantity: str
    excess: float


def costs(results: Results) -> dict[str, Cost]:
    """Variant -> cost, of those with a finished cell."""
    found = {}
    for variant in results.study.variants:
        outcomes = results.outcomes(variant.name)
        if not outcomes:
            continue
        first = next(iter(results.finished(variant.name).values()))
        flops, note = _counted(results, first)
        speeds = [outcome.tokens_per_s for outcome in outcomes if outcome.tokens_per_s is not None]
        found[variant.name] = Cost(
            parameters=_mean([outcome.parameters for outcome in outcomes]),
            flops=flops,
            tokens=_mean([outcome.target_tokens for outcome in outcomes]),
            updates=_mean([outcome.updates for outcome in outcomes]),
            tokens_per_s=_mean(speeds) if speeds else None,
            note=note,
            counted=first.address,
        )
    return found


def _mean(values: list[float] | list[int]) -> float:
    return sum(values) / len(values)


def unfair(results: Results, found: Mapping[str, Cost]) -> list[Unfair]:
    """Each comparison in which something that the study holds equal differs by more than 2 %."""
    flags = []
    for variant in results.study.variants:
        if variant.against is None or variant.name not in found or variant.against not in found:
            continue
        for name in results.study.equal:
            own, other = (found[key].quantity(name) for key in (variant.name, variant.against))
            if own is not None and other is not None and abs(own - other) > MOST * other:
                flags.append(Unfair(variant.name, variant.against, name, own / other - 1))
    return flags


# --------------------------------------------------------------------------------------
# Operations
# --------------------------------------------------------------------------------------


def _counted(results: Results, cell: Cell) -> tuple[int | None, str]:
    """The operations of a cell's training; counted once and remembered in the study folder."""
    path = results.folder / "flops.json"
    known = _remembered(path)
    if cell.address not in known:
        try:
            known[cell.address] = cell_flops(cell)
        except (UserError, ValueError, OSError, KeyError) as error:
            return None, str(error)
        write_json(path, known)
    return known[cell.address], ""


def _remembered(path: Path) -> dict[str, int]:
    """Address -> operations, as far as the file tells; what it does not is counted again."""
    try:
        return {str(address): int(count) for address, count in json.loads(path.read_text("utf8")).items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def cell_flops(cell: Cell) -> int:
    """Operations of the updates that a finished cell made, from its own model, tokenizer and batch plan.

    Raises
    ------
    UserError
        Its data or its checkpoint is not there any more, or the data has changed.
    ValueError
        The model's operations do not follow from the shapes of batches.
    """
    assert cell.outcome is not None
    material = prepare(countable(cell.config), checkpoint.read(cell.folder).tokenizers)
    origin = json.loads((cell.folder / "provenance.json").read_text(encoding="utf8"))
    if sorted(material.source.hashes().values()) != sorted(origin["data"].values()):
        raise UserError(f"the data of {cell.folder} is not any more what it was trained on")
    return training_flops(material.model, material.run_plan, cell.outcome.updates)
