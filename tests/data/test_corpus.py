"""Corpora and the family of sources, built as the configuration builds them."""

import json
from pathlib import Path
from typing import Any

import datasets
import huggingface_hub.constants
import pyarrow
import pyarrow.parquet
import pytest
import yaml

from minitrans.config import construct
from minitrans.data.cache import hash_file
from minitrans.data.corpus import SOURCES, PairFiles, Source, TextFolder
from minitrans.errors import UserError

CONF = Path(__file__).parents[2] / "conf" / "data"


def build(name: str, /, **changes: Any) -> Source:
    """The source that ``conf/data/name.yaml`` describes, with some keys overridden."""
    section = yaml.safe_load((CONF / f"{name}.yaml").read_text(encoding="utf-8"))
    return construct(SOURCES, section | changes, {}, "data")


def pairs_of(source: Source, split: str) -> list[tuple[str, str]]:
    corpus = source.load(split)
    return list(zip(corpus.src, corpus.tgt, strict=True))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Text files of three splits in two languages, one with the depth of its sentences."""
    for stem, number in [("train", 1), ("val", 2), ("test", 3), ("novel", 4)]:
        (tmp_path / f"{stem}.da").write_text(f"et {number}\nto {number}\n")
        (tmp_path / f"{stem}.no").write_text(f"ett {number}\nto  {number}\n")
    (tmp_path / "test.depth").write_text("0\n3\n")
    return tmp_path


def text_folder(folder: Path, /, **changes: Any) -> Source:
    section = {"kind": "text", "root": str(folder), "src": "da", "tgt": "no"}
    stems = {"train": "train", "valid": "val", "test": "test"}
    return construct(SOURCES, section | stems | changes, {}, "data")


class TestTextFolder:
    def test_splits(self, folder):
        source = text_folder(folder, extra_tests={"test_novel": "novel"})
        assert source.splits() == ("train", "valid", "test", "test_novel")
        assert pairs_of(source, "train") == [("et 1", "ett 1"), ("to 1", "to  1")]
        assert pairs_of(source, "test_novel") == [("et 4", "ett 4"), ("to 4", "to  4")]

    def test_the_other_direction(self, folder):
        assert pairs_of(text_folder(folder, src="no", tgt="da"), "valid") == [
            ("ett 2", "et 2"),
            ("to  2", "to 2"),
        ]

    def test_hashes_are_those_of_the_files(self, folder):
        source = text_folder(folder)
        assert source.hashes() == {
            str(folder / name): hash_file(folder / name)
            for name in ("train.da", "train.no", "val.da", "val.no", "test.da", "test.no")
        }
        assert source.load("train").origin == f"{folder / 'train.da'} and {folder / 'train.no'}"

    def test_depths_where_there_are_some(self, folder):
        source = text_folder(folder, depth="depth")
        assert source.load("test").depths == (0, 3)
        assert source.load("train").depths is None
        assert text_folder(folder).load("test").depths is None

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("0\n", "test.depth has 1 lines for 2 sentences"),
            ("0\nx\n", 'test.depth, line 2 is "x" where a whole number is needed'),
        ],
    )
    def test_damaged_depths_are_refused(self, folder, content, message):
        (folder / "test.depth").write_text(content)
        with pytest.raises(UserError) as caught:
            text_folder(folder, depth="depth").load("test")
        assert message in str(caught.value)

    def test_what_cannot_be_read_is_refused(self, folder):
        with pytest.raises(UserError, match='the data has no split "tset"; did you mean "test"'):
            text_folder(folder).load("tset")
        with pytest.raises(UserError, match=r"/train\.sv does not exist; check the path$"):
            text_folder(folder, tgt="sv").load("train")
        with pytest.raises(UserError, match=r"data\.root=.*/none is not a folder"):
            text_folder(folder / "none").load("train")
        for name in ("train.da", "train.no"):
            (folder / name).write_text("")
        with pytest.raises(UserError, match=r"no \(the train split\) holds no pair of sentences"):
            text_folder(folder).load("train")

    def test_an_empty_root_is_the_shelf_or_refused(self, folder, monkeypatch):
        source = text_folder(Path(""), root="", folder=folder.name)
        monkeypatch.setenv("MINITRANS_DATA", str(folder.parent))
        assert len(source.load("train")) == 2
        monkeypatch.delenv("MINITRANS_DATA")
        with pytest.raises(UserError) as caught:
            source.load("train")
        assert str(caught.value) == (
            "data.root is empty: set it to the folder of the text files, "
            f"or MINITRANS_DATA to the folder that holds {folder.name}"
        )

    def test_the_text_is_mapped_from_the_cache(self, folder, own_cache):
        rows = text_folder(folder).load("train").rows
        assert [Path(file["filename"]).name for file in rows.cache_files] == ["pairs.arrow"]
        assert own_cache in Path(rows.cache_files[0]["filename"]).parents


class TestCommonKeys:
    def test_one_language_twice_is_refused(self, folder):
        with pytest.raises(UserError, match=r"data=text: data\.src and data\.tgt are both da"):
            text_folder(folder, tgt="da")

    def test_a_language_read_as_a_truth_value_is_refused(self, folder):
        section = yaml.safe_load("tgt: no")
        with pytest.raises(UserError, match=r"data\.tgt was read as the truth value False.*must be quoted"):
            text_folder(folder, **section)

    def test_an_unknown_scoring_tokenizer_is_refused(self, folder):
        with pytest.raises(UserError, match=r'data\.bleu_tokenize cannot be "ja"; choose one of "13a"'):
            text_folder(folder, bleu_tokenize="ja")

    def test_an_unknown_key_is_refused(self, folder):
        with pytest.raises(UserError, match=r'data\.rot .*means nothing.*; did you mean "root"'):
            text_folder(folder, rot="x")


class TestPairFiles:
    def test_each_format(self, write, tmp_path):
        write("a.de", "eins\nzwei\n")
        write("a.en", "one\ntwo\n")
        write("a.tsv", 'null\tNA\n"x\ty\n')
        write("a.jsonl", json.dumps({"de": "drei", "en": "three"}) + "\n")
        pyarrow.parquet.write_table(pyarrow.table({"de": ["vier"], "en": ["four"]}), tmp_path / "a.parquet")
        source = build(
            "pairs",
            src="de",
            tgt="en",
            train=[str(tmp_path / "a.de"), str(tmp_path / "a.en")],
            valid=str(tmp_path / "a.tsv"),
            test=str(tmp_path / "a.jsonl"),
            extra_tests={"more": str(tmp_path / "a.parquet")},
        )
        assert source.splits() == ("train", "valid", "test", "more")
        assert [pairs_of(source, split) for split in source.splits()] == [
            [("eins", "one"), ("zwei", "two")],
            [("null", "NA"), ('"x', "y")],
            [("drei", "three")],
            [("vier", "four")],
        ]

    def test_columns(self, write):
        path = str(write("a.jsonl", '{"a": {"b": "x"}, "c": "y", "d": "z"}\n'))
        source = PairFiles(src="de", tgt="en", train=path, valid=path, src_column="a.b", tgt_column="c")
        assert pairs_of(source, "train") == [("x", "y")]
        # The same bytes with another column are another corpus.
        source = PairFiles(src="de", tgt="en", train=path, valid=path, src_column="a.b", tgt_column="d")
        assert pairs_of(source, "train") == [("x", "z")]

    def test_a_path_with_odd_characters(self, write):
        path = str(write("a =,{} 中文.tsv", "x\ty\n"))
        assert pairs_of(build("pairs", train=path, valid=path), "train") == [("x", "y")]

    def test_without_a_test_split(self, write):
        path = str(write("a.tsv", "x\ty\n"))
        assert build("pairs", train=path, valid=path).splits() == ("train", "valid")

    @pytest.mark.parametrize(
        ("train", "message"),
        [
            ("", "data.train names no file: give two text files or one of .tsv, .jsonl, .parquet"),
            (["a"], "data.train lists 1 files where two are needed, source and target; a path with"),
            (
                "a.de",
                "data.train=a.de does not end in .tsv, .jsonl, .parquet; two text files are given as a list",
            ),
            ("none.tsv", "none.tsv does not exist"),
        ],
    )
    def test_what_names_no_pairs_is_refused(self, train, message):
        with pytest.raises(UserError) as caught:
            build("pairs", train=train).load("train")
        assert message in str(caught.value)


class TestHub:
    """The library's real loader, on local folders of the hub's form."""

    @pytest.fixture
    def parquet_folder(self, tmp_path: Path) -> Path:
        data = tmp_path / "hub" / "data"
        data.mkdir(parents=True)
        for split in ("train", "validation", "test"):
            records = [{"de": f"eins {split}", "en": f"one {split}"}, {"de": "null", "en": ""}]
            table = pyarrow.table({"id": [1, 2], "translation": records})
            pyarrow.parquet.write_table(table, data / f"{split}-00000-of-00001.parquet")
        return tmp_path / "hub"

    def build(self, folder: Path | str, **changes: Any) -> Source:
        columns = {"src_column": "translation.de", "tgt_column": "translation.en"}
        return build("hub", **({"name": str(folder), "src": "de", "tgt": "en"} | columns | changes))

    def test_parquet_with_translation_records(self, parquet_folder):
        source = self.build(parquet_folder)
        assert source.splits() == ("train", "valid", "test")
        assert pairs_of(source, "valid") == [("eins validation", "one validation"), ("null", "")]
        assert list(source.hashes()) == [
            f"{parquet_folder}[{split}]" for split in ("train", "validation", "test")
        ]

    def test_jsonl_with_columns(self, tmp_path):
        folder = tmp_path / "hub"
        folder.mkdir()
        for split in ("train", "test"):
            (folder / f"{split}.jsonl").write_text(f'{{"de": "{split}", "en": "a\\u2028b"}}\n')
        source = self.build(folder, src_column="", tgt_column="", valid="test", test="")
        assert source.splits() == ("train", "valid")
        assert pairs_of(source, "train") == [("train", "a\u2028b")]

    def test_an_edited_file_is_read_again(self, tmp_path):
        folder = tmp_path / "hub"
        folder.mkdir()
        file = folder / "train.jsonl"
        file.write_text('{"de": "Hund", "en": "dog"}\n')
        source = self.build(folder, src_column="", tgt_column="")
        assert pairs_of(source, "train") == [("Hund", "dog")]
        first = (
            source.hashes_of("train") if hasattr(source, "hashes_of") else source.load("train").fingerprint
        )
        file.write_text('{"de": "Mund", "en": "dog"}\n')
        assert pairs_of(source, "train") == [("Mund", "dog")]
        assert source.load("train").fingerprint != first

    def test_what_the_folder_lacks_is_refused(self, parquet_folder):
        with pytest.raises(UserError, match=r'\(split dev\) cannot be loaded: Unknown split "dev"'):
            self.build(parquet_folder, valid="dev").load("valid")
        with pytest.raises(UserError, match=r'has no column "tranlation"; did you mean "translation"'):
            self.build(parquet_folder, src_column="tranlation.de").load("train")
        with pytest.raises(
            UserError, match=r'\[train\], row 1 has no column "translation.fr"; choose one of'
        ):
            self.build(parquet_folder, src_column="translation.fr").load("train")

    def test_without_a_network_one_sentence_says_so(self, monkeypatch):
        monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
        with pytest.raises(UserError) as caught:
            self.build("nobody/nothing").load("train")
        assert str(caught.value).startswith('the data set "nobody/nothing" (split train) cannot be loaded: ')
        assert "check its name and the network, or use local files" in str(caught.value)
        assert "\n" not in str(caught.value)

    def test_no_name_is_refused(self):
        with pytest.raises(UserError, match=r"data=hub: data\.name is empty"):
            build("hub", src="de", tgt="en")


class TestShippedFiles:
    @pytest.mark.parametrize("path", sorted(CONF.glob("*.yaml")), ids=lambda path: path.stem)
    def test_every_file_starts_with_two_lines_of_comment(self, path):
        lines = path.read_text(encoding="utf-8").splitlines()
        assert [line.startswith("# ") for line in lines[:3]] == [True, True, False]

    def test_toy(self):
        source = build("toy")
        assert source.splits() == ("train", "valid", "test", "test_novel")
        assert len(source.load("train")) > 10_000
        for split in ("test", "test_novel"):
            corpus = source.load(split)
            assert corpus.depths is not None
            assert len(corpus.depths) == len(corpus) == 500

    @pytest.mark.parametrize(("src", "tgt"), [("en", "de"), ("de", "fr"), ("fr", "en")])
    def test_multi30k(self, multi30k, src, tgt):
        source = build("multi30k", src=src, tgt=tgt)
        assert [len(source.load(split)) for split in source.splits()] == [29_000, 1_014, 1_000]
        assert source.load("test").origin.endswith(f"test_2016_flickr.{tgt}")
        assert source.bleu_tokenize == "13a"

    def test_multi30k_legacy(self, multi30k):
        source = build("multi30k_legacy")
        assert source.load("test").tgt[0].islower()
        assert source.bleu_tokenize == "none"

    def test_multi30k_comes_from_the_hub_without_a_folder(self, monkeypatch):
        monkeypatch.delenv("MINITRANS_DATA", raising=False)
        asked = {}

        def load_dataset(name: str, config: str | None, **arguments: Any) -> datasets.Dataset:
            asked[name] = arguments["split"]
            return datasets.Dataset.from_dict({"en": ["one"], "de": ["eins"]})

        monkeypatch.setattr(datasets, "load_dataset", load_dataset)
        assert pairs_of(build("multi30k"), "valid") == [("one", "eins")]
        assert asked == {"bentrevett/multi30k": "validation"}
        with pytest.raises(UserError, match=r'has no column "fr"'):
            build("multi30k", tgt="fr").load("valid")

    def test_pairs_and_hub_build_as_they_are_shipped_once_named(self):
        assert isinstance(build("pairs"), SOURCES["pairs"])
        assert isinstance(build("hub", name="a/b", src="de", tgt="en"), SOURCES["hub"])
        assert isinstance(build("toy"), TextFolder)
