"""``benchmark.py train`` on a tiny model: what is counted, not how fast it was."""

import json
from pathlib import Path

import pytest

from minitrans.benchmark.counts import Counts
from minitrans.benchmark.train import (
    PARTS,
    LastTrainingWord,
    TrainingResult,
    Window,
    dtype_of,
    measure_training,
)
from minitrans.errors import UserError
from tests.benchmark.small import small


@pytest.mark.slow
def test_a_training_is_measured(tmp_path: Path) -> None:
    (result,) = measure_training(small(f"profile={tmp_path}"))
    row = result.row()
    numbers = ("target_tokens_per_s", "padding_fraction", "mfu", "peak_rss_mb", "flops_per_s")
    assert all(isinstance(row[key], float) and row[key] > 0 for key in numbers)
    assert (row["threads"], row["dtype"], row["name"]) == (1, "fp32", "minitrans")
    assert row["padding_fraction"] < 1
    assert len(row["windows"]) == 2
    assert result.counts.updates == 2
    assert 0 < result.counts.tgt_tokens <= 2 * 512

    shares = row["shares"]
    assert sum(shares.values()) == pytest.approx(1.0, abs=1e-9)
    assert set(shares) == {part for _, _, part in PARTS}
    assert min(shares.values()) > 0

    assert len(result.last.operations) == 10
    assert [one.share for one in result.last.operations] == sorted(
        (one.share for one in result.last.operations), reverse=True
    )
    assert json.loads((tmp_path / "train.json").read_text(encoding="utf8"))["traceEvents"]


@pytest.mark.slow
def test_rivals_train_on_the_same_batches_in_turn() -> None:
    *rivals, ours = measure_training(small("peers=true"))
    torch_transformer = next(rival for rival in rivals if rival.name.startswith("torch.nn.Transformer"))
    assert torch_transformer.dtype == ours.dtype == "fp32"
    counts = [[window.counts for window in result.windows] for result in (torch_transformer, ours)]
    assert [one.updates for one in counts[0]] == [1, 1]
    assert counts[0] == counts[1]
    assert (torch_transformer.last.shares, set(ours.last.shares)) == ({}, {part for _, _, part in PARTS})
    assert ours.target_tokens_per_s.over(torch_transformer.target_tokens_per_s).median > 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["trainer.devices=2"],
            "trainer.devices=2: a training is measured in one process; type benchmark.py scaling",
        ),
        (["data.root=/nowhere/at/all"], "data.root=/nowhere/at/all is not a folder"),
    ],
)
def test_a_bad_word_is_one_sentence(words: list[str], sentence: str) -> None:
    with pytest.raises(UserError) as refused:
        measure_training(small(*words))
    assert str(refused.value).startswith(sentence)


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", "fp32"), ("bf16", "bf16"), ("fp64", "fp64")])
def test_the_type_is_that_of_the_activations(precision: str, dtype: str) -> None:
    assert dtype_of(small(f"trainer.precision={precision}").training_run()) == dtype


def test_the_training_measured_is_the_experiment_without_its_pauses() -> None:
    config = small("model.dropout=0.25", "training.label_smoothing=0.2", "seed=5")
    run = config.training_run()
    assert (run.model.dropout, run.training.label_smoothing, run.seed, run.threads) == (0.25, 0.2, 5, 1)
    assert run.training.update_tokens == 512
    pauses = (run.training.max_updates, run.training.validate_every, run.training.save_every)
    assert pauses == (10**9, 10**9, 10**9)


def test_the_figures_of_windows_are_put_together() -> None:
    windows = tuple(
        Window(
            seconds,
            seconds / 2,
            Counts(updates=2, pairs=1, tgt_tokens=120, src_tokens=60, positions=200),
            600,
            peak,
        )
        for seconds, peak in ((1.0, 1000.0), (2.0, 4000.0), (3.0, 2000.0))
    )
    last = LastTrainingWord(
        base_rss_mb=1.0,
        peak_rss_mb=2.0,
        peak_gpu_mb=0.0,
        parameters=7,
        threads=1,
        shares={"other": 1.0},
        operations=[],
        trace=None,
    )
    row = TrainingResult("minitrans", "fp32", windows, last).row()
    assert row["windows"] == [120.0, 60.0, 40.0]
    assert (row["target_tokens_per_s"], row["target_tokens_per_cpu_s"]) == (60.0, 120.0)
    assert row["spread"] == 80 / 60
    assert (row["flops_per_s"], row["peak_flops_per_s"], row["mfu"]) == (300.0, 4000.0, 0.075)
    assert (row["updates_per_s"], row["target_tokens_per_update"]) == (1.0, 60.0)
    assert row["padding_fraction"] == pytest.approx(0.1)
    assert (row["parameters"], row["peak_rss_mb"]) == (7, 2.0)
