"""The pass over the command line: quoting, unknown keys and choices, what a checkpoint fixes."""

from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import example, given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from minitrans.cli.argv import CommandLine, Kind, Words, quote, read
from minitrans.config import EvaluateConfig, InspectConfig, TrainConfig, TranslateConfig
from minitrans.errors import UserError

TRAIN = Words.of("train", TrainConfig)
EVALUATE = Words.of("evaluate", EvaluateConfig)
TRANSLATE = Words.of("translate", TranslateConfig)
INSPECT = Words.of("inspect_attention", InspectConfig)


LAYERS = '"model.num_encoder_layers" or "model.num_decoder_layers"'
SEARCH_KEYS = (
    'train has no key "search.width"; '
    "the keys of search are beam_size, length_penalty, alpha, coverage, min_length, min_length_ratio, "
    "max_length, max_length_ratio, no_repeat_ngram, n_best, sample, temperature, top_k, top_p, seed"
)


def as_hydra_reads(override: str) -> Any:
    """The value that Hydra's parser and then OmegaConf make of an override."""
    value = OverridesParser.create().parse_override(override).value()
    return OmegaConf.to_container(OmegaConf.create({"key": value}), resolve=True)["key"]  # type: ignore[call-overload,index]


@given(st.text(st.characters(exclude_categories=["Cs"])))
@example("")
@example("Ein Hund, (links) = {x}: 'ja' ${y}")
@example("/tmp/a b=c,d/目录")
@example("a\\${b}\\\\${c}\\")
@example("\\' \\\\' \" \\\\\\\"")
@example("null")
@example("???")
@example("a\nb\tc ")
def test_any_text_arrives_as_it_was_typed(text: str) -> None:
    assert as_hydra_reads(f"key={quote(text)}") == text


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("optimizer.betas=[0.9,0.98]", [0.9, 0.98]),
        ("optimizer.lr=1e-4", 0.0001),
        ("model.d_k=null", None),
        ("model.bias=false", False),
        ("seed=3", 3),
        ("run_dir=3", "3"),
        ("run_dir=a=b", "a=b"),
        ("run_dir=[x]", "[x]"),
        ("run_dir=", ""),
        ("data.tgt=no", "no"),
        ("data.tgt=null", "null"),
        ("data.root=a, b", "a, b"),
        ("data.train=[a b=c.en,/x/目录.de]", ["a b=c.en", "/x/目录.de"]),
        ("data.train=['a,b.en', \"it's\".de]", ["a,b.en", '"it\'s".de']),
        ('data.train=["a,b.en", "it\'s.de"]', ["a,b.en", "it's.de"]),
        ("data.train=a,b.tsv", "a,b.tsv"),
        ("data.extra_tests={new:/a/b}", {"new": "/a/b"}),
        ("model.d_ff=a(b,'", "a(b,'"),
        ("seed=1,2", "1,2"),
        ("seed=range(1,3)", "range(1,3)"),
        ("position.encoder=none", "none"),
        ("logger.group=true", "true"),
    ],
)
def test_text_stays_text_and_other_values_keep_their_type(word: str, value: Any) -> None:
    line = read([word], TRAIN)
    (override,) = line.overrides()
    assert override.startswith("++")
    read_back = as_hydra_reads(override)
    assert read_back == value
    assert type(read_back) is type(value)


def test_what_is_typed_last_counts() -> None:
    line = read(["seed=1", "model=tiny", "seed=2", "model=base"], TRAIN)
    assert line.overrides() == ["model=base", "++seed=2"]


def test_no_choice_is_a_choice_where_it_is_the_default() -> None:
    assert read(["experiment=null"], TRAIN).overrides() == []
    with pytest.raises(UserError, match='model cannot be "null"'):
        read(["model=null"], TRAIN)


def test_options_are_told_from_settings() -> None:
    assert read(["--help", "nonsense"], TRAIN).help
    assert read(["-h"], TRAIN).help
    line = read(["--cfg", "job", "seed=1"], TRAIN)
    assert (line.show_config, line.help, line.overrides()) == (True, False, ["++seed=1"])


def test_in_a_sweep_commas_separate_jobs_except_in_a_path() -> None:
    line = read(["-m", "model=tiny,small", "model.norm_order=pre,post", "seed=1,2", "run_dir=a,b"], TRAIN)
    assert line.multirun
    assert line.overrides() == [
        "model=tiny,small",
        "++model.norm_order='pre','post'",
        "++seed=1,2",
        "++run_dir='a,b'",
    ]
    with pytest.raises(UserError, match='model cannot be "smal"; did you mean "small"'):
        read(["-m", "model=tiny,smal"], TRAIN)


def test_overrides_can_be_understood_again() -> None:
    line = read(["model=tiny", "run_dir=a=b", "seed=1"], TRAIN)
    assert CommandLine.of(line.overrides()) == line


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("modle.d_model=3", 'train has no key "modle.d_model"; did you mean "model.d_model"?'),
        (
            "training.max_update=1",
            'train has no key "training.max_update"; did you mean "training.max_updates"?',
        ),
        ("max_updates=1", 'train has no key "max_updates"; did you mean "training.max_updates"?'),
        ("model.lr=1", 'train has no key "model.lr"; did you mean "optimizer.lr"?'),
        ("lr=1", 'train has no key "lr"; did you mean "optimizer.lr"?'),
        ("heads=1", 'train has no key "heads"; did you mean "model.num_heads"?'),
        ("tie_all=1", 'train has no key "tie_all"; --help lists the keys'),
        ("layers=1", f'train has no key "layers"; did you mean {LAYERS}?'),
        ("optimiser=adam", 'train has no key "optimiser"; did you mean "optimizer"?'),
        ("qqqq=1", 'train has no key "qqqq"; --help lists the keys'),
        ("=1", 'train has no key ""; --help lists the keys'),
        ("position=lerned", 'position cannot be "lerned"; did you mean "learned"?'),
        (
            "model=",
            'model cannot be ""; choose one of "base", "big", "small", "tiny", "tiny_conv", "tiny_lstm"',
        ),
        (
            "model=../model/tiny",
            'model cannot be "../model/tiny"; '
            'choose one of "base", "big", "small", "tiny", "tiny_conv", "tiny_lstm"',
        ),
        ("+model.d_model=3", "+model.d_model: every key of train is there already; type model.d_model=3"),
        ("+model.d_modle=3", 'train has no key "+model.d_modle"; did you mean "model.d_model"?'),
        ("search.width=3", SEARCH_KEYS),
        ("++seed=3", "++seed: every key of train is there already; type seed=3"),
        ("seed", "seed needs a value: seed=VALUE"),
        ("small", '"small" is not of the form KEY=VALUE; did you mean model=small?'),
        ("~model", '"~model" is not of the form KEY=VALUE, such as seed=1'),
        (
            "--verbose",
            '"--verbose" is no option of train; settings are typed as KEY=VALUE, --help lists them',
        ),
        (
            "training=5",
            "training is a section, not a setting; type one of its keys, such as training.max_updates=VALUE",
        ),
        (
            "model.ffn=5",
            "model.ffn is a section, not a setting; type one of its keys, such as model.ffn.activation=VALUE",
        ),
    ],
)
def test_what_cannot_be_understood_names_the_nearest(word: str, sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        read([word], TRAIN)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    "word", ["hydra.run.dir=x", "model._target_=os.system", "optimizer._target_=os.system"]
)
def test_neither_hydra_nor_code_can_be_reached(word: str) -> None:
    with pytest.raises(UserError, match=f'train has no key "{word.split("=")[0]}"'):
        read([word], TRAIN)


@pytest.mark.parametrize("words", [EVALUATE, TRANSLATE, INSPECT])
@pytest.mark.parametrize(
    "word",
    [
        "model=tiny",
        "model.d_model=3",
        "model.ffn.activation=identity",
        "position=none",
        "position.encoder=none",
        "attention=unscaled",
        "attention.scale=1",
        "tokenizer.kind=char",
    ],
)
def test_what_a_checkpoint_fixes_is_refused_by_name(words: Words, word: str) -> None:
    with pytest.raises(UserError) as caught:
        read([word], words)
    assert str(caught.value) == (
        f"{word.split('=')[0]} cannot be given to {words.command}: the checkpoint fixes it; leave it out"
    )


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("positon=none", "position cannot be given to evaluate: the checkpoint fixes it; leave it out"),
        (
            "tokeniser.kind=char",
            "tokenizer cannot be given to evaluate: the checkpoint fixes it; leave it out",
        ),
        ("traning.seed=2", "training is a key of train, not of evaluate; leave it out"),
        ("serch.beam_size=2", 'did you mean "search.beam_size"?'),
        ("batch_token=3", 'did you mean "batch_tokens"?'),
    ],
)
def test_a_mistyped_key_of_training_is_told_from_a_mistyped_own_one(word: str, sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        read([word], EVALUATE)
    assert str(caught.value) == f'evaluate has no key "{word.split("=")[0]}"; {sentence}'


def test_a_key_of_training_is_refused_elsewhere() -> None:
    with pytest.raises(
        UserError, match=r"^training.max_updates is a key of train, not of evaluate; leave it out$"
    ):
        read(["training.max_updates=3"], EVALUATE)
    with pytest.raises(UserError, match=r"^data is a key of train, not of translate"):
        read(["data=toy"], TRANSLATE)


def test_kinds_follow_the_schema_and_the_files() -> None:
    kinds = TRAIN.keys
    assert (kinds["seed"], kinds["model.d_k"], kinds["model.norm"]) == (Kind.VALUE, Kind.VALUE, Kind.TEXT)
    assert (kinds["run_dir"], kinds["data.train"], kinds["data.src"]) == (Kind.PATH, Kind.PATHS, Kind.TEXT)
    assert (kinds["optimizer.lr"], kinds["schedule.floor"]) == (Kind.VALUE, Kind.VALUE)
    assert INSPECT.keys["text"] is Kind.TEXT
    assert TRANSLATE.keys["input"] is Kind.PATH
