"""A study from beginning to end: plan, search for rates, cells, record, report."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minitrans.ablation.board import Board, failures
from minitrans.ablation.budget import told
from minitrans.ablation.cells import Cell, CellMaker
from minitrans.ablation.estimate import Pace, in_words, pace_of_done, seconds_left, warm_up
from minitrans.ablation.folder import DONE, FAILED, State, StudyFolder
from minitrans.ablation.jobs import Submit
from minitrans.ablation.record import (
    cell_record,
    refuse_left_out,
    study_record,
    trial_record,
    unknown_cell_record,
    write_record,
)
from minitrans.ablation.runner import Place, Runner
from minitrans.ablation.study import Study
from minitrans.ablation.tuning import Choice, Trial, choose, trials
from minitrans.config import TrainConfig
from minitrans.console import Console
from minitrans.errors import StoppedEarlyError, UserError


@dataclass(frozen=True)
class Wishes:
    """What the user wants of this call, besides the study itself.

    Attributes
    ----------
    command
        The line typed.
    place
        Where cells run, and how many at once.
    factors, tune_seed
        Of the search for rates.
    retry_failed
        Run failed cells again.
    max_hours
        None: as long as it takes.
    """

    command: str
    place: Place
    factors: Sequence[float] = (0.3, 1.0, 3.0)
    tune_seed: int | None = None
    retry_failed: bool = False
    max_hours: float | None = None


class Session:
    """One call of the command on a study.

    Parameters
    ----------
    study, maker
        The study, and the maker of its cells.
    folder
        The study folder; made where it is not there.
    submit
        Starts a cell's process.
    wishes
        What the user wants.
    console
        Where to say it.
    report
        Writes the report of a study folder; returns its page.
    poll
        Seconds between two looks at the cells.
    measure
        Measures the pace where no cell is done yet; None: nothing is measured.
    """

    def __init__(
        self,
        study: Study,
        maker: CellMaker,
        folder: StudyFolder,
        submit: Submit,
        wishes: Wishes,
        console: Console,
        report: Callable[[Path], Path],
        *,
        poll: float = 0.5,
        measure: Callable[[TrainConfig], Pace] | None = warm_up,
    ) -> None:
        self.study, self.maker, self.folder, self.wishes = study, maker, folder, wishes
        self.console, self.report, self.measure = console, report, measure
        self.board = Board(study, folder, console)
        if study.budget is not None:
            self._say("counting the updates that the budget is enough for")
        self.tried = self._trials()
        self.chosen: dict[str, Choice] = {}
        self._rates_known = not self.tried
        self.cells = maker.cells({})
        hours = wishes.max_hours
        self.runner = Runner(
            folder,
            submit,
            wishes.place,
            self._changed,
            poll=poll,
            deadline=None if hours is None else time.monotonic() + 3600 * hours,
        )
        self._shown: list[Cell] = []
        self._written: object = None

    def run(self) -> None:
        """Run what is left of the study.

        Raises
        ------
        UserError
            Nothing can run; or, when everything else is done, some cells failed.
        StoppedEarlyError
            Somebody asked to stop, or the hours are over.
        """
        first = [trial.cell for trial in self.tried] or self.cells
        if all(cell.error is not None for cell in first):
            raise UserError(str(self.cells[0].error))
        refuse_left_out(self.folder, self.study)
        self._refuse_untested()
        self.folder.make()
        if self.wishes.retry_failed:
            self._forgive()
        self._tell_plan(first)
        with self.board:
            ended = self._run_all()
        self._changed()
        self._close(ended)

    def _refuse_untested(self) -> None:
        """Stop where no cell could be scored: a study compares variants on a test split."""
        configs = [cell.config for cell in self.cells if cell.config is not None]
        if configs and not any(self.maker.tests(config) for config in configs):
            raise UserError("the data has no test split, and a study compares variants on one; set data.test")

    def _run_all(self) -> bool:
        if self.tried:
            if not self._run([trial.cell for trial in self.tried]):
                return False
            self._choose()
        return self._run(self.cells)

    def _run(self, cells: Sequence[Cell]) -> bool:
        self._shown = list(cells)
        return self.runner.run(cells)

    # -- the search for rates ----------------------------------------------------------

    def _trials(self) -> list[Trial]:
        if self.study.tune is None:
            return []
        seed = self.wishes.tune_seed
        return trials(
            self.study, self.maker, self.wishes.factors, self.study.seeds[0] if seed is None else seed
        )

    def _choose(self) -> None:
        values = self._validation()
        results = [self.folder.result(trial.cell) for trial in self.tried if trial.cell.address in values]
        higher_is_better = bool(results) and results[0]["metric"] == "bleu"
        self.chosen = choose(self.tried, values, higher_is_better)
        self._rates_known = True
        self.cells = self.maker.cells(
            {name: choice.best.word for name, choice in self.chosen.items() if choice.best.word}
        )
        for name, choice in self.chosen.items():
            ends = ", the end of the list: wider tune_factors may find a better one" * choice.at_the_end
            self._say(f"{name}: {choice.best.key}={choice.best.value:g} is the best rate tried{ends}")

    def _validation(self) -> dict[str, float]:
        """Address -> validation metric, of the trials that are done and have a number."""
        values = {}
        for trial in self.tried:
            if self._state(trial.cell).name == DONE:
                value = self.folder.result(trial.cell)["best_validation"]
                if value is not None and math.isfinite(value):
                    values[trial.cell.address] = float(value)
        return values

    # -- words and records -------------------------------------------------------------

    def _state(self, cell: Cell) -> State:
        return self.runner.states.get(cell.address, State())

    def _forgive(self) -> None:
        for cell in [*self.cells, *(trial.cell for trial in self.tried)]:
            self.folder.forgive(cell)

    def _tell_plan(self, first: Sequence[Cell]) -> None:
        study, jobs = self.study, self.wishes.place.jobs
        self.runner.look(first)
        states = self.runner.states
        if study.question:
            self._say(study.question)
        counts = f"{len(study.variants)} variants x {len(study.seeds)} seeds = {len(self.cells)} cells"
        if self.tried:
            counts += f", after {len(self.tried)} to find each variant's learning rate"
        done, failed = (
            sum(states[c.address].name == name and c.error is None for c in first) for name in (DONE, FAILED)
        )
        self._say(f"{study.name}: {counts}; {done} done" + f", {failed} failed before" * bool(failed))
        if failed:
            self._say("retry_failed=true runs the failed ones again")
        if study.budget is not None:
            self._say(f"budget: {told(study.budget, self.maker.updates)}")
        self._tell_time(first, states, jobs)
        self._say(f"folder: {self.folder.path}")

    def _tell_time(self, first: Sequence[Cell], states: Mapping[str, State], jobs: int) -> None:
        left = [cell for cell in first if not states[cell.address].ended]
        if not left:
            return
        pace = pace_of_done(self.folder, first, states)
        if pace is None:
            pace = self._measured(left)
        if pace is None:
            self._say("how long it takes is known when the first cell is done")
            return
        seconds = seconds_left(pace, first, states, jobs)
        if self.tried:
            waiting = {cell.address: State() for cell in self.cells}
            seconds += seconds_left(pace, self.cells, waiting, jobs)
        self._say(
            f"about {in_words(seconds)} of training with jobs={jobs}, start and scoring not counted "
            f"({pace.of(left[0].variant):.2g} seconds an update, {pace.source})"
        )

    def _measured(self, left: Sequence[Cell]) -> Pace | None:
        """The pace of the first cell that makes its first updates; None: there is none such."""
        if self.measure is None:
            return None
        tried: set[str] = set()
        for cell in left:
            if cell.config is None or cell.variant in tried:
                continue
            tried.add(cell.variant)
            try:
                return self.measure(cell.config)
            except StoppedEarlyError:
                raise
            except UserError as error:  # the cell will fail by itself, and the others need not
                self._say(f"the pace of {cell.variant} cannot be measured: {error}")
        return None

    def _changed(self) -> None:
        if self._shown:
            self.board.show(self._shown, self.runner.states)
        now = (dict(self.runner.states), self._rates_known)
        if now != self._written:
            write_record(self.folder, self._record())
            self._written = now

    def _record(self) -> dict[str, Any]:
        values = self._validation()
        cells = [
            cell_record(self.folder, cell, self._state(cell))
            if self._rates_known or cell.error is not None
            else unknown_cell_record(cell)
            for cell in self.cells
        ]
        tried = [
            trial_record(self.folder, trial, self._state(trial.cell), values.get(trial.cell.address))
            for trial in self.tried
        ]
        return study_record(
            self.study,
            self.maker.base,
            self.maker.updates,
            self.wishes.command,
            self.chosen,
            cells,
            tried,
        )

    def _close(self, ended: bool) -> None:
        """The closing table, the report, and what went wrong."""
        for cell in self.cells:
            self.runner.states.setdefault(cell.address, State())
        self.console.print(self.board.table(self.cells, self.runner.states))
        shown = [*self.cells, *(trial.cell for trial in self.tried)]
        lines = list(dict.fromkeys(failures(shown, {c.address: self._state(c) for c in shown})))
        for line in lines:
            self._say(line)
        some_done = any(self._state(cell).name == DONE for cell in self.cells)
        reported = self._report() if some_done else True
        if not ended:
            raise StoppedEarlyError(f"{self.runner.stopped}; go on with the same line: {self.wishes.command}")
        failed = sum(self._state(cell).name == FAILED for cell in self.cells)
        if failed:
            raise UserError(
                f"{failed} of {len(self.cells)} cells failed, each told above with its log; "
                "add retry_failed=true to run them again"
            )
        if not reported:
            raise UserError("the cells are done, but their report could not be written, as told above")

    def _report(self) -> bool:
        """Write the report; returns whether it could be."""
        try:
            self._say(f"report: {self.report(self.folder.path)}")
        except UserError as error:  # what else there is to say must be said
            self._say(f"no report: {error}")
            return False
        return True

    def _say(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)
