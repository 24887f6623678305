"""A report as blocks of text, tables and pictures, and the two forms that it is written in: HTML, Markdown.

The HTML needs nothing else, no network and no script, and follows the reader's light or dark setting. A table
wider than the page scrolls in a box of its own. On a phone one of short cells does so, beside its first
column, and each row of any other one becomes a list.
"""

import base64
import html
import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Note:
    """A paragraph in small print: how to read what stands above it."""

    text: str


@dataclass(frozen=True)
class Alarm:
    """A paragraph that must not be overlooked."""

    text: str


@dataclass(frozen=True)
class Table:
    """Rows of text under headings; the first column names the row."""

    heads: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


@dataclass(frozen=True)
class Figure:
    """One picture drawn twice, for light and for dark pages; ``text`` says what it shows."""

    light: bytes  # PNG
    dark: bytes
    text: str


@dataclass(frozen=True)
class Commands:
    """Lines to type, each with what it does."""

    lines: Sequence[tuple[str, str]]


SHORT, BREAKING = 12, 24
"""Letters: a table of cells up to the first stays one on a phone; a number beyond the second may break."""
_NUMBER = re.compile(r"[-+−±<–]?\s?\d|–$")


@dataclass(frozen=True)
class Column:
    """What the cells of one column of a table are like."""

    numbers: bool
    longest: int  # letters

    @classmethod
    def of(cls, cells: Sequence[str]) -> "Column":
        """By all of them; empty ones do not count."""
        shown = [cell for cell in cells if cell]
        return cls(all(_NUMBER.match(cell) for cell in shown), max(map(len, shown), default=0))

    @property
    def style(self) -> str:
        """Its class on the page."""
        return "text" if not self.numbers else "long" if self.longest > BREAKING else "number"


def columns(rows: Sequence[tuple[str, ...]]) -> list[Column]:
    """All columns but the first."""
    return [Column.of(cells) for cells in list(zip(*rows, strict=True))[1:]]


Block = Text | Note | Alarm | Table | Figure | Commands


@dataclass(frozen=True)
class Section:
    """Blocks under a title."""

    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Document:
    """A title, what it is about, its main sentence, and sections."""

    title: str
    about: str
    answer: str
    sections: Sequence[Section]


# --------------------------------------------------------------------------------------
# HTML
# --------------------------------------------------------------------------------------


def as_html(document: Document) -> str:
    """The whole page."""
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{html.escape(document.title)}</title>",
            f"<style>{_STYLE}</style></head><body><main>",
            f"<h1>{html.escape(document.title)}</h1>",
            f"<p>{_escaped(document.about)}</p>" if document.about else "",
            f'<p class="answer">{_escaped(document.answer)}</p>',
            *(_html_section(section) for section in document.sections),
            "</main></body></html>",
            "",
        ]
    )


def _html_section(section: Section) -> str:
    blocks = "\n".join(_html_block(block) for block in section.blocks)
    return f"<section><h2>{html.escape(section.title)}</h2>\n{blocks}</section>"


def _html_block(block: Block) -> str:
    match block:
        case Text(text):
            return f"<p>{_escaped(text)}</p>"
        case Note(text):
            return f'<p class="note">{_escaped(text)}</p>'
        case Alarm(text):
            return f'<p class="alarm">{_escaped(text)}</p>'
        case Table(heads, rows):
            return _html_table(heads, rows)
        case Figure(light, dark, text):
            return (
                f'<picture><source media="(prefers-color-scheme: dark)" srcset="{_data_uri(dark)}">'
                f'<img src="{_data_uri(light)}" alt="{html.escape(text)}"></picture>'
            )
        case Commands(lines):
            items = "".join(
                f"<dt>{html.escape(label)}</dt><dd><code>{html.escape(command)}</code></dd>"
                for label, command in lines
            )
            return f"<dl>{items}</dl>"


def _html_table(heads: Sequence[str], rows: Sequence[tuple[str, ...]]) -> str:
    kinds = columns(rows)
    style = "short" if all(kind.longest <= SHORT for kind in kinds) else "list"
    first, *others = (_escaped(name) for name in heads)
    head = f'<th scope="col">{first}</th>' + "".join(
        f'<th scope="col" class="{kind.style}">{name}</th>' for name, kind in zip(others, kinds, strict=True)
    )
    body = "".join(f"<tr>{_html_row(heads, row, kinds)}</tr>" for row in rows)
    table = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="wide" tabindex="0"><table class="{style}">{table}</table></div>'


def _html_row(heads: Sequence[str], row: Sequence[str], kinds: Sequence[Column]) -> str:
    first, *others = row
    cells = [
        f'<td class="{kind.style}" data-head="{_escaped(head)}">{_escaped(text)}</td>'
        if text
        else '<td class="empty"></td>'
        for head, text, kind in zip(heads[1:], others, kinds, strict=True)
    ]
    return f'<th scope="row">{_breakable(first)}</th>{"".join(cells)}'


def _escaped(text: str) -> str:
    """Text as HTML shows it; no line ends between a number and its percent sign."""
    return html.escape(text).replace(" %", "\N{NO-BREAK SPACE}%")


def _breakable(name: str) -> str:
    """The name of a row: ``schedule.warmup_updates=0`` may go on in a new line where its words end."""
    return re.sub(r"(?<=[.=_])(?=\w)", "<wbr>", _escaped(name))


def _data_uri(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode('ascii')}"


# --------------------------------------------------------------------------------------
# Markdown
# --------------------------------------------------------------------------------------


def as_markdown(document: Document) -> str:
    """The same without the pictures."""
    blocks = [f"# {_plain(document.title)}", _plain(document.about), f"**{_plain(document.answer)}**"]
    for section in document.sections:
        written = [_markdown_block(block) for block in section.blocks if not isinstance(block, Figure)]
        if written:
            blocks += [f"## {_plain(section.title)}", *written]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _markdown_block(block: Block) -> str:
    match block:
        case Text(text) | Note(text):
            return _plain(text)
        case Alarm(text):
            return f"> **{_plain(text)}**"
        case Table(heads, rows):
            rules = ["---:" if column.numbers else "---" for column in columns(rows)]
            lines = [heads, ["---", *rules], *rows]
            return "\n".join(f"| {' | '.join(_cell(text) for text in line)} |" for line in lines)
        case Commands(lines):
            return "\n".join(f"- {_plain(label)}: `{command}`" for label, command in lines)
        case Figure():
            return ""


def _plain(text: str) -> str:
    """Text that Markdown takes as it stands: a name such as ``d_k*2`` is no emphasis, ``<b>`` no tag."""
    return "".join(f"\\{letter}" if letter in "\\`*_<>#" else letter for letter in text)


def _cell(text: str) -> str:
    return _plain(text).replace("|", "\\|")


_STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --soft: #5b6675; --line: #d9dee5; --page: #fff;
  --card: #f3f6fa; --mark: #1d5fa8; --alarm: #9a3412; --alarm-back: #fff1e6; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf0; --soft: #9aa5b4; --line: #343c47;
  --page: #14181d; --card: #1c2229; --mark: #7fb6f2; --alarm: #ffb98a; --alarm-back: #3a2313; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 66rem; margin: 0 auto; padding: 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: .5rem 0; }
h2 { font-size: 1.15rem; margin: 2.25rem 0 .5rem; }
p { margin: .6rem 0; max-width: 46rem; }
.answer { font-size: 1.1rem; background: var(--card); border-left: 4px solid var(--mark);
  border-radius: 4px; padding: .8rem 1rem; }
.alarm { color: var(--alarm); background: var(--alarm-back); border-left: 4px solid var(--alarm);
  border-radius: 4px; padding: .5rem 1rem; }
.note, dt { color: var(--soft); font-size: .875rem; }
img { display: block; width: 100%; max-width: 32rem; height: auto; }
.wide { overflow-x: auto; margin: .5rem 0; }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .9rem .35rem 0; text-align: left; border-bottom: 1px solid var(--line);
  vertical-align: top; overflow-wrap: normal; }
th:first-child { min-width: 9rem; max-width: 24rem; overflow-wrap: anywhere; }
td.text { min-width: 5rem; overflow-wrap: break-word; }
.number, .long { text-align: right; }
td.number, .short thead th { white-space: nowrap; }
thead th { color: var(--soft); font-weight: 400; vertical-align: bottom; }
tbody th { font-weight: 600; }
dl { margin: .5rem 0; }
dd { margin: 0 0 .5rem; }
code { font-size: .8rem; background: var(--card); border-radius: 3px; padding: .1rem .3rem;
  box-decoration-break: clone; -webkit-box-decoration-break: clone; }
@media (max-width: 46rem) {
  .short th:first-child { position: sticky; left: 0; max-width: 10rem; background: var(--page); }
  .list, .list tbody { display: block; } .list thead { display: none; }
  .list tr { display: block; border-bottom: 1px solid var(--line); padding: .5rem 0; }
  .list tbody th { display: block; max-width: none; border: 0; padding: 0 0 .2rem; }
  .list td { display: flex; justify-content: space-between; gap: 1rem; border: 0; padding: .1rem 0;
    text-align: right; white-space: normal; }
  .list td::before { content: attr(data-head); color: var(--soft); text-align: left; white-space: nowrap; }
  .list .empty { display: none; } }
"""
