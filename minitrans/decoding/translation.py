"""What a translator gives back."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from minitrans.decoding.alignment import Links


@dataclass(frozen=True)
class SourceAttention:
    """Where the model looked, token by token.

    Attributes
    ----------
    source
        The entries of the source vocabulary that the line is made of, as text.
    weights
        (T + 1, S + 1), the mean of one layer's heads: a row for each of the T tokens and the end, a column
        for each of the S source tokens and the end. Rows sum to 1.
    links
        (source word, target word) pairs, from 0, see :mod:`minitrans.decoding.alignment`.
    """

    source: tuple[str, ...]
    weights: npt.NDArray[np.float32] = field(repr=False, compare=False)
    links: Links


@dataclass(frozen=True)
class Translation:
    """One line's translation.

    Attributes
    ----------
    text
        One line: whatever a reader could take for the end of a line is a space.
    tokens
        The entries of the target vocabulary that the text is made of, as text.
    score
        log-probability / length penalty + coverage penalty, natural logarithm (0 for a blank line).
    finished
        False where the length limit ended it.
    log_prob
        log P(translation | line), natural logarithm.
    token_log_probs
        Its parts: one for each token, and one for the end.
    near_tie
        The search chose between two that were closer than rounding is exact, so that another batch size or
        machine may give another translation (see :func:`minitrans.decoding.hypothesis.near_tie`).
    attention
        Where the model looked; None unless asked for.
    others
        The next best translations (``n_best`` - 1 of them, fewer where there are no more), best first.
    """

    text: str
    tokens: tuple[str, ...]
    score: float
    finished: bool
    log_prob: float = 0.0
    token_log_probs: tuple[float, ...] = ()
    near_tie: bool = False
    attention: SourceAttention | None = None
    others: "tuple[Translation, ...]" = ()


BLANK = Translation(text="", tokens=(), score=0.0, finished=True)


def one_line(text: str) -> str:
    """``text`` with every end of a line that Unicode knows made a space, so that a file keeps its lines."""
    return " ".join(text.splitlines())
