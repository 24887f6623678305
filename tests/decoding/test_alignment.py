"""Links between words by hand."""

import numpy as np
import pytest

from minitrans.config import TokenizerConfig
from minitrans.data.tokenizer import train_tokenizer
from minitrans.decoding.alignment import link_words, pharaoh


def test_a_word_is_linked_to_the_one_that_its_tokens_look_at_most() -> None:
    """Source words 0 (two tokens) and 1; target words 0, 1 (two tokens), 2."""
    attention = np.array(
        [
            [0.30, 0.30, 0.40],  # .6 on word 0, though its tokens have less than the one of word 1
            [0.10, 0.10, 0.80],
            [0.30, 0.40, 0.30],  # together with the row above: .9 and 1.1
            [0.45, 0.45, 0.10],
        ]
    )
    assert link_words(attention, [0, 0, 1], [0, 1, 1, 2]) == ((0, 0), (0, 2), (1, 1))


def test_nothing_is_linked_to_nothing() -> None:
    assert link_words(np.zeros((0, 2)), [0, 1], []) == ()
    assert pharaoh(()) == ""


def test_pharaohs_format() -> None:
    assert pharaoh(((0, 0), (0, 2), (1, 1))) == "0-0 0-2 1-1"


@pytest.mark.parametrize(
    ("kind", "pieces", "words"),
    [
        ("word", "▁the ▁old <unk> ▁teacher <unk>", [0, 1, 2, 3, 3]),
        ("byte_bpe", "▁the ▁old ▁ z e b r a ▁teacher .", [0, 1, 1, 2, 2, 2, 2, 2, 3, 3]),
        ("bpe", "▁the ▁old ▁ <unk> e <unk> r a ▁teacher .", [0, 1, 1, 2, 2, 2, 2, 2, 3, 3]),
    ],
)
def test_tokens_know_their_words_also_unknown_ones(kind: str, pieces: str, words: list[int]) -> None:
    text = ["the old teacher sees the child .", "the old red dog sleeps ."] * 3
    tokenizer = train_tokenizer(text, TokenizerConfig(kind=kind, vocab_size=300))
    line = " the  old zebra\tteacher."
    assert tokenizer.pieces(tokenizer.encode([line])[0]) == pieces.split()
    assert tokenizer.word_numbers(line) == words
