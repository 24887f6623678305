"""One update is the same update however it is split: over processes, over micro-batches, over both."""

import csv
from pathlib import Path
from typing import Any

import pytest
import torch

from minitrans import checkpoint
from minitrans.config import TrainConfig
from minitrans.decoding import translator
from minitrans.evaluation import loss
from minitrans.processes import Processes
from minitrans.run import RunFolder
from minitrans.training.module import TranslationModule
from minitrans.training.prepare import prepare
from minitrans.training.validation import Validation
from tests.distributed.world import in_world
from tests.training.tiny import changed, tiny_experiment, train, write_rows

ACCUMULATE = (1, 2, 4)
WORLDS = (1, 2, 4)
Metrics = list[dict[str, str]]


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    """Plain SGD in float64 without dropout, over ragged pairs; 9 updates an epoch, the last of one pair."""
    config = tiny_experiment(tmp_path_factory.mktemp("text"))
    rows = [["eins"] * length for length in (7, 1, 3, 2, 6, 6, 1, 5, 4)] + [["zwei", "drei"]] * 24
    files = write_rows(tmp_path_factory.mktemp("ragged"), "train", rows)
    settings = {"data.train": files, "optimizer": {"kind": "sgd", "lr": 0.5}, "model.dropout": 0.0}
    size = {"training.update_sentences": 4, "training.max_updates": 10, "training.validate_every": 5}
    schedule = {"kind": "constant", "warmup_updates": 1}
    return changed(config, {**settings, **size, "schedule": schedule, "trainer.precision": "fp64"})


def metrics(folder: RunFolder) -> Metrics:
    with folder.metrics.open(newline="") as file:
        kept = ("update", "epoch", "split", "loss", "nll", "bleu", "lr", "grad_norm")
        return [{name: row[name] for name in kept} for row in csv.DictReader(file)]


def last(folder: RunFolder) -> checkpoint.Checkpoint:
    return checkpoint.read(folder.checkpoints / "last.ckpt")


def trained(configs: dict[str, TrainConfig], root: Path) -> dict[str, Path]:
    """One run for each configuration, by this process or by the world that it belongs to."""
    return {name: train(config, root / name).path for name, config in configs.items()}


def difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def assert_close(one: Metrics, other: Metrics) -> None:
    """The same rows to the seven digits that are written; scores of words to the last one."""
    assert len(one) == len(other)
    for left, right in zip(one, other, strict=True):
        for name in left:
            if name in ("loss", "nll", "grad_norm") and left[name]:
                assert float(left[name]) == pytest.approx(float(right[name]), rel=1e-6), (name, left, right)
            else:
                assert left[name] == right[name], (name, left, right)


@pytest.mark.slow
def test_every_split_of_the_updates_is_the_same_run(exact: TrainConfig, tmp_path: Path) -> None:
    """The grid: processes x accumulation. Also BR-08: the ninth update, of one pair, weighs no less."""
    grid = {f"accumulate{n}": changed(exact, {"training.accumulate": n}) for n in ACCUMULATE}
    alone = trained(grid, tmp_path / "alone")
    whole = RunFolder(alone["accumulate1"])
    assert [row["update"] for row in metrics(whole) if row["split"] == "valid"] == ["5", "10"]
    start = difference(last(whole).model, last(_untrained(exact, tmp_path)).model)
    assert start > 0.1  # the comparison can fail
    for world_size in WORLDS:
        runs = in_world(world_size, trained, grid, tmp_path / f"world{world_size}")[0]
        for path in runs.values():
            assert difference(last(RunFolder(path)).model, last(whole).model) < 1e-6
            assert_close(metrics(RunFolder(path)), metrics(whole))


def _untrained(config: TrainConfig, root: Path) -> RunFolder:
    frozen = {"optimizer": {"kind": "sgd", "lr": 1e-30}, "training.max_updates": 1}
    return train(changed(config, frozen), root / "untrained")


@pytest.mark.slow
def test_with_dropout_four_processes_are_four_micro_batches(exact: TrainConfig, tmp_path: Path) -> None:
    """The noise follows (seed, update, micro-batch); another number of micro-batches draws another one."""
    config = changed(exact, {"model.dropout": 0.3, "training.max_updates": 6})
    one, four = (changed(config, {"training.accumulate": n}) for n in (1, 4))
    alone = {name: RunFolder(p) for name, p in trained({"1": one, "4": four}, tmp_path / "alone").items()}
    runs = in_world(4, trained, {"1": one}, tmp_path / "four")[0]
    assert difference(last(RunFolder(runs["1"])).model, last(alone["4"]).model) < 1e-6
    assert_close(metrics(RunFolder(runs["1"])), metrics(alone["4"]))
    assert difference(last(alone["1"]).model, last(alone["4"]).model) > 1e-4


def test_tokens_weigh_the_same_in_every_process(exact: TrainConfig, tmp_path: Path) -> None:
    """BR-07: one update at rate 1, targets of 3 tokens on one process and of 9 on the other."""
    pairs = write_rows(tmp_path, "two", [["eins"] * 2, ["zwei"] * 8])
    size = {"training.update_sentences": 2, "training.max_updates": 1}
    config = changed(exact, {"data.train": pairs, "optimizer.lr": 1.0, **size})
    alone = RunFolder(trained({"run": config}, tmp_path / "alone")["run"])
    two = RunFolder(in_world(2, trained, {"run": config}, tmp_path / "two")[0]["run"])
    assert difference(last(two).model, last(alone).model) < 1e-6
    assert_close(metrics(two), metrics(alone))
    assert last(two).progress.target_tokens == 12


def test_a_gradient_is_clipped_once_over_all_processes(exact: TrainConfig, tmp_path: Path) -> None:
    """BR-10: at norm 0.01 and rate 1 each update moves the weights by 0.01, whatever the split."""
    config = changed(exact, {"training.clip_norm": 0.01, "optimizer.lr": 1.0, "training.max_updates": 1})
    before = last(_untrained(config, tmp_path)).model
    for world_size in (1, 2):
        grid = {str(n): changed(config, {"training.accumulate": n}) for n in (1, 2)}
        for path in in_world(world_size, trained, grid, tmp_path / str(world_size))[0].values():
            moved = last(RunFolder(path)).model
            names = {tensor.data_ptr(): name for name, tensor in moved.items()}.values()  # tied ones once
            norm = sum(float((moved[name] - before[name]).pow(2).sum()) for name in names) ** 0.5
            assert norm == pytest.approx(0.01, rel=1e-4)
            assert float(metrics(RunFolder(path))[0]["grad_norm"]) > 0.1


def lines_used(config: TrainConfig, root: Path) -> list[tuple[int, tuple[int, ...]]]:
    """The epoch and the lines of each update that this process works on."""
    used = []
    record = TranslationModule._record

    def watch(self: TranslationModule, *arguments: Any) -> None:
        record(self, *arguments)
        used.append((self.report.epoch, self.report.lines))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TranslationModule, "_record", watch)
        train(config, root)
    return used


def test_every_pair_is_used_once_an_epoch_over_all_processes(exact: TrainConfig, tmp_path: Path) -> None:
    """BR-19: 10 pairs, 2 an update (5 updates), 2 processes, 2 epochs; twice."""
    pairs = write_rows(tmp_path, "ten", [["eins"] * (1 + i % 3) for i in range(10)])
    size = {"training.update_sentences": 2, "training.max_updates": 10, "training.max_epochs": 2}
    config = changed(exact, {"data.train": pairs, **size})
    first, second = (in_world(2, lines_used, config, tmp_path / str(i)) for i in range(2))
    for epoch in (1, 2):
        used = [line for rank in first for number, lines in rank if number == epoch for line in lines]
        assert sorted(used) == list(range(10))
    assert all([number for number, _ in rank] == [1] * 5 + [2] * 5 for rank in first)
    assert [lines for _, lines in first[0][:5]] != [lines for _, lines in first[0][5:]]
    assert first == second


def test_scores_do_not_depend_on_the_number_of_processes(exact: TrainConfig, tmp_path: Path) -> None:
    """30 sentences in batches that the processes share: the same numbers to the last digit, and one file."""
    files = write_rows(tmp_path, "valid", [["vier", "acht", "neun", "eins"][: 1 + i % 4] for i in range(30)])
    config = changed(exact, {"data.valid": files, "training.validate_every": 1, "training.max_updates": 2})
    runs = [in_world(n, scored, config) for n in WORLDS]
    assert all(scores == runs[0][0] for run in runs for scores in run)
    assert len(runs[0][0]) == 3 + 30


def scored(config: TrainConfig) -> dict[Any, Any]:
    """The validation scores of an untrained model, by this world, in batches of few sentences."""
    processes = Processes(torch.distributed.get_rank(), torch.distributed.get_world_size())
    material = prepare(config)
    batches = loss.evaluation_batches
    with pytest.MonkeyPatch.context() as patch:
        for module in (loss, translator):
            patch.setattr(module, "evaluation_batches", lambda lengths, tokens: batches(lengths, 24))
        scores = Validation(material, config.search, None, processes).run(material.model)
    return scores.row() | dict(enumerate(scores.translations))
