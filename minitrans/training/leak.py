"""The leak test: before the first update, does the model see what it must not see?

A position of the decoder may depend on the target tokens up to itself, and nothing may depend on
padding (Vaswani et al. 2017, section 3.2.3: leftward flow is cut "to preserve the auto-regressive
property"). A mask that is off does not crash: the loss falls, and the translations are garbage. So a
corner of the first batch goes through the real model with one token or one padded position changed at a
time, and whatever must not move is compared, the gradients too.

A leak that was asked for (``model.causal=false``, the ablation of the causal mask) is said and recorded
instead of refused; everything else is tested all the same.

Letters: B batch, S source length, T target length, D d_model.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from minitrans.data.batching import Batch
from minitrans.data.tokenizer import END_ID, PAD_ID, UNKNOWN_ID
from minitrans.errors import UserError
from minitrans.model.encoder_decoder import EncoderDecoder

LONGEST = 6  # tokens of a side of the sample: enough for a past, a present and a future
TOLERANCE = 1e-5  # largest change, relative to the largest number compared, that is rounding
CACHE_TOLERANCE = 1e-3  # the same between two orders of computing, where rounding differs more
POISON = 1e4  # written over padded positions of the memory
ANNOUNCEMENT = (
    "A leak on purpose (model.causal=false): in training the decoder sees the tokens that it predicts, so "
    "that neither training nor validation loss tells anything of its translations."
)
ADVICE = "training would learn from what translation cannot see; training.leak_test=false skips this test"


@dataclass(frozen=True)
class LeakReport:
    """The largest change that each check met, relative to the largest number compared.

    All are rounding, or :func:`check_for_leaks` would have raised. None: not checked. Where the decoder is
    causal, padding is future to it; where it is not, by configuration, the future is its own business.
    """

    encoder_padding: float
    cross_attention_padding: float
    loss_padding: float
    future_tokens: float | None
    cached_steps: float | None
    decoder_padding: float | None


@dataclass(frozen=True)
class Sample:
    """Two short rows of real tokens; the second is shorter, so that it has padding on both sides."""

    src: Tensor  # (2, S)
    tgt_in: Tensor  # (2, T)
    tgt_out: Tensor  # (2, T)

    @property
    def src_mask(self) -> Tensor:  # (2, 1, S)
        return (self.src != PAD_ID).unsqueeze(1)


def check_for_leaks(model: EncoderDecoder, batch: Batch, *, causal: bool = True) -> LeakReport:
    """Refuse a model that sees future tokens or padding.

    Runs a few forward and backward passes over two rows of at most six tokens, in evaluation mode. The
    generators, every module's mode and every parameter's gradient stay as they are.

    Parameters
    ----------
    model
        The model to be trained, before it is wrapped for several devices.
    batch
        Any batch of the training data, on the model's device.
    causal
        ``model.causal``. False: the decoder may see future tokens, but still no padding.

    Raises
    ------
    UserError
        The model's outputs are no finite numbers.
        Naming the leak: padding in the batch's mask, in the encoder, in cross-attention, in the decoder or in
        the loss, a future target token, or a cached step that sees other keys than the whole sequence does.
    """
    _require_mask_of_padding(batch)
    sample = _sample(batch)
    with _undisturbed(model, batch.src.device):
        _require_numbers(model, sample)
        return LeakReport(
            encoder_padding=_padding_in_encoder(model, sample),
            cross_attention_padding=_padding_in_cross_attention(model, sample),
            loss_padding=_padding_in_loss(model, sample),
            future_tokens=_future_tokens(model, sample) if causal else None,
            cached_steps=_cached_steps(model, sample) if causal else None,
            decoder_padding=None if causal else _padding_in_decoder(model, sample),
        )


# --------------------------------------------------------------------------------------
# The sample, and leaving everything as it was
# --------------------------------------------------------------------------------------


def _require_mask_of_padding(batch: Batch) -> None:
    if not torch.equal(batch.src_mask.squeeze(1), batch.src != PAD_ID):
        raise UserError(f"the batch's source mask does not hide exactly the padding: {ADVICE}")


def _require_numbers(model: EncoderDecoder, sample: Sample) -> None:
    """Where NaN comes out of a row without padding, no leak can be told, and nothing be learned."""
    src, tgt, src_mask = sample.src[:1], sample.tgt_in[:1], sample.src_mask[:1]  # (1, S), (1, T), (1, 1, S)
    with _recorded(model.encoder.embedding) as embedded:
        memory = model.encode(src, src_mask)  # (1, S, D)
    states = model.decode(tgt, memory, src_mask)  # (1, T, D)
    gradient = _gradient(_weighted_sum(memory), embedded)  # (1, S, D)
    if not all(bool(tensor.isfinite().all()) for tensor in (memory, states, gradient)):
        raise UserError(
            "the model's outputs or gradients are not finite numbers before the first update: a setting is "
            "too large for them, such as attention.scale"
        )


def _sample(batch: Batch) -> Sample:
    """The longest and the shortest pair of the batch, cut short."""
    length = (batch.src != PAD_ID).sum(dim=1) + (batch.tgt_in != PAD_ID).sum(dim=1)  # (B,)
    rows = torch.stack([length.argmax(), length.argmin()])
    return Sample(
        src=_cut(batch.src[rows]),
        tgt_in=_cut(batch.tgt_in[rows]),
        tgt_out=_cut(batch.tgt_out[rows]),
    )


def _cut(ids: Tensor) -> Tensor:
    """Cut the first row to ``LONGEST`` tokens, without padding, and the second to at most half of that."""
    width = max(2, min(LONGEST, int((ids[0] != PAD_ID).sum())))
    short = nn.functional.pad(ids, (0, max(0, width - ids.shape[1])), value=PAD_ID)[:, :width].clone()
    short[1, max(1, width // 2) :] = PAD_ID
    return short  # (2, width)


@contextmanager
def _undisturbed(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Evaluation mode and full fp32, with modes, precision and generators given back at the end."""
    modes = [(module, module.training) for module in model.modules()]
    precision = torch.get_float32_matmul_precision()
    devices = [device] if device.type == "cuda" else []
    try:
        model.eval()
        torch.set_float32_matmul_precision("highest")
        with (
            torch.random.fork_rng(devices=devices),
            torch.autocast(device.type, enabled=False),
            torch.enable_grad(),
        ):
            yield
    finally:
        torch.set_float32_matmul_precision(precision)
        for module, mode in modes:
            module.training = mode


# --------------------------------------------------------------------------------------
# The checks: each returns the largest relative change, or raises with the name of the leak
# --------------------------------------------------------------------------------------


def _padding_in_encoder(model: EncoderDecoder, sample: Sample) -> float:
    """Other tokens under the same mask, in place of padding: the memory of real tokens must not move."""
    real = sample.src != PAD_ID  # (2, S)
    with _recorded(model.encoder.embedding) as embedded:
        memory = model.encode(sample.src, sample.src_mask)  # (2, S, D)
    other = model.encode(torch.where(real, sample.src, UNKNOWN_ID), sample.src_mask)  # (2, S, D)
    change = _change(memory[real], other[real])
    gradient = _gradient(_weighted_sum(memory[real]), embedded)  # (2, S, D)
    if change > TOLERANCE or _touches(gradient, ~real):
        raise UserError(f"the encoder sees padding of the source: {ADVICE}")
    return change


def _padding_in_cross_attention(model: EncoderDecoder, sample: Sample) -> float:
    """Huge numbers in the memory of padding: the decoder must not move, in one pass or through the cache."""
    padding = sample.src == PAD_ID  # (2, S)
    width = sample.tgt_in.shape[1]
    memory = model.encode(sample.src, sample.src_mask).detach().requires_grad_()  # (2, S, D)
    poisoned = memory.detach().masked_fill(padding.unsqueeze(-1), POISON)  # (2, S, D)
    states = model.decode(sample.tgt_in, memory, sample.src_mask)  # (2, T, D)
    change = max(
        _change(states, model.decode(sample.tgt_in, poisoned, sample.src_mask)),
        _change(
            _in_steps(model, sample, memory, [1, width - 1]),
            _in_steps(model, sample, poisoned, [1, width - 1]),
        ),
    )
    gradient = _gradient(_weighted_sum(states), [memory])  # (2, S, D)
    if change > TOLERANCE or _touches(gradient, padding):
        raise UserError(f"the decoder's cross-attention sees padding of the source: {ADVICE}")
    return change


def _padding_in_decoder(model: EncoderDecoder, sample: Sample) -> float:
    """The second row with its padding and without it: the states of its real tokens must be the same."""
    length = int((sample.tgt_in[1] != PAD_ID).sum())
    with torch.no_grad():
        memory = model.encode(sample.src, sample.src_mask)  # (2, S, D)
        padded = model.decode(sample.tgt_in, memory, sample.src_mask)[1:, :length]  # (1, length, D)
        alone = model.decode(sample.tgt_in[1:, :length], memory[1:], sample.src_mask[1:])  # (1, length, D)
    change = _change(alone, padded)
    if change > CACHE_TOLERANCE:
        raise UserError(f"the decoder sees padding of the target: {ADVICE}")
    return change


def _padding_in_loss(model: EncoderDecoder, sample: Sample) -> float:
    """Other states where the target is padding: the loss must not move, and its gradient there is zero."""
    padding = sample.tgt_out == PAD_ID  # (2, T)
    memory = model.encode(sample.src, sample.src_mask)  # (2, S, D)
    states = model.decode(sample.tgt_in, memory, sample.src_mask).detach().requires_grad_()  # (2, T, D)
    other = torch.where(padding.unsqueeze(-1), -2 * states.detach(), states.detach())  # (2, T, D)
    losses = model.nll(states, sample.tgt_out, label_smoothing=0.1)
    others = model.nll(other, sample.tgt_out, label_smoothing=0.1)
    change = max(_change(loss, moved) for loss, moved in zip(losses, others, strict=True))
    gradient = _gradient(losses[0], [states])  # (2, T, D)
    if change > TOLERANCE or _touches(gradient, padding):
        raise UserError(f"the loss counts padding of the target: {ADVICE}")
    return change


def _future_tokens(model: EncoderDecoder, sample: Sample) -> float:
    """Change one token at a time: earlier positions must not move, its own must, and later ones may.

    Row j of the batch below has token j changed, so that one pass shows which token moves which position.
    """
    tgt = sample.tgt_in[:1]  # (1, T), without padding
    length = tgt.shape[1]
    changed = torch.where(tgt == UNKNOWN_ID, END_ID, UNKNOWN_ID)  # (1, T)
    own = torch.eye(length, dtype=torch.bool, device=tgt.device)  # (T, T)
    memory = model.encode(sample.src[:1], sample.src_mask[:1]).detach()  # (1, S, D)
    with _recorded(model.decoder.embedding) as embedded:
        states = model.decode(tgt, memory, sample.src_mask[:1])  # (1, T, D)
    with torch.no_grad():
        rows = torch.cat([tgt, torch.where(own, changed, tgt)])  # (1 + T, T)
        everywhere = memory.expand(len(rows), -1, -1), sample.src_mask[:1].expand(len(rows), -1, -1)
        moved = model.decode(rows, *everywhere)  # (1 + T, T, D)
        influence = (moved[1:] - moved[:1]).abs().amax(dim=-1) / moved[
            0
        ].abs().max()  # (T tokens, T positions)
    _require_past(influence)
    change = influence.tril(diagonal=-1).max().item()
    middle = length // 2
    gradient = _gradient(_weighted_sum(states[:, :middle]), embedded)  # (1, T, D)
    future = (torch.arange(length, device=tgt.device) >= middle).unsqueeze(0)  # (1, T)
    if change > TOLERANCE or _touches(gradient, future):
        raise UserError(f"the decoder sees future target tokens: {ADVICE}")
    return change


def _require_past(influence: Tensor) -> None:
    """A mask may also hide too much: a token that nothing sees, a position that sees no earlier token.

    Any change at all counts here, and one position is enough, because a sharp softmax may rightly leave
    a weight too small for fp32.
    """
    blind = (influence.diagonal() <= TOLERANCE).any()
    if len(influence) > 1:
        later = influence.triu(diagonal=1)  # (T tokens, T positions), the token before the position
        blind |= (later[:-1].amax(dim=1) == 0).any() | (later[:, 1:].amax(dim=0) == 0).any()
    if blind:
        raise UserError(
            "the decoder's causal mask hides past target tokens: translation would not see them either"
        )


def _cached_steps(model: EncoderDecoder, sample: Sample) -> float:
    """Through the cache, one token or several a step, comes what the whole sequence at once gives.

    A causal mask anchored at the first key instead of the last shows here alone: with as many queries as
    keys the two are one.
    """
    real = sample.tgt_in != PAD_ID  # (2, T)
    width = real.shape[1]
    with torch.no_grad():
        memory = model.encode(sample.src, sample.src_mask)  # (2, S, D)
        at_once = model.decode(sample.tgt_in, memory, sample.src_mask)  # (2, T, D)
        one_by_one = _in_steps(model, sample, memory, [1] * width)  # (2, T, D)
        one_then_all = _in_steps(model, sample, memory, [1, width - 1])  # (2, T, D)
    change = max(_change(at_once[real], stepped[real]) for stepped in (one_by_one, one_then_all))
    if change > CACHE_TOLERANCE:
        raise UserError(
            "a cached step sees other target tokens than the whole sequence does (the causal mask must be "
            "anchored at the last key): translation would not compute what training does"
        )
    return change


# --------------------------------------------------------------------------------------
# Running and comparing
# --------------------------------------------------------------------------------------


@contextmanager
def _recorded(module: nn.Module) -> Iterator[list[Tensor]]:
    """Keep what ``module`` returns, to take gradients with respect to it."""
    outputs: list[Tensor] = []
    hook = module.register_forward_hook(lambda module, inputs, output: outputs.append(output))
    try:
        yield outputs
    finally:
        hook.remove()


@torch.no_grad()
def _in_steps(model: EncoderDecoder, sample: Sample, memory: Tensor, sizes: list[int]) -> Tensor:
    """The states of the sample's targets, fed through the cache so many tokens at a time."""
    cache = model.start_cache(memory, sample.src_mask)
    steps = []
    for tokens in sample.tgt_in.split(sizes, dim=1):  # (2, size)
        states, cache = model.step(tokens, cache)  # (2, size, D)
        steps.append(states)
    return torch.cat(steps, dim=1)  # (2, T, D)


def _change(expected: Tensor, found: Tensor) -> float:
    """Largest difference, relative to the largest number; infinite where a number is not finite."""
    difference = ((expected - found).abs().max() / expected.abs().max()).item()
    return difference if difference == difference else float("inf")


def _weighted_sum(values: Tensor) -> Tensor:
    """One number that depends on every value (a plain sum of a normalised layer is constant)."""
    weights = torch.arange(values.numel(), device=values.device, dtype=values.dtype).cos().view_as(values)
    return (values * weights).sum()


def _gradient(output: Tensor, inputs: list[Tensor]) -> Tensor:
    """The gradient with respect to the one tensor of ``inputs``."""
    (gradient,) = torch.autograd.grad(output, inputs)
    return gradient


def _touches(gradient: Tensor, positions: Tensor) -> bool:
    """Whether a (B, T, D) gradient exceeds rounding (or is no number) at any of the (B, T) ``positions``."""
    bound = TOLERANCE * gradient.abs().max()
    return not bool((gradient[positions].abs() <= bound).all())
