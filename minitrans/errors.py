"""The one exception that is meant for the person at the keyboard, and the search for what they meant."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake in the input, told in one sentence: which file, line or key, the value, and the remedy.

    The command line prints the sentence without a traceback and exits with status 2.
    """


class StoppedEarlyError(UserError):
    """A run was asked to end, and has saved what it did; the sentence says how to go on.

    The command line exits with status 130, as after Ctrl-C.
    """


def nearest(name: str, choices: Iterable[str]) -> str:
    """Name the choice most like ``name``.

    Returns
    -------
    ``'; did you mean "learned"?'`` where something is near, else a list of the choices
    (``'; choose one of "a", "b"'``), ready to be appended to a sentence.
    """
    known = sorted(set(choices))
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if close:
        return f'; did you mean "{close[0]}"?'
    return "; choose one of " + ", ".join(f'"{choice}"' for choice in known) if known else ""
