"""Others on the same work: their own models and searches, fed with our batches.

Each part imports what it measures inside, since none of it is needed to use minitrans.
"""

from importlib.util import find_spec

EXTRA = "pip install 'minitrans[peers]', or from a checkout pip install -e '.[peers]'"


def is_installed(module: str) -> bool:
    """Whether a module could be imported."""
    return find_spec(module) is not None


def not_measured(name: str, module: str) -> str:
    """What is said of a contestant who is not there."""
    return f"{name} is not measured: {module} is not installed ({EXTRA})"
