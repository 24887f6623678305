"""Curves: which numbers are read, and that the picture holds them."""

import math
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

from minitrans.errors import UserError
from minitrans.training.curves import draw_curves, points, read_rows

HEADER = (
    "update,epoch,split,loss,nll,perplexity,bleu,lr,grad_norm,target_tokens_per_s,padding_fraction,seconds\n"
)
RUN = (
    HEADER
    + "20,0,train,5.5,5.25,190.6,,0.0004,1.5,2000,0.03,10\n"
    + "40,0,train,4.5,4.0,54.6,,0.0008,1.25,2000,0.03,20\n"
    + "40,0,valid,,3.75,42.5,12.5,,,,,25\n"
    + "60,1,train,nan,,,,0.0006,,2000,0.03,30\n"
)


def written(folder: Path, text: str) -> Path:
    path = folder / "metrics.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_points_are_the_finite_cells_of_one_split(tmp_path: Path) -> None:
    rows = read_rows(written(tmp_path, RUN))
    assert points(rows, "train", "loss") == [(20, 5.5), (40, 4.5)]
    assert points(rows, "train", "nll") == [(20, 5.25), (40, 4.0)]
    assert points(rows, "valid", "nll") == [(40, 3.75)]
    assert points(rows, "valid", "loss") == []
    assert points(rows, "valid", "bleu") == [(40, 12.5)]
    assert points(rows, "train", "lr") == [(20, 0.0004), (40, 0.0008), (60, 0.0006)]


def share_of_colour(png: Path, colour: str) -> float:
    pixels = np.round(matplotlib.image.imread(png)[..., :3] * 255).astype(int)
    wanted = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)])
    return float((np.abs(pixels - wanted).max(axis=-1) <= 8).mean())


def test_the_picture_has_its_size_and_shows_both_splits(tmp_path: Path) -> None:
    png = tmp_path / "curves.png"
    draw_curves(written(tmp_path, RUN), png)
    assert matplotlib.image.imread(png).shape[:2] == (540, 1800)
    assert share_of_colour(png, "#9db4c8") > 1e-4  # the training line
    assert share_of_colour(png, "#c8452c") > 1e-5  # the dots of the one validation


def test_a_run_without_validation_is_drawn(tmp_path: Path) -> None:
    png = tmp_path / "curves.png"
    draw_curves(written(tmp_path, HEADER + "20,0,train,5.5,,,,0.0004,,,,\n"), png)
    assert share_of_colour(png, "#9db4c8") > 1e-5  # one point shows as a dot
    assert math.isclose(share_of_colour(png, "#c8452c"), 0.0)


@pytest.mark.parametrize("text", ["", HEADER, HEADER + "20,0,train,nan,,,,0.1,,,,\n"])
def test_no_loss_at_all_is_said(tmp_path: Path, text: str) -> None:
    with pytest.raises(UserError, match=r"metrics\.csv holds no row with a loss"):
        draw_curves(written(tmp_path, text), tmp_path / "curves.png")
    assert not (tmp_path / "curves.png").exists()


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        draw_curves(tmp_path / "metrics.csv", tmp_path / "curves.png")
