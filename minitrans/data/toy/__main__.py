"""``python -m minitrans.data.toy --out FOLDER [--seed N]``: write the corpus anew."""

import argparse
from pathlib import Path

from minitrans.data.toy.generate import SEED, corpus, write


def main() -> None:
    """Read the arguments and write the files."""
    parser = argparse.ArgumentParser(prog="python -m minitrans.data.toy", description="Write the toy corpus.")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where the files go")
    parser.add_argument("--seed", type=int, default=SEED, help=f"another corpus (default {SEED})")
    arguments = parser.parse_args()
    write(arguments.out, corpus(arguments.seed))
    print(f"wrote the toy corpus (seed {arguments.seed}) to {arguments.out}")


if __name__ == "__main__":
    main()
