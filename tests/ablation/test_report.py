"""The report of a study: what it tells, in every form, and what it must not hide."""

import csv
import dataclasses
import json
import re
from pathlib import Path

import pytest
import torch

from minitrans.ablation import fairness
from minitrans.ablation.document import Column, Document, Figure, Section, Table, Text, as_html, as_markdown
from minitrans.ablation.fairness import cell_flops, costs
from minitrans.ablation.report import write
from minitrans.ablation.results import load
from minitrans.config import TrainConfig, construct, plain
from minitrans.data.corpus import SOURCES
from minitrans.data.stream import UpdateStream
from minitrans.run import provenance, write_config, write_json
from minitrans.training.finish import finish
from minitrans.training.prepare import prepare
from tests.ablation.studies import StudyBuilder, noisy
from tests.evaluation.test_page import Outline
from tests.training.tiny import tiny_experiment, train

OVERRIDES = "attention=unscaled model.d_k=<128>"


def built(folder: Path) -> StudyBuilder:
    """Three variants over two seeds, with a leak, more parameters, and a failed cell."""
    builder = StudyBuilder(
        folder / "study", folder / "text", {"base": None, OVERRIDES: "base", "big": OVERRIDES}
    )
    for seed in (1, 2):
        builder.done("base", seed, noisy(0.1, seed))
        builder.done(OVERRIDES, seed, noisy(0.3, 10 + seed), {"leak": True})
    builder.done("big", 1, noisy(0.2, 21), {"parameters": 1030})
    builder.cell("big", 2, "failed", error="the loss is nan at update 12", log="logs/big.out")
    builder.of_variant = {OVERRIDES: {"expect": "worse"}}
    return builder


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = built(tmp_path_factory.mktemp("report")).write()
    assert write(folder) == folder / "report.html"
    return folder


def test_the_page_needs_nothing_else(study: Path) -> None:
    page = (study / "report.html").read_text(encoding="utf8")
    outline = Outline(page.replace("<source ", "<meta ").replace("<img ", "<meta ").replace("<wbr>", ""))
    assert "script" not in outline.tags and "link" not in outline.tags
    sources = re.findall(r'(?:src|srcset|href)="([^"]{0,40})', page)
    assert len(sources) == 4 and all(source.startswith("data:image/png;base64,") for source in sources)
    assert "http" not in page.replace("data:image", "")[: page.index("<body>")]
    assert "prefers-color-scheme: dark" in page and 'name="viewport"' in page


def test_names_are_no_markup(study: Path) -> None:
    page = (study / "report.html").read_text(encoding="utf8")
    assert "model.d_k=&lt;128&gt;" in page and "<128>" not in page
    assert "model.d\\_k=\\<128\\>" in (study / "report.md").read_text(encoding="utf8")


def test_what_weakens_the_answer_stands_on_the_page(study: Path) -> None:
    text = (
        (study / "report.md").read_text(encoding="utf8").replace("\\", "").replace("\N{NO-BREAK SPACE}", " ")
    )
    for said in (
        f"A leak, as configured: in training the decoder of {OVERRIDES} saw the tokens",
        "1 of 6 cells have no score (listed below).",
        "Seeds of big failed.",
        f"Not of equals: big has +3.0 % parameters beside {OVERRIDES}, which the study holds equal (to 2 %).",
        f"Two seeds: the test of {OVERRIDES} stands on the assumption",
        "One seed: for big there is no interval over seeds",
        "Nothing was tuned",
        "| big, seed 2 | failed | the loss is nan at update 12 | logs/big.out |",
        "FLOPs of base",
    ):
        assert said in text
    assert text.count("Not of equals") == 1  # 3 % of parameters; updates are equal


def test_question_answer_prediction_and_commands_stand_on_the_page(study: Path) -> None:
    text = (study / "report.md").read_text(encoding="utf8").replace("\\", "")
    record = json.loads((study / "results.json").read_text(encoding="utf8"))
    for said in (
        "Do lost words cost BLEU?",
        f"**{record['answer']}**",
        "Source: the definition of BLEU",
        f"| {OVERRIDES} | base | worse |",
        "`python scripts/ablate.py study=losses`",
        "- big, seed 2: `python scripts/train.py note=big seed=2`",
        "pairs a study finds a true difference of",
    ):
        assert said in text


def test_the_tables_for_machines_hold_every_cell(study: Path) -> None:
    record = json.loads((study / "results.json").read_text(encoding="utf8"))
    with (study / "results.csv").open(encoding="utf8", newline="") as file:
        rows = list(csv.DictReader(file))
    results = load(study)
    assert [(row["variant"], int(row["seed"]), row["state"]) for row in rows] == [
        (cell.variant, cell.seed, cell.state) for cell in results.cells
    ]
    assert float(rows[0]["score"]) == results.scores("base")[1] == record["cells"][0]["score"]
    assert (rows[-1]["score"], rows[-1]["error"]) == ("", "the loss is nan at update 12")
    assert rows[1]["leak"] == "True"
    first, second = record["comparisons"]
    scores = results.scores("base"), results.scores(OVERRIDES)
    assert first["test"]["mean"] == pytest.approx(
        sum(scores[1][seed] - scores[0][seed] for seed in (1, 2)) / 2
    )
    assert second["seeds"] == [1] and second["test"]["p"] is None and second["found"] is False
    assert record["unfair"] == [
        {"variant": "big", "against": OVERRIDES, "quantity": "parameters", "excess": pytest.approx(0.03)}
    ]


def test_a_difference_of_two_percent_is_no_flag_and_of_more_is_one(tmp_path: Path) -> None:
    builder = StudyBuilder(tmp_path / "s", tmp_path / "t", {"base": None, "even": "base", "less": "base"})
    for name, tokens in (("base", 50_000), ("even", 51_000), ("less", 48_900)):
        builder.done(name, 1, noisy(0.1, 1), {"target_tokens": tokens, "parameters": tokens})
    builder.changes = {"equal": ["tokens"]}
    results = load(builder.write())
    (flag,) = fairness.unfair(results, costs(results))
    assert (flag.variant, flag.quantity) == ("less", "tokens") and flag.excess == pytest.approx(-0.022)


def test_one_seed_is_said_plainly(tmp_path: Path) -> None:
    builder = StudyBuilder(tmp_path / "s", tmp_path / "t", {"base": None, "new": "base"})
    for name in builder.variants:
        builder.done(name, 1, noisy(0.1, len(name)))
    text = write(builder.write()).with_name("report.md").read_text(encoding="utf8")
    assert "One seed: for new there is no interval over seeds and no test, only a number." in text
    assert "one seed: no test" in text and "No answer: one seed cannot tell" in text


def test_cells_scored_on_other_text_are_not_compared(tmp_path: Path) -> None:
    builder = StudyBuilder(tmp_path / "s", tmp_path / "t", {"base": None, "new": "base"})
    builder.done("base", 1, noisy(0.1, 1))
    builder.done("new", 1, noisy(0.1, 1), test={"data": {"other.tsv": "ab"}})
    text = write(builder.write()).with_name("report.md").read_text(encoding="utf8")
    assert "Not comparable: new and base were scored on other text" in text
    assert "| new | base | 0 |" in text


def test_a_study_that_has_only_begun_has_a_report(tmp_path: Path) -> None:
    builder = StudyBuilder(tmp_path / "s", tmp_path / "t", {"base": None, "new": "base"})
    for name in builder.variants:
        builder.cell(name, 1, "waiting")
    text = write(builder.write()).with_name("report.md").read_text(encoding="utf8")
    assert "No answer yet" in text and "2 of 2 cells have no score" in text and "failed." not in text


def test_groups_of_sentences_and_other_splits_have_tables(tmp_path: Path) -> None:
    builder = StudyBuilder(tmp_path / "s", tmp_path / "t", {"base": None, "new": "base"})
    for name, matches in (("base", (80.0, 40.0)), ("new", (70.0, 20.0))):
        depths = {str(d): {"sentences": 48 - d, "exact_match": m} for d, m in enumerate(matches)}
        path = builder.done(name, 1, noisy(0.1, 1), test={"exact_match_by_depth": depths})
        result = json.loads((path / "result.json").read_text(encoding="utf8"))
        result["tests"]["test_novel"] = {"scores": {"bleu": {"value": matches[1]}}}
        (path / "result.json").write_text(json.dumps(result), encoding="utf8")
    text = write(builder.write()).with_name("report.md").read_text(encoding="utf8").replace("\\", "")
    assert "| variant | 0 (48) | 1 (47) |" in text and "| new | 70.0 | 20.0 |" in text
    assert "| variant | test_novel |" in text and "| base | 40.00 |" in text


def test_the_search_for_a_rate_is_told(tmp_path: Path) -> None:
    builder = StudyBuilder(tmp_path / "s", tmp_path / "t", {"base": None})
    builder.cell("base", 1, "waiting")
    builder.of_variant = {"base": {"tuned": {"optimizer.lr": 0.002}}}
    trial = {"variant": "base", "rate": {"optimizer.lr": 0.001}, "state": "done", "validation": 12.25}
    builder.changes = {"tune": "lr", "tuning": [trial]}
    text = write(builder.write()).with_name("report.md").read_text(encoding="utf8")
    assert "| base | optimizer.lr=0.002 |" in text and "| base | optimizer.lr=0.001 | 12.25 | done |" in text
    assert "Nothing was tuned" not in text


# Operations of real runs


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> tuple[StudyBuilder, TrainConfig]:
    """A study of one cell that really ran: 12 updates of the tiny experiment."""
    folder = tmp_path_factory.mktemp("real")
    builder = StudyBuilder(folder / "study", folder / "unused", {"base": None})
    config = dataclasses.replace(tiny_experiment(folder), seed=3)
    run = train(config, builder.cell("base", 3))
    source = construct(SOURCES, config.data, {}, "data")
    write_json(run.path / "provenance.json", provenance(3, source.hashes()))
    finish(config, run, source)
    write_config(run, plain(config))
    builder.write()
    return builder, config


@pytest.mark.filterwarnings("ignore:TF32 acceleration")  # of a GPU that is not there
def test_flops_of_a_cell_are_torchs_count_of_its_updates(real: tuple[StudyBuilder, TrainConfig]) -> None:
    builder, config = real
    (cell,) = load(builder.folder).cells
    material = prepare(config)
    # attention in its plain steps: torch's counter takes the processor's kernel for nothing
    for module in material.model.modules():
        if hasattr(module, "backend"):
            module.backend = "reference"
    # and no oneDNN, for which rows are filled up
    without_onednn = torch.backends.mkldnn.flags(enabled=False)
    with without_onednn, torch.utils.flop_counter.FlopCounterMode(display=False) as counter:
        for share in UpdateStream(material.run_plan, 0, rank=0, world_size=1):
            for batch in share.micro_batches:
                memory = material.model.encode(batch.src, batch.src_mask)
                states = material.model.decode(batch.tgt_in, memory, batch.src_mask)
                material.model.nll(states, batch.tgt_out, 0.1)[0].backward()
    assert cell_flops(cell) == counter.get_total_flops() > 0


def test_flops_are_counted_once_for_each_address(
    real: tuple[StudyBuilder, TrainConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    builder, _ = real
    page = write(builder.folder)
    counted = json.loads((builder.folder / "flops.json").read_text(encoding="utf8"))
    (cell,) = load(builder.folder).cells
    assert counted == {cell.address: cell_flops(cell)}
    monkeypatch.setattr(fairness, "cell_flops", lambda cell: pytest.fail("counted again"))
    results = load(builder.folder)
    assert costs(results)["base"].flops == counted[cell.address]
    assert f"{counted[cell.address]:.3e}" in page.read_text(encoding="utf8")


@pytest.mark.parametrize("file", ["flops.json", "provenance.json"])
def test_files_about_flops_that_cannot_be_read_cost_no_report(
    real: tuple[StudyBuilder, TrainConfig], file: str
) -> None:
    builder, _ = real
    (cell,) = load(builder.folder).cells
    (builder.folder / "flops.json").unlink(missing_ok=True)
    path = (builder.folder if file == "flops.json" else cell.folder) / file
    before = path.read_bytes() if path.exists() else None
    path.unlink() if file == "provenance.json" else path.write_text("{")
    found = costs(load(builder.folder))["base"]
    if before is not None:
        path.write_bytes(before)
    assert (found.flops is None) == (file == "provenance.json")


def test_flops_of_data_that_has_changed_are_not_told(real: tuple[StudyBuilder, TrainConfig]) -> None:
    builder, _ = real
    (cell,) = load(builder.folder).cells
    path = cell.folder / "provenance.json"
    origin = path.read_text(encoding="utf8")
    path.write_text(json.dumps({"data": {"train.x": "0" * 64}}), encoding="utf8")
    (builder.folder / "flops.json").unlink(missing_ok=True)
    found = costs(load(builder.folder))["base"]
    path.write_text(origin, encoding="utf8")
    assert found.flops is None and found.note.endswith("is not any more what it was trained on")


# The two forms


def test_blocks_in_html_and_markdown() -> None:
    table = Table(("name", "a|b"), [("x", "1 < 2"), ("y", "")])
    page = Document(
        "T", "about", "answer", [Section("S", [Text("a_b"), table, Figure(b"1", b"2", 'say "x"')])]
    )
    text = as_html(page)
    assert '<td class="number" data-head="a|b">1 &lt; 2</td>' in text and '<td class="empty"></td>' in text
    assert 'alt="say &quot;x&quot;"' in text and 'srcset="data:image/png;base64,Mg=="' in text
    assert as_markdown(page) == (
        "# T\n\nabout\n\n**answer**\n\n## S\n\na\\_b\n\n"
        "| name | a\\|b |\n| --- | ---: |\n| x | 1 \\< 2 |\n| y |  |\n"
    )


@pytest.mark.parametrize(
    ("cells", "style"),
    [
        (("−1.25", "+0.50", "", "< 0.001", "–"), "number"),
        (("−10.34 to −2.75", "3 of 3", "77.67 ± 2.01"), "number"),
        (("71.12, 74.84, 68.53, 70.01",), "long"),
        (("0.5", "not counted"), "text"),
        (("learned",), "text"),
        (("",), "number"),
    ],
)
def test_columns_of_numbers_stand_right_and_of_words_left(cells: tuple[str, ...], style: str) -> None:
    assert Column.of(cells).style == style


def test_tables_scroll_in_boxes_and_on_a_phone_those_of_long_cells_are_lists() -> None:
    short = Table(("variant", "0-5", "6-10"), [("d_k=8", "40.7", "20 %")])
    long = Table(("variant", "finding"), [("base", "not found in time")])
    page = Document("T", "", "95 % sure", [Section("S", [short, long])])
    text = as_html(page)
    assert text.count('<div class="wide" tabindex="0"><table class="') == 2
    assert '<table class="short">' in text and '<table class="list">' in text
    assert '<th scope="row">d_<wbr>k=<wbr>8</th>' in text
    assert "95\N{NO-BREAK SPACE}% sure" in text and "20\N{NO-BREAK SPACE}%</td>" in text
    assert "| variant | finding |\n| --- | --- |" in as_markdown(page)


def test_a_section_of_pictures_alone_is_left_out_of_markdown() -> None:
    page = Document("T", "", "answer", [Section("S", [Figure(b"1", b"2", "")])])
    assert as_markdown(page) == "# T\n\n**answer**\n"
