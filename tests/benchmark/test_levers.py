"""``benchmark.py levers``: that each lever is one, and that its figures are put together."""

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from minitrans.benchmark.contest import Spread
from minitrans.benchmark.levers import LEVERS, NAMES, PLAIN, measure_levers
from minitrans.errors import UserError
from minitrans.run import RunFolder, open_or_create
from minitrans.training.fit import fit
from minitrans.training.prepare import prepare
from tests.benchmark.small import small


def test_a_training_uses_every_piece_that_is_called_a_lever(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    words = ("trainer.precision=bf16", "optimizer=muon", "model.dropout=0.1")
    run = small(*words).training_run()
    run = dataclasses.replace(run, training=dataclasses.replace(run.training, max_updates=1))
    calls: Counter[str] = Counter()

    def counted(name: str, piece: Any) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            calls[name] += 1
            return piece(*given, **named)

        return call

    for lever in LEVERS:
        for module, name, _ in lever.exchanges:
            monkeypatch.setattr(module, name, counted(lever.name, getattr(module, name)))
    fit(run, open_or_create(RunFolder.of(tmp_path / "run")), prepare(run), None)
    assert set(calls) == set(NAMES)


def test_a_lever_puts_its_twin_into_place(monkeypatch: pytest.MonkeyPatch) -> None:
    for lever in LEVERS:
        for module, name, plain in lever.exchanges:
            monkeypatch.setattr(module, name, getattr(module, name))  # so that it comes back
            assert getattr(module, name) is not plain
        lever.exchange()
        assert all(getattr(module, name) is plain for module, name, plain in lever.exchanges)


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("training.fast=false", "training.fast=false turns off the pieces that levers measures"),
        ("trainer.precision=fp64", "trainer.precision=fp64 trains without the pieces that levers measures"),
        ("trainer.devices=2", "trainer.devices=2: a training is measured in one process"),
    ],
)
def test_a_training_without_levers_is_refused(word: str, sentence: str) -> None:
    with pytest.raises(UserError) as refused:
        measure_levers(small(word))
    assert str(refused.value).startswith(sentence)


@pytest.mark.slow
def test_two_levers_are_measured_alone_and_among_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minitrans.benchmark.levers.NAMES", NAMES[1:3])
    result = measure_levers(small())
    assert [gain.lever for gain in result.gains] == NAMES[1:3]
    for gain in result.gains:
        assert len(gain.alone.values) == len(gain.kept.values) == 2
        assert all(ratio > 0 for ratio in (*gain.alone.values, *gain.kept.values))
        assert gain.row()["kept"] == gain.kept.median
    assert result.plain.name == PLAIN
    assert isinstance(result.together, Spread)
