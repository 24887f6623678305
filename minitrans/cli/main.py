"""What every command shares: compose, run, and tell mistakes in one sentence."""

import contextlib
import errno
import os
import sys
from collections.abc import Callable
from datetime import datetime
from typing import TypeVar

import hydra
import yaml
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from minitrans.cli.argv import CommandLine, Words, quote, read
from minitrans.cli.compose import Composed, compose_line, finish, register, to_plain
from minitrans.cli.help import render
from minitrans.config import TrainConfig, plain
from minitrans.data.bundled import bundled
from minitrans.errors import StoppedEarlyError, UserError
from minitrans.program import program

C = TypeVar("C")

DISK_ERROR, USER_ERROR, INTERRUPTED, BROKEN_PIPE = 1, 2, 130, 141
REFUSED_BY_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def run_main(
    function: Callable[[Composed[C]], None], name: str, schema: type[C], argv: list[str] | None = None
) -> int:
    """Run one command.

    A mistake of the user ends in one sentence on standard error; a mistake of ours keeps its traceback.

    Parameters
    ----------
    function
        The command's work. It should import what is slow (torch, lightning) inside, so that ``--help``
        and mistakes in the command line are answered at once.
    name
        The command: ``conf/<name>.yaml``.
    schema
        Its dataclass.
    argv
        The words after the command's name (left out: those of this process).

    Returns
    -------
    The exit status: 0, 1 where the disk refuses what is printed, 2 after a mistake of the user, 130 after
    Ctrl-C or where a run was asked to end, 141 where the reader of standard output has gone.
    """
    open_closed_streams()
    try:
        status = _run(function, name, schema, sys.argv[1:] if argv is None else argv)
        if sys.stdout is not None:
            sys.stdout.flush()  # here, where it can be told if that fails
        return status
    except StoppedEarlyError as stop:
        print(stop, file=sys.stderr)
        return INTERRUPTED
    except UserError as error:
        _tell(error)
        return USER_ERROR
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        _print_no_more()
        return BROKEN_PIPE
    except OSError as error:
        # files that a command names are told where they are written: what is left is standard output
        if error.filename is not None or error.errno not in REFUSED_BY_DISK:
            raise
        _print_no_more()
        _tell(UserError(f"the output cannot be written: {error.strerror}; free some space"))
        return DISK_ERROR


def open_closed_streams() -> None:
    """Let nothing else take the place of a standard stream that the caller closed (``2>&-``).

    The next file that is opened would get its number, and what libraries say would go into that file.
    Python has no ``sys.stderr`` then, and ``print(..., file=None)`` would print among the translations.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            os.set_inheritable(number, True)
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 (for good)


def _print_no_more() -> None:
    """Nothing is to be left that Python flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(function: Callable[[Composed[C]], None], name: str, schema: type[C], argv: list[str]) -> int:
    line = read(argv, Words.of(name, schema))
    if line.help:
        print(render(name, schema, program(name)))
        return 0
    if line.multirun:
        return _sweep(function, name, schema, line)
    composed = compose_line(name, line, schema)
    if line.show_config:
        print(yaml.safe_dump(plain(composed.config), sort_keys=False, allow_unicode=True), end="")
        return 0
    function(composed)
    return 0


def _tell(error: UserError) -> None:
    with contextlib.suppress(OSError):  # a full disk under standard error as well: the status tells
        print(f"error: {error}", file=sys.stderr)


def _sweep(function: Callable[[Composed[C]], None], name: str, schema: type[C], line: CommandLine) -> int:
    """Run the combinations of a sweep one after another, each in a folder of its own below one sweep folder.

    A job that the user's values make impossible is told, and the others go on.
    """
    if name != "train":
        raise UserError(f"--multirun is for train alone; call {name} once for each checkpoint")
    sweep_dir = _sweep_dir(line)
    register(name, schema)
    failures = 0
    arguments = sys.argv

    def job(data: DictConfig) -> None:
        nonlocal failures
        sys.argv = arguments  # for the record that a run keeps of its command
        settings = HydraConfig.get()
        overrides = list(settings.overrides.task)
        try:
            job_data = {**to_plain(data), "run_dir": settings.runtime.output_dir}
            function(finish(job_data, CommandLine.of(overrides), schema))
        except UserError as error:
            failures += 1
            typed = " ".join(override.removeprefix("++") for override in overrides)
            _tell(UserError(f"job {settings.job.num} of {sweep_dir} ({typed}): {error}"))

    sys.argv = [name, "--multirun", *line.overrides(), *_sweep_settings(sweep_dir)]
    try:
        hydra.main(version_base="1.3", config_path=str(bundled("conf")), config_name=name)(job)()
    finally:
        sys.argv = arguments
    return USER_ERROR if failures else 0


def _sweep_dir(line: CommandLine) -> str:
    """The folder of the jobs' folders: ``run_dir`` where typed (it is taken off the line), else a new one."""
    typed_dir = line.values.pop("run_dir", quote(f"runs/{datetime.now():%Y%m%d-%H%M%S}-sweep"))
    sweep_dir = compose_line("train", CommandLine(values={"run_dir": typed_dir}), TrainConfig).config.run_dir
    if os.path.isdir(sweep_dir) and os.listdir(sweep_dir):
        raise UserError(f"the sweep folder {sweep_dir} is not empty; give another run_dir")
    return sweep_dir


def _sweep_settings(sweep_dir: str) -> list[str]:
    """Hydra's own settings: one folder a job, and no files in it but the run's."""
    return [
        f"hydra.sweep.dir={quote(sweep_dir)}",
        "hydra.sweep.subdir=${hydra.job.num}",
        "hydra.job.chdir=false",
        "hydra.output_subdir=null",
        "hydra/job_logging=disabled",
    ]
