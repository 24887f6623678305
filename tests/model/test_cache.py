"""One source for all hypotheses of a sentence equals a copy of it for each one, and nothing is copied."""

import pytest
import torch
from torch import Tensor

from minitrans.model.cache import Cache, LayerCache
from minitrans.model.masks import padding_mask
from minitrans.model.transformer import Transformer
from tests.model.conftest import MakeModel
from tests.model.test_transformer import ids

# Three sentences; W = 2 hypotheses each, then W = 3, then the second sentence leaves, then it is W = 1.
LINES = (
    [[0, 0], [1, 1], [2, 2]],
    [[1, 0, 1], [3, 3, 2], [4, 5, 5]],
    [[2, 0, 1], [6, 8, 8]],
    [[1], [5]],
)
SENTENCES = ([0, 1, 2], [0, 1, 2], [0, 2], [0, 2])


def started(model: Transformer) -> tuple[Cache, Tensor, Tensor]:
    """The empty cache of three sentences of unlike length; their memory and mask."""
    src = ids(5, 3, 4)
    mask = padding_mask(src)
    memory = model.encode(src, mask)
    return model.start_cache(memory, mask), memory, mask


@torch.no_grad()
@pytest.mark.parametrize("position", ["sinusoidal", "learned", "rotary", "none"])
def test_hypotheses_that_share_a_source_equal_copies_and_no_cache(
    make_model: MakeModel, position: str
) -> None:
    model = make_model(position=position, num_decoder_layers=2, d_k=6, d_v=10)
    shared, memory, mask = started(model)
    copied = shared
    prefixes = torch.ones(3, 0, dtype=torch.long)
    for lines, sentences in zip(LINES, SENTENCES, strict=True):
        newest = torch.randint(4, 50, (len(prefixes), 1))
        prefixes = torch.cat((prefixes, newest), dim=1)
        state, shared = model.step(newest, shared)
        naive, copied = model.step(newest, copied)
        torch.testing.assert_close(state, naive, atol=1e-5, rtol=1e-5)
        rows = torch.tensor(lines)
        shared, copied = shared.select(rows), copied.select(rows.flatten())
        prefixes = prefixes[rows.flatten()]
        source = torch.tensor(sentences).repeat_interleave(rows.size(1))
        newest = torch.randint(4, 50, (len(prefixes), 1))
        states, _ = model.step(newest, shared)
        whole = torch.cat((prefixes, newest), dim=1)
        expected = model.decode(whole, memory[source], mask[source])[:, -1:]
        torch.testing.assert_close(states, expected, atol=1e-5, rtol=1e-5)


def test_keys_of_the_source_are_kept_once_a_sentence(make_model: MakeModel) -> None:
    model = make_model()
    cache, _, _ = started(model)
    _, cache = model.step(torch.ones(3, 1, dtype=torch.long), cache)
    wide = cache.select(torch.tensor([[0] * 5, [1] * 5, [2] * 5]))
    (before,), (after,) = cache.layers, wide.layers
    assert after.cross_key is before.cross_key and after.cross_value is before.cross_value
    assert wide.src_mask is cache.src_mask
    assert after.self_key is not None and len(after.self_key) == 15
    fewer = wide.select(torch.tensor([[4, 0], [14, 14]]))
    (left,) = fewer.layers
    assert torch.equal(left.cross_key, before.cross_key[[0, 2]])
    assert torch.equal(left.cross_value, before.cross_value[[0, 2]])
    assert torch.equal(fewer.src_mask, cache.src_mask[[0, 2]])
    assert left.self_key is not None and torch.equal(left.self_key, after.self_key[[4, 0, 14, 14]])
    assert (cache.width, wide.width, fewer.width) == (1, 5, 2)


def test_the_same_rows_are_the_same_tensors(make_model: MakeModel) -> None:
    model = make_model()
    cache, _, _ = started(model)
    _, cache = model.step(torch.ones(3, 1, dtype=torch.long), cache)
    assert cache.select(torch.tensor([[0], [1], [2]])) == cache
    assert cache.select(torch.arange(3)).layers[0] is cache.layers[0]


def test_a_beam_may_begin_before_the_first_token(make_model: MakeModel) -> None:
    model = make_model()
    cache, memory, mask = started(model)
    rows = torch.tensor([[0, 0], [2, 2]])
    tgt = torch.randint(4, 50, (4, 3))
    states, _ = model.step(tgt, cache.select(rows))
    sources = rows.flatten()
    expected = model.decode(tgt, memory[sources], mask[sources])
    torch.testing.assert_close(states, expected, atol=1e-5, rtol=1e-5)


def test_layer_cache_without_tokens_has_no_rows_to_select() -> None:
    layer = LayerCache(torch.zeros(2, 1, 3, 4), torch.zeros(2, 1, 3, 5))
    assert layer.select_hypotheses(torch.tensor([1, 0])) is layer
