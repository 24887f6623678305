"""The wheel: what an installed copy carries, and that it needs no checkout."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=CHECKOUT, check=True, capture_output=True)
    (file,) = folder.glob("*.whl")
    return zipfile.ZipFile(file)


@pytest.mark.parametrize("folder", ["conf", "data/toy"])
def test_the_wheel_carries_the_bundled_files_byte_for_byte(wheel: zipfile.ZipFile, folder: str) -> None:
    carried = {name for name in wheel.namelist() if name.startswith(f"minitrans/_bundled/{folder}/")}
    files = {file for file in (CHECKOUT / folder).rglob("*") if file.is_file()}
    assert carried == {f"minitrans/_bundled/{file.relative_to(CHECKOUT).as_posix()}" for file in files}
    assert len(files) > 5
    for file in files:
        assert wheel.read(f"minitrans/_bundled/{file.relative_to(CHECKOUT).as_posix()}") == file.read_bytes()


def test_the_wheel_has_a_command_for_each_script(wheel: zipfile.ZipFile) -> None:
    (entry_points,) = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
    commands = [line for line in wheel.read(entry_points).decode().splitlines() if "=" in line]
    modules = sorted(file.stem for file in (CHECKOUT / "scripts").glob("*.py"))
    assert commands == [f"minitrans-{name.replace('_', '-')} = minitrans.cli.{name}:main" for name in modules]


def test_an_unpacked_copy_answers_from_an_empty_folder(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path / "site")
    (tmp_path / "empty").mkdir()
    program = (
        "from minitrans.cli.train import main; from minitrans.data.bundled import bundled; import sys\n"
        "print(bundled('conf')); sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "--cfg", "job", "model=tiny"],
        cwd=tmp_path / "empty",
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == str(tmp_path / "site" / "minitrans" / "_bundled" / "conf")
    assert "  d_model: 128\n" in done.stdout
    assert list((tmp_path / "empty").iterdir()) == []
