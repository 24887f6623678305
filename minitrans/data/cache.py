"""The cache: folders whose name is a hash of everything that went into them.

An entry's key is made of content (bytes of the text files, the tokenizer itself), settings, and the code
of this package together with the versions of the libraries it stands on. Times of modification play no
part, so a file or a rule that changed is never answered from an old entry. Entries may be
deleted at any time.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import datasets
import tokenizers

from minitrans.errors import UserError

_READ_SIZE = 1 << 20  # bytes read at a time


def cache_folder() -> Path:
    """``$MINITRANS_CACHE``, or ``~/.cache/minitrans``."""
    return Path(os.environ.get("MINITRANS_CACHE") or Path.home() / ".cache" / "minitrans")


def hash_file(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(_READ_SIZE):
            digest.update(block)
    return digest.hexdigest()


def hash_plain(data: Any) -> str:
    """SHA-256 of plain data (what JSON can hold), in hexadecimal."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


@cache
def code_version(folder: Path = Path(__file__).parent) -> str:
    """Hash of the code that makes the entries: this package's modules and its libraries' versions."""
    modules = {path.name: hash_file(path) for path in sorted(folder.glob("*.py"))}
    return hash_plain([modules, tokenizers.__version__, datasets.__version__])


def cached(kind: str, ingredients: Any, make: Callable[[Path], None]) -> Path:
    """The folder of a cache entry, made now if there is none.

    Two processes may make the same entry at once: each fills a folder of its own and renames it, and the
    one that comes second uses the first one's.

    Parameters
    ----------
    kind
        What the entry is; the start of the folder's name.
    ingredients
        Plain data that decides the content, besides :func:`code_version`.
    make
        Called with an empty folder to fill. Whatever it raises leaves nothing behind.
    """
    parent = cache_folder()
    entry = parent / f"{kind}-{hash_plain([ingredients, code_version()])[:32]}"
    if entry.is_dir():
        return entry
    try:
        parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f".{kind}-", dir=parent))
    except OSError as error:
        raise UserError(
            f"{parent} cannot hold the cache ({error}); set MINITRANS_CACHE to another folder"
        ) from None
    try:
        make(unfinished)
        try:
            unfinished.rename(entry)
        except OSError:
            if not entry.is_dir():
                raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return entry
