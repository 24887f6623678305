"""Checkpoints are plain data, whole or absent, self-contained, and averaged by hand; BR-29."""

import dataclasses
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from minitrans import checkpoint
from minitrans.build import build_model
from minitrans.checkpoint import Checkpoint, Progress
from minitrans.config import Experiment, ModelConfig, TokenizerConfig, plain
from minitrans.data.tokenizer import Tokenizers, train_tokenizer
from minitrans.errors import UserError
from minitrans.model.attention import ScaledDotProductAttention


@pytest.fixture(scope="module")
def content() -> Checkpoint:
    """What a run of 7 updates could have saved, with a moving average that is not its weights."""
    both = train_tokenizer(["abc cba", "bca acb"], TokenizerConfig(kind="char", vocab_size=20))
    experiment = Experiment(
        model=ModelConfig(num_encoder_layers=1, num_decoder_layers=1, d_model=16, num_heads=2, d_ff=32),
        position={"kind": "learned", "max_length": 16},
        attention={"kind": "scaled_dot_product", "scale": 1.0},
        data={"kind": "pairs", "src": "x", "tgt": "y", "train": ["a=b, c.x", "犬.y"], "valid": "v.tsv"},
        optimizer={"kind": "adamw", "lr": 1e-4, "betas": [0.9, 0.98]},
    )
    model = build_model(experiment, both.vocab_size, both.vocab_size)
    weights = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    return Checkpoint(
        path=Path("nowhere.ckpt"),
        experiment=experiment,
        tokenizers=Tokenizers(both, both),
        model=weights,
        ema={name: tensor + 1 for name, tensor in weights.items()},
        optimizer={"state": {0: {"step": torch.tensor(7.0)}}, "param_groups": [{"lr": 0.5, "params": [0]}]},
        progress=Progress(7, 1234, 5.5, 21.5, 4, 2, {"smoothed": 3.25, "target_tokens": 9}),
    )


@pytest.fixture
def saved(content: Checkpoint, tmp_path: Path) -> Callable[..., Path]:
    """Writes the content with some fields changed, and returns the file."""

    def write(name: str = "step-000007.ckpt", **changes: Any) -> Path:
        path = tmp_path / name
        checkpoint.save(dataclasses.replace(content, path=path, **changes))
        return path

    return write


def rewritten(path: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """The same file with its plain data changed by hand."""
    data = torch.load(path, weights_only=True)
    change(data)
    torch.save(data, path)
    return path


# What goes in comes out


@pytest.mark.parametrize("fast", [True, False])
def test_a_model_that_was_trained_without_the_fast_twins_searches_without_them(
    saved: Callable[..., Path], content: Checkpoint, fast: bool
) -> None:
    training = dataclasses.replace(content.experiment.training, fast=fast)
    path = saved(experiment=dataclasses.replace(content.experiment, training=training))
    assert checkpoint.load(path).model.fast is fast


def test_everything_comes_back(saved: Callable[..., Path], content: Checkpoint) -> None:
    found = checkpoint.read(saved())
    assert found.experiment == content.experiment
    assert found.progress == content.progress
    assert found.tokenizers.state() == content.tokenizers.state()
    assert found.optimizer is not None and found.ema is not None and content.ema is not None
    assert torch.equal(found.optimizer["state"][0]["step"], torch.tensor(7.0))
    assert found.optimizer["param_groups"] == [{"lr": 0.5, "params": [0]}]
    for name, tensor in content.model.items():
        assert torch.equal(found.model[name], tensor)
        assert torch.equal(found.ema[name], content.ema[name])


def test_the_file_is_plain_data(saved: Callable[..., Path], content: Checkpoint) -> None:
    data = torch.load(saved(), weights_only=True)
    assert sorted(data) == sorted(
        ["format", "version", "experiment", "tokenizers", "model", "ema", "optimizer", "progress"]
    )
    assert data["experiment"] == plain(content.experiment)


def test_the_model_is_rebuilt_from_its_own_configuration_with_the_average(
    saved: Callable[..., Path], content: Checkpoint
) -> None:
    loaded = checkpoint.load(saved())
    assert not loaded.model.training
    assert content.ema is not None
    for name, tensor in loaded.model.state_dict().items():
        assert torch.equal(tensor, content.ema[name])
    assert {core.scale for core in loaded.model.modules() if isinstance(core, ScaledDotProductAttention)} == {
        1.0
    }
    without = checkpoint.load(saved("other.ckpt", ema=None))
    for name, tensor in without.model.state_dict().items():
        assert torch.equal(tensor, content.model[name])


# What is refused, in one sentence that names the file


class Runs:
    """Unpickled, it runs a command."""

    def __init__(self, flag: Path) -> None:
        self.flag = flag

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch '{self.flag}'",)


@pytest.mark.parametrize("form", ["torch", "pickle", "inside"])
def test_code_in_the_file_does_not_run(form: str, saved: Callable[..., Path], tmp_path: Path) -> None:
    flag, path = tmp_path / "FLAG", tmp_path / "evil.ckpt"
    if form == "torch":
        torch.save(Runs(flag), path)
    elif form == "pickle":
        path.write_bytes(pickle.dumps(Runs(flag)))
    else:
        data = torch.load(saved(), weights_only=True)
        torch.save({**data, "progress": Runs(flag)}, path)
    words = "is no checkpoint; give a .ckpt file" if form == "pickle" else "more than plain data"
    with pytest.raises(UserError, match=rf"evil\.ckpt.*{words}"):
        checkpoint.load(path)
    assert not flag.exists()
    torch.load(path, weights_only=False) if form != "pickle" else pickle.loads(path.read_bytes())
    assert flag.exists()  # it was a charged file


@pytest.mark.parametrize(
    ("target", "arguments"), [("os.system", ["touch FLAG"]), ("builtins.open", ["FLAG", "w"])]
)
@pytest.mark.parametrize("section", ["optimizer", "position", "attention", "data", "model", ""])
def test_a_target_in_the_stored_configuration_is_refused_by_name(
    section: str, target: str, arguments: list[str], saved: Callable[..., Path],
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """BR-29."""
    monkeypatch.chdir(tmp_path)

    def plant(data: dict[str, Any]) -> None:
        place = data["experiment"][section] if section else data["experiment"]
        place.update({"_target_": target, "_args_": arguments})

    path = rewritten(saved(), plant)
    for read in (checkpoint.read, checkpoint.load):
        with pytest.raises(UserError, match=rf"step-000007\.ckpt.*_target_.*{target}"):
            read(path)
    assert not Path("FLAG").exists()


def test_a_target_deep_in_a_section_is_refused(saved: Callable[..., Path]) -> None:
    path = rewritten(
        saved(), lambda data: data["experiment"]["data"].update(extra_tests={"_target_": "os.system"})
    )
    with pytest.raises(UserError, match=r"data\.extra_tests\._target_.*os\.system"):
        checkpoint.load(path)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.5, 0.9, 0.999])
def test_a_file_that_is_cut_short_is_refused(share: float, saved: Callable[..., Path]) -> None:
    path = saved()
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(UserError, match=rf"{path} is damaged"):
        checkpoint.read(path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "damaged"),
        (b"\x00" * 500, "damaged"),
        (b"PK\x03\x04 no zip", "damaged"),
        (b"text\n", "no checkpoint; give a .ckpt file"),
        (b"\x80\x04.", "no checkpoint; give a .ckpt file"),
    ],
)
def test_a_file_of_something_else_is_refused(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "x.ckpt"
    path.write_bytes(content)
    with pytest.raises(UserError, match=rf"x\.ckpt is {said}"):
        checkpoint.read(path)


@pytest.mark.parametrize("data", [[1, 2], "text", {}, {"state_dict": {}}])
def test_plain_data_of_something_else_is_refused(data: Any, tmp_path: Path) -> None:
    torch.save(data, tmp_path / "x.ckpt")
    with pytest.raises(UserError, match=r"x\.ckpt is not a checkpoint of minitrans"):
        checkpoint.read(tmp_path / "x.ckpt")


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("format", 99, "the checkpoint format 99.* this version reads 1"),
        ("format", "1", "its format is of another type"),
        ("experiment", [], "its experiment is of another type"),
        ("model", None, "its model is of another type"),
        ("model", {"weight": 3}, "weight is no tensor"),
        ("ema", {"weight": [1.0]}, "weight is no tensor"),
        ("optimizer", 3, "its optimizer is of another type"),
        ("progress", {"update": 3, "speed": 1}, '"speed"'),
        ("progress", {"update": "3"}, "update is '3'"),
        ("tokenizers", {"src": "{", "tgt": None}, "damaged tokenizers"),
        ("experiment", {"model": {"d_modle": 3}}, "d_model"),
    ],
)
def test_values_of_another_form_are_refused(
    key: str, value: Any, words: str, saved: Callable[..., Path]
) -> None:
    path = rewritten(saved(), lambda data: data.update({key: value}))
    with pytest.raises(UserError, match=rf"step-000007\.ckpt.*{words}"):
        checkpoint.read(path)


def test_tensors_that_do_not_fit_the_configuration_are_refused_by_name(
    saved: Callable[..., Path], content: Checkpoint
) -> None:
    assert content.ema is not None
    name = "encoder.embedding.weight"
    other_shape = {**content.ema, name: torch.zeros(3, 16)}
    shape = tuple(content.model[name].shape)
    with pytest.raises(UserError, match=rf"{name} has the shape \(3, 16\), not \({shape[0]}, 16\)"):
        checkpoint.load(saved(ema=other_shape))
    missing = {key: tensor for key, tensor in content.ema.items() if key != name}
    with pytest.raises(UserError, match=rf"tensor {name} is on one side only"):
        checkpoint.load(saved(ema=missing))
    with pytest.raises(UserError, match=r"tensor spare\.weight is on one side only"):
        checkpoint.load(saved(ema={**content.ema, "spare.weight": torch.zeros(1)}))


# Which file a path means


def test_a_run_folder_means_its_best_else_its_last(tmp_path: Path) -> None:
    folder = tmp_path / "a run, 2=犬"
    (folder / "checkpoints").mkdir(parents=True)
    with pytest.raises(UserError, match="holds no checkpoints/best"):
        checkpoint.resolve(folder)
    for name in ("last.ckpt", "best.ckpt"):
        (folder / "checkpoints" / name).touch()
        assert checkpoint.resolve(folder) == folder / "checkpoints" / name
        assert checkpoint.resolve(str(folder / "checkpoints")) == folder / "checkpoints" / name
        assert checkpoint.resolve(folder / "checkpoints" / name) == folder / "checkpoints" / name
    with pytest.raises(UserError, match=r"checkpoint .*nothing\.ckpt does not exist"):
        checkpoint.resolve(tmp_path / "nothing.ckpt")
    with pytest.raises(UserError, match="checkpoint= is missing"):
        checkpoint.resolve("")


# Whole or absent


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("before", [None, b"the old content"])
@pytest.mark.parametrize(
    "failure",
    [OSError(28, "No space left on device"), RuntimeError("PytorchStreamWriter failed"), KeyboardInterrupt()],
)
def test_a_write_that_fails_half_way_leaves_what_was_there(
    failure: BaseException, before: bytes | None, tmp_path: Path
) -> None:
    path = tmp_path / "last.ckpt"
    if before is not None:
        path.write_bytes(before)

    def half(partial: Path) -> None:
        partial.write_bytes(b"half")
        raise failure

    told = KeyboardInterrupt if isinstance(failure, KeyboardInterrupt) else UserError
    with pytest.raises(told) as caught:
        checkpoint.write_whole(path, half)
    assert names_in(tmp_path) == ([] if before is None else ["last.ckpt"])
    assert before is None or path.read_bytes() == before
    if isinstance(failure, OSError):
        assert str(caught.value) == (
            f"{path} could not be written: [Errno 28] No space left on device; "
            "free some space or give another run_dir"
        )


def test_two_may_write_one_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "study.json"

    def outer(partial: Path) -> None:
        partial.write_bytes(b"outer")
        checkpoint.write_whole(path, lambda other: other.write_bytes(b"inner"))
        assert path.read_bytes() == b"inner"

    checkpoint.write_whole(path, outer)
    assert path.read_bytes() == b"outer"
    assert names_in(tmp_path) == ["study.json"]


def test_a_checkpoint_that_cannot_be_written_leaves_the_one_before(
    saved: Callable[..., Path], content: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved()

    def full(data: object, partial: Path) -> None:
        partial.write_bytes(b"PK half")
        raise RuntimeError(
            "[enforce fail at inline_container.cc:815] . PytorchStreamWriter failed writing file"
        )

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(UserError, match="free some space"):
        saved(progress=Progress(update=8))
    monkeypatch.undo()
    assert checkpoint.read(path).progress.update == 7
    assert names_in(path.parent) == ["step-000007.ckpt"]


def test_a_name_stands_for_the_same_file_and_outlives_it(saved: Callable[..., Path]) -> None:
    step = saved()
    best = step.with_name("best.ckpt")
    best.write_bytes(b"an older best")
    checkpoint.link(step, best)
    assert best.samefile(step)
    step.unlink()
    assert checkpoint.read(best).progress.update == 7


def test_a_name_is_a_copy_where_the_disk_has_no_links(
    saved: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: Path, name: Path) -> None:
        raise OSError("no hard links here")

    monkeypatch.setattr(os, "link", refuse)
    step = saved()
    checkpoint.link(step, step.with_name("last.ckpt"))
    assert step.with_name("last.ckpt").read_bytes() == step.read_bytes()
    assert not step.with_name("last.ckpt").samefile(step)


# Averages


def filled(content: Checkpoint, value: float) -> dict[str, Tensor]:
    return {name: torch.full_like(tensor, value) for name, tensor in content.model.items()}


def test_the_average_of_tied_weights_is_one_value_under_all_names(
    saved: Callable[..., Path], content: Checkpoint, tmp_path: Path
) -> None:
    """facebookresearch/fairseq#747: 1.0 and 3.0 give 2.0 under both names."""
    paths = [
        saved(f"step-00000{i}.ckpt", model=filled(content, value), ema=None, progress=Progress(update=i))
        for i, value in ((1, 1.0), (2, 3.0))
    ]
    checkpoint.average(paths, tmp_path / "average.ckpt")
    loaded = checkpoint.load(tmp_path / "average.ckpt")
    weights = loaded.model.state_dict()
    assert torch.equal(
        weights["encoder.embedding.weight"], torch.full_like(weights["encoder.embedding.weight"], 2.0)
    )
    assert torch.equal(weights["decoder.embedding.weight"], weights["encoder.embedding.weight"])
    assert all(torch.equal(tensor, torch.full_like(tensor, 2.0)) for tensor in weights.values())
    assert loaded.progress.update == 2
    assert checkpoint.read(tmp_path / "average.ckpt").optimizer is None


def test_the_average_takes_the_moving_averages_where_there_are_any(
    saved: Callable[..., Path], content: Checkpoint, tmp_path: Path
) -> None:
    paths = [
        saved(f"step-00000{i}.ckpt", model=filled(content, 100.0), ema=filled(content, value))
        for i, value in ((1, 0.0), (2, 1.0), (3, 5.0))
    ]
    checkpoint.average(paths, tmp_path / "average.ckpt")
    found = checkpoint.read(tmp_path / "average.ckpt")
    assert found.ema is None
    assert all(torch.equal(tensor, torch.full_like(tensor, 2.0)) for tensor in found.model.values())
    assert all(tensor.dtype == torch.float32 for tensor in found.model.values())


def test_an_average_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no checkpoints to average"):
        checkpoint.average([], tmp_path / "average.ckpt")


@pytest.mark.parametrize("key", ["model", "model.d_model", "attention", "tokenizer.joint"])
def test_a_configuration_with_gaps_is_not_filled_with_defaults(saved: Callable[..., Path], key: str) -> None:
    def cut(data: dict[str, Any]) -> None:
        section = data["experiment"]
        *sections, name = key.split(".")
        for part in sections:
            section = section[part]
        del section[name]

    with pytest.raises(UserError, match=f"its configuration lacks {re.escape(key)};"):
        checkpoint.read(rewritten(saved(), cut))


def test_a_search_setting_of_a_later_version_takes_its_default(saved: Callable[..., Path]) -> None:
    path = rewritten(saved(), lambda data: data["experiment"]["search"].pop("alpha"))
    assert checkpoint.read(path).experiment.search.alpha == Experiment().search.alpha


def test_a_flipped_bit_is_found(saved: Callable[..., Path], content: Checkpoint) -> None:
    path = saved()
    data = bytearray(path.read_bytes())
    place = data.find(content.model["encoder.embedding.weight"].numpy().tobytes())
    assert place > 0
    data[place] ^= 1
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"is damaged: .* is not what was written; use an older one"):
        checkpoint.read(path)
