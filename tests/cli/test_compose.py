"""Composition: every shipped file, what wins over what, and the configuration that comes out."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from minitrans.build import build_model
from minitrans.cli import argv
from minitrans.cli import compose as composing
from minitrans.cli.argv import Words, choices
from minitrans.cli.compose import Composed, compose
from minitrans.config import (
    DiagnoseConfig,
    EvaluateConfig,
    InspectConfig,
    TrainConfig,
    TranslateConfig,
    construct,
)
from minitrans.data.bundled import bundled
from minitrans.data.corpus import SOURCES
from minitrans.errors import UserError
from minitrans.training.optimizer import OPTIMIZERS
from minitrans.training.schedule import SCHEDULES

COMMANDS: dict[str, type] = {
    "train": TrainConfig,
    "evaluate": EvaluateConfig,
    "translate": TranslateConfig,
    "inspect_attention": InspectConfig,
    "diagnose": DiagnoseConfig,
}
CONF = bundled("conf")
CHOICES = [
    f"{group.name}={choice}"
    for group in sorted(CONF.iterdir())
    if group.is_dir() and group.name != "study"  # ablate's own: tests/ablation composes every variant
    for choice in choices(group)
]


def train(*words: str) -> Composed[TrainConfig]:
    return compose("train", list(words), TrainConfig)


def build(group: str, config: TrainConfig) -> None:
    """Build what the sections describe; a key that a class does not take would be refused."""
    if group in ("model", "position", "attention", "experiment"):
        config.model.num_encoder_layers = config.model.num_decoder_layers = 1
        build_model(config, 11, 11)
    construct(OPTIMIZERS, config.optimizer, {}, "optimizer")
    facts = {"lr": 0.1, "d_model": config.model.d_model, "max_updates": config.training.max_updates}
    construct(SCHEDULES, config.schedule, facts, "schedule")
    construct(SOURCES, config.data, {}, "data")


NEEDED = {
    "data=hub": ["data.name=someone/pairs", "data.src=en", "data.tgt=de"],
    "data=pairs": ["data.train=[a.en,a.de]", "data.valid=[b.en,b.de]", "data.src=en", "data.tgt=de"],
}


@pytest.mark.parametrize("word", CHOICES)
def test_every_shipped_file_composes_and_builds(word: str) -> None:
    composed = train(word, *NEEDED.get(word, []))
    group, choice = word.split("=")
    assert composed.typed[group] == choice
    build(group, composed.config)


@pytest.mark.parametrize(("name", "schema"), COMMANDS.items())
def test_every_group_is_of_a_command_and_every_command_composes(name: str, schema: type) -> None:
    composed = compose(name, [], schema)
    assert isinstance(composed.config, schema)
    assert composed.typed == {}


def test_every_group_can_be_chosen_in_train() -> None:
    assert set(Words.of("train", TrainConfig).groups) == {
        group.name for group in CONF.iterdir() if group.is_dir() and group.name != "study"
    }


def test_the_files_say_what_the_dataclasses_say() -> None:
    assert train().config.model == TrainConfig().model == train("model=small").config.model
    assert train().config.search == TrainConfig().search
    assert train().config.trainer == TrainConfig().trainer
    assert train().config.logger == TrainConfig().logger


@pytest.mark.parametrize(
    ("size", "shape"),
    [
        ("tiny", (4, 4, 128, 4, 256, 0.1)),
        ("small", (3, 3, 256, 4, 1024, 0.05)),
        ("base", (6, 6, 512, 8, 2048, 0.1)),
        ("big", (6, 6, 1024, 16, 4096, 0.3)),
    ],
)
def test_sizes(size: str, shape: tuple[float, ...]) -> None:
    m = train(f"model={size}").config.model
    assert (m.num_encoder_layers, m.num_decoder_layers, m.d_model, m.num_heads, m.d_ff, m.dropout) == shape


def test_the_quick_recipes() -> None:
    quick, run = (train(f"experiment=multi30k_{name}").config for name in ("quick", "speedrun"))
    for c in (quick, run):
        assert (c.data["folder"], c.data["src"], c.data["tgt"]) == ("multi30k", "en", "de")
        assert (c.tokenizer.kind, c.tokenizer.vocab_size, c.tokenizer.joint) == ("bpe", 8000, True)
    assert (quick.data, quick.tokenizer) == (run.data, run.tokenizer)
    assert quick.training.label_smoothing == run.training.label_smoothing
    assert (quick.training.max_updates, run.training.max_updates) == (3000, 900)
    assert (quick.training.update_tokens, run.training.update_tokens) == (4096, 2048)
    assert (quick.optimizer["kind"], quick.optimizer["lr"]) == ("adamw", 4e-3)
    assert (run.optimizer["kind"], run.optimizer["lr"]) == ("muon", 1e-2)
    assert quick.schedule == {"kind": "cosine", "warmup_updates": 300, "floor": 0.02}
    assert run.schedule == {"kind": "cosine", "warmup_updates": 100, "floor": 0.02}


def test_the_shapes_of_the_quick_recipes() -> None:
    quick, run = (train(f"experiment=multi30k_{name}").config for name in ("quick", "speedrun"))
    shapes = [
        (m.num_encoder_layers, m.num_decoder_layers, m.d_model, m.num_heads, m.d_ff, m.dropout)
        for m in (quick.model, run.model)
    ]
    assert shapes == [(4, 4, 128, 4, 256, 0.15), (2, 2, 192, 6, 384, 0.1)]
    assert (quick.position["kind"], run.position["kind"]) == ("sinusoidal", "rotary")


def test_the_published_recipe() -> None:
    c = train("experiment=multi30k_legacy").config
    assert (c.data["folder"], c.data["bleu_tokenize"]) == ("multi30k_lc_tok", "none")
    assert (c.model.d_ff, c.model.dropout, c.model.norm_order) == (256, 0.3, "post")
    assert (c.optimizer["kind"], c.optimizer["lr"], c.schedule["warmup_updates"]) == ("adam", 5e-3, 2000)
    assert (c.training.max_updates, c.training.update_tokens, c.training.average_last) == (8000, 8192, 10)


def test_what_is_typed_wins_over_an_experiment() -> None:
    composed = train("experiment=multi30k_quick", "model=base", "optimizer.lr=1e-5", "schedule=linear")
    assert composed.config.model.d_model == 512
    assert composed.config.model.dropout == 0.15  # the experiment's own value, which no typed word changes
    assert composed.config.optimizer["lr"] == 1e-5
    assert composed.config.schedule["kind"] == "linear"
    assert composed.typed == {
        "experiment": "multi30k_quick",
        "model": "base",
        "schedule": "linear",
        "optimizer.lr": 1e-5,
    }


def test_a_choice_brings_its_own_keys_alone() -> None:
    assert train("optimizer=sgd").config.optimizer == {"kind": "sgd", "lr": 0.1, "momentum": 0.9}
    assert train("attention=unscaled").config.attention["scale"] == 1.0


def test_values_are_noted_typed_and_paths_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    here = os.getcwd()
    composed = train("run_dir=a b=c,d/目录", "model.dropout=0", "data.root=x y", "optimizer.betas=[0.8,0.9]")
    assert composed.config.run_dir == f"{here}/a b=c,d/目录"
    assert composed.typed == {
        "run_dir": f"{here}/a b=c,d/目录",
        "model.dropout": 0.0,
        "data.root": f"{here}/x y",
        "optimizer.betas": [0.8, 0.9],
    }
    assert os.listdir(here) == []  # composing leaves nothing behind


def test_a_data_key_alone_and_a_data_set_reach_evaluate() -> None:
    alone = compose("evaluate", ["data.root=/x"], EvaluateConfig)
    assert alone.config.data == {"root": "/x"}
    whole = compose("evaluate", ["data=multi30k", "data.tgt=fr"], EvaluateConfig)
    assert (whole.config.data["kind"], whole.config.data["tgt"]) == ("text", "fr")
    assert compose("evaluate", [], EvaluateConfig).config.data == {}


def test_one_side_may_have_other_positions() -> None:
    config = train("position.encoder=none").config
    assert (config.position["kind"], config.position["encoder"], config.position["decoder"]) == (
        "sinusoidal",
        "none",
        None,
    )


@pytest.mark.parametrize(
    "text", ["Ein Hund, (links) = {x}: 'ja' ${y}", "", "${", "???", "\\", "a\nb", "null", "一只狗"]
)
def test_a_sentence_of_any_kind_is_read_as_typed(text: str) -> None:
    assert compose("inspect_attention", [f"text={text}"], InspectConfig).config.text == text


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["model.d_ff=abc"], "the configuration: model.d_ff is 'abc', but must be a whole number"),
        (["model.d_ff="], "the configuration: model.d_ff is '', but must be a whole number"),
        (["seed=1,2"], "the configuration: seed is '1,2', but must be a whole number"),
        (["model.dropout=1"], "the configuration: model.dropout is 1.0, but must be at least 0 and below 1"),
        (
            ["model.num_heads=3"],
            "model.d_model=256 is not a multiple of model.num_heads=3; change one of them or give model.d_k",
        ),
    ],
)
def test_a_wrong_value_is_told_in_one_sentence(words: list[str], sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        train(*words)
    assert str(caught.value) == sentence


# -- the language code "no" and rates in exponent form, typed and in a file ----------------


@pytest.fixture
def own_conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the configuration folder that a test may write into."""
    folder = shutil.copytree(CONF, tmp_path / "conf")
    for module in (argv, composing):
        monkeypatch.setattr(module, "bundled", lambda name: tmp_path / name)
    return folder


def test_the_language_no_on_the_command_line_is_text() -> None:
    config = train("data=pairs", "data.train=[train.da,train.no]", "data.src=da", "data.tgt=no").config
    assert (config.data["tgt"], config.data["train"][1]) == ("no", os.path.abspath("train.no"))


def test_the_language_no_unquoted_in_a_file_is_told(own_conf: Path) -> None:
    (own_conf / "data" / "danish.yaml").write_text(
        "kind: text\nroot: /x\ntrain: train\nvalid: valid\ntest: test\nsrc: da\ntgt: no\n"
    )
    config = train("data=danish").config
    with pytest.raises(UserError) as caught:
        construct(SOURCES, config.data, {}, "data")
    assert str(caught.value) == (
        "the configuration: data.tgt was read as the truth value False; words such as no, yes, on and off "
        "must be quoted where text is meant (data.tgt: 'no')"
    )


@pytest.mark.parametrize(("written", "rate"), [("1e-4", 0.0001), ("1e-05", 0.00001), ("0.0001", 0.0001)])
def test_a_rate_is_a_number_however_it_is_written(written: str, rate: float, own_conf: Path) -> None:
    (own_conf / "experiment" / "rate.yaml").write_text(f"# @package _global_\noptimizer:\n  lr: {written}\n")
    for word in (f"optimizer.lr={written}", "experiment=rate"):
        config = train(word).config
        optimizer: Any = construct(OPTIMIZERS, config.optimizer, {}, "optimizer")
        built = optimizer.build(torch.nn.Linear(2, 2))
        assert config.optimizer["lr"] == rate
        assert [group["lr"] for group in built.param_groups] == [rate, rate]


def test_a_target_in_a_file_is_refused_by_name(own_conf: Path) -> None:
    (own_conf / "model" / "evil.yaml").write_text("_target_: os.system\ncommand: touch FLAG\n")
    with pytest.raises(UserError, match=r"unknown key \"model._target_\" = 'os.system'"):
        train("model=evil")


def test_a_broken_file_is_told_in_one_sentence(own_conf: Path) -> None:
    (own_conf / "experiment" / "broken.yaml").write_text("# @package _global_\nseed: ${nowhere}\n")
    with pytest.raises(UserError, match=r"^the configuration cannot be composed: [^\n]*nowhere[^\n]*$"):
        train("experiment=broken")
