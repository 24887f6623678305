"""``scripts/prove.py``: the promises, put to the test on this machine with this configuration."""

import tempfile
from pathlib import Path

from rich.table import Column, Table

from minitrans.cli.compose import Composed
from minitrans.cli.main import run_main
from minitrans.config import TrainConfig
from minitrans.console import Console
from minitrans.errors import UserError


def main() -> int:
    """Prove; returns the exit status, which is not 0 where a claim fails."""
    return run_main(_prove, "prove", TrainConfig)


def _prove(composed: Composed[TrainConfig]) -> None:
    # torch and lightning take seconds to import: --help and a mistyped key should not wait for them
    from minitrans.processors import use_threads
    from minitrans.training.proofs import prove

    config = composed.config
    use_threads(config.threads)
    console = Console()
    table = Table(
        "claim",
        Column("what was compared", overflow="fold"),
        Column("largest difference", justify="right"),
        "verdict",
    )
    failed = []
    with tempfile.TemporaryDirectory(prefix="minitrans-prove-") as folder:
        for proof in prove(config, Path(folder)):
            verdict = "holds" if proof.holds else "FAILS"
            console.print(f"{proof.claim}: {verdict}", highlight=False)
            difference = f"{proof.difference:.1e} (allowed {proof.bound:.0e})"
            table.add_row(proof.claim, proof.compared, difference, verdict)
            failed += [] if proof.holds else [proof.claim]
    console.print(table)
    if failed:
        raise UserError(f"{len(failed)} of {table.row_count} claims failed here: {'; '.join(failed)}")
