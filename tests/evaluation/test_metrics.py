"""Scores by known values, and against the sacrebleu command on files."""

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from sacrebleu.tokenizers import tokenizer_ja_mecab, tokenizer_ko_mecab

from minitrans.data.corpus import BLEU_TOKENIZERS
from minitrans.errors import UserError
from minitrans.evaluation.metrics import (
    METRICS,
    bleu,
    bleu_lowercase,
    chrf,
    exact_match,
    length_ratio,
    require_tokenizer,
    ter,
    wilson,
)

MAN = "A man rides a bike down the street."
DOGS = "Two dogs are playing in the snow."


def test_an_empty_hypothesis_counts() -> None:
    """BR-23."""
    assert bleu(["", MAN], [DOGS, MAN]).value == pytest.approx(41.11, abs=0.005)
    assert length_ratio(["", MAN], [DOGS, MAN]).value == pytest.approx(9 / 17)
    assert exact_match(["", MAN], [DOGS, MAN]).value == 50.0


def test_nothing_but_empty_hypotheses_is_the_worst_score() -> None:
    """BR-23."""
    for name, metric in METRICS.items():
        expected = 100.0 if name == "ter" else 0.0  # each reference word an edit
        assert metric(["", ""], [DOGS, MAN], "13a", 0).value == expected


def test_references_are_raw_text() -> None:
    """BR-24."""
    hypothesis, reference = "The sign reads <unk> in green letters.", "The sign reads 出口 in green letters."
    assert bleu([hypothesis], [reference]).value == pytest.approx(37.99, abs=0.005)
    assert exact_match([hypothesis], [reference]).value == 0.0


def test_case_counts() -> None:
    assert bleu([MAN.lower()], [MAN]).value < 100.0
    assert bleu_lowercase([MAN.lower()], [MAN]).value == pytest.approx(100.0)
    assert "case:lc" in bleu_lowercase([MAN], [MAN]).signature
    assert bleu([MAN], [MAN]).value == pytest.approx(100.0)


def test_ter_counts_edits_and_shifts() -> None:
    """6 reference words: one substitution; then one phrase moved, which is one edit however long it is."""
    assert ter(["a b c d e x"], ["a b c d e f"]).value == pytest.approx(100 / 6)
    assert ter(["d e f a b c"], ["a b c d e f"]).value == pytest.approx(100 / 6)
    assert ter(["A B c d e f", "a b"], ["a b c d e f", "a"]).value == pytest.approx(100 / 7)


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [
        (0, 10, 0.0, 27.7533),  # z^2 / (n + z^2)
        (10, 10, 72.2467, 100.0),  # n / (n + z^2)
        (1, 2, 9.4531, 90.5469),
        (81, 263, 25.52885, 36.62096),  # Newcombe 1998, table I: .2553 to .3662
    ],
)
def test_wilsons_interval(successes: int, trials: int, low: float, high: float) -> None:
    assert wilson(successes, trials) == pytest.approx((low, high), abs=1e-4)


def test_wilsons_interval_is_scipys() -> None:
    stats = pytest.importorskip("scipy.stats", reason="scipy is not installed")
    for trials in (1, 7, 500):
        for successes in {0, 1, trials // 3, trials}:
            expected = stats.binomtest(successes, trials).proportion_ci(0.95, method="wilson")
            assert wilson(successes, trials) == pytest.approx((100 * expected.low, 100 * expected.high))


def test_no_interval_where_none_is_asked_for() -> None:
    for metric in METRICS.values():
        score = metric([MAN, DOGS], [MAN, DOGS], "13a", 0)
        assert (score.low, score.high) == (None, None)
        assert "bs:" not in score.signature
    assert exact_match([MAN, DOGS], [MAN, ""], resamples=1000).low == pytest.approx(9.4531, abs=1e-4)


def test_exact_match_takes_runs_of_white_space_as_one() -> None:
    assert exact_match(["a  b ", "a b", "ab", ""], ["a b", "a c", "a b", " "]).value == 50.0


def test_the_tokenizer_decides_what_chinese_words_are() -> None:
    hypothesis, reference = ["我爱北京天安门"], ["我爱北京的天安门"]
    assert bleu(hypothesis, reference, "13a").value == 0.0
    assert bleu(hypothesis, reference, "zh").value > 50.0
    assert "tok:zh" in bleu(hypothesis, reference, "zh").signature


HYPOTHESES = [
    "A man rides his bike , down the street .",
    "",
    "Zwei Hunde spielen im Schnee.\u2028 x",
    "出口 here",
]
REFERENCES = [MAN, DOGS, "zwei Hunde spielen im  Schnee. ", "出口 there\t!"]


Lines = list[str]


def sacrebleu(folder: Path, hypotheses: Lines, references: Lines, *options: str) -> list[dict[str, Any]]:
    """What the command says of two lists, written to files."""
    for name, lines in {"hypotheses.txt": hypotheses, "references.txt": references}.items():
        (folder / name).write_bytes("".join(f"{line}\n" for line in lines).encode())
    command = [sys.executable, "-m", "sacrebleu", "references.txt", "-i", "hypotheses.txt", "--force"]
    printed = subprocess.run(
        [*command, "--width", "6", *options], cwd=folder, capture_output=True, text=True, check=True
    )
    found = json.loads(printed.stdout)
    return found if isinstance(found, list) else [found]


# no sample scores exactly 0 or 100, which the command could not take the mean of
LONG = (
    [line + " one two three" for line in HYPOTHESES * 3],
    [line + " one two four" for line in REFERENCES * 3],
)
ALL = ("-m", "bleu", "chrf", "ter", "--chrf-word-order", "2")


@pytest.mark.parametrize("tokenize", ["13a", "none", "intl", "char"])
def test_scores_are_what_the_sacrebleu_command_prints(tmp_path: Path, tokenize: str) -> None:
    expected = sacrebleu(tmp_path, HYPOTHESES, REFERENCES, *ALL, "--tokenize", tokenize)
    assert [one["score"] > 0 for one in expected] == [True] * 3
    for metric, said in zip((bleu, chrf, ter), expected, strict=True):
        score = metric(HYPOTHESES, REFERENCES, tokenize)
        assert score.value == pytest.approx(said["score"], abs=1e-5)
        assert score.signature == said["signature"]


def test_intervals_are_what_the_sacrebleu_command_prints(tmp_path: Path) -> None:
    expected = sacrebleu(tmp_path, *LONG, *ALL, "--confidence")
    for metric, said in zip((bleu, chrf, ter), expected, strict=True):
        score = metric(*LONG, resamples=1000)
        assert score.low is not None and score.high is not None
        assert (score.high + score.low) / 2 == pytest.approx(said["confidence_mean"], abs=1e-4)
        assert (score.high - score.low) / 2 == pytest.approx(said["confidence_var"], abs=1e-4)
        assert score.signature == said["signature"]
        assert "bs:1000|seed:12345" in score.signature


def test_lower_cased_bleu_is_what_the_sacrebleu_command_prints(tmp_path: Path) -> None:
    (expected,) = sacrebleu(tmp_path, *LONG, "-lc", "--confidence")
    score = bleu_lowercase(*LONG, resamples=1000)
    assert score.value == pytest.approx(expected["score"], abs=1e-5)
    assert score.value > bleu(*LONG).value
    assert score.signature == expected["signature"]


def test_an_interval_where_some_samples_score_exactly_nothing() -> None:
    """sacreBLEU alone fails here; the half width is that of its paired test."""
    score = ter(HYPOTHESES, REFERENCES, resamples=1000)
    assert score.low is not None and score.high is not None
    assert score.low < score.value < score.high


def test_perfect_translations_leave_nothing_to_chance() -> None:
    for metric, value in ((bleu, 100.0), (chrf, 100.0), (ter, 0.0)):
        score = metric([MAN, DOGS], [MAN, DOGS], resamples=1000)
        assert (score.value, score.low, score.high) == pytest.approx((value, value, value), abs=1e-4)


@pytest.mark.parametrize(
    ("module", "name", "extra"),
    [(tokenizer_ja_mecab, "ja-mecab", "ja"), (tokenizer_ko_mecab, "ko-mecab", "ko")],
)
def test_a_tokenizer_whose_packages_are_missing_is_refused_with_the_way_to_get_them(
    module: ModuleType, name: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MeCab", None)
    sentence = (
        f"data.bleu_tokenize={name} needs packages that are not installed; "
        f"pip install 'sacrebleu[{extra}]', or use data.bleu_tokenize=char"
    )
    with pytest.raises(UserError) as refused:
        require_tokenizer(name)
    assert str(refused.value) == sentence


@pytest.mark.parametrize("name", [name for name in BLEU_TOKENIZERS if "mecab" not in name])
def test_every_other_tokenizer_of_a_data_set_can_be_made(name: str) -> None:
    require_tokenizer(name)
    assert bleu(["a b c d"], ["a b c d"], name).value == pytest.approx(100)
