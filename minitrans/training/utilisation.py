r"""The share of a machine's arithmetic that a training uses, for the log.

.. math:: \mathrm{mfu} = \frac{6\,(w_S n_S + w_T n_T)}{t \cdot p \cdot \mathrm{peak}}

with :math:`n_S` and :math:`n_T` real source and target tokens in :math:`t` seconds on :math:`p` processes,
and :math:`w_S`, :math:`w_T` the weights that each of them is multiplied by: once forwards, twice backwards, a
multiplication and an addition each time (Kaplan et al. 2020, section 2.1; Chowdhery et al. 2022, appendix B).
Padding counts for nothing.

It is an estimate that costs a training nothing: attention's products of queries and keys are left out (a few
in a hundred for sentences, more for long documents), and keys and values of the memory count with the target.
``benchmark.py train`` counts all products one by one, and divides by the peak of the same function.
"""

import functools
import time

import torch

from minitrans.model.embeddings import TokenEmbedding
from minitrans.model.encoder_decoder import EncoderDecoder
from minitrans.model.positions import PositionEncoding
from minitrans.training.precision import processor_is_fast_in_bf16

PEAK_SECONDS = 0.1
# Rows, columns and depth of the products. On a processor the smaller ones fit its caches, and are over before
# another program interrupts them; the larger ones keep many threads busy.
_SIZES = (512, 1024, 2048)
_SIZES_GPU = (2048, 4096, 8192)


class Utilisation:
    """What of the machine's peak a training's throughput comes to.

    Parameters
    ----------
    model
        The model that is trained, its weights in one piece.
    number_type
        Of its activations.
    """

    def __init__(self, model: EncoderDecoder, number_type: torch.dtype):
        self.src_weights, self.tgt_weights = weights_per_token(model)
        self.number_type = number_type

    def flops(self, src_tokens: int, tgt_tokens: int) -> int:
        """Operations of forward and backward passes over so many real tokens."""
        return 6 * (self.src_weights * src_tokens + self.tgt_weights * tgt_tokens)

    def peak(self, device: torch.device) -> float:
        """Operations a second of one process at best, measured the first time that it is asked for."""
        return _peak_once(device, self.number_type, torch.get_num_threads())


def weights_per_token(model: EncoderDecoder) -> tuple[int, int]:
    """Weights that a source token and a target token are multiplied by: matrices, but for looked-up tables.

    A target embedding that is also the output matrix is multiplied by as that.
    """
    tables = {
        id(table)
        for module in model.modules()
        if isinstance(module, TokenEmbedding | PositionEncoding)
        for table in module.parameters()
    }
    src, tgt = (
        sum(p.numel() for p in side.parameters() if p.dim() >= 2 and id(p) not in tables)
        for side in (model.encoder, model.decoder)
    )
    return src, tgt + model.output.weight.numel()


@functools.cache
def _peak_once(device: torch.device, number_type: torch.dtype, threads: int) -> float:
    """The peak with so many threads; other runs of this process have it without measuring again."""
    return peak_flops(device, number_type, PEAK_SECONDS)


def peak_flops(device: torch.device, number_type: torch.dtype, seconds: float) -> float:
    """Floating-point operations a second of the quickest product of two square matrices.

    Products of 512³, 1024³ and 2048³ multiplications on a processor and 2048³ to 8192³ on a GPU, again and
    again, with the threads that torch has now. A size that the time does not suffice for is left out. torch's
    generators are left as they are.

    Parameters
    ----------
    device, number_type
        Where, and of which numbers. (Of float32 in place of bf16 on a processor that has none in hardware:
        its products in bf16 are slower than the rest of a training, so that they bound nothing.)
    seconds
        About how long it may take.
    """
    on_processor = device.type == "cpu"
    if on_processor and number_type == torch.bfloat16 and not processor_is_fast_in_bf16():
        number_type = torch.float32
    sizes = _SIZES if on_processor else _SIZES_GPU
    share = seconds / len(sizes)
    best = 0.0
    for size in sizes:
        operations = 2 * size**3
        if best and operations / best > share:
            break
        best = max(best, operations / _quickest(size, device, number_type, share))
    return best


def _quickest(size: int, device: torch.device, number_type: torch.dtype, seconds: float) -> float:
    """Seconds of the quickest of some products, the first one left out."""
    generator = torch.Generator(device).manual_seed(0)
    left, right = (torch.randn(size, size, device=device, generator=generator).to(number_type) for _ in "lr")
    quickest, begun = float("inf"), time.perf_counter()
    _multiply(left, right)
    while quickest == float("inf") or time.perf_counter() - begun < seconds:
        start = time.perf_counter()
        _multiply(left, right)
        quickest = min(quickest, time.perf_counter() - start)
    return quickest


def _multiply(left: torch.Tensor, right: torch.Tensor) -> None:
    """One product, and a look at it: a GPU works on while nobody looks."""
    (left @ right)[0, 0].item()
