"""What every architecture must hold to, as checks that the tests of each one call."""

import torch
import torch.nn.functional as F

from minitrans.config import SearchConfig
from minitrans.decoding.search import search_n_best
from minitrans.model.encoder_decoder import EncoderDecoder
from minitrans.model.masks import padding_mask
from tests.model.test_transformer import ids

# Blind guessing among the 9 tokens of the copy task costs ln 9 = 2.20 a token.
COPY_LOSS = 1.0


def assert_future_is_never_read(model: EncoderDecoder) -> None:
    """Values and gradients: a changed token moves itself and what follows, never what was before."""
    src, tgt = ids(6), ids(8)
    mask = padding_mask(src)
    logits = model(src, mask, tgt)[0]
    for k in range(1, 8):
        other = tgt.clone()
        other[0, k:] = (tgt[0, k:] - 4 + 11) % 46 + 4
        change = (model(src, mask, other)[0] - logits).abs()
        assert change[:k].max() <= 1e-6
        assert change[k].max() > 1e-4
    embedded: list[torch.Tensor] = []
    memory = model.encode(src, mask).detach()
    hook = model.decoder.embedding.register_forward_hook(lambda m, i, output: embedded.append(output))
    states = model.decode(tgt, memory, mask)
    hook.remove()
    (gradient,) = torch.autograd.grad(states[:, :4].square().sum(), embedded)  # (1, 8, D)
    assert (gradient[:, 4:] == 0).all()
    assert (gradient[:, :4].abs().amax(-1) > 0).all()


def assert_neighbours_are_not_felt(model: EncoderDecoder) -> None:
    """Alone and beside a longer pair, and with other ids below the mask."""
    src, tgt = ids(3, 20), ids(4, 15)
    alone = model(src[:1, :3], padding_mask(src[:1, :3]), tgt[:1, :4])[0]
    beside = model(src, padding_mask(src), tgt)[0, :4]
    torch.testing.assert_close(beside, alone, atol=1e-5, rtol=0)
    other = torch.where(src == 0, 7, src)
    assert (model(other, padding_mask(src), tgt)[0, :4] - beside).abs().max() == 0


def assert_padding_gets_no_gradient(model: EncoderDecoder) -> None:
    """No real token's memory, and no loss, depends on what stands at padding."""
    src, tgt = ids(3, 6), ids(4, 5)
    mask = padding_mask(src)
    embedded: list[torch.Tensor] = []
    hook = model.encoder.embedding.register_forward_hook(lambda m, i, output: embedded.append(output))
    memory = model.encode(src, mask)
    hook.remove()
    (gradient,) = torch.autograd.grad(memory[src != 0].square().sum(), embedded, retain_graph=True)
    assert (gradient[0, 3:] == 0).all()
    assert (gradient[src != 0].abs().amax(-1) > 0).all()
    loss, _ = model.nll(model.decode(tgt, memory, mask), tgt)
    (gradient,) = torch.autograd.grad(loss, memory)
    assert (gradient[0, 3:] == 0).all()
    assert (gradient[src != 0].abs().amax(-1) > 0).all()


def assert_steps_equal_all_at_once(model: EncoderDecoder, pieces: list[int]) -> None:
    """The cache changes nothing."""
    src, tgt = ids(5, 3), ids(7, 7)
    mask = padding_mask(src)
    memory = model.encode(src, mask)
    cache, states = model.start_cache(memory, mask), []
    for piece in tgt.split(pieces, dim=1):
        state, cache = model.step(piece, cache)
        states.append(state)
    assert cache.length == 7
    torch.testing.assert_close(torch.cat(states, 1), model.decode(tgt, memory, mask), atol=1e-5, rtol=1e-5)


def assert_selected_rows_go_on(model: EncoderDecoder) -> None:
    """Reordered and repeated rows, each with a source of its own and side by side in a beam."""
    src, tgt = ids(5, 3, 4), ids(3, 3, 3)
    mask = padding_mask(src)
    memory = model.encode(src, mask)
    _, cache = model.step(tgt, model.start_cache(memory, mask))
    for rows in (torch.tensor([2, 0, 2, 1]), torch.tensor([[2, 2], [0, 0]])):
        newest = torch.randint(4, 50, (rows.numel(), 2))
        states, attention, grown = model.attending_step(newest, cache.select(rows))
        chosen = rows.flatten()
        whole = torch.cat([tgt[chosen], newest], dim=1)
        expected = model.decode(whole, memory[chosen], mask[chosen])[:, -2:]
        torch.testing.assert_close(states, expected, atol=1e-5, rtol=1e-5)
        looked = model.source_attention(src[chosen], mask[chosen], whole)[:, -2:]
        torch.testing.assert_close(attention, looked, atol=1e-5, rtol=1e-5)
        if rows.dim() == 2:  # another choice among a wider beam
            again = torch.tensor([[3], [1]])
            last = torch.randint(4, 50, (2, 1))
            states, _ = model.step(last, grown.select(again))
            kept = again.flatten()
            whole = torch.cat([whole[kept], last], dim=1)
            expected = model.decode(whole, memory[chosen[kept]], mask[chosen[kept]])[:, -1:]
            torch.testing.assert_close(states, expected, atol=1e-5, rtol=1e-5)


def assert_nll_is_cross_entropy(model: EncoderDecoder) -> None:
    """Values, and every parameter's gradient, against torch's loss on the logits."""
    src, tgt = ids(5, 3), ids(4, 2)
    mask = padding_mask(src)
    smoothed, nll = model.nll(model.decode(tgt, model.encode(src, mask), mask), tgt, 0.1)
    logits = model(src, mask, tgt).flatten(0, 1)
    expected, plain = (
        F.cross_entropy(logits, tgt.flatten(), ignore_index=0, reduction="sum", label_smoothing=smoothing)
        for smoothing in (0.1, 0.0)
    )
    torch.testing.assert_close(smoothed, expected)
    torch.testing.assert_close(nll, plain)
    parameters = list(model.parameters())
    got = torch.autograd.grad(smoothed, parameters)
    for gradient, right in zip(got, torch.autograd.grad(expected, parameters), strict=True):
        torch.testing.assert_close(gradient, right, atol=1e-5, rtol=1e-4)
        assert gradient.abs().max() > 0


def assert_search_ignores_neighbours(model: EncoderDecoder) -> None:
    """Beam search finds the same in any company, and its score is what teacher forcing gives."""
    settings = SearchConfig(beam_size=3, n_best=2, length_penalty="none", max_length=8, coverage=0.1)
    src = ids(6, 2, 4)
    with torch.no_grad():
        together = search_n_best(model, src, padding_mask(src), settings)
        for row, length in enumerate((6, 2, 4)):
            alone = src[row : row + 1, :length]
            (found,) = search_n_best(model, alone, padding_mask(alone), settings)
            for one, other in zip(found, together[row], strict=True):
                assert one.tokens == other.tokens
                assert abs(one.log_prob - other.log_prob) < 1e-4
            tokens = [1, *found[0].tokens]
            log_probs = model(alone, padding_mask(alone), torch.tensor([tokens]))[0].log_softmax(-1)
            total = sum(log_probs[t, token] for t, token in enumerate([*tokens[1:], 2]))
            assert abs(float(total) - found[0].log_prob) < 1e-4


def assert_learns_to_copy(model: EncoderDecoder) -> None:
    """30 updates on copies of 4 tokens."""
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.98))
    for _ in range(30):
        src = torch.randint(3, 12, (64, 4))
        tgt = torch.cat([torch.ones(64, 1, dtype=torch.long), src[:, :-1]], dim=1)
        mask = padding_mask(src)
        loss, nll = model.nll(model.decode(tgt, model.encode(src, mask), mask), src)
        optimizer.zero_grad()
        (loss / src.numel()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    assert nll.item() / src.numel() < COPY_LOSS
