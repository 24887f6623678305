"""metrics.csv row by row, and what the loggers' own files hold, read back."""

import csv
import json
import math
import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from minitrans.cli import train as train_command
from minitrans.config import LoggerConfig, TrainConfig
from minitrans.run import RunFolder
from minitrans.training.log import COLUMNS, MetricsFile, close_loggers, log_row, make_loggers
from tests.training.tiny import changed, train

HEAD = (
    "update,epoch,split,loss,nll,perplexity,bleu,lr,grad_norm,"
    "target_tokens_per_s,padding_fraction,mfu,seconds\n"
)
SENTINEL = "SENTINEL0123456789SENTINEL0123456789SENT"


# metrics.csv


def test_rows_are_written_as_they_come_with_seven_digits(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    file = MetricsFile(path)
    assert path.read_text() == HEAD
    assert HEAD.strip().split(",") == list(COLUMNS)
    file.write(
        {"update": 5, "epoch": 1, "split": "train", "loss": 2.123456789, "lr": 1e-5, "seconds": math.nan}
    )
    file.write({"update": 5, "epoch": 1, "split": "valid", "nll": 3.0, "perplexity": math.inf, "bleu": 41.5})
    rows = "5,1,train,2.123457,,,,1e-05,,,,,nan\n5,1,valid,,3.0,inf,41.5,,,,,,\n"
    assert path.read_text() == HEAD + rows
    file.close()


def test_going_on_cuts_the_rows_after_the_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    rows = [
        f"{update},1,{split},2.5,,,,,,,,,{update}.25\n"
        for update in (2, 4, 6)
        for split in ("train", "valid")
    ]
    path.write_text(HEAD + "".join(rows))
    MetricsFile(path, keep_until=4).write({"update": 5, "epoch": 1, "split": "train"})
    assert path.read_text() == HEAD + "".join(rows[:4]) + "5,1,train,,,,,,,,,,\n"
    assert [name for name in os.listdir(tmp_path)] == ["metrics.csv"]


@pytest.mark.parametrize(
    "cut", ["6", "6,1,train,2.", "6,1,train,2.5,,,,,,,,,", "6,1,train,2.5,,,,,,,,,123.", '6,1,"']
)
def test_a_half_written_last_row_is_dropped(cut: str, tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    whole = HEAD + "2,1,train,2.5,,,,,,,,,1.5\n"
    path.write_text(whole + cut)
    MetricsFile(path, keep_until=100).close()
    assert path.read_text() == whole


@pytest.mark.parametrize("content", ["", "update,epo", HEAD])
def test_a_file_without_rows_starts_anew(content: str, tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text(content)
    MetricsFile(tmp_path / "metrics.csv", keep_until=3).close()
    assert (tmp_path / "metrics.csv").read_text() == HEAD


def test_rows_of_a_file_with_fewer_columns_stay(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text(HEAD.replace("mfu,", "") + "2,1,train,2.5,,,,,,,0.1,1.5\n")
    MetricsFile(path, keep_until=2).close()
    assert path.read_text() == HEAD + "2,1,train,2.5,,,,,,,0.1,,1.5\n"


# TensorBoard


def test_the_tensorboard_file_holds_every_row_at_its_update(tiny: TrainConfig, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = changed(
        tiny, {"logger.kind": "tensorboard", "training.max_updates": 4, "training.validate_every": 2}
    )
    folder = train(config, tmp_path / "run")
    events = EventAccumulator(str(folder.path / "tensorboard"))
    events.Reload()
    with folder.metrics.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for split, column, updates in (
        ("train", "loss", [1, 2, 3, 4]),
        ("valid", "bleu", [2, 4]),
        ("train", "lr", [1, 2, 3, 4]),
    ):
        logged = events.Scalars(f"{split}/{column}")
        assert [event.step for event in logged] == updates
        written = [float(row[column]) for row in rows if row["split"] == split]
        assert [event.value for event in logged] == pytest.approx(written, rel=1e-6)
    assert not any("bleu" in tag and tag.startswith("train") for tag in events.Tags()["scalars"])


def test_no_logger_is_made_for_csv(tmp_path: Path) -> None:
    assert make_loggers(LoggerConfig(), RunFolder.of(tmp_path), {}) == []


# Weights & Biases. Its file is a log of protocol buffers in blocks of 32 KiB, as LevelDB writes them.


def wandb_records(path: Path) -> Iterator[Any]:
    """The records of a .wandb file."""
    from wandb.proto import wandb_internal_pb2

    data = path.read_bytes()
    assert data[:4] in (b"", b":W&B")
    position, parts = 7, b""
    while position + 7 <= len(data):
        if 32768 - position % 32768 < 7:  # the rest of a block that is too short for a header
            position += 32768 - position % 32768
            continue
        _, length, kind = struct.unpack("<IHB", data[position : position + 7])
        parts += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            parts = b""
            yield record


def whole_run(path: Path) -> list[Any]:
    """The records of a run that was closed: wandb's own process writes them, and may still be at it."""
    end = time.monotonic() + 60
    while True:
        records = list(wandb_records(path))
        if (records and records[-1].WhichOneof("record_type") == "exit") or time.monotonic() > end:
            return records
        time.sleep(0.1)


def wandb_history(records: list[Any]) -> list[dict[str, Any]]:
    """What was logged, in order."""
    return [
        {".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
        for record in records
        if record.WhichOneof("record_type") == "history"
    ]


def wandb_config(records: list[Any]) -> dict[str, Any]:
    """The configuration as it was updated in the end."""
    config: dict[str, Any] = {}
    for record in records:
        kind = record.WhichOneof("record_type")
        update = (
            record.run.config.update if kind == "run" else record.config.update if kind == "config" else ()
        )
        config |= {".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in update}
    return config


def offline_runs(folder: Path) -> list[Path]:
    return sorted(folder.rglob("offline-run-*"))


@pytest.mark.slow
def test_wandb_works_offline_without_an_account_and_keeps_no_key(tiny: TrainConfig, tmp_path: Path) -> None:
    """BR-28, and the offline file read back."""
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    root = Path(train_command.__file__).parents[2]
    words = [
        "data=pairs",
        *(f"data.{split}=[{','.join(tiny.data[split])}]" for split in ("train", "valid", "test")),
        "data.src=x", "data.tgt=y", "tokenizer.kind=word", "tokenizer.vocab_size=12",
        "model.num_encoder_layers=1", "model.num_decoder_layers=1", "model.d_model=16", "model.num_heads=2",
        "model.d_ff=32", "trainer=cpu", "training.max_updates=2", "training.log_every=1",
        "training.validate_every=1", "search.max_length=10", "optimizer.lr=0.0125", "logger=wandb",
        "run_dir=run",
    ]  # fmt: skip
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "MINITRANS_CACHE": str(work / "cache"),
        "OMP_NUM_THREADS": "1",
        "WANDB_API_KEY": SENTINEL,
        **{name: "http://127.0.0.1:9" for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")},
    }
    done = subprocess.run(
        [sys.executable, str(root / "scripts" / "train.py"), *words],
        cwd=work, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert SENTINEL not in done.stdout + done.stderr
    for path in tmp_path.rglob("*"):
        assert SENTINEL not in path.name
        assert not path.is_file() or SENTINEL.encode() not in path.read_bytes(), path
    (offline,) = offline_runs(tmp_path)
    assert offline.is_relative_to(work / "run")
    (log,) = offline.glob("*.wandb")
    records = whole_run(log)
    config = wandb_config(records)
    assert config["optimizer"]["lr"] == 0.0125
    assert config["training"]["max_updates"] == 2
    history = wandb_history(records)
    assert_holds_the_rows(history, work / "run" / "metrics.csv")
    assert_holds_translations_and_picture(history, offline, Path(tiny.data["valid"][0]))


def assert_holds_the_rows(history: list[dict[str, Any]], metrics: Path) -> None:
    with metrics.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for split, column in (("train", "loss"), ("train", "lr"), ("valid", "nll"), ("valid", "bleu")):
        logged = [
            (item["trainer/global_step"], item[f"{split}/{column}"])
            for item in history
            if f"{split}/{column}" in item
        ]
        written = [(int(row["update"]), float(row[column])) for row in rows if row["split"] == split]
        assert [step for step, _ in logged] == [1, 2]
        assert logged == [(step, pytest.approx(value, rel=1e-6)) for step, value in written]


def assert_holds_translations_and_picture(
    history: list[dict[str, Any]], offline: Path, sources: Path
) -> None:
    tables = [item for item in history if "translations.path" in item]
    pictures = [item for item in history if "attention.filenames" in item]
    assert [item["trainer/global_step"] for item in tables] == [1, 2]
    assert [item["trainer/global_step"] for item in pictures] == [1, 2]
    table = json.loads((offline / "files" / tables[0]["translations.path"]).read_text())
    assert table["columns"] == ["source", "reference", "translation"]
    assert [row[0] for row in table["data"]] == sources.read_text().splitlines()
    (image,) = pictures[0]["attention.filenames"]
    assert (offline / "files" / image).read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


@pytest.mark.slow
def test_two_runs_of_one_process_are_two_offline_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BR-27: each holds its own configuration and steps."""
    monkeypatch.setenv("WANDB_SILENT", "true")
    for rate in (0.1, 0.2):
        folder = RunFolder.of(tmp_path / f"rate{rate}")
        folder.path.mkdir()
        loggers = make_loggers(LoggerConfig(kind="wandb"), folder, {"optimizer": {"lr": rate}})
        log_row(loggers, {"update": 7, "epoch": 1, "split": "train", "loss": rate})
        close_loggers(loggers)
    for rate in (0.1, 0.2):
        (offline,) = offline_runs(tmp_path / f"rate{rate}")
        records = whole_run(next(offline.glob("*.wandb")))
        assert wandb_config(records)["optimizer"] == {"lr": rate}
        assert [item["train/loss"] for item in wandb_history(records) if "train/loss" in item] == [rate]
