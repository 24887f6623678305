"""The answer to a study's question: what is called a difference, how it is said, and what was foretold."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from minitrans.ablation.answer import Answer, answer, number, p_value, signed
from minitrans.ablation.results import Results, load
from minitrans.ablation.statistics import smallest_difference
from minitrans.evaluation.metrics import bleu
from tests.ablation.studies import REFERENCES, StudyBuilder, noisy, results_of

BASE = {1: 30.0, 2: 31.0, 3: 30.4, 4: 29.8, 5: 30.3}


def less(scores: dict[int, float], *losses: float) -> dict[int, float]:
    """The same with so much taken from each seed."""
    return {seed: score - loss for (seed, score), loss in zip(scores.items(), losses, strict=False)}


def planted() -> Results:
    """Three comparisons of BLEU over five seeds: one much worse, one a little, one by luck alone."""
    return results_of(
        {
            "base": BASE,
            "broken": less(BASE, 3.1, 2.8, 3.0, 3.3, 2.9),
            "rough": less(BASE, 0.9, 0.3, 0.5, 0.7, 0.4),
            "other": less(BASE, 0.1, -0.2, 0.3, -0.1, 0.0),
        },
        {"broken": "base", "rough": "base", "other": "base"},
        metric="bleu_of_models_that_are_not_there",
    )


def test_a_difference_of_three_is_found_and_luck_is_not() -> None:
    found = {comparison.variant: comparison for comparison in answer(planted()).comparisons}
    assert [found[name].found for name in ("broken", "rough", "other")] == [True, True, False]
    assert found["broken"].direction == "worse" and found["other"].direction == "no difference"
    assert found["broken"].seeds == (1, 2, 3, 4, 5)


def test_p_values_are_scipys_and_corrected_over_the_studys_comparisons() -> None:
    found = {comparison.variant: comparison for comparison in answer(planted()).comparisons}
    base = list(BASE.values())
    raw = {}
    for name, scores in (
        ("broken", less(BASE, 3.1, 2.8, 3.0, 3.3, 2.9)),
        ("rough", less(BASE, 0.9, 0.3, 0.5, 0.7, 0.4)),
    ):
        raw[name] = stats.ttest_rel(list(scores.values()), base).pvalue
        test = found[name].test
        assert test is not None and test.p == pytest.approx(raw[name])
    assert found["broken"].p_holm == pytest.approx(3 * raw["broken"])
    assert found["rough"].p_holm == pytest.approx(2 * raw["rough"])


def test_the_answer_is_one_sentence_of_the_figures() -> None:
    scores = {
        "base": {1: 30.0, 2: 31.0, 3: 30.4},
        "broken": {1: 27.0, 2: 27.9, 3: 27.5},
        "other": {1: 30.1, 2: 30.8, 3: 30.6},
    }
    sentence = answer(results_of(scores, {"broken": "base", "other": "base"}, metric="x")).sentence
    # differences of broken: -3, -3.1, -2.9: mean -3, sd 0.1, half width 4.302653 x 0.1 / sqrt(3) = 0.2484
    # their p is 2 x P(t > 51.96) = 1 - 51.96 / sqrt(2 + 51.96^2) = 0.00037, times 2
    assert sentence.startswith(
        "After 300 updates, by 3 paired seeds and at 95 % confidence, with Holm's correction for 2 "
        "comparisons: broken is worse than base by 3.00 x (95 % interval 2.75 to 3.25, p < 0.001); "
        "no detectable difference in x at this budget between other and base (+0.033); one of "
    )
    assert sentence.endswith(" would be found with a power of 80 %.")
    assert sentence.count(". ") == 0


def test_less_is_better_for_a_loss() -> None:
    scores = {"base": {1: 2.0, 2: 2.1, 3: 2.05}, "new": {1: 1.5, 2: 1.61, 3: 1.54}}
    (found,) = answer(results_of(scores, {"new": "base"}, metric="loss")).comparisons
    assert found.found and found.direction == "better" and found.differences[0] == pytest.approx(-0.5)


def test_a_variant_may_be_held_against_another_one_than_the_base() -> None:
    scores = {
        "base": BASE,
        "wide": less(BASE, 5, 5.1, 4.9, 5, 5),
        "wide, unscaled": less(BASE, 5, 5, 5, 5.1, 4.8),
    }
    (found,) = answer(results_of(scores, {"wide, unscaled": "wide"})).comparisons
    assert found.against == "wide" and not found.found


def test_only_seeds_that_both_have_are_compared() -> None:
    scores = {"base": {1: 5.0, 2: 6.0, 3: 7.0}, "new": {2: 5.0, 3: 6.5, 4: 99.0}}
    (found,) = answer(results_of(scores, {"new": "base"})).comparisons
    assert found.seeds == (2, 3) and found.unpaired == (1, 4)
    assert found.differences == (-1.0, -0.5)


def test_cells_scored_on_other_text_are_no_pair() -> None:
    results = results_of({"base": {1: 5.0, 2: 6.0}, "new": {1: 7.0, 2: 8.5}}, {"new": "base"})
    *others, last = results.cells
    assert last.outcome is not None
    moved = dataclasses.replace(last, outcome=dataclasses.replace(last.outcome, data={"other": "ab"}))
    (found,) = answer(dataclasses.replace(results, cells=(*others, moved))).comparisons
    assert found.seeds == (1,) and found.unpaired == (2,)


def test_one_seed_gives_a_number_and_no_claim() -> None:
    found = answer(results_of({"base": {1: 30.0}, "new": {1: 20.0}}, {"new": "base"}, metric="bleu_x"))
    (comparison,) = found.comparisons
    assert comparison.test is not None and comparison.test.low is None and comparison.p_holm is None
    assert not comparison.found and found.power is None
    assert found.sentence == (
        "No answer: one seed cannot tell a difference from the luck of that seed "
        "(new less base: −10.00 bleu_x)."
    )


def test_what_has_no_pair_is_named() -> None:
    scores = {"base": BASE, "new": less(BASE, 3.1, 2.8, 3.0, 3.3, 2.9), "lost": {}}
    found = answer(results_of(scores, {"new": "base", "lost": "base"}, metric="x"))
    assert found.sentence.endswith("; lost cannot be judged for want of paired seeds.")
    assert "correction" not in found.sentence  # one test was made
    none = answer(results_of({"base": {1: 1.0}, "lost": {}}, {"lost": "base"}))
    assert none.sentence.startswith("No answer yet: ")
    assert answer(results_of({"base": BASE}, {})).sentence.startswith("No variant is compared")


@pytest.mark.parametrize(
    ("expect", "losses", "verdict"),
    [
        ("worse", (3.1, 2.8, 3.0, 3.3, 2.9), "held"),
        ("better", (3.1, 2.8, 3.0, 3.3, 2.9), "did not hold"),
        ("no difference", (3.1, 2.8, 3.0, 3.3, 2.9), "did not hold"),
        ("no difference", (0.1, -0.2, 0.3, -0.1, 0.0), "not contradicted"),
        ("worse", (0.1, -0.2, 0.3, -0.1, 0.0), "undecided"),
        ("worse", (3.1,), "undecided"),
        ("worse", (), "undecided"),
    ],
)
def test_predictions_are_held_against_the_findings(
    expect: str, losses: tuple[float, ...], verdict: str
) -> None:
    scores = {"base": BASE, "new": less(BASE, *losses)}
    found = answer(results_of(scores, {"new": "base"}, {"new": expect}, metric="x"))
    assert found.comparisons[0].verdict == verdict == found.verdict


def test_the_verdict_over_all_predictions_is_the_worst() -> None:
    def verdict(*expected: str) -> str | None:
        scores = {
            "base": BASE,
            "a": less(BASE, 3.1, 2.8, 3.0, 3.3, 2.9),
            "b": less(BASE, 0.1, -0.2, 0.3, -0.1, 0),
        }
        both = {"a": "base", "b": "base"}
        return answer(results_of(scores, both, dict(zip("ab", expected, strict=False)), metric="x")).verdict

    assert verdict("worse", "no difference") == "not contradicted"
    assert verdict("worse", "worse") == "undecided"
    assert verdict("better", "worse") == "did not hold"
    assert verdict("worse") == "held"
    assert verdict() is None


def test_exact_matches_are_known_to_move_in_steps() -> None:
    # 200 sentences: steps of 0.5. Two differences of 1.0 alone would have no spread and p = 0
    scores = {"base": {1: 50.0, 2: 52.0}, "new": {1: 51.0, 2: 53.0}}
    (found,) = answer(results_of(scores, {"new": "base"}, metric="exact_match")).comparisons
    assert found.test is not None and found.test.p is not None and found.test.p > 0.05


def test_differences_without_a_spread_are_not_judged() -> None:
    """Two seeds that happen to differ by one number prove nothing, and show no power."""
    scores = {"base": {1: 20.0, 2: 21.0}, "new": {1: 20.5, 2: 21.5}, "lost": {1: 3.0}, "gone": {}}
    against = {"new": "base", "lost": "base", "gone": "base"}
    found = answer(results_of(scores, against, metric="x"))
    assert found.sentence == (
        "No answer: differences without any spread over seeds cannot be judged "
        "(new less base: +0.50 x; lost less base: −17.00 x), and gone has no paired seed."
    )
    assert [c.direction for c in found.comparisons] == ["not tested"] * 3
    assert found.power is None
    scores["good"] = {1: 20.3, 2: 21.4}
    found = answer(results_of(scores, {**against, "good": "base"}, metric="x"))
    assert found.sentence.endswith(
        "lost and gone cannot be judged for want of paired seeds; "
        "new cannot be judged for want of a spread between seeds."
    )


def test_the_power_is_that_of_the_seeds_most_comparisons_have() -> None:
    scores = {
        "base": BASE,
        "a": less(BASE, 1, 2, 3),
        "b": less(BASE, 1, 2, 3),
        "c": less(BASE, 5, 5.1, 5, 5, 5),
    }
    power = answer(results_of(scores, dict.fromkeys("abc", "base"), metric="x")).power
    assert power is not None and power.seeds == 3
    assert power.sd == pytest.approx(np.sqrt((2 * 1 + 2 * 1 + 4 * 0.002) / 8))
    assert power.corrected == smallest_difference(power.sd, 3, 0.05 / 3) > power.single
    assert power.more == {n: smallest_difference(power.sd, n, 0.05 / 3) for n in (5, 10)}


def test_one_hundred_studies_of_three_equal_variants() -> None:
    """A seed's data order helps or harms all alike; the rest of its luck is each model's own."""
    generator = np.random.default_rng(0)
    alarms = 0
    for _ in range(100):
        luck = 30 + generator.normal(0, 0.5, size=3) + generator.normal(0, 0.4, size=(4, 3))
        scores = {name: dict(enumerate(row.tolist())) for name, row in zip("oabc", luck, strict=True)}
        found = answer(results_of(scores, dict.fromkeys("abc", "o"), metric="x"))
        alarms += any(comparison.found for comparison in found.comparisons)
    assert alarms <= 5


# With translations


def found_in(folder: Path, variants: dict[str, list[list[str]]]) -> Answer:
    """The answer of a study whose cells gave these translations, each variant against the first."""
    first = next(iter(variants))
    builder = StudyBuilder(
        folder / "study", folder / "text", {n: None if n == first else first for n in variants}
    )
    for name, texts in variants.items():
        for seed, text in enumerate(texts, start=1):
            builder.done(name, seed, text)
    return answer(load(builder.write()))


def test_the_base_against_itself_under_another_name_is_no_difference(tmp_path: Path) -> None:
    texts = [noisy(0.1, seed) for seed in (1, 2, 3)]
    found = found_in(tmp_path, {"base": texts, "twin": texts})
    (comparison,) = found.comparisons
    assert comparison.differences == (0.0, 0.0, 0.0) and comparison.p_holm == 1.0 and not comparison.found
    assert comparison.sentences is not None and comparison.sentences.p == 1.0
    assert found.sentence == (
        "After 300 updates, by 3 paired seeds and at 95 % confidence: no detectable difference in BLEU at "
        "this budget between twin and base (±0.00): every score is the same."
    )


def test_translations_of_three_bleu_less_are_found(tmp_path: Path) -> None:
    texts = [noisy(0.1, seed) for seed in range(1, 6)]
    worse = [noisy(0.018, 70 + seed, text) for seed, text in enumerate(texts)]
    found = found_in(tmp_path, {"base": texts, "worse": worse})
    (comparison,) = found.comparisons
    assert comparison.test is not None and -4 < comparison.test.mean < -2
    assert comparison.found and comparison.direction == "worse"
    expected = np.mean(
        [bleu(b, REFERENCES).value - bleu(a, REFERENCES).value for a, b in zip(texts, worse, strict=True)]
    )
    assert comparison.sentences is not None
    assert comparison.sentences.difference == pytest.approx(comparison.test.mean) == pytest.approx(expected)
    assert comparison.sentences.low < comparison.sentences.difference < comparison.sentences.high < 0


def test_the_bootstrap_over_sentences_decides_nothing(tmp_path: Path) -> None:
    # one recipe, two seeds a side: models that differ by luck, and sentences tell apart with certainty
    found = found_in(
        tmp_path,
        {"base": [noisy(0.10, 1), noisy(0.2, 2)], "twin": [noisy(0.2, 3), noisy(0.25, 4)]},
    )
    (comparison,) = found.comparisons
    assert comparison.sentences is not None and comparison.sentences.p < 0.01
    assert not comparison.found


def test_without_the_references_the_reason_is_kept(tmp_path: Path) -> None:
    builder = StudyBuilder(tmp_path / "study", tmp_path / "text", {"base": None, "new": "base"})
    for name in ("base", "new"):
        builder.done(name, 1, noisy(0.1, 1))
    (tmp_path / "text" / "test.y").write_text("something else\n" * len(REFERENCES), encoding="utf8")
    found = answer(load(builder.write()))
    assert found.comparisons[0].sentences is None
    assert "is not any more what" in found.no_bootstrap


def test_translations_that_lack_a_line_are_not_resampled(tmp_path: Path) -> None:
    builder = StudyBuilder(tmp_path / "study", tmp_path / "text", {"base": None, "new": "base"})
    for name in ("base", "new"):
        path = builder.done(name, 1, noisy(0.1, 1))
    (path / "translations" / "test.txt").write_text("one line\n", encoding="utf8")
    assert "holds 1 translations of 96 sentences" in answer(load(builder.write())).no_bootstrap


@pytest.mark.parametrize(
    ("value", "plain", "with_sign"),
    [
        (0.0, "0.00", "±0.00"),
        (3.14159, "3.14", "+3.14"),
        (-0.5, "-0.50", "−0.50"),
        (0.01234, "0.012", "+0.012"),
    ],
)
def test_numbers(value: float, plain: str, with_sign: str) -> None:
    assert number(value) == plain
    assert signed(value) == with_sign


def test_p_values() -> None:
    assert [p_value(None), p_value(0.0001), p_value(0.0456), p_value(1.0, "= ")] == [
        "",
        "< 0.001",
        "0.046",
        "= 1.000",
    ]
    assert [p_value(0.0497), p_value(0.0501)] == ["0.0497", "0.050"]  # the first is a finding
