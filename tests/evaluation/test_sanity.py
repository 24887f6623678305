"""Rows whose scores are known beforehand."""

from pathlib import Path

import pytest

from minitrans.data.corpus import Corpus, read_corpus
from minitrans.data.formats import TextPair
from minitrans.evaluation.metrics import bleu
from minitrans.evaluation.sanity import sanity_rows

TRAIN = [
    ("a red dog runs home", "ein roter Hund läuft heim"),
    ("two cats sleep here", "zwei Katzen schlafen hier"),
]
TEST = [
    ("a red dog runs", "ein roter Hund läuft ."),
    ("Ada visits Paris in May .", "Ada visits Paris in May ."),
]


def corpus(folder: Path, name: str, pairs: list[tuple[str, str]]) -> Corpus:
    files = [folder / f"{name}.src", folder / f"{name}.tgt"]
    for file, lines in zip(files, zip(*pairs, strict=True), strict=True):
        file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return read_corpus(name, TextPair(*files))


def test_what_no_model_scores(tmp_path: Path) -> None:
    reference, copied, nearest = sanity_rows(
        corpus(tmp_path, "test", TEST), corpus(tmp_path, "train", TRAIN), "13a"
    )
    assert reference.name == "(reference)"
    values = {name: score.value for name, score in reference.scores.items()}
    assert values == pytest.approx(
        {
            "bleu": 100.0,
            "bleu_lowercase": 100.0,
            "chrf": 100.0,
            "ter": 0.0,
            "exact_match": 100.0,
            "length_ratio": 1.0,
        }
    )
    expected = [tgt for _, tgt in TEST]
    assert copied.scores["bleu"].value == bleu([src for src, _ in TEST], expected).value
    assert copied.scores["exact_match"].value == 50.0
    remembered = [TRAIN[0][1], TRAIN[0][1]]  # nothing is near the second: the first line answers
    assert nearest.scores["bleu"].value == bleu(remembered, expected).value


def test_the_reference_is_perfect_behind_a_byte_order_mark_too(tmp_path: Path) -> None:
    train = corpus(tmp_path, "train", TRAIN)
    corpus(tmp_path, "test", TEST)
    marked = tmp_path / "test.tgt"
    marked.write_bytes(b"\xef\xbb\xbf" + marked.read_bytes())
    reference, _, _ = sanity_rows(read_corpus("test", TextPair(tmp_path / "test.src", marked)), train, "13a")
    assert reference.scores["bleu"].value == pytest.approx(100.0)
