"""What a study shows while it runs: the plan, a table of all cells, and at the end what failed."""

import csv
from collections.abc import Mapping, Sequence
from types import TracebackType

from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from minitrans.ablation.cells import Cell
from minitrans.ablation.folder import DONE, FAILED, RUNNING, State, StudyFolder
from minitrans.ablation.study import Study
from minitrans.console import Console

_STYLES = {DONE: "green", FAILED: "bold red", RUNNING: "cyan"}


class Board:
    """A table that follows the cells: live on a terminal, a line for each change elsewhere."""

    def __init__(self, study: Study, folder: StudyFolder, console: Console) -> None:
        self.study, self.folder, self.console = study, folder, console
        live = Live(console=console, auto_refresh=False, transient=True)
        self._live = live if console.is_terminal else None
        self._told: dict[tuple[str, int], str] = {}

    def __enter__(self) -> "Board":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, cells: Sequence[Cell], states: Mapping[str, State]) -> None:
        """Show how the cells stand now."""
        if self._live is not None:
            self._live.update(self.table(cells, states), refresh=True)
            return
        for cell in cells:
            state, place = states[cell.address], (cell.variant, cell.seed)
            if self._told.setdefault(place, "waiting") != state.name:
                self._told[place] = state.name
                self.console.print(
                    f"{cell.variant}, seed {cell.seed}: {state.name}", highlight=False, markup=False
                )

    def table(self, cells: Sequence[Cell], states: Mapping[str, State]) -> Table:
        """A row for each variant, a column for each seed."""
        seeds = list(dict.fromkeys(cell.seed for cell in cells))
        table = Table(
            "variant", Column("what it changes", overflow="fold"), *(f"seed {seed}" for seed in seeds)
        )
        for name in dict.fromkeys(cell.variant for cell in cells):
            own = {cell.seed: cell for cell in cells if cell.variant == name}
            overrides = " ".join(self.study.named(name).overrides)
            row = [self._text(own[seed], states[own[seed].address]) if seed in own else "" for seed in seeds]
            table.add_row(Text(name), Text(overrides), *row)
        return table

    def _text(self, cell: Cell, state: State) -> Text:
        progress = "" if state.ended else self._progress(cell)
        return Text(f"{state.name}{progress}", style=_STYLES.get(state.name, ""))

    def _progress(self, cell: Cell) -> str:
        """How far a cell that is not ended has come, from the newest row of its ``metrics.csv``."""
        metrics = self.folder.run(cell).metrics
        if cell.config is None or not metrics.exists():
            return ""
        with metrics.open(encoding="utf8", newline="") as file:
            rows = [row for row in csv.DictReader(file) if row.get("seconds")]
        return f" {int(rows[-1]['update']) / cell.config.training.max_updates:.0%}" if rows else ""


def failures(cells: Sequence[Cell], states: Mapping[str, State]) -> list[str]:
    """A line for each cell that failed: which, why, and where its log lies."""
    return [
        f"failed: {cell.variant}, seed {cell.seed}: {states[cell.address].error} "
        f"(log: {states[cell.address].log})"
        for cell in cells
        if states[cell.address].name == FAILED
    ]
