"""Attention maps as pictures: a row a layer, a column a head, the tokens along the edges."""

import logging
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.ft2font import FT2Font

from minitrans.analysis.attention import Array, SentenceMaps, entropy, pattern, sentence_maps
from minitrans.data.tokenizer import Tokenizers
from minitrans.model.encoder_decoder import EncoderDecoder

DPI = 120
LARGEST_SIDE = 60.0  # inches of all panels together, side by side
POINTS_PER_INCH = 72
BASE_FONT = "DejaVu Sans"  # comes with matplotlib
INK = "#4b5563"
HIDDEN = "#eef0f3"  # what the causal mask hides
WEIGHTS = LinearSegmentedColormap.from_list(
    "weights", ["#ffffff", "#c6dbef", "#4a90c2", "#0b3c6f", "#04142b"]
)
# Square root: with 40 keys an even weight is 0.025, and must still be seen beside a weight of 1.
SCALE = PowerNorm(0.5, vmin=0, vmax=1)

logger = logging.getLogger(__name__)


def picture(model: EncoderDecoder, tokenizers: Tokenizers, text: str, target: str) -> npt.NDArray[np.uint8]:
    """Draw the cross-attention of one sentence pair: which source tokens each target token looks at.

    Returns
    -------
    (height, width, 4) pixels, red green blue alpha: what a logger of images takes.

    Raises
    ------
    UserError
        See :func:`minitrans.analysis.attention.sentence_maps`.
    """
    maps = sentence_maps(model, tokenizers, text, target)
    figure = draw_cross(maps, fonts_for([*maps.src, *maps.tgt_out]))
    canvas = FigureCanvasAgg(figure)
    with _quiet_about_glyphs():
        canvas.draw()
    return np.array(canvas.buffer_rgba())


def draw_maps(maps: SentenceMaps, folder: Path) -> list[Path]:
    """Draw ``encoder.png``, ``decoder.png`` and ``cross.png`` into ``folder``, where there is such attention.

    Where no installed font has a character, one sentence says so (as a warning of this module's logger).

    Returns
    -------
    The paths of what was drawn.
    """
    fonts = fonts_for([*maps.src, *maps.tgt_in, *maps.tgt_out])
    pictures = {"encoder": draw_encoder, "decoder": draw_decoder, "cross": draw_cross}
    paths = []
    for kind, draw in pictures.items():
        if not len(getattr(maps, kind)):
            continue
        paths.append(folder / f"{kind}.png")
        with _quiet_about_glyphs():
            draw(maps, fonts).savefig(paths[-1])
    return paths


def draw_encoder(maps: SentenceMaps, fonts: Sequence[str]) -> Figure:
    """The encoder's self-attention, source token by source token."""
    edges = Edges("Encoder self-attention", "query", "key", maps.src, maps.src)
    return draw_grid(maps.encoder, edges, fonts)


def draw_decoder(maps: SentenceMaps, fonts: Sequence[str]) -> Figure:
    """The decoder's self-attention, between the tokens that it reads."""
    edges = Edges("Decoder self-attention", "query", "key", maps.tgt_in, maps.tgt_in)
    return draw_grid(maps.decoder, edges, fonts, causal=True)


def draw_cross(maps: SentenceMaps, fonts: Sequence[str]) -> Figure:
    """From the target tokens to be predicted to the source tokens."""
    edges = Edges("Cross-attention", "target token to be predicted", "source token", maps.tgt_out, maps.src)
    return draw_grid(maps.cross, edges, fonts)


@dataclass(frozen=True)
class Edges:
    """What is written around the panels: the title, what rows and columns are, and their tokens."""

    title: str
    rows: str
    columns: str
    queries: Sequence[str]
    keys: Sequence[str]


def draw_grid(weights: Array, edges: Edges, fonts: Sequence[str], *, causal: bool = False) -> Figure:
    """Draw one kind of attention.

    Parameters
    ----------
    weights
        (L, H, T, S), rows summing to 1.
    edges
        With T queries and S keys.
    fonts
        Families in the order in which they are asked for a character.
    causal
        Grey what the causal mask hides.
    """
    layout = Layout.of(weights.shape, edges.queries, edges.keys)
    figure = Figure(figsize=layout.figure, dpi=DPI)
    panels = figure.subplots(*weights.shape[:2], squeeze=False, gridspec_kw=layout.grid())
    # parse_math: a token may hold dollar signs, which are no formula.
    style = {"fontsize": layout.font_size, "fontfamily": list(fonts), "parse_math": False}
    for (layer, head), axes in np.ndenumerate(panels):
        one = weights[layer, head]
        _draw_panel(axes, one, causal)
        name = f"layer {layer + 1}, head {head + 1}: {pattern(one, causal=causal)}, {entropy(one):.2f} nats"
        axes.set_title(name, fontsize=7.5, loc="left", pad=3, color=INK)
    for axes in panels[:, 0]:
        axes.set_yticks(range(len(edges.queries)), [_shown(token) for token in edges.queries], **style)
    for axes in panels[-1]:
        axes.set_xticks(range(len(edges.keys)), [_shown(token) for token in edges.keys], rotation=90, **style)
    _add_scale(figure, layout)
    _write_edges(figure, layout, edges)
    return figure


@contextmanager
def _quiet_about_glyphs() -> Iterator[None]:
    """Missing characters are said in one sentence by fonts_for; matplotlib would say each one."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def _draw_panel(axes: Axes, weights: Array, causal: bool) -> None:
    shown = np.ma.masked_where(np.triu(np.ones(weights.shape, dtype=bool), 1) & causal, weights)
    axes.set_facecolor(HIDDEN)
    axes.imshow(shown, cmap=WEIGHTS, norm=SCALE, aspect="auto", interpolation="nearest")
    axes.spines[:].set_color("#9ca3af")
    axes.spines[:].set_linewidth(0.6)
    axes.tick_params(length=0, pad=2)
    axes.set_xticks([])
    axes.set_yticks([])


def _shown(token: str) -> str:
    """The token with a slim sign for its space: the usual one is a heavy bar in most fonts."""
    return token.replace("▁", "_")


def _add_scale(figure: Figure, layout: "Layout") -> None:
    width, height = layout.figure
    top = height - layout.top
    tall = min(2.5, top - layout.bottom)
    box = ((width - layout.right + 0.15) / width, (top - tall) / height, 0.13 / width, tall / height)
    bar = figure.colorbar(ScalarMappable(SCALE, WEIGHTS), cax=figure.add_axes(box))
    ticks = [0, 0.05, 0.25, 0.5, 1]
    bar.set_ticks(ticks, labels=[f"{tick:g}" for tick in ticks], fontsize=7)
    bar.ax.set_title("weight", fontsize=7.5, loc="left", pad=9, color=INK)
    bar.outline.set_visible(False)


def _write_edges(figure: Figure, layout: "Layout", edges: Edges) -> None:
    """The title, and what rows and columns are."""
    width, height = layout.figure
    figure.text(
        layout.left / width, 1 - 0.22 / height, edges.title, fontsize=12, fontweight="bold", va="center"
    )
    middle = (layout.bottom + height - layout.top) / 2 / height
    figure.text(
        0.12 / width, middle, edges.rows, rotation=90, va="center", ha="center", fontsize=9, color=INK
    )
    middle = (layout.left + width - layout.right) / 2 / width
    figure.text(middle, 0.12 / height, edges.columns, va="center", ha="center", fontsize=9, color=INK)


# --------------------------------------------------------------------------------------
# Sizes, in inches
# --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """Where things stand in the picture of an (L, H, T, S) array, in inches.

    Attributes
    ----------
    panels
        (L, H).
    panel
        Width and height of one.
    left, bottom
        Margins that hold the tokens.
    font_size
        Of the tokens, in points.
    """

    panels: tuple[int, int]
    panel: tuple[float, float]
    left: float
    bottom: float
    font_size: float
    right: float = 0.75
    top: float = 0.65
    gap: tuple[float, float] = (0.12, 0.28)  # between columns, between rows (a row's title stands in it)

    @classmethod
    def of(cls, shape: tuple[int, ...], queries: Sequence[str], keys: Sequence[str]) -> "Layout":
        """Large squares for short sentences; smaller ones where the picture would burst."""
        num_layers, num_heads, num_queries, num_keys = shape
        readable = max(0.13, 2.4 / max(num_queries, num_keys))
        square = min(0.3, readable, LARGEST_SIDE / max(num_heads * num_keys, num_layers * num_queries))
        font_size = min(9.0, 0.72 * square * POINTS_PER_INCH)
        letter = 0.62 * font_size / POINTS_PER_INCH
        return cls(
            panels=(num_layers, num_heads),
            panel=(max(2.3, square * num_keys), max(0.6, square * num_queries)),
            left=0.35 + letter * max(map(_num_letters, queries)),
            bottom=0.35 + letter * max(map(_num_letters, keys)),
            font_size=font_size,
        )

    @property
    def figure(self) -> tuple[float, float]:
        """Width and height of the whole."""
        num_rows, num_columns = self.panels
        width = self.left + num_columns * self.panel[0] + (num_columns - 1) * self.gap[0] + self.right
        height = self.bottom + num_rows * self.panel[1] + (num_rows - 1) * self.gap[1] + self.top
        return round(width, 1), round(height, 1)

    def grid(self) -> dict[str, float]:
        """The same as matplotlib wants it: margins in shares of the figure, gaps in shares of a panel."""
        width, height = self.figure
        return {
            "left": self.left / width,
            "right": 1 - self.right / width,
            "bottom": self.bottom / height,
            "top": 1 - self.top / height,
            "wspace": self.gap[0] / self.panel[0],
            "hspace": self.gap[1] / self.panel[1],
        }


def _num_letters(token: str) -> int:
    """The width of a token; a CJK character is as wide as two letters."""
    return sum(2 if ord(character) >= 0x2E80 else 1 for character in token)


# --------------------------------------------------------------------------------------
# Fonts
# --------------------------------------------------------------------------------------


def fonts_for(tokens: Iterable[str]) -> list[str]:
    """Families that together have every character of ``tokens``, matplotlib's own first.

    Characters that no installed font has are told in one sentence, with a package that has most of them.
    """
    families, missing = choose_fonts(set().union(*tokens))
    if missing:
        some = "".join(sorted(missing)[:10])
        logger.warning(
            "No installed font has %d of the characters (%s), which are drawn as boxes; install one that has "
            "them, such as the Debian package fonts-noto-cjk for Chinese, Japanese and Korean.",
            len(missing),
            some,
        )
    return families


def choose_fonts(characters: set[str]) -> tuple[list[str], set[str]]:
    """Add the family with the most characters that are still missing, until none has any.

    Returns
    -------
    The families, and the characters that are in none.
    """
    families = [BASE_FONT]
    base = _glyphs(font_manager.findfont(BASE_FONT))
    missing = {c for c in characters if c.isprintable() and ord(c) not in base}
    fonts = _regular_fonts() if missing else {}
    while missing:
        covered = {family: {c for c in missing if ord(c) in _glyphs(path)} for family, path in fonts.items()}
        best = max(sorted(covered), key=lambda family: len(covered[family]), default=BASE_FONT)
        if not covered.get(best):
            break
        families.append(best)
        missing -= covered[best]
    return families, missing


def _regular_fonts() -> dict[str, str]:
    """Family to file, of the installed upright fonts of regular weight that draw letters, not boxes."""
    manager = font_manager.fontManager
    known = {font.fname for font in manager.ttflist}
    for path in sorted(set(font_manager.findSystemFonts()) - known):
        # matplotlib keeps its list from before; a font may have been installed since.
        with suppress(OSError, RuntimeError):
            manager.addfont(path)
    regular = (font for font in manager.ttflist if font.style == "normal" and font.weight in (400, "normal"))
    return {font.name: font.fname for font in regular if not font.name.startswith("Last Resort")}


@cache
def _glyphs(path: str) -> frozenset[int]:
    """The characters that a font file has; none where it cannot be read."""
    try:
        return frozenset(FT2Font(path).get_charmap())
    except (OSError, RuntimeError):
        return frozenset()
