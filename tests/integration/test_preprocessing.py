"""From files and settings to what training sees: changed text, blank lines, quotes, the language ``no``."""

import os
from pathlib import Path

import pytest
import yaml

from minitrans import checkpoint
from minitrans.cli.compose import compose
from minitrans.config import TrainConfig
from minitrans.training.prepare import Material, prepare
from tests.integration.commands import (
    ENGLISH,
    GERMAN,
    SMALL,
    ForkServer,
    data_words,
    write_lines,
    write_pairs,
)


def prepared(folder: Path, *words: str) -> Material:
    """What ``train`` makes of its configuration before the first update."""
    config = compose("train", [*data_words(folder, "de", "en"), *SMALL, *words], TrainConfig).config
    return prepare(config)


def first_example(material: Material) -> str:
    return material.tokenizers.src.decode([material.train.src[0].tolist()])[0]


@pytest.fixture
def hund(tmp_path: Path) -> Path:
    """Text whose first source line is ``Ein Hund läuft.``"""
    for split in ("train", "valid", "test"):
        write_pairs(tmp_path, split, ["A dog runs."] * 4, ["Ein Hund läuft."] * 4)
    return tmp_path


def test_changed_text_of_the_same_size_and_date_is_read_anew(hund: Path) -> None:
    assert first_example(prepared(hund)) == "Ein Hund läuft."
    file = hund / "train.de"
    before = file.stat()
    file.write_text(file.read_text(encoding="utf-8").replace("Hund", "Mund"), encoding="utf-8")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = file.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert first_example(prepared(hund)) == "Ein Mund läuft."


def test_a_changed_setting_makes_new_examples(hund: Path) -> None:
    assert first_example(prepared(hund)) == "Ein Hund läuft."
    assert first_example(prepared(hund, "tokenizer.lowercase=true")) == "ein hund läuft."
    assert first_example(prepared(hund)) == "Ein Hund läuft."


def test_train_itself_learns_the_changed_text(server: ForkServer, hund: Path) -> None:
    pieces = []
    for run in ("before", "after"):
        words = (*data_words(hund, "de", "en"), *SMALL, f"run_dir={run}")
        assert server.run("train", *words, folder=hund).status == 0
        tokenizer = checkpoint.load(hund / run).tokenizers.src
        pieces.append(tokenizer.pieces(tokenizer.encode(["Hund Mund"])[0]))
        file = hund / "train.de"
        file.write_text(file.read_text(encoding="utf-8").replace("Hund", "Mund"), encoding="utf-8")
    assert pieces == [["▁Hund", "<unk>"], ["<unk>", "▁Mund"]]


def test_a_blank_side_leaves_out_its_pair_alone_and_is_told(
    server: ForkServer, text: Path, tmp_path: Path
) -> None:
    write_lines(tmp_path / "four.de", ["eins", "zwei", "drei", "vier"])
    write_lines(tmp_path / "four.en", ["one", "", "three", "four"])
    words = ("data.train=[four.de,four.en]", "tokenizer.kind=char", "run_dir=run")
    done = server.run("train", *data_words(text), *SMALL, *words, folder=tmp_path)
    assert done.status == 0, done.err
    assert "Left out 1 of 4 training pairs: 1 with an empty side.\n" in done.out
    assert "3 training and 6 validation pairs" in done.out


def test_a_tsv_file_is_taken_as_it_is(tmp_path: Path) -> None:
    pairs = [
        ("Ein Hund läuft.", "A dog runs."),
        ('"Halt! ruft er.', "Stop! he calls."),
        ("Zwei Kinder.", "Two children."),
        ("null", "null"),
        ('Drei Zoll = 3"', 'Three inches = 3"'),
        ("Ende", "End"),
    ]
    file = write_lines(tmp_path / "six.tsv", ["\t".join(pair) for pair in pairs])
    words = (f"data.{split}={file}" for split in ("train", "valid", "test"))
    material = prepared(tmp_path, *words, "tokenizer.kind=char")
    assert list(zip(material.valid_text.src, material.valid_text.tgt, strict=True)) == pairs
    decoded = [
        (
            material.tokenizers.src.decode([material.train.src[row].tolist()])[0],
            material.tokenizers.tgt.decode([material.train.tgt[row].tolist()])[0],
        )
        for row in range(len(material.train))
    ]
    assert decoded == pairs


@pytest.mark.parametrize(("written", "rate"), [("1e-4", 0.0001), ("1e-05", 0.00001), ("0.0001", 0.0001)])
def test_norwegian_and_a_rate_as_they_are_typed(
    server: ForkServer, tmp_path: Path, written: str, rate: float
) -> None:
    for split in ("train", "valid"):
        write_lines(tmp_path / f"{split}.da", ENGLISH)
        write_lines(tmp_path / f"{split}.no", GERMAN)
    files = tuple(f"data.{split}=[{split}.da,{split}.no]" for split in ("train", "valid"))
    words = ("data=pairs", "data.src=da", "data.tgt=no", *files, *SMALL, f"optimizer.lr={written}")
    steady = ("schedule=constant", "schedule.warmup_updates=1", "run_dir=run")
    done = server.run("train", *words, *steady, folder=tmp_path)
    assert done.status == 0, done.err
    saved = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text(encoding="utf-8"))
    assert (saved["data"]["tgt"], saved["optimizer"]["lr"]) == ("no", rate)
    assert saved["data"]["train"] == [str(tmp_path / "train.da"), str(tmp_path / "train.no")]
    optimizer = checkpoint.read(tmp_path / "run").optimizer
    assert optimizer is not None
    assert {group["lr"] for group in optimizer["param_groups"]} == {rate}
