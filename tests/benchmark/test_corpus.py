"""``benchmark.py data``: what is counted of tokenising, planning and feeding."""

import os

import numpy as np
import pytest

from minitrans.benchmark.corpus import LONGEST, _empty_cache, generated_lengths, measure_data
from minitrans.data.plan import plan
from tests.benchmark.small import small


@pytest.mark.slow
def test_the_way_of_the_data_is_measured() -> None:
    config = small("corpus.pairs=5000", "windows=1")
    row = measure_data(config).row()
    assert (row["sentences"], row["planned_pairs"]) == (2 * 20000, 5000)
    lengths = generated_lengths(5000, seed=1)
    updates = plan(lengths, update_tokens=512, chunk_tokens=512, seed=1, epoch=1)
    assert row["planned_updates"] == len(updates)
    for key in ("tokenised_sentences_per_s", "library_sentences_per_s", "feed_tokens_per_s", "plan_s"):
        assert isinstance(row[key], float) and row[key] > 0
    assert row["plan_peak_rss_mb"] >= row["plan_base_rss_mb"] > 0


def test_generated_lengths_are_those_of_sentences_and_repeat() -> None:
    lengths = generated_lengths(10_000, seed=3)
    assert np.array_equal(lengths, generated_lengths(10_000, seed=3))
    assert lengths.shape == (10_000, 2)
    assert lengths.min() >= 2 and lengths.max() <= LONGEST
    assert np.median(lengths) == pytest.approx(np.exp(2.9), rel=0.05)
    assert np.corrcoef(lengths.T)[0, 1] > 0.9


def test_the_cache_is_another_one_inside_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINITRANS_CACHE", "mine")
    with _empty_cache():
        assert os.listdir(os.environ["MINITRANS_CACHE"]) == []
    assert os.environ["MINITRANS_CACHE"] == "mine"
    monkeypatch.delenv("MINITRANS_CACHE")
    with _empty_cache():
        assert "MINITRANS_CACHE" in os.environ
    assert "MINITRANS_CACHE" not in os.environ
