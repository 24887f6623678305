"""``benchmark.py decode`` on a tiny model: forced lengths, counts, parts; not how fast it was."""

from pathlib import Path

import pytest
import torch

from minitrans.benchmark.decode import (
    DecodingResult,
    Watched,
    _batches,
    decoding_job,
    measure_decoding,
    search_settings,
)
from minitrans.build import build_model
from minitrans.data.batching import padded
from minitrans.decoding.search import search
from minitrans.errors import UserError
from minitrans.model.masks import padding_mask
from tests.benchmark.small import small

FEW = ["decode.sentences=7", "decode.batch_sentences=3", "decode.length=6"]


def measured(*words: str) -> list[list[DecodingResult]]:
    config = small(*words)
    return list(measure_decoding(config, decoding_job(config, {})))


@pytest.mark.slow
def test_a_search_is_measured_with_forced_lengths(tmp_path: Path) -> None:
    words = ("decode.beam_sizes=[3]", f"profile={tmp_path}")
    ((result,),) = measured(*FEW, *words)
    row = result.row()
    assert (row["sentences"], row["output_tokens"], row["beam_size"]) == (7, 7 * 6, 3)
    assert row["steps_per_output_token"] == 1.0  # six steps and one for the end, of six tokens and the end
    assert row["sentences_per_s"] > 0 and row["output_tokens_per_s"] > 0 and row["peak_rss_mb"] > 0
    assert set(row["shares"]) == {"encoder", "decoder", "softmax", "bookkeeping"}
    assert sum(row["shares"].values()) == pytest.approx(1.0, abs=1e-9)
    assert (row["threads"], row["dtype"], row["length"]) == (1, "fp32", 6)
    assert len(row["windows"]) == 2
    assert len(result.last.operations) == 10
    assert result.last.trace == tmp_path / "decode-beam3-fp32.json"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize("length", [1, 9, 300])
def test_every_output_has_exactly_the_forced_length(beam_size: int, length: int, dtype: torch.dtype) -> None:
    config = small(f"decode.length={length}")
    model = build_model(config, 40, 40).eval().to(dtype)
    src = padded([[5], [7, 8, 9, 10, 11]], end=True)
    found = search(model, src, padding_mask(src, 0), search_settings(config, beam_size))
    assert [len(one.tokens) for one in found] == [length, length]


def test_without_a_length_the_search_is_the_configured_one() -> None:
    config = small("decode.length=null", "search.alpha=0.3")
    assert search_settings(config, 5) == config.search
    assert search_settings(config, 1) == config.search.greedy()


def test_watching_changes_nothing_and_counts_the_steps_of_sentences() -> None:
    config = small("decode.length=4")
    model = build_model(config, 40, 40).eval()
    watched = Watched(model)
    src = padded([[5], [7, 8, 9]], end=True)
    settings = search_settings(config, 3)
    args = (src, padding_mask(src, 0), settings)
    assert search(watched, *args) == search(model, *args)
    assert watched.sentence_steps == 2 * (4 + 1)


def test_like_lengths_stand_together_the_longest_first() -> None:
    rows = [[1], [2, 2, 2], [3, 3], [4, 4, 4], [5]]
    assert _batches(rows, 2) == [[[2, 2, 2], [4, 4, 4]], [[3, 3], [1]], [[5]]]


def test_a_type_that_no_search_has_is_refused() -> None:
    with pytest.raises(UserError, match=r"^trainer.precision=fp64 cannot be measured by decode"):
        measured("trainer.precision=fp64")


def test_nothing_to_measure_and_a_gpu_that_is_not_there_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"^decode\.beam_sizes=\[\] measures nothing; name beams"):
        measured("decode.beam_sizes=[]")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match=r"^trainer\.accelerator=gpu, but torch finds no GPU here"):
        measured("trainer.accelerator=gpu")


@pytest.mark.parametrize("fast", [True, False])
def test_the_switch_turns_off_what_is_fast_in_the_search_too(fast: bool) -> None:
    config = small(f"training.fast={fast}")
    assert decoding_job(config, {}).model().fast is fast


def test_a_split_that_is_not_there_is_named() -> None:
    with pytest.raises(UserError, match='the data has no split "tset"; did you mean "test"'):
        measured("decode.split=tset")
