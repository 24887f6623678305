"""The typed configuration: types, ranges, choices, families, and what it refuses."""

import dataclasses
import os
import typing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitrans.config import (
    EvaluateConfig,
    Experiment,
    InspectConfig,
    ModelConfig,
    SearchConfig,
    TrainConfig,
    TrainingConfig,
    TranslateConfig,
    absolute_paths,
    check,
    construct,
    parse,
    plain,
    typed,
)
from minitrans.errors import UserError

COMMANDS = (TrainConfig, EvaluateConfig, TranslateConfig, InspectConfig)


def refusal(schema: type, data: dict[str, Any]) -> str:
    with pytest.raises(UserError) as caught:
        parse(schema, data)
    return str(caught.value)


@pytest.mark.parametrize("schema", COMMANDS)
def test_plain_data_and_back_is_the_same_configuration(schema: type) -> None:
    assert parse(schema, plain(schema())) == schema()


def test_a_missing_key_takes_its_default_and_a_given_one_is_kept() -> None:
    config = parse(TrainConfig, {"model": {"d_model": 64}, "training": {"clip_norm": None}})
    assert (config.model.d_model, config.model.d_ff, config.training.clip_norm) == (64, 1024, None)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (
            {"modle": {"d_model": 3}},
            'the configuration has the unknown key "modle" = {\'d_model\': 3}; did you mean "model"?',
        ),
        (
            {"model": {"d_modle": 3}},
            'the configuration has the unknown key "model.d_modle" = 3; did you mean "d_model"?',
        ),
        ({"model": 3}, "the configuration: model is 3 where a section of keys is needed"),
        ({"seed": 1.5}, "the configuration: seed is 1.5, but must be a whole number"),
        ({"seed": True}, "the configuration: seed is True, but must be a whole number"),
        ({"model": {"d_k": "x"}}, "the configuration: model.d_k is 'x', but must be a whole number or null"),
        ({"model": {"bias": 1}}, "the configuration: model.bias is 1, but must be true or false"),
        ({"model": {"dropout": None}}, "the configuration: model.dropout is None, but must be a number"),
        (
            {"training": {"metric": "blue"}},
            'the configuration: training.metric cannot be "blue"; did you mean "bleu"?',
        ),
        ({"optimizer": 3}, "the configuration: optimizer is 3, but must be a section of keys"),
    ],
)
def test_a_wrong_key_or_type_is_told_in_one_sentence(data: dict[str, Any], sentence: str) -> None:
    assert refusal(TrainConfig, data) == sentence


@pytest.mark.parametrize(
    ("section", "key", "value", "rule"),
    [
        ("model", "dropout", 1.0, "at least 0 and below 1"),
        ("model", "dropout", -0.1, "at least 0 and below 1"),
        ("model", "num_heads", 0, "at least 1"),
        ("model", "d_v", 0, "at least 1"),
        ("training", "label_smoothing", 1.0, "at least 0 and below 1"),
        ("training", "clip_norm", 0.0, "above 0"),
        ("training", "ema_decay", 1.0, "above 0 and below 1"),
        ("training", "max_updates", 0, "at least 1"),
        ("trainer", "devices", 0, "at least 1"),
        ("search", "beam_size", 0, "at least 1 and at most 10000"),
        ("cleaning", "max_ratio", 0.9, "at least 1"),
    ],
)
def test_a_number_out_of_its_range_is_refused(section: str, key: str, value: float, rule: str) -> None:
    expected = f"the configuration: {section}.{key} is {value}, but must be {rule}"
    assert refusal(TrainConfig, {section: {key: value}}) == expected


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("model", "dropout", 0.0),
        ("model", "dropout", 0.999),
        ("model", "d_k", None),
        ("model", "num_heads", 1),
        ("training", "clip_norm", 1e-3),
        ("training", "average_last", 0),
        ("cleaning", "max_ratio", 1.0),
    ],
)
def test_the_ends_of_a_range_are_accepted(section: str, key: str, value: float | None) -> None:
    config = parse(TrainConfig, {section: {key: value}})
    assert getattr(getattr(config, section), key) == value


def _leaves(schema: type, prefix: str = "") -> list[tuple[str, Any, dataclasses.Field[Any]]]:
    found = []
    for f in dataclasses.fields(schema):
        hint = typing.get_type_hints(schema)[f.name]
        inner = _leaves(hint, f"{prefix}{f.name}.") if dataclasses.is_dataclass(hint) else None
        found += inner if inner is not None else [(prefix + f.name, hint, f)]
    return found


@pytest.mark.parametrize("schema", COMMANDS)
def test_every_key_is_documented_and_every_number_has_a_lower_bound(schema: type) -> None:
    for key, hint, f in _leaves(schema):
        assert f.metadata["doc"], key
        if {int, float} & {hint, *typing.get_args(hint)}:
            assert (f.metadata["low"], f.metadata["above"]) != (None, None), key


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_float_is_read_from_its_text_as_from_itself(number: float) -> None:
    assert typed(repr(number), float, "optimizer.lr") == typed(number, float, "optimizer.lr") == number


@pytest.mark.parametrize("value", ["nan", "inf", float("nan"), float("-inf"), "1e", "", True, None])
def test_what_is_no_finite_number_is_refused(value: Any) -> None:
    with pytest.raises(UserError, match=r"optimizer\.lr is .* but must be a number"):
        typed(value, float, "optimizer.lr")


def test_a_truth_value_where_text_is_meant_says_what_to_quote() -> None:
    with pytest.raises(UserError) as caught:
        typed(False, str, "data.tgt")
    assert "data.tgt was read as the truth value False" in str(caught.value)
    assert "quoted where text is meant (data.tgt: 'no')" in str(caught.value)


# -- a configuration names no code -----------------------------------------------------


@pytest.mark.parametrize("target", ["os.system", "builtins.open"])
@pytest.mark.parametrize("section", ["model", "optimizer", "position", "data", "tokenizer"])
def test_a_target_is_an_unknown_key_and_is_named(section: str, target: str) -> None:
    sentence = refusal(TrainConfig, {section: {"_target_": target, "_args_": ["touch FLAG"]}})
    assert f'unknown key "{section}._target_" = {target!r}' in sentence


def test_a_target_deep_in_a_section_is_refused_too() -> None:
    sentence = refusal(TrainConfig, {"position": {"encoder": {"_target_": "os.system"}}})
    assert "unknown key \"position.encoder._target_\" = 'os.system'" in sentence


# -- families --------------------------------------------------------------------------


class Steep:
    def __init__(self, lr: float, betas: tuple[float, float] = (0.9, 0.98), name: str = "x"):
        if lr < 0:
            raise ValueError("lr is negative")
        self.lr, self.betas, self.name = lr, betas, name


class Ramp:
    def __init__(self, warmup: int, slope: float):
        self.warmup, self.slope = warmup, slope


FAMILY: dict[str, type] = {"steep": Steep, "ramp": Ramp}


def test_construct_passes_settings_and_the_facts_that_the_class_asks_for() -> None:
    built: Any = construct(FAMILY, {"kind": "steep", "lr": "1e-4", "betas": [0, 0.5]}, {"d_model": 4}, "s")
    assert (built.lr, built.betas, built.name) == (0.0001, [0.0, 0.5], "x")
    ramp: Any = construct(FAMILY, {"kind": "ramp", "slope": 2}, {"warmup": 7, "lr": 1.0}, "s")
    assert (ramp.warmup, ramp.slope) == (7, 2.0)


@pytest.mark.parametrize(
    ("section", "sentence"),
    [
        ({"kind": "stepe", "lr": 1}, 's.kind cannot be "stepe"; did you mean "steep"?'),
        ({"lr": 1}, 's.kind is missing; choose one of "ramp", "steep"'),
        ({"kind": "os.system"}, 's.kind cannot be "os.system"; choose one of "ramp", "steep"'),
        (
            {"kind": "steep", "lr": 1, "beta": 3},
            's.beta = 3 means nothing with s=steep; did you mean "betas"?',
        ),
        ({"kind": "steep", "lr": "high"}, "the configuration: s.lr is 'high', but must be a number"),
        ({"kind": "steep", "lr": 1, "betas": 3}, "the configuration: s.betas is 3, but must be a list of 2"),
        (
            {"kind": "steep", "lr": 1, "betas": [0.9]},
            "the configuration: s.betas is [0.9], but must be a list of 2",
        ),
        (
            {"kind": "steep", "lr": 1, "betas": ["a", 0.5]},
            "the configuration: s.betas[0] is 'a', but must be a number",
        ),
        ({"kind": "steep", "lr": -1}, "s=steep: lr is negative"),
        ({"kind": "ramp"}, "s=ramp needs s.warmup and s.slope"),
        (
            {"kind": "ramp", "d_model": 2},
            's.d_model = 2 means nothing with s=ramp; choose one of "slope", "warmup"',
        ),
    ],
)
def test_construct_refuses_in_one_sentence(section: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        construct(FAMILY, section, {"d_model": 4}, "s")
    assert str(caught.value) == sentence


# -- across keys -----------------------------------------------------------------------


def test_heads_must_divide_the_width_unless_d_k_is_given() -> None:
    experiment = Experiment(model=ModelConfig(d_model=16, num_heads=3))
    with pytest.raises(UserError, match=r"model.d_model=16 is not a multiple of model.num_heads=3"):
        check(experiment)
    check(Experiment(model=ModelConfig(d_model=16, num_heads=3, d_k=5)))
    check(Experiment(model=ModelConfig(d_model=16, num_heads=4)))


def test_one_table_for_both_sides_needs_one_vocabulary() -> None:
    experiment = Experiment(model=ModelConfig(tie="all"))
    experiment.tokenizer.joint = False
    with pytest.raises(UserError, match=r"tokenizer.joint=false .* model.tie=all needs one for both"):
        check(experiment)
    experiment.model.tie = "decoder"
    check(experiment)


def test_no_more_checkpoints_are_averaged_than_are_kept() -> None:
    with pytest.raises(UserError, match=r"training.average_last=4 .* training.keep_last=3"):
        check(Experiment(training=TrainingConfig(average_last=4, keep_last=3)))
    check(Experiment(training=TrainingConfig(average_last=3, keep_last=3)))


# -- paths -----------------------------------------------------------------------------


def test_paths_are_made_absolute_against_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/someone")
    train = absolute_paths(TrainConfig(run_dir="a b=c,d/目录", resume="~/x"))
    assert train.run_dir == os.path.join(os.getcwd(), "a b=c,d/目录")
    assert train.resume == "/home/someone/x"
    streams = absolute_paths(TranslateConfig(checkpoint="/x/../y", input="-", output="out/"))
    assert (streams.checkpoint, streams.input) == ("/y", "-")
    assert streams.output == os.path.join(os.getcwd(), "out")
    assert absolute_paths(TrainConfig()) == TrainConfig()


def test_which_keys_of_a_data_set_are_paths_depends_on_its_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    here = os.getcwd()
    text = absolute_paths(Experiment(data={"kind": "text", "root": "corpus", "train": "train", "src": "en"}))
    assert text.data == {"kind": "text", "root": f"{here}/corpus", "train": "train", "src": "en"}
    files = {"kind": "pairs", "train": ["a.en", "/a.de"], "valid": "v.tsv", "test": "", "src": "en"}
    pairs = absolute_paths(Experiment(data={**files, "extra_tests": {"new": "n.tsv"}}))
    assert pairs.data["train"] == [f"{here}/a.en", "/a.de"]
    assert (pairs.data["valid"], pairs.data["test"]) == (f"{here}/v.tsv", "")
    assert (pairs.data["extra_tests"], pairs.data["src"]) == ({"new": f"{here}/n.tsv"}, "en")
    assert absolute_paths(EvaluateConfig(data={"root": "corpus"})).data == {"root": f"{here}/corpus"}


def test_a_section_is_copied_not_shared() -> None:
    optimizer = {"kind": "adam", "lr": 1.0}
    config = parse(TrainConfig, {"optimizer": optimizer})
    config.optimizer["lr"] = 2.0
    assert optimizer["lr"] == 1.0
    assert Experiment().optimizer is not Experiment().optimizer
    assert SearchConfig().beam_size == 5


# -- the largest numbers ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "key", "value", "bound"),
    [
        ("tokenizer", "vocab_size", 1_000_000_001, "at least 1 and at most 1000000"),
        ("search", "beam_size", 10**12, "at least 1 and at most 10000"),
        ("search", "n_best", 10**12, "at least 1 and at most 10000"),
        ("search", "max_length", 10**21, "at least 1 and at most 1000000"),
        ("search", "max_length_ratio", 1e20, "at most 1000000 and above 0"),
        ("search", "min_length_ratio", 1e20, "at least 0 and at most 1000000"),
        ("search", "temperature", 1e-40, "at least 0.0001 and at most 10000.0"),
        ("search", "alpha", 1e9, "at least 0 and at most 10"),
    ],
)
def test_numbers_that_no_text_and_no_machine_has_are_refused(
    section: str, key: str, value: float, bound: str
) -> None:
    with pytest.raises(UserError, match=rf"{section}\.{key} is .*, but must be {bound}$"):
        parse(TrainConfig, {section: {key: value}})
