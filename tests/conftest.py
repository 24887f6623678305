"""What all tests share: no network, no screen, no cache but their own, and the way to Multi30k."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # read when the library is imported
os.environ["MPLBACKEND"] = "Agg"
os.environ["WANDB_MODE"] = "offline"
os.environ.setdefault("OMP_NUM_THREADS", "1")  # two processes test at once, and small tensors want no more

import hypothesis
import pytest

hypothesis.settings.register_profile("untimed", deadline=None)  # a busy machine is no fault of an example
hypothesis.settings.load_profile("untimed")


def pytest_addoption(parser: pytest.Parser) -> None:
    """How long the tests that kill processes go on."""
    parser.addoption("--kills", type=int, default=10, help="kill -9 a training so many times at random")


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Encoded corpora of the tests stay out of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINITRANS_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def no_handler_left() -> Iterator[None]:
    """A sweep gives the root logger a handler on the standard output, which here is gone after the test."""
    level = logging.root.level
    yield
    for handler in list(logging.root.handlers):
        if type(handler) is logging.StreamHandler:
            logging.root.removeHandler(handler)
    logging.root.setLevel(level)


def _shelf(name: str) -> Path:
    shelf = os.environ.get("MINITRANS_DATA", "")
    folder = Path(shelf) / name
    if not shelf or not folder.is_dir():
        pytest.skip(f"needs Multi30k: set MINITRANS_DATA to the folder that holds {name}/")
    return folder


@pytest.fixture(scope="session")
def multi30k() -> Path:
    """The folder of the raw text of Multi30k."""
    return _shelf("multi30k")


@pytest.fixture(scope="session")
def multi30k_legacy() -> Path:
    """The folder of the lower-cased, tokenised text of Multi30k."""
    return _shelf("multi30k_lc_tok")
