"""The pictures: their size, that each weight is where it belongs, and that characters are drawn."""

import logging
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

from minitrans.analysis.attention import SentenceMaps
from minitrans.analysis.drawing import (
    DPI,
    Edges,
    Layout,
    choose_fonts,
    draw_cross,
    draw_encoder,
    draw_grid,
    draw_maps,
    fonts_for,
)

CJK = "两只狗が走る한국"
CUNEIFORM = "𒀀"


def random_maps(src: list[str], tgt: list[str], num_layers: int, num_heads: int) -> SentenceMaps:
    generator = np.random.default_rng(0)

    def rows(num_queries: int, num_keys: int, causal: bool = False) -> np.ndarray:
        weights = generator.random((num_layers, num_heads, num_queries, num_keys))
        weights = np.tril(weights) if causal else weights
        return weights / weights.sum(axis=-1, keepdims=True)

    num_src, num_tgt = len(src) + 1, len(tgt) + 1
    return SentenceMaps(
        src=(*src, "</s>"),
        tgt_in=("<s>", *tgt),
        tgt_out=(*tgt, "</s>"),
        encoder=rows(num_src, num_src),
        decoder=rows(num_tgt, num_tgt, causal=True),
        cross=rows(num_tgt, num_src),
    )


def need_cjk_font() -> None:
    if choose_fonts(set(CJK))[1]:
        pytest.skip("no installed font has Chinese, Japanese and Korean characters (Debian: fonts-noto-cjk)")


@pytest.mark.parametrize(("num_layers", "num_heads"), [(1, 1), (2, 3)])
def test_three_pictures_of_the_size_that_the_layout_says(
    tmp_path: Path, num_layers: int, num_heads: int
) -> None:
    maps = random_maps(["▁the", "▁dog"], ["▁der", "▁Hu", "nd"], num_layers, num_heads)
    paths = draw_maps(maps, tmp_path)
    assert paths == [tmp_path / "encoder.png", tmp_path / "decoder.png", tmp_path / "cross.png"]
    sides = [(maps.src, maps.src), (maps.tgt_in, maps.tgt_in), (maps.tgt_out, maps.src)]
    for path, weights, (queries, keys) in zip(
        paths, (maps.encoder, maps.decoder, maps.cross), sides, strict=True
    ):
        pixels = matplotlib.image.imread(path)
        width, height = Layout.of(weights.shape, queries, keys).figure
        assert pixels.shape[:2] == (round(height * DPI), round(width * DPI))
        assert pixels[..., :3].std() > 0.1


def test_sizes_by_hand() -> None:
    tokens = ["abcde"] * 40
    layout = Layout.of((4, 4, 40, 40), tokens, tokens)
    # 40 squares of 0.13 inches; five letters of 0.62 x 0.72 x 0.13 inches and 0.35 inches of margin.
    assert layout.panel == pytest.approx((5.2, 5.2))
    assert layout.left == pytest.approx(0.35 + 5 * 0.62 * 0.72 * 0.13)
    assert layout.font_size == pytest.approx(0.72 * 0.13 * 72)
    # 16 heads of 100 tokens would be 208 inches wide at that size: the squares shrink to 60 / 1600.
    assert Layout.of((2, 16, 100, 100), ["a"], ["a"]).panel == pytest.approx((3.75, 3.75))


def test_a_weight_is_dark_at_its_query_and_key() -> None:
    weights = np.zeros((2, 2, 3, 4))
    weights[..., 0] = 1
    weights[1, 0, 2] = [0, 0, 0, 1]  # layer 2, head 1: the last query looks at the last key
    figure = draw_grid(weights, Edges("t", "r", "c", ["q"] * 3, ["k"] * 4), ["DejaVu Sans"])
    panels = figure.axes[:4]
    assert [axes.get_title(loc="left").split(":")[0] for axes in panels] == [
        "layer 1, head 1",
        "layer 1, head 2",
        "layer 2, head 1",
        "layer 2, head 2",
    ]
    for axes, expected in zip(panels, weights.reshape(4, 3, 4), strict=True):
        (image,) = axes.images
        np.testing.assert_array_equal(image.get_array(), expected)
        assert image.norm(1.0) == 1.0 and image.norm(0.25) == 0.5  # the square root


def test_tokens_stand_along_the_outer_edges_as_they_are() -> None:
    maps = random_maps(["▁$x$", "_y"], ["▁a"], num_layers=2, num_heads=2)
    figure = draw_cross(maps, ["DejaVu Sans"])
    labels = [
        (
            [text.get_text() for text in axes.get_yticklabels()],
            [text.get_text() for text in axes.get_xticklabels()],
        )
        for axes in figure.axes[:4]
    ]
    queries, keys = ["_a", "</s>"], ["_$x$", "_y", "</s>"]
    assert labels == [(queries, []), ([], []), (queries, keys), ([], keys)]
    assert not figure.axes[2].get_xticklabels()[0].get_parse_math()


def test_what_the_causal_mask_hides_is_not_drawn_as_a_weight() -> None:
    weights = np.tril(np.ones((1, 1, 3, 3)))
    edges = Edges("t", "r", "c", list("abc"), list("abc"))
    drawn = draw_grid(weights, edges, ["DejaVu Sans"], causal=True).axes[0].images[0].get_array()
    assert drawn.mask.tolist() == np.triu(np.ones((3, 3), dtype=bool), 1).tolist()


def test_matplotlibs_own_font_suffices_for_european_text() -> None:
    assert choose_fonts(set("a▁äßčжω�")) == (["DejaVu Sans"], set())


def test_a_font_with_the_missing_characters_is_found() -> None:
    need_cjk_font()
    families, missing = choose_fonts(set("a" + CJK))
    assert families[0] == "DejaVu Sans" and len(families) > 1
    assert missing == set()


def test_cjk_characters_are_drawn_each_in_its_own_form(tmp_path: Path) -> None:
    """Boxes would all look the same."""
    need_cjk_font()

    def drawn(character: str) -> np.ndarray:
        maps = random_maps([character], ["a"], num_layers=1, num_heads=1)
        draw_encoder(maps, fonts_for(maps.src)).savefig(tmp_path / "one.png")
        return matplotlib.image.imread(tmp_path / "one.png")

    first, second, again = drawn("两"), drawn("狗"), drawn("两")
    np.testing.assert_array_equal(first, again)
    assert first.shape == second.shape
    assert (first != second).any()


def test_characters_in_no_font_are_said_once_in_one_sentence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder
) -> None:
    if not choose_fonts({CUNEIFORM})[1]:
        pytest.skip("a font with cuneiform is installed")
    with caplog.at_level(logging.WARNING):
        draw_maps(random_maps([CUNEIFORM, CUNEIFORM], [CUNEIFORM], 1, 1), tmp_path)
    assert [record.getMessage() for record in caplog.records] == [
        "No installed font has 1 of the characters (𒀀), which are drawn as boxes; install one that has them, "
        "such as the Debian package fonts-noto-cjk for Chinese, Japanese and Korean."
    ]
    assert not [warning for warning in recwarn if "Glyph" in str(warning.message)]


def test_without_missing_characters_nothing_is_said(caplog: pytest.LogCaptureFixture) -> None:
    assert fonts_for(["▁a", "</s>", "\u200b"]) == ["DejaVu Sans"]
    assert caplog.records == []
