"""What the tests of the data share."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

WriteFile = Callable[[str, str | bytes], Path]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("MINITRANS_CACHE", str(folder))
    return folder


@pytest.fixture
def write(tmp_path: Path) -> WriteFile:
    """Write a file of this name with this content (text as UTF-8, its line ends as they are)."""

    def write_file(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write_file


@pytest.fixture(scope="session")
def multi30k() -> Path:
    """The folder of Multi30k's raw text."""
    shelf = os.environ.get("MINITRANS_DATA", "")
    folder = Path(shelf) / "multi30k"
    if not shelf or not folder.is_dir():
        pytest.skip("MINITRANS_DATA does not name a folder that holds multi30k")
    return folder
