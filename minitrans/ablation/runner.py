"""Runs cells: a few at once, each by one runner alone, until all have ended or somebody asks to stop."""

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from minitrans.ablation.cells import Cell
from minitrans.ablation.claims import Claim, claim
from minitrans.ablation.folder import RUNNING, WAITING, State, StudyFolder
from minitrans.ablation.jobs import Job, Submit
from minitrans.ablation.process import DONE, STOPPED, CellProcess, Outcome
from minitrans.training.interruption import Interruption
from minitrans.training.resume import AUTO

_ASK_AGAIN = 1.0  # seconds: a process that is still importing does not hear the first request


@dataclass(frozen=True)
class Place:
    """What a runner says to its cells of where they run.

    Attributes
    ----------
    jobs
        Cells at once.
    threads
        Processor threads of each.
    group
        The wandb group of all.
    code
        The hash of the code that the cells' addresses stand for.
    """

    jobs: int
    threads: int
    group: str
    code: str


def share_of_threads(typed: int, jobs: int) -> int:
    """Threads of a cell: what was typed, else its share of this machine's processors."""
    return typed or max(1, (os.cpu_count() or 1) // jobs)


@dataclass
class _Running:
    """A cell that this runner has started."""

    cell: Cell
    job: Job
    claim: Claim
    log: str


class Runner:
    """Works on the cells of a study, together with any other runners on its folder.

    Parameters
    ----------
    folder
        The study folder.
    submit
        Starts a cell's process.
    place
        Where and how many.
    changed
        Called after each change of state, and once a poll.
    poll
        Seconds between two looks.
    deadline
        ``time.monotonic()`` at which running cells are asked to save and end; None: never.

    Attributes
    ----------
    states
        Address -> state.
    stopped
        Why not all cells have ended, in a sentence; empty if they have.
    """

    def __init__(
        self,
        folder: StudyFolder,
        submit: Submit,
        place: Place,
        changed: Callable[[], None],
        *,
        poll: float = 0.5,
        deadline: float | None = None,
    ) -> None:
        self.folder, self.submit, self.place, self.changed = folder, submit, place, changed
        self.poll, self.deadline = poll, deadline
        self.states: dict[str, State] = {}
        self.stopped = ""
        self._running: list[_Running] = []

    def look(self, cells: Iterable[Cell]) -> None:
        """Read the states of cells from the folder; those that cannot run at all become failures."""
        for cell in cells:
            self.states[cell.address] = self.folder.state(cell)
            if cell.error is not None and not self.states[cell.address].ended:
                self.states[cell.address] = self._refused(cell, cell.error)

    def run(self, cells: Sequence[Cell]) -> bool:
        """Run cells until each is done or failed; returns whether they are.

        Cells that another runner has are waited for. Ctrl-C, SIGTERM, SIGUSR1 and the deadline end it
        early: the cells of this runner save and end first.
        """
        self.look(cells)
        alone = without_repeats(cells)
        self.changed()
        with Interruption() as interruption:
            while not self.stopped:
                self._collect()
                self._start(alone)
                self.changed()
                if all(self.states[cell.address].ended for cell in alone):
                    return True
                if interruption.requested is not None:
                    self._stop("stopped, and what the cells did is saved")
                elif self.deadline is not None and time.monotonic() >= self.deadline:
                    self._stop("max_hours are over, and what the cells did is saved")
                else:
                    time.sleep(self.poll)
        return False

    def _refused(self, cell: Cell, error: str) -> State:
        """A cell whose settings contradict each other: its log says so too."""
        self.folder.logs.mkdir(parents=True, exist_ok=True)
        log = self.folder.logs / f"{cell.address}.log"
        log.write_text(f"{cell.command}\nerror: {error}\n", encoding="utf8")
        return self.folder.fail(cell, error, self.folder.note_log(cell, log))

    def _start(self, cells: Sequence[Cell]) -> None:
        """Start what may be started, and look at what others have."""
        own = {running.cell.address for running in self._running}
        for cell in cells:
            if self.states[cell.address].ended or cell.address in own:
                continue
            found = self.folder.state(cell)
            if found.ended:
                self.states[cell.address] = found
            elif len(self._running) < self.place.jobs:
                self._claim_and_start(cell)

    def _claim_and_start(self, cell: Cell) -> None:
        taken = claim(self.folder, cell.address)
        if taken is None:
            self.states[cell.address] = State(RUNNING)  # another runner's, or left by a dead one
            return
        found = self.folder.state(cell)
        if found.ended:  # between the look and the claim
            self.states[cell.address] = found
            taken.release()
            return
        job = self.submit(cell, self._process(cell))
        log = self.folder.note_log(cell, job.log)
        self.states[cell.address] = State(RUNNING, log=log)
        self._running.append(_Running(cell, job, taken, log))

    def _process(self, cell: Cell) -> CellProcess:
        assert cell.config is not None  # cells without one have failed by now
        config = replace(
            cell.config,
            run_dir=str(self.folder.run(cell).path),
            resume=AUTO,
            threads=self.place.threads,
            trainer=replace(cell.config.trainer, progress_bar=False),
            logger=replace(cell.config.logger, group=cell.config.logger.group or self.place.group),
        )
        typed = {**cell.typed, "threads": config.threads}
        return CellProcess(config, typed, self.folder.process(cell.address), self.place.code)

    def _collect(self) -> None:
        """Note down what came of the processes that have ended."""
        for running in [running for running in self._running if running.job.done()]:
            self.states[running.cell.address] = self._state(running, running.job.outcome())
            running.claim.release()
            self._running.remove(running)

    def _state(self, running: _Running, outcome: Outcome) -> State:
        if outcome.name == DONE:
            return self.folder.state(running.cell)
        if outcome.name == STOPPED or self.stopped:
            return State(WAITING, log=running.log)
        return self.folder.fail(running.cell, outcome.sentence, running.log)

    def _stop(self, reason: str) -> None:
        """Ask the running cells to save and end, and wait for them."""
        self.stopped = reason
        while self._running:
            for running in self._running:
                running.job.stop()
            ask_again = time.monotonic() + _ASK_AGAIN
            while self._running and time.monotonic() < ask_again:
                self._collect()
                time.sleep(min(self.poll, 0.1))
        self.changed()


def without_repeats(cells: Sequence[Cell]) -> list[Cell]:
    """The first cell of each address: variants that mean the same thing share their runs."""
    first: dict[str, Cell] = {}
    for cell in cells:
        first.setdefault(cell.address, cell)
    return list(first.values())
