"""The command, from a checkpoint on the disk to tables, figures and pictures."""

import dataclasses
import json
import sys
from pathlib import Path

import matplotlib.image
import pytest

from minitrans.checkpoint import load
from minitrans.cli.diagnose import main
from minitrans.config import TrainConfig
from minitrans.data.corpus import SOURCES
from minitrans.data.tokenizer import Tokenizers
from minitrans.training.resume import experiment_of
from tests.training.tiny import changed, tiny_experiment
from tests.untrained import save_untrained

WORDS = ("accelerator=cpu", "search.max_length=6")


def saved(folder: Path, config: TrainConfig) -> Path:
    """A run folder with one checkpoint of an untrained model."""
    section = {key: value for key, value in config.data.items() if key != "kind"}
    tokenizers = Tokenizers.train(SOURCES[config.data["kind"]](**section).load("train"), config.tokenizer)
    return save_untrained(folder, experiment_of(config), tokenizers, update=1200)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    tiny = tiny_experiment(tmp_path_factory.mktemp("text"))
    return changed(tiny, {"position": {"kind": "learned", "max_length": 20}})


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory, config: TrainConfig) -> Path:
    return saved(tmp_path_factory.mktemp("runs") / "my run, lr=1", config)


def call(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["minitrans-diagnose", *words])
    return main()


def test_figures_tables_and_pictures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], run_folder: Path
) -> None:
    assert call(monkeypatch, f"checkpoint={run_folder}", "heads=true", *WORDS) == 0
    printed = capsys.readouterr().out
    folder = run_folder / "diagnostics" / "valid-best-6sentences-heads-beam1-max_length6"
    names = ["diagnostics.json", "diagnostics.png", "heads.png", "positions.png"]
    assert sorted(path.name for path in folder.iterdir()) == names
    for name in names:
        assert str(folder / name) in printed
        if name.endswith(".png"):
            assert matplotlib.image.imread(folder / name)[..., :3].std() > 0.02
    content = json.loads((folder / "diagnostics.json").read_text(encoding="utf8"))
    assert (content["update"], content["split"], content["sentences"]) == (1200, "valid", 6)
    assert [(h["side"], h["layer"], h["head"]) for h in content["heads"]] == [
        (side, 1, head) for side in ("encoder", "decoder", "cross") for head in (1, 2)
    ]
    first = content["heads"][0]
    assert first["d_k"] == 8 and 0 < first["entropy"] < first["uniform_entropy"]
    assert first["masked"]["loss"] == pytest.approx(content["bleu"] - first["masked"]["bleu"])
    assert content["heads"][2]["pattern"]["end"] is None  # JSON knows no NaN
    assert "(update 1,200)" in printed and "encoder self-attention: d_k 8, scale 0.3536" in printed
    assert f"{first['variance']:.3g}" in printed and "BLEU without" in printed


def test_the_first_sentences_of_another_split_into_another_folder(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], run_folder: Path, tmp_path: Path
) -> None:
    words = (f"checkpoint={run_folder}", "split=test", "sentences=3", f"output_dir={tmp_path / 'here'}")
    assert call(monkeypatch, *words, *WORDS) == 0
    content = json.loads((tmp_path / "here" / "diagnostics.json").read_text(encoding="utf8"))
    assert (content["split"], content["sentences"], content["bleu"]) == ("test", 3, None)
    assert "masked" not in content["heads"][0]
    assert "BLEU" not in capsys.readouterr().out
    assert not (tmp_path / "here" / "heads.png").exists()


def test_blank_lines_are_left_out_and_said(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    config: TrainConfig,
    tmp_path: Path,
) -> None:
    folder = saved(tmp_path / "run", config)
    for side in ("x", "y"):
        (tmp_path / f"v.{side}").write_text("eins zwei\n\ndrei vier acht\n", encoding="utf8")
    stored = load(folder)
    files = [str(tmp_path / "v.x"), str(tmp_path / "v.y")]
    words = [f"data.valid=[{','.join(files)}]", "sentences=2"]
    assert stored.experiment.data["kind"] == "pairs"
    assert call(monkeypatch, f"checkpoint={folder}", *words, *WORDS) == 0
    captured = capsys.readouterr()
    assert captured.err == "left out, blank on a side: 1 pair\n"
    assert "measured on 2 sentences" in captured.out


def test_sinusoidal_positions_need_no_picture(
    monkeypatch: pytest.MonkeyPatch, config: TrainConfig, tmp_path: Path
) -> None:
    folder = saved(tmp_path / "run", changed(config, {"position": {"kind": "sinusoidal"}}))
    assert call(monkeypatch, f"checkpoint={folder}", *WORDS) == 0
    names = [path.name for path in (folder / "diagnostics" / "valid-best-6sentences").iterdir()]
    assert sorted(names) == ["diagnostics.json", "diagnostics.png"]


def test_bad_input_is_one_sentence_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], config: TrainConfig, tmp_path: Path
) -> None:
    short = saved(tmp_path / "short", changed(config, {"position": {"kind": "learned", "max_length": 3}}))
    lstm = dataclasses.replace(
        config, model=type(config.model)(architecture="lstm", d_model=16), position={"kind": "none"}
    )
    for words, sentence in (
        ([f"checkpoint={short}"], "but position.max_length is 3"),
        ([f"checkpoint={saved(tmp_path / 'lstm', lstm)}"], "this model has none (it is a RecurrentModel)"),
        ([f"checkpoint={short}", "split=valdi"], "valdi"),
        ([f"checkpoint={tmp_path / 'nothing'}"], "nothing"),
    ):
        assert call(monkeypatch, *words, *WORDS) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.count("\n") == 1 and captured.err.startswith("error: ")
        assert sentence in captured.err
    assert not list(tmp_path.rglob("diagnostics"))


def test_a_diagnosis_is_not_overwritten_by_another(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], config: TrainConfig, tmp_path: Path
) -> None:
    run, here = saved(tmp_path / "run", config), tmp_path / "here"
    words = (f"checkpoint={run}", f"output_dir={here}", "sentences=3", *WORDS)
    assert call(monkeypatch, *words) == 0
    first = (here / "diagnostics.json").read_bytes()
    (here / "diagnostics.png").unlink()
    assert call(monkeypatch, *words, "threads=1") == 0  # the same one is written anew
    assert (here / "diagnostics.png").exists()
    capsys.readouterr()
    monkeypatch.setattr("minitrans.analysis.instruments.measure", never)  # refused before any work
    text = ",".join(config.data["train"])
    for word, reason in (
        ("sentences=2", "sentences is 3 there, 2 here"),
        ("split=test", "split is valid there, test here"),
        (f"data.valid=[{text}]", "of another text"),
        ("heads=true", "heads_masked is False there, True here"),
    ):
        assert call(monkeypatch, *words, word) == 2
        said = f"error: {here} holds another diagnosis ({reason}); give another output_dir, or remove it\n"
        assert capsys.readouterr().err == said
    assert (here / "diagnostics.json").read_bytes() == first


def never(*arguments: object) -> None:
    raise AssertionError("it measures")


def test_the_folders_name_holds_what_is_not_as_usual(
    monkeypatch: pytest.MonkeyPatch, config: TrainConfig, tmp_path: Path
) -> None:
    run = saved(tmp_path / "run", config)
    text = ",".join(config.data["test"])
    for words in ([], ["sentences=3"], ["split=test"], [f"data.valid=[{text}]"]):
        assert call(monkeypatch, f"checkpoint={run}", *WORDS, *words) == 0
    folder = run / "diagnostics"
    digest = json.loads((folder / "test-best-4sentences" / "diagnostics.json").read_text())["text_sha256"][:8]
    assert sorted(path.name for path in folder.iterdir()) == [
        "test-best-4sentences",
        "valid-best-3sentences",
        f"valid-best-4sentences-13a-{digest}",
        "valid-best-6sentences",
    ]
