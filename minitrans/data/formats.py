"""Readers of parallel text: two text files, TSV, JSON Lines, Parquet.

A *reader* is iterated for its (source, target) pairs, in the order of its lines, and names the ``files``
it reads. Pair number i (from 0) stands on line i + 1 of each text format. Nothing is stripped, quoted,
skipped or guessed: a cell that spells ``null`` is that text, and what cannot be read is refused by line.

Text is UTF-8 and is cut at ``\\n`` alone. Other separators inside a line (``\\r``, U+2028, U+0085, tab)
stay in it. Two things are dropped: one ``\\r`` at the very end of a line, so that a file with Windows
line ends holds the same text, and a byte order mark at the start of a file.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow
import pyarrow.parquet

from minitrans.errors import UserError, nearest

Pair = tuple[str, str]

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Reader(Protocol):
    """What the readers of this module share."""

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file that is read."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the source's and the target's column, where the format names columns."""

    def __iter__(self) -> Iterator[Pair]: ...


def decode_lines(raw_lines: Iterable[bytes], name: str) -> Iterator[str]:
    r"""Decode lines of bytes, as a file opened in binary mode gives them (cut at ``\n`` alone).

    Parameters
    ----------
    raw_lines
        Each with its line feed, where it has one.
    name
        The file's name, for errors.

    Raises
    ------
    UserError
        A line that is not UTF-8, named.
    """
    for number, raw in enumerate(raw_lines, start=1):
        content = raw.removesuffix(b"\n").removesuffix(b"\r")
        if number == 1:
            content = content.removeprefix(_BYTE_ORDER_MARK)
        try:
            yield content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(
                f"{name}, line {number} is not UTF-8 text (byte 0x{content[error.start]:02x} "
                f"at place {error.start + 1}); convert the file to UTF-8"
            ) from None


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a text file, read lazily; see :func:`decode_lines`."""
    require_file(path)
    with path.open("rb") as stream:
        yield from decode_lines(stream, str(path))


def require_file(path: Path) -> None:
    """Refuse a path that is not a file."""
    if path.is_dir():
        raise UserError(f"{path} is a folder where a file is needed")
    if not path.exists():
        raise UserError(f"{path} does not exist; check the path")


@dataclass(frozen=True)
class TextPair:
    """Two text files: line i of one is the translation of line i of the other."""

    src: Path
    tgt: Path

    @property
    def files(self) -> tuple[Path, ...]:
        return (self.src, self.tgt)

    @property
    def columns(self) -> tuple[str, ...]:
        return ()

    def __iter__(self) -> Iterator[Pair]:
        require_file(self.src)
        require_file(self.tgt)
        src_lines, tgt_lines = read_lines(self.src), read_lines(self.tgt)
        yield from zip(src_lines, tgt_lines, strict=False)
        num_src, num_tgt = _count_lines(self.src), _count_lines(self.tgt)
        if num_src != num_tgt:
            raise UserError(
                f"{self.src} has {num_src} lines but {self.tgt} has {num_tgt}; "
                "a translation must stand on the same line as its source"
            )


def _count_lines(path: Path) -> int:
    with path.open("rb") as stream:
        return sum(1 for _ in stream)


@dataclass(frozen=True)
class TabSeparated:
    """A file of lines ``source<tab>target``: no header, no quoting, no missing values."""

    path: Path

    @property
    def files(self) -> tuple[Path, ...]:
        return (self.path,)

    @property
    def columns(self) -> tuple[str, ...]:
        return ()

    def __iter__(self) -> Iterator[Pair]:
        for number, line in enumerate(read_lines(self.path), start=1):
            cells = line.split("\t")
            if len(cells) != 2:
                raise UserError(
                    f"{self.path}, line {number} has {len(cells) - 1} tabs where exactly one is needed "
                    "(source, tab, target)"
                )
            yield cells[0], cells[1]


@dataclass(frozen=True)
class _RecordFile:
    """One file of records, two columns of which are the pair."""

    path: Path
    src_column: str
    tgt_column: str

    @property
    def files(self) -> tuple[Path, ...]:
        return (self.path,)

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.src_column, self.tgt_column)


@dataclass(frozen=True)
class JsonLines(_RecordFile):
    """A file with one JSON object a line.

    A column is a key of the object; ``translation.de`` is the key ``de`` of the object under ``translation``.
    """

    def __iter__(self) -> Iterator[Pair]:
        for number, line in enumerate(read_lines(self.path), start=1):
            where = f"{self.path}, line {number}"
            try:
                record = json.loads(line)
            except json.JSONDecodeError as error:
                raise UserError(f"{where} is not JSON: {error.msg} at place {error.colno}") from None
            yield cell(record, self.src_column, where), cell(record, self.tgt_column, where)


@dataclass(frozen=True)
class Parquet(_RecordFile):
    """A Parquet file; columns are named as for :class:`JsonLines`."""

    def __iter__(self) -> Iterator[Pair]:
        require_file(self.path)
        try:
            table = pyarrow.parquet.ParquetFile(self.path)
        except pyarrow.ArrowInvalid as error:
            raise UserError(f"{self.path} is not a Parquet file: {error}") from None
        tops = sorted({column.split(".")[0] for column in self.columns})
        for column in tops:
            if column not in table.schema_arrow.names:
                raise UserError(
                    f'{self.path} has no column "{column}"{nearest(column, table.schema_arrow.names)}'
                )
        row = 0
        for batch in table.iter_batches(columns=tops):
            for record in batch.to_pylist():
                row += 1
                where = f"{self.path}, row {row}"
                yield cell(record, self.src_column, where), cell(record, self.tgt_column, where)


def cell(record: Any, column: str, where: str) -> str:
    """The text under ``column`` (dots lead into nested records).

    Raises
    ------
    UserError
        No such column (the nearest is named), or a value that is not text.
    """
    value = record
    for name in column.split("."):
        if not isinstance(value, dict):
            raise UserError(f'{where} has no column "{column}"')
        if name not in value:
            raise UserError(f'{where} has no column "{column}"{nearest(name, value)}')
        value = value[name]
    if not isinstance(value, str):
        raise UserError(f'{where}: column "{column}" is {value!r} where text is needed')
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UserError(f'{where}: column "{column}" holds half a character (a lone surrogate)') from None
    return value
