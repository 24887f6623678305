"""Going on from a checkpoint: its configuration is the base, and what was typed now is compared with it."""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from minitrans import checkpoint
from minitrans.checkpoint import Checkpoint
from minitrans.config import Experiment, TrainConfig, check, parse, plain
from minitrans.data.bundled import bundled
from minitrans.errors import UserError
from minitrans.run import RunFolder, locked, refuse_used
from minitrans.training.log import COLUMNS, read_rows

AUTO = "auto"

# Settings of an experiment that may change when it goes on: they say how long and how it is watched,
# not what is learned. Everything in search, trainer, logger and threads may change too.
MAY_CHANGE = {
    "training.max_updates",
    "training.max_epochs",
    "training.accumulate",
    "training.validate_every",
    "training.validate_sentences",
    "training.save_every",
    "training.keep_last",
    "training.patience",
    "training.average_last",
    "training.log_every",
    "training.diagnose_every",
    "training.leak_test",
    "data.root",
}
# What the checkpoint's tensors and entries stand for: not to be changed even by force.
FIXED = ("tokenizer.", "optimizer.kind")


@dataclass(frozen=True)
class Continuation:
    """A run that goes on."""

    config: TrainConfig
    folder: RunFolder
    start: Checkpoint
    changed: dict[str, tuple[Any, Any]]  # key -> what the checkpoint had, what was typed

    def __str__(self) -> str:
        changes = ", ".join(f"{key} {old} -> {new}" for key, (old, new) in self.changed.items())
        return f"Going on from update {self.start.progress.update} ({self.start.path})" + (
            f" with {changes}" if changes else ""
        )


def continuation(config: TrainConfig, typed: Mapping[str, Any]) -> Continuation:
    """Find the checkpoint that ``resume=`` means, and the configuration to go on with.

    Parameters
    ----------
    config
        The configuration of this command line.
    typed
        What the user typed of it: dotted keys to values.

    Raises
    ------
    UserError
        Nothing to go on from, or a typed value that would make it another experiment, and no ``force``.
    """
    start, folder = _start(config)
    typed = {**_stated_by(typed.get("experiment")), **typed}
    base = plain(start.experiment)
    changed = {}
    for key, value in _typed_leaves(plain(experiment_of(config)), typed).items():
        old = _look_up(base, key)
        if old == value:
            continue
        if not _may_change(key, config.force):
            raise UserError(_refusal(key, value, old, start.path))
        _put(base, key, value)
        changed[key] = (old, value)
    merged = {**base, **_machine(config, typed, start.path.resolve().parent.parent / "config.yaml")}
    resumed = parse(TrainConfig, merged, f"the configuration in {start.path}")
    if config.force:
        _refuse_other_weights(resumed, start, changed)
    resumed = dataclasses.replace(resumed, run_dir=str(folder.path), resume="", force=False)
    for table, columns in ((folder.metrics, COLUMNS), (folder.diagnostics, None)):
        read_rows(table, columns)  # a damaged one is refused here, before anything is written
    return Continuation(resumed, folder, start, changed)


def _may_change(key: str, force: bool) -> bool:
    if key in MAY_CHANGE or key.startswith("search."):
        return True
    return force and not key.startswith(FIXED)


def _refusal(key: str, value: Any, old: Any, path: Path) -> str:
    by_force = "" if key.startswith(FIXED) else ", add force=true to go on all the same,"
    return (
        f"{key}={value} would make this another experiment than {path}, which has {key}={old}; "
        f"leave it out to go on{by_force} or start a new run without resume="
    )


def _refuse_other_weights(resumed: TrainConfig, start: Checkpoint, changed: Mapping[str, Any]) -> None:
    """What is changed by force must still be a model that the checkpoint's weights fit."""
    check(resumed)
    forced = dataclasses.replace(start, experiment=experiment_of(resumed))
    try:
        checkpoint.load_weights(checkpoint.rebuild(forced), start.model, start.path)
    except UserError as error:
        keys = ", ".join(key for key in changed if key not in MAY_CHANGE)
        raise UserError(f"the weights of {start.path} do not fit another {keys}; leave it out") from error


def begun(config: TrainConfig) -> bool:
    """Whether ``resume=auto`` finds checkpoints in ``run_dir``, damaged ones too.

    Raises
    ------
    UserError
        No ``run_dir``, or one that holds something else than a run.
    """
    if not config.run_dir:
        raise UserError("resume=auto goes on in run_dir, or starts there; add run_dir=FOLDER")
    folder = RunFolder.of(config.run_dir)
    if any(folder.checkpoints.glob("*.ckpt")):
        return True
    if not folder.checkpoints.is_dir():
        refuse_used(folder.path)
    return False


def run_folder(config: TrainConfig) -> RunFolder:
    """The run folder that a command line means, for processes that must meet there.

    Raises
    ------
    UserError
        It names none.
    """
    path = Path(config.run_dir or config.resume)
    if not config.run_dir and path.is_file():
        path = _folder_of(path)
    if str(path) in (".", AUTO):
        raise UserError("processes that were started from outside need run_dir=FOLDER, to meet in it")
    return RunFolder.of(path)


def settle(folder: RunFolder, start: Checkpoint) -> None:
    """Make ``start`` the newest checkpoint of its own folder, before the later rows of its metrics go.

    Later ones are there where a run goes on from an older checkpoint than its last, because that one was
    named or because the last is damaged. Kept, they would pass for the newest ones, and be averaged.
    """
    for path in folder.steps():
        if int(path.stem.split("-")[1]) > start.progress.update:
            print(f"{path.name} is later than the checkpoint that the run goes on from: removed")
            path.unlink()
    if start.path.resolve().parent == folder.checkpoints and start.path.name != checkpoint.LAST:
        checkpoint.link(start.path, folder.checkpoints / checkpoint.LAST)


def _start(config: TrainConfig) -> tuple[Checkpoint, RunFolder]:
    """The newest whole checkpoint of a run folder, or the file that was named."""
    path = Path(config.run_dir if config.resume == AUTO else config.resume)
    if path.is_file():
        start = checkpoint.read(path)
        folder = _folder_of(path)
    else:
        folder = path
        start = _newest(RunFolder(path.resolve()))
    if start.optimizer is None:
        raise UserError(f"{start.path} has no optimizer state (an average of checkpoints?); give another one")
    # refused here, before anything is written
    checkpoint.load_weights(checkpoint.rebuild(start), start.model, start.path)
    if config.run_dir and Path(config.run_dir).resolve() != folder.resolve():
        refuse_used(Path(config.run_dir))
        folder = Path(config.run_dir)
    return start, RunFolder.of(folder)


def _folder_of(path: Path) -> Path:
    """The run folder that a checkpoint lies in."""
    own = path.resolve().parent
    return own.parent if own.name == "checkpoints" else own


def _newest(folder: RunFolder) -> Checkpoint:
    if not folder.path.exists():
        raise UserError(f"resume={folder.path} does not exist; give a .ckpt file or a run folder")
    candidates = [*reversed(folder.steps()), folder.checkpoints / checkpoint.LAST]
    damaged = []
    for path in candidates:
        if not path.exists():
            continue
        try:
            found = checkpoint.read(path)
        except UserError as error:
            damaged.append(str(error))
            continue
        if damaged:
            print(f"{damaged[0]}; going on from {path.name} instead")
        return found
    if damaged:
        raise UserError(f"{damaged[0]}; {folder.path} holds no whole checkpoint to go on from")
    if (folder.path / ".lock").exists():
        with locked(folder):  # refused where the run is at its first updates
            pass
    raise UserError(
        f"{folder.path} holds no checkpoint to go on from (no checkpoints/{checkpoint.LAST}); give another "
        f"run folder or a .ckpt file, or start this one again with run_dir={folder.path} resume=auto"
    )


def _machine(config: TrainConfig, typed: Mapping[str, Any], run_config: Path) -> dict[str, Any]:
    """Where and on what the run goes on: as it was (its ``config.yaml``), changed by what was typed now.

    The number type belongs here: a run begun in fp32 would else go on in another one unasked.
    """
    names = [f.name for f in dataclasses.fields(TrainConfig) if f.name not in plain(experiment_of(config))]
    now = {name: value for name, value in plain(config).items() if name in names}
    if not run_config.is_file():
        return now
    before = plain(parse(TrainConfig, _read_config(run_config), str(run_config)))
    machine = {name: before[name] for name in names}
    for key, value in _typed_leaves(now, {**typed, "resume": "", "run_dir": "", "force": False}).items():
        _put(machine, key, value)
    return machine


def _read_config(path: Path) -> Mapping[str, Any]:
    """What a run's ``config.yaml`` says.

    Raises
    ------
    UserError
        It is no YAML, or not as it was written.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(
            f"{path} is damaged: {' '.join(str(error).split())}; remove it to go on with what is typed"
        ) from error
    if not isinstance(content, Mapping) or not content:
        raise UserError(f"{path} is damaged: it holds no keys; remove it to go on with what is typed")
    return content


def _typed_leaves(stated: Mapping[str, Any], typed: Mapping[str, Any]) -> dict[str, Any]:
    """What was typed of ``stated``, key by key: a group stands for all keys of its choice."""
    leaves: dict[str, Any] = {}
    for key in typed:
        if key.split(".")[0] in stated:
            value = _look_up(stated, key)
            leaves.update(_leaves(value, key) if isinstance(value, Mapping) else {key: value})
    return leaves


def _stated_by(experiment: str | None) -> dict[str, Any]:
    """What an experiment's file states: keys, and choices of groups. Its name stands for these alone."""
    if experiment in (None, "null"):
        return {}
    file = bundled("conf") / "experiment" / f"{experiment}.yaml"
    content = yaml.safe_load(file.read_text(encoding="utf8"))
    defaults = [entry for entry in content.pop("defaults", []) if isinstance(entry, dict)]
    groups = {name.removeprefix("override /"): choice for entry in defaults for name, choice in entry.items()}
    return {**groups, **dict(_leaves(content))}


def _leaves(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in section.items():
        key = f"{prefix}.{name}" if prefix else name
        if isinstance(value, Mapping):
            yield from _leaves(value, key)
        else:
            yield key, value


def _look_up(data: Mapping[str, Any], key: str) -> Any:
    value: Any = data
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _put(data: dict[str, Any], key: str, value: Any) -> None:
    *sections, name = key.split(".")
    for section in sections:
        data = data[section]
    data[name] = value


def experiment_of(config: TrainConfig) -> Experiment:
    """The part of a training configuration that a checkpoint carries."""
    return Experiment(**{f.name: getattr(config, f.name) for f in dataclasses.fields(Experiment)})
