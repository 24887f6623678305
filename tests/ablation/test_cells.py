"""Cells: what their address is made of, how they are called, and what the seeds of two variants share."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from minitrans.ablation.cells import Cell, CellMaker, address, code_hash, last_of_each_key
from minitrans.ablation.study import Variant
from minitrans.build import build_model
from minitrans.config import TrainConfig
from minitrans.training.prepare import Material, prepare
from tests.ablation.cases import FOUR, composer, maker_of, study_of
from tests.training.tiny import changed, tiny_experiment


def address_of(config: TrainConfig, code: str = "code") -> str:
    maker = CellMaker(study_of(Variant("base")), (), lambda words: (config, {}), code)
    return maker.cell(Variant("base"), config.seed).address


@pytest.mark.parametrize(
    "changes",
    [
        {"run_dir": "elsewhere"},
        {"threads": 7},
        {"resume": "auto"},
        {"logger.kind": "tensorboard"},
        {"trainer.devices": 3},
        {"trainer.accelerator": "auto"},
    ],
)
def test_where_a_cell_runs_is_no_part_of_its_address(changes: dict[str, Any], tiny: TrainConfig) -> None:
    assert address_of(changed(tiny, changes)) == address_of(tiny)


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 2},
        {"optimizer.lr": 0.02},
        {"attention.scale": 1.0},
        {"training.max_updates": 13},
        {"search.beam_size": 2},
        {"trainer.precision": "bf16"},
        {"tokenizer.vocab_size": 11},
    ],
)
def test_what_decides_the_result_is_part_of_it(changes: dict[str, Any], tiny: TrainConfig) -> None:
    assert address_of(changed(tiny, changes)) != address_of(tiny)


def test_data_count_by_their_content(tiny: TrainConfig, tmp_path: Path) -> None:
    (tmp_path / "moved").mkdir()
    moved = tiny_experiment(tmp_path / "moved")
    assert moved.data["train"] != tiny.data["train"]
    assert address_of(moved) == address_of(tiny)
    with Path(moved.data["test"][0]).open("a") as file:
        file.write("eins\n")
    with Path(moved.data["test"][1]).open("a") as file:
        file.write("eins\n")
    assert address_of(moved) != address_of(tiny)


def test_the_code_is_part_of_the_address(tiny: TrainConfig) -> None:
    assert address_of(tiny, "other code") != address_of(tiny)
    assert re.fullmatch("[0-9a-f]{12}", address(tiny, [], "code"))


def test_the_code_is_the_package_without_what_runs_and_reports_studies(tmp_path: Path) -> None:
    for folder in ("model", "ablation", "cli"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "part.py").write_text("x = 1\n")
    (tmp_path / "config.py").write_text("y = 1\n")
    before = code_hash(tmp_path)
    (tmp_path / "ablation" / "part.py").write_text("x = 2\n")
    (tmp_path / "cli" / "part.py").write_text("x = 2\n")
    (tmp_path / "README.md").write_text("words")
    assert code_hash(tmp_path) == before
    for file in ("model/part.py", "config.py"):
        (tmp_path / file).write_text("z = 2\n")
        assert code_hash(tmp_path) != before
        before = code_hash(tmp_path)


def test_cells_come_seed_by_seed_and_can_be_made_again_by_hand(tiny: TrainConfig) -> None:
    study = replace(study_of(*FOUR[:2], seeds=(3, 1)), base=("model.d_ff=64", "model.d_k=4"))
    cells = CellMaker(study, ["model.d_ff=48"], composer(tiny), "code").cells({"d8": "optimizer.lr=0.5"})
    assert [(cell.variant, cell.seed) for cell in cells] == [("base", 3), ("d8", 3), ("base", 1), ("d8", 1)]
    last = cells[-1]
    assert last.command == ("python scripts/train.py model.d_ff=48 model.d_k=8 optimizer.lr=0.5 seed=1")
    assert last.config is not None
    assert (last.config.seed, last.config.model.d_ff, last.config.model.d_k) == (1, 48, 8)
    assert last.config.optimizer["lr"] == 0.5
    assert last.typed["seed"] == 1


def test_settings_that_contradict_each_other_make_a_cell_that_says_so(tiny: TrainConfig) -> None:
    study = study_of(*FOUR, seeds=(1, 2))
    cells = [cell for cell in maker_of(study, tiny).cells({}) if cell.variant == "three heads"]
    assert [cell.config for cell in cells] == [None, None]
    assert cells[0].address != cells[1].address
    assert cells[0].error == (
        "model.d_model=16 is not a multiple of model.num_heads=3; change one of them or give model.d_k"
    )


def test_a_folder_is_called_by_variant_seed_and_address() -> None:
    cell = Cell("attention=unscaled position=none/ä", 2, (), None, {}, "0123456789ab")
    assert cell.folder_name == "attention=unscaled_position=none-seed2-0123456789ab"


def test_the_last_word_of_a_key_counts() -> None:
    assert last_of_each_key(["a=1", "b=2", "a=3"]) == ("a=3", "b=2")


def order(material: Material) -> list[list[list[int]]]:
    """The sentences of each chunk of each update of the first epoch."""
    return [[chunk.tolist() for chunk in update.chunks] for update in material.run_plan.first_epoch]


@pytest.mark.parametrize("other", [{"attention.scale": 1.0}, {"position.kind": "rotary"}, {"model.d_k": 4}])
def test_one_seed_gives_two_variants_one_beginning_and_one_order(
    other: dict[str, Any], tiny: TrainConfig
) -> None:
    """Paired seeds: the same updates of the same sentences, and equal weights wherever shapes agree."""
    one, two = prepare(tiny), prepare(changed(tiny, other))
    assert order(one) == order(two)
    weights = two.model.state_dict()
    alike = {
        name: tensor
        for name, tensor in one.model.state_dict().items()
        if name in weights and weights[name].shape == tensor.shape
    }
    assert len(alike) > 10
    assert all(torch.equal(tensor, weights[name]) for name, tensor in alike.items())


def test_another_seed_is_another_beginning(tiny: TrainConfig) -> None:
    """The pair of the test above: it would fail if nothing depended on the seed."""
    one, two = (build_model(changed(tiny, {"seed": seed}), 12, 12) for seed in (1, 2))
    assert not torch.equal(one.encoder.embedding.weight, two.encoder.embedding.weight)
