"""Encoded corpora, and that the cache never answers with what was."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from minitrans.config import CleaningConfig, TokenizerConfig
from minitrans.data import cache
from minitrans.data.corpus import Corpus, PairFiles
from minitrans.data.encoded import encode_corpus, encode_training
from minitrans.data.tokenizer import Tokenizers
from minitrans.errors import UserError

SRC = "eins\nzwei\ndrei\nvier\n"
TGT = "one\n\nthree\nfour\n"


def load(write, src: str = SRC, tgt: str = TGT) -> Corpus:
    files = [str(write("a.de", src)), str(write("a.en", tgt))]
    return PairFiles(src="de", tgt="en", train=files, valid=files).load("train")


def texts_of(corpus: Corpus, config: TokenizerConfig) -> list[tuple[str, str]]:
    tokenizers = Tokenizers.train(corpus, config)
    encoded = encode_corpus(corpus, tokenizers)
    return [
        (tokenizers.src.decode([encoded.src[row]])[0], tokenizers.tgt.decode([encoded.tgt[row]])[0])
        for row in range(len(encoded))
    ]


CHARACTERS = TokenizerConfig(kind="char", vocab_size=100)


def test_every_pair_is_encoded_in_its_place(write):
    corpus = load(write)
    assert texts_of(corpus, CHARACTERS) == list(zip(SRC.split(), ["one", "", "three", "four"], strict=True))
    encoded = encode_corpus(corpus, Tokenizers.train(corpus, CHARACTERS))
    assert encoded.lengths.tolist() == [[5, 4], [5, 1], [5, 6], [5, 5]]
    assert encoded.lines.tolist() == [0, 1, 2, 3]
    assert encoded.origin == " and ".join(corpus.hashes)


def test_blank_lines_leave_exactly_their_pair_out_of_training(write):
    corpus = load(write)
    tokenizers = Tokenizers.train(corpus, CHARACTERS)
    encoded, report = encode_training(corpus, tokenizers, CleaningConfig())
    pairs = [
        (tokenizers.src.decode([encoded.src[row]])[0], tokenizers.tgt.decode([encoded.tgt[row]])[0])
        for row in range(len(encoded))
    ]
    assert pairs == [("eins", "one"), ("drei", "three"), ("vier", "four")]
    assert encoded.lines.tolist() == [0, 2, 3]
    assert str(report) == "Left out 1 of 4 training pairs: 1 with an empty side."


def test_a_set_of_blank_targets_is_refused(write):
    corpus = load(write, tgt="\n \n\t\n\n")
    with pytest.raises(
        UserError, match=r"each of the 4 pairs of .*a\.de and .*a\.en \(the train split\) has an empty side"
    ):
        Tokenizers.train(corpus, CHARACTERS)
    tokenizers = Tokenizers.train(load(write), CHARACTERS)
    assert encode_corpus(corpus, tokenizers).lengths[:, 1].tolist() == [1, 1, 1, 1]
    with pytest.raises(UserError, match=r"no training pair of .* is left: left out 4 of 4"):
        encode_training(corpus, tokenizers, CleaningConfig())


def test_ids_are_mapped_from_the_cache(write):
    corpus = load(write)
    assert isinstance(encode_corpus(corpus, Tokenizers.train(corpus, CHARACTERS)).src.ids, np.memmap)


def test_take_keeps_rows_and_lines_together(write):
    corpus = load(write)
    encoded = encode_corpus(corpus, Tokenizers.train(corpus, CHARACTERS))
    taken = encoded.take(np.array([3, 0])).take(np.array([1]))
    assert taken.lines.tolist() == [0]
    assert taken.src[0].tolist() == encoded.src[0].tolist()
    assert taken.lengths.tolist() == [[5, 4]]


class TestCache:
    def test_an_edit_of_the_same_size_and_time_is_seen(self, write):
        corpus = load(write, src="Hund\nzwei\ndrei\nvier\n")
        assert texts_of(corpus, CHARACTERS)[0] == ("Hund", "one")
        path = Path(next(iter(corpus.hashes)))
        before = path.stat()
        path.write_text("Mund\nzwei\ndrei\nvier\n")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert path.stat().st_mtime_ns == before.st_mtime_ns
        files = [str(name) for name in corpus.hashes]
        again = PairFiles(src="de", tgt="en", train=files, valid=files).load("train")
        assert again.src[0] == "Mund"
        assert texts_of(again, CHARACTERS)[0] == ("Mund", "one")

    def test_a_changed_setting_is_seen(self, write):
        corpus = load(write, src="HUND\nzwei\ndrei\nvier\n")
        assert texts_of(corpus, CHARACTERS)[0][0] == "HUND"
        folded = TokenizerConfig(kind="char", vocab_size=100, lowercase=True)
        assert texts_of(corpus, folded)[0][0] == "hund"

    def test_another_column_of_the_same_file_is_seen(self, write):
        path = str(write("a.jsonl", '{"de": "Hund", "en": "dog", "fr": "chien"}\n'))
        for tgt, text in (("en", "dog"), ("fr", "chien")):
            corpus = PairFiles(src="de", tgt=tgt, train=path, valid=path).load("train")
            assert texts_of(corpus, CHARACTERS) == [("Hund", text)]

    def test_a_changed_preprocessing_function_is_seen(self, write, tmp_path):
        """A copy of the package, run as it is and again with its function edited."""
        root = Path(__file__).parents[2]
        copy = tmp_path / "copy"
        for module in root.glob("minitrans/**/*.py"):
            if module.parent.name in ("minitrans", "data"):
                target = copy / module.relative_to(root)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(module.read_bytes())
        write("a.de", SRC)
        write("a.en", TGT)
        script = (
            "from minitrans.config import TokenizerConfig\n"
            "from minitrans.data.corpus import PairFiles\n"
            "from minitrans.data.encoded import encode_corpus\n"
            "from minitrans.data.tokenizer import Tokenizers\n"
            f"files = [{str(tmp_path / 'a.de')!r}, {str(tmp_path / 'a.en')!r}]\n"
            "corpus = PairFiles(src='de', tgt='en', train=files, valid=files).load('train')\n"
            "tokenizers = Tokenizers.train(corpus, TokenizerConfig(kind='char', vocab_size=100))\n"
            "print(tokenizers.src.decode([encode_corpus(corpus, tokenizers).src[0]])[0])\n"
        )

        def first_text() -> str:
            command = [sys.executable, "-B", "-c", script]
            return subprocess.run(command, cwd=copy, check=True, capture_output=True, text=True).stdout

        assert first_text() == "eins\n"
        module = copy / "minitrans" / "data" / "tokenizer.py"
        edited = module.read_text().replace(
            'normalizers.Replace(_WHITE_SPACE, " ")', 'normalizers.Replace("i", "o")'
        )
        assert edited != module.read_text()
        module.write_text(edited)
        assert first_text() == "eons\n"

    def test_an_entry_is_used_again_where_nothing_changed(self, write, own_cache):
        texts_of(load(write), CHARACTERS)
        entries = sorted(own_cache.iterdir())
        texts_of(load(write), CHARACTERS)
        assert sorted(own_cache.iterdir()) == entries
        kinds = {re.sub("-.*", "", entry.name) for entry in entries}
        assert kinds == {"corpus", "tokenizer", "encoded"}

    def test_the_code_and_the_libraries_are_part_of_the_key(self, tmp_path, monkeypatch):
        module = tmp_path / "a.py"
        module.write_text("x = 1")
        first = cache.code_version.__wrapped__(tmp_path)
        assert cache.code_version.__wrapped__(tmp_path) == first
        module.write_text("x = 2")
        second = cache.code_version.__wrapped__(tmp_path)
        monkeypatch.setattr("tokenizers.__version__", "0.0.0")
        third = cache.code_version.__wrapped__(tmp_path)
        assert len({first, second, third}) == 3

    def test_what_fails_leaves_nothing_behind(self, own_cache):
        def fail(folder: Path) -> None:
            (folder / "half").write_text("half")
            raise RuntimeError

        with pytest.raises(RuntimeError):
            cache.cached("kind", ["x"], fail)
        assert list(own_cache.iterdir()) == []

    def test_of_two_at_once_the_first_one_counts(self, own_cache):
        def slow(folder: Path) -> None:
            (folder / "content").write_text("second")
            cache.cached("kind", ["x"], lambda other: (other / "content").write_text("first") and None)

        entry = cache.cached("kind", ["x"], slow)
        assert (entry / "content").read_text() == "first"
        assert list(own_cache.iterdir()) == [entry]

    def test_a_folder_that_cannot_be_written_is_refused(self, write, monkeypatch):
        monkeypatch.setenv("MINITRANS_CACHE", str(write("file", "x") / "cache"))
        with pytest.raises(
            UserError, match=r"cannot hold the cache .* set MINITRANS_CACHE to another folder"
        ):
            cache.cached("kind", ["x"], lambda folder: None)
