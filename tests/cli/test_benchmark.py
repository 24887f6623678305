"""The command ``benchmark``: its words, its last line, its sentences."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from minitrans.benchmark import scaling
from minitrans.benchmark.scaling import Point
from minitrans.benchmark.settings import BenchmarkConfig
from minitrans.cli.argv import Words, read
from minitrans.cli.benchmark import benchmark
from minitrans.cli.main import run_main
from minitrans.errors import UserError
from minitrans.processors import MOST_A_PROCESSOR
from tests.benchmark.small import WORDS

BENCHMARK = Words.of("benchmark", BenchmarkConfig)


def run(*words: str) -> int:
    return run_main(benchmark, "benchmark", BenchmarkConfig, [*words])


def test_the_first_word_may_be_the_task_alone() -> None:
    assert read(["decode", "seconds=3"], BENCHMARK).values == {"task": "'decode'", "seconds": "3"}
    assert read(["task=decode"], BENCHMARK).values == {"task": "'decode'"}
    assert read([], BENCHMARK).values == {}


@pytest.mark.slow
def test_the_last_line_of_train_is_the_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train", *WORDS) == 0
    *_, machine, last = capsys.readouterr().out.splitlines()
    row = json.loads(last)
    kinds = {
        "target_tokens_per_s": float,
        "padding_fraction": float,
        "mfu": float,
        "peak_rss_mb": float,
        "threads": int,
        "dtype": str,
    }
    assert {key: type(row[key]) for key in kinds} == kinds
    assert json.loads(machine)["benchmark"] == "machine"


@pytest.mark.slow
def test_the_last_line_of_decode_is_the_figures_of_the_widest_beam(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("decode", *WORDS, "decode.sentences=4", "decode.length=3", "decode.beam_sizes=[1,2]") == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert [line.get("beam_size") for line in lines] == [None, 1, 2]
    for key in ("sentences_per_s", "output_tokens_per_s", "peak_rss_mb", "steps_per_output_token"):
        assert isinstance(lines[-1][key], float)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["decod"], 'error: the configuration: task cannot be "decod"; did you mean "decode"?\n'),
        (["train", "run_dir=x"], "error: run_dir is a key of train, not of benchmark; leave it out\n"),
        (["train", "seconds=0"], "error: the configuration: seconds is 0.0, but must be above 0\n"),
        (
            ["decode", "checkpoint=runs/x", "model=tiny"],
            "error: model cannot stand beside checkpoint=, which fixes it; leave one of them out\n",
        ),
        (
            ["decode", "checkpoint=nowhere"],
            f"error: the checkpoint {Path.cwd() / 'nowhere'} does not exist; "
            "give a .ckpt file or a run folder\n",
        ),
        (
            ["decode", "checkpoint=runs/x", "training.fast=false"],
            "error: training.fast cannot stand beside checkpoint=, which fixes it; leave one of them out\n",
        ),
        (
            ["train", "checkpoint=runs/x"],
            "error: checkpoint means nothing to benchmark.py train, but to decode; leave it out\n",
        ),
        (
            ["levers", "peers=true"],
            "error: peers means nothing to benchmark.py levers, but to train and decode; leave it out\n",
        ),
        (
            ["startup", "decode.beam_sizes=[1]"],
            "error: decode.beam_sizes means nothing to benchmark.py startup, but to decode; leave it out\n",
        ),
        (
            ["decode", "search.beam_size=3"],
            "error: search.beam_size means nothing to benchmark.py decode; type decode.beam_sizes=[…]\n",
        ),
        (
            ["decode", "search.max_length=30"],
            "error: search.max_length means nothing where decode.length=20 is every translation's length; "
            "type decode.length=null beside it, or leave it out\n",
        ),
        (
            ["decode", "decode.beam_sizes=[1,10001]"],
            "error: the configuration: decode.beam_sizes[1] is 10001, "
            "but must be at least 1 and at most 10000\n",
        ),
        (
            ["scaling", "model=tiny", "scaling.widths=[64,65]"],
            "error: 65 cannot stand in scaling.widths: model.d_model=65 is not a multiple of "
            "model.num_heads=2; change one of them or give model.d_k\n",
        ),
        (
            ["scaling", "scaling.processes=[1,9999]"],
            f"error: scaling.processes=9999 is more than this machine's processors can bear; "
            f"use scaling.processes={MOST_A_PROCESSOR * (os.cpu_count() or 1)} or fewer\n",
        ),
        (
            ["train", f"profile={__file__}"],
            f"error: profile={__file__} is no folder that can be written into: File exists; give another\n",
        ),
        (
            ["scaling", "scaling.output_dir=/proc/here"],
            "error: scaling.output_dir=/proc/here is no folder that can be written into: "
            "No such file or directory; give another\n",
        ),
    ],
)
def test_a_mistake_is_one_sentence(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmark.py"])
    assert run(*words) == 2
    assert capsys.readouterr().err == sentence


@pytest.mark.parametrize(
    ("stop", "status"),
    [(KeyboardInterrupt(), 130), (UserError("no memory"), 2)],
    ids=["interrupted", "failed"],
)
def test_what_was_measured_is_printed_where_the_rest_is_not(
    stop: BaseException,
    status: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def two_points(config: BenchmarkConfig) -> Iterator[Point]:
        yield Point("length", 8, seconds=0.5, work=7.0)
        yield Point("length", 16, seconds=0.25, work=9.0)
        raise stop

    monkeypatch.setattr(scaling, "measure_scaling", two_points)
    assert run("scaling", f"scaling.output_dir={tmp_path}") == status
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert rows[0]["benchmark"] == "machine"
    assert [(row["value"], row["seconds"]) for row in rows[1:]] == [(8, 0.5), (16, 0.25)]


@pytest.mark.slow
def test_a_request_to_end_leaves_no_process_and_no_folder(tmp_path: Path) -> None:
    script = Path(__file__).resolve().parents[2] / "scripts" / "benchmark.py"
    words = [*WORDS, "seconds=1000"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    running = subprocess.Popen(
        [sys.executable, str(script), "train", *words], env=environment, stderr=subprocess.PIPE, text=True
    )
    end = time.monotonic() + 120
    while not list(tmp_path.glob("minitrans-benchmark-*/*")):  # the training's folder: it has begun
        assert running.poll() is None and time.monotonic() < end
        time.sleep(0.1)
    running.send_signal(signal.SIGTERM)
    _, said = running.communicate(timeout=60)  # which waits for all who could write to its standard error
    assert (running.returncode, said) == (130, "interrupted\n")
    assert not list(tmp_path.glob("minitrans-benchmark-*"))
