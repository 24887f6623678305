"""Reading a study folder: what cells gave, what is missing, and what is refused."""

import json
import re
from pathlib import Path

import pytest

from minitrans.ablation.results import Trial, alike, load, references_of
from minitrans.errors import UserError
from tests.ablation.studies import REFERENCES, StudyBuilder, noisy


@pytest.fixture
def builder(tmp_path: Path) -> StudyBuilder:
    return StudyBuilder(tmp_path / "study", tmp_path / "text", {"base": None, "new": "base"})


def test_a_study_is_read(builder: StudyBuilder) -> None:
    depths = {"0": {"sentences": 90, "exact_match": 50.0}, "1": {"sentences": 6, "exact_match": 0.0}}
    lengths = {"0-5": {"sentences": 96, "bleu": 61.5}}
    text = noisy(0.1, 1)
    builder.done("base", 2, text, {"leak": True}, {"exact_match_by_depth": depths, "bleu_by_length": lengths})
    builder.cell("new", 2, "failed", error="3 heads do not divide 16", log="logs/a.out")
    builder.of_variant["new"] = {"expect": "worse", "tuned": {"optimizer.lr": 0.001}}
    trial = {"variant": "new", "rate": {"optimizer.lr": 0.002}, "state": "done", "validation": 31.5}
    builder.changes = {"tuning": [trial], "tune": "lr"}
    results = load(builder.write())
    study, (base, new) = results.study, results.cells
    assert (study.name, study.metric, study.equal, study.tune) == (
        "losses",
        "bleu",
        ("parameters", "updates"),
        "lr",
    )
    assert study.named("new").against == "base" and study.named("new").expect == "worse"
    assert study.named("new").tuned == {"optimizer.lr": 0.001} and study.named("base").tuned == {}
    assert study.trials == (Trial("new", {"optimizer.lr": 0.002}, "done", 31.5),)
    outcome = base.outcome
    assert outcome is not None and results.scores("base") == {2: outcome.score}
    card = json.loads((base.folder / "result.json").read_text())["tests"]["test"]
    assert outcome.score == card["scores"]["bleu"]["value"] and outcome.tokens_per_s == 1002
    assert (outcome.split, outcome.sentences, outcome.leak) == ("test", 96, True)
    assert outcome.by_depth == {"0": (50.0, 90), "1": (0.0, 6)} and outcome.by_length == {"0-5": (61.5, 96)}
    assert [update for update, _ in outcome.train] == [50, 100, 150, 200, 250, 300]
    assert outcome.valid[-1] == (300, pytest.approx(outcome.score))
    assert base.hypotheses == tuple(text)
    assert references_of(base) == REFERENCES
    assert (new.state, new.error, new.log) == (
        "failed",
        "3 heads do not divide 16",
        results.folder / "logs/a.out",
    )
    assert new.outcome is None and results.missing == [new] and results.scores("new") == {}


@pytest.mark.parametrize("metric", ["loss", "perplexity"])
def test_the_loss_may_be_the_metric(builder: StudyBuilder, metric: str) -> None:
    builder.metric = metric
    builder.done("base", 1, noisy(0.1, 1), test={"loss": 1.25, "perplexity": 3.49})
    (cell,) = load(builder.write()).cells
    assert cell.outcome is not None
    assert cell.outcome.score == {"loss": 1.25, "perplexity": 3.49}[metric]
    assert cell.outcome.valid[-1] == (300, pytest.approx(4 - 3 + 0.1))  # nll: there is no BLEU to show


def test_other_splits_are_read_too(builder: StudyBuilder) -> None:
    path = builder.done("base", 1, noisy(0.1, 1))
    result = json.loads((path / "result.json").read_text())
    result["tests"]["test_novel"] = {"scores": {"bleu": {"value": 12.5}}}
    (path / "result.json").write_text(json.dumps(result))
    (cell,) = load(builder.write()).cells
    assert cell.outcome is not None and cell.outcome.other_splits == {"test_novel": 12.5}


def test_a_score_that_is_no_number_is_no_outcome(builder: StudyBuilder) -> None:
    builder.metric = "loss"
    builder.done("base", 1, noisy(0.1, 1), test={"loss": float("nan")})
    (cell,) = load(builder.write()).cells
    assert cell.outcome is None and cell.error == "its loss is nan"


def test_a_folder_without_a_study_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"study\.json cannot be read: No such file"):
        load(tmp_path)
    (tmp_path / "study.json").write_text("{")
    with pytest.raises(UserError, match=r"study\.json is no JSON"):
        load(tmp_path)
    (tmp_path / "study.json").write_text('{"name": "x"}')
    with pytest.raises(UserError, match=r"study\.json lacks the key 'question'"):
        load(tmp_path)


def test_a_metric_that_a_cell_was_not_scored_by_is_told(builder: StudyBuilder) -> None:
    builder.metric = "blue"
    builder.done("base", 1, noisy(0.1, 1))
    (cell,) = load(builder.write()).cells
    assert cell.outcome is None and re.search(r'compares by "blue".*did you mean "bleu"', cell.error or "")


def test_a_comparison_with_an_unknown_variant_is_refused(builder: StudyBuilder) -> None:
    builder.variants = {"base": None, "new": "bass"}
    with pytest.raises(UserError, match='new is against "bass"; did you mean "base"'):
        load(builder.write())


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("result.json", '{"tests": {}}', r"has no test split.*set data\.test"),
        ("result.json", "{", r"result\.json is no JSON"),
        ("result.json", "{}", r"result\.json lacks the key 'tests'"),
        ("metrics.csv", None, r"metrics\.csv does not exist"),
    ],
)
def test_a_cell_that_cannot_be_read_is_told_and_costs_the_others_nothing(
    builder: StudyBuilder, name: str, content: str | None, sentence: str
) -> None:
    broken = builder.done("base", 1, noisy(0.1, 1)) / name
    builder.done("base", 2, noisy(0.1, 2))
    broken.unlink() if content is None else broken.write_text(content)
    one, other = load(builder.write()).cells
    assert one.outcome is None and re.search(sentence, one.error or "")
    assert other.outcome is not None


def test_cells_scored_on_unlike_text_or_in_another_way_are_not_alike(builder: StudyBuilder) -> None:
    builder.done("base", 1, noisy(0.1, 1))
    builder.done("base", 2, noisy(0.1, 2))
    builder.done("new", 1, noisy(0.1, 1), test={"data": {"other.tsv": "ab"}})
    builder.done("new", 2, noisy(0.1, 1), test={"bleu_tokenize": "char"})
    first, second, *others = load(builder.write()).cells
    assert alike(first, second)
    assert not any(alike(first, other) for other in others)
