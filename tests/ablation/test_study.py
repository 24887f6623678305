"""Studies: what a file may say, what is refused, variants that are typed, and those that are shipped."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from minitrans.ablation.cells import Cell, CellMaker
from minitrans.ablation.study import (
    HELD_EQUAL,
    Study,
    Variant,
    crossed,
    from_command_line,
    read_study,
    shipped,
    study_of,
)
from minitrans.build import build_model
from minitrans.cli.ablate import check_words, compose_words
from minitrans.errors import UserError


def content(**changes: Any) -> dict[str, Any]:
    """A study with two variants."""
    variants = {
        "unscaled": {"overrides": ["attention=unscaled"], "expect": "worse"},
        "wide": {"overrides": ["model.d_k=128"], "against": "unscaled"},
    }
    return {"question": "Why?", "base": ["model=tiny"], "variants": variants, **changes}


def test_a_study_is_read_with_its_base_as_a_variant() -> None:
    study = study_of("scaling", content(seeds=[4, 5], metric="loss", equal=["flops"]), "scaling.yaml")
    assert study == Study(
        "scaling",
        "Why?",
        ("model=tiny",),
        (
            Variant("base"),
            Variant("unscaled", ("attention=unscaled",), "base", "worse"),
            Variant("wide", ("model.d_k=128",), "unscaled"),
        ),
        (4, 5),
        "loss",
        ("flops",),
    )
    assert study.named("wide").overrides == ("model.d_k=128",)


def test_a_study_without_its_base_compares_with_what_variants_name() -> None:
    study = study_of("x", content(base_variant=False, tune="lr"), "x.yaml")
    assert [(variant.name, variant.against) for variant in study.variants] == [
        ("unscaled", None),
        ("wide", "unscaled"),
    ]
    assert study.tune == "lr"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"qestion": "?"}, 'x.yaml has the unknown key "qestion" = \'?\'; did you mean "question"?'),
        (
            {"variants": {"a": {"override": ["seed=1"]}}},
            'x.yaml has the unknown key "variants.a.override" = [\'seed=1\']; did you mean "overrides"?',
        ),
        (
            {"variants": {"a": {"model": {"d_k": 8}}}},
            "x.yaml has the unknown key \"variants.a.model\" = {'d_k': 8}; "
            'choose one of "against", "expect", "overrides"',
        ),
        (
            {"variants": {"a": ["model.d_k=8"]}},
            "x.yaml: variants.a is ['model.d_k=8'] where overrides: [KEY=VALUE, ...] is needed",
        ),
        (
            {"variants": {"a": {"overrides": ["model.d_k"]}}},
            'x.yaml: variants.a: "model.d_k" is not of the form KEY=VALUE',
        ),
        (
            {"variants": {"a": {"overrides": ["seed=3"]}}},
            "x.yaml: variants.a cannot set seed: seeds are the study's own; leave it out",
        ),
        (
            {"variants": {"a": {"overrides": ["trainer.devices=2"]}}},
            "x.yaml: variants.a cannot set trainer.devices: it says nothing of the experiment; leave it out",
        ),
        (
            {"base": ["run_dir=here"]},
            "x.yaml: base cannot set run_dir: it says nothing of the experiment; leave it out",
        ),
        (
            {"variants": {"a": {"against": "bass"}}},
            'x.yaml: variants.a.against cannot be "bass"; did you mean "base"?',
        ),
        (
            {"variants": {"a": {"against": "a"}}},
            "x.yaml: variants.a.against names the variant itself; name another one",
        ),
        (
            {"variants": {"a": {"expect": "wors"}}},
            'x.yaml: variants.a.expect cannot be "wors"; did you mean "worse"?',
        ),
        ({"equal": ["flop"]}, 'x.yaml: equal cannot hold "flop"; did you mean "flops"?'),
        ({"metric": "blue"}, 'x.yaml: metric cannot be "blue"; did you mean "bleu"?'),
        ({"seeds": [1, 2, 1]}, "x.yaml: the seed 1 is there twice; leave one out"),
        ({"seeds": []}, "x.yaml: a study needs at least one variant and one seed"),
        ({"variants": {"base": {}}}, "x.yaml: the variant base is there twice; leave one out"),
        ({"variants": {" ": {}}}, "x.yaml: a variant has no name; give it one"),
        (
            {"variants": {"a": {"against": "b"}, "b": {"against": "a"}}},
            'x.yaml: variants.a.against is "b", which is against "a": one comparison, twice; '
            "take one of them out",
        ),
        ({"seeds": [-1]}, "x.yaml: seeds[0] is -1, but must be at least 0"),
    ],
)
def test_mistakes_in_a_study_are_named(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as error:
        study_of("x", content(**changes), "x.yaml")
    assert str(error.value) == sentence


def test_the_number_type_is_a_variant() -> None:
    study = study_of("x", content(variants={"bf16": {"overrides": ["trainer.precision=bf16"]}}), "x.yaml")
    assert study.variants[1].overrides == ("trainer.precision=bf16",)


def test_a_study_of_the_users_own_is_a_path(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("cross: ['model.d_k=8,16']\n")
    study = read_study(tmp_path / "mine.yaml")
    assert (study.name, [variant.name for variant in study.variants]) == (
        "mine",
        ["base", "model.d_k=8", "model.d_k=16"],
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (None, "study_file={} cannot be read: No such file or directory; check the path"),
        ("a: [1", "{} is no YAML: while parsing a flow sequence"),
        ("just words", "{} holds no keys; a study has question, base, variants and more"),
        ("\udcff", "{} is not UTF-8 text (invalid start byte at byte 0)"),
        ("variants: &v {a: *v}", "{} is no YAML: anchors (&, *) are not for studies, at line 1"),
        ("variants:\n  a: {}\n  a: {}\n", '{} is no YAML: the key "a" is there twice, at line 3'),
    ],
)
def test_files_that_are_no_study_are_refused(text: str | None, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    if text is not None:
        path.write_bytes(text.encode("utf8", "surrogateescape"))
    with pytest.raises(UserError) as error:
        read_study(path)
    assert str(error.value).startswith(sentence.format(path))


# -- from the command line -------------------------------------------------------------


def test_values_apart_by_commas_are_crossed() -> None:
    assert crossed("attention=scaled,unscaled model.d_k=8,32", "base", "variants") == [
        Variant(" ".join(words), words, "base")
        for words in (
            ("attention=scaled", "model.d_k=8"),
            ("attention=scaled", "model.d_k=32"),
            ("attention=unscaled", "model.d_k=8"),
            ("attention=unscaled", "model.d_k=32"),
        )
    ]


def test_a_list_is_one_value() -> None:
    found = crossed("optimizer.betas=[0.9,0.98],[0.9,0.999] model.d_k=8", None, "variants")
    assert [variant.overrides for variant in found] == [
        ("optimizer.betas=[0.9,0.98]", "model.d_k=8"),
        ("optimizer.betas=[0.9,0.999]", "model.d_k=8"),
    ]


def test_typed_variants_make_a_study_or_extend_one() -> None:
    own = from_command_line(["attention=unscaled"], None)
    assert (own.name, [variant.name for variant in own.variants]) == (
        "variants",
        ["base", "attention=unscaled"],
    )
    extended = from_command_line(["attention=unscaled"], study_of("x", content(base_variant=False), "x"))
    assert extended.variants[-1] == Variant("attention=unscaled", ("attention=unscaled",), None)
    with pytest.raises(
        UserError, match=r"^variants: the variant model\.d_k=8 is there twice; leave one out$"
    ):
        from_command_line(["model.d_k=8", "model.d_k=8"], None)
    with pytest.raises(UserError, match=r'^variants: "unscaled" is not of the form KEY=VALUE$'):
        from_command_line(["unscaled"], None)


# -- the studies of conf/study ---------------------------------------------------------

EXPECTED = (
    "architectures", "depth", "dropout", "ffn", "heads", "masks", "norm", "positions", "scaling",
    "smoothing", "tokenizer", "tying",
)  # fmt: skip


def test_the_studies_that_are_shipped() -> None:
    assert tuple(shipped()) == EXPECTED


@pytest.mark.parametrize("name", EXPECTED)
def test_a_shipped_study_says_what_it_asks_and_expects_and_from_where(name: str) -> None:
    study = read_study(shipped()[name])
    assert study.question.endswith("?")
    assert len(study.prediction.text) > 20 and len(study.prediction.source) > 10
    assert set(study.equal) <= set(HELD_EQUAL)
    assert len(study.seeds) >= 3
    assert any(variant.expect for variant in study.variants)


@pytest.mark.parametrize("name", EXPECTED)
def test_each_variant_of_a_shipped_study_is_a_model_of_its_own_as_large_as_it_says(name: str) -> None:
    """Where parameters are held equal they are within 2 %, but for the one variant that says otherwise."""
    study = read_study(shipped()[name])
    check_words(study, [])
    maker = CellMaker(replace(study, seeds=study.seeds[:1]), (), compose_words, "code")
    cells = maker.cells({})
    assert [cell.error for cell in cells] == [None] * len(cells)
    assert len({cell.address for cell in cells}) == len(cells)
    sizes = {cell.variant: parameters(cell) for cell in cells}
    unlike = [
        variant.name
        for variant in study.variants
        if variant.against is not None
        and abs(sizes[variant.name] / sizes[variant.against] - 1) > 0.02
        and "parameters" in study.equal
    ]
    assert unlike == (["none"] if name == "ffn" else [])


def parameters(cell: Cell) -> int:
    """Of the cell's model, with the vocabulary that the bundled corpus has."""
    assert cell.config is not None
    model = build_model(cell.config, 3497, 3497)
    return sum(parameter.numel() for parameter in model.parameters())
