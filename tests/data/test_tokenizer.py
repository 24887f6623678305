"""Tokenizers: what goes in comes out, nothing vanishes, and training is the same everywhere."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitrans.config import TokenizerConfig
from minitrans.data.corpus import PairFiles
from minitrans.data.tokenizer import KINDS, UNKNOWN_ID, UNKNOWN_SIGN, Tokenizer, Tokenizers, train_tokenizer
from minitrans.errors import UserError

TEXTS = [
    "Zwei Männer (links) lachen: sie sehen 3 Hunde.",
    "Ein Hund läuft, ein Hund sitzt; zwei Hunde lachen!",
    "Die Männer lachen: zwei Hunde (links) sehen 3 Männer.",
    "A dog runs, a dog sits; the dogs' dog isn't <s> here </s>.",
    "The <s> dog </s> isn't <unk> here: <unk>, <pad>.",
    "二人の男性が笑っている。二人の男性が犬を見ている。",
]
# Every character of the texts but the white space.
ALPHABET = sorted(set("".join(TEXTS)) - {" "})


def trained(kind: str, **settings) -> Tokenizer:
    return train_tokenizer(TEXTS, TokenizerConfig(kind=kind, **{"vocab_size": 400, **settings}))


TRAINED = {kind: trained(kind) for kind in KINDS}
WORDS = TokenizerConfig(kind="word", vocab_size=50)
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]))
WHITE_SPACE = st.text(
    " \t\r\n\x0b\x0c\x1c\x1d\x1e\x1f\x85\xa0\u1680\u2003\u2028\u2029\u202f\u205f\u3000", min_size=1
)
KNOWN_TEXT = st.lists(st.text(ALPHABET) | WHITE_SPACE).map("".join)


def plain(text: str) -> str:
    """White space collapsed, by Python's own idea of white space."""
    return " ".join(text.split())


def round_trip(tokenizer: Tokenizer, text: str) -> str:
    return tokenizer.decode(tokenizer.encode([text]))[0]


@given(texts=st.lists(ANY_TEXT | KNOWN_TEXT))
@pytest.mark.parametrize("kind", KINDS)
def test_the_arrays_hold_what_the_lists_hold(kind, texts):
    ids, counts = TRAINED[kind].encode_flat(texts)
    rows = TRAINED[kind].encode(texts)
    assert (ids.dtype, ids.tolist()) == (np.int32, [id_ for row in rows for id_ in row])
    assert (counts.dtype, counts.tolist()) == (np.int64, [len(row) for row in rows])


class TestRoundTrip:
    @given(ANY_TEXT | KNOWN_TEXT)
    def test_byte_level_bpe_gives_any_text_back(self, text):
        assert round_trip(TRAINED["byte_bpe"], text) == plain(text)

    @pytest.mark.parametrize("kind", ["bpe", "char"])
    @given(text=KNOWN_TEXT)
    def test_known_characters_come_back(self, kind, text):
        assert round_trip(TRAINED[kind], text) == plain(text)

    @given(st.lists(st.tuples(st.sampled_from(["Hund", "Männer", "zwei"]), st.sampled_from(["", "!", ":"]))))
    def test_known_words_come_back(self, words):
        vocabulary = train_tokenizer(["Hund! Männer: zwei:!"] * 2 + ["Hund: Männer!"] * 2, WORDS)
        text = " ".join(word + mark for word, mark in words)
        assert round_trip(vocabulary, text) == text

    @given(ANY_TEXT)
    def test_nothing_vanishes(self, text):
        for kind, tokenizer in TRAINED.items():
            ids = tokenizer.encode([text])[0]
            assert bool(ids) == bool(plain(text)), kind
            assert all(id_ >= UNKNOWN_ID for id_ in ids), kind
            assert bool(round_trip(tokenizer, text)) == bool(plain(text)), kind

    @pytest.mark.parametrize("kind", ["bpe", "char"])
    @given(text=st.lists(st.sampled_from(["Hund", " ", "äß", "λ", "Ω", "\u2028"])).map("".join))
    def test_each_unknown_run_is_one_sign(self, kind, text):
        expected = plain(text)
        for unknown in ("ß", "λ", "Ω"):
            expected = expected.replace(unknown, UNKNOWN_SIGN)
        while UNKNOWN_SIGN * 2 in expected:
            expected = expected.replace(UNKNOWN_SIGN * 2, UNKNOWN_SIGN)
        assert round_trip(TRAINED[kind], text) == expected

    def test_a_run_of_unknown_characters_is_one_id(self):
        assert TRAINED["bpe"].encode(["Hundλλλ"])[0].count(UNKNOWN_ID) == 1

    @pytest.mark.parametrize(
        ("kind", "expected"),
        [("bpe", "⁇ Hund"), ("byte_bpe", "狗 Hund"), ("word", "⁇ Hund"), ("char", "⁇ Hund")],
    )
    def test_an_unknown_character_before_a_word(self, kind, expected):
        assert round_trip(TRAINED[kind], "狗 Hund") == expected

    def test_unknown_words_keep_their_distance(self):
        vocabulary = train_tokenizer(["zwei lachen."] * 2, WORDS)
        assert round_trip(vocabulary, "zwei Hunde, Katzen lachen.") == "zwei ⁇ lachen."


class TestSpecialIds:
    @pytest.mark.parametrize("kind", ["bpe", "byte_bpe", "char"])
    @pytest.mark.parametrize("text", ["<s> </s>", "a<pad>d", "\n<s>", "<unk><unk>", "</s>"])
    def test_text_that_spells_one_stays_text(self, kind, text):
        ids = TRAINED[kind].encode([text])[0]
        assert min(ids) > UNKNOWN_ID
        assert TRAINED[kind].decode([ids]) == [plain(text)]

    def test_a_word_that_spells_one_is_at_most_unknown(self):
        ids = TRAINED["word"].encode(["<s> <unk> </s> <pad>\n<s>"])[0]
        assert min(ids) >= UNKNOWN_ID

    @pytest.mark.parametrize("kind", list(KINDS))
    def test_start_end_and_padding_decode_to_nothing(self, kind):
        tokenizer = TRAINED[kind]
        ids = tokenizer.encode(["zwei Hunde"])[0]
        assert tokenizer.decode([[1, *ids, 2, 0, 0]]) == tokenizer.decode([ids])
        assert tokenizer.decode([[1, 2, 0]]) == [""]

    @pytest.mark.parametrize("kind", list(KINDS))
    def test_an_unknown_id_is_visible(self, kind):
        assert TRAINED[kind].decode([[3, 3]]) == [UNKNOWN_SIGN]

    def test_pieces_show_what_ids_stand_for(self):
        tokenizer = TRAINED["bpe"]
        ids = tokenizer.encode(["Zwei Hund狗"])[0]
        assert "".join(tokenizer.pieces(ids)) == "▁Zwei▁Hund<unk>"
        assert tokenizer.pieces([0, 1, 2, 3]) == ["<pad>", "<s>", "</s>", "<unk>"]
        byte_level = TRAINED["byte_bpe"]
        assert "".join(byte_level.pieces(byte_level.encode(["zwei Hunde"])[0])) == "▁zwei▁Hunde"


class TestTraining:
    def test_lower_case_is_folded_where_asked(self):
        assert round_trip(trained("bpe", lowercase=True), "ZWEI Männer") == "zwei männer"

    @pytest.mark.parametrize("kind", list(KINDS))
    def test_the_file_gives_the_tokenizer_back(self, kind):
        tokenizer = TRAINED[kind]
        again = Tokenizer.from_json(tokenizer.to_json())
        assert again.to_json() == tokenizer.to_json()
        assert again.vocab_size == tokenizer.vocab_size
        assert again.encode(TEXTS) == tokenizer.encode(TEXTS)

    def test_frequent_words_come_first(self):
        vocabulary = train_tokenizer(["b a b", "a b c"], TokenizerConfig(kind="word", vocab_size=6))
        assert vocabulary.encode(["a b c"]) == [[5, 4, 3]]

    @pytest.mark.parametrize("kind", ["bpe", "char"])
    def test_a_vocabulary_smaller_than_the_alphabet_is_refused(self, kind):
        with pytest.raises(UserError) as caught:
            train_tokenizer(["abcdef"], TokenizerConfig(kind=kind, vocab_size=8))
        needed = {"bpe": 11, "char": 10}[kind]  # bpe also has the space
        assert str(caught.value) == (
            "tokenizer.vocab_size=8 is smaller than the alphabet of the training text "
            f"({needed - 4} characters and 4 special entries); "
            f"set tokenizer.vocab_size to {needed} or more, or tokenizer.kind=byte_bpe"
        )
        assert train_tokenizer(["abcdef"], TokenizerConfig(kind=kind, vocab_size=needed)).vocab_size == needed

    def test_the_bytes_need_260_entries(self):
        with pytest.raises(UserError, match=r"set tokenizer\.vocab_size to 260 or more"):
            train_tokenizer(["abc"], TokenizerConfig(kind="byte_bpe", vocab_size=259))

    def test_a_vocabulary_without_an_entry_is_refused(self):
        with pytest.raises(UserError, match=r"tokenizer\.kind=word with tokenizer\.vocab_size=4 no entry"):
            train_tokenizer(["a a"], TokenizerConfig(kind="word", vocab_size=4))

    def test_an_unknown_kind_is_refused(self):
        with pytest.raises(UserError, match=r'tokenizer\.kind cannot be "unigram"; choose one of "bpe"'):
            train_tokenizer(["a a"], TokenizerConfig(kind="unigram"))

    def test_a_damaged_file_is_refused(self):
        with pytest.raises(UserError, match="the tokenizer's file cannot be read"):
            Tokenizer.from_json("{}")


TRAIN_IN_A_FRESH_PROCESS = """
import hashlib, json, sys
from minitrans.config import TokenizerConfig
from minitrans.data.tokenizer import KINDS, train_tokenizer
texts = json.load(open(sys.argv[1]))
for kind in KINDS:
    file = train_tokenizer(texts, TokenizerConfig(kind=kind, vocab_size=1000)).to_json()
    print(kind, hashlib.sha256(file.encode()).hexdigest())
"""


def hashes_of_a_fresh_process(texts: Path, hash_seed: str, workers: str) -> str:
    environment = os.environ | {"PYTHONHASHSEED": hash_seed, "RAYON_NUM_THREADS": workers}
    command = [sys.executable, "-c", TRAIN_IN_A_FRESH_PROCESS, str(texts)]
    root = Path(__file__).parents[2]
    return subprocess.run(
        command, env=environment, cwd=root, check=True, capture_output=True, text=True
    ).stdout


def many_texts() -> list[str]:
    """600 lines with many words of equal frequency, where an unordered table would show."""
    words = [hashlib.sha256(str(i).encode()).hexdigest()[: 3 + i % 6] for i in range(1500)]
    return [
        " ".join(words[(7 * line + 13 * place) % len(words)] for place in range(9)) for line in range(2000)
    ]


class TestDeterminism:
    @pytest.mark.slow
    def test_three_fresh_processes_write_the_same_bytes(self, tmp_path):
        texts = tmp_path / "texts.json"
        texts.write_text(json.dumps(many_texts()))
        first = hashes_of_a_fresh_process(texts, "1", "1")
        assert len(first.splitlines()) == len(KINDS)
        assert hashes_of_a_fresh_process(texts, "2", "1") == first
        assert hashes_of_a_fresh_process(texts, "3", "4") == first


@pytest.fixture(scope="module")
def lines(multi30k: Path) -> list[str]:
    """The first 2,000 lines of both sides of Multi30k."""
    return [
        line for side in ("de", "en") for line in (multi30k / f"train.{side}").read_text().split("\n")[:2000]
    ]


class TestMulti30k:
    @pytest.mark.parametrize("kind", ["bpe", "byte_bpe", "char"])
    def test_every_validation_line_comes_back(self, multi30k, lines, kind):
        tokenizer = train_tokenizer(lines, TokenizerConfig(kind=kind, vocab_size=4000))
        texts = [
            line for side in ("de", "en") for line in (multi30k / f"val.{side}").read_text().splitlines()
        ]
        known = set("".join(lines))
        texts = [text for text in texts if kind == "byte_bpe" or set(text) <= known]
        assert len(texts) > 2000
        assert tokenizer.decode(tokenizer.encode(texts)) == [plain(text) for text in texts]

    def test_the_lines_of_the_case(self, lines):
        text = 'Zwei Männer (links) lachen: "Ja!" – 3,5 km/h.'
        assert round_trip(train_tokenizer(lines, TokenizerConfig(kind="byte_bpe")), text) == text
        tokenizer = train_tokenizer(lines, TokenizerConfig(kind="bpe"))
        unknown = set(text) - set("".join(lines)) - {" "}
        for character in unknown:
            text = text.replace(character, UNKNOWN_SIGN)
        assert round_trip(tokenizer, 'Zwei Männer (links) lachen: "Ja!" – 3,5 km/h.') == text
        assert round_trip(tokenizer, "犬 Hund") == "⁇ Hund"


class TestTokenizers:
    @pytest.fixture
    def corpus(self, write):
        train = [str(write("a.de", "zwei zwei Hunde Hunde\n")), str(write("a.en", "two two dogs dogs\n"))]
        return PairFiles(src="de", tgt="en", train=train, valid=train).load("train")

    def test_joint(self, corpus, tmp_path):
        tokenizers = Tokenizers.train(corpus, TokenizerConfig(kind="word", vocab_size=50))
        assert tokenizers.joint
        assert tokenizers.src is tokenizers.tgt
        assert UNKNOWN_ID not in tokenizers.src.encode(["zwei dogs"])[0]
        tokenizers.save(tmp_path)
        assert (tmp_path / "tokenizer.json").read_text() == tokenizers.src.to_json()

    def test_one_a_side(self, corpus, tmp_path):
        tokenizers = Tokenizers.train(corpus, TokenizerConfig(kind="word", vocab_size=50, joint=False))
        assert not tokenizers.joint
        assert tokenizers.src.encode(["zwei", "dogs"]) == [[5], [UNKNOWN_ID]]
        assert tokenizers.tgt.encode(["zwei", "dogs"]) == [[UNKNOWN_ID], [4]]
        tokenizers.save(tmp_path)
        assert (tmp_path / "tokenizer.src.json").read_text() == tokenizers.src.to_json()
        assert (tmp_path / "tokenizer.tgt.json").read_text() == tokenizers.tgt.to_json()
        assert not (tmp_path / "tokenizer.json").exists()

    @pytest.mark.parametrize("joint", [True, False])
    def test_the_state_is_plain_data_and_gives_them_back(self, corpus, joint):
        tokenizers = Tokenizers.train(corpus, TokenizerConfig(vocab_size=50, joint=joint))
        again = Tokenizers.from_state(json.loads(json.dumps(tokenizers.state())))
        assert again.joint == joint
        assert again.state() == tokenizers.state()

    def test_a_second_training_on_the_same_text_is_the_same(self, corpus):
        first, second = (Tokenizers.train(corpus, TokenizerConfig(vocab_size=50)) for _ in range(2))
        assert first.state() == second.state()
