"""Checkpoints cut short, of another shape, or with something in them that could run: all are refused."""

import copy
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.integration.commands import ForkServer, snapshot

# What each command is typed with besides the checkpoint; a resume goes by another key.
COMMANDS: dict[str, tuple[str, list[str]]] = {
    "translate": ("checkpoint", []),
    "evaluate": ("checkpoint", []),
    "inspect_attention": ("checkpoint", ["text=a dog runs ."]),
    "train": ("resume", ["training.max_updates=5"]),
}

CUT_SHORT = "{} is damaged (cut short?) and cannot be read; use an older one"


class Planted:
    """Runs a command when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.folder}/FLAG",)


Content = dict[str, Any]
Refused = Callable[[str, Path], str]


@pytest.fixture
def content(good_run: Path) -> Content:
    """What a good checkpoint holds."""
    return torch.load(good_run / "checkpoints" / "best.ckpt", weights_only=True)


@pytest.fixture
def refused(server: ForkServer, tmp_path: Path) -> Refused:
    """Runs a command on a checkpoint that it must refuse; returns its sentence."""

    def refused(command: str, path: Path) -> str:
        key, words = COMMANDS[command]
        before = snapshot(tmp_path)
        done = server.run(command, f"{key}={path}", *words, folder=tmp_path, stdin="a dog runs .\n")
        assert snapshot(tmp_path) == before
        assert done.out == ""
        return done.sentence

    return refused


@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_cut_short_is_refused(command: str, good_run: Path, tmp_path: Path, refused: Refused) -> None:
    whole = (good_run / "checkpoints" / "best.ckpt").read_bytes()
    path = tmp_path / "cut.ckpt"
    path.write_bytes(whole[: len(whole) // 2])
    assert refused(command, path) == CUT_SHORT.format(path)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_tensor_of_another_shape_is_refused(
    command: str, content: Content, tmp_path: Path, refused: Refused
) -> None:
    content["model"]["encoder.embedding.weight"] = torch.zeros(3, 16)
    path = tmp_path / "shape.ckpt"
    torch.save(content, path)
    assert refused(command, path) == (
        f"{path} does not fit its own configuration: encoder.embedding.weight has the shape (3, 16), "
        "not (49, 16); use another checkpoint"
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_code_in_the_file_is_not_run(
    command: str, content: Content, tmp_path: Path, refused: Refused
) -> None:
    path = tmp_path / "planted.ckpt"
    torch.save({**content, "more": Planted(tmp_path)}, path)
    assert refused(command, path) == (
        f"{path} holds more than plain data and was not opened, since it could run code; "
        "use one that scripts/train.py wrote"
    )
    assert not (tmp_path / "FLAG").exists()
    pickle.loads(pickle.dumps(Planted(tmp_path)))
    assert (tmp_path / "FLAG").exists()  # so that its absence above means something


TARGETS: dict[str, Content] = {
    "os.system": {"command": "touch FLAG"},
    "builtins.open": {"file": "FLAG", "mode": "w"},
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("command", "section"),
    [("translate", section) for section in ("", "model", "position", "data")]
    + [("evaluate", "data"), ("inspect_attention", ""), ("train", "optimizer")],
)
def test_a_target_in_the_stored_configuration_is_named_and_not_called(
    command: str, section: str, target: str, content: Content, tmp_path: Path, refused: Refused
) -> None:
    planted = copy.deepcopy(content)
    stored = planted["experiment"][section] if section else planted["experiment"]
    stored |= {"_target_": target, **TARGETS[target]}
    path = tmp_path / "planted.ckpt"
    torch.save(planted, path)
    key = f"{section}._target_" if section else "_target_"
    assert refused(command, path).startswith(
        f'the configuration in {path} has the unknown key "{key}" = {target!r}; '
    )
    assert not (tmp_path / "FLAG").exists()


def test_a_kind_that_names_code_is_refused(content: Content, tmp_path: Path, refused: Refused) -> None:
    content["experiment"]["position"]["kind"] = "os.system"
    path = tmp_path / "planted.ckpt"
    torch.save(content, path)
    assert refused("translate", path) == (
        'position.kind cannot be "os.system"; choose one of "learned", "none", "rotary", "sinusoidal"'
    )


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"format": 2}, "has the checkpoint format 2, but this version reads 1; use version"),
        ({"model": "weights"}, "is damaged: its model is of another type; use an older one"),
        ({"model": {"weight": 1.0}}, "is damaged: weight is no tensor; use an older one"),
        ({"experiment": [1]}, "is damaged: its experiment is of another type; use an older one"),
        ({"tokenizers": {"joint": True}}, "holds damaged tokenizers ('src'); use an older one"),
        ({"progress": {"steps": 1}}, 'has the unknown key "steps" = 1'),
    ],
)
def test_plain_data_of_another_form_is_refused(
    change: Content, told: str, content: Content, tmp_path: Path, refused: Refused
) -> None:
    path = tmp_path / "other.ckpt"
    torch.save({**content, **change}, path)
    sentence = refused("translate", path)
    assert str(path) in sentence
    assert told in sentence


def test_an_empty_file_is_one_cut_short(tmp_path: Path, refused: Refused) -> None:
    path = tmp_path / "notes.ckpt"
    path.write_bytes(b"")
    assert refused("translate", path) == CUT_SHORT.format(path)


def test_a_file_of_another_kind_is_refused(tmp_path: Path, refused: Refused) -> None:
    path = tmp_path / "notes.ckpt"
    path.write_bytes(b"hello\n")
    assert refused("translate", path).endswith(
        f"{path} is no checkpoint; give a .ckpt file that scripts/train.py wrote, or a run folder"
    )


def test_another_products_checkpoint_is_refused(tmp_path: Path, refused: Refused) -> None:
    path = tmp_path / "other.ckpt"
    torch.save({"state_dict": {}, "epoch": 3}, path)
    assert refused("evaluate", path) == (
        f"{path} is not a checkpoint of minitrans; give one that scripts/train.py wrote"
    )
