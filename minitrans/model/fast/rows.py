"""Products of few shapes: the fast twin of a linear map over as many rows as a batch happens to have.

The half-precision products of a processor (oneDNN) are programs written for one shape, when that shape
first comes. Batches of text have ever new numbers of tokens: writing a program can take longer than running
it, and a thousand of them are kept, a megabyte each. With the rows filled up to the next multiple of ROWS
there are a few dozen shapes. (One core, 60 numbers of rows through three maps of widths 256 and 1024, forward
and backward: 68 ms each where new, 16 where known, 28 filled up; a training of 60 updates held 810 MB instead
of 1,860. In float32, one map of widths 256 and 1024: 24 ms where new, 18 where known, and 0.9 MB for each.)

Letters: R rows (tokens of a batch), D and E widths.
"""

from collections.abc import Callable

import torch
from torch import Tensor

ROWS = 64
HALF = (torch.bfloat16, torch.float16)


def over_full_rows(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """``function(x)`` for a function of each row by itself, on a multiple of ROWS rows where that pays.

    Parameters
    ----------
    function
        (R, D) -> (R, E).
    x
        (..., D).

    Returns
    -------
    (..., E).
    """
    if x.dim() < 2 or not x.numel() or not written_by_shape(x):
        return function(x)
    rows = filled(x.flatten(0, -2))  # (..., D) -> (R, D)
    return function(rows)[: x.shape[:-1].numel()].view(*x.shape[:-1], -1)  # (R, E) -> (..., E)


def type_of_products(x: Tensor) -> torch.dtype:
    """The type that autocast gives to products; where it is off, that of ``x``."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def written_by_shape(x: Tensor) -> bool:
    """Whether torch's products with ``x`` are programs for one shape: on a processor, in half precision."""
    return x.device.type == "cpu" and (x.dtype in HALF or type_of_products(x) in HALF)


def has_onednn(dtype: torch.dtype) -> bool:
    """Whether torch's oneDNN computes in this type on this processor, and is not turned off."""
    if not (torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled):
        return False
    in_half = dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return dtype == torch.float32 or bool(in_half)


def onednn_writes_by_shape(dtype: torch.dtype) -> bool:
    """Whether :func:`.linear.product` in this type is a program for one shape: by oneDNN in float32 too."""
    return dtype in HALF or has_onednn(dtype)


def full(num_rows: int) -> int:
    """The next multiple of ROWS."""
    return -(-num_rows // ROWS) * ROWS


def filled(rows: Tensor) -> Tensor:
    """(R, D) with rows of zeros behind, up to the next multiple of ROWS."""
    missing = full(len(rows)) - len(rows)
    return torch.cat((rows, rows.new_zeros(missing, rows.size(-1)))) if missing else rows
