"""From the command line to the typed configuration: Hydra composes, the dataclasses check."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from minitrans.cli.argv import CommandLine, Words, read
from minitrans.config import Experiment, absolute_paths, check, parse, plain
from minitrans.data.bundled import bundled
from minitrans.errors import UserError

C = TypeVar("C")


@dataclass(frozen=True)
class Composed(Generic[C]):
    """What a command works on.

    Attributes
    ----------
    config
        The typed configuration, its paths absolute.
    typed
        What the user typed, and nothing else: dotted key to value, a group's name to its choice.
    """

    config: C
    typed: dict[str, Any]


def compose(name: str, argv: list[str], schema: type[C]) -> Composed[C]:
    """Compose the configuration of one command.

    Parameters
    ----------
    name
        The command: ``conf/<name>.yaml`` lists its groups.
    argv
        The words after the command's name, each ``KEY=VALUE``.
    schema
        The command's dataclass. Its defaults lie below every YAML file, which so state differences only.

    Raises
    ------
    UserError
        An unknown key or choice, a value of another type or out of its range, values that contradict.
    """
    return compose_line(name, read(argv, Words.of(name, schema)), schema)


def compose_line(name: str, line: CommandLine, schema: type[C]) -> Composed[C]:
    """Compose the configuration of a command line that is understood already (see :func:`compose`)."""
    register(name, schema)
    try:
        with initialize_config_dir(str(bundled("conf")), version_base="1.3"):
            composed = hydra_compose(name, line.overrides())
        data = to_plain(composed)
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        raise UserError(f"the configuration cannot be composed: {' '.join(str(error).split())}") from error
    return finish(data, line, schema)


def register(name: str, schema: type) -> None:
    """Make the defaults of a dataclass the node that ``conf/<name>.yaml`` starts from.

    The node is untyped: types are checked after composition, by :func:`minitrans.config.parse`.
    """
    ConfigStore.instance().store(name=f"schema_{name}", node=plain(schema()))


def to_plain(composed: DictConfig) -> dict[str, Any]:
    """Hydra's result as plain data, without Hydra's own settings."""
    data = cast(dict[str, Any], OmegaConf.to_container(composed, resolve=True))
    return {key: value for key, value in data.items() if key != "hydra"}


def finish(data: Mapping[str, Any], line: CommandLine, schema: type[C]) -> Composed[C]:
    """Type and check composed data, make its paths absolute, and note what was typed."""
    config = absolute_paths(parse(schema, data))
    if isinstance(config, Experiment):
        check(config)
    values = {key: _look_up(plain(config), key) for key in line.values}
    return Composed(config, {**line.groups, **values})


def _look_up(data: Mapping[str, Any], key: str) -> Any:
    value: Any = data
    for part in key.split("."):
        value = value[part]
    return value
