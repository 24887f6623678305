"""Which number type the activations have; weights and optimizer stay float32."""

import functools

import torch

from minitrans.errors import UserError


def choose(precision: str, accelerator: str) -> tuple[str, str]:
    """What ``trainer.precision`` means on this machine.

    Parameters
    ----------
    precision
        ``fp32``, ``bf16``, ``fp64`` or ``auto``.
    accelerator
        ``cpu``, ``gpu`` or ``auto`` (a GPU where there is one).

    Returns
    -------
    Lightning's word for it, and the choice with its reason for the log.

    Raises
    ------
    UserError
        bf16 on a GPU that has none.
    """
    on_gpu = accelerator == "gpu" or (accelerator == "auto" and torch.cuda.is_available())
    if precision == "fp32":
        return "32-true", "fp32"
    if precision == "fp64":
        # the weights are made so in fit; Lightning's word would convert the batches, which hold ids
        return "32-true", "fp64 weights and activations"
    if on_gpu:
        if torch.cuda.is_bf16_supported():
            return "bf16-mixed", "bf16 activations, fp32 weights"
        if precision == "bf16":
            raise UserError("trainer.precision=bf16, but this GPU has no bf16; use trainer.precision=fp32")
        return "32-true", "fp32 (this GPU has no bf16)"
    if processor_is_fast_in_bf16():
        reason = "" if precision == "bf16" else " (this processor multiplies bf16 in hardware)"
        return "bf16-mixed", f"bf16 activations, fp32 weights{reason}"
    if precision == "bf16":
        slow = "this processor has no fast bf16: trainer.precision=fp32 would be faster"
        return "bf16-mixed", f"bf16 activations, fp32 weights ({slow})"
    return "32-true", "fp32 (this processor has no fast bf16)"


def number_type(precision: str, accelerator: str) -> torch.dtype:
    """The type of the activations that :func:`choose` comes to."""
    word, _ = choose(precision, accelerator)
    if word == "bf16-mixed":
        return torch.bfloat16
    return torch.float64 if precision == "fp64" else torch.float32


@functools.cache
def processor_is_fast_in_bf16() -> bool:
    """Whether the processor multiplies bf16 matrices in hardware (Intel AMX, AVX-512 BF16; Arm BF16)."""
    try:
        with open("/proc/cpuinfo", encoding="utf8") as file:
            flags = file.read()
    except OSError:
        return False
    return any(flag in flags for flag in ("amx_bf16", "avx512_bf16", " bf16"))
