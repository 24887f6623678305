"""Corpora: named splits of (source, target) text, and the family of places that they come from.

A corpus is held by the ``datasets`` library in an Arrow file that is mapped into memory, so that its size
is bounded by the disk. The Arrow file is a cache entry keyed by the content of the files it was read from.

``SOURCES`` is the family's table. A constructor's arguments are the keys of the ``data`` section.
"""

import dataclasses
import hashlib
import itertools
import json
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
import pyarrow
from datasets.arrow_writer import ArrowWriter

from minitrans.data.bundled import bundled
from minitrans.data.cache import cache_folder, cached, hash_file, hash_plain
from minitrans.data.formats import (
    JsonLines,
    Pair,
    Parquet,
    Reader,
    TabSeparated,
    TextPair,
    cell,
    read_lines,
    require_file,
)
from minitrans.errors import UserError, nearest

_ROWS_AT_A_TIME = 10_000

BLEU_TOKENIZERS = ("13a", "intl", "none", "char", "zh", "ja-mecab", "ko-mecab")


@dataclass(frozen=True)
class Corpus:
    """One split: row i is the pair on line i + 1 of its files.

    Nothing is cleaned here: blank lines are rows like any other.
    """

    name: str  # train, valid, test ...
    rows: datasets.Dataset = field(repr=False)  # columns src and tgt
    hashes: Mapping[str, str]  # file (or other origin) -> SHA-256 of its content
    fingerprint: str  # hash of the pairs, whatever their files are called
    depths: tuple[int, ...] | None = None  # nesting depth of each sentence, where the source knows it

    @property
    def src(self) -> "datasets.arrow_dataset.Column":
        """The source texts, a lazy sequence."""
        return self.rows["src"]

    @property
    def tgt(self) -> "datasets.arrow_dataset.Column":
        """The target texts, a lazy sequence."""
        return self.rows["tgt"]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def origin(self) -> str:
        """The files, for sentences such as errors."""
        return " and ".join(self.hashes)

    def require_text(self) -> None:
        """Refuse a split in which no pair has text on both sides."""
        if not any(src.strip() and tgt.strip() for src, tgt in zip(self.src, self.tgt, strict=True)):
            raise UserError(
                f"each of the {len(self)} pairs of {self.origin} (the {self.name} split) has an empty side; "
                "give pairs with text on both sides"
            )


def read_corpus(name: str, reader: Reader) -> Corpus:
    """Read a split, or take it from the cache if these very bytes were read before.

    Raises
    ------
    UserError
        What the readers of :mod:`minitrans.data.formats` refuse, and a split without a single pair.
    """
    for file in reader.files:
        require_file(file)
    hashes = {str(file): hash_file(file) for file in reader.files}
    ingredients = [type(reader).__name__, reader.columns, list(hashes.values())]
    rows = _mapped(name, " and ".join(hashes), reader, ingredients)
    return Corpus(name, rows, hashes, hash_plain(ingredients))


def _mapped(
    name: str, origin: str, pairs: "Reader | Iterator[Pair]", ingredients: list[Any]
) -> datasets.Dataset:
    """The pairs as a memory-mapped table."""

    def make(folder: Path) -> None:
        _write(pairs, folder / "pairs.arrow")

    entry = cached("corpus", ingredients, make)
    rows = datasets.Dataset.from_file(str(entry / "pairs.arrow"))
    if len(rows) == 0:
        raise UserError(f"{origin} (the {name} split) holds no pair of sentences; give one that does")
    return rows


def _write(pairs: "Reader | Iterator[Pair]", path: Path) -> None:
    text = datasets.Value("large_string")
    features = datasets.Features({"src": text, "tgt": text})
    with ArrowWriter(path=str(path), features=features) as writer:
        remaining = iter(pairs)
        while block := list(itertools.islice(remaining, _ROWS_AT_A_TIME)):
            src, tgt = zip(*block, strict=True)
            writer.write_table(pyarrow.table({"src": src, "tgt": tgt}, schema=features.arrow_schema))
        writer.finalize()


# --------------------------------------------------------------------------------------
# The family: where splits come from
# --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Source:
    """What every source has: two languages, and how translations into ``tgt`` are scored."""

    src: str
    tgt: str
    bleu_tokenize: str = "13a"

    def __post_init__(self) -> None:
        if not self.src or not self.tgt:
            raise ValueError("data.src and data.tgt must name the two languages")
        if self.src == self.tgt:
            raise ValueError(f"data.src and data.tgt are both {self.src}; name two")
        if self.bleu_tokenize not in BLEU_TOKENIZERS:
            choices = nearest(self.bleu_tokenize, BLEU_TOKENIZERS)
            raise ValueError(f'data.bleu_tokenize cannot be "{self.bleu_tokenize}"{choices}')

    def splits(self) -> tuple[str, ...]:
        """Names of the splits: train, valid, test where there is one, and the extra test splits."""
        raise NotImplementedError

    def load(self, split: str) -> Corpus:
        """One split.

        Raises
        ------
        UserError
            The source has no such split, or it cannot be read.
        """
        raise NotImplementedError

    def require_split(self, split: str) -> None:
        """Refuse a split that the source does not have."""
        if split not in self.splits():
            raise UserError(f'the data has no split "{split}"{nearest(split, self.splits())}')

    def hashes(self) -> dict[str, str]:
        """SHA-256 of every file (or other origin) of every split."""
        return {name: digest for split in self.splits() for name, digest in self.load(split).hashes.items()}


@dataclass(frozen=True, kw_only=True)
class TextFolder(Source):
    """Text files ``root/stem.language``, one stem a split.

    Parameters
    ----------
    root
        The folder. Empty: ``bundled``, else the folder ``folder`` in ``$MINITRANS_DATA``, else ``hub``.
    train, valid, test
        Stems.
    extra_tests
        Further test splits: name to stem.
    depth
        Ending of files beside the text (``test.depth``) whose lines are the nesting depth of the sentences.
        A split without such a file has no depths.
    bundled
        Folder that comes with the package.
    hub
        Name on the hub, with the splits train, validation and test and a column a language.
    """

    train: str
    valid: str
    test: str
    root: str = ""
    extra_tests: dict[str, str] = field(default_factory=dict)
    depth: str = ""
    bundled: str = ""
    folder: str = ""
    hub: str = ""

    def splits(self) -> tuple[str, ...]:
        return tuple(self._stems())

    def _stems(self) -> dict[str, str]:
        return {"train": self.train, "valid": self.valid, "test": self.test, **self.extra_tests}

    def load(self, split: str) -> Corpus:
        self.require_split(split)
        folder = self._found()
        if folder is None:
            return self._hub().load(split)
        stem = self._stems()[split]
        corpus = read_corpus(split, TextPair(folder / f"{stem}.{self.src}", folder / f"{stem}.{self.tgt}"))
        depth_file = folder / f"{stem}.{self.depth}"
        if not self.depth or not depth_file.exists():
            return corpus
        return dataclasses.replace(corpus, depths=_read_depths(depth_file, len(corpus)))

    def _found(self) -> Path | None:
        """The folder; None where the text comes from the hub."""
        if self.root:
            root = Path(self.root).expanduser()
            if not root.is_dir():
                raise UserError(f"data.root={self.root} is not a folder; check the path")
            return root
        if self.bundled:
            return bundled(self.bundled)
        shelf = os.environ.get("MINITRANS_DATA", "")
        if shelf and self.folder and (Path(shelf) / self.folder).is_dir():
            return Path(shelf) / self.folder
        if self.hub:
            return None
        advice = f", or MINITRANS_DATA to the folder that holds {self.folder}" if self.folder else ""
        raise UserError(f"data.root is empty: set it to the folder of the text files{advice}")

    def _hub(self) -> "Hub":
        return Hub(
            name=self.hub,
            src=self.src,
            tgt=self.tgt,
            train="train",
            valid="validation",
            test="test",
            bleu_tokenize=self.bleu_tokenize,
            extra_tests=self.extra_tests,
        )


def _read_depths(path: Path, num_sentences: int) -> tuple[int, ...]:
    lines = list(read_lines(path))
    if len(lines) != num_sentences:
        raise UserError(f"{path} has {len(lines)} lines for {num_sentences} sentences")
    for number, line in enumerate(lines, start=1):
        if not line.isdecimal():
            raise UserError(f'{path}, line {number} is "{line}" where a whole number is needed')
    return tuple(int(line) for line in lines)


@dataclass(frozen=True, kw_only=True)
class PairFiles(Source):
    """Any files: for each split two text files, or one ``.tsv``, ``.jsonl`` or ``.parquet`` file.

    Parameters
    ----------
    train, valid, test
        A list of two text files (source, target), or one file whose ending tells its format. An empty
        ``test`` is none.
    extra_tests
        Further test splits: name to file or files.
    src_column, tgt_column
        Columns of JSON Lines and Parquet (empty: the language codes). ``translation.de`` is the key ``de``
        of the record under ``translation``.
    """

    train: str | list[str]
    valid: str | list[str]
    test: str | list[str] = ""
    extra_tests: dict[str, Any] = field(default_factory=dict)
    src_column: str = ""
    tgt_column: str = ""

    def splits(self) -> tuple[str, ...]:
        return ("train", "valid", *(["test"] if self.test else []), *self.extra_tests)

    def load(self, split: str) -> Corpus:
        self.require_split(split)
        files = {"train": self.train, "valid": self.valid, "test": self.test, **self.extra_tests}
        return read_corpus(split, self._reader(split, files[split]))

    def _reader(self, split: str, files: str | list[str]) -> Reader:
        if not files:
            raise UserError(
                f"data.{split} names no file: give two text files or one of {', '.join(_ENDINGS)}"
            )
        if isinstance(files, list):
            if len(files) != 2:
                raise UserError(
                    f"data.{split} lists {len(files)} files where two are needed, source and target; "
                    "a path with a comma goes in quotes inside the brackets"
                )
            return TextPair(Path(files[0]).expanduser(), Path(files[1]).expanduser())
        path = Path(files).expanduser()
        if path.suffix not in _ENDINGS:
            raise UserError(
                f"data.{split}={files} does not end in {', '.join(_ENDINGS)}; "
                f"two text files are given as a list: data.{split}=[source.txt,target.txt]"
            )
        if path.suffix == ".tsv":
            return TabSeparated(path)
        form = JsonLines if path.suffix == ".jsonl" else Parquet
        return form(path, self.src_column or self.src, self.tgt_column or self.tgt)


_ENDINGS = (".tsv", ".jsonl", ".parquet")


@dataclass(frozen=True, kw_only=True)
class Hub(Source):
    """A data set of the Hugging Face hub, or a local folder of the hub's form.

    Parameters
    ----------
    name
        Name on the hub (``owner/name``), or a folder.
    config
        Configuration of the data set (empty: its only one).
    revision
        Branch, tag or commit (empty: the newest).
    train, valid, test
        The hub's names of the splits. An empty ``test`` is none.
    extra_tests
        Further test splits: our name to the hub's.
    src_column, tgt_column
        As in :class:`PairFiles`; ``translation.de`` reads the hub's translation records.
    """

    name: str
    config: str = ""
    revision: str = ""
    train: str = "train"
    valid: str = "validation"
    test: str = "test"
    extra_tests: dict[str, str] = field(default_factory=dict)
    src_column: str = ""
    tgt_column: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.name:
            raise ValueError("data.name is empty: give the data set's name on the hub, or a folder")

    def splits(self) -> tuple[str, ...]:
        return ("train", "valid", *(["test"] if self.test else []), *self.extra_tests)

    def load(self, split: str) -> Corpus:
        self.require_split(split)
        names = {"train": self.train, "valid": self.valid, "test": self.test, **self.extra_tests}
        rows = self._rows(names[split])
        origin = f"{self.name}[{names[split]}]"
        digest = hashlib.sha256()
        for pair in self._pairs(rows, origin):
            digest.update(json.dumps(pair).encode())
        content = digest.hexdigest()
        mapped = _mapped(split, origin, self._pairs(rows, origin), ["Hub", content])
        return Corpus(split, mapped, {origin: content}, content)

    def _rows(self, split: str) -> datasets.Dataset:
        """The split as the ``datasets`` library gives it, memory-mapped."""
        folder = Path(self.name).expanduser()
        # without a network each attempt is announced, and the sentence below would come last of a dozen
        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
        try:
            return datasets.load_dataset(
                str(folder) if folder.is_dir() else self.name,
                self.config or None,
                split=split,
                revision=self.revision or None,
                cache_dir=_cache_of(folder) if folder.is_dir() else None,
            )
        except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
            reason = str(error).strip().splitlines()[0].rstrip(".")
            raise UserError(
                f'the data set "{self.name}" (split {split}) cannot be loaded: {reason}; '
                "check its name and the network, or use local files (data.root, or data=pairs)"
            ) from None

    def _pairs(self, rows: datasets.Dataset, origin: str) -> Iterator[Pair]:
        src, tgt = self.src_column or self.src, self.tgt_column or self.tgt
        columns = sorted({column.split(".")[0] for column in (src, tgt)})
        for column in columns:
            if column not in rows.column_names:
                raise UserError(f'{origin} has no column "{column}"{nearest(column, rows.column_names)}')
        for number, record in enumerate(rows.select_columns(columns), start=1):
            where = f"{origin}, row {number}"
            yield cell(record, src, where), cell(record, tgt, where)


def _cache_of(folder: Path) -> str:
    """A cache for the library keyed by content: its own is keyed by name and time of modification."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    content = hash_plain([[str(path.relative_to(folder)), hash_file(path)] for path in files])
    return str(cache_folder() / f"hub-{content[:32]}")


SOURCES: dict[str, type[Source]] = {"text": TextFolder, "pairs": PairFiles, "hub": Hub}
