"""Paired tests against the sacrebleu command, and the sentences that changed."""

import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from minitrans.errors import UserError
from minitrans.evaluation.comparison import Comparison, changes, compare, comparison_table
from minitrans.evaluation.metrics import bleu, chrf
from tests.evaluation.cards import evaluated

NUMBERS = ["one", "two", "three", "four", "five", "six", "seven"]
REFERENCES = [" ".join(random.Random(i).choices(NUMBERS, k=9)) for i in range(30)]


def spoilt(seed: int, share: float) -> list[str]:
    """The references with a share of their words lost."""
    draws = random.Random(seed)
    return [" ".join("x" if draws.random() < share else word for word in line.split()) for line in REFERENCES]


BASELINE, GOOD, BAD = spoilt(1, 0.2), spoilt(2, 0.15), spoilt(3, 0.5)


@pytest.fixture(scope="module")
def found() -> list[Comparison]:
    """A better and a worse system."""
    systems = [evaluated("good", GOOD, REFERENCES), evaluated("bad", BAD, REFERENCES)]
    return compare(systems, evaluated("base", BASELINE, REFERENCES))


@pytest.mark.parametrize(("test", "key"), [("bs", "p_bootstrap"), ("ar", "p_randomisation")])
def test_p_values_are_the_sacrebleu_commands(
    tmp_path: Path, found: list[Comparison], test: str, key: str
) -> None:
    files = {"references": REFERENCES, "baseline": BASELINE, "good": GOOD, "bad": BAD}
    for name, lines in files.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    command = [sys.executable, "-m", "sacrebleu", "references", "-i", "baseline", "good", "bad"]
    options = [
        "-m",
        "bleu",
        "chrf",
        "ter",
        "--chrf-word-order",
        "2",
        f"--paired-{test}",
        "-w",
        "4",
        "-f",
        "text",
    ]
    printed = subprocess.run([*command, *options], cwd=tmp_path, capture_output=True, text=True, check=True)
    rows = [comparison.as_dict()["differences"] for comparison in found]
    p_values = [row[metric][key] for row in rows for metric in ("bleu", "chrf", "ter")]
    said = [float(p) for p in re.findall(r"\(p = ([\d.]+)\)", printed.stdout)]
    assert len(said) == 6
    assert p_values == pytest.approx(said, abs=1e-4)
    assert max(p_values[3:]) < 0.01 < min(p_values[:3])


def test_each_difference_says_how_to_get_it_again(found: list[Comparison]) -> None:
    content = found[0].as_dict()["differences"]["bleu"]
    assert content["baseline"] == pytest.approx(bleu(BASELINE, REFERENCES).value)
    assert content["system"] == pytest.approx(bleu(GOOD, REFERENCES).value)
    assert content["difference"] == pytest.approx(content["system"] - content["baseline"])
    assert "bs:1000|seed:12345" in content["bootstrap_signature"]
    assert "ar:10000|seed:12345" in content["randomisation_signature"]


def test_no_difference_is_no_evidence() -> None:
    """sacreBLEU alone counts only larger differences, so it gives equal systems p = 1/1001 and 1/10001."""
    swapped = [BASELINE[1], BASELINE[0], *BASELINE[2:]]
    references = [REFERENCES[0], REFERENCES[0], *REFERENCES[2:]]
    systems = [evaluated("again", BASELINE, references), evaluated("swapped", swapped, references)]
    again, other = compare(systems, evaluated("first", BASELINE, references))
    assert (again.unlike, other.unlike) == (0, 2)
    for difference in (*again.differences.values(), *other.differences.values()):
        assert (difference.difference, difference.p_bootstrap, difference.p_randomisation) == (0, 1, 1)


def test_the_sentence_that_lost_most_comes_first() -> None:
    references = ["a man rides a bike"] * 5
    before = ["a man rides a bike", "a man", "a man rides a bike", "a man rides", "a  man"]
    after = ["a man rides", "a man rides a bike", "xyz", "a man rides", "a man"]
    system, baseline = evaluated("after", after, references), evaluated("before", before, references)
    found = changes(system, baseline)
    assert [change.line for change in found] == [3, 1, 2]  # 4 and 5 say the same words
    worst = found[0]
    assert (worst.source, worst.baseline, worst.system) == ("source 2", before[2], "xyz")
    assert (worst.baseline_chrf, worst.system_chrf) == (pytest.approx(100.0), 0.0)
    assert (worst.baseline_bleu, worst.system_bleu) == (pytest.approx(100.0), 0.0)
    assert found[2].baseline_chrf == pytest.approx(chrf(["a man"], references[:1]).value)
    # two words of five, both orders that there are perfect: the brevity penalty alone, exp(1 - 5/2)
    assert found[2].baseline_bleu == pytest.approx(22.3130, abs=1e-4)
    (comparison,) = compare([system], baseline)
    assert (comparison.better, comparison.worse, comparison.unlike) == (1, 2, 3)


def test_the_table_tells_both_scores_and_both_p_values(found: list[Comparison]) -> None:
    console = Console(width=140)
    with console.capture() as capture:
        console.print(comparison_table(found[0]))
    difference = found[0].differences["bleu"]
    assert difference.baseline == pytest.approx(bleu(BASELINE, REFERENCES).value)
    for told in ("good against base", f"{difference.difference:+.2f}", f"{difference.p_bootstrap:.4f}"):
        assert told in capture.get()


def test_what_was_scored_on_other_text_is_not_compared() -> None:
    baseline = evaluated("base", BASELINE, REFERENCES)
    with pytest.raises(UserError, match=r"^other and base are scored on different text .* data=..."):
        compare([evaluated("other", BASELINE, [*REFERENCES[1:], "x"])], baseline)
    with pytest.raises(UserError, match=r"other .* data.bleu_tokenize=none, that of base of 13a"):
        compare([evaluated("other", BASELINE, REFERENCES, tokenize="none")], baseline)
