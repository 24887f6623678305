"""From checkpoints to a translator, as Python code does it."""

import csv
import doctest
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import minitrans
from minitrans import checkpoint
from minitrans.decoding.ensemble import Ensemble
from minitrans.decoding.translator import Translator
from minitrans.errors import UserError
from tests.decoding.conftest import write_checkpoint

README = Path(__file__).resolve().parents[1] / "README.md"
LINES = ["abcab", "", "c a"]
SINUSOIDAL: dict[str, object] = {"kind": "sinusoidal"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder: four checkpoints of single updates, three of them validated; 20 is the best of all."""
    folder = tmp_path_factory.mktemp("home") / "runs" / "my-run"
    for update in (10, 20, 30, 100):
        path = folder / "checkpoints" / f"step-{update:06d}.ckpt"
        write_checkpoint(path, SINUSOIDAL, seed=update, update=update)
    write_checkpoint(folder / "checkpoints" / "best.ckpt", SINUSOIDAL, seed=20, update=20)
    with (folder / "metrics.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["update", "split", "nll", "bleu"])
        writer.writeheader()
        writer.writerow({"update": 20, "split": "train", "nll": 1.0})
        for update, bleu in ((10, 3.0), (20, 9.0), (30, 2.5), (40, 99.0)):
            writer.writerow({"update": update, "split": "valid", "nll": 5 - bleu, "bleu": bleu})
    return folder


def weights(path: Path) -> torch.Tensor:
    return checkpoint.read(path).model["decoder.embedding.weight"]


def test_a_run_folder_is_its_best_checkpoint_with_its_own_settings(run: Path) -> None:
    translator = minitrans.load(run)
    assert translator.search.beam_size == 3
    loaded = checkpoint.load(run / "checkpoints" / "best.ckpt")
    same = Translator(loaded.model, loaded.tokenizers, loaded.experiment.search)
    assert translator.translate(LINES) == same.translate(LINES)
    assert minitrans.load(str(run), beam_size=1).search.beam_size == 1


def test_weights_are_rounded_where_asked_for(run: Path) -> None:
    rounded = minitrans.load(run, dtype=torch.bfloat16).model
    whole = minitrans.load(run).model
    for half, full in zip(rounded.parameters(), whole.parameters(), strict=True):
        assert torch.equal(half, full.bfloat16())


@pytest.mark.parametrize(
    ("count", "best", "updates"),
    [(1, False, [100]), (2, False, [30, 100]), (4, False, [10, 20, 30, 100]), (2, True, [10, 20])],
)
def test_the_last_or_the_best_checkpoints_are_averaged(
    run: Path, count: int, best: bool, updates: list[int]
) -> None:
    paths = [run / "checkpoints" / f"step-{update:06d}.ckpt" for update in updates]
    assert checkpoint.steps_of(run, count, best=best) == paths
    translator = minitrans.load(run, average=count, average_best=best)
    expected = torch.stack([weights(path) for path in paths]).mean(dim=0)
    found = translator.model.state_dict()["decoder.embedding.weight"]  # type: ignore[attr-defined]
    torch.testing.assert_close(found, expected)


def test_of_equally_good_validations_the_first_is_the_best_as_in_training(tmp_path: Path) -> None:
    for update in (10, 20, 30):
        write_checkpoint(tmp_path / "checkpoints" / f"step-{update:06d}.ckpt", SINUSOIDAL, update=update)
    (tmp_path / "metrics.csv").write_text(
        "update,split,nll,bleu\n10,valid,2,5.0\n20,valid,2,7.0\n30,valid,2,7.0\n"
    )
    (best,) = checkpoint.steps_of(tmp_path, 1, best=True)
    assert best.name == "step-000020.ckpt"


def test_too_few_checkpoints_are_not_an_average(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"average=5, but .*my-run holds 4 checkpoints of the kind step-"):
        minitrans.load(run, average=5)
    with pytest.raises(UserError, match=r"holds 3 checkpoints of the kind .* with a validation"):
        minitrans.load(run, average=4, average_best=True)
    with pytest.raises(UserError, match=r"needs a run folder"):
        minitrans.load(run / "checkpoints" / "best.ckpt", average=2)
    write_checkpoint(tmp_path / "checkpoints" / "step-000001.ckpt", SINUSOIDAL)
    with pytest.raises(UserError, match=r"cannot be read from its metrics.csv"):
        minitrans.load(tmp_path, average=1, average_best=True)


def test_several_checkpoints_are_an_ensemble(run: Path) -> None:
    paths = [run / "checkpoints" / f"step-{update:06d}.ckpt" for update in (10, 20)]
    translator = minitrans.load(paths)
    ensemble = Ensemble([checkpoint.load(path).model for path in paths])
    same = Translator(ensemble, translator.tokenizers, translator.search)
    assert translator.translate(LINES, attention=True) == same.translate(LINES, attention=True)


def test_unlike_vocabularies_are_no_ensemble(run: Path, tmp_path: Path) -> None:
    other = write_checkpoint(tmp_path / "other.ckpt", SINUSOIDAL, text=("abd dba", "bda adb"))
    with pytest.raises(UserError, match=r"best\.ckpt and .*other\.ckpt have unlike vocabularies"):
        minitrans.load([run, other])
    with pytest.raises(UserError, match=r"checkpoint=\[\] is an empty list"):
        minitrans.load([])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"dtype": "bf16"}, "dtype='bf16' is no type for weights; use torch.float32 or torch.bfloat16"),
        ({"dtype": torch.int8}, "dtype=torch.int8 is no type for weights; use torch.float32 or"),
        ({"device": "gpu"}, "device='gpu' cannot be used: torch finds cpu"),
        ({"average": -1}, "average=-1 means nothing; say how many checkpoints, or 0 for one as it is"),
    ],
)
def test_words_that_mean_nothing_are_refused(run: Path, options: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError) as refused:
        minitrans.load(run, **options)  # type: ignore[arg-type]
    assert str(refused.value).startswith(sentence)


def test_importing_minitrans_imports_nothing_slow() -> None:
    program = (
        "import minitrans, sys; print({'torch', 'numpy', 'tokenizers'} & {*sys.modules}, dir(minitrans))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("set() ")
    assert "'load'" in done.stdout
    with pytest.raises(AttributeError, match="no attribute 'laod'"):
        _ = minitrans.laod  # type: ignore[attr-defined]


def test_the_package_says_that_it_is_typed() -> None:
    assert (Path(minitrans.__file__).parent / "py.typed").exists()


def test_the_readmes_python_holds(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its examples use the folder runs/my-run and show no translation, so that any model will do."""
    monkeypatch.chdir(run.parents[1])
    assert os.path.isdir("runs/my-run")
    failures, tried = doctest.testfile(
        str(README), module_relative=False, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    )
    assert (failures, tried > 5) == (0, True)
