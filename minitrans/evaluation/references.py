"""The references of a split, as the ``sacrebleu`` command would read them from its file."""

from pathlib import Path

from minitrans.data.corpus import Corpus

BYTE_ORDER_MARK = "\ufeff"


def references(corpus: Corpus) -> tuple[str, ...]:
    """The target side, raw.

    A byte order mark at the start of a target file is no text to train on, and the corpus leaves it out. The
    ``sacrebleu`` command reads it as a letter of the first word, and a score must be that command's: here it
    is back in its place.
    """
    lines = tuple(corpus.tgt)
    if not starts_with_mark(corpus):
        return lines
    return (BYTE_ORDER_MARK + lines[0], *lines[1:])


def starts_with_mark(corpus: Corpus) -> bool:
    """Whether the target has a text file of its own that starts with a byte order mark."""
    origins = list(corpus.hashes)  # two text files: the source, the target; anything else is one
    if len(origins) != 2:
        return False
    with Path(origins[1]).open("rb") as stream:
        return stream.read(3) == BYTE_ORDER_MARK.encode()
