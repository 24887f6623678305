"""What a person reads of a benchmark: tables. The same figures as JSON lines are for programs."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Column, Table

from minitrans.benchmark.contest import Spread
from minitrans.benchmark.corpus import DataResult
from minitrans.benchmark.decode import OURS, DecodingResult
from minitrans.benchmark.levers import LeversResult
from minitrans.benchmark.profiling import Operation
from minitrans.benchmark.scaling import Curve
from minitrans.benchmark.startup import PARTS, StartupResult
from minitrans.benchmark.train import TrainingResult


def json_line(row: Mapping[str, Any]) -> str:
    """One line for programs: numbers to six digits."""
    return json.dumps(_rounded(row))


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list | tuple) else value


def _right(*names: str) -> list[Column]:
    return [Column(name, justify="right") for name in names]


def training_table(results: Sequence[TrainingResult]) -> Table:
    """A row for each contestant, ours last."""
    table = Table(
        "",
        "type",
        *_right(
            "target tokens/s", "a CPU s", "ratio", "padding", "GFLOP/s", "of peak", "memory MB", "parameters"
        ),
    )
    ours = results[-1].target_tokens_per_s
    for result in results:
        row = result.row()
        ratio = f"{ours.over(result.target_tokens_per_s).median:.2f}" if result is not results[-1] else ""
        table.add_row(
            result.name,
            result.dtype,
            str(result.target_tokens_per_s),
            f"{row['target_tokens_per_cpu_s']:,.0f}",
            ratio,
            f"{row['padding_fraction']:.1%}",
            f"{row['flops_per_s'] / 1e9:,.1f}",
            f"{row['mfu']:.1%}",
            f"{result.last.peak_rss_mb:,.0f}",
            f"{result.last.parameters:,}",
        )
    return table


def levers_table(result: LeversResult) -> Table:
    """What each fast piece brings, and all of them together."""
    table = Table("lever", *_right("gain alone", "gain kept", "memory saved MB"))
    for gain in result.gains:
        table.add_row(
            gain.lever, f"{gain.alone.median:.2f}", f"{gain.kept.median:.2f}", f"{gain.memory_mb:,.0f}"
        )
    memory = result.plain.last.peak_rss_mb - result.fast.last.peak_rss_mb
    table.add_section()
    table.add_row("all together", f"{result.together.median:.2f}", "", f"{memory:,.0f}")
    return table


def decoding_table(results: Sequence[DecodingResult]) -> Table:
    """A row for each contestant of one beam, ours last, each beside our fastest."""
    beam_size = results[-1].beam_size
    table = Table(
        "greedy" if beam_size == 1 else f"beam {beam_size}",
        "type",
        *_right("sentences/s", "a CPU s", "ratio", "output tokens/s", "steps a token", "memory MB"),
    )
    ours = max((r for r in results if r.name == OURS), key=lambda r: r.sentences_per_s.median)
    for result in results:
        steps = result.last.steps_per_output_token
        table.add_row(
            result.name,
            result.dtype,
            str(result.sentences_per_s),
            f"{result.row()['sentences_per_cpu_s']:,.0f}",
            f"{ours.sentences_per_s.over(result.sentences_per_s).median:.2f}",
            f"{result.output_tokens_per_s.median:,.0f}",
            "" if steps is None else f"{steps:.2f}",
            f"{result.last.peak_rss_mb:,.0f}",
        )
    return table


def shares_table(title: str, shares: Mapping[str, float]) -> Table:
    """Where the time goes."""
    table = Table(title, *_right("share"))
    for name, share in shares.items():
        table.add_row(name, f"{share:.1%}")
    return table


def startup_table(result: StartupResult) -> Table:
    """Seconds of each part until the first update."""
    table = Table("until the first update", *_right("cold s", "warm s"), "what")
    for name, about in PARTS.items():
        parts = (result.cold.parts, result.warm_parts)
        table.add_row(name, *(f"{part.get(name, 0):.2f}" for part in parts), about)
    table.add_section()
    table.add_row("all", f"{result.cold.seconds:.2f}", f"{result.warm_seconds.median:.2f}", "")
    table.add_row("--help", "", f"{result.help.median:.2f}", "")
    return table


def data_table(result: DataResult) -> Table:
    """What the data's way came to."""
    planned = result.planned
    table = Table("data", Column("", justify="right"), "what")
    ratio = result.sentences_per_s.over(result.library_sentences_per_s).median
    table.add_row(
        "tokenising", f"{result.sentences_per_s}", "sentences/s, from text to the arrays on the disk"
    )
    table.add_row(
        "", f"{result.library_sentences_per_s}", f"sentences/s, the library alone (ratio {ratio:.2f})"
    )
    table.add_row("feeding", f"{result.feed_tokens_per_s}", "target tokens/s of the loader alone")
    table.add_row(
        "planning", f"{planned.seconds:,.2f}", f"s for {planned.pairs:,} pairs in {planned.updates:,} updates"
    )
    table.add_row(
        "",
        f"{planned.peak_rss_mb:,.0f}",
        f"MB at most, of which {planned.base_rss_mb:,.0f} before the first pair",
    )
    return table


def scaling_table(found: Sequence[Curve]) -> Table:
    """The exponents beside the predicted ones."""
    table = Table("along", "figure", *_right("from", "to", "exponent", "predicted"))
    for curve in found:
        exponents = (curve.exponent, curve.predicted_exponent)
        shown = ("" if exponent is None else f"{exponent:z.2f}" for exponent in exponents)
        table.add_row(curve.axis, curve.name, f"{curve.x[0]:,}", f"{curve.x[-1]:,}", *shown)
    return table


def operations_table(operations: Sequence[Operation]) -> Table:
    """The dearest operations of a trace."""
    table = Table("operation", *_right("share", "ms a step", "calls a step"))
    for one in operations:
        table.add_row(one.name, f"{one.share:.1%}", f"{one.milliseconds:,.2f}", f"{one.calls:,.1f}")
    return table


def ratios(ours: Spread, theirs: Mapping[str, Spread]) -> dict[str, float]:
    """How many times as fast as each other one we are, the median over the turns."""
    return {name: ours.over(spread).median for name, spread in theirs.items()}
