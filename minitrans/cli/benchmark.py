"""``scripts/benchmark.py``: how fast training, translating, starting and preparing are here.

Tables for people, then JSON lines for programs: the last line printed is always one of them.
"""

import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minitrans.benchmark.settings import BenchmarkConfig
from minitrans.cli.argv import FIXED
from minitrans.cli.compose import Composed
from minitrans.cli.main import run_main
from minitrans.errors import UserError
from minitrans.signals import handled_by, interrupt

if TYPE_CHECKING:
    from minitrans.console import Console

WIDTH = 120  # of tables that go into a file

# Prints the tables of one task, and hands out its JSON lines, each once it is known.
Rows = Iterator[dict[str, Any]]
Task = Callable[[Composed[BenchmarkConfig], "Console"], Rows]


def main() -> int:
    """Measure; returns the exit status."""
    return run_main(benchmark, "benchmark", BenchmarkConfig)


def benchmark(composed: Composed[BenchmarkConfig]) -> None:
    """Measure one task."""
    # torch takes seconds to import: --help and a mistyped key should not wait for it
    import dataclasses

    from minitrans.benchmark.machine import describe
    from minitrans.benchmark.report import json_line
    from minitrans.console import Console
    from minitrans.processors import refuse_unbearable

    _refuse_unused(composed)
    if composed.config.profile:
        writable_folder(composed.config.profile, "profile")
    refuse_unbearable(composed.config.threads)
    for threads in composed.config.scaling.threads:
        refuse_unbearable(threads, "scaling.threads")
    for processes in composed.config.scaling.processes:
        refuse_unbearable(processes, "scaling.processes")
    console = Console()
    if not console.is_terminal:
        console.width = WIDTH
    machine = describe()
    console.print(str(machine), highlight=False, soft_wrap=True)
    rows: list[dict[str, Any]] = []
    try:
        with handled_by(interrupt, (signal.SIGTERM,)):  # so that no process and no folder is left behind
            for row in TASKS[composed.config.task](composed, console):
                rows.append(row)
    finally:  # what is known is printed too where the rest was not waited for, or failed
        if rows:
            for row in [{"benchmark": "machine", **dataclasses.asdict(machine)}, *rows]:
                print(json_line(row), flush=True)


def _refuse_unused(composed: Composed[BenchmarkConfig]) -> None:
    """Stop where something is typed of which the task makes nothing."""
    for key in composed.typed:
        tasks = OF_SOME_TASKS.get(key.split(".")[0], TASKS)
        if composed.config.task not in tasks:
            raise UserError(
                f"{key} means nothing to benchmark.py {composed.config.task}, but to {' and '.join(tasks)}; "
                "leave it out"
            )


def probe(begun: float) -> int:
    """Start a training and end it with its first update: what ``startup`` runs in a process of its own."""
    from minitrans.benchmark.probe import watch
    from minitrans.cli.train import main

    return watch(main, begun)


def _train(composed: Composed[BenchmarkConfig], console: "Console") -> Rows:
    from minitrans.benchmark.peers.training import absent
    from minitrans.benchmark.report import operations_table, ratios, shares_table, training_table
    from minitrans.benchmark.train import measure_training

    config = composed.config
    if config.peers:
        for sentence in absent():
            console.print(sentence, highlight=False, soft_wrap=True)
    results = measure_training(config)
    *others, ours = results
    console.print(training_table(results))
    console.print(shares_table("part of an update", ours.last.shares))
    if ours.last.operations:
        console.print(operations_table(ours.last.operations))
        console.print(f"trace: {ours.last.trace}", highlight=False, soft_wrap=True)
    theirs = {other.name: other.target_tokens_per_s for other in others}
    yield from (other.row() for other in others)
    yield {**ours.row(), "ratios": ratios(ours.target_tokens_per_s, theirs)}


def _levers(composed: Composed[BenchmarkConfig], console: "Console") -> Rows:
    from minitrans.benchmark.levers import measure_levers
    from minitrans.benchmark.report import levers_table

    result = measure_levers(composed.config)
    console.print(levers_table(result))
    yield from (gain.row() for gain in result.gains)
    yield {"benchmark": "levers", "lever": "all together", "alone": result.together.median}


def _decode(composed: Composed[BenchmarkConfig], console: "Console") -> Rows:
    from minitrans.benchmark.decode import OURS, decoding_job, measure_decoding
    from minitrans.benchmark.peers.decoding import absent
    from minitrans.benchmark.report import decoding_table, operations_table, ratios, shares_table

    config = composed.config
    _refuse_model_keys(composed)
    _refuse_replaced(composed)
    job = decoding_job(config, composed.typed)
    if config.peers:
        for sentence in absent(job.experiment, job.length):
            console.print(sentence, highlight=False, soft_wrap=True)
    for results in measure_decoding(config, job):
        ours = [result for result in results if result.name == OURS]
        theirs = {f"{r.name} {r.dtype}": r.sentences_per_s for r in results if r.name != OURS}
        console.print(decoding_table(results))
        for result in ours:
            console.print(
                shares_table(f"part of a pass, beam {result.beam_size}, {result.dtype}", result.last.shares)
            )
            if result.last.operations:
                console.print(operations_table(result.last.operations))
                console.print(f"trace: {result.last.trace}", highlight=False, soft_wrap=True)
        yield from (result.row() for result in results if result.name != OURS)
        yield from ({**result.row(), "ratios": ratios(result.sentences_per_s, theirs)} for result in ours)


def _refuse_model_keys(composed: Composed[BenchmarkConfig]) -> None:
    """A checkpoint fixes its model: one that is typed beside it would be left out in silence."""
    if not composed.config.checkpoint:
        return
    for key in composed.typed:
        if key.split(".")[0] in (*FIXED, "experiment", "training"):
            raise UserError(f"{key} cannot stand beside checkpoint=, which fixes it; leave one of them out")


def _refuse_replaced(composed: Composed[BenchmarkConfig]) -> None:
    """Stop where a word of the search is typed in whose place ``decode`` has its own."""
    length = composed.config.decode.length
    for key in composed.typed:
        if key == "search.beam_size":
            raise UserError(f"{key} means nothing to benchmark.py decode; type decode.beam_sizes=[…]")
        if length is not None and key.startswith("search.") and key.split(".")[1] in LENGTHS:
            raise UserError(
                f"{key} means nothing where decode.length={length} is every translation's length; "
                "type decode.length=null beside it, or leave it out"
            )


def _startup(composed: Composed[BenchmarkConfig], console: "Console") -> Rows:
    from minitrans.benchmark.report import startup_table
    from minitrans.benchmark.startup import measure_startup

    result = measure_startup(composed.config, composed.typed)
    console.print(startup_table(result))
    yield result.row()


def _data(composed: Composed[BenchmarkConfig], console: "Console") -> Rows:
    from minitrans.benchmark.corpus import measure_data
    from minitrans.benchmark.report import data_table

    result = measure_data(composed.config)
    console.print(data_table(result))
    yield result.row()


def _scaling(composed: Composed[BenchmarkConfig], console: "Console") -> Rows:
    from minitrans.benchmark.curves import draw
    from minitrans.benchmark.report import scaling_table
    from minitrans.benchmark.scaling import curves, measure_scaling

    folder = writable_folder(composed.config.scaling.output_dir, "scaling.output_dir")
    points = []
    for point in measure_scaling(composed.config):
        console.print(f"{point.axis} {point.value:,}: {point.seconds * 1e6:,.1f} µs a token", highlight=False)
        points.append(point)
        yield point.row()
    found = curves(points)
    console.print(scaling_table(found))
    picture = folder / "scaling.png"
    try:
        draw(found, picture)
        console.print(f"{picture}", highlight=False, soft_wrap=True)
    except OSError as error:  # the figures must not be lost for want of a picture
        console.print(f"no picture: {picture}: {error.strerror}", highlight=False, soft_wrap=True)
    exponents = [
        {
            "axis": curve.axis,
            "figure": curve.name,
            "exponent": curve.exponent,
            "predicted": curve.predicted_exponent,
        }
        for curve in found
    ]
    yield {"benchmark": "scaling", "exponents": exponents, "picture": str(picture)}


def writable_folder(path: str, key: str) -> Path:
    """A folder to write into, made where it is not there: told before anything is measured."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise UserError(
            f"{key}={folder} is no folder that can be written into: {error.strerror}; give another"
        ) from error


TASKS: Mapping[str, Task] = {
    "train": _train,
    "decode": _decode,
    "levers": _levers,
    "scaling": _scaling,
    "startup": _startup,
    "data": _data,
}
LENGTHS = ("min_length", "min_length_ratio", "max_length", "max_length_ratio")  # of ``search``
OF_SOME_TASKS = {
    "checkpoint": ["decode"],
    "decode": ["decode"],
    "peers": ["train", "decode"],
    "profile": ["train", "decode"],
    "scaling": ["scaling"],
    "corpus": ["data"],
}
"""Keys, or sections of keys, of which some tasks make nothing."""
