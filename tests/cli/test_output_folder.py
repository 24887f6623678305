"""Names of folders."""

import hashlib
from pathlib import Path

from minitrans.cli.checkpoints import System, names
from minitrans.cli.output_folder import differing, plain_name
from minitrans.config import SearchConfig


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
