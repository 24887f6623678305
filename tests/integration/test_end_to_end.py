"""Train, evaluate, translate, look at the attention: what a user does on the first day, as processes."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from minitrans import checkpoint
from tests.integration.commands import (
    ENGLISH,
    GERMAN,
    SMALL,
    Done,
    ForkServer,
    data_words,
    write_lines,
    write_pairs,
)

AWKWARD = "我的 run, lr=1"
CHINESE = ("一只狗在跑", "两只猫在睡觉", "男人吃红苹果", "她读书", "我们今天唱歌", "一只鸟飞过房子")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a difficult name that holds parallel text, also with a Chinese side."""
    folder = tmp_path_factory.mktemp("home") / "平行 text=a,b"
    for split, times in (("train", 10), ("valid", 1), ("test", 1)):
        write_pairs(folder / "text", split, ENGLISH * times, GERMAN * times)
        write_lines(folder / "text" / f"{split}.zh", CHINESE * times)
    return folder


@pytest.fixture(scope="module")
def trained(server: ForkServer, home: Path) -> Done:
    """A run that has learned its six sentences; its folder is ``home / AWKWARD``."""
    words = (
        "model.d_model=32",
        "training.max_updates=120",
        "optimizer.lr=1e-2",
        "schedule.warmup_updates=20",
        "training.log_every=10",
        "training.validate_every=60",
        "training.save_every=50",
        "logger=tensorboard",
    )
    done = server.run("train", *data_words(home / "text"), *SMALL, *words, f"run_dir={AWKWARD}", folder=home)
    assert done.status == 0, done.err
    return done


@pytest.fixture(scope="module")
def run(trained: Done, home: Path) -> Path:
    """The finished run's folder."""
    return home / AWKWARD


@pytest.fixture(scope="module")
def evaluated(server: ForkServer, run: Path, home: Path) -> Path:
    """The folder that ``evaluate`` has written."""
    done = server.run("evaluate", f"checkpoint={AWKWARD}", "batch_tokens=24", folder=home)
    assert (done.status, done.err) == (0, "")
    return run / "evaluation" / "test-best-beam5"


def test_a_run_folder_holds_everything(run: Path) -> None:
    files = {str(path.relative_to(run)) for path in run.rglob("*") if path.is_file()}
    board = {name for name in files if name.startswith("tensorboard/")}
    assert any("tfevents" in name for name in board)
    assert files - board == {
        ".lock",
        "config.yaml",
        "provenance.json",
        "tokenizer.json",
        "checkpoints/best.ckpt",
        "checkpoints/last.ckpt",
        *(f"checkpoints/step-{update:06d}.ckpt" for update in (60, 100, 120)),
        "metrics.csv",
        "result.json",
        "translations/test.txt",
        "curves.png",
    }
    assert all(re.fullmatch(r"[\w./-]+", name, flags=re.ASCII) for name in files)


def test_the_records_of_a_run_say_what_was_run(run: Path, home: Path) -> None:
    config = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    assert (config["model"]["d_model"], config["optimizer"]["lr"], config["run_dir"]) == (32, 0.01, str(run))
    assert config["data"]["train"] == [f"{home}/text/train.en", f"{home}/text/train.de"]
    provenance = json.loads((run / "provenance.json").read_text(encoding="utf-8"))
    assert provenance["seed"] == 1
    assert f"run_dir={AWKWARD}" in provenance["command"]
    assert set(provenance["data"]) == {
        f"{home}/text/{split}.{side}" for split in ("train", "valid", "test") for side in ("en", "de")
    }
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    assert result["updates"] == 120
    assert result["target_tokens"] == 120 * 10 * sum(len(line.split()) + 1 for line in GERMAN)
    assert result["tests"]["test"]["scores"]["exact_match"]["value"] == 100.0
    assert "tok:13a" in result["tests"]["test"]["scores"]["bleu"]["signature"]


def test_what_is_printed_at_the_end_can_be_typed(server: ForkServer, trained: Done, home: Path) -> None:
    _, _, last = trained.out.partition("\nNext\n")
    commands = [shlex.split(line) for line in last.splitlines()]
    assert [command[1] for command in commands] == [
        f"scripts/{name}.py" for name in ("evaluate", "translate", "inspect_attention")
    ]
    for _, script, *words in commands:
        done = server.run(Path(script).stem, *words, folder=home, stdin="a dog runs .\n")
        assert done.status == 0, done.err


def test_the_score_is_the_sacrebleu_commands(evaluated: Path, home: Path) -> None:
    reference, hypotheses = home / "text" / "test.de", evaluated / "test.txt"
    command = [sys.executable, "-m", "sacrebleu", str(reference), "-i", str(hypotheses), "--width", "6"]
    command.append("--confidence")
    printed = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    score = json.loads((evaluated / "scores.json").read_text(encoding="utf-8"))["scores"]["bleu"]
    assert score["value"] == pytest.approx(printed["score"], abs=1e-5)
    assert score["signature"] == printed["signature"]
    assert score["value"] == pytest.approx(100.0)


def test_training_evaluating_a_pipe_and_a_file_give_the_same_lines(
    server: ForkServer, run: Path, evaluated: Path, home: Path
) -> None:
    source = home / "text" / "test.en"
    piped = server.run("translate", f"checkpoint={run}", folder=home, stdin=source.read_text())
    assert piped.status == 0
    words = (f"checkpoint={AWKWARD}/checkpoints/best.ckpt", f"input={source}", "output=译文 out=1,2.txt")
    filed = server.run("translate", *words, "batch_tokens=9", folder=home)
    assert (filed.status, filed.out) == (0, "")
    wanted = "".join(f"{line}\n" for line in GERMAN)
    assert piped.out == wanted
    assert (home / "译文 out=1,2.txt").read_text(encoding="utf-8") == wanted
    assert (evaluated / "test.txt").read_text(encoding="utf-8") == wanted
    assert (run / "translations" / "test.txt").read_text(encoding="utf-8") == wanted


def test_n_lines_in_are_n_lines_out_and_blank_stays_blank(server: ForkServer, run: Path, home: Path) -> None:
    lines = ["", ENGLISH[3], "  ", "\t", ENGLISH[0], "", ENGLISH[3]]
    done = server.run("translate", f"checkpoint={run}", folder=home, stdin="\n".join(lines))
    assert done.out.split("\n") == ["", GERMAN[3], "", "", GERMAN[0], "", GERMAN[3], ""]
    assert server.run("translate", f"checkpoint={run}", folder=home, stdin="").out == ""


def test_the_attention_of_a_sentence_is_drawn_and_numbered(server: ForkServer, run: Path, home: Path) -> None:
    words = (f"checkpoint={run}", f"text={ENGLISH[0]}", "output_dir=图 a=b")
    done = server.run("inspect_attention", *words, folder=home)
    assert (done.status, done.err) == (0, "")
    assert f"target      {GERMAN[0]}\n" in done.out
    names = {path.name for path in (home / "图 a=b").iterdir()}
    assert names == {"encoder.png", "decoder.png", "cross.png", "maps.json", "maps.npz"}
    with np.load(home / "图 a=b" / "maps.npz") as maps:
        cross = maps["cross"]  # (layers, heads, target, source)
        assert cross.shape[:2] == (1, 2)
        assert cross.shape[-1] == len(maps["src"]) == 5
        np.testing.assert_allclose(cross.sum(axis=-1), 1, atol=1e-5)


def test_a_chinese_target_is_scored_by_characters_and_drawn(server: ForkServer, home: Path) -> None:
    words = (
        *data_words(home / "text", "en", "zh"),
        *SMALL,
        "data.bleu_tokenize=zh",
        "tokenizer.kind=char",
        "run_dir=中文",
    )
    assert server.run("train", *words, folder=home).status == 0
    result = json.loads((home / "中文" / "result.json").read_text(encoding="utf-8"))
    assert "tok:zh" in result["tests"]["test"]["scores"]["bleu"]["signature"]
    words = ("checkpoint=中文", "text=she reads .", "target=她读书")
    done = server.run("inspect_attention", *words, folder=home)
    assert done.status == 0
    assert not done.err or done.err.startswith("No installed font has 3 of the characters (书她读)")
    (folder,) = (home / "中文" / "attention").iterdir()
    with np.load(folder / "maps.npz") as maps:
        assert maps["tgt_in"].tolist() == ["<s>", "她", "读", "书"]


# -- the shipped configurations, shrunken --------------------------------------------------

SHRUNKEN = (
    "model.num_encoder_layers=1",
    "model.num_decoder_layers=1",
    "model.d_model=16",
    "model.num_heads=2",
    "model.d_ff=32",
    "tokenizer.vocab_size=300",
    "training.max_updates=2",
    "training.validate_sentences=8",
    "search.max_length=6",
)


@pytest.fixture
def shrunken(server: ForkServer, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A run of a shipped configuration, with an empty home folder, standard input closed and no network."""
    environment = {"HOME": str(tmp_path / "home"), "MINITRANS_CACHE": ""}
    (tmp_path / "home").mkdir()
    words = (*request.param, *SHRUNKEN, "search=greedy", "run_dir=run")
    done = server.run("train", *words, folder=tmp_path, stdin=None, environment=environment)
    assert done.status == 0, done.err
    return tmp_path


def check_through_every_command(server: ForkServer, folder: Path, sentences: int, data: str) -> None:
    tests = json.loads((folder / "run" / "result.json").read_text(encoding="utf-8"))["tests"]
    assert tests["test"]["sentences"] == sentences
    loaded = checkpoint.load(folder / "run")
    assert (loaded.progress.update, loaded.tokenizers.src.vocab_size) == (2, 300)
    assert loaded.experiment.data["src"] == "en"
    done = server.run("evaluate", "checkpoint=run", f"data.test={data}", folder=folder)
    assert done.status == 0, done.err
    (written,) = (folder / "run" / "evaluation").glob("test-best-beam1*/test.txt")
    lines = written.read_text(encoding="utf-8")
    piped = server.run("translate", "checkpoint=run", folder=folder, stdin="a dog\n\na man in a red shirt\n")
    assert piped.status == 0, piped.err
    assert (lines.count("\n") > 100, piped.out.count("\n"), piped.out.split("\n")[1]) == (True, 3, "")


@pytest.mark.parametrize("shrunken", [()], ids=["default"], indirect=True)
def test_the_default_shrunken_goes_through_every_command(server: ForkServer, shrunken: Path) -> None:
    check_through_every_command(server, shrunken, 500, "test")
    found = {path.name for path in shrunken.iterdir()}
    assert found == {"home", "run"}


@pytest.mark.parametrize("shrunken", [("experiment=multi30k_quick",)], ids=["multi30k_quick"], indirect=True)
def test_multi30k_quick_shrunken_goes_through_every_command(
    server: ForkServer, multi30k: Path, shrunken: Path
) -> None:
    check_through_every_command(server, shrunken, 1000, "val")


@pytest.mark.slow
def test_the_default_itself_needs_no_account_no_network_and_no_answers(
    server: ForkServer, tmp_path: Path
) -> None:
    (tmp_path / "home").mkdir()
    environment = {"HOME": str(tmp_path / "home"), "MINITRANS_CACHE": ""}
    words = ("training.max_updates=2", "training.validate_sentences=8", "search.max_length=4")
    done = server.run("train", *words, folder=tmp_path, stdin=None, environment=environment)
    assert (done.status, done.err) == (0, "")
    (run,) = (tmp_path / "runs").iterdir()
    assert re.fullmatch(r"\d{8}-\d{6}-en_de-3x256-seed1", run.name)
    assert json.loads((run / "result.json").read_text(encoding="utf-8"))["updates"] == 2
