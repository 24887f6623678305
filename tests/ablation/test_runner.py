"""Running a study: failures, going on, sharing, stopping, and what is written down."""

import json
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml
from lightning.pytorch import LightningModule, Trainer

from minitrans import checkpoint
from minitrans.ablation.cells import Cell, code_hash
from minitrans.ablation.claims import claim
from minitrans.ablation.estimate import Pace, in_words, pace_of_done, seconds_left, warm_up
from minitrans.ablation.folder import State, StudyFolder
from minitrans.ablation.process import CellProcess, Outcome
from minitrans.ablation.runner import Place, Runner, share_of_threads
from minitrans.ablation.session import Session
from minitrans.ablation.study import Variant
from minitrans.config import TrainConfig
from minitrans.data.stream import Share
from minitrans.errors import StoppedEarlyError, UserError
from minitrans.training.callbacks import LogMetrics
from tests.ablation.cases import (
    FOUR,
    MadeUpJob,
    MadeUpMachine,
    maker_of,
    record,
    said,
    session_of,
    states,
    study_of,
)
from tests.training.tiny import assert_equal, changed

NAN = "the loss is not a number at update 3; lower optimizer.lr"


# -- failures --------------------------------------------------------------------------


def failed_study(tiny: TrainConfig, folder: Path, machine: MadeUpMachine) -> Session:
    """BR-26: 4 cells, of which one has impossible settings and another fails in its process."""
    session = session_of(study_of(*FOUR), tiny, folder, machine)
    with pytest.raises(UserError) as error:
        session.run()
    assert str(error.value) == (
        "2 of 4 cells failed, each told above with its log; add retry_failed=true to run them again"
    )
    return session


def test_two_of_four_cells_fail_and_the_others_have_results(tiny: TrainConfig, tmp_path: Path) -> None:
    machine = MadeUpMachine(failing={"d12": NAN})
    session = failed_study(tiny, tmp_path, machine)
    assert machine.started == [("base", 1), ("d8", 1), ("d12", 1)]
    assert states(tmp_path) == [
        ("base", 1, "done"),
        ("d8", 1, "done"),
        ("three heads", 1, "failed"),
        ("d12", 1, "failed"),
    ]
    rows = [line for line in said(session).splitlines() if line.startswith("│")]
    assert [[cell.strip() for cell in row.strip("│").split("│")] for row in rows] == [
        ["base", "", "done"],
        ["d8", "model.d_k=8", "done"],
        ["three heads", "model.num_heads=3", "failed"],
        ["d12", "model.d_k=12", "failed"],
    ]


def test_each_failure_is_told_with_a_log_that_holds_it(tiny: TrainConfig, tmp_path: Path) -> None:
    session = failed_study(tiny, tmp_path, MadeUpMachine(failing={"d12": NAN}))
    heads = "model.d_model=16 is not a multiple of model.num_heads=3; change one of them or give model.d_k"
    for cell, error in zip(record(tmp_path)["cells"][2:], (heads, NAN), strict=True):
        assert cell["error"] == error
        assert error in (tmp_path / cell["log"]).read_text()
        assert f"failed: {cell['variant']}, seed 1: {error} (log: {cell['log']})\n" in said(session)


def test_failed_cells_wait_to_be_retried(tiny: TrainConfig, tmp_path: Path) -> None:
    failed_study(tiny, tmp_path, MadeUpMachine(failing={"d12": NAN}))
    again = MadeUpMachine()
    failed_study(tiny, tmp_path, again)
    assert again.started == []
    with pytest.raises(UserError, match=r"^1 of 4 cells failed"):
        session_of(study_of(*FOUR), tiny, tmp_path, again, retry_failed=True).run()
    assert again.started == [("d12", 1)]
    assert record(tmp_path)["cells"][3]["error"] is None


def test_a_study_none_of_whose_cells_can_run_is_one_sentence(tiny: TrainConfig, tmp_path: Path) -> None:
    broken = changed(tiny, {"model.num_heads": 3})
    with pytest.raises(UserError, match=r"^model\.d_model=16 is not a multiple of model\.num_heads=3;"):
        session_of(study_of(Variant("base")), broken, tmp_path / "s", MadeUpMachine()).run()


def test_a_process_that_ends_without_its_result_is_a_failure(tiny: TrainConfig, tmp_path: Path) -> None:
    machine = MadeUpMachine()

    def vanish(cell: Cell, process: CellProcess) -> MadeUpJob:
        job = machine(cell, process)
        job.work = lambda: Outcome("failed", "the process was ended from outside")
        return job

    with pytest.raises(UserError, match=r"^1 of 1 cells failed"):
        session_of(study_of(Variant("base")), tiny, tmp_path, vanish).run()
    assert record(tmp_path)["cells"][0]["error"] == "the process was ended from outside"


# -- going on --------------------------------------------------------------------------


def test_done_cells_never_run_twice_and_new_ones_alone_run(tiny: TrainConfig, tmp_path: Path) -> None:
    first, second, third = MadeUpMachine(), MadeUpMachine(), MadeUpMachine()
    session_of(study_of(*FOUR[:2]), tiny, tmp_path, first).run()
    session_of(study_of(*FOUR[:2], seeds=(1, 2)), tiny, tmp_path, second).run()
    session_of(study_of(*FOUR[:2], FOUR[3], seeds=(1, 2)), tiny, tmp_path, third).run()
    assert first.started == [("base", 1), ("d8", 1)]
    assert second.started == [("base", 2), ("d8", 2)]
    assert third.started == [("d12", 1), ("d12", 2)]
    assert [state for _, _, state in states(tmp_path)] == ["done"] * 6


def test_a_changed_cell_runs_anew_and_the_old_one_stays(tiny: TrainConfig, tmp_path: Path) -> None:
    session_of(study_of(Variant("base")), tiny, tmp_path, MadeUpMachine()).run()
    machine = MadeUpMachine()
    session_of(study_of(Variant("base")), changed(tiny, {"model.d_ff": 48}), tmp_path, machine).run()
    assert machine.started == [("base", 1)]
    assert len(list((tmp_path / "cells").iterdir())) == 2


def test_the_base_under_another_name_is_one_cell(tiny: TrainConfig, tmp_path: Path) -> None:
    machine = MadeUpMachine()
    study = study_of(Variant("base"), Variant("base again", ("model.d_ff=32",), "base"))
    session_of(study, tiny, tmp_path, machine).run()
    assert machine.started == [("base", 1)]
    one, two = record(tmp_path)["cells"]
    assert (one["state"], two["state"]) == ("done", "done")
    assert one["folder"] == two["folder"]


def test_the_record_is_what_the_report_is_made_of(tiny: TrainConfig, tmp_path: Path) -> None:
    session_of(study_of(*FOUR[:2], seeds=(7,)), tiny, tmp_path, MadeUpMachine()).run()
    content = record(tmp_path)
    cell = content.pop("cells")[1]
    assert content == {
        "name": "small",
        "question": "Does it matter?",
        "base": [],
        "metric": "bleu",
        "equal": ["updates"],
        "prediction": {"text": "", "source": ""},
        "tune": None,
        "budget": None,
        "command": "ablate.py study=small",
        "seeds": [7],
        "variants": [
            {"name": "base", "overrides": [], "against": None, "expect": None, "tuned": None},
            {"name": "d8", "overrides": ["model.d_k=8"], "against": "base", "expect": None, "tuned": None},
        ],
        "tuning": [],
    }
    address = maker_of(study_of(*FOUR[:2], seeds=(7,)), tiny).cells({})[1].address
    assert cell == {
        "variant": "d8",
        "seed": 7,
        "address": address,
        "folder": f"cells/d8-seed7-{address}",
        "state": "done",
        "error": None,
        "log": f"logs/{address}.out",
        "command": "python scripts/train.py model.d_k=8 seed=7",
    }


# -- several at once -------------------------------------------------------------------


def test_no_more_cells_run_at_once_than_jobs(tiny: TrainConfig, tmp_path: Path) -> None:
    machine = MadeUpMachine(looks=5)
    session_of(study_of(*FOUR[:2], seeds=(1, 2, 3)), tiny, tmp_path, machine, jobs=3).run()
    assert machine.most == 3
    assert len(machine.started) == 6


def test_processors_are_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert [share_of_threads(0, jobs) for jobs in (1, 3, 16)] == [8, 2, 1]
    assert share_of_threads(5, 3) == 5


@dataclass
class WaitsForTheOther(MadeUpMachine):
    """Waits with its first cell for the other machine, so that both have a share however fast one is."""

    both: threading.Barrier = field(default_factory=lambda: threading.Barrier(1))

    def __call__(self, cell: Cell, process: CellProcess) -> MadeUpJob:
        if not self.started:
            self.both.wait(timeout=120)
        return super().__call__(cell, process)


def test_two_runners_share_a_study_and_run_no_cell_twice(tiny: TrainConfig, tmp_path: Path) -> None:
    study = study_of(*FOUR[:2], FOUR[3], seeds=(1, 2, 3, 4))
    both = threading.Barrier(2)
    machines = [WaitsForTheOther(looks=2, both=both) for _ in range(2)]
    sessions = [session_of(study, tiny, tmp_path, machine, jobs=2) for machine in machines]
    threads = [threading.Thread(target=session.run) for session in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    started = [cell for machine in machines for cell in machine.started]
    assert len(started) == len(set(started)) == 12
    assert all(len(machine.started) > 0 for machine in machines)
    assert {state.name for session in sessions for state in session.runner.states.values()} == {"done"}


def test_what_another_runner_has_is_waited_for_and_taken_over_when_it_dies(
    tiny: TrainConfig, tmp_path: Path
) -> None:
    study = study_of(Variant("base"))
    (cell,) = maker_of(study, tiny).cells({})
    folder = StudyFolder(tmp_path)
    other = claim(folder, cell.address)
    assert other is not None
    machine = MadeUpMachine()
    looks: list[str] = []

    def changed_() -> None:
        looks.append(runner.states[cell.address].name)
        if len(looks) == 5:
            assert machine.started == []
            other.release()

    runner = Runner(folder, machine, Place(1, 1, "small", "code"), changed_, poll=0.001)
    assert runner.run([cell])
    assert looks[1:5] == ["running"] * 4
    assert machine.started == [("base", 1)]


# -- stopping --------------------------------------------------------------------------


@pytest.fixture
def handlers() -> Iterator[None]:
    """The signal handlers of the tests' process, put back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_request_to_stop_lets_cells_save_and_says_how_to_go_on(
    number: signal.Signals, tiny: TrainConfig, tmp_path: Path, handlers: None
) -> None:
    machine = MadeUpMachine(looks=1000)

    def stopping(cell: Cell, process: CellProcess) -> MadeUpJob:
        job = machine(cell, process)
        if len(machine.started) == 2:
            os.kill(os.getpid(), number)
        return job

    session = session_of(study_of(*FOUR[:2], seeds=(1, 2)), tiny, tmp_path, stopping, jobs=2)
    with pytest.raises(StoppedEarlyError) as stop:
        session.run()
    assert str(stop.value) == (
        "stopped, and what the cells did is saved; go on with the same line: ablate.py study=small"
    )
    assert [job.stopped for job in machine.alive] == []
    assert len(machine.started) == 2
    assert {state for _, _, state in states(tmp_path)} == {"waiting"}
    again = MadeUpMachine()
    session_of(study_of(*FOUR[:2], seeds=(1, 2)), tiny, tmp_path, again).run()
    assert len(again.started) == 4


def test_the_hours_of_a_call_end_it_like_a_request(tiny: TrainConfig, tmp_path: Path) -> None:
    session = session_of(study_of(Variant("base")), tiny, tmp_path, MadeUpMachine(looks=1000), max_hours=1e-9)
    with pytest.raises(
        StoppedEarlyError, match=r"^max_hours are over, and what the cells did is saved; go on"
    ):
        session.run()


# -- real trainings, in this process ---------------------------------------------------


def trained_here(cell: Cell, process: CellProcess) -> MadeUpJob:
    """Train at once, where a real machine would start a process for it."""
    outcome = process()
    log = Path(process.config.run_dir).parents[1] / "logs" / f"{cell.address}.out"
    log.write_text(outcome.sentence)
    return MadeUpJob(log, lambda: outcome, 0, [])


def real_session(tiny: TrainConfig, folder: Path, submit: Callable[..., object]) -> Session:
    session = session_of(study_of(Variant("d4", ("model.d_k=4",))), tiny, folder, submit)
    session.maker.code = code_hash()
    session.cells = session.maker.cells({})
    session.runner.place = Place(1, 1, "small", code_hash())
    (folder / "logs").mkdir(parents=True)
    return session


@pytest.fixture(scope="module")
def quiet(tiny: TrainConfig, tmp_path_factory: pytest.TempPathFactory) -> Session:
    """A real study of one cell that nothing disturbed."""
    before = signal.getsignal(signal.SIGTERM)
    session = real_session(tiny, tmp_path_factory.mktemp("quiet") / "study", trained_here)
    session.run()
    signal.signal(signal.SIGTERM, before)
    return session


def test_an_interrupted_study_ends_like_an_undisturbed_one(
    tiny: TrainConfig, quiet: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, handlers: None
) -> None:
    """SIGTERM while update 5 of a cell is made: it is saved, stops, and goes on to the same end."""
    write = LogMetrics.on_train_batch_end
    killed: list[int] = []

    def kill_at_5(
        self: LogMetrics, trainer: Trainer, module: LightningModule, out: object, share: Share, i: int
    ) -> None:
        if share.update == 5 and not killed:
            killed.append(5)
            os.kill(os.getpid(), signal.SIGTERM)
        write(self, trainer, module, out, share, i)

    monkeypatch.setattr(LogMetrics, "on_train_batch_end", kill_at_5)
    seen: list[str] = []

    def watched(cell: Cell, process: CellProcess) -> MadeUpJob:
        job = trained_here(cell, process)
        seen.append(job.outcome().name)
        return job

    disturbed = real_session(tiny, tmp_path / "disturbed", watched)
    disturbed.run()
    assert seen == ["stopped", "done"]
    left, right = (session.folder.run(session.cells[0]) for session in (quiet, disturbed))
    for part in ("model", "optimizer"):
        assert_equal(
            getattr(checkpoint.read(left.checkpoints / "last.ckpt"), part),
            getattr(checkpoint.read(right.checkpoints / "last.ckpt"), part),
        )
    for file in ("translations/test.txt", "tokenizer.json"):
        assert (left.path / file).read_text() == (right.path / file).read_text()
    scores = [json.loads(run.result.read_text())["tests"]["test"]["scores"] for run in (left, right)]
    assert scores[0] == scores[1]


def test_a_cell_knows_its_place(quiet: Session, handlers: None) -> None:
    """Its threads, no progress bar, the study as its wandb group; and nobody trains what is done."""
    (cell,) = quiet.cells
    run = quiet.folder.run(cell)
    config = yaml.safe_load((run.path / "config.yaml").read_text())
    assert (config["threads"], config["logger"]["group"], config["model"]["d_k"]) == (1, "small", 4)
    assert config["trainer"]["progress_bar"] is False
    before = run.result.stat().st_mtime_ns
    assert quiet.runner._process(cell)() == Outcome("done")
    assert run.result.stat().st_mtime_ns == before


def test_a_cell_refuses_to_run_other_code_than_its_address_says(
    tiny: TrainConfig, tmp_path: Path, handlers: None
) -> None:
    process = CellProcess(tiny, {}, tmp_path / "lock", "another hash")
    assert process() == Outcome(
        "failed", "the code has changed since the study was started; start the study again"
    )


def test_a_request_to_end_before_training_is_heard(
    tiny: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, handlers: None
) -> None:
    monkeypatch.setattr(CellProcess, "_train", lambda self: os.kill(os.getpid(), signal.SIGTERM))
    assert CellProcess(tiny, {}, tmp_path / "lock", "code")() == Outcome("stopped")


# -- what is wrong before the first cell, or with files ----------------------------------


def test_a_cell_whose_first_updates_fail_does_not_stop_the_others(tiny: TrainConfig, tmp_path: Path) -> None:
    def measure(config: TrainConfig) -> Pace:
        if config.model.d_k == 4:
            raise UserError("the loss is nan at update 2")
        return Pace({"": 1.0}, "measured")

    study = study_of(Variant("d4", ("model.d_k=4",)), Variant("d8", ("model.d_k=8",)))
    machine = MadeUpMachine(failing={"d4": "the loss is nan at update 2"})
    session = session_of(study, tiny, tmp_path, machine)
    session.measure = measure
    with pytest.raises(UserError, match=r"^1 of 2 cells failed"):
        session.run()
    assert "the pace of d4 cannot be measured: the loss is nan at update 2\nabout 24 seconds" in said(session)
    assert states(tmp_path) == [("d4", 1, "failed"), ("d8", 1, "done")]


def test_a_request_to_stop_while_the_pace_is_measured_is_heard(
    tiny: TrainConfig, monkeypatch: pytest.MonkeyPatch, handlers: None
) -> None:
    write = LogMetrics.on_train_batch_end

    def ask(
        self: LogMetrics, trainer: Trainer, module: LightningModule, out: object, share: Share, i: int
    ) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        write(self, trainer, module, out, share, i)

    monkeypatch.setattr(LogMetrics, "on_train_batch_end", ask)
    with pytest.raises(StoppedEarlyError, match="stopped while the pace was measured"):
        warm_up(tiny)


@pytest.mark.parametrize(
    ("variants", "seeds", "sentence"),
    [
        (("base",), (1, 2), "the variants d8,"),
        (("base", "d8", "d16"), (2, 3), "the seeds 1,"),
        (("base",), (3,), "the variants d8 and the seeds 1, 2,"),
    ],
)
def test_a_study_never_takes_another_ones_place(
    tiny: TrainConfig, tmp_path: Path, variants: tuple[str, ...], seeds: tuple[int, ...], sentence: str
) -> None:
    def run(names: Sequence[str], seeds: Sequence[int]) -> None:
        made = [Variant(name, (f"model.d_k={name[1:]}",) if name != "base" else ()) for name in names]
        session_of(study_of(*made, seeds=seeds), tiny, tmp_path, MadeUpMachine()).run()

    run(("base", "d8"), (1, 2))
    before = (tmp_path / "study.json").read_bytes()
    with pytest.raises(UserError, match=f"holds a study with {sentence} which its report would lose"):
        run(variants, seeds)
    assert (tmp_path / "study.json").read_bytes() == before
    run(("base", "d8", "d16"), (1, 2, 3))
    (tmp_path / "study.json").unlink()
    run(variants, seeds)


def test_data_without_a_test_split_is_refused_before_any_cell(tiny: TrainConfig, tmp_path: Path) -> None:
    machine = MadeUpMachine()
    config = changed(tiny, {"data": {**tiny.data, "test": ""}})
    with pytest.raises(UserError, match=r"has no test split.*set data\.test"):
        session_of(study_of(Variant("base")), config, tmp_path / "study", machine).run()
    assert not machine.started and not (tmp_path / "study").exists()


def test_a_report_that_cannot_be_written_is_no_success(tiny: TrainConfig, tmp_path: Path) -> None:
    def report(folder: Path) -> Path:
        raise UserError("the disk is full")

    session = session_of(study_of(Variant("base")), tiny, tmp_path, MadeUpMachine())
    session.report = report
    with pytest.raises(UserError, match="the cells are done, but their report could not be written"):
        session.run()
    assert said(session).count("no report: the disk is full") == 1


@pytest.mark.parametrize("content", ["{", "", "[]", '{"updates": 3}', "\udcff"])
def test_a_result_that_cannot_be_read_is_a_failure_that_can_be_retried(
    tiny: TrainConfig, tmp_path: Path, content: str
) -> None:
    study = study_of(*FOUR[:2])
    session = session_of(study, tiny, tmp_path, MadeUpMachine())
    session.run()
    broken = session.folder.run(session.cells[0]).result
    broken.write_bytes(content.encode("utf8", "surrogateescape"))
    again = session_of(study, tiny, tmp_path, MadeUpMachine())
    with pytest.raises(UserError, match=r"^1 of 2 cells failed"):
        again.run()
    assert re.search(r"result\.json (cannot be read|lacks)[^\n]*retry_failed=true makes it anew", said(again))
    machine = MadeUpMachine(remakes=True)
    session_of(study, tiny, tmp_path, machine, retry_failed=True).run()
    assert machine.started == [("base", 1)]


def test_notes_that_cannot_be_read_cost_nothing(tiny: TrainConfig, tmp_path: Path) -> None:
    study = study_of(Variant("base"))
    session = session_of(study, tiny, tmp_path, MadeUpMachine())
    session.run()
    (cell,) = session.cells
    session.folder._log_note(cell).write_text("{")
    session_of(study, tiny, tmp_path, MadeUpMachine()).run()
    session.folder.run(cell).result.unlink()
    session.folder._failure(cell.address).write_text("{")
    assert session.folder.state(cell).name == "failed"


def test_a_file_in_the_way_is_told(tiny: TrainConfig, tmp_path: Path) -> None:
    (tmp_path / "claims").write_text("")
    with pytest.raises(UserError, match=r"needs the folder .*claims, which cannot be made: File exists"):
        session_of(study_of(Variant("base")), tiny, tmp_path, MadeUpMachine()).run()


# -- time ------------------------------------------------------------------------------


def test_the_time_left_is_counted_from_done_cells(tiny: TrainConfig, tmp_path: Path) -> None:
    """12 updates in 24 seconds are 2 an update; 3 more cells, 2 at once, are 36 seconds."""
    session_of(study_of(Variant("base")), tiny, tmp_path, MadeUpMachine()).run()
    cells = maker_of(study_of(*FOUR[:2], seeds=(1, 2)), tiny).cells({})
    folder = StudyFolder(tmp_path)
    found = {cell.address: folder.state(cell) for cell in cells}
    pace = pace_of_done(folder, cells, found)
    assert pace == Pace({"base": 2.0, "": 2.0}, "from a cell that is done")
    assert seconds_left(pace, cells, found, jobs=2) == 3 * 12 * 2.0 / 2
    assert pace_of_done(folder, cells, {cell.address: State() for cell in cells}) is None


def test_the_pace_is_measured_where_nothing_is_done(tiny: TrainConfig) -> None:
    pace = warm_up(tiny)
    assert 0 < pace.seconds[""] < 5
    assert pace.source == "measured now, of one variant"


def test_the_plan_is_told_before_anything_runs(tiny: TrainConfig, tmp_path: Path) -> None:
    session = session_of(study_of(*FOUR[:2], seeds=(1, 2)), tiny, tmp_path, MadeUpMachine())
    session.measure = lambda config: Pace({"": 300.0}, "measured now, of one variant")
    session.run()
    assert said(session).startswith(
        "Does it matter?\n"
        "small: 2 variants x 2 seeds = 4 cells; 0 done\n"
        "about 4.0 hours of training with jobs=1, start and scoring not counted "
        "(3e+02 seconds an update, measured now, of one variant)\n"
        f"folder: {tmp_path}\n"
        "base, seed 1: running\n"
    )


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.6, "1 second"), (40.2, "40 seconds"), (720, "12 minutes"), (3.5 * 3600, "3.5 hours")],
)
def test_times_are_told_in_words(seconds: float, words: str) -> None:
    assert in_words(seconds) == words
