"""The one pass over the command line before Hydra sees it.

Hydra's own grammar splits values at commas and equal signs, reads ``${...}`` and brackets, and answers a
misspelt key with a traceback. Here each ``KEY=VALUE`` is held against the schema first: a text value
reaches Hydra quoted, so that any path and any sentence simply works, and an unknown key or choice is
refused with the nearest one.
"""

import csv
import dataclasses
import difflib
import re
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import HydraException
from omegaconf import OmegaConf

from minitrans.config import Section, TrainConfig
from minitrans.data.bundled import bundled
from minitrans.errors import UserError, nearest

FIXED = ("model", "position", "attention", "tokenizer")
"""Sections that say what the tensors of a checkpoint mean."""

LEADING = {"benchmark": "task"}
"""A command to the key that its first word may be a value of: ``benchmark.py decode`` is ``task=decode``."""


class Kind(Enum):
    """How the value of a key is read."""

    TEXT = "text"
    PATH = "a file or folder"
    PATHS = "a file or a list of files"
    VALUE = "a number, a list, null, true or false; text where it is none of these"


@dataclass(frozen=True)
class Words:
    """What may follow one command.

    Attributes
    ----------
    command
        The command's name.
    keys
        Every dotted key, and how its value is read.
    groups
        A group's name to its choices; with ``"null"`` where no choice is one.
    defaults
        A group's name to the choice taken where none is typed.
    """

    command: str
    keys: Mapping[str, Kind]
    groups: Mapping[str, tuple[str, ...]]
    defaults: Mapping[str, str]

    @classmethod
    def of(cls, command: str, schema: type) -> "Words":
        """Collect the words of a command from its dataclass and its files below ``conf/``."""
        conf = bundled("conf")
        defaults = _defaults(conf / f"{command}.yaml")
        groups = {
            group: (*choices(conf / group), *(["null"] if default == "null" else []))
            for group, default in defaults.items()
        }
        return cls(command, _schema_keys(schema, conf), groups, defaults)


def choices(folder: Path) -> tuple[str, ...]:
    """The choices of the group that ``folder`` holds, in alphabetical order."""
    return tuple(sorted(file.stem for file in folder.glob("*.yaml")))


def _defaults(file: Path) -> dict[str, str]:
    """The groups of a command's defaults list, each with its default choice (``"null"``: none)."""
    entries = typing.cast(list[Any], OmegaConf.to_container(OmegaConf.load(file).defaults))
    pairs = (pair for entry in entries if isinstance(entry, dict) for pair in entry.items())
    return {str(group): "null" if choice is None else str(choice) for group, choice in pairs}


def _schema_keys(schema: type, conf: Path, prefix: str = "") -> dict[str, Kind]:
    """Every dotted key below a dataclass."""
    hints = typing.get_type_hints(schema)
    keys: dict[str, Kind] = {}
    for f in dataclasses.fields(schema):
        hint, key = hints[f.name], prefix + f.name
        if dataclasses.is_dataclass(hint):
            keys |= _schema_keys(typing.cast(type, hint), conf, f"{key}.")
        elif hint == Section:
            paths = {path for keys_of_kind in f.metadata["paths"].values() for path in keys_of_kind}
            family = _section_keys(conf / f.name, paths)
            keys |= {f"{key}.{name}": kind for name, kind in family.items()}
        elif f.metadata["path"]:
            keys[key] = Kind.PATH if hint is str else Kind.PATHS
        else:
            keys[key] = Kind.TEXT if hint is str else Kind.VALUE
    return keys


def _section_keys(folder: Path, paths: set[str]) -> dict[str, Kind]:
    """The keys that the choices of one family list. A key is text where every choice states text for it."""
    stated: dict[str, list[Any]] = {}
    for choice in choices(folder):
        for name, value in OmegaConf.load(folder / f"{choice}.yaml").items():
            stated.setdefault(str(name), []).append(value)
    text = {name for name, values in stated.items() if all(isinstance(value, str) for value in values)}
    return {
        name: Kind.VALUE if name not in text else Kind.PATHS if name in paths else Kind.TEXT
        for name in stated
    }


@dataclass
class CommandLine:
    """One command line, understood.

    Attributes
    ----------
    groups
        A group's name to the choice typed for it. What is typed last counts.
    values
        A dotted key to its value in Hydra's grammar.
    help, show_config, multirun
        ``--help``, ``--cfg job`` and ``--multirun`` were among the words.
    """

    groups: dict[str, str] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)
    help: bool = False
    show_config: bool = False
    multirun: bool = False

    @classmethod
    def of(cls, overrides: Iterable[str]) -> "CommandLine":
        """The command line that :meth:`overrides` was made from."""
        pairs = [override.partition("=") for override in overrides]
        values = {key.removeprefix("++"): value for key, _, value in pairs if key.startswith("++")}
        return cls({key: value for key, _, value in pairs if not key.startswith("++")}, values)

    def overrides(self) -> list[str]:
        """The overrides for Hydra. ``++`` sets a key whether or not a file mentions it."""
        return [
            *(f"{group}={choice}" for group, choice in self.groups.items() if choice != "null"),
            *(f"++{key}={value}" for key, value in self.values.items()),
        ]


_FLAGS = {
    "-h": "help",
    "--help": "help",
    "-m": "multirun",
    "--multirun": "multirun",
    "--cfg": "show_config",
    "-c": "show_config",
}


def read(argv: Iterable[str], words: Words) -> CommandLine:
    """Understand the words after a command's name.

    Raises
    ------
    UserError
        A word that is no ``KEY=VALUE``, an unknown key or choice, a key that the checkpoint fixes.
    """
    rest = list(argv)
    if words.command in LEADING and rest and rest[0].isidentifier():
        rest[0] = f"{LEADING[words.command]}={rest[0]}"
    # -m may stand behind the values that it splits
    line = CommandLine(multirun=any(_FLAGS.get(word) == "multirun" for word in rest))
    while rest:
        word = rest.pop(0)
        if word in _FLAGS:
            setattr(line, _FLAGS[word], True)
            if _FLAGS[word] == "show_config" and rest[:1] == ["job"]:
                rest.pop(0)
        elif not line.help:
            _read_assignment(word, words, line)
    return line


def _read_assignment(word: str, words: Words, line: CommandLine) -> None:
    key, equals, value = word.partition("=")
    if not equals:
        raise UserError(_not_an_assignment(word, words))
    if key in words.groups:
        line.groups[key] = _choice(key, value, words, line.multirun)
    elif key in words.keys:
        line.values[key] = _value(value, words.keys[key], line.multirun)
    else:
        raise UserError(_unknown_key(key, value, words))


def _choice(group: str, value: str, words: Words, multirun: bool) -> str:
    for choice in value.split(",") if multirun else [value]:
        if choice not in words.groups[group]:
            raise UserError(f'{group} cannot be "{choice}"{nearest(choice, words.groups[group])}')
    return value


def _value(value: str, kind: Kind, multirun: bool) -> str:
    """``value`` in Hydra's grammar. In a sweep, commas separate the values of jobs, except in a path."""
    if kind is Kind.TEXT and multirun:
        return ",".join(quote(part) for part in value.split(","))
    if kind is Kind.VALUE and _is_value(value, multirun):
        return value
    if kind in (Kind.PATHS, Kind.VALUE) and value.startswith("[") and value.endswith("]"):
        return "[" + ",".join(quote(item.strip()) for item in _items(value[1:-1])) + "]"
    return quote(value)


def _items(text: str) -> list[str]:
    """The items of a list, cut at commas; an item in quotes may hold some: ``"a,b.en","a,b.de"``."""
    opening = re.search(r"""(?:^|,)\s*(['"])""", text)
    if not opening:
        return text.split(",")
    try:
        return next(csv.reader([text], quotechar=opening[1], skipinitialspace=True))
    except csv.Error:  # a line feed in a path
        return text.split(",")


def _is_value(value: str, multirun: bool) -> bool:
    """Whether Hydra reads one plain value (in a sweep, or several)."""
    try:
        override = OverridesParser.create().parse_override(f"key={value}")
    except HydraException:
        return False
    return multirun or not override.is_sweep_override()


def quote(text: str) -> str:
    r"""Quote ``text`` so that Hydra and OmegaConf read back exactly it.

    Hydra takes quotes and the backslashes before them off, OmegaConf a backslash before ``${``.
    """
    plain_dollars = re.sub(r"(\\*)\$\{", lambda found: found[1] * 2 + r"\${", text)
    return QuotedString(text=plain_dollars, quote=Quote.single).with_quotes()


# --------------------------------------------------------------------------------------
# Sentences for what cannot be understood
# --------------------------------------------------------------------------------------


def _not_an_assignment(word: str, words: Words) -> str:
    if word.startswith("-"):
        return f'"{word}" is no option of {words.command}; settings are typed as KEY=VALUE, --help lists them'
    if word in words.groups or word in words.keys:
        return f"{word} needs a value: {word}=VALUE"
    groups = [group for group, known in words.groups.items() if word in known]
    example = "seed=1" if "seed" in words.keys else f"checkpoint={word}"
    advice = f"; did you mean {groups[0]}={word}?" if groups else f", such as {example}"
    return f'"{word}" is not of the form KEY=VALUE{advice}'


def _unknown_key(key: str, value: str, words: Words) -> str:
    if key[:1] in ("+", "~") and key.lstrip("+~") in {*words.keys, *words.groups}:
        return f"{key}: every key of {words.command} is there already; type {key.lstrip('+~')}={value}"
    top = key.split(".")[0]
    in_sections = {known.split(".")[0] for known in words.keys if "." in known} | set(words.groups)
    elsewhere = {f.name for f in dataclasses.fields(TrainConfig)} - {*in_sections, *words.keys}
    if top in elsewhere:
        return _belongs_to_training(key, top, words)
    below = [known for known in words.keys if known.startswith(f"{key}.")]
    if below:
        return f"{key} is a section, not a setting; type one of its keys, such as {below[0]}=VALUE"
    meant = difflib.get_close_matches(top, sorted({*in_sections, *words.keys, *elsewhere}), n=1, cutoff=0.75)
    if meant and meant[0] in elsewhere:
        return f'{words.command} has no key "{key}"; {_belongs_to_training(meant[0], meant[0], words)}'
    return f'{words.command} has no key "{key}"{_nearest_key(key, words)}'


def _belongs_to_training(key: str, top: str, words: Words) -> str:
    if top in FIXED:
        return f"{key} cannot be given to {words.command}: the checkpoint fixes it; leave it out"
    return f"{key} is a key of train, not of {words.command}; leave it out"


def _nearest_key(key: str, words: Words) -> str:
    """Name the full key most like ``key``, which may be a part of it: ``max_updates``, ``heads``."""
    section, _, name = key.rpartition(".")
    last = {full: full.rpartition(".")[2] for full in [*words.keys, *words.groups]}
    same = [full for full in last if last[full] == name]
    containing = [full for full in last if f"_{name}_" in f"_{last[full]}_"]
    for found in (same, containing):
        if 0 < len(found) <= 3:
            return "; did you mean " + " or ".join(f'"{full}"' for full in found) + "?"
    inside = [last[full] for full in last if full.startswith(f"{section}.")]
    if inside and not difflib.get_close_matches(name, inside, n=1, cutoff=0.6):
        return f"; the keys of {section} are {', '.join(inside)}"
    close = difflib.get_close_matches(key, last, n=1, cutoff=0.6)
    return f'; did you mean "{close[0]}"?' if close else "; --help lists the keys"
