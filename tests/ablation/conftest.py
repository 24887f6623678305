"""The tiny experiment, its text written once."""

import pytest

from minitrans.config import TrainConfig
from tests.training.tiny import tiny_experiment


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    """See :func:`tests.training.tiny.tiny_experiment`."""
    return tiny_experiment(tmp_path_factory.mktemp("text"))
