"""``benchmark.py startup``: from the command to the first update, and to ``--help``.

The training command is run in processes of its own, to its first update: once with an empty cache of text and
vocabularies, then with the cache that the first run has left.
"""

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import minitrans
from minitrans.benchmark.contest import Spread, tell
from minitrans.benchmark.settings import BenchmarkConfig
from minitrans.config import TrainConfig
from minitrans.errors import UserError

PARTS: Mapping[str, str] = {
    "interpreter": "Python itself",
    "imports": "torch, lightning, datasets and our own modules",
    "command": "composing the configuration, the run folder and its records",
    "data": "reading, tokenising (or the cache), planning",
    "model": "building and initialising",
    "leak test": "the proof before the first update",
    "trainer": "Lightning, callbacks, loggers",
    "first update": "the update itself",
}
"""What the seconds until the first update are divided into."""

_HELP = "import sys; from minitrans.cli.train import main; sys.exit(main())"
_TRAIN = (
    "import sys, time; begun = time.time(); from minitrans.cli.benchmark import probe; sys.exit(probe(begun))"
)


@dataclass(frozen=True)
class Start:
    """Seconds of the parts of one start."""

    parts: dict[str, float]

    @property
    def seconds(self) -> float:
        """From the command to the end of the first update."""
        return sum(self.parts.values())


@dataclass(frozen=True)
class StartupResult:
    """What the starts came to."""

    cold: Start
    warm: tuple[Start, ...]
    help: Spread

    @property
    def warm_seconds(self) -> Spread:
        """With a filled cache."""
        return Spread(tuple(start.seconds for start in self.warm))

    @property
    def warm_parts(self) -> dict[str, float]:
        """Of the start in the middle."""
        return sorted(self.warm, key=lambda start: start.seconds)[len(self.warm) // 2].parts

    def row(self) -> dict[str, Any]:
        """The JSON line."""
        return {
            "benchmark": "startup",
            "first_update_s": self.warm_seconds.median,
            "spread": self.warm_seconds.spread,
            "parts_s": self.warm_parts,
            "cold_first_update_s": self.cold.seconds,
            "cold_parts_s": self.cold.parts,
            "help_s": self.help.median,
        }


def measure_startup(config: BenchmarkConfig, typed: Mapping[str, Any]) -> StartupResult:
    """Start the training that was typed, again and again.

    Parameters
    ----------
    config
        How often (``windows``).
    typed
        What the user typed: the words of the training command.

    Raises
    ------
    UserError
        What the training command refuses.
    """
    words = training_words(typed)
    with tempfile.TemporaryDirectory(prefix="minitrans-benchmark-") as folder:
        cold = _told("cold", _start(words, Path(folder), 0))
        numbers = range(1, config.windows + 1)
        warm = tuple(_told("warm", _start(words, Path(folder), number)) for number in numbers)
        seconds = tuple(_seconds_to_help(Path(folder)) for _ in range(config.windows))
    return StartupResult(cold, warm, Spread(seconds))


def training_words(typed: Mapping[str, Any]) -> list[str]:
    """The words of a training command line that say what was typed for the benchmark."""
    own = {f.name for f in dataclasses.fields(BenchmarkConfig)} - {
        f.name for f in dataclasses.fields(TrainConfig)
    }
    return [f"{key}={_word(value)}" for key, value in typed.items() if key.split(".")[0] not in own]


def _word(value: Any) -> str:
    """A value as it is typed. A text needs quotes where a comma or a bracket in it would have a meaning."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, list):
        return "[" + ",".join(map(_item, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_item(item)}" for key, item in value.items()) + "}"
    return str(value)


def _item(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else _word(value)


def _start(words: list[str], folder: Path, number: int) -> Start:
    file = folder / f"start-{number}.json"
    words = [*words, f"run_dir={folder / f'run-{number}'}", "trainer.progress_bar=false"]
    done = _run(["-c", _TRAIN, repr(time.time()), str(file), *words], folder)
    if not file.exists():
        raise UserError(_reason(done.stderr))
    return Start(json.loads(file.read_text(encoding="utf8")))


def _told(name: str, start: Start) -> Start:
    tell(f"{name}: {start.seconds:.2f} s to the first update")
    return start


def _seconds_to_help(folder: Path) -> float:
    start = time.perf_counter()
    _run(["-c", _HELP, "--help"], folder)
    return time.perf_counter() - start


def _run(words: list[str], folder: Path) -> "subprocess.CompletedProcess[str]":
    """Python, with this package in its path and a cache in ``folder``."""
    above = str(Path(minitrans.__file__).resolve().parent.parent)
    paths = os.pathsep.join(filter(None, [above, os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": paths, "MINITRANS_CACHE": str(folder / "cache")}
    return subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True)


def _reason(stderr: str) -> str:
    """The last line that a command left, without its own prefix."""
    lines = [line for line in stderr.splitlines() if line.strip()]
    return lines[-1].removeprefix("error: ") if lines else "the training made no update and said nothing"
