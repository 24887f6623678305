"""An installed copy: the wheel in a virtual environment of its own, used from an empty folder."""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.integration.commands import CHECKOUT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the console commands, in an environment that borrows this one's libraries."""
    folder = tmp_path_factory.mktemp("installed")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=CHECKOUT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    python = folder / "venv" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-index", "--no-deps"]
    subprocess.run([*pip, str(wheel)], check=True, capture_output=True)
    paths = sysconfig.get_paths(vars={"base": str(folder / "venv"), "platbase": str(folder / "venv")})
    # a path file's folder is searched, its own path files are not: an editable install stays out of sight
    (Path(paths["purelib"]) / "borrowed.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return python.parent


def run(programs: Path, name: str, *words: str, folder: Path, stdin: str = "") -> str:
    """Run one command; returns what it printed."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= {"HOME": str(folder.parent), "MINITRANS_CACHE": str(folder.parent / "cache")}
    done = subprocess.run(
        [programs / name, *words], cwd=folder, env=environment, input=stdin, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_installed_commands_work_from_an_empty_folder(programs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    where = run(programs, "python", "-c", "import minitrans; print(minitrans.__file__)", folder=folder)
    assert Path(where).is_relative_to(programs.parent)
    words = (
        "model=tiny",
        "model.num_encoder_layers=1",
        "model.num_decoder_layers=1",
        "tokenizer.vocab_size=300",
        "training.max_updates=2",
        "training.validate_sentences=8",
        "search.max_length=6",
        "search.beam_size=1",
        "run_dir=run",
    )
    trained = run(programs, "minitrans-train", *words, folder=folder)
    assert "2 in all" in " ".join(trained.split())
    assert "test_novel: 500 sentences" in trained
    assert "  minitrans-evaluate checkpoint=run\n" in trained
    evaluated = run(programs, "minitrans-evaluate", "checkpoint=run", folder=folder)
    assert "test: 500 sentences, beam 1" in evaluated
    lines = run(
        programs, "minitrans-translate", "checkpoint=run", folder=folder, stdin="the dog sleeps .\n\n"
    )
    assert lines.count("\n") == 2
    drawn = run(programs, "minitrans-inspect-attention", "checkpoint=run", "text=the dog", folder=folder)
    assert "cross.png" in drawn
    assert [path.name for path in folder.iterdir()] == ["run"]
