"""``scripts/train.py``: from a configuration to a scored run folder."""

from minitrans.cli.compose import Composed
from minitrans.cli.main import run_main
from minitrans.config import TrainConfig


def main() -> int:
    """Train; returns the exit status."""
    return run_main(_train, "train", TrainConfig)


def _train(composed: Composed[TrainConfig]) -> None:
    # torch and lightning take seconds to import: --help and a mistyped key should not wait for them
    from minitrans.training.session import train

    train(composed.config, composed.typed)
