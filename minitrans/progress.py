"""The bar that long translations show."""

import contextlib
import sys
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@contextlib.contextmanager
def progress_bar(
    total: int, shown: bool = True, label: str = "translating"
) -> Iterator[Callable[[int], object]]:
    """A bar on standard error, where that is a terminal; call the result with the number of new lines."""
    columns = (TextColumn(label), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not (shown and sys.stderr.isatty())) as bar:
        task = bar.add_task(label, total=total)
        yield lambda num_lines: bar.advance(task, num_lines)
