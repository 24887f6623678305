"""Scores by known values, and against the sacrebleu command on files."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from minitrans.evaluation.metrics import METRICS, bleu, chrf, exact_match, length_ratio

MAN = "A man rides a bike down the street."
DOGS = "Two dogs are playing in the snow."


def test_an_empty_hypothesis_counts() -> None:
    """BR-23."""
    assert bleu(["", MAN], [DOGS, MAN]).value == pytest.approx(41.11, abs=0.005)
    assert length_ratio(["", MAN], [DOGS, MAN]).value == pytest.approx(9 / 17)
    assert exact_match(["", MAN], [DOGS, MAN]).value == 50.0


def test_nothing_but_empty_hypotheses_is_zero() -> None:
    """BR-23."""
    for metric in METRICS.values():
        assert metric(["", ""], [DOGS, MAN], "13a").value == 0.0


def test_references_are_raw_text() -> None:
    """BR-24."""
    hypothesis, reference = "The sign reads <unk> in green letters.", "The sign reads 出口 in green letters."
    assert bleu([hypothesis], [reference]).value == pytest.approx(37.99, abs=0.005)
    assert exact_match([hypothesis], [reference]).value == 0.0


def test_case_counts() -> None:
    assert bleu([MAN.lower()], [MAN]).value < 100.0
    assert bleu([MAN], [MAN]).value == pytest.approx(100.0)


def test_exact_match_takes_runs_of_white_space_as_one() -> None:
    assert exact_match(["a  b ", "a b", "ab", ""], ["a b", "a c", "a b", " "]).value == 50.0


def test_the_tokenizer_decides_what_chinese_words_are() -> None:
    hypothesis, reference = ["我爱北京天安门"], ["我爱北京的天安门"]
    assert bleu(hypothesis, reference, "13a").value == 0.0
    assert bleu(hypothesis, reference, "zh").value > 50.0
    assert "tok:zh" in bleu(hypothesis, reference, "zh").signature


@pytest.mark.parametrize("tokenize", ["13a", "none", "intl", "char"])
def test_bleu_and_chrf_are_what_the_sacrebleu_command_prints(tmp_path: Path, tokenize: str) -> None:
    hypotheses = [
        "A man rides his bike , down the street .",
        "",
        "Zwei Hunde spielen im Schnee.\u2028 x",
        "出口 here",
    ]
    references = [MAN, DOGS, "Zwei Hunde spielen im  Schnee. ", "出口 there\t!"]
    files = {"hypotheses.txt": hypotheses, "references.txt": references}
    for name, lines in files.items():
        (tmp_path / name).write_bytes("".join(f"{line}\n" for line in lines).encode())
    command = [
        sys.executable,
        "-m",
        "sacrebleu",
        "references.txt",
        "-i",
        "hypotheses.txt",
        "-m",
        "bleu",
        "chrf",
    ]
    options = ["--tokenize", tokenize, "--force", "--chrf-word-order", "2", "--width", "6"]
    printed = subprocess.run([*command, *options], cwd=tmp_path, capture_output=True, text=True, check=True)
    expected_bleu, expected_chrf = json.loads(printed.stdout)
    for score, expected in [
        (bleu(hypotheses, references, tokenize), expected_bleu),
        (chrf(hypotheses, references), expected_chrf),
    ]:
        assert score.value == pytest.approx(expected["score"], abs=1e-5)
        assert score.signature == expected["signature"]
