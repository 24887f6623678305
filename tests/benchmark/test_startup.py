"""``benchmark.py startup``: a real start in a process of its own, and its words."""

import pytest

from minitrans.benchmark.contest import Spread
from minitrans.benchmark.settings import BenchmarkConfig
from minitrans.benchmark.startup import PARTS, Start, StartupResult, _reason, measure_startup, training_words
from minitrans.cli.compose import compose
from minitrans.config import TrainConfig
from minitrans.errors import UserError
from tests.benchmark.small import WORDS


@pytest.mark.slow
def test_a_start_is_divided_into_its_parts() -> None:
    composed = compose("benchmark", [*WORDS, "windows=1"], BenchmarkConfig)
    row = measure_startup(composed.config, composed.typed).row()
    assert row["parts_s"].keys() == row["cold_parts_s"].keys() == PARTS.keys()
    assert min(row["parts_s"].values()) > 0
    assert sum(row["parts_s"].values()) == pytest.approx(row["first_update_s"], abs=1e-9)
    assert sum(row["cold_parts_s"].values()) == pytest.approx(row["cold_first_update_s"], abs=1e-9)
    assert row["help_s"] > 0


@pytest.mark.slow
def test_what_training_refuses_is_said_in_its_words() -> None:
    composed = compose("benchmark", ["data.root=/nowhere/at/all"], BenchmarkConfig)
    with pytest.raises(UserError, match=r"^data\.root=/nowhere/at/all is not a folder; check the path$"):
        measure_startup(composed.config, composed.typed)


def test_the_reason_is_the_last_line_of_the_command() -> None:
    assert _reason("a warning\nerror: no such file\n\n") == "no such file"
    assert _reason("\n") == "the training made no update and said nothing"


def test_the_words_of_the_benchmark_are_left_out() -> None:
    words = [
        "task=startup",
        "seconds=3",
        "decode.length=4",
        "model=tiny",
        "optimizer.betas=[0.9,0.99]",
        "model.d_k=null",
        "model.bias=false",
        "data.extra_tests={new:a b}",
        "seed=3",
    ]
    typed = compose("benchmark", words, BenchmarkConfig).typed
    assert training_words(typed) == [
        "model=tiny",
        "optimizer.betas=[0.9,0.99]",
        "model.d_k=null",
        "model.bias=false",
        'data.extra_tests={test_novel:"test_novel",new:"a b"}',  # as it was composed
        "seed=3",
    ]


def test_a_comma_in_a_path_stays_a_part_of_it() -> None:
    words = ["data=pairs", 'data.train=["a,b.en","c d.de"]', "data.src=en", "data.tgt=de"]
    typed = compose("benchmark", words, BenchmarkConfig).typed
    assert compose("train", training_words(typed), TrainConfig).typed == typed


def test_the_start_in_the_middle_is_shown() -> None:
    starts = tuple(Start({"imports": seconds, "data": 1.0}) for seconds in (5.0, 2.0, 3.0))
    result = StartupResult(Start({"imports": 9.0}), starts, Spread((0.5,)))
    assert result.warm_parts == {"imports": 3.0, "data": 1.0}
    assert result.row()["first_update_s"] == 4.0
