"""Files that come with the package: ``conf`` and ``data/toy``, in a checkout and in an installed copy."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent


def bundled(name: str) -> Path:
    """The folder ``name`` (``conf``, ``data/toy``) of the installed package, else of the checkout.

    The package's own copy comes first: beside an installed package lie the folders of others.

    Raises
    ------
    FileNotFoundError
        Neither holds it: the installation is damaged.
    """
    for root in (_PACKAGE / "_bundled", _PACKAGE.parent):
        if (root / name).is_dir():
            return root / name
    raise FileNotFoundError(f"{name} is missing from this installation of minitrans; install it again")
