"""The one pass over the command line before Hydra sees it.

Hydra's own grammar splits values at commas and equal signs, reads ``${...}`` and brackets, and answers a
misspelt key with a traceback. Here each ``KEY=VALUE`` is held against the schema first: a text value
reaches Hydra quoted, so that any path and any sentence simply works, and an unknown key or choice is
refused with the nearest one.
"""

import dataclasses
import difflib
import re
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import QuotedString, Quote
from hydra.errors import HydraException
from omegaconf import OmegaConf

from minitrans.config import Section, TrainConfig
from minitrans.data.bundled import bundled
from minitrans.errors import UserError, nearest

FIXED = ("model", "position", "attention", "tokenizer")
"""Sections that say what the tensors of a checkpoint mean."""


@dataclass(frozen=True)
class Words:
    """What may follow one command.

    Attributes
    ----------
    command
        The command's name.
    text
        Every dotted key; True where its value is text.
    groups
        A group's name to its choices; with ``"null"`` where no choice is one.
    defaults
        A group's name to the choice taken where none is typed.
    """

    command: str
    text: Mapping[str, bool]
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
        return cls(command, _text_keys(schema, conf), groups, defaults)


def choices(folder: Path) -> tuple[str, ...]:
    """The choices of the group that ``folder`` holds, in alphabetical order."""
    return tuple(sorted(file.stem for file in folder.glob("*.yaml")))


def _defaults(file: Path) -> dict[str, str]:
    """The groups of a command's defaults list, each with its default choice (``"null"``: none)."""
    entries = typing.cast(list[Any], OmegaConf.to_container(OmegaConf.load(file).defaults))
    pairs = (pair for entry in entries if isinstance(entry, dict) for pair in entry.items())
    return {str(group): "null" if choice is None else str(choice) for group, choice in pairs}


def _text_keys(schema: type, conf: Path, prefix: str = "") -> dict[str, bool]:
    """Every dotted key below a dataclass; True where its value is text."""
    keys: dict[str, bool] = {}
    for name, hint in typing.get_type_hints(schema).items():
        if dataclasses.is_dataclass(hint):
            keys |= _text_keys(typing.cast(type, hint), conf, f"{prefix}{name}.")
        elif hint == Section:
            keys |= {f"{prefix}{name}.{key}": text for key, text in _section_keys(conf / name).items()}
        else:
            keys[prefix + name] = hint is str
    return keys


def _section_keys(folder: Path) -> dict[str, bool]:
    """The keys that the choices of one family list; True where one of them states text."""
    keys: dict[str, bool] = {}
    for choice in choices(folder):
        for key, value in OmegaConf.load(folder / f"{choice}.yaml").items():
            keys[str(key)] = keys.get(str(key), False) or isinstance(value, str)
    return keys


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

    def overrides(self) -> list[str]:
        """The overrides for Hydra. ``++`` sets a key whether or not a file mentions it: each is known here."""
        return [
            *(f"{group}={choice}" for group, choice in self.groups.items()),
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
    line = CommandLine()
    rest = list(argv)
    line.multirun = any(_FLAGS.get(word) == "multirun" for word in rest)
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
    elif key in words.text:
        line.values[key] = _value(value, words.text[key], line.multirun)
    else:
        raise UserError(_unknown_key(key, value, words))


def _choice(group: str, value: str, words: Words, multirun: bool) -> str:
    for choice in value.split(",") if multirun else [value]:
        if choice not in words.groups[group]:
            raise UserError(f'{group} cannot be "{choice}"{nearest(choice, words.groups[group])}')
    return value


def _value(value: str, text: bool, multirun: bool) -> str:
    """``value`` in Hydra's grammar: text quoted, anything else as it stands where it is one plain value.

    In a sweep commas separate the values of jobs, also those of text.
    """
    if text:
        return ",".join(quote(part) for part in value.split(",")) if multirun else quote(value)
    try:
        override = OverridesParser.create().parse_override(f"key={value}")
    except HydraException:
        return quote(value)
    return value if multirun or not override.is_sweep_override() else quote(value)


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
    if word in words.groups or word in words.text:
        return f"{word} needs a value: {word}=VALUE"
    groups = [group for group, known in words.groups.items() if word in known]
    advice = f"; did you mean {groups[0]}={word}?" if groups else ", such as seed=1"
    return f'"{word}" is not of the form KEY=VALUE{advice}'


def _unknown_key(key: str, value: str, words: Words) -> str:
    if key[:1] in ("+", "~") and key.lstrip("+~") in {*words.text, *words.groups}:
        return f"{key}: every key of {words.command} is there already; type {key.lstrip('+~')}={value}"
    top = key.split(".")[0]
    in_sections = {known.split(".")[0] for known in words.text if "." in known} | set(words.groups)
    if top in {f.name for f in dataclasses.fields(TrainConfig)} - {*in_sections, *words.text}:
        return _belongs_to_training(key, top, words)
    below = [known for known in words.text if known.startswith(f"{key}.")]
    if below:
        return f"{key} is a section, not a setting; type one of its keys, such as {below[0]}=VALUE"
    return f'{words.command} has no key "{key}"{_nearest_key(key, words)}'


def _belongs_to_training(key: str, top: str, words: Words) -> str:
    if top in FIXED:
        return (
            f"{key} cannot be given to {words.command}: the checkpoint fixes it "
            "(two models that differ in it have identical tensors)"
        )
    return f"{key} is a key of train, not of {words.command}; leave it out"


def _nearest_key(key: str, words: Words) -> str:
    """Name the full key most like ``key``, which may be a tail such as ``max_updates``."""
    known = [*words.text, *words.groups]
    tails = [full for full in known if full.endswith(f".{key}")]
    if tails:
        return "; did you mean " + " or ".join(f'"{full}"' for full in tails) + "?"
    if difflib.get_close_matches(key, known, n=1, cutoff=0.6):
        return nearest(key, known)
    last = {full.rsplit(".", 1)[-1]: full for full in known}
    close = difflib.get_close_matches(key.rsplit(".", 1)[-1], last, n=1, cutoff=0.6)
    return f'; did you mean "{last[close[0]]}"?' if close else "; --help lists the keys"
