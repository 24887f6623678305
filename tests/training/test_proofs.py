"""The proofs of ``scripts/prove.py``: they hold, and each fails where its claim is broken."""

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from minitrans.cli import prove as command
from minitrans.cli.compose import Composed
from minitrans.config import TrainConfig
from minitrans.data.batching import Batch
from minitrans.errors import UserError
from minitrans.model import attention
from minitrans.model.transformer import Transformer
from minitrans.training import fit, proofs
from minitrans.training.module import TranslationModule
from minitrans.training.prepare import Material, first_batch, prepare
from minitrans.training.proofs import Proof
from tests.training.tiny import changed, tiny_experiment


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    return proofs._shortened(tiny_experiment(tmp_path_factory.mktemp("text")))


@pytest.fixture
def given(config: TrainConfig) -> tuple[Material, Batch]:
    """The model, and the batch that the first proofs are made on."""
    material = prepare(config)
    return material, first_batch(material.run_plan)


@pytest.mark.parametrize(("difference", "holds"), [(0.0, True), (1.0, True), (1.1, False), (math.nan, False)])
def test_a_verdict(difference: float, holds: bool) -> None:
    assert Proof("claim", "compared", difference, 1.0).holds is holds


def test_a_leak_is_found(config: TrainConfig, given: tuple[Material, Batch]) -> None:
    assert proofs._leaks(*given).holds
    leaky = prepare(changed(config, {"model.causal": False}))
    proof = proofs._leaks(leaky, given[1])
    assert not proof.holds
    assert proof.compared.startswith("the decoder sees future target tokens")


def test_a_cache_that_forgets_is_found(
    given: tuple[Material, Batch], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert proofs._cache(*given).holds
    step = Transformer.step

    def forgetful(self: Transformer, tgt: Any, cache: Any) -> Any:
        states, grown = step(self, tgt, cache)
        return states, dataclasses.replace(grown, layers=self.start_cache(*_source(given)).layers)

    monkeypatch.setattr(Transformer, "step", forgetful)
    assert not proofs._cache(*given).holds


def _source(given: tuple[Material, Batch]) -> tuple[torch.Tensor, torch.Tensor]:
    material, batch = given
    return material.model.encode(batch.src, batch.src_mask), batch.src_mask


def test_another_kernel_is_found(
    config: TrainConfig, given: tuple[Material, Batch], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert 0 < proofs._attention(config, *given).difference < 1e-5
    fused = attention.fused_attention
    monkeypatch.setattr(attention, "fused_attention", lambda *a, **k: fused(*a, **k) * 1.001)
    assert not proofs._attention(config, *given).holds


def test_a_twin_that_differs_is_found(
    config: TrainConfig, given: tuple[Material, Batch], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert proofs._fast(config, *given).holds
    losses = Transformer.nll

    def twin(self: Transformer, *arguments: Any) -> Any:
        smoothed, nll = losses(self, *arguments)
        return smoothed * (1.001 if self.fast else 1), nll

    monkeypatch.setattr(Transformer, "nll", twin)
    assert not proofs._fast(config, *given).holds


def test_a_mean_of_means_is_found(
    config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss of each micro-batch divided by its own tokens, as is often seen."""
    assert proofs._accumulation(config, tmp_path / "right").holds
    losses = TranslationModule.losses

    def mean(self: TranslationModule, batch: Batch) -> Any:
        smoothed, nll = losses(self, batch)
        return smoothed / batch.num_target_tokens, nll

    monkeypatch.setattr(TranslationModule, "losses", mean)
    assert not proofs._accumulation(config, tmp_path / "wrong").holds


def test_an_optimizer_that_starts_anew_is_found(
    config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proof = proofs._resume(config, tmp_path / "right")
    assert (proof.difference, proof.bound) == (0.0, 0.0)
    monkeypatch.setattr(fit.RestoreOptimizer, "on_train_start", lambda *arguments: None)
    assert not proofs._resume(config, tmp_path / "wrong").holds


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["auto", "fsdp"])
def test_processes_change_nothing(config: TrainConfig, tmp_path: Path, strategy: str) -> None:
    """Not even with dropout, in real processes, whose weights are whole or in parts."""
    proof = proofs._processes(changed(config, {"trainer.strategy": strategy}), tmp_path)
    assert proof.difference < 1e-12
    assert ("parts of the weights" in proof.compared) == (strategy == "fsdp")


def test_the_table(
    config: TrainConfig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A claim that fails stands in the table, and makes the command fail."""

    def two(config: TrainConfig, folder: Path) -> Iterator[Proof]:
        yield Proof("One", "this", 1e-9, 1e-6)
        yield Proof("Two", "that", 0.5, 1e-6)

    monkeypatch.setattr(proofs, "prove", two)
    with pytest.raises(UserError, match=r"^1 of 2 claims failed here: Two$"):
        command._prove(Composed(config, {}))
    rows = [[cell.strip() for cell in row.split("│")[1:-1]] for row in capsys.readouterr().out.splitlines()]
    assert ["One", "this", "1.0e-09 (allowed 1e-06)", "holds"] in rows
    assert ["Two", "that", "5.0e-01 (allowed 1e-06)", "FAILS"] in rows
