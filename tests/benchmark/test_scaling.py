"""``benchmark.py scaling``: exponents, generated text, real points; not how fast they were."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from minitrans.benchmark import scaling
from minitrans.benchmark.curves import _panel, draw, fitted
from minitrans.benchmark.scaling import (
    Point,
    _last_update,
    _with_width,
    curves,
    generated_lines,
    measure_scaling,
    median_speed,
    on_generated_text,
    slope,
)
from minitrans.benchmark.settings import BenchmarkConfig
from minitrans.cli.compose import compose
from minitrans.config import ModelConfig
from minitrans.errors import UserError
from minitrans.training.prepare import prepare
from tests.benchmark.small import small

NOTHING = [
    "scaling.lengths=[]",
    "scaling.widths=[]",
    "scaling.vocab_sizes=[]",
    "scaling.update_tokens=[]",
    "scaling.threads=[]",
    "scaling.processes=[]",
]


def test_an_exponent_is_the_slope_of_the_logarithms() -> None:
    assert slope([8, 16, 64], [3 * 8**1.5, 3 * 16**1.5, 3 * 64**1.5]) == pytest.approx(1.5, abs=1e-12)
    assert slope([8], [1.0]) is None
    assert slope([8, 16], [0.0, 1.0]) is None


def test_curves_of_a_machine_that_follows_the_count_have_the_predicted_exponents() -> None:
    # a sentence of n tokens: n² of attention and 10n of all else
    points = [
        Point("length", n, seconds=n + 10.0, work=n + 10.0, attention_seconds=float(n), memory=4.0)
        for n in (8, 32, 128)
    ]
    points += [Point("processes", p, seconds=1 / p, work=None) for p in (1, 2, 4)]
    total, memory, attention, rest, processes = curves(points)
    assert total.exponent == pytest.approx(total.predicted_exponent)
    assert (memory.exponent, memory.predicted_exponent) == (pytest.approx(0.0, abs=1e-12), None)
    assert (attention.exponent, attention.predicted_exponent) == (pytest.approx(2.0), pytest.approx(2.0))
    assert (rest.exponent, rest.predicted_exponent) == (pytest.approx(1.0), pytest.approx(1.0))
    assert (processes.exponent, processes.predicted_exponent) == (pytest.approx(-1.0), pytest.approx(-1.0))


def test_the_text_has_sentences_of_one_length_and_the_whole_vocabulary(tmp_path: Path) -> None:
    run = on_generated_text(small("scaling.length=9", "tokenizer.vocab_size=1000"), tmp_path)
    material = prepare(run)
    assert material.tokenizers.tgt.vocab_size == 1000
    assert np.unique(material.train.lengths).tolist() == [9]
    assert max(update.target_tokens for update in material.run_plan.first_epoch) == 512 // 9 * 9


def test_words_come_in_turn() -> None:
    assert list(generated_lines(2, words=3, vocab_size=4 + 5)) == ["a b c\n", "d e a\n"]
    (line,) = generated_lines(1, words=703, vocab_size=10_000)
    last = line.split()
    assert (last[25], last[26], last[27], last[701], last[702]) == ("z", "ba", "bb", "baz", "bba")
    assert len(set(last)) == 703


def test_a_wider_model_keeps_its_proportions() -> None:
    model = _with_width(small("model.d_model=64", "model.d_ff=256", "model.num_heads=4"), 128).model
    assert (model.d_model, model.d_ff, model.num_heads) == (128, 512, 8)


def test_a_wider_model_of_another_architecture_changes_what_that_reads() -> None:
    words = [f"model.{word}" for word in ("architecture=lstm", "d_model=64", "d_hidden=32")]
    config = compose("benchmark", ["position=none", *words], BenchmarkConfig).config
    model = _with_width(config, 128).model
    assert (model.d_model, model.d_hidden) == (128, 64)
    assert (model.num_heads, model.d_ff) == (ModelConfig().num_heads, ModelConfig().d_ff)


def test_the_speed_is_read_off_the_table(tmp_path: Path) -> None:
    rows = ["train,1", "train,2", "train,30", "valid,", "train,50", "train,40"]
    table = tmp_path / "metrics.csv"
    table.write_text("split,target_tokens_per_s\n" + "\n".join(rows) + "\n", encoding="utf8")
    assert median_speed(table) == 40.0


def test_a_table_that_ends_early_is_told_from_a_whole_one(tmp_path: Path) -> None:
    table = tmp_path / "metrics.csv"
    assert _last_update(table) is None
    table.write_text("update,split\n", encoding="utf8")
    assert _last_update(table) is None
    table.write_text("update,split\n4,train\n8,train\n8,valid\n", encoding="utf8")
    assert _last_update(table) == 8


def test_a_sentence_that_fits_no_update_is_refused() -> None:
    config = small("scaling.lengths=[8,600]")
    with pytest.raises(UserError, match=r"a sentence of 600 tokens does not fit training.update_tokens=512"):
        next(measure_scaling(config))
    with pytest.raises(UserError, match=r"scaling.length=100 does not fit an update of 64 tokens"):
        next(measure_scaling(small("scaling.length=100", "scaling.update_tokens=[64]")))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["scaling.widths=[16,33]"],
            r"^33 cannot stand in scaling.widths: model.d_model=33 is not a multiple of model.num_heads=4; ",
        ),
        (
            ["scaling.widths=[16,1000000]"],
            r"^1000000 cannot stand in scaling.widths: such a training takes more than [\d,]+ GB, of",
        ),
        (
            ["scaling.vocab_sizes=[100,4000000000]"],
            r"^4000000000 cannot stand in scaling.vocab_sizes: such a",
        ),
        (
            ["scaling.update_tokens=[64,900000000000]"],
            r"^900000000000 cannot stand in scaling.update_tokens: such",
        ),
        (
            ["scaling.lengths=[8,17]", "scaling.length=8", "position=learned", "position.max_length=16"],
            r"^17 cannot stand in scaling.lengths: a sentence of 17 tokens goes beyond position.max_len",
        ),
    ],
)
def test_a_value_that_cannot_be_is_refused_before_the_first_point(
    words: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scaling, "_point", lambda *_: pytest.fail("a point was measured first"))
    with pytest.raises(UserError, match=sentence):
        next(measure_scaling(small(*NOTHING, *words)))


def test_no_axis_at_all_is_refused() -> None:
    axes = ("lengths", "widths", "vocab_sizes", "update_tokens", "threads", "processes")
    with pytest.raises(UserError, match=r"^every axis of scaling is empty"):
        next(measure_scaling(small(*(f"scaling.{axis}=[]" for axis in axes))))


@pytest.mark.slow
def test_a_point_is_a_real_training() -> None:
    words = [word for word in NOTHING if "lengths" not in word]
    (point,) = measure_scaling(small(*words, "scaling.lengths=[16]", "tokenizer.vocab_size=100"))
    assert (point.axis, point.value) == ("length", 16)
    assert point.seconds > 0 and point.work > 0 and point.memory is not None
    assert point.attention_seconds is not None and 0 < point.attention_seconds < point.seconds


@pytest.mark.slow
def test_processes_are_a_real_distributed_training() -> None:
    words = [word for word in NOTHING if "processes" not in word]
    (point,) = measure_scaling(small(*words, "scaling.processes=[2]", "tokenizer.vocab_size=100"))
    assert (point.axis, point.value, point.work) == ("processes", 2, None)
    assert point.seconds > 0


def test_the_prediction_is_drawn_through_the_middle_of_the_figures() -> None:
    assert fitted([1.0, 16.0], [1.0, 1.0]).tolist() == pytest.approx([4.0, 4.0])


@pytest.mark.parametrize("x", [(64,), (64, 128)], ids=["one point", "a flat curve"])
def test_every_point_lies_well_within_its_panel(x: tuple[int, ...]) -> None:
    axes = Figure().add_subplot()
    _panel(axes, curves([Point("width", value, 1.5e-4, 1e7, memory=6e5) for value in x]))
    time_scale, memory_scale = axes, axes.figure.axes[1]
    assert time_scale.get_ylim() == pytest.approx((1.5e-5, 3e-4))
    assert memory_scale.get_ylim() == pytest.approx((3e5, 6e6))
    low, high = axes.get_xlim()
    assert low < min(x) and max(x) < high


def test_a_panel_an_axis_is_drawn(tmp_path: Path) -> None:
    points = [Point(axis, x, 1.0 / x, 1.0) for axis in ("threads", "processes", "a", "b") for x in (1, 2)]
    points += [Point("c", x, 1.0 / x, 1.0, memory=memory) for x, memory in ((1, 0.0), (2, 5e4))]
    with Image.open(draw(curves(points), tmp_path / "scaling.png")) as picture:
        assert picture.size == (round(4.2 * 3 * 120), round(4.0 * 2 * 120))
        assert len(np.unique(np.asarray(picture.convert("L")))) > 10  # not blank
