"""A process to run commands in, small parallel text, and finished runs on it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.commands import ENGLISH, GERMAN, SMALL, Done, ForkServer, data_words, write_pairs


@pytest.fixture(scope="session")
def server(own_cache: None) -> Iterator[ForkServer]:
    """Runs commands in processes of their own, with the slow imports done."""
    server = ForkServer({"OMP_NUM_THREADS": "1"})
    yield server
    server.close()


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of parallel text: train, valid and test, en and de."""
    folder = tmp_path_factory.mktemp("text")
    for split, times in (("train", 10), ("valid", 1), ("test", 1)):
        write_pairs(folder, split, ENGLISH * times, GERMAN * times)
    return folder


def _trained(server: ForkServer, text: Path, folder: Path, *words: str) -> Path:
    done: Done = server.run(
        "train", *data_words(text), *SMALL, *words, f"run_dir={folder}/run", folder=folder
    )
    assert done.status == 0, done.err
    return folder / "run"


@pytest.fixture(scope="session")
def good_run(server: ForkServer, text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with sinusoidal positions."""
    return _trained(server, text, tmp_path_factory.mktemp("good"))


@pytest.fixture(scope="session")
def learned_run(server: ForkServer, text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with learned positions, 16 of them."""
    words = ("position=learned", "position.max_length=16")
    return _trained(server, text, tmp_path_factory.mktemp("learned"), *words)
