"""One process of a run on several: ``python -m minitrans.cli.worker RUN_FOLDER [CHECKPOINT]``.

Started by :mod:`minitrans.training.launch`, never by hand.
"""

import sys
from pathlib import Path

import yaml

from minitrans import checkpoint
from minitrans.config import TrainConfig, parse
from minitrans.errors import UserError
from minitrans.run import RunFolder
from minitrans.training.fit import fit
from minitrans.training.prepare import prepare


def main() -> int:
    """Train this process's share; returns the exit status."""
    folder = RunFolder.of(sys.argv[1])
    begin = checkpoint.read(Path(sys.argv[2])) if len(sys.argv) > 2 else None
    path = folder.path / "config.yaml"
    config = parse(TrainConfig, yaml.safe_load(path.read_text(encoding="utf8")), str(path))
    try:
        fit(config, folder, prepare(config, begin.tokenizers if begin else None), begin)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
