"""Names of folders, and which of them results go to."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from minitrans.cli.checkpoints import System, names, systems
from minitrans.cli.output_folder import EVALUATION, choose, differing, plain_name, texts_name
from minitrans.config import SearchConfig
from minitrans.errors import UserError


def test_names_hold_no_awkward_characters() -> None:
    digest = hashlib.sha256("test a=b,c-最 best-beam5".encode()).hexdigest()[:8]
    assert plain_name("test a=b,c-最 best-beam5") == f"test_a_b_c-_best-beam5-{digest}"


def test_a_name_of_ascii_is_kept_but_for_signs_and_spaces() -> None:
    assert plain_name("test-best-beam5_alpha0.5") == "test-best-beam5_alpha0.5"
    assert plain_name("my run/best") == "my_run_best"


def test_names_in_other_scripts_stay_apart() -> None:
    assert len({plain_name(name) for name in ("中文/best", "日本/best", "/best")}) == 3


def test_long_names_are_cut_and_stay_apart() -> None:
    first, second = plain_name("x" * 200), plain_name("x" * 201)
    assert first != second
    assert len(first) == len(second) == 129


def test_a_name_says_which_settings_are_not_the_checkpoints() -> None:
    own = SearchConfig(beam_size=4, alpha=0.5)
    assert differing(own, own) == "beam4"
    assert differing(own, SearchConfig(beam_size=5, alpha=0.5)) == "beam5"
    assert differing(own, SearchConfig(beam_size=4, alpha=1.0, max_length=9)) == "beam4-alpha1.0-max_length9"


def test_checkpoints_are_named_by_run_and_by_path_where_that_is_not_enough() -> None:
    first, second = Path("/x/a/checkpoints/best.ckpt"), Path("/y/a/checkpoints/best.ckpt")
    loose = Path("/z/loose.ckpt")
    assert names([System((first,))]) == ["a/best"]
    found = [System((path,)) for path in (first, loose, second)]
    assert names(found) == [str(first), "z/loose", str(second)]
    assert names([*found[:2], System((first, loose))]) == ["a/best", "z/loose", "a/ensemble2-best"]


def test_texts_that_differ_in_lost_signs_alone_stay_apart() -> None:
    assert texts_name("a dog runs", "ein Hund") == "a_dog_runs-ein_Hund"
    digest = hashlib.sha256(b'["A dog runs!"]').hexdigest()[:8]
    assert texts_name("A dog runs!") == f"A_dog_runs_-{digest}"
    alike = [("A dog runs?",), ("a b",), ("a_b",), ("a  b",), ("a-b", "c"), ("a", "b-c"), ("a", "b", "c")]
    assert len({texts_name(*texts) for texts in [("A dog runs!",), *alike]}) == 8
    assert len(texts_name("x!" * 100)) == 129


FACTS = {"checkpoint_sha256": "aa", "split": "test", "precision": "fp32"}


@pytest.mark.parametrize(
    ("now", "name"),
    [
        ({}, "own"),
        ({"checkpoint_sha256": "bb"}, "own-update7"),
        ({"checkpoint_sha256": "bb", "split": "valid"}, "own-update7"),
    ],
)
def test_another_state_of_the_checkpoint_has_another_folder(
    tmp_path: Path, now: dict[str, Any], name: str
) -> None:
    write_record(tmp_path / "evaluation" / "own", FACTS)
    assert choose(EVALUATION, "", tmp_path, "own", 7, {**FACTS, **now}) == tmp_path / "evaluation" / name


def write_record(folder: Path, facts: dict[str, Any]) -> None:
    folder.mkdir(parents=True)
    (folder / "scores.json").write_text(json.dumps(facts), encoding="utf-8")


def test_the_folder_of_another_state_serves_no_other_conflict(tmp_path: Path) -> None:
    own = tmp_path / "evaluation" / "own"
    write_record(own, FACTS)
    with pytest.raises(UserError, match=r"/own holds another evaluation \(split is test there, valid here\)"):
        choose(EVALUATION, "", tmp_path, "own", 7, {**FACTS, "split": "valid"})
    write_record(own.with_name("own-update7"), {**FACTS, "checkpoint_sha256": "bb"})
    with pytest.raises(UserError, match=r"/own-update7 holds another evaluation \(of another checkpoint\)"):
        choose(EVALUATION, "", tmp_path, "own", 7, {**FACTS, "checkpoint_sha256": "cc"})


@pytest.mark.parametrize("content", ["{}", "[]", "no JSON"])
def test_files_of_others_are_not_another_state(tmp_path: Path, content: str) -> None:
    write_record(tmp_path / "evaluation" / "own", FACTS)
    (tmp_path / "evaluation" / "own" / "scores.json").write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match="/own holds"):
        choose(EVALUATION, "", tmp_path, "own", 7, FACTS)


def test_a_record_without_a_precision_is_of_fp32(tmp_path: Path) -> None:
    own = tmp_path / "evaluation" / "own"
    write_record(own, {key: value for key, value in FACTS.items() if key != "precision"})
    assert choose(EVALUATION, "", tmp_path, "own", 7, FACTS) == own
    with pytest.raises(UserError, match="precision is fp32 there, bf16 here"):
        choose(EVALUATION, "", tmp_path, "own", 7, {**FACTS, "precision": "bf16"})


def test_a_checkpoint_by_two_paths_is_one(tmp_path: Path) -> None:
    runs = [tmp_path / name for name in ("a", "b")]
    for run in runs:
        (run / "checkpoints").mkdir(parents=True)
        (run / "checkpoints" / "best.ckpt").touch()
    (tmp_path / "link").symlink_to(runs[0])
    link, first, second = (str(path) for path in (tmp_path / "link", *runs))
    assert names(systems([link, first, second, first])) == ["link/best", "b/best"]
    assert systems([link, second, first], average=2)[0].given == (tmp_path / "link",)
    (linked,), (own,), (other,) = systems(link), systems(first), systems(second)
    assert linked.same_as(own)
    assert not linked.same_as(other)
    assert not linked.same_as(System(own.given, average=2))
