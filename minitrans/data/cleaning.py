"""Which training pairs are left out, and what is said about it. Other splits are never cleaned.

Rules work on token counts. A side is empty where it has no token but the end token: blank text.
"""

from dataclasses import dataclass

import numpy as np

from minitrans.config import CleaningConfig
from minitrans.errors import UserError


@dataclass(frozen=True)
class CleaningReport:
    """How many pairs each rule left out. A pair is counted under the first rule that it breaks."""

    total: int
    empty: int
    too_long: int
    unlike: int
    config: CleaningConfig

    @property
    def kept(self) -> int:
        """Pairs in use."""
        return self.total - self.empty - self.too_long - self.unlike

    def __str__(self) -> str:
        if self.kept == self.total:
            return f"All {self.total:,} training pairs are in use."
        reasons = [
            (self.empty, "with an empty side"),
            (self.too_long, f"with a side longer than cleaning.max_tokens={self.config.max_tokens}"),
            (self.unlike, f"with sides less alike in length than cleaning.max_ratio={self.config.max_ratio}"),
        ]
        told = ", ".join(f"{count:,} {reason}" for count, reason in reasons if count)
        return f"Left out {self.total - self.kept:,} of {self.total:,} training pairs: {told}."


def clean(
    src_lengths: np.ndarray, tgt_lengths: np.ndarray, config: CleaningConfig, origin: str
) -> tuple[np.ndarray, CleaningReport]:
    """Choose the training pairs.

    Parameters
    ----------
    src_lengths, tgt_lengths
        (n,) tokens of each side, end token counted.
    config
        The rules.
    origin
        Where the pairs come from, for the error.

    Returns
    -------
    (kept,) row numbers in order, and the counts.

    Raises
    ------
    UserError
        No pair is left.
    """
    empty = (src_lengths <= 1) | (tgt_lengths <= 1)
    too_long = np.zeros_like(empty)
    if config.max_tokens is not None:
        too_long = ~empty & (np.maximum(src_lengths, tgt_lengths) > config.max_tokens)
    unlike = np.zeros_like(empty)
    if config.max_ratio is not None:
        # End tokens aside: with them, 1 word against 3 would be a ratio of 2.
        longer, shorter = np.maximum(src_lengths, tgt_lengths) - 1, np.minimum(src_lengths, tgt_lengths) - 1
        unlike = ~empty & ~too_long & (longer > config.max_ratio * shorter)
    report = CleaningReport(len(empty), int(empty.sum()), int(too_long.sum()), int(unlike.sum()), config)
    if report.kept == 0:
        told = str(report).removeprefix("Left out").removesuffix(".")
        raise UserError(
            f"no training pair of {origin} is left: left out{told}; loosen that rule, or mend the text"
        )
    return np.flatnonzero(~(empty | too_long | unlike)), report
