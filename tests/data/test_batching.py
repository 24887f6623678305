"""Padded batches, by hand."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from minitrans.data.batching import collate, evaluation_batches, padded
from minitrans.data.encoded import EncodedCorpus, Side


def side(*rows: list[int]) -> Side:
    counts = np.array([len(row) for row in rows])
    return Side(np.array([id_ for row in rows for id_ in row]), np.cumsum(counts) - counts, counts)


ENCODED = EncodedCorpus(side([7, 8], [9], []), side([5], [6, 4, 5], [4]), np.array([10, 20, 30]), "a")


def test_collate():
    batch = collate(ENCODED, np.array([1, 0]), weight=0.0, number=3)
    assert batch.src.tolist() == [[9, 2, 0], [7, 8, 2]]
    assert batch.tgt_in.tolist() == [[1, 6, 4, 5], [1, 5, 0, 0]]
    assert batch.tgt_out.tolist() == [[6, 4, 5, 2], [5, 2, 0, 0]]
    assert batch.src.dtype == batch.tgt_in.dtype == batch.tgt_out.dtype == torch.long
    assert batch.lines == (20, 10)
    assert (batch.weight, batch.number) == (0.0, 3)
    assert batch.src_mask.tolist() == [[[True, True, False]], [[True, True, True]]]
    assert batch.num_target_tokens == batch.counted == 6


def test_a_blank_source_is_its_end_token():
    batch = collate(ENCODED, np.array([2]))
    assert batch.src.tolist() == [[2]]
    assert batch.src_mask.tolist() == [[[True]]]
    assert (batch.weight, batch.number) == (1.0, 0)


def test_a_batch_moves_whole():
    batch = collate(ENCODED, np.array([0, 1]), number=2).to("meta")
    assert {part.device.type for part in (batch.src, batch.tgt_in, batch.tgt_out)} == {"meta"}
    assert (batch.lines, batch.number) == ((10, 20), 2)


def test_padded():
    assert padded([[4, 5], [6]]).tolist() == [[4, 5], [6, 0]]
    assert padded([[4, 5], [6]], start=True, end=True).tolist() == [[1, 4, 5, 2], [1, 6, 2, 0]]


def test_evaluation_batches_of_lengths_3_3_9_2_with_8_tokens():
    batches = evaluation_batches(np.array([3, 3, 9, 2]), 8)
    assert [batch.tolist() for batch in batches] == [[2], [0, 1], [3]]


def test_the_longer_side_counts():
    batches = evaluation_batches(np.array([[1, 4], [4, 1], [2, 2]]), 8)
    assert [batch.tolist() for batch in batches] == [[0, 1], [2]]


@given(st.lists(st.integers(1, 50), min_size=1), st.integers(1, 200))
def test_each_sentence_once_and_within_the_bound(lengths, batch_tokens):
    lengths = np.array(lengths)
    batches = evaluation_batches(lengths, batch_tokens)
    assert sorted(np.concatenate(batches)) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * lengths[batch].max() <= batch_tokens
    longest = [lengths[batch].max() for batch in batches]
    assert longest == sorted(longest, reverse=True)
