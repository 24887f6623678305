"""The run folder: never overwritten, held by one process, readable by shells, and free of secrets."""

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from minitrans import run
from minitrans.cli.compose import compose
from minitrans.config import TrainConfig, parse, plain
from minitrans.errors import UserError
from minitrans.run import RunFolder

SENTINEL = "SENTINEL0123456789SENTINEL0123456789SENT"


# Names


def test_step_files_sort_by_number_however_many_digits(tmp_path: Path) -> None:
    folder = run.open_or_create(RunFolder.of(tmp_path))
    assert folder.step(20) == tmp_path / "checkpoints" / "step-000020.ckpt"
    for update in (1_000_000, 999_999, 20):
        folder.step(update).touch()
    (folder.checkpoints / "last.ckpt").touch()
    (folder.checkpoints / ".step-000030.ckpt.17.partial").touch()
    assert [path.stem for path in folder.steps()] == ["step-000020", "step-999999", "step-1000000"]


def test_a_default_name_is_plain_whatever_the_words() -> None:
    name = run.default_name("my exp=1, [x]", "源-zür ich", "", "-", "3x256", "seed1")
    assert re.fullmatch(r"\d{8}-\d{6}-my_exp_1_x-z_r_ich-3x256-seed1", name)


def test_default_folders_are_unique(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "default_name", lambda *words: "20260101-000000-" + "-".join(words))
    folders = [run.create("", "en-de", "seed1").path for _ in range(3)]
    assert [folder.name for folder in folders] == [
        "20260101-000000-en-de-seed1",
        "20260101-000000-en-de-seed1-2",
        "20260101-000000-en-de-seed1-3",
    ]
    assert {folder.parent for folder in folders} == {tmp_path / "runs"}


# Never overwritten


def test_a_used_folder_is_refused_and_the_way_on_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a run, 2=犬"
    folder = run.create(str(path))
    assert folder.checkpoints.is_dir()
    (path / "config.yaml").write_text("seed: 1\n")
    with pytest.raises(UserError, match=re.escape(f"use; go on with run_dir={path} resume=auto, or give")):
        run.create(str(path))
    folder.step(5).write_bytes(b"")
    with pytest.raises(UserError, match=re.escape(f"{path} is already in use; go on with resume={path}, or")):
        run.create(str(path))
    assert (path / "config.yaml").read_text() == "seed: 1\n"


def test_an_empty_folder_and_one_with_a_lock_alone_are_new(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    assert run.create(str(tmp_path)).path == tmp_path


def test_a_file_and_a_place_that_cannot_be_made_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"run_dir=.*/file is a file; give the path of a folder"):
        run.create(str(tmp_path / "file"))
    with pytest.raises(
        UserError, match=r"run folder .*/file/inside cannot be made: .*; give another run_dir"
    ):
        run.create(str(tmp_path / "file" / "inside"))


def test_a_folder_held_by_another_process_is_refused_until_it_ends(tmp_path: Path) -> None:
    hold = (
        "import sys; from minitrans import run\n"
        f"with run.locked(run.RunFolder.of({str(tmp_path)!r})): print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        cwd=Path(run.__file__).parent.parent,
    )  # fmt: skip
    assert holder.stdin is not None and holder.stdout is not None
    try:
        assert holder.stdout.readline() == "held\n"
        with (
            pytest.raises(UserError, match=f"run folder {tmp_path} is in use by another process"),
            run.locked(RunFolder.of(tmp_path)),
        ):
            pytest.fail("two processes hold one folder")
    finally:
        holder.stdin.close()
        assert holder.wait(60) == 0
    with run.locked(RunFolder.of(tmp_path)):
        assert (tmp_path / ".lock").exists()


# Records


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        (f"api_key={SENTINEL}", "api_key=…"),
        (f"WANDB_API_KEY={SENTINEL}", "WANDB_API_KEY=…"),
        (f"++logger.token={SENTINEL} and {SENTINEL}", "++logger.token=…"),
        (f"Password={SENTINEL}\n{SENTINEL}", "Password=…"),
        (f"a.secret='{SENTINEL}'", "a.secret=…"),
        ("training.update_tokens=4096", "training.update_tokens=4096"),
        ("tokenizer.kind=bpe", "tokenizer.kind=bpe"),
    ],
)
def test_the_record_of_a_command_holds_no_secret(
    word: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", SENTINEL)
    monkeypatch.setattr(sys, "argv", ["train.py", word, "seed=3"])
    record = run.provenance(3, {"train.en": "ab12"})
    assert record["command"] == ["train.py", shown, "seed=3"]
    assert SENTINEL not in json.dumps(record)
    assert record["seed"] == 3
    assert record["data"] == {"train.en": "ab12"}
    assert set(record["packages"]) >= {"torch", "lightning", "tokenizers", "sacrebleu"}


def test_the_commit_is_that_of_the_checkout_or_unknown() -> None:
    commit = run.provenance(1, {})["commit"]
    assert commit is None or re.fullmatch(r"[0-9a-f]{40}(-modified)?", commit)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["model=tiny", "position=learned", "schedule=noam", "optimizer=adam", "logger=wandb", "trainer=cpu"],
        ["optimizer.lr=1e-05", "training.clip_norm=null", "training.patience=3", "training.ema_decay=0.999"],
        ["data=pairs", "data.train=[a=b 犬.x,c.y]", "data.valid=v.tsv", "data.tgt=no", "data.src=de"],
    ],
)
def test_the_configuration_comes_back_from_its_file(words: list[str], tmp_path: Path) -> None:
    config = compose("train", words, TrainConfig).config
    run.write_config(RunFolder.of(tmp_path), plain(config))
    text = (tmp_path / "config.yaml").read_text(encoding="utf8")
    assert "${" not in text
    assert parse(TrainConfig, yaml.safe_load(text)) == config


def test_numbers_and_words_that_yaml_reads_otherwise_come_back(tmp_path: Path) -> None:
    config = dataclasses.replace(
        TrainConfig(),
        run_dir="2016",
        optimizer={"kind": "adamw", "lr": 1e-5, "eps": 1e-9},
        data={"kind": "text", "src": "no", "tgt": "on", "root": "1e-4"},
    )
    run.write_config(RunFolder.of(tmp_path), plain(config))
    assert parse(TrainConfig, yaml.safe_load((tmp_path / "config.yaml").read_text())) == config


def test_lines_and_json_are_written_as_they_are(tmp_path: Path) -> None:
    run.write_lines(tmp_path / "new" / "test.txt", ["a\u2028b", "", "犬"])
    assert (tmp_path / "new" / "test.txt").read_bytes() == "a\u2028b\n\n犬\n".encode()
    run.write_json(tmp_path / "result.json", {"name": "犬", "bleu": 41.5})
    assert (tmp_path / "result.json").read_text(encoding="utf8") == '{\n  "name": "犬",\n  "bleu": 41.5\n}\n'
