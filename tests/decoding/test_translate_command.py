"""``translate`` from the command line, on a tiny checkpoint with random weights."""

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from minitrans.checkpoint import load
from minitrans.cli.translate import Counts, main, overlaid, standard_input
from minitrans.config import SearchConfig
from minitrans.decoding.ensemble import Ensemble
from minitrans.decoding.translator import Translation, Translator
from minitrans.errors import UserError
from tests.decoding.conftest import write_checkpoint

LINES = ["abcab", "", "c a", "   ", "ba"]
SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "translate.py"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("run 1=ä,b") / "best.ckpt", {"kind": "sinusoidal"})


@pytest.fixture
def call(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """The command in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str, checkpoint: Path = checkpoint) -> int:
        monkeypatch.setattr(sys, "argv", ["translate", f"checkpoint={checkpoint}", "accelerator=cpu", *words])
        return main()

    return run


def expected(checkpoint: Path, lines: list[str], **search: object) -> bytes:
    loaded = load(checkpoint)
    config = SearchConfig(**{**vars(loaded.experiment.search), **search})
    found = Translator(loaded.model, loaded.tokenizers, config).translate(lines)
    return "".join(f"{translation.text}\n" for translation in found).encode()


def test_file_to_file_line_by_line(call: Callable[..., int], checkpoint: Path, tmp_path: Path) -> None:
    Path("in =,ü.txt").write_bytes("\n".join(LINES).encode())  # no line feed at the end
    assert call("input=in =,ü.txt", "output=out.txt") == 0
    assert Path("out.txt").read_bytes() == expected(checkpoint, LINES)
    assert sorted(os.listdir(tmp_path)) == ["in =,ü.txt", "out.txt"]


def test_standard_output_holds_translations_alone(
    call: Callable[..., int], checkpoint: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    Path("in.txt").write_bytes("a\rb\u2028c\nabc\n".encode())  # two lines: cut at line feeds alone
    assert call("input=in.txt") == 0
    printed = capfdbinary.readouterr()
    assert printed.out == expected(checkpoint, ["a\rb\u2028c", "abc"])
    assert str(checkpoint) in printed.err.decode()


def test_half_precision_gives_what_the_rounded_model_gives(
    call: Callable[..., int], checkpoint: Path
) -> None:
    Path("in.txt").write_text("abcab\nba\n")
    assert call("input=in.txt", "output=out.txt", "precision=bf16", "format=json") == 0
    loaded = load(checkpoint)
    found = Translator(loaded.model.bfloat16(), loaded.tokenizers, loaded.experiment.search).translate(
        ["abcab", "ba"]
    )
    scores = [json.loads(line)["log_prob"] for line in Path("out.txt").read_text().splitlines()]
    assert scores == [translation.log_prob for translation in found]
    exact = load(checkpoint)
    whole = Translator(exact.model, exact.tokenizers, exact.experiment.search).translate(["abcab", "ba"])
    assert scores != [translation.log_prob for translation in whole]


def test_what_is_no_file_is_written_to_and_stays(call: Callable[..., int]) -> None:
    Path("in.txt").write_text("abc\n")
    assert call("input=in.txt", "output=/dev/null") == 0
    assert Path("/dev/null").is_char_device()


def test_an_empty_file_gives_an_empty_file(call: Callable[..., int]) -> None:
    Path("in.txt").write_bytes(b"")
    assert call("input=in.txt", "output=out.txt") == 0
    assert Path("out.txt").read_bytes() == b""


def test_the_checkpoints_search_holds_but_for_what_is_typed(
    call: Callable[..., int], checkpoint: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    Path("in.txt").write_text("abcabc\nca\n")
    assert call("input=in.txt", "search.max_length=2", "search.alpha=9") == 0
    assert capfdbinary.readouterr().out == expected(checkpoint, ["abcabc", "ca"], max_length=2, alpha=9.0)


def test_typed_keys_lie_over_the_checkpoints_section() -> None:
    base = {"beam_size": 3, "alpha": 1.0, "deep": {"x": 1, "y": 2}}
    composed = {"beam_size": 5, "alpha": 0.6, "deep": {"x": 9, "y": 9}}
    assert overlaid(base, composed, {}, "search") == base
    assert overlaid(base, composed, {"search.alpha": 0.6, "data.alpha": 4}, "search") == {
        **base,
        "alpha": 0.6,
    }
    assert overlaid(base, composed, {"search.deep.x": 9}, "search")["deep"] == {"x": 9, "y": 2}
    assert overlaid(base, composed, {"search": "beam", "search.alpha": 0.6}, "search") == composed
    assert base["deep"] == {"x": 1, "y": 2}


# --------------------------------------------------------------------------------------
# Formats, forced beginnings, several checkpoints
# --------------------------------------------------------------------------------------


def test_json_lines_hold_all_that_is_known(
    call: Callable[..., int], checkpoint: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    Path("in.txt").write_text("abc ab\n\nca\n")
    assert call("input=in.txt", "format=json", "search.n_best=3") == 0
    lines = capfdbinary.readouterr().out.decode().splitlines()
    first, blank, last = (json.loads(line) for line in lines)
    loaded = load(checkpoint)
    translator = Translator(loaded.model, loaded.tokenizers, loaded.experiment.search)
    (expected_first,) = translator.translate(["abc ab"], attention=True, n_best=3)
    assert first["text"] == expected_first.text
    assert first["score"] == pytest.approx(expected_first.score, abs=1e-4)
    assert first["tokens"] == list(expected_first.tokens)
    assert first["token_log_probs"] == pytest.approx(list(expected_first.token_log_probs), abs=1e-4)
    assert [other["text"] for other in first["others"]] == [other.text for other in expected_first.others]
    assert blank["text"] == blank["alignment"] == ""
    assert last["alignment"].startswith("0-0")  # there is one source word
    assert set(first) == {*last, "others"}


def test_alignments_come_one_line_a_line(
    call: Callable[..., int], checkpoint: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    Path("in.txt").write_text("abc ab c\n\nca\n")
    assert call("input=in.txt", "format=alignment", "align_layer=1") == 0
    lines = capfdbinary.readouterr().out.decode().split("\n")
    loaded = load(checkpoint)
    translator = Translator(loaded.model, loaded.tokenizers, loaded.experiment.search)
    found = translator.translate(["abc ab c", "", "ca"], attention=True)
    links = [one.attention.links if one.attention else () for one in found]
    assert lines == [*(" ".join(f"{s}-{t}" for s, t in pairs) for pairs in links), ""]
    assert len(links[0]) == len(found[0].text.split()) > 0


def test_each_line_may_have_its_beginning(
    call: Callable[..., int], capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    Path("in.txt").write_text("abc\nca\nb\n")
    Path("begin.txt").write_text("ba\n\nccc\n")
    assert call("input=in.txt", "prefixes=begin.txt") == 0
    first, _, third = capfdbinary.readouterr().out.decode().splitlines()
    assert first.startswith("ba")
    assert third.startswith("ccc")


def test_the_probabilities_of_two_checkpoints_are_averaged(
    call: Callable[..., int],
    checkpoint: Path,
    tmp_path: Path,
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = write_checkpoint(tmp_path / "other.ckpt", {"kind": "rotary"}, seed=2)
    Path("in.txt").write_text("abcabc\nca\n")
    words = [f'checkpoint=["{checkpoint}","{other}"]', "accelerator=cpu", "input=in.txt"]
    monkeypatch.setattr(sys, "argv", ["translate", *words])
    assert main() == 0
    printed = capfdbinary.readouterr()
    model = Ensemble([load(checkpoint).model, load(other).model])
    loaded = load(checkpoint)
    found = Translator(model, loaded.tokenizers, loaded.experiment.search).translate(["abcabc", "ca"])
    assert printed.out.decode().splitlines() == [one.text for one in found]
    assert str(checkpoint) in printed.err.decode() and str(other) in printed.err.decode()


def test_near_ties_are_counted_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    counts = Counts()
    sure = Translation("a", ("a",), -1.0, finished=True)
    counts.add([sure, replace(sure, near_tie=True), replace(sure, finished=False)])
    counts.add([sure])
    counts.tell()
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("1 of 4 translations were ended by the length limit")
    assert said[1].startswith("1 of 4 translations rest on a near-tie")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["search.n_best=2"], "search.n_best=2 needs format=json: a line of format=text is of one"),
        (["search.n_best=2", "format=alignment"], "a line of format=alignment is of one translation"),
        (["align_layer=1"], "align_layer=1 means nothing with format=text"),
        (["format=json", "align_layer=2"], "the model has 1 decoder layers, but no layer 2"),
        (["format=jsonl"], 'format cannot be "jsonl"; did you mean "json"?'),
        (["prefixes=short.txt"], "short.txt has 1 line, and"),
        (["prefixes=long.txt"], "the forced beginning of line 2 has 8 tokens"),
        (["prefixes=short.txt", "input=-"], "prefixes= needs input="),
        (["input="], "input= is empty; give a file, or - for standard input"),
        (["output="], "output= is empty; give a file, or - for standard output"),
        (["average=2"], "average=2 needs a run folder"),
        (["average_best=true"], "average_best=true means nothing without average="),
        (["search=sampling", "search.beam_size=2"], "search.sample=true draws token by token"),
        (["search.min_length=9"], "search.min_length=9 is more than search.max_length=7"),
        (["search.top_p=0.9"], "search.top_p=0.9 means nothing without sampling"),
    ],
)
def test_what_cannot_hold_together_is_refused(
    call: Callable[..., int], capfd: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    Path("in.txt").write_text("abc\nca\n")
    Path("short.txt").write_text("a\n")
    Path("long.txt").write_text("a\naaaaaaaa\n")
    assert sentence in refused(call, capfd, "input=in.txt", "output=out.txt", *words)


def test_what_was_typed_is_refused_before_loading(
    call: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    Path("in.txt").write_text("abc\nca\n\n")
    Path("short.txt").write_text("a\n")
    here = os.getcwd()
    assert refused(call, capfd, "input=in.txt", "prefixes=short.txt") == (
        f"error: prefixes={here}/short.txt has 1 line, and {here}/in.txt has 3 lines; "
        "give each line its beginning, a blank one where it is free\n"
    )
    message = refused(call, capfd, "input=in.txt", "format=alignment", "search.n_best=2")
    assert "checkpoint:" not in message


def test_second_translations_that_the_checkpoint_asks_for_are_not_dropped(
    call: Callable[..., int], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("in.txt").write_text("abc\n")
    overlay = {"n_best": 2}
    monkeypatch.setattr(
        "minitrans.cli.translate.overlaid", lambda base, composed, typed, section: {**base, **overlay}
    )
    assert "search.n_best=2 needs format=json" in refused(call, capfd, "input=in.txt", "format=alignment")
    assert call("input=in.txt", "format=json") == 0


# --------------------------------------------------------------------------------------
# Refusals: one sentence, before any work, nothing left behind
# --------------------------------------------------------------------------------------


def refused(call: Callable[..., int], capfd: pytest.CaptureFixture[str], *words: str) -> str:
    before = sorted(os.listdir())
    assert call(*words) == 2
    assert sorted(os.listdir()) == before
    printed = capfd.readouterr()
    assert printed.out == ""
    return printed.err


def test_an_existing_output_is_not_overwritten(
    call: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    Path("in.txt").write_text("a\n")
    Path("out.txt").write_text("precious")
    assert "out.txt is already there; remove it or give another name" in refused(
        call, capfd, "input=in.txt", "output=out.txt"
    )
    assert Path("out.txt").read_text() == "precious"


def test_the_longest_name_that_a_file_may_have(call: Callable[..., int], checkpoint: Path) -> None:
    Path("in.txt").write_text("abc\n")
    assert call("input=in.txt", f"output={'x' * 255}") == 0
    assert Path("x" * 255).read_bytes() == expected(checkpoint, ["abc"])
    assert sorted(os.listdir()) == ["in.txt", "x" * 255]


@pytest.mark.parametrize(
    ("output", "sentence"),
    [
        ("x" * 256, "cannot be written: File name too long; give another name"),
        ("in.txt/out.txt", "cannot be written: Not a directory; give another name"),
        ("new/", "output=new/ is a folder; name a file in it"),
        ("old/", "output=old/ is a folder; name a file in it"),
        ("old", "/old is a folder; name a file in it"),
    ],
)
def test_names_that_no_file_can_have_are_refused_before_loading(
    call: Callable[..., int], capfd: pytest.CaptureFixture[str], output: str, sentence: str
) -> None:
    Path("in.txt").write_text("abc\n")
    Path("old").mkdir()
    message = refused(call, capfd, "input=in.txt", f"output={output}")
    assert sentence in message
    assert "checkpoint:" not in message


def test_bad_files_are_named(call: Callable[..., int], capfd: pytest.CaptureFixture[str]) -> None:
    assert "no.txt does not exist" in refused(call, capfd, "input=no.txt", "output=out.txt")
    Path("in.txt").write_bytes(b"abc\na\xffb\n")
    assert "in.txt, line 2 is not UTF-8" in refused(call, capfd, "input=in.txt", "output=out.txt")
    assert "does not exist" in refused(call, capfd, "input=in.txt", "output=nowhere/out.txt")
    Path("in.txt").write_bytes(b"abc\n")
    assert "search.beam_size" in refused(call, capfd, "input=in.txt", "search.beam_size=0")


def test_a_line_too_long_for_learned_positions_leaves_no_output(
    call: Callable[..., int], capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """BR-30."""
    short = write_checkpoint(tmp_path / "short.ckpt", {"kind": "learned", "max_length": 16})
    Path("in.txt").write_text(f"abc\n{'a' * 20}\ncab\n")
    before = sorted(os.listdir())
    assert call("input=in.txt", "output=out.txt", checkpoint=short) == 2
    assert sorted(os.listdir()) == before
    message = capfd.readouterr().err
    assert "in.txt, line 2 has 20 tokens" in message
    assert "16 at most" in message


# --------------------------------------------------------------------------------------
# Standard input and pipes
# --------------------------------------------------------------------------------------


class Pieces(io.RawIOBase):
    """A pipe whose writer pauses after each piece."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = list(pieces)

    def read1(self, size: int) -> bytes:
        return self.pieces.pop(0) if self.pieces else b""


def test_lines_are_handed_on_as_soon_as_they_are_whole() -> None:
    stream = Pieces(b"one\ntwo\nth", b"ree\n", b"\n", b"\xc3", b"\xa4 last")
    assert list(standard_input(stream)) == [["one", "two"], ["three"], [""], ["ä last"]]  # type: ignore[arg-type]


def test_a_bad_line_of_standard_input_is_named_by_its_number() -> None:
    blocks = standard_input(Pieces(b"one\ntwo\n", b"three\n\xff\n"))  # type: ignore[arg-type]
    assert next(blocks) == ["one", "two"]
    assert next(blocks) == ["three"]
    with pytest.raises(UserError, match="standard input, line 4 is not UTF-8"):
        next(blocks)


def test_the_lines_before_a_bad_one_are_not_lost() -> None:
    blocks = standard_input(Pieces(b"one\ntwo\n\xff\nfour\n"))  # type: ignore[arg-type]
    assert next(blocks) == ["one", "two"]
    with pytest.raises(UserError, match="standard input, line 3 is not UTF-8"):
        next(blocks)


def test_standard_input_that_cannot_be_read(
    call: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with open("written.txt", "wb") as writable, open(writable.fileno(), closefd=False) as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        assert (
            "error: standard input cannot be read: Bad file descriptor; name a file with input="
            in refused(call, capfd, "output=out.txt")
        )
    monkeypatch.setattr(sys, "stdin", None)
    assert "standard input is closed; name a file with input=" in refused(call, capfd)


def test_a_request_to_end_leaves_no_partial_file(checkpoint: Path, tmp_path: Path) -> None:
    with start(checkpoint, tmp_path, "output=out.txt") as process:
        assert process.stdin is not None and process.stderr is not None
        process.stdin.write(b"abc\n")
        process.stdin.flush()
        while not any(path.stat().st_size for path in tmp_path.glob("*.partial")):
            assert process.poll() is None
            time.sleep(0.02)
        process.terminate()
        said = process.stderr.read().decode().splitlines()
        assert process.wait() == 130
    assert said[-1] == "interrupted"
    assert os.listdir(tmp_path) == []


def test_lines_of_standard_input_are_counted_from_its_start(
    call: Callable[..., int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    short = write_checkpoint(tmp_path / "short.ckpt", {"kind": "learned", "max_length": 16})
    pipe = Pieces(b"abc\nca\n", b"b\n" + b"a" * 20 + b"\n")
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=pipe))
    assert call("output=out.txt", checkpoint=short) == 2
    assert "standard input, line 4 has 20 tokens" in capfd.readouterr().err
    assert os.listdir() == ["short.ckpt"]


def start(checkpoint: Path, folder: Path, *words: str) -> "subprocess.Popen[bytes]":
    command = [
        sys.executable,
        str(SCRIPT),
        f"checkpoint={checkpoint}",
        "accelerator=cpu",
        "threads=1",
        *words,
    ]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, stdin=pipe, stdout=pipe, stderr=pipe)


def test_a_conversation_over_pipes(checkpoint: Path, tmp_path: Path) -> None:
    """Each answer comes before the next line is sent: nothing waits for the end of the input."""
    with start(checkpoint, tmp_path) as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        answers = b""
        for line in LINES:
            process.stdin.write(f"{line}\n".encode())
            process.stdin.flush()
            answers += process.stdout.readline()
        process.stdin.close()
        assert process.stdout.read() == b""
        assert process.wait() == 0
    assert answers == expected(checkpoint, LINES)


def test_a_reader_that_has_gone_ends_it_quietly(checkpoint: Path, tmp_path: Path) -> None:
    with start(checkpoint, tmp_path) as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        process.stdout.close()
        process.stdin.write(b"abc\n")
        process.stdin.close()
        message = process.stderr.read().decode()
        assert process.wait() == 141
    assert "Traceback" not in message
    assert "Broken" not in message
