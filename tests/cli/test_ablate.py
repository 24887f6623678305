"""The command for studies: what it refuses, what it hands on, and whole studies in processes of their own."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from minitrans.ablation.study import Budget, Study, read_study, shipped
from minitrans.cli.ablate import ablate_main, asked_study, compose_words, words_for_the_base
from minitrans.cli.compose import compose
from minitrans.cli.help import _EXAMPLES
from minitrans.config import AblateConfig
from minitrans.errors import UserError

CHECKOUT = Path(__file__).resolve().parents[2]
ENGLISH = ("a dog runs .", "two cats sleep .", "she reads .", "we sing loudly today .")
GERMAN = ("ein Hund rennt .", "zwei Katzen schlafen .", "sie liest .", "wir singen heute laut .")
SMALL = (
    "model.num_encoder_layers=1", "model.num_decoder_layers=1", "model.d_model=16", "model.num_heads=2",
    "model.d_ff=32", "tokenizer.kind=word", "tokenizer.vocab_size=60", "search.max_length=12", "trainer=cpu",
)  # fmt: skip


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], f"type study=NAME, or variants='[\"KEY=VALUE ...\"]'; the studies are {', '.join(shipped())}"),
        (["study=postions"], 'study cannot be "postions"; did you mean "positions"?'),
        (["study=heads", "modle=tiny"], 'ablate has no key "modle"; did you mean "model"?'),
        (
            ["variants=[modle.d_k=8]"],
            'study variants, "modle.d_k=8": train has no key "modle.d_k"; did you mean "model.d_k"?',
        ),
        (
            ["variants=[attention=unscale]"],
            'study variants, "attention=unscale": attention cannot be "unscale"; did you mean "unscaled"?',
        ),
        (
            ["study=heads", "study.variants={}"],
            "study.variants cannot be given to ablate: type variants=..., or write a file for study_file=",
        ),
        (["study=heads", "seed=3"], "seed cannot be given to ablate: type seeds=[1,2,3]"),
        (
            ["study=heads", "run_dir=here"],
            "run_dir cannot be given to ablate: each cell has its own below study_dir",
        ),
        (["study=heads", "metric=blue"], 'metric cannot be "blue"; did you mean "bleu"?'),
        (["study=heads", "seeds=[1,1]"], "study heads: the seed 1 is there twice; leave one out"),
        (
            ["study=heads", "budget.tokens=2e6", "training.max_updates=20"],
            'study heads, "base": training.max_updates=20 and budget.tokens both say when a cell ends; '
            "leave one of them out",
        ),
        (
            ["study=heads", "budget.tokens=2e6", "budget.flops=2e12"],
            "the configuration: budget.tokens and budget.flops are two budgets; leave one out",
        ),
        (["study=heads", "budget.tokens=0"], "the configuration: budget.tokens is 0.0, but must be above 0"),
        (["study=heads", "jobs=0"], "the configuration: jobs is 0, but must be at least 1"),
        (
            ["study=heads", "cluster=slrum"],
            'the configuration: cluster cannot be "slrum"; did you mean "slurm"?',
        ),
    ],
)
def test_a_mistake_is_one_sentence_before_anything_runs(
    words: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert ablate_main(words) == 2
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", f"error: {sentence}\n")
    assert list(tmp_path.iterdir()) == []


def asked(*words: str) -> Study:
    """The study that these words ask for."""
    composed = compose("ablate", list(words), AblateConfig)
    return asked_study(composed.config, composed.typed.get("study"))


def test_a_study_is_changed_by_what_is_typed() -> None:
    study = asked("study=smoothing", "seeds=[7]", "metric=chrf", "tune=lr")
    assert (study.seeds, study.metric, study.tune) == ((7,), "chrf", "lr")
    assert asked("study=architectures").tune == "lr"
    assert asked("study=architectures", "tune=none").tune is None
    assert asked("study=smoothing").seeds == (1, 2, 3)


def test_a_typed_budget_stands_over_the_files_and_is_what_is_held_equal(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("cross: ['model.d_k=8']\nbudget: {tokens: 2e6}\n")
    mine = f"study_file={tmp_path}/mine.yaml"
    assert (asked(mine).budget, asked(mine).equal) == (Budget("tokens", 2e6), ("tokens",))
    study = asked(mine, "budget.flops=3e15")
    assert (study.budget, study.equal) == (Budget("flops", 3e15), ("flops",))
    assert asked("study=heads", "budget.tokens=2_000_000").equal == ("parameters", "tokens")
    assert words_for_the_base(["study=heads", "budget.tokens=2e6", "model=tiny"]) == ["model=tiny"]


def test_hydra_reads_a_study_as_its_file_is() -> None:
    for name, path in shipped().items():
        assert asked(f"study={name}") == read_study(path)


def test_a_key_of_a_study_can_be_typed() -> None:
    assert asked("study=smoothing", "study.metric=loss", "study.equal=[flops]").equal == ("flops",)


def test_a_study_of_the_users_own_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("cross: ['model.d_k=8,16']\n")
    assert [variant.name for variant in asked(f"study_file={tmp_path}/mine.yaml").variants] == [
        "base",
        "model.d_k=8",
        "model.d_k=16",
    ]
    with pytest.raises(
        UserError, match=r"^study=heads and study_file=.*mine.yaml are two studies; leave one out$"
    ):
        asked("study=heads", f"study_file={tmp_path}/mine.yaml")


def test_any_two_choices_can_be_crossed() -> None:
    words = "variants=['attention=scaled,unscaled model.d_k=8,32', position=rotary]"
    study = asked(words)
    assert [variant.overrides for variant in study.variants] == [
        (),
        ("attention=scaled", "model.d_k=8"),
        ("attention=scaled", "model.d_k=32"),
        ("attention=unscaled", "model.d_k=8"),
        ("attention=unscaled", "model.d_k=32"),
        ("position=rotary",),
    ]


def test_words_of_the_study_stay_out_of_its_cells() -> None:
    words = [
        "study=heads",
        "study.metric=loss",
        "jobs=2",
        "model=tiny",
        "seeds=[1]",
        "training.max_updates=20",
        "threads=1",
    ]
    assert words_for_the_base(words) == ["model=tiny", "training.max_updates=20", "threads=1"]


def test_what_a_cell_states_is_known_for_going_on() -> None:
    config, typed = compose_words(["model=tiny", "optimizer.lr=0.01"])
    assert (config.model.d_model, config.optimizer["lr"]) == (128, 0.01)
    assert typed == {"model": "tiny", "optimizer.lr": 0.01}


def test_help_has_five_examples_that_compose(capsys: pytest.CaptureFixture[str]) -> None:
    assert ablate_main(["--help"]) == 0
    out = capsys.readouterr().out
    assert len(_EXAMPLES["ablate"]) == 5
    for words, about in _EXAMPLES["ablate"]:
        assert words in out and about in out
        assert asked(*shlex.split(words)).variants


# -- whole studies, in processes of their own ------------------------------------------


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of parallel text."""
    folder = tmp_path_factory.mktemp("text")
    for split, times in (("train", 10), ("valid", 1), ("test", 1)):
        for language, lines in (("en", ENGLISH), ("de", GERMAN)):
            (folder / f"{split}.{language}").write_text("".join(f"{line}\n" for line in lines * times))
    return folder


def command(text: Path, *words: str) -> list[str]:
    data = ["data=pairs", "data.src=en", "data.tgt=de"]
    data += [f"data.{split}=[{text}/{split}.en,{text}/{split}.de]" for split in ("train", "valid", "test")]
    return [sys.executable, str(CHECKOUT / "scripts" / "ablate.py"), *data, *SMALL, *words]


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", **more}


def run(text: Path, folder: Path, *words: str, **more: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command(text, *words),
        cwd=folder,
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=300,
    )


def record(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "study.json").read_text()))


FOUR = "variants=[attention=unscaled,model.num_heads=3,model.d_model=15]"


@pytest.mark.slow
def test_a_study_of_four_cells_of_which_two_fail(text: Path, tmp_path: Path) -> None:
    """BR-26, BR-27: two have results, two logs hold their errors; a wandb run a cell, in one group."""
    words = (FOUR, "seeds=[1]", "training.max_updates=2", "study_dir=s", "logger=wandb")
    done = run(text, tmp_path, *words)
    assert (done.returncode, done.stderr) == (
        2,
        "error: 2 of 4 cells failed, each told above with its log; add retry_failed=true to run them again\n",
    )
    cells = record(tmp_path / "s")["cells"]
    assert [cell["state"] for cell in cells] == ["done", "done", "failed", "failed"]
    for cell in cells[:2]:
        folder = tmp_path / "s" / cell["folder"]
        for file in ("result.json", "metrics.csv", "translations/test.txt", "config.yaml", "provenance.json"):
            assert (folder / file).is_file()
        assert len(list((folder / "wandb").glob("offline-run-*"))) == 1
        assert "group: variants" in (folder / "config.yaml").read_text()
    for cell in cells[2:]:
        assert cell["error"] in (tmp_path / "s" / cell["log"]).read_text()
        assert cell["error"] in done.stdout
    assert (tmp_path / "s" / "report.html").is_file()
    again = run(text, tmp_path, *words)
    assert again.returncode == 2
    assert "4 cells; 2 done" in again.stdout
    assert len(list((tmp_path / "s" / "logs").glob("*_log.out"))) == 2


def wait_for(folder: Path, pattern: str, process: "subprocess.Popen[str]") -> None:
    while process.poll() is None and not any(folder.glob(pattern)):
        time.sleep(0.1)
    assert process.poll() is None, process.communicate()


LONG = ("variants=[attention=unscaled]", "seeds=[1]", "training.max_updates=400", "study_dir=s")


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_ctrl_c_stops_a_study_and_the_same_line_goes_on(jobs: int, text: Path, tmp_path: Path) -> None:
    """The terminal's Ctrl-C reaches all processes of its group; a second call ends the study."""
    words = (*LONG, f"jobs={jobs}")
    running = subprocess.Popen(
        command(text, *words), cwd=tmp_path, env=environment(), start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    wait_for(tmp_path, "s/cells/*/metrics.csv", running)
    os.killpg(running.pid, signal.SIGINT)
    _, told = running.communicate(timeout=300)
    assert running.returncode == 130, told
    assert told.startswith("stopped, and what the cells did is saved; go on with the same line: ")
    assert "Traceback" not in told
    assert {cell["state"] for cell in record(tmp_path / "s")["cells"]} == {"waiting"}
    done = run(text, tmp_path, *words)
    assert done.returncode == 0, done
    for cell in record(tmp_path / "s")["cells"]:
        rows = (tmp_path / "s" / cell["folder"] / "metrics.csv").read_text().splitlines()
        updates = [row.split(",")[0] for row in rows if ",train," in row]
        assert updates == [str(update) for update in range(20, 401, 20)]


@pytest.mark.slow
def test_a_killed_runner_is_followed_by_two_that_train_no_cell_twice(text: Path, tmp_path: Path) -> None:
    words = (*LONG, "jobs=2")
    first = subprocess.Popen(
        command(text, *words), cwd=tmp_path, env=environment(),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    wait_for(tmp_path, "s/cells/*/metrics.csv", first)
    first.kill()
    first.wait()
    pair = [
        subprocess.Popen(command(text, *words), cwd=tmp_path, env=environment(), stdout=subprocess.DEVNULL)
        for _ in range(2)
    ]
    assert [process.wait(timeout=300) for process in pair] == [0, 0]
    cells = record(tmp_path / "s")["cells"]
    assert [cell["state"] for cell in cells] == ["done", "done"]
    for cell in cells:
        rows = (tmp_path / "s" / cell["folder"] / "metrics.csv").read_text().splitlines()
        updates = [row.split(",")[0] for row in rows if ",train," in row]
        assert updates == [str(update) for update in range(20, 401, 20)]
    assert len(list((tmp_path / "s" / "logs").glob("*_log.out"))) == 2


SBATCH = """#!{python}
import os, re, sys
script = sys.argv[-1]
lines = open(script).read()
out = re.search("^#SBATCH --output=(.*)$", lines, re.M)[1]
child = os.fork()
if child:
    print(f"Submitted batch job {{child}}")
    sys.exit()
os.setsid()
number = str(os.getpid())
log = os.open(out.replace("%j", number).replace("%t", "0"), os.O_WRONLY | os.O_CREAT)
for stream in (0, 1, 2):  # whoever called waits until nobody holds its pipe
    os.dup2(log, stream)
os.environ.update(SLURM_JOB_ID=number, SLURM_PROCID="0", SLURM_LOCALID="0", SLURM_NODEID="0")
os.execvp("bash", ["bash", "-c", lines.replace("%j", number).replace("%t", "0")])
"""
SRUN = """#!/usr/bin/env bash
while [[ "$1" == -* ]]; do if [[ "$1" == *=* || "$1" == --unbuffered ]]; then shift; else shift 2; fi; done
exec "$@"
"""
SACCT = "#!/usr/bin/env bash\nprintf 'JobID|State|NodeList\\n'\n"


@pytest.mark.slow
def test_a_study_runs_through_slurm_with_one_word(text: Path, tmp_path: Path) -> None:
    """The queue is three small programs: sbatch starts a job at once, srun calls it, sacct knows nothing."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, content in (("sbatch", SBATCH.format(python=sys.executable)), ("srun", SRUN), ("sacct", SACCT)):
        (tools / name).write_text(content)
        (tools / name).chmod(0o755)
    words = ("variants=[attention=unscaled]", "seeds=[1]", "training.max_updates=2", "study_dir=s")
    slurm = ("cluster=slurm", "jobs=2", "slurm_partition=short", "slurm_options=[account=me]")
    done = run(text, tmp_path, *words, *slurm, PATH=f"{tools}:{os.environ['PATH']}")
    assert done.returncode == 0, done
    assert [cell["state"] for cell in record(tmp_path / "s")["cells"]] == ["done", "done"]
    batch = next((tmp_path / "s" / "logs").glob("*_submission.sh")).read_text()
    for line in ("--partition=short", "--account=me", "--cpus-per-task=4", "--time=240"):
        assert f"#SBATCH {line}\n" in batch


def test_without_slurm_its_word_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert ablate_main(["study=masks", "cluster=slurm"]) == 2
    assert capsys.readouterr().err == "error: cluster=slurm, but srun is not found here; use cluster=local\n"
