"""The bundled toy corpus: English and German, written by a synchronous grammar.

Reading order: :mod:`~minitrans.data.toy.lexicon` (words), :mod:`~minitrans.data.toy.morphology` (German
forms), :mod:`~minitrans.data.toy.tree` (what a sentence says), :mod:`~minitrans.data.toy.english` and
:mod:`~minitrans.data.toy.german` (how it is written), :mod:`~minitrans.data.toy.sample` (drawing trees),
:mod:`~minitrans.data.toy.generate` (splits and files).
"""

from pathlib import Path

from minitrans.data.bundled import bundled


def toy_root() -> Path:
    """The folder of the shipped files, in a checkout and in an installed copy alike."""
    return bundled("data/toy")
