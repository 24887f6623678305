"""From attention between tokens to links between words.

A word of the translation is linked to the source word that its tokens look at most. Words are what stands
between white space. The links are a by-product of translating, not what the model was trained for.

Letters: S source tokens, T target tokens, I source words, J target words.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Links = tuple[tuple[int, int], ...]


def link_words(
    attention: npt.NDArray[np.float32], src_words: Sequence[int], tgt_words: Sequence[int]
) -> Links:
    """Link each target word to one source word.

    Parameters
    ----------
    attention
        (T, S) weights of tokens, ends left out.
    src_words, tgt_words
        The number of the word, from 0, that each of the S and T tokens belongs to.

    Returns
    -------
    Pairs (source word, target word), in the order of the source, then of the target.
    """
    if not src_words or not tgt_words:
        return ()
    weight = np.zeros((max(tgt_words) + 1, max(src_words) + 1))  # (J, I)
    rows, columns = np.array(tgt_words)[:, None], np.array(src_words)[None, :]
    np.add.at(weight, (rows, columns), attention)  # (T, S) -> (J, I): sums over the tokens of both words
    return tuple(sorted((int(weight[j].argmax()), j) for j in sorted(set(tgt_words))))


def pharaoh(links: Links) -> str:
    """The links as ``0-0 1-2``: source word, target word, both from 0."""
    return " ".join(f"{source}-{target}" for source, target in links)
