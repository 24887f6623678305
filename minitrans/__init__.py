"""minitrans: understand, train and take apart the encoder-decoder Transformer.

From Python, ``minitrans.load("runs/…")`` makes a translator, see :func:`minitrans.loading.load`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minitrans.loading import load as load

__version__ = "0.1.0"
__all__ = ["__version__", "load"]


def __getattr__(name: str) -> object:
    """Import what needs torch when it is first asked for: the commands answer ``--help`` without it."""
    if name == "load":
        from minitrans.loading import load

        return load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
