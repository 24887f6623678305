"""COMET by a stand-in of its package, which downloads 2 GB."""

import importlib.metadata
import sys
import types
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from minitrans.errors import UserError
from minitrans.evaluation import comet as module
from minitrans.evaluation.comet import comet, installed

SCORES = [0.25, 0.5, 1.0, 0.75]


def package(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Install a stand-in; returns what its model is asked to score."""
    asked: list[dict[str, Any]] = []

    class Scorer:
        def predict(self, data: Sequence[dict[str, Any]], **settings: Any) -> dict[str, Any]:
            assert settings == {"batch_size": 16, "gpus": 0, "progress_bar": False}
            asked.extend(data)
            return {"scores": SCORES, "system_score": float(np.mean(SCORES))}

    def download_model(name: str) -> str:
        if name != "owner/model":
            raise KeyError(f"no model\n{name}.")
        return "path.ckpt"

    stand_in = types.ModuleType("comet")
    vars(stand_in).update(download_model=download_model, load_from_checkpoint=lambda path: Scorer())
    monkeypatch.setitem(sys.modules, "comet", stand_in)
    monkeypatch.setattr(module, "installed", lambda: True)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: {"unbabel-comet": "2.2.7"}[name])
    return asked


def test_the_mean_of_the_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = package(monkeypatch)
    score = comet("abcd", "efgh", "ijkl", "owner/model", gpus=0)
    assert asked[1] == {"src": "b", "mt": "f", "ref": "j"}
    assert score.value == 0.625
    assert score.signature == "model:owner/model|bs:1000|seed:12345|version:2.2.7"
    stats = pytest.importorskip("scipy.stats", reason="scipy is not installed")
    expected = stats.bootstrap(
        (SCORES,), np.mean, n_resamples=20000, method="percentile", rng=np.random.default_rng(1)
    ).confidence_interval
    assert (score.low, score.high) == pytest.approx((expected.low, expected.high), abs=0.04)


def test_a_model_that_cannot_be_had_is_told_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    package(monkeypatch)
    with pytest.raises(UserError, match=r"^the COMET model x cannot be loaded: 'no model.*; check its name"):
        comet("a", "b", "c", "x", gpus=0)


@pytest.mark.skipif(installed(), reason="unbabel-comet is installed here")
def test_without_the_package_the_sentence_says_what_to_install() -> None:
    with pytest.raises(UserError, match=r"^comet=owner/model needs .* pip install unbabel-comet, or leave"):
        comet("a", "b", "c", "owner/model", gpus=0)
