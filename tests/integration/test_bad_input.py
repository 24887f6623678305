"""Bad input: each command stops before any work, says one sentence, and leaves nothing behind."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from filelock import FileLock

from minitrans import checkpoint
from tests.integration.commands import (
    ENGLISH,
    GERMAN,
    SMALL,
    Done,
    ForkServer,
    data_words,
    script,
    snapshot,
    write_lines,
    write_pairs,
)

Refused = Callable[..., str]


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files with something wrong, each in one way."""
    folder = tmp_path_factory.mktemp("bad")
    write_pairs(folder, "short", (ENGLISH * 17)[:100], (GERMAN * 17)[:99])
    write_lines(folder / "latin.en", ENGLISH[:2])
    (folder / "latin.de").write_bytes("ein Hund rennt .\nein Vogel über dem Haus .\n".encode("latin-1"))
    write_pairs(folder, "nothing", [], [])
    write_pairs(folder, "blank", ["a dog runs .", "", "  "], ["", "zwei Katzen schlafen .", "\t"])
    twenty = "a " * 19 + "dog"
    write_pairs(folder, "long_source", [ENGLISH[0], twenty, ENGLISH[3]], [GERMAN[0], "ein Hund", GERMAN[3]])
    write_pairs(folder, "long_target", [ENGLISH[0], "a dog", ENGLISH[3]], [GERMAN[0], twenty, GERMAN[3]])
    return folder


@pytest.fixture
def refused(
    server: ForkServer, bad: Path, text: Path, good_run: Path, learned_run: Path, tmp_path: Path
) -> Iterator[Refused]:
    """Runs a command that must refuse, from an empty folder; returns its sentence, with short paths.

    ``{bad}``, ``{text}``, ``{good}`` and ``{learned}`` in the words stand for the folders of the fixtures.
    """
    folders = {"bad": bad, "text": text, "good": good_run, "learned": learned_run, "here": tmp_path}

    def refused(name: str, *words: str, stdin: str = "") -> str:
        typed = [word.format(**folders) for word in words]
        if name == "train" and not any(word.startswith("resume=") for word in words):
            typed = [*data_words(text), *SMALL, *typed]
        before = {key: snapshot(folder) for key, folder in folders.items()}
        done = server.run(name, *typed, folder=tmp_path, stdin=stdin)
        assert {key: snapshot(folder) for key, folder in folders.items()} == before
        assert done.out == ""
        sentence = done.sentence
        for key, folder in folders.items():
            sentence = sentence.replace(str(folder), f"{{{key}}}")
        return sentence

    yield refused


PAIR = "{text}/train.en and {text}/train.de"
UNLIKE = (
    "{bad}/short.en has 100 lines but {bad}/short.de has 99; "
    "a translation must stand on the same line as its source"
)
NOT_UTF8 = "{bad}/latin.de, line 2 is not UTF-8 text (byte 0xfc at place 11); convert the file to UTF-8"
BLANK = (
    "each of the 3 pairs of {{bad}}/blank.en and {{bad}}/blank.de (the {} split) has an empty side; "
    "give pairs with text on both sides"
)
NOTHING = (
    "{{bad}}/nothing.en and {{bad}}/nothing.de (the {} split) holds no pair of sentences; give one that does"
)
SMALL_ALPHABET = (
    "tokenizer.vocab_size=10 is smaller than the alphabet of the training text "
    "(30 characters and 4 special entries); "
    "set tokenizer.vocab_size to 34 or more, or tokenizer.kind=byte_bpe"
)
LONG_PAIR = (
    "the pair on line 3 of {text}/train.en and {text}/train.de has 8 tokens, "
    "more than the 7 of training.KEY; raise training.KEY to 8, "
    "or leave such pairs out with cleaning.max_tokens=7"
)
PAST_TABLE = (
    "the {} on line 2 of {{bad}}/{}.en and {{bad}}/{}.de has {} tokens (end token counted), "
    "but position.max_length is 16; raise position.max_length, use position=sinusoidal, or {}"
)
LEARNED = ("position=learned", "position.max_length=16")
LEAVE_OUT, SHORTEN = "leave such pairs out with cleaning.max_tokens", "shorten it"


def files(split: str, stem: str) -> str:
    return f"data.{split}=[{{bad}}/{stem}.en,{{bad}}/{stem}.de]"


TRAIN = {
    "no source file": (
        ["data.train=[{bad}/none.en,{text}/train.de]"],
        "{bad}/none.en does not exist; check the path",
    ),
    "no TSV": (["data.train=none.tsv"], "{here}/none.tsv does not exist; check the path"),
    "no validation file": (
        ["data.valid=[{text}/valid.en,none.de]"],
        "{here}/none.de does not exist; check the path",
    ),
    "no test file": (
        ["data.test=[{text}/test.en,none.de]"],
        "{here}/none.de does not exist; check the path",
    ),
    "unlike training sides": ([files("train", "short")], UNLIKE),
    "unlike validation sides": ([files("valid", "short")], UNLIKE),
    "unlike test sides": ([files("test", "short")], UNLIKE),
    "training not UTF-8": ([files("train", "latin")], NOT_UTF8),
    "test not UTF-8": ([files("test", "latin")], NOT_UTF8),
    "blank training": ([files("train", "blank")], BLANK.format("train").format(bad="{bad}")),
    "blank validation": ([files("valid", "blank")], BLANK.format("valid").format(bad="{bad}")),
    "blank test": ([files("test", "blank")], BLANK.format("test").format(bad="{bad}")),
    "empty training": ([files("train", "nothing")], NOTHING.format("train").format(bad="{bad}")),
    "empty validation": ([files("valid", "nothing")], NOTHING.format("valid").format(bad="{bad}")),
    "small alphabet, bpe": (["tokenizer.kind=bpe", "tokenizer.vocab_size=10"], SMALL_ALPHABET),
    "small alphabet, char": (["tokenizer.kind=char", "tokenizer.vocab_size=10"], SMALL_ALPHABET),
    "unknown key": (
        ["training.max_update=3"],
        'train has no key "training.max_update"; did you mean "training.max_updates"?',
    ),
    "unknown choice": (["attention=unscale"], 'attention cannot be "unscale"; did you mean "unscaled"?'),
    "unknown word of a key": (
        ["model.norm=rmsnorm"],
        'the configuration: model.norm cannot be "rmsnorm"; did you mean "rms_norm"?',
    ),
    "unknown activation": (
        ["model.ffn.activation=rellu"],
        'model.ffn.activation is "rellu"; did you mean "relu"?',
    ),
    "heads that do not divide": (
        ["model.num_heads=3"],
        "model.d_model=16 is not a multiple of model.num_heads=3; change one of them or give model.d_k",
    ),
    "small update": (["training.update_tokens=7"], LONG_PAIR.replace("KEY", "update_tokens")),
    "small chunk": (["training.chunk_tokens=7"], LONG_PAIR.replace("KEY", "chunk_tokens")),
    "training source past the table": (
        [*LEARNED, files("train", "long_source")],
        PAST_TABLE.format("source", "long_source", "long_source", 21, LEAVE_OUT).format(bad="{bad}"),
    ),
    "training target past the table": (
        [*LEARNED, files("train", "long_target")],
        PAST_TABLE.format("target", "long_target", "long_target", 21, LEAVE_OUT).format(bad="{bad}"),
    ),
    "validation target past the table": (
        [*LEARNED, files("valid", "long_target")],
        PAST_TABLE.format("target", "long_target", "long_target", 21, SHORTEN).format(bad="{bad}"),
    ),
    "test source past the table": (
        [*LEARNED, files("test", "long_source")],
        PAST_TABLE.format("source", "long_source", "long_source", 21, SHORTEN).format(bad="{bad}"),
    ),
    "one language": (["data.tgt=en"], "data=pairs: data.src and data.tgt are both en; name two"),
    "a rate that is no number": (
        ["optimizer.lr=fast"],
        "the configuration: optimizer.lr is 'fast', but must be a number",
    ),
    "a GPU where there is none": (
        ["trainer=gpu"],
        "trainer.accelerator=gpu, but torch finds no GPU here; use trainer=cpu or trainer=auto",
    ),
    "FSDP with Muon": (
        ["trainer.strategy=fsdp", "optimizer=muon"],
        "optimizer=muon turns whole matrices, of which each process keeps a part with "
        "trainer.strategy=fsdp; use trainer.strategy=ddp, or optimizer=adamw",
    ),
    "a list too short": (
        ["optimizer.betas=[0.9]"],
        "the configuration: optimizer.betas is [0.9], but must be a list of 2",
    ),
    "nothing left after cleaning": (
        ["cleaning.max_tokens=2"],
        f"no training pair of {PAIR} is left: left out 60 of 60 training pairs: "
        "60 with a side longer than cleaning.max_tokens=2; loosen that rule, or mend the text",
    ),
    "a run folder in use": (
        ["run_dir={good}"],
        "the run folder {good} is already in use; go on with resume={good}, or give another run_dir",
    ),
    "a run folder that is a file": (
        ["run_dir={bad}/short.en"],
        "run_dir={bad}/short.en is a file; give the path of a folder",
    ),
    "no run to go on with": (
        ["resume=none"],
        "resume={here}/none does not exist; give a .ckpt file or a run folder",
    ),
    "another experiment": (
        ["resume={good}", "training.max_updates=5", "model.d_model=32"],
        "model.d_model=32 would make this another experiment than {good}/checkpoints/step-000002.ckpt, which "
        "has model.d_model=16; leave it out to go on, add force=true to go on all the same, or start a new "
        "run without resume=",
    ),
}


@pytest.mark.parametrize(("words", "sentence"), TRAIN.values(), ids=TRAIN)
def test_train_refuses(refused: Refused, words: list[str], sentence: str) -> None:
    assert refused("train", *words) == sentence


TOO_LONG = (
    "{}, line 2 has 20 tokens and the end token, but the model has learned positions for 16 at most; "
    "shorten the line, or train with a larger position.max_length"
)
FIXED = "{} cannot be given to evaluate: the checkpoint fixes it; leave it out"

EVALUATE = {
    "no checkpoint given": ([], "checkpoint= is missing; give a .ckpt file or a run folder"),
    "no such checkpoint": (
        ["checkpoint=none"],
        "the checkpoint {here}/none does not exist; give a .ckpt file or a run folder",
    ),
    "no run folder": (
        ["checkpoint={text}"],
        "{text} holds no checkpoints/best.ckpt and no checkpoints/last.ckpt; "
        "give a .ckpt file or a run folder",
    ),
    "unlike sides": (["checkpoint={good}", files("test", "short")], UNLIKE),
    "references not UTF-8": (["checkpoint={good}", files("test", "latin")], NOT_UTF8),
    "blank test": (
        ["checkpoint={good}", files("test", "blank")],
        BLANK.format("test").format(bad="{bad}"),
    ),
    "unknown split": (
        ["checkpoint={good}", "split=tset"],
        'the data has no split "tset"; did you mean "test"?',
    ),
    "source past the table": (
        ["checkpoint={learned}", files("test", "long_source")],
        TOO_LONG.format("the source of {bad}/long_source.en and {bad}/long_source.de"),
    ),
    "target past the table": (
        ["checkpoint={learned}", files("test", "long_target")],
        TOO_LONG.format("the target of {bad}/long_target.en and {bad}/long_target.de"),
    ),
    "the model": (["checkpoint={good}", "model.d_model=32"], FIXED.format("model.d_model")),
    "positions": (["checkpoint={good}", "position=none"], FIXED.format("position")),
    "the scale": (["checkpoint={good}", "attention=unscaled"], FIXED.format("attention")),
    "the tokenizer": (["checkpoint={good}", "tokenizer.lowercase=true"], FIXED.format("tokenizer.lowercase")),
    "a key of training": (
        ["checkpoint={good}", "training.label_smoothing=0"],
        "training.label_smoothing is a key of train, not of evaluate; leave it out",
    ),
    "output that is a file": (
        ["checkpoint={good}", "output_dir={bad}/short.en"],
        "output_dir={bad}/short.en is a file; give a folder",
    ),
}


@pytest.mark.parametrize(("words", "sentence"), EVALUATE.values(), ids=EVALUATE)
def test_evaluate_refuses(refused: Refused, words: list[str], sentence: str) -> None:
    assert refused("evaluate", *words) == sentence


TRANSLATE = {
    "no such checkpoint": (
        ["checkpoint=none"],
        "the checkpoint {here}/none does not exist; give a .ckpt file or a run folder",
    ),
    "no such input": (
        ["checkpoint={good}", "input=none.txt"],
        "{here}/none.txt does not exist; check the path",
    ),
    "input that is a folder": (
        ["checkpoint={good}", "input={text}"],
        "{text} is a folder where a file is needed",
    ),
    "input not UTF-8": (["checkpoint={good}", "input={bad}/latin.de"], NOT_UTF8),
    "output that is there": (
        ["checkpoint={good}", "output={bad}/short.de"],
        "output={bad}/short.de is already there; remove it or give another name",
    ),
    "output nowhere": (
        ["checkpoint={good}", "output=none/out.txt"],
        "output={here}/none/out.txt cannot be written: the folder {here}/none does not exist",
    ),
}


@pytest.mark.parametrize(("words", "sentence"), TRANSLATE.values(), ids=TRANSLATE)
def test_translate_refuses(refused: Refused, words: list[str], sentence: str) -> None:
    assert refused("translate", *words, stdin="a dog runs .\n") == sentence


INSPECT = {
    "no text": (
        ["checkpoint={good}", "text= "],
        'text= is empty; give the source sentence, such as text="a dog runs"',
    ),
    "no such checkpoint": (
        ["checkpoint=none", "text=a dog"],
        "the checkpoint {here}/none does not exist; give a .ckpt file or a run folder",
    ),
}


@pytest.mark.parametrize(("words", "sentence"), INSPECT.values(), ids=INSPECT)
def test_inspect_attention_refuses(refused: Refused, words: list[str], sentence: str) -> None:
    assert refused("inspect_attention", *words) == sentence


# -- a line past the end of learned positions, in translation -----------------------------


def translated(server: ForkServer, run: Path, folder: Path, *words: str, stdin: str = "") -> Done:
    return server.run("translate", f"checkpoint={run}", *words, folder=folder, stdin=stdin)


@pytest.mark.parametrize("piped", [False, True])
def test_a_line_past_learned_positions_is_named_and_nothing_is_written(
    server: ForkServer, learned_run: Path, bad: Path, tmp_path: Path, piped: bool
) -> None:
    file = bad / "long_source.en"
    done = translated(
        server,
        learned_run,
        tmp_path,
        "output=out.txt",
        *([] if piped else [f"input={file}"]),
        stdin=file.read_text() if piped else "",
    )
    name = "standard input" if piped else str(file)
    assert done.status == 2
    assert done.err.splitlines()[-1] == f"error: {TOO_LONG.format(name)}"
    assert "Traceback" not in done.err
    assert list(tmp_path.iterdir()) == []


def test_sinusoidal_positions_have_no_end(
    server: ForkServer, good_run: Path, bad: Path, tmp_path: Path
) -> None:
    done = translated(server, good_run, tmp_path, f"input={bad}/long_source.en")
    assert done.status == 0
    assert len(done.out.splitlines()) == 3


# -- a run folder in use ------------------------------------------------------------------


def test_a_run_folder_that_another_process_holds_is_not_gone_on_with(
    server: ForkServer, good_run: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(good_run, tmp_path / "run")
    before = snapshot(run)
    with FileLock(run / ".lock", timeout=0):
        done = server.run("train", f"resume={run}", "training.max_updates=4", folder=tmp_path)
    assert done.sentence == f"the run folder {run} is in use by another process; wait for it to end"
    assert snapshot(run) == before


# -- a loss that is no number -------------------------------------------------------------


def test_a_diverging_run_stops_by_update_and_lines_and_keeps_its_last_good_checkpoint(
    server: ForkServer, text: Path, tmp_path: Path
) -> None:
    words = (
        "optimizer=sgd",
        "optimizer.lr=1e9",
        "schedule=constant",
        "schedule.warmup_updates=1",
        "training.clip_norm=null",
        "training.update_sentences=4",
        "training.save_every=1",
        "training.max_updates=20",
    )
    done = server.run("train", *data_words(text), *SMALL, *words, "run_dir=run", folder=tmp_path)
    told = done.sentence
    update = int(told.partition("at update ")[2].partition(" ")[0])
    lines = [int(line) for line in told.partition("(training lines ")[2].partition(")")[0].split(", ")]
    assert 2 <= update <= 20
    assert len(lines) == 4
    assert lines == sorted(lines)
    assert lines[0] >= 1 and lines[-1] <= 60
    assert "the update was not made; try a lower optimizer.lr" in told
    names = {path.name for path in (tmp_path / "run" / "checkpoints").iterdir()}
    assert {"last.ckpt", f"step-{update - 1:06d}.ckpt"} <= names
    assert f"step-{update:06d}.ckpt" not in names
    assert not (tmp_path / "run" / "result.json").exists()
    kept = checkpoint.read(tmp_path / "run" / "checkpoints" / "last.ckpt")
    assert kept.progress.update == update - 1
    assert all(tensor.isfinite().all() for tensor in kept.model.values())


# -- as the user starts them, imports and all ---------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "words", "sentence"),
    [
        ("train", [files("train", "short")], UNLIKE),
        ("evaluate", ["checkpoint={good}", files("test", "short")], UNLIKE),
        ("translate", ["checkpoint={good}", "input={bad}/latin.de"], NOT_UTF8),
        ("inspect_attention", *INSPECT["no such checkpoint"]),
    ],
)
def test_the_scripts_themselves_refuse_alike(
    bad: Path, text: Path, good_run: Path, tmp_path: Path, name: str, words: list[str], sentence: str
) -> None:
    folders = {"bad": bad, "good": good_run, "here": tmp_path.resolve()}
    typed = [word.format(**folders) for word in words]
    if name == "train":
        typed = [*data_words(text), *SMALL, *typed]
    done = script(name, *typed, folder=tmp_path)
    assert done.out == ""
    assert done.sentence == sentence.format(**folders)
    assert list(tmp_path.iterdir()) == []
