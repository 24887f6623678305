"""``evaluate`` from the command line: its files, and the sacrebleu command on them."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from minitrans.build import build_model
from minitrans.checkpoint import Checkpoint, Progress, load, save
from minitrans.cli.evaluate import main, output_folder
from minitrans.config import EvaluateConfig, Experiment, ModelConfig, SearchConfig, TokenizerConfig
from minitrans.data.tokenizer import Tokenizers, train_tokenizer
from minitrans.decoding.translator import Translator

SRC = ["abcab", "", "c a", "ba", "cccc bbb aaa"]
TGT = ["b c\u2028 a", "", "Ä b, c.", "ba", "c b a"]


def write_lines(path: Path, lines: list[str]) -> None:
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A finished run: data, and the checkpoint of a model with random weights."""
    for stem in ("train", "valid", "test"):
        write_lines(tmp_path / f"{stem}.x", SRC)
        write_lines(tmp_path / f"{stem}.y", TGT)
    both = train_tokenizer(["abc cba", "bca acb"], TokenizerConfig(kind="char", vocab_size=20))
    files = {
        stem: [str(tmp_path / f"{stem}.x"), str(tmp_path / f"{stem}.y")]
        for stem in ("train", "valid", "test")
    }
    experiment = Experiment(
        model=ModelConfig(
            num_encoder_layers=1, num_decoder_layers=1, d_model=16, num_heads=2, d_ff=32, dropout=0.0
        ),
        position={"kind": "learned", "max_length": 16},
        attention={"kind": "scaled_dot_product"},
        data={"kind": "pairs", "src": "x", "tgt": "y", **files},
        search=SearchConfig(beam_size=2, length_penalty="exponent", alpha=1.0, max_length=7),
    )
    model = build_model(experiment, both.vocab_size, both.vocab_size)
    folder = tmp_path / "a run"
    (folder / "checkpoints").mkdir(parents=True)
    path = folder / "checkpoints" / "best.ckpt"
    save(Checkpoint(path, experiment, Tokenizers(both, both), model.state_dict(), None, None, Progress()))
    return folder


@pytest.fixture
def call(run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> int:
        monkeypatch.setattr(sys, "argv", ["evaluate", f"checkpoint={run_folder}", "accelerator=cpu", *words])
        return main()

    return run


@pytest.mark.parametrize("tokenize", ["13a", "none"])
def test_the_scores_are_the_sacrebleu_commands_on_the_written_file(
    call: Callable[..., int], run_folder: Path, tmp_path: Path, tokenize: str
) -> None:
    assert call(f"data.bleu_tokenize={tokenize}", "batch_tokens=9") == 0
    folder = run_folder / "evaluation" / "test-best-beam2"
    assert sorted(os.listdir(folder)) == ["scores.json", "test.txt"]
    command = [sys.executable, "-m", "sacrebleu", str(tmp_path / "test.y"), "-i", str(folder / "test.txt")]
    options = [
        "--tokenize",
        tokenize,
        "--force",
        "-m",
        "bleu",
        "chrf",
        "--chrf-word-order",
        "2",
        "--width",
        "6",
    ]
    printed = subprocess.run([*command, *options], capture_output=True, text=True, check=True)
    scores = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
    for name, expected in zip(("bleu", "chrf"), json.loads(printed.stdout), strict=True):
        assert scores["scores"][name]["value"] == pytest.approx(expected["score"], abs=1e-5)
        assert scores["scores"][name]["signature"] == expected["signature"]
    assert scores["scores"]["chrf"]["value"] > 0  # so that agreement means something


def test_the_file_holds_what_the_checkpoints_own_search_finds(
    call: Callable[..., int], run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("split=valid", "output_dir=my scores", "search.max_length=3") == 0
    loaded = load(run_folder)
    search = SearchConfig(beam_size=2, length_penalty="exponent", alpha=1.0, max_length=3)
    found = Translator(loaded.model, loaded.tokenizers, search).translate(SRC)
    lines = Path("my scores/valid.txt").read_bytes().decode().split("\n")
    assert lines == [*[translation.text for translation in found], ""]
    scores = json.loads(Path("my scores/scores.json").read_text(encoding="utf-8"))
    assert scores["search"]["max_length"] == 3
    assert scores["search"]["alpha"] == 1.0
    assert scores["checkpoint"] == str(run_folder / "checkpoints" / "best.ckpt")
    printed = capsys.readouterr().out
    for told in ("best.ckpt", "valid.txt", "scores.json", "chrF2++", "perplexity"):
        assert told in printed


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["split=tset"], 'the data has no split "tset"; did you mean "test"?'),
        (["model.d_model=32"], "model.d_model"),
        (["output_dir=test.x"], "test.x is a file; give a folder"),
        (["data.bleu_tokenize=13b"], 'did you mean "13a"'),
        (["data.test=[test.x,short.y]"], "has 5 lines but"),
        (["data.test=[long.x,test.y]"], "long.x and"),
    ],
)
def test_a_mistake_ends_in_one_sentence_and_leaves_nothing(
    call: Callable[..., int],
    run_folder: Path,
    capfd: pytest.CaptureFixture[str],
    words: list[str],
    sentence: str,
) -> None:
    write_lines(Path("short.y"), TGT[:4])
    write_lines(Path("long.x"), [*SRC[:4], "a" * 20])
    assert call(*words) == 2
    printed = capfd.readouterr()
    assert sentence in printed.err
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1
    assert printed.out == ""
    assert os.listdir(run_folder) == ["checkpoints"]


def test_folders_that_we_name_hold_no_awkward_characters() -> None:
    config = EvaluateConfig(split="test a=b,c")
    folder = output_folder(config, Path("my run/checkpoints/最 best.ckpt"), beam_size=5)
    assert folder == Path("my run/evaluation/test_a_b_c-_best-beam5")
    assert output_folder(config, Path("loose/x.ckpt"), 1) == Path("loose/evaluation/test_a_b_c-x-beam1")
