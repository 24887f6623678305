"""``--help``: what the schema and the files of ``conf/`` say of themselves, and five examples a command."""

import dataclasses
import re
import shutil
import textwrap
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from minitrans.cli.argv import Words, choices
from minitrans.cli.compose import compose
from minitrans.config import Section, plain
from minitrans.data.bundled import bundled

_COLUMN = 38
_MAX_WIDTH = 120
_MULTIRUN = "  --multirun   one run for each combination of values: seed=1,2 model=tiny,small"

_EXAMPLES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "train": (
        ("", "the default: model=small on the bundled corpus"),
        ("experiment=multi30k_quick data.root=/data/multi30k", "a named recipe on your copy of Multi30k"),
        ("attention=unscaled position=learned seed=2", "two ablations at once, another seed"),
        ("model=tiny training.max_updates=1000 optimizer.lr=4e-3", "one size, three changed values"),
        ("resume=runs/my-run training.max_updates=6000", "go on with a run, to a later end"),
    ),
    "prove": (
        ("", "the promises, on this machine, with the default configuration"),
        ("model=tiny", "quicker"),
        (
            "experiment=multi30k_quick data.root=/data/multi30k",
            "with a named recipe on your copy of Multi30k",
        ),
        ("trainer=cpu", "on the processor, in fp32"),
        ("position=rotary model.norm=rms_norm attention=unscaled", "of other parts"),
    ),
    "ablate": (
        ("study=scaling seeds=[1,2,3] jobs=2", "a shipped study, two cells at once"),
        ("study=positions model=tiny training.max_updates=300", "another base for all of its variants"),
        ("variants='[\"attention=scaled,unscaled model.d_k=8,32\"]'", "a study of your own: 4 combinations"),
        ("study=heads tune=lr max_hours=8", "each variant's learning rate searched first; a night's work"),
        ("study=ffn cluster=slurm jobs=20 slurm_gpus=1 slurm_partition=gpu", "20 jobs at a time in a queue"),
    ),
    "benchmark": (
        ("train model=tiny peers=true", "training, beside others on the same batches"),
        ("train seconds=20 threads=2 profile=runs/trace", "longer windows, and the ten dearest operations"),
        ("decode checkpoint=runs/my-run decode.length=null", "as the model ends its sentences"),
        ("startup data=multi30k data.root=/data/multi30k", "until the first update, and to --help"),
        ("scaling scaling.lengths=[8,64,512] scaling.processes=[1,2]", "growth, drawn into runs/benchmark"),
    ),
    "evaluate": (
        ("checkpoint=runs/my-run", "the run's best checkpoint on its test split"),
        ("checkpoint=runs/my-run search=greedy split=valid", "greedy search, another split"),
        ("checkpoint='runs/*' sanity=true", "a table of all runs, and what frames their scores"),
        ("checkpoint=runs/new baseline=runs/old", "paired tests, and a page of what changed"),
        ("checkpoint=runs/my-run sweep=search", "which beam and length penalty suit it"),
    ),
    "translate": (
        ("checkpoint=runs/my-run < source.txt > translation.txt", "from standard input to standard output"),
        ("checkpoint=runs/my-run input=source.txt output=translation.txt", "from file to file"),
        ("checkpoint=runs/my-run input=source.txt search=greedy", "greedy search, the fastest"),
        ("checkpoint=runs/my-run input=source.txt search.beam_size=10", "a wider beam"),
        ("checkpoint=runs/my-run input=source.txt batch_tokens=512 threads=1", "little memory, one thread"),
    ),
    "inspect_attention": (
        ('checkpoint=runs/my-run text="a dog runs"', "the maps of every layer and head"),
        ('checkpoint=runs/my-run text="a dog runs" output_dir=maps', "into another folder"),
        ('checkpoint=runs/my-run text="a dog runs" target="ein Hund läuft"', "with a translation of yours"),
        ('checkpoint=runs/my-run text="a dog runs" search=greedy', "with the greedy translation"),
        ('checkpoint=runs/my-run/checkpoints/last.ckpt text="a dog runs"', "of one checkpoint"),
    ),
    "diagnose": (
        ("checkpoint=runs/my-run", "variance, entropy, saturation and gradients of every head"),
        ("checkpoint=runs/my-run split=test sentences=500", "on more sentences of another split"),
        ("checkpoint=runs/my-run heads=true search=greedy", "and BLEU with each head masked in turn"),
        ("checkpoint=runs/my-run/checkpoints/last.ckpt", "of one checkpoint"),
        ("checkpoint=runs/my-run output_dir=figures", "into another folder"),
    ),
}


def render(name: str, schema: type, program: str) -> str:
    """The help of one command as text.

    Parameters
    ----------
    name
        The command, the name of its file below ``conf/``.
    schema
        Its dataclass.
    program
        How the user calls it, for the usage line and the examples.
    """
    words = Words.of(name, schema)
    defaults = plain(compose(name, [], schema).config)
    about = " ".join((schema.__doc__ or "").split()).split(": ", 1)[-1]
    lines = [
        f"{name}: {about}",
        "",
        f"usage: {program} [GROUP=CHOICE ...] [KEY=VALUE ...]",
        "  --help       this text",
        "  --cfg job    print the composed configuration and stop",
        *(
            ["  --multirun   one run for each combination of values: seed=1,2 model=tiny,small"]
            * (name == "train")
        ),
        "",
        "groups: a choice sets several keys (* is the default)",
        *(line for group in words.groups for line in _group(group, words)),
        "",
        "keys and their defaults",
        *_keys(schema, defaults, words),
        "",
        "examples",
        *(line for words_, what in _EXAMPLES[name] for line in _example(f"{program} {words_}", what)),
    ]
    return "\n".join(lines)


def _group(group: str, words: Words) -> Iterator[str]:
    folder = bundled("conf") / group
    yield f"  {group}"
    for choice in words.groups[group]:
        mark = "*" if choice == words.defaults[group] else " "
        about = "none of them" if choice == "null" else _first_comment(folder / f"{choice}.yaml")
        yield from _row(f"  {mark} {choice}", about)


def _keys(schema: type, defaults: Mapping[str, Any], words: Words, prefix: str = "") -> Iterator[str]:
    hints = typing.get_type_hints(schema)
    for f in dataclasses.fields(schema):
        key, default = prefix + f.name, defaults[f.name]
        if dataclasses.is_dataclass(hints[f.name]):
            yield from _keys(typing.cast(type, hints[f.name]), default, words, f"{key}.")
        elif hints[f.name] == Section:
            yield from _section(key, default, words)
        else:
            yield from _row(f"  {key}={_value(default)}", f.metadata["doc"])


def _section(group: str, default: Mapping[str, Any], words: Words) -> Iterator[str]:
    """The keys of a family: those of the default choice, then those that other choices add."""
    folder = bundled("conf") / group
    files = {choice: _commented(folder / f"{choice}.yaml") for choice in choices(folder)}
    files = dict(sorted(files.items(), key=lambda item: item[0] != words.defaults[group]))
    for key in dict.fromkeys(key for keys in files.values() for key in keys if key != "kind"):
        known = {choice: keys[key] for choice, keys in files.items() if key in keys}
        everywhere = words.defaults[group] in known or len(known) == len(files)
        where = "" if everywhere else f"(with {group}={' or '.join(known)})"
        value, about = next(iter(known.values()))
        # where no choice is the default, the checkpoint's values are
        shown = "" if words.defaults[group] == "null" else f"={_value(default.get(key, value))}"
        yield from _row(f"  {group}.{key}{shown}", f"{about} {where}".strip())


def _commented(file: Path) -> dict[str, tuple[Any, str]]:
    """The keys of a YAML file of one level, each with its value and the comment behind it."""
    comments = {
        key: about for key, about in re.findall(r"^(\w+):.*?\s#\s*(.*)$", file.read_text("utf-8"), re.M)
    }
    return {str(key): (value, comments.get(str(key), "")) for key, value in OmegaConf.load(file).items()}


def _first_comment(file: Path) -> str:
    lines = file.read_text("utf-8").splitlines()
    comments = [line[1:].strip() for line in lines if line.startswith("#") and "@package" not in line]
    return comments[0] if comments else ""


def _value(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ",".join(_value(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_value(item)}" for key, item in value.items()) + "}"
    return str(value)


def _row(left: str, right: str) -> list[str]:
    width = min(_MAX_WIDTH, shutil.get_terminal_size((100, 24)).columns) - _COLUMN
    right_lines = textwrap.wrap(right, max(width, 30)) or [""]
    if len(left) >= _COLUMN - 1:
        return [left, *(" " * _COLUMN + line for line in right_lines)]
    return [((left if i == 0 else "").ljust(_COLUMN) + line).rstrip() for i, line in enumerate(right_lines)]


def _example(command: str, what: str) -> tuple[str, str]:
    return f"  {command}".rstrip(), f"      {what}"
