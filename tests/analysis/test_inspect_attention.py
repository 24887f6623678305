"""The command, from a checkpoint on the disk to pictures, numbers and words."""

import hashlib
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

from minitrans.analysis.drawing import DPI, Layout, picture
from minitrans.checkpoint import load, read, save
from minitrans.cli.inspect_attention import main
from minitrans.config import Experiment, ModelConfig, SearchConfig, TokenizerConfig
from minitrans.data.tokenizer import Tokenizers, train_tokenizer
from minitrans.decoding.translator import Translator
from tests.untrained import save_untrained

FILES = ["cross.png", "decoder.png", "encoder.png", "maps.json", "maps.npz"]


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A run folder with one checkpoint; learned positions for 6 tokens."""
    trained = train_tokenizer(["a a a a b b b c c"], TokenizerConfig(kind="word", vocab_size=10))
    tokenizers = Tokenizers(trained, trained)
    experiment = Experiment(
        model=ModelConfig(num_encoder_layers=1, num_decoder_layers=1, d_model=8, num_heads=2, d_ff=8),
        position={"kind": "learned", "max_length": 6},
        attention={"kind": "scaled_dot_product"},
    )
    return save_untrained(tmp_path / "my run, lr=1 两", experiment, tokenizers, update=1200)


def call(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["minitrans-inspect-attention", *words])
    return main()


def test_a_given_target_is_drawn_and_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], run_folder: Path
) -> None:
    assert call(monkeypatch, f"checkpoint={run_folder}", "text=a c b", "target=b a") == 0
    folder = run_folder / "attention" / "best-a_c_b-b_a"
    assert sorted(path.name for path in folder.iterdir()) == FILES
    with np.load(folder / "maps.npz") as saved:
        assert saved["src"].tolist() == ["▁a", "▁c", "▁b", "</s>"]
        assert saved["tgt_out"].tolist() == ["▁b", "▁a", "</s>"]
        assert saved["cross"].shape == (1, 2, 3, 4)
        np.testing.assert_allclose(saved["cross"].sum(axis=-1), 1.0, atol=1e-6)
    assert matplotlib.image.imread(folder / "cross.png")[..., :3].std() > 0.05
    printed = capsys.readouterr().out
    assert f"{run_folder / 'checkpoints' / 'best.ckpt'} (update 1,200)" in printed
    assert "encoder (entropy in nats, at most 1.39)" in printed  # ln 4
    assert "cross (entropy in nats, at most 1.39)" in printed
    for name in FILES:
        assert str(folder / name) in printed


def test_the_target_is_found_as_the_checkpoint_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], run_folder: Path
) -> None:
    """The checkpoint's own settings, and what is typed over them; not the command's defaults."""
    stored = read(run_folder)
    search = SearchConfig(beam_size=1, length_penalty="none", max_length=2)
    save(replace(stored, experiment=replace(stored.experiment, search=search)))
    loaded = load(run_folder)
    for words, settings in (([], search), (["search.max_length=1"], replace(search, max_length=1))):
        translator = Translator(loaded.model, loaded.tokenizers, settings)
        own = translator.translate(["a c b"])[0]
        assert len(own.tokens) == settings.max_length  # so that the setting is seen at work
        assert call(monkeypatch, f"checkpoint={run_folder}", "text=a c b", *words) == 0
        assert f"target      {own.text}\n" in capsys.readouterr().out


def test_without_a_target_it_is_the_models_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], run_folder: Path, tmp_path: Path
) -> None:
    loaded = load(run_folder)
    search = SearchConfig(beam_size=1, max_length=3)
    own = Translator(loaded.model, loaded.tokenizers, search).translate(["a c b"])[0].text
    words = ["search.beam_size=1", "search.max_length=3", f"output_dir={tmp_path / 'maps'}"]
    assert call(monkeypatch, f"checkpoint={run_folder}", "text=a c b", *words) == 0
    assert f"target      {own}\n" in capsys.readouterr().out
    assert not (run_folder / "attention").exists()
    (ids,) = loaded.tokenizers.tgt.encode([own])
    with np.load(tmp_path / "maps" / "maps.npz") as saved:
        assert saved["tgt_in"].tolist() == ["<s>", *loaded.tokenizers.tgt.pieces(ids)]


def test_the_picture_for_a_logger_is_the_cross_attention(run_folder: Path) -> None:
    loaded = load(run_folder)
    pixels = picture(loaded.model, loaded.tokenizers, "a c b", "b a")
    width, height = Layout.of((1, 2, 3, 4), ("▁b", "▁a", "</s>"), ("▁a", "▁c", "▁b", "</s>")).figure
    assert pixels.shape == (round(height * DPI), round(width * DPI), 4)
    assert pixels.dtype == np.uint8 and pixels[..., :3].std() > 10


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["text="], "text= is empty"),
        (["text=a", "target=   "], "target= is blank; give a translation, or leave it out"),
        (["text=a a a a a a"], "positions for 6"),
        (["text=a", "target=a a a a a a"], "the target has 7 tokens, but the model has learned 6 positions"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    run_folder: Path,
    words: list[str],
    sentence: str,
) -> None:
    assert call(monkeypatch, f"checkpoint={run_folder}", *words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1 and captured.err.startswith("error: ")
    assert sentence in captured.err
    assert not (run_folder / "attention").exists()


def test_an_output_dir_that_is_a_file_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], run_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "taken").write_text("mine")
    words = ["text=a", "target=b", f"output_dir={tmp_path / 'taken'}"]
    assert call(monkeypatch, f"checkpoint={run_folder}", *words) == 2
    assert "taken is a file; give a folder" in capsys.readouterr().err
    assert (tmp_path / "taken").read_text() == "mine"


def test_each_sentence_has_its_own_folder(monkeypatch: pytest.MonkeyPatch, run_folder: Path) -> None:
    for words in (["text=a c", "target=b"], ["text=a c", "target=b b"], ["text=c a"], ["text=两 a"]):
        assert call(monkeypatch, f"checkpoint={run_folder}", "search.max_length=2", *words) == 0
    folders = sorted((run_folder / "attention").iterdir())
    digest = hashlib.sha256(json.dumps(["两 a"]).encode()).hexdigest()[:8]
    assert [path.name for path in folders] == [
        f"best-_a-{digest}-beam5-max_length2", "best-a_c-b", "best-a_c-b_b", "best-c_a-beam5-max_length2",
    ]  # fmt: skip
    records = [json.loads((folder / "maps.json").read_text(encoding="utf-8")) for folder in folders]
    assert [record["text"] for record in records] == ["两 a", "a c", "a c", "c a"]
    assert [record["target"] for record in records[1:3]] == ["b", "b b"]
    assert {record["update"] for record in records} == {1200}


def test_signs_and_searches_have_their_own_folders(monkeypatch: pytest.MonkeyPatch, run_folder: Path) -> None:
    for words in (["text=a!"], ["text=a?"], ["text=a"], ["text=a", "search.beam_size=2"]):
        assert call(monkeypatch, f"checkpoint={run_folder}", "search.max_length=2", *words) == 0
    folders = sorted((run_folder / "attention").iterdir())
    records = [json.loads((folder / "maps.json").read_text(encoding="utf-8")) for folder in folders]
    assert sorted(record["text"] for record in records) == ["a", "a", "a!", "a?"]
    assert {"best-a-beam5-max_length2", "best-a-beam2-max_length2"} < {path.name for path in folders}


def test_maps_are_not_overwritten_by_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], run_folder: Path, tmp_path: Path
) -> None:
    here = tmp_path / "here"
    words = [f"checkpoint={run_folder}", f"output_dir={here}", "text=a c", "target=b"]
    assert call(monkeypatch, *words) == 0
    first = {path.name: path.read_bytes() for path in here.iterdir()}
    assert sorted(first) == FILES
    (here / "cross.png").unlink()
    assert call(monkeypatch, *words) == 0  # the same ones are written anew
    assert sorted(path.name for path in here.iterdir()) == FILES
    capsys.readouterr()
    other = make_other_state(run_folder)
    for changed, reason in (
        (["text=c"], 'other maps (text is "a c" there, c here)'),
        (["target=b b"], 'other maps (target is b there, "b b" here)'),
        ([f"checkpoint={other}"], "other maps (of another checkpoint)"),
    ):
        assert call(monkeypatch, *words, *changed) == 2
        said = f"error: {here} holds {reason}; give another output_dir, or remove it\n"
        assert capsys.readouterr().err == said
    assert (here / "maps.json").read_bytes() == first["maps.json"]
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "cross.png").write_bytes(b"mine")
    assert call(monkeypatch, *words, f"output_dir={tmp_path / 'full'}") == 2
    assert "full holds other files; give another output_dir, or remove it" in capsys.readouterr().err
    assert (tmp_path / "full" / "cross.png").read_bytes() == b"mine"


def make_other_state(run_folder: Path) -> Path:
    """The run's checkpoint of 60 updates later, elsewhere."""
    stored = read(run_folder)
    later = replace(stored.progress, update=1260)
    path = run_folder.parent / "later" / "checkpoints" / "best.ckpt"
    path.parent.mkdir(parents=True)
    save(replace(stored, path=path, progress=later))
    return path


def test_a_later_state_of_the_checkpoint_has_its_own_folder(
    monkeypatch: pytest.MonkeyPatch, run_folder: Path
) -> None:
    words = [f"checkpoint={run_folder}", "text=a c", "target=b"]
    assert call(monkeypatch, *words) == 0
    shutil.copy(make_other_state(run_folder), run_folder / "checkpoints" / "best.ckpt")
    for _ in range(2):
        assert call(monkeypatch, *words) == 0
    names = sorted(path.name for path in (run_folder / "attention").iterdir())
    assert names == ["best-a_c-b", "best-a_c-b-update1260"]
