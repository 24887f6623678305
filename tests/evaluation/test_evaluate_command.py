"""``evaluate`` from the command line: its files, and the sacrebleu command on them."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from sacrebleu.tokenizers import tokenizer_ja_mecab

import minitrans
from minitrans.checkpoint import load, read, save
from minitrans.cli.evaluate import main
from minitrans.config import Experiment, ModelConfig, SearchConfig, TokenizerConfig
from minitrans.data.tokenizer import Tokenizers, train_tokenizer
from minitrans.decoding.translator import Translation, Translator
from tests.untrained import save_untrained

SRC = ["abcab", "", "c a", "ba", "cccc bbb aaa"]
TGT = ["b c\u2028 a", "", "Ä b, c.", "ba", "c b a"]


def write_lines(path: Path, lines: list[str]) -> None:
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())


SPLITS = ("train", "valid", "test")


def make_run(home: Path, name: str, seed: int = 1, update: int = 0) -> Path:
    """A finished run on the data in ``home``: the checkpoint of a model with random weights."""
    both = train_tokenizer(["abc cba", "bca acb"], TokenizerConfig(kind="char", vocab_size=20))
    files = {split: [str(home / f"{split}.x"), str(home / f"{split}.y")] for split in SPLITS}
    experiment = Experiment(
        seed=seed,
        model=ModelConfig(
            num_encoder_layers=1, num_decoder_layers=1, d_model=16, num_heads=2, d_ff=32, dropout=0.0
        ),
        position={"kind": "learned", "max_length": 16},
        attention={"kind": "scaled_dot_product"},
        data={"kind": "pairs", "src": "x", "tgt": "y", **files},
        search=SearchConfig(beam_size=2, length_penalty="exponent", alpha=1.0, max_length=7),
    )
    return save_untrained(home / name, experiment, Tokenizers(both, both), update)


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    for split in SPLITS:
        write_lines(tmp_path / f"{split}.x", SRC)
        write_lines(tmp_path / f"{split}.y", TGT)
    return make_run(tmp_path, "a run")


@pytest.fixture
def call(run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> int:
        given = [] if any(word.startswith("checkpoint=") for word in words) else [f"checkpoint={run_folder}"]
        monkeypatch.setattr(sys, "argv", ["evaluate", *given, "accelerator=cpu", *words])
        return main()

    return run


OPTIONS = ["--force", "-m", "bleu", "chrf", "ter", "--chrf-word-order", "2", "--width", "6"]


@pytest.mark.parametrize(
    ("words", "tokenize"),
    [(["batch_tokens=9"], "13a"), (["data.bleu_tokenize=none"], "none")],
)
def test_the_scores_are_the_sacrebleu_commands_on_the_written_file(
    call: Callable[..., int], run_folder: Path, tmp_path: Path, words: list[str], tokenize: str
) -> None:
    assert call(*words) == 0
    (folder,) = (run_folder / "evaluation").iterdir()
    assert sorted(os.listdir(folder)) == ["scores.json", "test.txt"]
    command = [sys.executable, "-m", "sacrebleu", str(tmp_path / "test.y"), "-i", str(folder / "test.txt")]
    printed = subprocess.run(
        [*command, "--tokenize", tokenize, *OPTIONS], capture_output=True, text=True, check=True
    )
    scores = scores_in(folder)["scores"]
    for name, expected in zip(("bleu", "chrf", "ter"), json.loads(printed.stdout), strict=True):
        assert scores[name]["value"] == pytest.approx(expected["score"], abs=1e-5)
        resampled = expected["signature"].replace("|", "|bs:1000|seed:12345|", 1)
        assert scores[name]["signature"] == resampled
    assert scores["chrf"]["value"] > 0  # so that agreement means something


def scores_in(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
    return content


@pytest.mark.slow
def test_every_batch_size_gives_the_same_file_and_scores(call: Callable[..., int], tmp_path: Path) -> None:
    for size in (1, 9, 4096):
        assert call(f"batch_tokens={size}", f"output_dir=by{size}") == 0
    texts = {(tmp_path / f"by{size}" / "test.txt").read_bytes() for size in (1, 9, 4096)}
    scores = [scores_in(tmp_path / f"by{size}")["scores"] for size in (1, 9, 4096)]
    assert len(texts) == 1
    assert scores[0] == scores[1] == scores[2]


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
        (["data.bleu_tokenize=ja-mecab"], "pip install 'sacrebleu[ja]'"),
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
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tokenizer_ja_mecab, "MeCab", None)  # where the package is installed too
    write_lines(Path("short.y"), TGT[:4])
    write_lines(Path("long.x"), [*SRC[:4], "a" * 20])
    assert call(*words) == 2
    printed = capfd.readouterr()
    assert sentence in printed.err
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1
    assert printed.out == ""
    assert os.listdir(run_folder) == ["checkpoints"]


def never(*arguments: Any, **settings: Any) -> None:
    raise AssertionError("it translates")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["sanity=true", "data.train=[no.x,no.y]"], "no.x does not exist"),
        (["output_dir=test.x/here"], "test.x/here cannot be made or written to: see"),
        (["comet=some/model"], "comet=some/model needs a package that is not installed"),
    ],
)
def test_what_would_fail_after_translating_is_refused_before(
    call: Callable[..., int],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    sentence: str,
) -> None:
    monkeypatch.setattr("minitrans.evaluation.comet.installed", lambda: False)
    monkeypatch.setattr(Translator, "translate", never)
    assert call(*words) == 2
    assert sentence in capfd.readouterr().err


def test_the_folders_name_holds_what_is_not_as_usual(call: Callable[..., int], run_folder: Path) -> None:
    for words in (
        [],
        ["search.alpha=0.5"],
        ["split=valid"],
        ["data.bleu_tokenize=intl"],
        ["search.beam_size=1"],
    ):
        assert call(*words) == 0
    names = sorted(os.listdir(run_folder / "evaluation"))
    digest = scores_in(run_folder / "evaluation" / "test-best-beam2")["text_sha256"][:8]
    assert names == [
        "test-best-beam1",
        "test-best-beam2",
        "test-best-beam2-alpha0.5",
        f"test-best-beam2-intl-{digest}",
        "valid-best-beam2",
    ]


def test_the_same_evaluation_is_written_anew_and_another_one_refused(
    call: Callable[..., int], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert call("output_dir=here") == 0
    first = (tmp_path / "here" / "scores.json").read_text(encoding="utf-8")
    (tmp_path / "here" / "test.txt").unlink()
    assert call("output_dir=here", "batch_tokens=9") == 0  # the batch is no part of the experiment
    assert (tmp_path / "here" / "test.txt").exists()
    capfd.readouterr()
    for words, reason in (
        (["search.alpha=0.5"], "another evaluation (search.alpha is 1.0 there, 0.5 here)"),
        (["split=valid"], "another evaluation (split is test there, valid here)"),
        (["data.test=[valid.y,valid.x]"], "another evaluation (of another text)"),
    ):
        assert call("output_dir=here", *words) == 2
        said = f"error: {tmp_path}/here holds {reason}; give another output_dir, or remove it\n"
        assert capfd.readouterr().err == said
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("years of work", encoding="utf-8")
    assert call("output_dir=full") == 2
    assert "full holds other files; give another output_dir" in capfd.readouterr().err
    assert json.loads(first)["scores"] == scores_in(tmp_path / "here")["scores"]


def test_a_later_state_of_the_checkpoint_has_its_own_folder(
    call: Callable[..., int], run_folder: Path, tmp_path: Path
) -> None:
    assert call() == 0
    make_run(tmp_path, run_folder.name, seed=2, update=900)
    assert call() == 0
    assert call() == 0
    folder = run_folder / "evaluation"
    assert sorted(os.listdir(folder)) == ["test-best-beam2", "test-best-beam2-update900"]
    assert [scores_in(folder / name)["update"] for name in sorted(os.listdir(folder))] == [0, 900]


def test_several_checkpoints_a_row_and_a_folder_each(
    call: Callable[..., int], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    runs = [make_run(tmp_path, f"runs/{name}", seed) for seed, name in enumerate(("one", "two"), start=1)]
    (tmp_path / "runs" / "empty").mkdir()
    write_lines(tmp_path / "runs" / "notes.txt", ["x"])
    assert call("checkpoint=runs/*/") == 0
    printed = capfd.readouterr()
    assert printed.err == "left out, without a checkpoint: empty, notes.txt (2)\n"
    assert printed.out.index("one/best") < printed.out.index("two/best")
    for run in runs:
        assert scores_in(run / "evaluation" / "test-best-beam2")["checkpoint"].startswith(str(run))
    listed = f"checkpoint=['{runs[1]}','{runs[0]}','{runs[1]}']"
    assert call(listed, "output_dir=out") == 0
    assert sorted(os.listdir("out")) == ["one_best", "two_best"]
    printed = capfd.readouterr()
    assert printed.out.index("two/best") < printed.out.index("one/best")


def test_a_baseline_adds_tests_and_a_page(
    call: Callable[..., int], run_folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    baseline = make_run(tmp_path, "base", seed=2)
    assert call(f"baseline={baseline}") == 0
    printed = capfd.readouterr().out
    assert "a run/best against base/best" in printed
    assert "95 % interval" in printed
    (folder,) = (run_folder / "evaluation" / "test-best-beam2").glob("against-base_best-????????")
    content = json.loads((folder / "comparison.json").read_text(encoding="utf-8"))
    own = scores_in(folder.parent)["scores"]["bleu"]["value"]
    others = scores_in(baseline / "evaluation" / "test-best-beam2")["scores"]["bleu"]["value"]
    assert (content["system"], content["baseline"]) == ("a run/best", "base/best")
    assert content["differences"]["bleu"]["difference"] == pytest.approx(own - others)
    assert "<h1>a run/best" in (folder / "comparison.html").read_text(encoding="utf-8")


def test_what_rounding_can_turn_and_what_was_cut_is_told(
    call: Callable[..., int], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    states = [(True, True), (True, True), (False, True), (True, False), (False, False)]
    found = [Translation("a", (), 0.0, finished, near_tie=near) for finished, near in states]
    monkeypatch.setattr(Translator, "translate", lambda *arguments, **settings: found)
    assert call() == 0
    printed = capfd.readouterr().out
    assert "3 of 5 translations rest on a near-tie: rounding can turn them\n" in printed
    assert "2 of 5 translations were ended by the length limit (search.max_length" in printed


def with_steps(run: Path, tmp_path: Path) -> Path:
    """Give a run three checkpoints of unlike weights, the newest first in no order but their names'."""
    for update in (3, 1, 2):
        other = make_run(tmp_path, f"spare{update}", seed=10 + update, update=update)
        shutil.copy(other / "checkpoints" / "best.ckpt", run / "checkpoints" / f"step-{update:06d}.ckpt")
    return run


def written(folder: Path) -> list[str]:
    return (folder / "test.txt").read_text(encoding="utf-8").split("\n")[:-1]


def test_the_average_of_a_runs_checkpoints_is_one_system(
    call: Callable[..., int], run_folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    steps = with_steps(run_folder, tmp_path) / "checkpoints"
    assert call("average=2", f"baseline={run_folder}") == 0
    folder = run_folder / "evaluation" / "test-average2-beam2"
    expected = minitrans.load(run_folder, average=2).translate(SRC)
    assert written(folder) == [translation.text for translation in expected]
    found = scores_in(folder)
    assert found["checkpoint"] == [str(steps / "step-000002.ckpt"), str(steps / "step-000003.ckpt")]
    assert (found["combined"], len(found["checkpoint_sha256"])) == ("average2", 2)
    printed = capfd.readouterr().out
    assert "step-000003.ckpt (2 weights averaged)" in printed
    assert "a run/average2 against a run/best" in printed


def test_an_ensemble_is_one_system(
    call: Callable[..., int], run_folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    other = make_run(tmp_path, "other", seed=2)
    assert call(f"checkpoint=['{run_folder}','{other}']", "ensemble=true") == 0
    folder = run_folder / "evaluation" / "test-ensemble2-best-beam2"
    expected = minitrans.load([run_folder, other]).translate(SRC)
    assert written(folder) == [translation.text for translation in expected]
    assert scores_in(folder)["combined"] == "ensemble2-best"
    assert "(probabilities of 2 averaged)" in capfd.readouterr().out


def test_an_ensemble_does_not_overwrite_the_average_of_the_same_checkpoints(
    call: Callable[..., int], run_folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    steps = with_steps(run_folder, tmp_path) / "checkpoints"
    assert call("average=2", "output_dir=here") == 0
    before = (tmp_path / "here" / "scores.json").read_bytes()
    both = f"checkpoint=['{steps}/step-000002.ckpt','{steps}/step-000003.ckpt']"
    capfd.readouterr()
    assert call(both, "ensemble=true", "output_dir=here") == 2
    reason = "another evaluation (combined is average2 there, ensemble2-step-000002 here)"
    assert reason in capfd.readouterr().err
    assert (tmp_path / "here" / "scores.json").read_bytes() == before
    assert call("average=2", "output_dir=here") == 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["average=4"], "average=4, but"),
        (["average_best=true"], "average_best=true means nothing without average="),
        (["ensemble=true"], "ensemble=true needs two checkpoints or more"),
        (["average=1", "checkpoint=a run/checkpoints/best.ckpt"], "average=1 needs a run folder"),
    ],
)
def test_what_cannot_be_combined_is_refused(
    call: Callable[..., int], words: list[str], sentence: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert call(*words) == 2
    assert sentence in capfd.readouterr().err


def test_what_cannot_be_compared_is_refused(
    call: Callable[..., int],
    run_folder: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert call(f"baseline={run_folder}") == 2
    assert "must be one checkpoint, and another one than checkpoint=" in capfd.readouterr().err
    (tmp_path / "link").symlink_to(run_folder)
    assert call("baseline=link") == 2
    assert "must be one checkpoint, and another one than checkpoint=" in capfd.readouterr().err
    assert call("checkpoint=runs/*") == 2
    assert "runs/* matches no run folder and no .ckpt file; check the pattern" in capfd.readouterr().err
    assert call("checkpoint=[]") == 2
    assert "checkpoint= is missing; give a .ckpt file" in capfd.readouterr().err
    (tmp_path / "elsewhere").mkdir()
    for split in SPLITS:
        write_lines(tmp_path / "elsewhere" / f"{split}.x", SRC)
        write_lines(tmp_path / "elsewhere" / f"{split}.y", [*TGT[1:], "new"])
    other = make_run(tmp_path / "elsewhere", "other", seed=2)
    monkeypatch.setattr(Translator, "translate", never)  # it is refused before any work
    assert call(f"baseline={other}") == 2
    printed = capfd.readouterr()
    assert "a run/best and other/best are scored on different text" in printed.err
    assert printed.out == ""
    assert os.listdir(run_folder) == ["checkpoints"]


def test_sanity_rows_are_shown_when_asked_for(
    call: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    assert call("sanity=true") == 0
    printed = capfd.readouterr().out
    rows = {line.split()[0]: line for line in printed.splitlines() if line.strip().startswith("(")}
    assert list(rows) == ["(reference)", "(source)", "(nearest)"]
    assert "100.00" in rows["(reference)"]
    assert "100.00" in rows["(nearest)"]  # the fixture's test split is its training split
    assert "100.00" not in rows["(source)"]
    assert call() == 0
    assert "(reference)" not in capfd.readouterr().out


def test_a_sweep_writes_what_evaluate_takes(
    call: Callable[..., int], run_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["sweep=search", "sweep_beam_sizes=[1,3]", "sweep_alphas=[0,1.5]", "search.max_length=5"]
    assert call(*words) == 0
    folder = run_folder / "evaluation" / "sweep-valid-best"
    assert sorted(os.listdir(folder)) == ["search.yaml", "sweep.json", "sweep.png"]
    content = json.loads((folder / "sweep.json").read_text(encoding="utf-8"))
    assert [(c["beam_size"], c["alpha"]) for c in content["cells"]] == [(1, 0), (1, 1.5), (3, 0), (3, 1.5)]
    best = content["best"]
    assert best["bleu"] == max(cell["bleu"] for cell in content["cells"])
    assert f"best:        search.beam_size={best['beam_size']} search.alpha={best['alpha']:g}" in (
        capfd.readouterr().out
    )
    assert call(f"search_file={folder}/search.yaml", "split=valid", "output_dir=best") == 0
    found = scores_in(Path("best"))
    assert (found["search"]["beam_size"], found["search"]["alpha"]) == (best["beam_size"], best["alpha"])
    assert (found["search"]["length_penalty"], found["search"]["max_length"]) == ("exponent", 5)
    assert found["scores"]["bleu"]["value"] == pytest.approx(best["bleu"])
    assert call(f"search_file={folder}/search.yaml", "search.beam_size=4", "output_dir=typed") == 0
    assert scores_in(Path("typed"))["search"]["beam_size"] == 4  # what is typed counts
    assert call(*words, "sweep_beam_sizes=[2]", f"output_dir={folder}") == 2
    assert "beam_sizes is [1, 3] there, [2] here" in capfd.readouterr().err


def test_a_sweeps_folder_and_hint_hold_what_is_not_as_usual(
    call: Callable[..., int], run_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["sweep=search", "sweep_beam_sizes=[2]", "sweep_alphas=[0.5]"]
    for more in ([], ["precision=bf16"], ["data.bleu_tokenize=intl"]):
        assert call(*words, *more) == 0
    folder = run_folder / "evaluation"
    content = json.loads((folder / "sweep-valid-best" / "sweep.json").read_text(encoding="utf-8"))
    assert sorted(os.listdir(folder)) == [
        "sweep-valid-best",
        "sweep-valid-best-bf16",
        f"sweep-valid-best-intl-{content['text_sha256'][:8]}",
    ]
    printed = capfd.readouterr().out
    assert printed.count("precision=bf16") == 1
    assert f"(type 'search_file={folder}/sweep-valid-best-bf16/search.yaml' precision=bf16 to" in printed
    assert f"(type 'search_file={folder}/sweep-valid-best/search.yaml' to evaluate)" in printed


def test_a_sweep_of_a_checkpoint_without_a_penalty_takes_the_usual_one(
    call: Callable[..., int], run_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    stored = read(run_folder)
    greedy = SearchConfig(beam_size=1, length_penalty="none", max_length=5)
    save(dataclasses.replace(stored, experiment=dataclasses.replace(stored.experiment, search=greedy)))
    assert call("sweep=search", "sweep_beam_sizes=[2]", "sweep_alphas=[0.5]") == 0
    said = "the checkpoint's search has no length penalty: swept with search.length_penalty=gnmt\n"
    assert capfd.readouterr().err == said
    folder = run_folder / "evaluation" / "sweep-valid-best"
    best = yaml.safe_load((folder / "search.yaml").read_text(encoding="utf-8"))
    assert (best["beam_size"], best["length_penalty"], best["alpha"]) == (2, "gnmt", 0.5)
    assert best["max_length"] == 5
    bleu = json.loads((folder / "sweep.json").read_text(encoding="utf-8"))["best"]["bleu"]
    assert call(f"search_file={folder}/search.yaml", "split=valid", "output_dir=best") == 0
    assert scores_in(Path("best"))["scores"]["bleu"]["value"] == pytest.approx(bleu)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["search_file=none.yaml"], "none.yaml cannot be read"),
        (["search_file=test.y"], "test.y"),
        (["search_file=ok.yaml", "search=greedy"], "search=greedy and search_file="),
        (["search_file=wrong.yaml"], 'wrong.yaml has the unknown key "beams"; did you mean "beam_size"?\n'),
        (["search_file=run.yaml"], 'run.yaml has the unknown key "model"; choose one of "alpha", '),
        (["sweep=search", "search.length_penalty=none"], "type search.length_penalty=gnmt beside it"),
        (["sweep=search", "search=greedy"], "type search.length_penalty=gnmt beside it"),
        (["sweep=search", "sweep_beam_sizes=[3,0]"], "sweep_beam_sizes[1] is 0, but must be at least 1"),
        (["sweep=search", "sweep_alphas=[-1]"], "sweep_alphas[0] is -1.0, but must be at least 0"),
        (
            ["sweep=search", "sweep_beam_sizes=[4,1]", "search.n_best=2"],
            "search.n_best=2 is more than the beam of 1 in sweep_beam_sizes=[1, 4]; type search.n_best=1",
        ),
        (["sweep=search", "sweep_alphas=[]"], "a sweep needs at least one value"),
        (["sweep=search", "baseline=a run"], "sweep=search takes one checkpoint and no baseline"),
        (["sweep=beam"], "sweep"),
        (["comet=owner/model"], "pip install unbabel-comet"),
    ],
)
def test_mistakes_in_search_files_and_sweeps(
    call: Callable[..., int],
    run_folder: Path,
    capfd: pytest.CaptureFixture[str],
    words: list[str],
    sentence: str,
) -> None:
    Path("ok.yaml").write_text("beam_size: 3\n", encoding="utf-8")
    Path("wrong.yaml").write_text("beams: 5\n", encoding="utf-8")
    Path("run.yaml").write_text("model: {d_model: 16}\n", encoding="utf-8")
    assert call(*words) == 2
    printed = capfd.readouterr()
    assert sentence in printed.err
    assert "d_model" not in printed.err
    assert (printed.err.count("\n"), printed.out) == (1, "")
    assert os.listdir(run_folder) == ["checkpoints"]
