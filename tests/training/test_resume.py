"""Going on from a checkpoint is as if nothing had happened, to the last bit; and what is refused."""

import csv
import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from minitrans import checkpoint
from minitrans.checkpoint import Checkpoint
from minitrans.cli.compose import compose
from minitrans.config import TrainConfig, plain
from minitrans.errors import StoppedEarlyError, UserError
from minitrans.run import RunFolder, locked
from minitrans.training import session
from minitrans.training.interruption import Interruption
from minitrans.training.module import TranslationModule
from minitrans.training.resume import Continuation, continuation, settle
from tests.integration.commands import snapshot
from tests.training.tiny import assert_equal, changed, train

SCHEDULES = [
    {"kind": "inverse_sqrt", "warmup_updates": 4},
    {"kind": "noam", "warmup_updates": 4, "factor": 0.1},
    {"kind": "cosine", "warmup_updates": 4},
    {"kind": "linear", "warmup_updates": 4},
    {"kind": "constant", "warmup_updates": 4},
]
Stop = Callable[[int], None]


@pytest.fixture
def stop_after(monkeypatch: pytest.MonkeyPatch) -> Stop:
    """Asks runs to end after an update, as SIGTERM does; 0 asks nothing."""

    def stop(update: int) -> None:
        def agreed(self: Interruption, trainer: Any) -> bool:
            return bool(trainer.lightning_module.progress.update == update)

        monkeypatch.setattr(Interruption, "agreed", agreed)

    return stop


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, tuple[int, ...]]]:
    """The number and the lines of each update, as they are made."""
    made: list[tuple[int, tuple[int, ...]]] = []
    record = TranslationModule._record

    def watch(self: TranslationModule, *arguments: Any) -> None:
        record(self, *arguments)
        made.append((self.report.update, self.report.lines))

    monkeypatch.setattr(TranslationModule, "_record", watch)
    return made


def going_on(config: TrainConfig, path: Path, **typed: Any) -> Continuation:
    """What ``resume=path`` and the typed words mean."""
    words = {key.replace("__", "."): value for key, value in typed.items()}
    return continuation(changed(config, {**words, "resume": str(path)}), words)


def go_on(config: TrainConfig, path: Path, **typed: Any) -> RunFolder:
    found = going_on(config, path, **typed)
    return train(found.config, found.folder.path, found.start)


def last(folder: RunFolder) -> Checkpoint:
    return checkpoint.read(folder.checkpoints / "last.ckpt")


def assert_same_run(one: RunFolder, other: RunFolder) -> None:
    """Weights, average, optimizer, progress and metrics are the same, but for seconds and speeds."""
    left, right = last(one), last(other)
    for name in ("model", "ema", "optimizer"):
        assert_equal(getattr(left, name), getattr(right, name), name)
    assert dataclasses.replace(left.progress, seconds=0.0) == dataclasses.replace(right.progress, seconds=0.0)
    assert metrics(one) == metrics(other)


def metrics(folder: RunFolder) -> list[dict[str, str]]:
    with folder.metrics.open(newline="") as file:
        return [row | {"target_tokens_per_s": "", "mfu": "", "seconds": ""} for row in csv.DictReader(file)]


# As if nothing had happened


@pytest.mark.parametrize("schedule", SCHEDULES, ids=[str(schedule["kind"]) for schedule in SCHEDULES])
def test_a_run_stopped_twice_is_the_undisturbed_run(
    schedule: dict[str, Any], tiny: TrainConfig, tmp_path: Path, stop_after: Stop
) -> None:
    """With dropout and a moving average; stopped in mid-epoch, in mid-row, and once between validations."""
    settings = {"training.ema_decay": 0.9, "training.log_every": 4, "training.validate_every": 6}
    config = changed(tiny, {**settings, "schedule": schedule})
    whole = train(config, tmp_path / "whole")
    stop_after(5)
    stopped = train(config, tmp_path / "stopped")
    assert last(stopped).progress.update == 5
    stop_after(7)
    go_on(config, stopped.path)
    assert last(stopped).progress.update == 7
    stop_after(0)
    go_on(config, stopped.path)
    assert last(stopped).progress.update == 12
    assert_same_run(stopped, whole)
    assert last(whole).ema is not None


@pytest.mark.parametrize(
    "changes", [{"trainer.num_workers": 2}, {"training.accumulate": 4}, {"optimizer.lr": 0.02}]
)
def test_a_stopped_run_is_the_undisturbed_one_with(
    changes: dict[str, Any], tiny: TrainConfig, tmp_path: Path, stop_after: Stop
) -> None:
    config = changed(tiny, changes)
    whole = train(config, tmp_path / "whole")
    stop_after(11)
    stopped = train(config, tmp_path / "stopped")
    stop_after(0)
    assert_same_run(go_on(config, stopped.path), whole)


def test_the_number_of_loader_processes_changes_nothing(tiny: TrainConfig, tmp_path: Path) -> None:
    runs = [train(changed(tiny, {"trainer.num_workers": n}), tmp_path / str(n)) for n in (0, 2)]
    assert_same_run(*runs)


def test_accumulation_over_four_gives_the_same_run_twice(tiny: TrainConfig, tmp_path: Path) -> None:
    config = changed(tiny, {"training.accumulate": 4, "model.dropout": 0.3})
    assert_same_run(train(config, tmp_path / "one"), train(config, tmp_path / "two"))


def test_a_resumed_run_draws_other_dropout_with_another_seed(tiny: TrainConfig, tmp_path: Path) -> None:
    """The control: the equalities above could fail."""
    one, two = (train(changed(tiny, {"seed": seed}), tmp_path / str(seed)) for seed in (1, 2))
    name = "encoder.embedding.weight"
    assert not torch.equal(last(one).model[name], last(two).model[name])


def test_updates_use_the_same_lines_whatever_the_stops(
    tiny: TrainConfig, tmp_path: Path, lines: list[tuple[int, tuple[int, ...]]]
) -> None:
    """BR-17: 40 pairs, 4 an update; stopped after 12 and 15 of 18."""
    train(changed(tiny, {"training.max_updates": 18}), tmp_path / "whole")
    whole = lines.copy()
    lines.clear()
    stopped = train(tiny, tmp_path / "stopped")
    go_on(tiny, stopped.path, training__max_updates=15)
    go_on(tiny, stopped.path, training__max_updates=18)
    assert lines == whole
    assert [number for number, _ in lines] == list(range(1, 19))
    first_epoch = sorted(line for _, used in lines[:10] for line in used)
    assert first_epoch == list(range(40))
    assert lines[:8] != [(number - 10, used) for number, used in lines[10:]]


def test_the_schedule_goes_on_where_it_was(tiny: TrainConfig, tmp_path: Path) -> None:
    """BR-06: update 4 is the first after a resume, and uses the peak."""
    config = changed(tiny, {"optimizer.lr": 0.0625, "training.max_updates": 3})
    folder = train(config, tmp_path / "run")
    go_on(config, folder.path, training__max_updates=6)
    rates = [float(row["lr"]) for row in metrics(folder) if row["split"] == "train"]
    expected = [0.015625, 0.03125, 0.046875, 0.0625, 0.0625 * math.sqrt(4 / 5), 0.0625 * math.sqrt(4 / 6)]
    assert rates == pytest.approx(expected, rel=1e-6)


def test_the_best_and_the_patience_go_on(tiny: TrainConfig, tmp_path: Path, stop_after: Stop) -> None:
    config = changed(tiny, {"training.validate_every": 2, "training.patience": 6, "training.metric": "loss"})
    whole = train(config, tmp_path / "whole")
    stop_after(7)
    stopped = train(config, tmp_path / "stopped")
    stop_after(0)
    go_on(config, stopped.path)
    assert_same_run(stopped, whole)
    best = [checkpoint.read(folder.checkpoints / "best.ckpt").progress.update for folder in (stopped, whole)]
    assert best[0] == best[1] == last(whole).progress.best_update


# From an older checkpoint


@pytest.fixture
def folder(tiny: TrainConfig, tmp_path: Path) -> RunFolder:
    """A finished run with the checkpoints of updates 4, 8 and 12."""
    return train(changed(tiny, {"training.save_every": 4, "training.validate_every": 4}), tmp_path / "run")


def cut(path: Path) -> None:
    """Half of the file; every name of it is cut."""
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def test_a_damaged_newest_checkpoint_gives_way_to_an_older_one_which_is_named(
    folder: RunFolder, tiny: TrainConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """BR-18, second half."""
    before = last(folder)
    cut(folder.step(12))
    found = going_on(tiny, folder.path)
    told = capsys.readouterr().out
    assert "step-000012.ckpt is damaged" in told
    assert "going on from step-000008.ckpt instead" in told
    assert found.start.progress.update == 8
    train(found.config, folder.path, found.start)
    assert_equal(last(folder).model, before.model)
    assert (
        checkpoint.read(folder.checkpoints / "best.ckpt").progress.update == last(folder).progress.best_update
    )


def test_damaged_checkpoints_alone_are_an_error_not_a_new_start(folder: RunFolder, tiny: TrainConfig) -> None:
    for path in folder.steps():
        cut(path)
    with pytest.raises(UserError, match=r"step-000012\.ckpt is damaged.*holds no whole checkpoint"):
        going_on(tiny, folder.path)


def test_an_older_file_goes_on_in_place_and_later_ones_are_left(
    folder: RunFolder, tiny: TrainConfig, capsys: pytest.CaptureFixture[str], stop_after: Stop
) -> None:
    whole = metrics(folder)
    stop_after(6)
    go_on(tiny, folder.step(4))
    assert folder.steps() == [folder.step(4), folder.step(6)]
    assert "step-000008.ckpt is later than" in capsys.readouterr().out
    assert sorted(p.name for p in folder.checkpoints.iterdir())[:2] == ["best.ckpt", "last.ckpt"]
    assert checkpoint.read(folder.checkpoints / "best.ckpt").progress.update == 4
    assert metrics(folder) == [row for row in whole if int(row["update"]) <= 6]


def test_another_run_dir_branches_off_and_leaves_the_run_as_it_is(
    folder: RunFolder, tiny: TrainConfig, tmp_path: Path
) -> None:
    before = {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}
    found = going_on(tiny, folder.step(8), run_dir=str(tmp_path / "branch"))
    assert found.folder.path == tmp_path / "branch"
    branch = train(found.config, found.folder.path, found.start)
    assert_equal(last(branch).model, last(folder).model)
    assert {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()} == before


def test_a_used_run_dir_is_refused(folder: RunFolder, tiny: TrainConfig, tmp_path: Path) -> None:
    other = train(changed(tiny, {"training.max_updates": 1}), tmp_path / "other")
    with pytest.raises(UserError, match=rf"run folder {other.path} is already in use"):
        going_on(tiny, folder.step(8), run_dir=str(other.path))
    assert going_on(tiny, folder.step(8), run_dir=str(folder.path)).folder == folder


@pytest.mark.parametrize(
    ("name", "words"),
    [("nothing", "resume=.*/nothing does not exist"), ("empty", "empty holds no checkpoint to go on from")],
)
def test_nothing_to_go_on_from(name: str, words: str, tiny: TrainConfig, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=words):
        going_on(tiny, tmp_path / name)


def test_an_average_is_not_gone_on_from(folder: RunFolder, tiny: TrainConfig) -> None:
    checkpoint.average(folder.steps(), folder.checkpoints / "average.ckpt")
    with pytest.raises(UserError, match=r"average\.ckpt has no optimizer state"):
        going_on(tiny, folder.checkpoints / "average.ckpt")


# What may change


@pytest.mark.parametrize(
    ("typed", "old"),
    [
        ({"model.d_model": 32}, "16"),
        ({"model.dropout": 0.3}, "0.1"),
        ({"seed": 2}, "1"),
        ({"optimizer.lr": 0.5}, "0.01"),
        ({"schedule.warmup_updates": 9}, "4"),
        ({"training.update_sentences": 8}, "4"),
        ({"training.ema_decay": 0.5}, "None"),
        ({"training.label_smoothing": 0.0}, "0.1"),
        ({"position.kind": "rotary"}, "sinusoidal"),
        ({"attention.scale": 1.0}, "None"),
        ({"tokenizer.vocab_size": 99}, "12"),
    ],
)
def test_what_makes_another_experiment_is_refused_by_name(
    typed: dict[str, Any], old: str, folder: RunFolder, tiny: TrainConfig
) -> None:
    ((key, value),) = typed.items()
    told = rf"{key}={value} would make this another experiment than .*, which has {key}={old}; leave it out"
    with pytest.raises(UserError, match=told):
        continuation(changed(tiny, {**typed, "resume": str(folder.path)}), typed)


@pytest.mark.parametrize("typed", [{"optimizer.lr": 0.5}, {"model.dropout": 0.3}, {"seed": 2}])
def test_force_goes_on_all_the_same_and_says_so(
    typed: dict[str, Any], folder: RunFolder, tiny: TrainConfig
) -> None:
    words = {**typed, "force": True}
    found = continuation(changed(tiny, {**words, "resume": str(folder.path)}), words)
    ((key, value),) = typed.items()
    assert found.changed[key][1] == value
    assert f"with {key} {found.changed[key][0]} -> {value}" in str(found)
    assert found.config.force is False
    assert found.config == changed(found.config, typed)


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ({"model.d_model": 32}, r"the weights of .* do not fit another model\.d_model; leave it out"),
        (
            {"tokenizer.vocab_size": 99},
            r"tokenizer\.vocab_size=99 would make .*; leave it out to go on or",
        ),
        ({"optimizer.kind": "adam"}, r"optimizer\.kind=adam would make .*; leave it out to go on or"),
    ],
)
def test_not_even_force_changes_what_the_weights_stand_for(
    typed: dict[str, Any], told: str, folder: RunFolder, tiny: TrainConfig
) -> None:
    words = {**typed, "force": True}
    with pytest.raises(UserError, match=told):
        continuation(changed(tiny, {**words, "resume": str(folder.path)}), words)


def test_a_forced_weight_decay_is_the_one_that_acts(folder: RunFolder, tiny: TrainConfig) -> None:
    """The optimizer's state comes from the checkpoint, its settings from the configuration."""
    found = going_on(tiny, folder.path, optimizer__weight_decay=0.5, force=True, training__max_updates=13)
    train(found.config, folder.path, found.start)
    groups = last(folder).optimizer["param_groups"]  # type: ignore[index]
    assert [group["weight_decay"] for group in groups] == [0.5, 0.0]


def test_an_experiments_name_stands_for_what_its_file_states(tiny: TrainConfig, tmp_path: Path) -> None:
    """A run of ``experiment=multi30k_quick seed=5`` goes on with the name alone; the seed is not its."""
    recipe = compose("train", ["experiment=multi30k_quick"], TrainConfig).config
    stated = {name: getattr(recipe, name) for name in ("optimizer", "schedule")}
    folder = train(changed(tiny, {**stated, "seed": 5, "training.max_updates": 1}), tmp_path / "run")
    config = changed(recipe, {"resume": str(folder.path)})
    with pytest.raises(UserError, match=r"data\.kind=text would make"):  # which its file does state
        continuation(config, {"experiment": "multi30k_quick"})
    own = {"data": tiny.data, "model": tiny.model, "tokenizer": tiny.tokenizer, "training": tiny.training}
    found = continuation(changed(config, own), {"experiment": "multi30k_quick"})
    assert found.config.seed == 5


def test_how_translations_are_looked_for_may_change(folder: RunFolder, tiny: TrainConfig) -> None:
    assert going_on(tiny, folder.path, search__beam_size=4).config.search.beam_size == 4


def test_what_may_change_is_applied_and_said(folder: RunFolder, tiny: TrainConfig) -> None:
    found = going_on(
        tiny, folder.path, training__max_updates=20, training__save_every=7, training__accumulate=2
    )
    training = found.config.training
    assert (training.max_updates, training.save_every, training.accumulate) == (20, 7, 2)
    assert found.changed == {
        "training.max_updates": (12, 20),
        "training.save_every": (4, 7),
        "training.accumulate": (1, 2),
    }
    assert str(found) == (
        f"Going on from update 12 ({folder.step(12)}) with training.max_updates 12 -> 20, "
        "training.save_every 4 -> 7, training.accumulate 1 -> 2"
    )


def test_only_what_was_typed_is_compared(folder: RunFolder, tiny: TrainConfig) -> None:
    """The command line's own defaults are another model; the checkpoint's stay."""
    defaults = dataclasses.replace(TrainConfig(), resume=str(folder.path))
    found = continuation(defaults, {"resume": str(folder.path)})
    assert found.config.model == tiny.model
    assert found.changed == {}


def test_a_typed_group_that_is_the_checkpoints_own_is_allowed(folder: RunFolder, tiny: TrainConfig) -> None:
    config = changed(tiny, {"resume": str(folder.path)})
    found = continuation(config, {"position": "sinusoidal", "optimizer": "adamw", "model": "tiny", "seed": 1})
    assert found.changed == {}
    other = changed(config, {"position": {"kind": "rotary"}})
    with pytest.raises(UserError, match=r"position\.kind=rotary would make this another experiment"):
        continuation(other, {"position": "rotary"})


def test_the_machine_stays_as_it_was_unless_typed(folder: RunFolder, tiny: TrainConfig) -> None:
    """A run in fp32 does not go on in bf16 because the default of this machine is bf16."""
    now = changed(
        tiny, {"trainer.precision": "auto", "trainer.num_workers": 0, "logger.kind": "wandb", "threads": 2}
    )
    found = going_on(now, folder.path, trainer__num_workers=2)
    assert found.config.trainer == dataclasses.replace(tiny.trainer, num_workers=2)
    assert found.config.logger == tiny.logger
    assert found.config.threads == tiny.threads
    grouped = continuation(
        dataclasses.replace(now, resume=str(folder.path)), {"logger": "wandb", "threads": 2}
    )
    assert grouped.config.logger.kind == "wandb"
    assert grouped.config.threads == 2
    assert grouped.config.trainer.precision == "fp32"
    (folder.path / "config.yaml").unlink()
    assert going_on(now, folder.path).config.trainer.precision == "auto"


def test_the_run_folder_may_have_moved(folder: RunFolder, tiny: TrainConfig, tmp_path: Path) -> None:
    moved = folder.path.rename(tmp_path / "a moved run, 2=犬")
    found = going_on(tiny, moved, training__max_updates=14)
    assert found.folder.path == moved
    assert found.config.run_dir == str(moved)
    assert last(train(found.config, moved, found.start)).progress.update == 14


# The whole command


def test_a_finished_run_is_left_as_it_is(
    tiny: TrainConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """awslabs/sockeye#1043."""
    session.start(changed(tiny, {"run_dir": str(tmp_path / "run")}), {})
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in _files(tmp_path / "run")}
    session.go_on(changed(tiny, {"resume": str(tmp_path / "run")}), {})
    assert "is finished: 12 updates" in capsys.readouterr().out.replace("\n", " ")
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in _files(tmp_path / "run")} == before


def test_a_run_stopped_by_patience_is_finished_too(
    tiny: TrainConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frozen = {"optimizer": {"kind": "sgd", "lr": 1e-30}, "training.validate_every": 1, "training.patience": 2}
    session.start(changed(tiny, {**frozen, "run_dir": str(tmp_path / "run")}), {})
    assert last(RunFolder.of(tmp_path / "run")).progress.update == 3
    session.go_on(changed(tiny, {"resume": str(tmp_path / "run")}), {})
    assert "is finished: 3 updates" in capsys.readouterr().out.replace("\n", " ")
    session.go_on(
        changed(tiny, {"resume": str(tmp_path / "run"), "training.patience": 4}), {"training.patience": 4}
    )
    assert last(RunFolder.of(tmp_path / "run")).progress.update == 5


def test_a_run_that_was_killed_before_its_scores_is_scored(tiny: TrainConfig, tmp_path: Path) -> None:
    folder = train(tiny, tmp_path / "run")
    assert not folder.result.exists()
    session.go_on(changed(tiny, {"resume": str(folder.path)}), {})
    assert yaml.safe_load(folder.result.read_text())["updates"] == 12
    assert (folder.path / "translations" / "test.txt").read_text().count("\n") == 4


def test_a_branch_has_its_own_record_and_tokenizers(tiny: TrainConfig, tmp_path: Path) -> None:
    folder = train(changed(tiny, {"training.save_every": 4}), tmp_path / "run")
    config = changed(tiny, {"resume": str(folder.step(8)), "run_dir": str(tmp_path / "branch")})
    session.go_on(config, {"run_dir": str(tmp_path / "branch")})
    for name in (
        "config.yaml",
        "provenance.json",
        "tokenizer.json",
        "metrics.csv",
        "result.json",
        "curves.png",
    ):
        assert (tmp_path / "branch" / name).exists(), name
    written = yaml.safe_load((tmp_path / "branch" / "config.yaml").read_text())
    assert written["run_dir"] == str(tmp_path / "branch")
    assert written["training"] == plain(changed(tiny, {"training.save_every": 4}))["training"]


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")


# resume=auto


def auto(tiny: TrainConfig, path: Path, **changes: Any) -> TrainConfig:
    return changed(tiny, {"resume": "auto", "run_dir": str(path), **changes})


def test_auto_starts_goes_on_and_ends(
    tiny: TrainConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str], stop_after: Stop
) -> None:
    """One command line for a job that a cluster starts again and again."""
    config = auto(tiny, tmp_path / "run")
    session.start(changed(tiny, {"run_dir": str(tmp_path / "whole")}), {})
    for stop, code in ((5, "after update 5"), (8, "after update 8")):
        stop_after(stop)
        with pytest.raises(StoppedEarlyError, match=code):
            session.train(config, {"run_dir": config.run_dir, "resume": "auto"})
    stop_after(0)
    session.train(config, {})
    said = capsys.readouterr().out.replace("\n", " ")
    assert f"{config.run_dir} holds no checkpoint to go on from: starting anew" in said
    assert "Going on from update 5" in said and "Going on from update 8" in said
    assert_same_run(RunFolder.of(tmp_path / "run"), RunFolder.of(tmp_path / "whole"))
    before = {path: path.read_bytes() for path in _files(tmp_path / "run")}
    session.train(config, {})
    assert {path: path.read_bytes() for path in _files(tmp_path / "run")} == before
    written = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert (written["resume"], written["force"]) == ("", False)


def test_auto_takes_over_what_was_killed_before_a_checkpoint(tiny: TrainConfig, tmp_path: Path) -> None:
    folder = RunFolder.of(tmp_path / "run")
    folder.checkpoints.mkdir(parents=True)
    partial = folder.checkpoints / ".step-000099.ckpt.17.partial"
    partial.touch()
    folder.metrics.write_text("update,epoch,split,loss\n1,1,train,9.9\n2,1,tr")
    session.train(auto(tiny, folder.path), {})
    assert [row["update"] for row in metrics(folder)] == [*map(str, range(1, 13)), "12"]
    assert metrics(folder)[0]["loss"] != "9.9"
    assert not partial.exists()


def test_auto_needs_the_folder_of_a_run(tiny: TrainConfig, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"resume=auto goes on in run_dir.*add run_dir=FOLDER"):
        session.train(changed(tiny, {"resume": "auto"}), {})
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "mine.txt").touch()
    with pytest.raises(UserError, match=r"letters is already in use"):
        session.train(auto(tiny, tmp_path / "letters"), {})


def test_auto_never_starts_anew_over_damaged_checkpoints(folder: RunFolder, tiny: TrainConfig) -> None:
    for path in folder.steps():
        cut(path)
    with pytest.raises(UserError, match="holds no whole checkpoint to go on from"):
        session.train(auto(tiny, folder.path), {})


def test_the_named_checkpoint_is_the_newest_before_rows_go(folder: RunFolder, tiny: TrainConfig) -> None:
    """Killed right after the rows were cut, the run must not go on from a later checkpoint."""
    settle(folder, checkpoint.read(folder.step(8)))
    assert going_on(tiny, folder.path).start.progress.update == 8
    assert last(folder).progress.update == 8
    assert folder.steps() == [folder.step(4), folder.step(8)]


DAMAGED = (
    ("config.yaml", b"seed: [1", "config.yaml is damaged: "),
    ("config.yaml", b"", "config.yaml is damaged: it holds no keys"),
    ("config.yaml", b"- 1\n", "config.yaml is damaged: it holds no keys"),
    ("config.yaml", b"seed: \xff\n", "config.yaml is damaged: "),
    ("metrics.csv", b"a,b\n1,2\n", "metrics.csv is damaged: its first line does not name the columns"),
    ("metrics.csv", b"update,words\n1,2\n", "metrics.csv is damaged: its first line does not name"),
    ("metrics.csv", b"update,split\nten,train\n", "metrics.csv, line 2 is damaged: ten,train"),
    ("metrics.csv", b"update,split\n1,train\n2\n", "metrics.csv, line 3 is damaged: 2,None"),
    ("metrics.csv", b"update,split\n\xff,train\n", "metrics.csv is damaged: "),
    ("diagnostics.csv", b"a,b\n1,2\n", "diagnostics.csv is damaged: its first line"),
)


def test_a_damaged_record_is_told_before_anything_is_changed(folder: RunFolder, tiny: TrainConfig) -> None:
    for name, content, said in DAMAGED:
        path = folder.path / name
        whole = path.read_bytes() if path.exists() else b""
        path.write_bytes(content)
        before = snapshot(folder.path)
        with pytest.raises(UserError) as refused:
            session.train(changed(tiny, {"resume": str(folder.path)}), {"resume": str(folder.path)})
        assert said in str(refused.value)
        assert "\n" not in str(refused.value)
        assert snapshot(folder.path) == before
        path.write_bytes(whole)


def test_a_run_without_a_checkpoint_yet_is_said_to_be_in_use(tiny: TrainConfig, tmp_path: Path) -> None:
    folder = RunFolder.of(tmp_path / "run")
    folder.checkpoints.mkdir(parents=True)
    with locked(folder), pytest.raises(UserError, match=r"run is in use by another process"):
        continuation(changed(tiny, {"resume": str(folder.path)}), {})
