"""A command as its user meets it: exit status, one sentence, help, sweeps."""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from minitrans.cli.compose import Composed
from minitrans.cli.main import run_main
from minitrans.config import DiagnoseConfig, EvaluateConfig, InspectConfig, TrainConfig, TranslateConfig
from minitrans.errors import UserError

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def script(name: str, *words: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run a script of the checkout from another folder."""
    command = [sys.executable, str(SCRIPTS / f"{name}.py"), *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["modle.d_model=3"], 'error: train has no key "modle.d_model"; did you mean "model.d_model"?\n'),
        (["position=lerned"], 'error: position cannot be "lerned"; did you mean "learned"?\n'),
        (
            ["model.dropout=1"],
            "error: the configuration: model.dropout is 1.0, but must be at least 0 and below 1\n",
        ),
    ],
)
def test_a_mistake_ends_in_one_sentence_and_leaves_nothing(
    words: list[str], sentence: str, tmp_path: Path
) -> None:
    done = script("train", *words, folder=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", sentence)
    assert list(tmp_path.iterdir()) == []


def test_help_is_printed_by_the_script(tmp_path: Path) -> None:
    done = script("train", "--help", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "usage: python scripts/train.py [GROUP=CHOICE ...] [KEY=VALUE ...]\n" in done.stdout
    assert list(tmp_path.iterdir()) == []


def ignore(composed: Composed[TrainConfig]) -> None:
    raise AssertionError("nothing was to be run")


def help_of(
    name: str, schema: type, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> str:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys, "argv", [f"/usr/bin/minitrans-{name.replace('_', '-')}"])
    assert run_main(ignore, name, schema, ["--help"]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "schema"),
    [
        ("train", TrainConfig),
        ("evaluate", EvaluateConfig),
        ("translate", TranslateConfig),
        ("inspect_attention", InspectConfig),
        ("diagnose", DiagnoseConfig),
    ],
)
def test_help_of_every_command_fits_its_width_and_has_five_examples_that_compose(
    name: str, schema: type, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = help_of(name, schema, capsys, monkeypatch)
    body, examples = text.split("\nexamples\n")
    assert max(map(len, body.splitlines())) <= 100
    program = f"minitrans-{name.replace('_', '-')}"
    commands = [line.split()[1:] for line in examples.splitlines() if line.startswith(f"  {program}")]
    assert len(commands) == 5
    for command in commands:
        typed = [word for word in command if "=" in word and not word.startswith(('"', "text", "target"))]
        assert run_main(lambda composed: None, name, schema, typed) == 0


def test_help_names_groups_choices_keys_units_and_defaults(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = help_of("train", TrainConfig, capsys, monkeypatch).splitlines()
    assert (
        "  * small                             3+3 layers, width 256, for minutes on a laptop"
        in "\n".join(lines)
    )
    for key in (
        "  training.save_every=500             updates between checkpoints",
        "  optimizer.lr=0.004                  peak rate under every schedule",
        "  schedule.factor=1.0                 on the peak rate (with schedule=noam)",
        "  model.d_v=null                      width of one head's values (null: d_k)",
    ):
        assert key in lines


def test_the_composed_configuration_can_be_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main(ignore, "train", TrainConfig, ["--cfg", "job", "model=tiny", "logger.group=组"]) == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    assert (printed["model"]["d_model"], printed["logger"]["group"]) == (128, "组")


def fails_with(error: BaseException) -> Callable[[Composed[TrainConfig]], None]:
    def function(composed: Composed[TrainConfig]) -> None:
        raise error

    return function


def test_mistakes_found_later_are_told_alike(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main(fails_with(UserError("line 3 is empty; fill it")), "train", TrainConfig, []) == 2
    assert capsys.readouterr().err == "error: line 3 is empty; fill it\n"


def test_an_interruption_is_told_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main(fails_with(KeyboardInterrupt()), "train", TrainConfig, []) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_a_mistake_of_ours_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        run_main(fails_with(ZeroDivisionError()), "train", TrainConfig, [])


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(SCRIPTS.parent)}


def command_that(tmp_path: Path, work: str) -> list[str]:
    """A command that does this one thing."""
    file = tmp_path / "command.py"
    file.write_text(
        "import os, sys\n"
        "from minitrans.cli.main import run_main\n"
        "from minitrans.config import TranslateConfig\n"
        "from minitrans.console import Console\n"
        f"sys.exit(run_main(lambda composed: {work}, 'translate', TranslateConfig))\n"
    )
    return [sys.executable, str(file)]


@pytest.mark.parametrize("work", ["print('x' * 1_000_000)", "[Console().print('x') for _ in range(3)]"])
def test_a_reader_that_has_gone_is_no_error(tmp_path: Path, work: str) -> None:
    pipe = subprocess.Popen(
        command_that(tmp_path, work),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
        text=True,
    )
    assert pipe.stdout is not None and pipe.stderr is not None
    pipe.stdout.close()
    assert pipe.stderr.read() == ""
    assert pipe.wait(timeout=60) == 141
    pipe.stderr.close()


needs_full_device = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux's /dev/full")


@needs_full_device
@pytest.mark.parametrize(
    "work", ["print('a')", "print('x' * 1_000_000)", "Console().print('a')", "sys.stdout.buffer.write(b'a')"]
)
def test_a_full_disk_under_standard_output_is_told_in_one_sentence(tmp_path: Path, work: str) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command_that(tmp_path, work), stdout=full, stderr=subprocess.PIPE, env=ENVIRONMENT, text=True
        )
    sentence = "error: the output cannot be written: No space left on device; free some space\n"
    assert (done.returncode, done.stderr) == (1, sentence)


@needs_full_device
@pytest.mark.parametrize("words", [["--help"], ["--cfg", "job"]])
def test_a_full_disk_under_help_and_configuration_is_told_too(words: list[str]) -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, str(SCRIPTS / "train.py"), *words]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    sentence = "error: the output cannot be written: No space left on device; free some space\n"
    assert (done.returncode, done.stderr) == (1, sentence)


def test_a_file_that_is_not_there_is_a_mistake_of_ours() -> None:
    with pytest.raises(FileNotFoundError):
        run_main(fails_with(FileNotFoundError(2, "No such file", "x")), "train", TrainConfig, [])


def test_messages_go_nowhere_where_standard_error_is_closed(tmp_path: Path) -> None:
    """Neither among the translations nor into the file that is opened next."""
    other = tmp_path / "other.txt"
    work = f"(print('a'), print('said', file=sys.stderr), open({str(other)!r}, 'w'), os.write(2, b'b'))"
    command = shlex.join(command_that(tmp_path, work)) + " 2>&-"
    done = subprocess.run(command, shell=True, stdout=subprocess.PIPE, env=ENVIRONMENT, text=True)
    assert (done.returncode, done.stdout, other.read_text()) == (0, "a\n", "")


# -- sweeps ----------------------------------------------------------------------------


def test_a_sweep_is_one_folder_with_one_folder_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    seen: list[Composed[TrainConfig]] = []
    words = ["-m", "seed=1,2", "model=tiny,small", "run_dir=a b=c,d", "training.max_updates=3"]
    before = list(sys.argv)
    assert run_main(seen.append, "train", TrainConfig, words) == 0
    sweep = Path(os.getcwd()) / "a b=c,d"
    assert [(c.config.run_dir, c.config.seed, c.config.model.d_model) for c in seen] == [
        (str(sweep / "0"), 1, 128),
        (str(sweep / "1"), 2, 128),
        (str(sweep / "2"), 1, 256),
        (str(sweep / "3"), 2, 256),
    ]
    assert seen[3].typed == {"model": "small", "seed": 2, "training.max_updates": 3}
    assert sorted(file.name for file in sweep.iterdir()) == ["0", "1", "2", "3", "multirun.yaml"]
    assert [list(sweep.joinpath(job).iterdir()) for job in "0123"] == [[], [], [], []]
    assert [file.name for file in tmp_path.iterdir()] == ["a b=c,d"]
    assert sys.argv == before


def test_every_impossible_job_is_told_and_the_others_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    seen: list[Composed[TrainConfig]] = []
    words = ["--multirun", "model.num_heads=3,4,5", "run_dir=sweep"]
    assert run_main(seen.append, "train", TrainConfig, words) == 2
    assert [c.config.model.num_heads for c in seen] == [4]
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
    assert len(errors) == 2
    for error, (job, heads) in zip(errors, [(0, 3), (2, 5)], strict=True):
        assert error.startswith(
            f"error: job {job} of {os.getcwd()}/sweep (model.num_heads={heads}): model.d_model=256 is"
        )


def test_a_sweep_refuses_a_folder_in_use_and_another_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "notes.txt").write_text("mine")
    assert run_main(ignore, "train", TrainConfig, ["-m", "seed=1,2", "run_dir=sweep"]) == 2
    assert run_main(ignore, "evaluate", EvaluateConfig, ["-m", "batch_tokens=1,2"]) == 2
    assert capsys.readouterr().err == (
        f"error: the sweep folder {os.getcwd()}/sweep is not empty; give another run_dir\n"
        "error: --multirun is for train alone; call evaluate once for each checkpoint\n"
    )
    assert [file.name for file in tmp_path.rglob("*")] == ["sweep", "notes.txt"]
