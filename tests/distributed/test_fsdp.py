"""Weights in parts (``trainer=fsdp``): the same run as with whole ones, and the same files."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor

from minitrans import checkpoint
from minitrans.config import TrainConfig
from minitrans.errors import UserError
from minitrans.run import RunFolder
from minitrans.training import prepare
from minitrans.training.module import TranslationModule
from minitrans.training.resume import continuation
from tests.distributed.commands import CHECKOUT, finish, scores, words
from tests.distributed.test_elastic import stopped
from tests.distributed.test_split import assert_close, difference, last, metrics, trained
from tests.distributed.world import in_world
from tests.training.tiny import assert_equal, changed, tiny_experiment, train, write_rows

FSDP = {"trainer.strategy": "fsdp"}


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    """SGD with momentum in float64, with dropout, clipping and a moving average; 4 updates an epoch."""
    config = tiny_experiment(tmp_path_factory.mktemp("text"))
    rows = [["eins"] * length for length in (7, 1, 3, 2, 6, 6, 1, 5, 4)] + [["zwei", "drei"]] * 6
    files = write_rows(tmp_path_factory.mktemp("ragged"), "train", rows)
    sgd = {"optimizer": {"kind": "sgd", "lr": 0.2, "momentum": 0.5}, "trainer.precision": "fp64"}
    size = {"training.update_sentences": 4, "training.max_updates": 6, "training.validate_every": 3}
    rule = {"training.clip_norm": 0.5, "training.ema_decay": 0.9}
    schedule = {"kind": "constant", "warmup_updates": 1}
    return changed(config, {"data.train": files, **sgd, **size, **rule, "schedule": schedule})


def assert_same_run(one: RunFolder, other: RunFolder) -> None:
    """Files of the same form, and the same numbers in them but for rounding."""
    left, right = last(one), last(other)
    assert difference(left.model, right.model) < 1e-9
    assert left.ema is not None and right.ema is not None
    assert difference(left.ema, right.ema) < 1e-9
    assert left.optimizer is not None and right.optimizer is not None
    assert_equal(left.optimizer["param_groups"], right.optimizer["param_groups"])
    assert left.optimizer["state"].keys() == right.optimizer["state"].keys()
    for number, state in left.optimizer["state"].items():
        assert difference(state, right.optimizer["state"][number]) < 1e-9
    assert_close(metrics(one), metrics(other))


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [2, 3])
def test_parts_make_the_same_run_as_wholes(exact: TrainConfig, tmp_path: Path, world_size: int) -> None:
    """Also where 3 processes share rows whose number 3 does not divide; an untied, post-norm model too."""
    other = {"model.tie": "none", "model.norm_order": "post", "position": {"kind": "learned"}}
    shapes = {"tied": exact, "untied": changed(exact, other)}
    wholes, parts = {}, {}
    for name, config in shapes.items():
        for n in (1, 2):
            split = changed(config, {"training.accumulate": n})
            parts[f"{name}{n}"] = changed(split, FSDP)
            wholes[f"{name}{n}"] = changed(split, {"training.accumulate": world_size * n})
    alone = trained(wholes, tmp_path / "alone")
    for name, path in in_world(world_size, trained, parts, tmp_path / "parts")[0].items():
        assert_same_run(RunFolder(path), RunFolder(alone[name]))
        assert max(float(row["grad_norm"]) for row in metrics(RunFolder(path)) if row["grad_norm"]) > 0.5
        assert all(type(tensor) is torch.Tensor for tensor in last(RunFolder(path)).model.values())
        checkpoint.load(path)


def watched(config: TrainConfig, root: Path) -> dict[str, Any]:
    """What a process keeps between updates, and how often gradients are dealt out, 1 and 3 micro-batches."""
    seen: dict[str, Any] = {"dealt": []}
    record, deal = TranslationModule._record, torch.distributed.reduce_scatter_single

    def look(self: TranslationModule, *arguments: Any) -> None:
        optimizer = self.trainer.optimizers[0]
        kept = [*self.model.parameters(), *(state["momentum_buffer"] for state in optimizer.state.values())]
        assert all(isinstance(tensor, DTensor) for tensor in kept)
        seen["kept"] = sum(tensor.to_local().numel() for tensor in kept)  # type: ignore[attr-defined]
        seen["all"] = sum(tensor.numel() for tensor in kept)
        record(self, *arguments)

    def count(*arguments: Any, **keywords: Any) -> Any:
        seen["dealt"][-1] += 1
        return deal(*arguments, **keywords)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TranslationModule, "_record", look)
        patch.setattr(torch.distributed, "reduce_scatter_single", count)
        for number in (1, 3):
            seen["dealt"].append(0)
            train(changed(config, {"training.accumulate": number}), root / str(number))
    return seen


def test_each_process_keeps_a_part_and_gradients_are_dealt_out_once_an_update(
    exact: TrainConfig, tmp_path: Path
) -> None:
    one, other = in_world(2, watched, changed(exact, {**FSDP, "training.max_updates": 2}), tmp_path)
    assert one["kept"] + other["kept"] == one["all"]
    assert 0.4 < one["kept"] / one["all"] < 0.6
    # 2 updates of: an encoder layer, a decoder layer and its cache's start, all else
    assert one["dealt"] == other["dealt"] == [8, 8]


def gone_on(config: TrainConfig, paths: list[Path], strategy: str) -> None:
    """Go on with runs to their end, in this way."""
    typed = {"trainer.strategy": strategy}
    for path in paths:
        found = continuation(changed(config, {**typed, "resume": str(path)}), typed)
        train(found.config, path, found.start)


@pytest.mark.slow
def test_a_run_goes_on_with_parts_and_without(exact: TrainConfig, tmp_path: Path) -> None:
    """Stopped in mid-epoch: from parts to wholes on one process and on two, and from wholes to parts."""
    whole = train(changed(exact, {"training.accumulate": 2}), tmp_path / "whole")
    parts, wholes, alone = (tmp_path / name for name in ("parts", "wholes", "alone"))
    in_world(2, stopped, changed(exact, FSDP), parts, 3)
    in_world(2, stopped, changed(exact, {"trainer.strategy": "ddp"}), wholes, 3)
    shutil.copytree(parts, alone)
    gone_on(exact, [alone], "auto")
    in_world(2, gone_on, exact, [wholes], "fsdp")
    in_world(2, gone_on, exact, [parts], "ddp")
    for path in (parts, wholes):
        assert_same_run(RunFolder(path), whole)
    # its last updates are of one micro-batch each, whose dropout is another
    assert last(RunFolder(alone)).progress.update == 6
    assert_close(metrics(RunFolder(alone))[:4], metrics(whole)[:4])


@pytest.mark.slow
def test_going_on_is_exact_to_the_last_bit(exact: TrainConfig, tmp_path: Path) -> None:
    """With Adam in fp32, in mid-epoch."""
    adam = {"optimizer": {"kind": "adamw", "lr": 0.01}, "trainer.precision": "fp32"}
    config = changed(exact, {**adam, **FSDP})
    in_world(2, train, config, tmp_path / "whole")
    in_world(2, stopped, config, tmp_path / "run", 3)
    in_world(2, gone_on, config, [tmp_path / "run"], "fsdp")
    run, whole = (last(RunFolder(tmp_path / name)) for name in ("run", "whole"))
    for part in ("model", "ema", "optimizer"):
        assert_equal(getattr(run, part), getattr(whole, part), part)
    assert metrics(RunFolder(tmp_path / "run")) == metrics(RunFolder(tmp_path / "whole"))


@pytest.mark.slow
def test_the_command(exact: TrainConfig, tmp_path: Path) -> None:
    """One word makes two processes share the weights; then evaluate. And the average of the last two."""
    config = changed(exact, {"training.save_every": 2, "training.average_last": 2})
    whole, parts = (RunFolder(tmp_path / name) for name in ("whole", "parts"))
    finish([*words(changed(config, {"training.accumulate": 2})), f"run_dir={whole.path}"], tmp_path / "1.log")
    typed = [word for word in words(config) if not word.startswith("trainer")]
    typed += ["trainer=fsdp", "trainer.accelerator=cpu", "trainer.precision=fp64"]
    told = finish([*typed, f"run_dir={parts.path}"], tmp_path / "2.log", processes=2)
    assert "Warning" not in told
    assert_same_run(parts, whole)
    assert scores(parts) == scores(whole)
    average = [checkpoint.read(run.checkpoints / "average.ckpt").model for run in (parts, whole)]
    assert difference(*average) < 1e-9
    script = [sys.executable, str(CHECKOUT / "scripts" / "evaluate.py"), f"checkpoint={parts.path}"]
    subprocess.run(script, check=True, cwd=tmp_path, stdout=subprocess.DEVNULL)


def test_one_process_keeps_the_weights_whole(exact: TrainConfig, tmp_path: Path) -> None:
    one, other = (train(changed(exact, c), tmp_path / str(len(c))) for c in ({}, FSDP))
    assert_equal(last(one).model, last(other).model)


def test_muon_is_refused(exact: TrainConfig) -> None:
    config = changed(exact, {**FSDP, "optimizer": {"kind": "muon", "lr": 0.01}})
    with pytest.raises(UserError, match=r"optimizer=muon turns whole.*trainer\.strategy=ddp, or optimizer=a"):
        prepare.prepare(config)


def test_an_older_torch_is_refused(exact: TrainConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.12.1+cpu")
    prepare.refuse_sharded(exact)
    with pytest.raises(UserError, match=r"fsdp needs torch 2\.13, but here is 2\.12\.1"):
        prepare.refuse_sharded(changed(exact, FSDP))
