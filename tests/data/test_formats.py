"""Readers: every byte that is text stays, and what is not text is refused by line."""

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitrans.data.formats import (
    JsonLines,
    Parquet,
    TabSeparated,
    TextPair,
    decode_lines,
    read_lines,
)
from minitrans.errors import UserError


class TestReadLines:
    def test_only_a_line_feed_ends_a_line(self, write):
        path = write("a", "one\rstill one\u2028and\u0085and\x0bone\ttab\n\ntwo\n")
        assert list(read_lines(path)) == ["one\rstill one\u2028and\u0085and\x0bone\ttab", "", "two"]

    def test_a_last_line_without_line_feed_counts(self, write):
        assert list(read_lines(write("a", "one\ntwo"))) == ["one", "two"]

    def test_one_carriage_return_at_the_end_of_a_line_is_dropped(self, write):
        assert list(read_lines(write("a", "one\r\ntwo\r\r\nthree\r"))) == ["one", "two\r", "three"]

    def test_a_byte_order_mark_is_dropped_at_the_start_alone(self, write):
        path = write("a", b"\xef\xbb\xbfone\n\xef\xbb\xbftwo\n")
        assert list(read_lines(path)) == ["one", "\ufefftwo"]

    def test_an_empty_file_has_no_lines(self, write):
        assert list(read_lines(write("a", ""))) == []

    @pytest.mark.parametrize("encoded", ["für".encode("latin-1"), "für".encode("utf-16")])
    def test_other_encodings_are_refused_by_line(self, write, encoded):
        path = write("a", b"one\n" + encoded + b"\n")
        with pytest.raises(UserError, match=r"/a, line 2 is not UTF-8 text \(byte 0x..") as caught:
            list(read_lines(path))
        assert "convert the file to UTF-8" in str(caught.value)

    def test_the_place_of_the_byte_is_said(self):
        with pytest.raises(UserError, match=r"^f, line 1 is not UTF-8 text \(byte 0xfc at place 2\)"):
            list(decode_lines([b"f\xfcr\n"], "f"))

    def test_a_missing_file_and_a_folder_are_refused(self, tmp_path):
        with pytest.raises(UserError, match=r"/none does not exist; check the path$"):
            list(read_lines(tmp_path / "none"))
        with pytest.raises(UserError, match="is a folder where a file is needed"):
            list(read_lines(tmp_path))

    @given(st.lists(st.text(st.characters(exclude_characters="\n\r\ufeff", exclude_categories=["Cs"]))))
    def test_text_comes_back_as_it_was_written(self, lines):
        raw = [f"{line}\n".encode() for line in lines]
        assert list(decode_lines(raw, "f")) == lines


class TestTextPair:
    def test_lines_stand_side_by_side(self, write):
        reader = TextPair(write("a.de", "eins\n\ndrei\n"), write("a.en", "one\ntwo\nthree"))
        assert list(reader) == [("eins", "one"), ("", "two"), ("drei", "three")]

    @pytest.mark.parametrize(("num_src", "num_tgt"), [(100, 99), (99, 100), (100, 0)])
    def test_unlike_counts_are_refused_with_both_files_and_counts(self, write, num_src, num_tgt):
        reader = TextPair(write("a.de", "x\n" * num_src), write("a.en", "y\n" * num_tgt))
        with pytest.raises(UserError) as caught:
            list(reader)
        assert f"a.de has {num_src} lines but " in str(caught.value)
        assert f"a.en has {num_tgt};" in str(caught.value)

    def test_a_tab_in_a_line_of_multi30k_moves_nothing(self, multi30k):
        pairs = list(TextPair(multi30k / "train.de", multi30k / "train.en"))
        assert len(pairs) == 29_000
        assert sum("\t" in src for src, _ in pairs) == 1
        assert pairs[0][1] == "Two young, White males are outside near many bushes."


class TestTabSeparated:
    def test_quotes_and_null_are_text(self, write):
        lines = [
            ("Ein Hund läuft.", "A dog runs."),
            ('"Halt! ruft er.', "Stop! he calls."),
            ("Zwei Kinder.", "Two children."),
            ("null", "null"),
            ('Drei Zoll = 3"', 'Three inches = 3"'),
            ("Ende", "End"),
        ]
        path = write("a.tsv", "".join(f"{src}\t{tgt}\n" for src, tgt in lines))
        assert list(TabSeparated(path)) == lines

    def test_an_empty_cell_and_na_are_text(self, write):
        assert list(TabSeparated(write("a.tsv", "NA\t\n\tx\n"))) == [("NA", ""), ("", "x")]

    @pytest.mark.parametrize(("line", "tabs"), [("one", 0), ("a\tb\tc", 2), ("", 0)])
    def test_another_number_of_tabs_is_refused_by_line(self, write, line, tabs):
        path = write("a.tsv", f"a\tb\n{line}\n")
        with pytest.raises(UserError, match=rf"a\.tsv, line 2 has {tabs} tabs where exactly one is needed"):
            list(TabSeparated(path))


class TestJsonLines:
    def test_columns_and_nested_columns(self, write):
        path = write("a.jsonl", '{"de": "null", "en": "x\\ty"}\n{"en": "b", "de": "\\u2028"}\n')
        assert list(JsonLines(path, "de", "en")) == [("null", "x\ty"), ("\u2028", "b")]
        path = write("b.jsonl", '{"translation": {"de": "eins", "en": "one"}}\n')
        assert list(JsonLines(path, "translation.de", "translation.en")) == [("eins", "one")]

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ("{", "a.jsonl, line 2 is not JSON: Expecting property name"),
            ("", "a.jsonl, line 2 is not JSON: Expecting value"),
            ("[1]", 'a.jsonl, line 2 has no column "de"'),
            ('{"dee": "x", "en": "y"}', 'a.jsonl, line 2 has no column "de"; did you mean "dee"?'),
            ('{"de": null, "en": "y"}', 'a.jsonl, line 2: column "de" is None where text is needed'),
            ('{"de": "x", "en": 3}', 'a.jsonl, line 2: column "en" is 3 where text is needed'),
            ('{"de": "x", "en": "a\\ud83d"}', 'a.jsonl, line 2: column "en" holds half a character'),
        ],
    )
    def test_errors_name_the_line(self, write, line, message):
        path = write("a.jsonl", json.dumps({"de": "a", "en": "b"}) + f"\n{line}\n")
        with pytest.raises(UserError) as caught:
            list(JsonLines(path, "de", "en"))
        assert message in str(caught.value)


class TestParquet:
    def write_table(self, path: Path, columns: dict) -> Path:
        pyarrow.parquet.write_table(pyarrow.table(columns), path)
        return path

    def test_columns_and_nested_columns(self, tmp_path):
        path = self.write_table(tmp_path / "a.parquet", {"de": ["null", ""], "en": ["x", "y"], "id": [1, 2]})
        assert list(Parquet(path, "de", "en")) == [("null", "x"), ("", "y")]
        path = self.write_table(tmp_path / "b.parquet", {"translation": [{"de": "eins", "en": "one"}]})
        assert list(Parquet(path, "translation.de", "translation.en")) == [("eins", "one")]

    def test_a_missing_column_is_refused_with_the_nearest(self, tmp_path):
        path = self.write_table(tmp_path / "a.parquet", {"deu": ["x"], "en": ["y"]})
        with pytest.raises(UserError, match=r'a\.parquet has no column "de"; did you mean "deu"\?'):
            list(Parquet(path, "de", "en"))

    def test_a_missing_value_is_refused_by_row(self, tmp_path):
        path = self.write_table(tmp_path / "a.parquet", {"de": ["x", None], "en": ["y", "z"]})
        with pytest.raises(UserError, match=r'a\.parquet, row 2: column "de" is None where text is needed'):
            list(Parquet(path, "de", "en"))

    def test_another_kind_of_file_is_refused(self, write):
        with pytest.raises(UserError, match=r"a\.parquet is not a Parquet file"):
            list(Parquet(write("a.parquet", "text"), "de", "en"))
